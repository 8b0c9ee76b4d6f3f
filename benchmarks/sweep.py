"""A grid of output errors as `attnprobe sweep` measures it, against two notebooks that hold dense matrices.

    python benchmarks/sweep.py [--weights initialized,pretrained] [--n 512,1024,2048,4096]
                               [--d 16,32,64,128,256] [--heads 12] [--rounds 3]

The grid of the papers' Figure 1: five methods at five budgets for each n, on one text window. Ours is `measure_errors`
of a Q/K/V file from start to end: records, statuses, V-Mean and lower bounds included, exact outputs in float64. Both
notebooks run the same methods, make the exact output in float32 from a dense softmax of all heads, and find
‖output - exact‖₂ with `torch.linalg.matrix_norm`: the plain one makes the exact output anew for each configuration,
the careful one once for each n. In each round all run once in turn in this process; a time is the median of the
rounds, and a first call at the smallest n is not counted. Memory is that of a fresh process each, beyond Q, K, V.

Goals: 8 times faster than the plain notebook, 1.4 times than the careful one, a quarter of its memory; errors that
agree to 1e-5 of the exact output's norm, or of themselves where they are larger. Exits 1 where one is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import Goal, Timed, finish, grid_arguments, timed
from safetensors.torch import save_file
from torch import Tensor

from attnprobe import QKV, approximate, load_qkv
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.metrics.cost import peak_bytes

METHODS = ("nystromformer", "skyformer", "performer", "informer", "linformer")
PLAIN_GOAL, CAREFUL_GOAL, MEMORY_GOAL, SAME = 8.0, 1.4, 4.0, 1e-5
Errors = dict[tuple[str, int], Tensor]


def dense_output(qkv: QKV) -> Tensor:
    return torch.softmax(qkv.q @ qkv.k.mT * qkv.scale, dim=-1) @ qkv.v


def notebook(qkv: QKV, budgets: list[int], careful: bool) -> Errors:
    found, wanted = {}, dense_output(qkv) if careful else None
    for name in METHODS:
        for d in budgets:
            output = approximate(name, qkv, d).output
            found[name, d] = torch.linalg.matrix_norm(output - (wanted if careful else dense_output(qkv)), 2)
    return found


def ours(path: str, budgets: list[int]) -> Errors:
    request = ErrorRequest(
        qkv=path,
        device="cpu",
        methods=METHODS,
        d=tuple(budgets),
        matrix=False,
        input_statistics=False,
        out=tempfile.mkdtemp(),
    )
    records = measure_errors(request).outcome.records
    return {
        (one["method"], one["d"]): torch.tensor([row["output_spectral"] for row in one["rows"]], dtype=torch.float64)
        for one in records
        if one["method"] in METHODS
    }


def saved(weights: str, n: int, args: argparse.Namespace, folder: str) -> str:
    qkv = load_qkv(weights=weights, n=n, layer=0, text=args.text, device="cpu", notify=lambda line: None)
    path = Path(folder) / f"{weights}-{n}.safetensors"
    save_file({axis: getattr(qkv, axis)[: args.heads].contiguous() for axis in "qkv"}, path)
    return str(path)


def loaded(path: str) -> QKV:
    from safetensors.torch import load_file

    return QKV(**load_file(path))


def make(path: str, budgets: list[int], side: str, few: bool = False) -> Callable[[], Any]:
    """One side of the comparison, Q, K and V made."""
    qkv = loaded(path)
    if few:
        small = QKV(*(x[:1, :64].contiguous() for x in (qkv.q, qkv.k, qkv.v)))
        return lambda: notebook(small, budgets[:1], careful=True)
    return lambda: ours(path, budgets) if side == "ours" else notebook(qkv, budgets, careful=True)


def grid(weights: str, paths: dict[int, str], budgets: list[int], rounds: int) -> list[Goal]:
    """Every n of the grid, its lines, and its goals."""
    goals, parts = [], []
    for n, path in paths.items():
        qkv = loaded(path)
        found = timed(
            {
                "ours": lambda path=path: ours(path, budgets),
                "plain": lambda qkv=qkv: notebook(qkv, budgets, careful=False),
                "careful": lambda qkv=qkv: notebook(qkv, budgets, careful=True),
            },
            rounds,
            warm_up=0,  # it went before, at the smallest n
        )
        size = torch.linalg.matrix_norm(dense_output(qkv).double(), 2)
        mine, theirs = found.results["ours"], found.results["careful"]
        shares = ((mine[key] - theirs[key]).abs() / torch.maximum(size, mine[key]) for key in mine)
        off = max(float(share.max()) for share in shares)
        print(line(weights, str(n), found, f"{off:8.0e}"), flush=True)
        goals.append(Goal(f"errors that differ, {weights} n={n}", off, SAME, False))
        parts.append(found.seconds)
    turns = {name: zip(*(part[name] for part in parts), strict=True) for name in ("ours", "plain", "careful")}
    whole = Timed({name: [sum(turn) for turn in every] for name, every in turns.items()}, {})
    print(line(weights, "all", whole, ""), flush=True)
    for name, goal in (("plain", PLAIN_GOAL), ("careful", CAREFUL_GOAL)):
        ratio, beside = whole.ratio(name, "ours")
        goals.append(Goal(f"{name} notebook over ours, time, {weights}", ratio, goal, spread=beside))
    return goals


def memory(weights: str, n: int, path: str, budgets: list[int]) -> Goal:
    """Peak memory of ours beside that of the careful notebook, beyond Q, K and V."""
    peaks = {side: peak_bytes(make, path, budgets, side) / 2**20 for side in ("ours", "careful")}
    ratio = peaks["careful"] / peaks["ours"]
    print(
        f"{weights:12} memory at n={n}: ours {peaks['ours']:.0f} MiB, careful notebook {peaks['careful']:.0f} MiB, "
        f"ratio {ratio:.1f}",
        flush=True,
    )
    return Goal(f"careful notebook over ours, memory, {weights} n={n}", ratio, MEMORY_GOAL)


def line(weights: str, n: str, found: Timed, off: str) -> str:
    seconds = {name: found.median(name) for name in found.seconds}
    ratios = {name: found.ratio(name, "ours")[0] for name in ("plain", "careful")}
    return (
        f"{weights:12} {n:>6} {seconds['ours']:8.2f} {seconds['plain']:8.2f} {ratios['plain']:6.1f} "
        f"{seconds['careful']:9.2f} {ratios['careful']:6.2f} {off}"
    )


def main() -> int:
    args = grid_arguments(__doc__).parse_args()
    lengths, budgets = ([int(x) for x in text.split(",")] for text in (args.n, args.d))
    goals = []
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, CPU, {threads} threads, {args.heads} heads, {', '.join(METHODS)}")
    print(f"{'weights':12} {'n':>6} {'ours s':>8} {'plain s':>8} {'ratio':>6} {'careful s':>9} {'ratio':>6} {'off':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for weights in args.weights.split(","):
            paths = {n: saved(weights, n, args, folder) for n in lengths}
            first = paths[lengths[0]]
            ours(first, budgets), notebook(loaded(first), budgets, careful=True)
            goals += grid(weights, paths, budgets, args.rounds)
            goals.append(memory(weights, max(lengths), paths[max(lengths)], budgets))
    return finish(goals, args.json)


if __name__ == "__main__":
    sys.exit(main())
