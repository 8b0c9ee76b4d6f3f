"""The statistical dimension of the lifted kernel by Lanczos quadrature, against all eigenvalues: time, and its errors.

    python benchmarks/theory.py [--weights initialized,pretrained] [--heads 0:0,2:3,5:7] [--text PATH] [--n 4096]
                                [--epsilon 0.5,0.2,0.1,0.05] [--probes 16] [--dtype float32] [--rounds 1]

Both start from X = [Q; K] of one head, n queries and n keys, and give ``d_stat(λ) = Tr(C̄(C̄ + λI)⁻¹)`` at every
``λ = ε‖C‖`` of Skyformer's theorem 2; C̄ has 2n rows. Ours is
`attnprobe.operators.linalg.dimension.statistical_dimension`, its stopping rule and its stated error included; the other
fills C̄ in float64 and takes `torch.linalg.eigvalsh`, once for all λ. In each round both run once in turn in this
process, after a call of each on 256 rows; a time is the median of the rounds.
``off`` is the difference over what is stated of it, the bracket and five standard errors to either
side: at most 1 where the statement is true. ``s.e.`` is the largest relative one over λ.

Goals at n=4096: 10 times faster on every head, and anywhere ``off`` at most 1 for every head and λ. Exits 1 where one
is missed.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
from measuring import Goal, arguments, finish, layers_and_heads, one_head, timed
from torch import Tensor

from attnprobe.operators import GaussianAttention
from attnprobe.operators.linalg.dimension import Dimension, statistical_dimension
from attnprobe.operators.linalg.spectra import held, leading_singular_values

SPEED_GOALS = {4096: 10.0}
WARM = 256  # rows of a call that is not counted
ERRORS = 5.0  # standard errors to either side of the bracket


def by_eigenvalues(op: GaussianAttention, lambdas: Tensor) -> Tensor:
    """What a notebook does: all eigenvalues of the matrix, (L,)."""
    values = torch.linalg.eigvalsh(held(op))
    return (values / (values + lambdas[:, None])).sum(-1)


def stated(found: Dimension, true: Tensor) -> Tensor:
    """The error over the half width of the band, on the side where it lies, (L,)."""
    low, high = (end[0] for end in found.band(ERRORS))
    above = true >= found.value[0]
    return torch.where(above, true - found.value[0], found.value[0] - true) / torch.where(
        above, high - found.value[0], found.value[0] - low
    )


def compare(weights: str, layer: int, head: int, args: argparse.Namespace) -> list[Goal]:
    """One line of the table, and what it found beside its goals."""
    qkv = one_head(weights, layer, head, args)
    x = torch.cat([qkv.q, qkv.k], 1)
    op, block = GaussianAttention(x, x, qkv.scale), GaussianAttention(qkv.q, qkv.k, qkv.scale)
    size = float(leading_singular_values(block, 1).values[0])
    lambdas = size * torch.tensor(args.epsilons, dtype=torch.float64)
    small = GaussianAttention(x[:, :WARM], x[:, :WARM], qkv.scale)

    def ours(op):
        return statistical_dimension(op, lambdas[None], probes=args.probes, dtype=args.passes)

    def theirs(op):
        return by_eigenvalues(op, lambdas)

    ours(small), theirs(small)
    times = timed({"ours": lambda: ours(op), "eigvalsh": lambda: theirs(op)}, args.rounds, warm_up=0)
    found, true = times.results["ours"], times.results["eigvalsh"]
    ratio, spread = times.ratio("eigvalsh", "ours")
    off = stated(found, true)
    values = " ".join(f"{value:.1f}" for value in true.tolist())
    print(
        f"{weights:12} {layer:5}:{head:<3} {int(found.steps):5} {times.median('ours'):7.2f} "
        f"{times.median('eigvalsh'):10.2f} {ratio:6.1f} {float(off.max()):6.2f} "
        f"{float((found.standard_error[0] / true).max()):7.0e} "
        f"{os.getloadavg()[0]:5.1f}  {values}",
        flush=True,
    )
    where = f"{weights} {layer}:{head} n={args.n}"
    goals = [Goal(f"error over what is stated of it, {where}", float(off.max()), 1.0, False)]
    if args.n in SPEED_GOALS:
        goals.append(Goal(f"eigvalsh's time over ours, {where}", ratio, SPEED_GOALS[args.n], spread=spread))
    return goals


def parsed() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--weights", default="initialized,pretrained")
    parser.add_argument("--heads", default="0:0,2:3,5:7", help="layer:head, separated by commas")
    parser.add_argument("--text", help="see attnprobe.load_qkv; it must be long enough")
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--epsilon", default="0.5,0.2,0.1,0.05", help="of ‖C‖, separated by commas")
    parser.add_argument("--probes", type=int, default=16)
    parser.add_argument("--dtype", default=None, choices=["float32", "float64"], help="of the products")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    args.weights, args.epsilons = args.weights.split(","), [float(x) for x in args.epsilon.split(",")]
    args.heads = layers_and_heads(args.heads)
    args.passes = getattr(torch, args.dtype) if args.dtype else None
    return args


def main() -> int:
    args, goals = parsed(), []
    print(f"torch {torch.__version__}, CPU, {torch.get_num_threads()} threads, n={args.n}, C̄ of {2 * args.n} rows")
    print(
        f"{'weights':12} {'layer':>5}:{'head':3} {'steps':>5} {'ours s':>7} {'eigvalsh s':>10} {'ratio':>6} {'off':>6} "
        f"{'s.e.':>7} {'load':>5}  d_stat at ε = {args.epsilon}"
    )
    for weights in args.weights:
        for layer, head in args.heads:
            goals += compare(weights, layer, head, args)
    return finish(goals, args.json)


if __name__ == "__main__":
    sys.exit(main())
