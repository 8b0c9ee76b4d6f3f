"""The rows of ``attnprobe error``: kind ``head`` is the errors of a head, ``position`` those of rows by position."""

from __future__ import annotations

from typing import Annotated

from ...frame.metric import ERROR, METRICS, metrics
from ...frame.rows import CellLine, HeadRow, RowTypes, Value, with_metrics
from ...grammar.validation import Count, said

DETAILS = (  # further numbers of heads, which no gate limits
    *("realised_d", "realised_d_p10", "realised_d_p90", "matrix_passes"),
    *("matrix_spectral_lower", "matrix_spectral_upper", "matrix_spectral_relative_upper"),
)
OF_HEADS = [metric for metric in ERROR if metric.name != "seconds"]  # which is of a cell
BY_POSITION = metrics("mass", "mass_oracle", "tv", "log_normaliser_error", "row_error")


class ErrorCell(CellLine):
    """The errors of one method at one budget, or the lower bound σ_{d+1}(BV) as the method ``lower-bound``."""

    matrix_tol: Annotated[Value, said("the relative width of matrix intervals")] = None
    matrix_skipped: Annotated[str | None, said("the reason if there are no matrix errors")] = None
    kernel_dtype: Annotated[str | None, said("the dtype that a kernel is judged in")] = None
    row_tolerance: Annotated[Value, said("the relative error that a kernel's row may have")] = None


class ErrorRow(HeadRow):
    """The errors of one head."""

    matrix_kind: Annotated[str | None, said("the argument for the upper end of the matrix error's interval")] = None
    matrix_open: Annotated[bool | None, said("whether that interval is wider than matrix_tol")] = None


class PositionRow(HeadRow):
    """Means of a head's row metrics over the queries that see ``position`` to 2 ``position`` - 1 keys."""

    position: Annotated[Count, said("the least number of keys that the queries see, a power of 2")]


SHAPE = RowTypes(
    {
        "head": with_metrics("ErrorHead", ErrorRow, [*OF_HEADS, *(METRICS[name] for name in DETAILS)]),
        "position": with_metrics("ErrorPosition", PositionRow, BY_POSITION),
    },
    ErrorCell,
)
