"""The largest entries of an error matrix ``X~ - X``, as logarithms, because the entries may overflow float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import exp, log
from typing import NamedTuple

import torch
from torch import Tensor

from ..operators import Operator
from ..operators.blocks import row_blocks
from .finding import Finding

BLOCK = 256  # rows at a time
WIDEST = 32  # the factor about the paper's squared temperature in which the least bound is looked for
STEPS = 14  # evaluations of the bound for it; they find the squared temperature to 2 %


class Entries(NamedTuple):
    """Rows of ``A = exp(S)`` and of ``A~``, both divided by ``exp(top)``.

    Attributes:
        scores: S, (b, n_k).
        top: the largest score of each row, or its log normaliser if that is larger, (b, 1).
        exact: ``exp(S - top)``, (b, n_k).
        approximate: ``A~ exp(-top)``, (b, n_k).
    """

    scores: Tensor
    top: Tensor
    exact: Tensor
    approximate: Tensor


class Bound(NamedTuple):
    """A bound ``exp(log_row_i + log_column_c)`` of the entries of an error, from features of a squared temperature.

    Attributes:
        log_row, log_column: (n_q,) and (c,).
        temperature: τ² of ``A_ij = ⟨φ(τ q_i), φ(k_j/τ)⟩``, where φ are the features of ``exp(β x·y)``.
    """

    log_row: Tensor
    log_column: Tensor
    temperature: float

    @property
    def largest(self) -> float:
        """The logarithm of the largest entry."""
        return float(self.log_row.max() + self.log_column.max())


class EntryErrors(NamedTuple):
    """The errors of one head: the largest entry of ``|X~ - X|`` and of its bound, both over the largest of ``|X|``.

    ``share`` is the largest share of its own bound that an entry of the error reaches; ``temperature`` is the bound's.
    """

    measured: float
    bound: float
    share: float
    temperature: float


def entry_blocks(q: Tensor, k: Tensor, scale: float, operator: Operator, log_sums: Tensor) -> Iterator[Entries]:
    """Yields the rows of A and ``A~ = D~ B~`` of one head in blocks of 256 rows, in float64.

    Args:
        q, k: (n_q, p) and (n_k, p) float64; ``S = scale · q kᵀ``.
        operator: B~, (1, n_q, n_k). log_sums: ``log D~``, (n_q,) float64.
    """
    for start, stop in row_blocks(len(q), BLOCK):
        scores = scale * q[start:stop] @ k.mT
        top = torch.maximum(scores.amax(-1), log_sums[start:stop])[:, None]
        rows = operator.rows(start, stop)[0].double()
        yield Entries(scores, top, (scores - top).exp(), rows * (log_sums[start:stop, None] - top).exp())


def least_bound(at: Callable[[float], Bound], paper: float) -> Bound:
    """The bound with the least largest entry, of squared temperatures within a factor of 32 about the paper's.

    ``ln exp(β τ² ‖q‖²/2)`` and ``ln ‖Σ_j u_j φ(k_j/τ)‖`` are convex in ln τ²: the squared norm is a sum of powers of
    τ⁻² with factors that are not negative. So golden-section search finds the least.

    >>> flat = torch.zeros(1)
    >>> found = least_bound(lambda squared: Bound(flat + squared, flat + 4 / squared, squared), 1.0)
    >>> round(found.temperature, 1)
    2.0
    """
    golden = (5**0.5 - 1) / 2
    low, high = log(paper / WIDEST), log(paper * WIDEST)
    inner = [high - golden * (high - low), low + golden * (high - low)]
    bounds = [at(exp(log_squared)) for log_squared in inner]
    # each step keeps one inner point and its bound, so it costs one evaluation
    for _ in range(STEPS - 2):
        if bounds[0].largest <= bounds[1].largest:
            high = inner[1]
            inner = [high - golden * (high - low), inner[0]]
            bounds = [at(exp(inner[0])), bounds[0]]
        else:
            low = inner[0]
            inner = [inner[1], low + golden * (high - low)]
            bounds = [bounds[1], at(exp(inner[1]))]
    return min(bounds, key=lambda bound: bound.largest)


def entry_errors(blocks: Iterable[tuple[Tensor, Tensor]], bounds: Sequence[Bound]) -> list[EntryErrors]:
    """Compares ``|X~ - X|_ic`` with each bound.

    Args:
        blocks: ``ln |X|`` and ``ln |X~ - X|`` of consecutive blocks of rows, (b, c) each.

    If X is zero, errors and bounds are 0.

    >>> x, error = torch.tensor([[2.0, 4.0]]).log(), torch.tensor([[1.0, 2.0]]).log()
    >>> (errors,) = entry_errors([(x, error)], [Bound(torch.zeros(1), torch.tensor([3.0, 4.0]).log(), 1.0)])
    >>> round(errors.measured, 6), round(errors.bound, 6), round(errors.share, 6)
    (0.5, 1.0, 0.5)
    """
    largest, error = -torch.inf, -torch.inf
    shares = [-torch.inf] * len(bounds)
    start = 0
    for log_exact, log_error in blocks:
        stop = start + len(log_error)
        largest = max(largest, float(log_exact.max()))
        error = max(error, float(log_error.max()))
        for number, bound in enumerate(bounds):
            log_share = log_error - bound.log_row[start:stop, None] - bound.log_column
            # 0/0 in logarithms, −∞ − (−∞): an error of 0 has no share of a bound of 0
            shares[number] = max(shares[number], float(log_share.nan_to_num(-torch.inf, torch.inf).max()))
        start = stop
    if largest == -torch.inf:
        return [EntryErrors(0.0, 0.0, 0.0, bound.temperature) for bound in bounds]
    return [
        EntryErrors(_exp(error - largest), _exp(bound.largest - largest), _exp(share), bound.temperature)
        for bound, share in zip(bounds, shares, strict=True)
    ]


def entry_findings(
    theorem: str, d: int, promise: str, heads: Sequence[Sequence[EntryErrors]], rounding: Tensor | float = 0.0
) -> Iterator[Finding]:
    """Findings without an assumption, from the errors of each head at the paper's temperature and at the least bound.

    A promise is vacuous if a matrix of zeros keeps it: its bound is at least the largest entry of ``|X|``. ``share``
    then still says how near an entry comes to its own bound. A promise that is broken is never vacuous.
    """
    for temperature, errors in zip(("paper", "least"), zip(*heads, strict=True), strict=True):
        measured, bound, share, squared = torch.tensor(errors, dtype=torch.float64).mT
        yield Finding(
            theorem=theorem,
            d=d,
            at={"temperature": temperature},
            assumption="none",
            met=torch.ones(len(errors), dtype=torch.bool),
            promise=promise,
            bound=bound,
            measured=measured,
            rounding=rounding,
            vacuous=(bound >= 1) & ~(measured - rounding > bound),
            details={"share": share, "squared_temperature": squared},
        )


def _exp(x: float) -> float:
    """``exp(x)``, infinite where it overflows."""
    return float(torch.tensor(x, dtype=torch.float64).exp())
