"""The columns of `error`'s tables of kernels."""

from __future__ import annotations

from ...tables.methods import statistic
from ...tables.numbers import method_label, significant
from ...tables.table import Column
from .columns import statistic_cell
from .rows import ErrorRow


def _one_minus_cosine(row: ErrorRow) -> str:
    """One minus the mean cosine. The digits of a cosine near 1 are all nines."""
    mean = statistic(row, "cosine", "mean")
    return "" if mean is None else significant(max(1 - mean, 0.0), 2)


def _within(row: ErrorRow) -> str:
    mean, tolerance = statistic(row, "rows_within", "mean"), row.get("row_tolerance")
    return "" if mean is None else f"{100 * mean:.2f} % ({tolerance:g})"


ROWS = "quantiles over rows of ‖E_i‖ / ‖O_i‖"
FRAMEWORK = "max |E| over eager attention's"
EAGER = "eager softmax attention in the kernel's dtype; median and worst head"
KERNEL_COLUMNS: tuple[Column, ...] = (
    Column(
        "kernel",
        method_label,
        "E = O~ − O, of O in float64",
        more="O is the exact output of Q, K and V rounded to the kernel's dtype; medians unless said otherwise",
        key=True,
    ),
    Column("in", lambda row: row.get("kernel_dtype") or "", "the dtype that the kernel works in", spare=1, key=True),
    Column("1 − cosine", _one_minus_cosine, "mean over heads", spare=6),
    Column("max |E|", statistic_cell("max_abs", "max"), "over all heads"),
    Column("‖E‖F / ‖O‖F", statistic_cell("relative_frobenius", "median"), "median over heads"),
    Column("row p50", statistic_cell("row_error_p50", "median"), ROWS, spare=3),
    Column("row p99", statistic_cell("row_error_p99", "median"), ROWS, spare=5),
    Column("row p99.9", statistic_cell("row_error_p99_9", "median"), ROWS, spare=2),
    Column("rows within", _within, "share within the tolerance"),
    Column(
        "× framework",
        statistic_cell("ratio_to_framework", "median"),
        FRAMEWORK,
        more=EAGER,
    ),
    Column("worst", statistic_cell("ratio_to_framework", "max"), FRAMEWORK, more=EAGER),
    Column(
        "× framework F",
        statistic_cell("ratio_to_framework_frobenius", "median"),
        "the same of ‖E‖F",
        spare=4,
    ),
)
