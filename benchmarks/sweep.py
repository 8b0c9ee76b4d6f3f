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
import multiprocessing
import sys
import tempfile
from pathlib import Path

import torch
from measuring import peak_mib, timed
from safetensors.torch import save_file
from torch import Tensor

from attnprobe import QKV, approximate, load_qkv
from attnprobe.sources import SourceSpec
from attnprobe.sweep import ErrorRequest, measure_errors

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
        source=SourceSpec(qkv=path, device="cpu"), methods=METHODS, d=",".join(map(str, budgets)), matrix=False,
        out=tempfile.mkdtemp(),
    )  # fmt: skip
    records = measure_errors(request).outcome.records
    return {(one["method"], one["d"]): torch.tensor(one["metrics"]["output_spectral"], dtype=torch.float64)
            for one in records if one["method"] in METHODS}  # fmt: skip


def saved(weights: str, n: int, args: argparse.Namespace, folder: str) -> str:
    qkv = load_qkv(weights=weights, n=n, layer=0, text=args.text, device="cpu", notify=lambda line: None)
    path = Path(folder) / f"{weights}-{n}.safetensors"
    save_file({axis: getattr(qkv, axis)[: args.heads].contiguous() for axis in "qkv"}, path)
    return str(path)


def loaded(path: str) -> QKV:
    from safetensors.torch import load_file

    return QKV(**load_file(path))


def peak_extra_mib(path: str, budgets: list[int], side: str) -> float:
    """Peak memory of one side beyond Q, K and V; to run in a process of its own."""
    qkv = loaded(path)
    few = QKV(*(x[:1, :64].contiguous() for x in (qkv.q, qkv.k, qkv.v)))
    notebook(few, budgets[:1], careful=True)  # thread pools and kernels are no cost of either
    return peak_mib(lambda: ours(path, budgets) if side == "ours" else notebook(qkv, budgets, careful=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="initialized,pretrained")
    parser.add_argument("--text", help="see attnprobe.load_qkv; it must be long enough")
    parser.add_argument("--n", default="512,1024,2048,4096")
    parser.add_argument("--d", default="16,32,64,128,256")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    lengths, budgets = ([int(x) for x in text.split(",")] for text in (args.n, args.d))
    missed = []
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, CPU, {threads} threads, {args.heads} heads, {', '.join(METHODS)}")
    print(f"{'weights':12} {'n':>6} {'ours s':>8} {'plain s':>8} {'ratio':>6} {'careful s':>9} {'ratio':>6} {'off':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for weights in args.weights.split(","):
            paths = {n: saved(weights, n, args, folder) for n in lengths}
            first = paths[lengths[0]]
            ours(first, budgets), notebook(loaded(first), budgets, careful=True)
            sums = dict.fromkeys(("ours", "plain", "careful"), 0.0)
            for n, path in paths.items():
                qkv = loaded(path)
                seconds, results = timed(
                    {
                        "ours": lambda path=path: ours(path, budgets),
                        "plain": lambda qkv=qkv: notebook(qkv, budgets, careful=False),
                        "careful": lambda qkv=qkv: notebook(qkv, budgets, careful=True),
                    },
                    args.rounds,
                    warm_up=0,  # it went before, at the smallest n
                )
                size = torch.linalg.matrix_norm(dense_output(qkv).double(), 2)
                mine, theirs = results["ours"], results["careful"]
                shares = ((mine[key] - theirs[key]).abs() / torch.maximum(size, mine[key]) for key in mine)
                off = max(float(share.max()) for share in shares)
                sums = {name: total + seconds[name] for name, total in sums.items()}
                print(line(weights, str(n), seconds, f"{off:8.0e}"), flush=True)
                missed += [] if off <= SAME else [f"{weights} n={n}: errors differ by {off:.0e}, goal {SAME:.0e}"]
            print(line(weights, "all", sums, ""), flush=True)
            for name, goal in (("plain", PLAIN_GOAL), ("careful", CAREFUL_GOAL)):
                ratio = sums[name] / sums["ours"]
                missed += [] if ratio >= goal else [f"{weights}: {ratio:.2f} times the {name} notebook, goal {goal}"]
            with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
                longest = paths[max(lengths)]
                peaks = {side: pool.apply(peak_extra_mib, (longest, budgets, side)) for side in ("ours", "careful")}
            ratio = peaks["careful"] / peaks["ours"]
            print(f"{weights:12} memory at n={max(lengths)}: ours {peaks['ours']:.0f} MiB, careful notebook "
                  f"{peaks['careful']:.0f} MiB, ratio {ratio:.1f}", flush=True)  # fmt: skip
            missed += [] if ratio >= MEMORY_GOAL else [f"{weights}: {ratio:.1f} times less memory, goal {MEMORY_GOAL}"]
    for one in missed:
        print("missed:", one)
    return 1 if missed else 0


def line(weights: str, n: str, seconds: dict[str, float], off: str) -> str:
    mine = seconds["ours"]
    return (f"{weights:12} {n:>6} {mine:8.2f} {seconds['plain']:8.2f} {seconds['plain'] / mine:6.1f} "
            f"{seconds['careful']:9.2f} {seconds['careful'] / mine:6.2f} {off}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
