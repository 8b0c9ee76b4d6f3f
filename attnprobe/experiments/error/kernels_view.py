"""Kernels in tables of their own: the measures of those who write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...tables.columns import grouped, statistic
from ...tables.numbers import method_label, significant
from ...tables.table import Table

__all__ = ["KERNEL_COLUMNS", "KERNEL_METRICS", "KERNEL_SPARE", "kernel_legend", "kernel_tables"]

Row = Mapping[str, Any]

KERNEL_METRICS = (
    "cosine",
    "max_abs",
    "relative_frobenius",
    "row_error_p50",
    "row_error_p99",
    "row_error_p99_9",
    "rows_within",
    "ratio_to_framework",
    "ratio_to_framework_frobenius",
    "framework_max_abs",
    "framework_relative_frobenius",
)


def _number(metric: str, name: str) -> Any:
    return lambda row: significant(statistic(row, metric, name), 3)


def _cosine(row: Row) -> str:
    """One minus the mean cosine: a cosine near 1 shows nothing but nines."""
    mean = statistic(row, "cosine", "mean")
    return "" if mean is None else significant(max(1 - mean, 0.0), 2)


def _within(row: Row) -> str:
    mean, tolerance = statistic(row, "rows_within", "mean"), row.get("row_tolerance")
    return "" if mean is None else f"{100 * mean:.2f} % ({tolerance:g})"


KERNEL_COLUMNS = {
    "kernel": method_label,
    "in": lambda row: row.get("kernel_dtype") or "",
    "1 − cosine": _cosine,
    "max |E|": _number("max_abs", "max"),
    "‖E‖F / ‖O‖F": _number("relative_frobenius", "median"),
    "row p50": _number("row_error_p50", "median"),
    "row p99": _number("row_error_p99", "median"),
    "row p99.9": _number("row_error_p99_9", "median"),
    "rows within": _within,
    "× framework": _number("ratio_to_framework", "median"),
    "worst": _number("ratio_to_framework", "max"),
    "× framework, F": _number("ratio_to_framework_frobenius", "median"),
}
KERNEL_SPARE = ("1 − cosine", "row p99", "× framework, F", "row p50", "row p99.9", "in")


def _judged(row: Row) -> bool:
    return "ratio_to_framework" in (row.get("metrics") or {})


def kernel_tables(rows: Sequence[Row]) -> list[Table]:
    """A table for each place at which kernels ran; none where none did."""
    tables = []
    for group in grouped([row for row in rows if _judged(row)], []):
        lines = [[of(row) for of in KERNEL_COLUMNS.values()] for row in group.rows]
        tables.append(Table(f"kernels · {group.caption}", list(KERNEL_COLUMNS), lines, spare=KERNEL_SPARE))
    return tables


def kernel_legend(tables: Sequence[Table]) -> str:
    """What the columns mean; nothing without tables."""
    if not tables:
        return ""
    return (
        "Kernels: E = O~ − O, with O the exact output, in float64, of Q, K and V rounded to the dtype that the kernel "
        "works in; 1 − cosine: mean over heads; max |E|: of all heads; the other columns: median over heads, windows "
        "and repeats; row: quantiles over rows of ‖E_i‖ / ‖O_i‖; rows within: share with at most the tolerance; "
        "× framework: max |E| over that of eager softmax attention in that dtype, median and worst head; F: the same "
        "of ‖E‖F."
    )
