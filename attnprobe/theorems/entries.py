"""The largest entries of an error matrix ``X~ - X``, as logarithms, because the entries may overflow float64."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..operators import Operator, row_blocks
from .finding import Finding

BLOCK = 256  # rows at a time


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


class EntryErrors(NamedTuple):
    """The errors of one head: the largest entry of ``|X~ - X|`` and of its bound, both over the largest of ``|X|``.

    ``share`` is the largest share of its own bound that an entry of the error reaches.
    """

    measured: float
    bound: float
    share: float


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


def entry_errors(blocks: Iterable[tuple[Tensor, Tensor]], log_row: Tensor, log_column: Tensor) -> EntryErrors:
    """Compares ``|X~ - X|_ic`` with the bound ``exp(log_row_i + log_column_c)``.

    Args:
        blocks: ``ln |X|`` and ``ln |X~ - X|`` of consecutive blocks of rows, (b, c) each.
        log_row, log_column: (n_q,) and (c,).

    If X is zero, all three numbers are 0.

    >>> x, error = torch.tensor([[2.0, 4.0]]).log(), torch.tensor([[1.0, 2.0]]).log()
    >>> errors = entry_errors([(x, error)], torch.zeros(1), torch.tensor([3.0, 4.0]).log())
    >>> round(errors.measured, 6), round(errors.bound, 6), round(errors.share, 6)
    (0.5, 1.0, 0.5)
    """
    largest, error, share = -torch.inf, -torch.inf, -torch.inf
    start = 0
    for log_exact, log_error in blocks:
        stop = start + len(log_error)
        log_share = log_error - log_row[start:stop, None] - log_column
        largest = max(largest, float(log_exact.max()))
        error = max(error, float(log_error.max()))
        share = max(share, float(log_share.nan_to_num(-torch.inf).max()))
        start = stop
    if largest == -torch.inf:
        return EntryErrors(0.0, 0.0, 0.0)
    bound = float(log_row.max() + log_column.max())
    return EntryErrors(_exp(error - largest), _exp(bound - largest), _exp(share))


def entry_finding(
    theorem: str, d: int, promise: str, errors: Sequence[EntryErrors], rounding: Tensor | float = 0.0
) -> Finding:
    """The finding from the errors of each head, without an assumption.

    A promise is vacuous if a matrix of zeros keeps it: its bound is at least the largest entry of ``|X|``. ``share``
    then still says how near an entry comes to its own bound. A promise that is broken is never vacuous.
    """
    measured, bound, share = torch.tensor(errors, dtype=torch.float64).mT
    return Finding(
        theorem=theorem,
        d=d,
        assumption="none",
        met=torch.ones(len(errors), dtype=torch.bool),
        promise=promise,
        bound=bound,
        measured=measured,
        rounding=rounding,
        vacuous=(bound >= 1) & ~(measured - rounding > bound),
        details={"share": share},
    )


def _exp(x: float) -> float:
    """``exp(x)``, infinite where it overflows."""
    return float(torch.tensor(x, dtype=torch.float64).exp())
