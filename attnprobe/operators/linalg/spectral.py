"""‖E‖₂ of implicit matrices as an interval: block Krylov on ``EᵀE``, many matrices at once.

The derivation of the bounds and their symbols are in `certificate`. Only products ``EᵀE X`` are needed; no m x m matrix
is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UsageError
from ...rng import generator
from ..threads import one_thread
from .certificate import a_priori_bound, root_bound, threshold, trace_bounds
from .krylov import grown, next_block, projected

MAX_PASSES = 12
DELTA = 1e-10  # for one interval; ten thousand intervals hold together with probability 1 - 1e-6
KINDS = ("none", "B", "apriori", "A", "frobenius", "exact")

Normal = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Interval:
    """``lower ≤ ‖E‖₂ ≤ upper`` of N matrices, each (N,).

    Attributes:
        value: the estimate, the largest Ritz value. In a closed interval it is far more accurate than the width.
        lower: deterministic, ``value`` less rounding. upper: fails with probability at most δ (kind ``B`` or
            ``apriori``) or not at all (``A``, ``frobenius``).
        passes: the number of products with ``EᵀE``. kind: the bound that gives the upper end.
    """

    value: Tensor
    lower: Tensor
    upper: Tensor
    passes: Tensor
    kind: list[str]

    @property
    def width(self) -> Tensor:
        """``upper / lower - 1``, (N,); 0 if both are 0."""
        return torch.where(self.upper > self.lower, self.upper / self.lower - 1, torch.zeros_like(self.upper))

    def open(self, tol: float) -> Tensor:
        """Whether each interval is wider than ``tol``, (N,) bool; false for matrices that are not finite."""
        return self.upper > (1 + tol) * self.lower

    def times(self, unit: Tensor) -> Interval:
        """The intervals of ``unit · E``, for a positive number of each matrix, (N,)."""
        return Interval(self.value * unit, self.lower * unit, self.upper * unit, self.passes, self.kind)

    def __getitem__(self, index: slice) -> Interval:
        return Interval(*(getattr(self, name)[index] for name in ("value", "lower", "upper", "passes", "kind")))

    def replace(self, i: int, other: Interval) -> None:
        """Put the one interval ``other`` in place ``i``."""
        for name in ("value", "lower", "upper", "passes"):
            getattr(self, name)[i] = getattr(other, name)[0]
        self.kind[i] = other.kind[0]

    @staticmethod
    def joined(parts: Sequence[Interval]) -> Interval:
        """The intervals of several parts as one, in their order."""
        return Interval(
            torch.cat([part.value for part in parts]),
            torch.cat([part.lower for part in parts]),
            torch.cat([part.upper for part in parts]),
            torch.cat([part.passes for part in parts]),
            [kind for part in parts for kind in part.kind],
        )


def block_size(m: int) -> int:
    """The number s of columns of a block, for a matrix of m columns: 32, or 16 for m below 512.

    Twelve passes of 32 columns would fill most of a smaller space. A pass with 32 columns costs a fifth more than one
    with 16, and about two fewer passes close an interval.
    """
    return 32 if m >= 512 else 16


def norm_intervals(
    normal: Normal,
    first: Tensor,
    v1: Tensor,
    r: Tensor,
    *,
    tol: float = 1e-3,
    delta: float = DELTA,
    max_passes: int = MAX_PASSES,
    frobenius2: Tensor | None = None,
    parts: Tensor | None = None,
    seed: int = 0,
) -> Interval:
    """The interval of ‖E‖₂ for N matrices E (n x m) that share the start block.

    Args:
        normal: ``(x, which)`` gives ``E_iᵀE_i x_i`` for the matrices ``which`` (a,) int64, (a, m, s) for x of that
            shape; each column of a result depends on its own matrix alone.
        first: ``E_iᵀE_i V₁``, (N, m, s): the first pass, which may be made together with other work.
        v1, r: of `krylov.start_block`; s at least 8.
        tol: a matrix is done when ``upper/lower - 1 < tol``, or after ``max_passes``, or when no further block of s
            columns fits into m.
        delta: the probability with which one upper end may fail, over the draw of Ω alone.
        frobenius2: ``‖E‖_F²`` (N,) float64 of the same matrices, which makes bound A and ``‖E‖_F`` upper ends too.
        parts: if E is applied as a difference of matrices, the sum of their norms, (N,) float64. Their rounding is
            relative to it, not to E.
        seed: of the perturbation that keeps V orthogonal if the Krylov space is exhausted.

    Passes run in the dtype of ``first``, the algebra of K x K matrices in float64. Besides the products a pass costs
    O(m K s) multiply-adds, in one thread.

    Raises:
        UsageError: a block of fewer than 8 columns, or ``m ≤ s``: such a matrix is small enough to be dense.
    """
    count, m, s = first.shape
    if s < 8 or m <= s:
        raise UsageError(f"a block of {s} columns for {m} rows; choose 8 or more, and fewer than the rows")
    u = torch.finfo(first.dtype).eps / 2
    shrunk = threshold(delta, s) - 4 * u * (m**0.5 + s**0.5)
    size_r = torch.linalg.matrix_norm(r, 2)
    nan = torch.full((count,), float("nan"), dtype=torch.float64, device=first.device)
    value, lower, upper = nan.clone(), nan.clone(), torch.full_like(nan, float("inf"))
    passes, kind = torch.zeros(count, dtype=torch.int64, device=first.device), torch.zeros_like(nan, dtype=torch.int64)
    finite = torch.isfinite(first).all(-1).all(-1)
    which = finite.nonzero()[:, 0]  # those that continue
    parts = torch.zeros_like(nan) if parts is None else parts
    basis = v1.expand(len(which), m, s)  # V, (a, m, K)
    t = first.new_zeros(len(which), 0, 0, dtype=torch.float64)
    w, perturbation = first[which], generator(seed, "perturbation", m, s)
    for done in range(1, max_passes + 1):
        with one_thread():
            d, column = projected(w, basis)  # outside and inside the space: (a, m, s), (a, K, s)
            t = grown(t, column.double())  # (a, K, K)
            q, b = torch.linalg.qr(d)
            b = b.double()
            last = done == max_passes or (done + 1) * s > m
            theta, y = torch.linalg.eigh(t)
            top = theta[:, -1].clamp(min=0)
            p, c = r.mT @ y[:, :s], b @ y[:, -s:]  # (a, s, K)
            growth = u * t.shape[-1] ** 0.5
            rounding = growth * parts[which]  # of EX: it may hide an E of this size
            of_parts = rounding * (top.sqrt() + rounding)
            eta = 8 * growth * (top + torch.linalg.matrix_norm(b, 2)) + of_parts
            ends = {"apriori": a_priori_bound(top + eta, size_r, shrunk, done)}
            if frobenius2 is not None:
                total = frobenius2[which]
                tail = (total - t.diagonal(dim1=1, dim2=2).sum(-1)).clamp(min=0) + 64 * u * total + eta
                ends |= {"A": trace_bounds(theta, c, tail)[:, -1] + eta, "frobenius": total * (1 + 8 * u)}
            # bound B is the dearest: only where the others leave the interval open, and no closer than it needs
            enough = top * ((1 - _slack(u)) / (1 + _slack(u)) * (1 + tol / 4)) ** 2
            left = (torch.stack(list(ends.values())).amin(0) > enough) & (done > 1 or last)
            ends["B"] = torch.full_like(top, float("inf"))
            ends["B"][left] = root_bound(theta[left], p[left], c[left], shrunk, eta[left], enough[left])
            best, closest = torch.stack([ends[name] for name in KINDS if name in ends]).min(0)  # of the squares
            names = torch.tensor([KINDS.index(name) for name in KINDS if name in ends], device=first.device)
            better = best.sqrt() < upper[which]
            kind[which] = torch.where(better, names[closest], kind[which])
            upper[which] = torch.where(better, best.sqrt(), upper[which])
            value[which], passes[which] = top.sqrt(), done
            lower[which] = (top - of_parts).clamp(min=0).sqrt() * (1 - _slack(u))
            # after one pass θ₁ may still be s/m of λ₁, and rounding measured against it means nothing
            on = (upper[which] * (1 + _slack(u)) > (1 + tol) * lower[which]) | (done == 1)
            if frobenius2 is not None:
                on &= frobenius2[which] > 0
            if last or not on.any():
                break
            which, t, basis = which[on], t[on], basis[on]
            scale = torch.where(top > 0, top, torch.ones_like(top))[on]
            block = next_block(q[on], b[on], basis, scale, perturbation)
            basis = torch.cat([basis, block], 2)
        w = normal(block, which)
    upper = torch.where(finite, torch.maximum(upper * (1 + _slack(u)), lower), nan)
    value = torch.minimum(value, upper)  # it is above where all is rounding
    return Interval(value, lower, upper, passes, [KINDS[i] for i in kind.tolist()])


def _slack(u: float) -> float:
    """The relative outward rounding of an end: 5e-6 for float32 passes, 1e-12 for float64."""
    return 5e-6 if u > 1e-12 else 1e-12
