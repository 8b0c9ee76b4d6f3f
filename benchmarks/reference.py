"""Exact attention output in float64: the streamed reference against a dense softmax, one head at a time.

    python benchmarks/reference.py [--n 4096,8192] [--heads 12] [--p 64] [--rounds 3]

Both are timed in this process in turn; peak memory is that of a fresh process each, beyond what it held with its inputs
made. Goals at n = 8192: at least 4 times faster and under 200 MiB extra; equal to 1e-13 everywhere. Exits 1 where one
is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from statistics import median
from time import perf_counter

import torch
from measuring import resident_mib

from attnprobe import QKV
from attnprobe.reference import exact_output

SPEED_GOAL, MEMORY_GOAL, GOAL_N = 4.0, 200.0, 8192


def inputs(n: int, heads: int, p: int) -> QKV:
    generator = torch.Generator().manual_seed(n)
    return QKV(*torch.randn(3, heads, n, p, generator=generator))


def streamed(qkv: QKV) -> torch.Tensor:
    return exact_output(qkv)


def dense(qkv: QKV) -> torch.Tensor:
    """What a notebook does: the n x n softmax of one head, then the next."""
    out = torch.empty(qkv.h, qkv.n, qkv.p_v, dtype=torch.float64)
    for head in range(qkv.h):
        q, k, v = (x[head].double() for x in (qkv.q, qkv.k, qkv.v))
        out[head] = torch.softmax(q @ k.T * qkv.scale, dim=-1) @ v
    return out


FUNCTIONS = {"streamed": streamed, "dense": dense}


def peak_extra_mib(name: str, n: int, heads: int, p: int) -> float:
    """Peak resident memory beyond the inputs, of one call in a fresh process."""
    command = [sys.executable, __file__, "--child", name, "--n", str(n), "--heads", str(heads), "--p", str(p)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def child(name: str, n: int, heads: int, p: int) -> None:
    qkv = inputs(n, heads, p)
    FUNCTIONS[name](inputs(64, 1, p))  # thread pools and kernels are no cost of the method
    before = resident_mib("VmRSS")
    FUNCTIONS[name](qkv)
    print(resident_mib("VmHWM") - before)


def timed(name: str, qkv: QKV) -> float:
    begin = perf_counter()
    FUNCTIONS[name](qkv)
    return perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", default="4096,8192")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--p", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=FUNCTIONS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, int(args.n), args.heads, args.p)
        return 0
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.heads} heads, p={args.p}, float64")
    print(f"{'n':>6} {'ours s':>11} {'dense s':>9} {'ratio':>6} {'ours MiB':>13} {'dense MiB':>10} {'max diff':>9}")
    missed = []
    for n in map(int, args.n.split(",")):
        qkv = inputs(n, args.heads, args.p)
        difference = float((streamed(qkv) - dense(qkv)).abs().max())
        times = {name: [] for name in FUNCTIONS}
        for _ in range(args.rounds):
            for name, found in times.items():
                found.append(timed(name, qkv))
        ours, theirs = median(times["streamed"]), median(times["dense"])
        memory = {name: peak_extra_mib(name, n, args.heads, args.p) for name in FUNCTIONS}
        print(
            f"{n:6} {ours:11.3f} {theirs:9.3f} {theirs / ours:6.1f} {memory['streamed']:13.0f} "
            f"{memory['dense']:10.0f} {difference:9.1e}"
        )
        if n == GOAL_N and theirs / ours < SPEED_GOAL:
            missed.append(f"n={n}: {theirs / ours:.1f} times faster, goal {SPEED_GOAL}")
        if n == GOAL_N and memory["streamed"] > MEMORY_GOAL:
            missed.append(f"n={n}: {memory['streamed']:.0f} MiB, goal {MEMORY_GOAL:.0f}")
        if difference > 1e-13:
            missed.append(f"n={n}: differs by {difference:.1e}")
    for line in missed:
        print("missed:", line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
