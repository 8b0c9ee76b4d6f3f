"""Exact attention output in float64: the streamed reference against a dense softmax, one head at a time.

    python benchmarks/reference.py [--n 4096,8192] [--heads 12] [--p 64] [--rounds 3]

Both are timed in this process in turn; peak memory is that of a fresh process each, beyond what it held with its inputs
made. Goals at n = 8192: at least 4 times faster and under 200 MiB extra; equal to 1e-13 everywhere. Exits 1 where one
is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from measuring import Goal, arguments, finish, timed

from attnprobe import QKV
from attnprobe.inputs import RandomSource
from attnprobe.metrics.cost import peak_bytes
from attnprobe.reference import exact_output

SPEED_GOAL, MEMORY_GOAL, SAME, GOAL_N = 4.0, 200.0, 1e-13, 8192


def dense(qkv: QKV) -> torch.Tensor:
    """What a notebook does: the n x n softmax of one head, then the next."""
    out = torch.empty(qkv.h, qkv.n, qkv.p_v, dtype=torch.float64)
    for head in range(qkv.h):
        q, k, v = (x[head].double() for x in (qkv.q, qkv.k, qkv.v))
        out[head] = torch.softmax(q @ k.T * qkv.scale, dim=-1) @ v
    return out


FUNCTIONS = {"streamed": exact_output, "dense": dense}


def make(name: str, n: int, heads: int, p: int, few: bool = False) -> Callable[[], torch.Tensor]:
    qkv = RandomSource(1 if few else heads, p, "cpu").qkv(64 if few else n, [0], 0)[0]
    return lambda: FUNCTIONS[name](qkv)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--n", default="4096,8192")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--p", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.heads} heads, p={args.p}, float64")
    print(f"{'n':>6} {'ours s':>11} {'dense s':>9} {'ratio':>6} {'ours MiB':>13} {'dense MiB':>10} {'max diff':>9}")
    goals = []
    for n in map(int, args.n.split(",")):
        shape = (n, args.heads, args.p)
        found = timed({name: make(name, *shape) for name in FUNCTIONS}, args.rounds)
        difference = float((found.results["streamed"] - found.results["dense"]).abs().max())
        ratio, beside = found.ratio("dense", "streamed")
        memory = {name: peak_bytes(make, name, *shape) / 2**20 for name in FUNCTIONS}
        print(
            f"{n:6} {found.median('streamed'):11.3f} {found.median('dense'):9.3f} {ratio:6.1f} "
            f"{memory['streamed']:13.0f} {memory['dense']:10.0f} {difference:9.1e}",
            flush=True,
        )
        if n == GOAL_N:
            goals.append(Goal(f"dense over ours, time, n={n}", ratio, SPEED_GOAL, spread=beside))
            goals.append(Goal(f"MiB of ours, n={n}", memory["streamed"], MEMORY_GOAL, False))
        goals.append(Goal(f"largest difference, n={n}", difference, SAME, False))
    return finish(goals, args.json)


if __name__ == "__main__":
    sys.exit(main())
