"""Figure 1's grid as `attnprobe sweep` measures it, against a careful notebook of the methods' public implementations.

    pip install nystrom-attention performer-pytorch linformer  # or attnprobe[test]
    python benchmarks/public.py [--weights initialized,pretrained] [--n 512,1024,2048,4096]
                                [--d 16,32,64,128,256] [--heads 12] [--rounds 3]

The grid is that of `sweep.py`, and so is ours. The notebook takes nystromformer from nystrom-attention, performer from
performer-pytorch, linformer from linformer and informer from transformers, with Q, K and V in place of projections, and
writes skyformer's formula in ten lines. It makes the exact output in float32 from a dense softmax of all heads, once
for each n. The draws have the laws of ours: linformer's S is N(0, 1/d). transformers' informer scores each query
against all sampled keys, and its number of rows is a multiple of ⌈ln(n + 1)⌉; its errors are shown and not judged.

In each round both run once in turn in this process; a time is the median of the rounds, and a first call at the
smallest n is not counted. Memory is that of a fresh process each, beyond Q, K, V. An error is the median over heads of
‖output - exact‖₂ over ‖exact‖₂; of each method, that of the notebook over ours is the median over budgets and n.

Goals: twice as fast, a quarter of its memory, errors whose ratio is within 0.8 and 1.25. Exits 1 where one is missed.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from linformer.linformer import LinformerSelfAttention
from measuring import Goal, Timed, finish, grid_arguments, timed
from nystrom_attention import NystromAttention
from performer_pytorch import FastAttention
from sweep import METHODS, Errors, dense_output, loaded, ours, saved
from torch import Tensor, nn
from transformers.models.informer.modeling_informer import InformerProbSparseAttention

from attnprobe import QKV
from attnprobe.metrics.cost import peak_bytes

TIME_GOAL, MEMORY_GOAL, ERROR_GOAL = 2.0, 4.0, 1.25
JUDGED = [name for name in METHODS if name != "informer"]


class Given(nn.Module):
    """In place of a projection: a tensor, whatever the input."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x

    def forward(self, _: Tensor) -> Tensor:
        return self.x


def joined(x: Tensor) -> Tensor:
    """Heads side by side, (1, n, h p)."""
    return x.transpose(0, 1).flatten(1)[None]


def split(x: Tensor, h: int) -> Tensor:
    """The heads again, (h, n, p)."""
    return x[0].unflatten(1, (h, -1)).transpose(0, 1)


def nystromformer(qkv: QKV, d: int) -> Tensor:
    q, k, v = (joined(x) for x in (qkv.q, qkv.k, qkv.v))
    module = NystromAttention(q.shape[2], qkv.p, qkv.h, d, residual=False)
    module.to_qkv, module.to_out = Given(torch.cat([q, k, v], 2)), nn.Identity()
    return split(module(q), qkv.h)


def performer(qkv: QKV, d: int) -> Tensor:
    return FastAttention(qkv.p, d)(*(x[None] for x in (qkv.q, qkv.k, qkv.v)))[0]


def linformer(qkv: QKV, d: int) -> Tensor:
    q, k, v = (joined(x) for x in (qkv.q, qkv.k, qkv.v))
    module = LinformerSelfAttention(q.shape[2], qkv.n_k, d, qkv.h, qkv.p)
    module.to_q, module.to_k, module.to_v, module.to_out = Given(q), Given(k), Given(v), nn.Identity()
    module.proj_k = module.proj_v = nn.Parameter(torch.randn(qkv.n_k, d) / d**0.5)
    return split(module(q), qkv.h)


def informer(qkv: QKV, d: int) -> Tensor:
    q, k, v = (joined(x) for x in (qkv.q, qkv.k, qkv.v))
    factor = max(1, round(d / math.ceil(math.log1p(qkv.n_q))))
    module = InformerProbSparseAttention(q.shape[2], qkv.h, sampling_factor=factor)
    module.q_proj, module.k_proj, module.v_proj, module.out_proj = Given(q), Given(k), Given(v), nn.Identity()
    return split(module(q)[0], qkv.h)


def skyformer(qkv: QKV, d: int) -> Tensor:
    z = torch.cat([qkv.q, qkv.k], 1).double()
    rows = torch.arange(d) * z.shape[1] // d + torch.randint(z.shape[1] // d, (d,))
    s, half = z[:, rows], qkv.scale / 2

    def kernel(x, y):
        return torch.exp(-half * torch.cdist(x, y).square())

    left, core, right = kernel(qkv.q.double(), s), kernel(s, s), kernel(s, qkv.k.double())
    weight = qkv.k.double().square().sum(2) * half
    right = right * torch.exp(weight - weight.amax(1, keepdim=True))[:, None]
    right = torch.linalg.pinv(core, hermitian=True) @ right
    output = left @ (right @ qkv.v.double())
    return (output / (left @ right.sum(2, keepdim=True))).float()


