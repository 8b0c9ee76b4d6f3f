"""The rows of ``attnprobe spectrum``: kind ``head`` has effective ranks, ``rank`` ranks within ε, ``singular`` values.

A cell is one matrix of one head, so what is known of the matrix is on the line that ends the cell.
"""

from __future__ import annotations

from typing import Annotated, Literal

from ...frame.metric import metrics
from ...frame.rows import CellLine, HeadRow, RowTypes, Value, with_metrics
from ...grammar.validation import Count, said


class SpectrumCell(CellLine):
    """One matrix of one head. Its values are those of the matrix divided by exp(log_scale)."""

    of: Annotated[str, said("the matrix, or the method with its options whose matrix it is")]
    spectrum: Annotated[Literal["singular", "eigen"], said("singular values or eigenvalues")]
    head: Annotated[Count, said("the head")]
    size: Annotated[Count | None, said("number of values of the matrix")] = None
    known: Annotated[Count | None, said("number of leading values that are known")] = None
    log_scale: Annotated[Value, said("the logarithm of what the values are divided by")] = None
    frobenius: Annotated[Value, said("the Frobenius norm of the matrix")] = None
    passes: Annotated[Count | None, said("passes over the matrix, where leading values alone are computed")] = None
    closed: Annotated[bool | None, said("whether the errors of the values are within the tolerance")] = None


class RankRow(HeadRow):
    """The smallest ranks of an approximation within a relative error; infinite beyond the known values."""

    epsilon: Annotated[float, said("ε, the relative error")]


class ValueRow(HeadRow):
    """One value by rank: a singular value, or the modulus of an eigenvalue."""

    index: Annotated[Count, said("the rank, from 1")]
    real: Annotated[Value, said("the real part of an eigenvalue")] = None
    imaginary: Annotated[Value, said("its imaginary part; absent if the matrix is symmetric")] = None
    error: Annotated[Value, said("bound of the error of a leading value")] = None
    upper: Annotated[Value, said("upper bound of a leading value")] = None


SHAPE = RowTypes(
    {
        "head": with_metrics(
            "SpectrumHead",
            HeadRow,
            metrics("stable_rank", "entropy_rank", "participation_ratio", "rank_90", "rank_95", "rank_99"),
        ),
        "rank": with_metrics("SpectrumRank", RankRow, metrics("d_spectral", "d_frobenius")),
        "singular": with_metrics("SpectrumValue", ValueRow, metrics("value", "decay", "cumulative")),
    },
    SpectrumCell,
)
