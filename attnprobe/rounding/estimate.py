"""The rounding error of a method to first order, by one backward pass, and the share of each step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan, log

import torch
from torch import Tensor

from ..grammar.arithmetic import EVERY, Format
from ..rng import generator
from .computation import Computation
from .site import INPUTS, Site
from .tape import Producers, Squares, Tape

MEAN_SQUARE = (8 * log(2)) ** -0.5  # of a relative rounding error over u, for numbers whose logarithm is uniform


@dataclass(frozen=True, eq=False)
class Estimate:
    """The rounding error of each head to first order.

    Attributes:
        unit: u. sizes: ``‖B V‖_F``, (h,). squares: those of each head.
    """

    unit: float
    sizes: Tensor
    squares: list[Squares]

    @property
    def error(self) -> Tensor:
        """The estimate of ``‖B̂ V - B~ V‖_F / ‖B V‖_F``, (h,)."""
        return self.planned(())

    @property
    def sites(self) -> list[Site]:
        """The steps whose results are rounded, the largest share first."""
        total: dict[Site, float] = {}
        for share in self.shares():
            for site, value in share.items():
                total[site] = total.get(site, 0.0) + (0.0 if isnan(value) else value)
        return sorted((site for site in total if site != INPUTS), key=lambda site: (-total[site], site))

    def shares(self) -> list[dict[Site, float]]:
        """The share of each step in the squared error, for each head; `site.INPUTS` is that of rounded Q, K and V.

        They are NaN for a head whose derivatives overflow, and 0 for one without an error.
        """
        shares = []
        for squares in self.squares:
            every = {INPUTS: squares.inputs, **squares.made}
            total = sum(every.values())
            shares.append({site: value / total if total else 0.0 for site, value in every.items()})
        return shares

    def planned(self, keep: Iterable[Site]) -> Tensor:
        """The estimate where the results of some steps stay in float32, (h,).

        What a step in the format reads is rounded, also where float32 made it.
        """
        kept = frozenset(keep)
        values = [MEAN_SQUARE * self.unit * _total(squares, kept) ** 0.5 for squares in self.squares]
        return torch.tensor(values, dtype=torch.float64) / self.sizes.cpu()


def _total(squares: Squares, kept: frozenset[Site]) -> float:
    made = sum(value for site, value in squares.made.items() if site not in kept)
    read = 0.0
    if kept:
        read = sum(value for (makers, site), value in squares.read.items() if site not in kept and _in(makers, kept))
    return squares.inputs + made + read


def _in(makers: Producers, kept: frozenset[Site]) -> bool:
    return not kept.isdisjoint(makers)


def estimate(computation: Computation, to: Format, arithmetic: str = EVERY, seed: int = 0) -> Estimate:
    """The rounding error of a method in a format, to first order, per head.

    A result y of step k with relative errors of independent signs moves the output by ``J_k (y ∘ δ)``, so

        ``E ‖error‖_F² ≈ (C u)² Σ_k ‖J_k diag(y_k)‖_F²``, ``C = (8 ln 2)^-½``.

    For a Gaussian matrix G and the loss ``⟨G, B~ V⟩`` with the gradient g_k at step k, ``‖g_k ∘ y_k‖²`` has that mean.
    It says nothing of an error that saturates, of overflow, or of flipped choices.

    Args:
        seed: of G. The estimate's own relative deviation is small, because a head's output has thousands of numbers.

    Cost: each head alone, about five plain runs in float64; memory for all numbers that its operations read.
    """
    if computation.method.joint:
        parts, rows = [computation] * computation.qkv.h, list(range(computation.qkv.h))
    else:
        parts, rows = [computation.head(row) for row in range(computation.qkv.h)], [0] * computation.qkv.h
    squares = []
    for part, row, head in zip(parts, rows, computation.qkv.heads, strict=True):
        tape = Tape(to, arithmetic)
        output = part.followed(tape)
        weights = torch.zeros_like(output)
        # by the head's own number: a head has one estimate, alone and among others
        noise = torch.randn(output.shape[1:], generator=generator(seed, "rounding", head), dtype=torch.float64)
        # a joint method runs on all heads, and the loss has the output of one of them
        weights[row] = noise.to(output)
        squares.append(tape.squares(output, weights))
    return Estimate(to.unit, computation.sizes[1], squares)