PUBLIC: dict[str, Callable[[QKV, int], Tensor]] = {
    "nystromformer": nystromformer,
    "skyformer": skyformer,
    "performer": performer,
    "informer": informer,
    "linformer": linformer,
}


@torch.no_grad()
def notebook(qkv: QKV, budgets: list[int]) -> Errors:
    exact = dense_output(qkv)
    return {(name, d): torch.linalg.matrix_norm(PUBLIC[name](qkv, d) - exact, 2) for name in METHODS for d in budgets}


def make(path: str, budgets: list[int], side: str, few: bool = False) -> Callable[[], Any]:
    """One side of the comparison, Q, K and V made."""
    qkv = loaded(path)
    if few:
        small = QKV(*(x[:1, :64].contiguous() for x in (qkv.q, qkv.k, qkv.v)))
        return lambda: notebook(small, budgets[:1])
    return lambda: ours(path, budgets) if side == "ours" else notebook(qkv, budgets)


def grid(weights: str, paths: dict[int, str], budgets: list[int], rounds: int) -> list[Goal]:
    """Every n of the grid, its lines, and its goals."""
    parts, ratios = [], {name: [] for name in METHODS}
    for n, path in paths.items():
        qkv = loaded(path)
        work = {
            "ours": lambda path=path: ours(path, budgets),
            "notebook": lambda qkv=qkv: notebook(qkv, budgets),
        }
        found = timed(work, rounds, warm_up=0)  # which went before, at the smallest n
        mine, theirs = found.results["ours"], found.results["notebook"]
        for name, d in mine:
            ratios[name].append(float(theirs[name, d].double().median() / mine[name, d].median()))
        print(line(weights, str(n), found), flush=True)
        parts.append(found.seconds)
    turns = {name: zip(*(part[name] for part in parts), strict=True) for name in ("ours", "notebook")}
    whole = Timed({name: [sum(turn) for turn in every] for name, every in turns.items()}, {})
    print(line(weights, "all", whole), flush=True)
    ratio, beside = whole.ratio("notebook", "ours")
    goals = [Goal(f"public notebook over ours, time, {weights}", ratio, TIME_GOAL, spread=beside)]
    for name, every in ratios.items():
        off = median(every)
        print(f"{weights:12} {name}: errors of the notebook over ours {off:.3f} ({min(every):.2f} - {max(every):.2f})")
        if name in JUDGED:
            goals.append(Goal(f"errors that differ, factor, {name}, {weights}", max(off, 1 / off), ERROR_GOAL, False))
    return goals


def memory(weights: str, n: int, path: str, budgets: list[int]) -> Goal:
    """Peak memory of ours beside that of the notebook, beyond Q, K and V."""
    peaks = {side: (peak_bytes(make, path, budgets, side) or 0) / 2**20 for side in ("ours", "notebook")}
    ratio = peaks["notebook"] / peaks["ours"]
    print(
        f"{weights:12} memory at n={n}: ours {peaks['ours']:.0f} MiB, notebook {peaks['notebook']:.0f} MiB", flush=True
    )
    return Goal(f"public notebook over ours, memory, {weights} n={n}", ratio, MEMORY_GOAL)


def line(weights: str, n: str, found: Timed) -> str:
    mine, theirs = (found.median(name) for name in ("ours", "notebook"))
    return f"{weights:12} {n:>6} {mine:8.2f} {theirs:10.2f} {found.ratio('notebook', 'ours')[0]:6.2f}"


def main() -> int:
    args, goals = grid_arguments(__doc__).parse_args(), []
    lengths, budgets = ([int(x) for x in text.split(",")] for text in (args.n, args.d))
    print(
        f"torch {torch.__version__}, CPU, {torch.get_num_threads()} threads, {args.heads} heads, {', '.join(METHODS)}"
    )
    print(f"{'weights':12} {'n':>6} {'ours s':>8} {'notebook s':>10} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for weights in args.weights.split(","):
            paths = {n: saved(weights, n, args, folder) for n in lengths}
            first = paths[lengths[0]]
            ours(first, budgets), notebook(loaded(first), budgets)
            goals += grid(weights, paths, budgets, args.rounds)
            goals.append(memory(weights, max(lengths), paths[max(lengths)], budgets))
    return finish(goals, args.json)


if __name__ == "__main__":
    sys.exit(main())
