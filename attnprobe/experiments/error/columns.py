"""The columns of `error`'s tables, and of those of kernels beneath them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...records.file import LOWER_BOUND
from ...tables.methods import (
    FAMILY,
    OPEN,
    STATUS,
    budget,
    is_fragile,
    label,
    marked,
    several_families,
    shown,
    statistic,
)
from ...tables.numbers import method_label, per_cent, significant
from ...tables.table import Column
from .rows import ErrorRow

__all__ = ["KERNEL_COLUMNS", "KERNEL_METRICS", "error_columns"]


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


def _statistic(metric: str, name: str, digits: int = 3) -> Callable[[ErrorRow], str]:
    return lambda row: significant(statistic(row, metric, name), digits)


def _factor(row: ErrorRow) -> str:
    factor = row.get("scale_inputs")
    return "" if factor is None else f"{factor:g}"


def _budget(row: ErrorRow) -> str:
    d, realised = row.get("d"), row.get("realised_d")
    used = "" if realised is None or realised == d else f" ({realised:.1f})".replace(".0)", ")")
    return budget(row) + used


def _absolute(row: ErrorRow) -> str:
    mean, spread = shown(row, "output_spectral", "mean"), shown(row, "output_spectral", "se", 2)
    return f"{mean} ± {spread}" if spread else mean


def _relative(row: ErrorRow) -> str:
    median, low, high = (shown(row, "output_spectral_relative", name, 3) for name in ("median", "p10", "p90"))
    return f"{median} [{low} – {high}]" if median else ""


def _matrix(row: ErrorRow) -> str:
    if row.get("matrix_skipped"):
        return "–"
    median = shown(row, "matrix_spectral_relative", "median", 3)
    return OPEN + median if is_open(row) and not median.startswith(OPEN) else median


def is_open(row: ErrorRow) -> bool:
    """Whether an interval of a matrix error did not close."""
    known = statistic(row, "matrix_spectral_relative", "median") is not None
    return known and bool(row.get("matrix_open")) and not row.get("matrix_skipped")


def _over_vmean(row: ErrorRow) -> str:
    ratio = significant((row.get("over_vmean") or {}).get("output_spectral"), 3)
    return OPEN + ratio if ratio and is_fragile(row, "output_spectral", "mean") else ratio


def _sum(row: ErrorRow, metric: str) -> int:
    """A count summed over heads, windows and repeats."""
    return round((statistic(row, metric, "mean") or 0.0) * (statistic(row, metric, "count") or 0))


def _bad_rows(row: ErrorRow) -> str:
    return "" if statistic(row, "bad_rows", "mean") is None else str(_sum(row, "bad_rows"))


def _guarded_rows(row: ErrorRow) -> str:
    return str(_sum(row, "guarded_rows")) if statistic(row, "guarded_rows", "mean") else ""


def _delta(row: ErrorRow) -> str:
    median, most = (significant(statistic(row, "delta", name), 2) for name in ("median", "max"))
    return f"{median} ({most})" if median else ""


def _milliseconds(row: ErrorRow) -> str:
    seconds = None if row["method"] == LOWER_BOUND else statistic(row, "seconds", "median")
    return significant(None if seconds is None else 1e3 * seconds, 3)


COLUMNS: tuple[Column[ErrorRow], ...] = (
    Column("method", lambda row: marked(row, label(row))),
    FAMILY,
    Column("scores\ntimes", _factor, "scores times: the factor s of --scale-inputs, Q and K each times √s", spare=9),
    Column("d\n(used)", _budget, "d: the budget, and (used) what the method made of it"),
    Column(
        "‖E‖₂\nmean ± s.e.",
        _absolute,
        "‖E‖₂: spectral norm of exact − approximate output, per head; s.e. clusters by text window, none for one",
        spare=9,
    ),
    Column("‖E‖₂ / ‖BV‖₂\nmedian [p10 – p90]", _relative, "median, p10, p90, max: over heads, windows and repeats"),
    Column("\nmax", lambda row: shown(row, "output_spectral_relative", "max", 3)),
    Column("‖E‖F / ‖BV‖F\nmedian", lambda row: shown(row, "output_frobenius_relative", "median", 3), spare=5),
    Column(
        "‖B − B~‖₂\n/ ‖B‖₂ median",
        _matrix,
        "‖B − B~‖₂: of whole matrices (in half precision: of the stored factors, in float32)",
        spare=4,
    ),
    Column(
        "error /\nV-Mean",
        _over_vmean,
        "error / V-Mean: mean ‖E‖₂ over that of the mean of V, which costs nothing",
    ),
    Column(
        "bad\nrows",
        _bad_rows,
        "bad rows: normaliser not positive or lost to rounding, before a guard; summed over heads, windows and repeats",
    ),
    Column("guarded\nrows", _guarded_rows, "guarded rows: replaced by the method, summed", spare=1),
    Column(
        "inverse\nresidual",
        _statistic("inverse_residual", "median", 2),
        "inverse residual: ‖I − NZ‖_F/√d of core N, inverse Z; repeated landmarks count; median",
        spare=4,
    ),
    Column("δ\nmedian (max)", _delta, "δ: the spectral shift of a head, median and max", spare=4),
    Column(
        "visited\nof n²",
        lambda row: per_cent(statistic(row, "visited_fraction", "mean")),
        "visited: scores or features computed, over n²; 2 d n of them exceed it from d = n/2 on",
        spare=6,
    ),
    Column("time\nms", _milliseconds, "time: per cell, all heads of the layer, median", spare=7),
    STATUS,
)


def error_columns(rows: Sequence[ErrorRow]) -> list[Column]:
    """The columns that there may be: families and factors only where there are several."""
    scaled = any(row.get("scale_inputs", 1) != 1 for row in rows)
    absent = [*([] if several_families(rows) else ["family"]), *([] if scaled else ["scores times"])]
    return [column for column in COLUMNS if column.title not in absent]


def _one_minus_cosine(row: ErrorRow) -> str:
    """One minus the mean cosine: a cosine near 1 shows nothing but nines."""
    mean = statistic(row, "cosine", "mean")
    return "" if mean is None else significant(max(1 - mean, 0.0), 2)


def _within(row: ErrorRow) -> str:
    mean, tolerance = statistic(row, "rows_within", "mean"), row.get("row_tolerance")
    return "" if mean is None else f"{100 * mean:.2f} % ({tolerance:g})"


KERNEL_COLUMNS: tuple[Column[ErrorRow], ...] = (
    Column(
        "kernel",
        method_label,
        "Kernels: E = O~ − O, with O the exact output, in float64, of Q, K and V rounded to the dtype that the kernel "
        "works in; medians over heads, windows and repeats where nothing else is said",
    ),
    Column("in", lambda row: row.get("kernel_dtype") or "", spare=1),
    Column("1 − cosine", _one_minus_cosine, "1 − cosine: mean over heads", spare=6),
    Column("max |E|", _statistic("max_abs", "max"), "max |E|: of all heads"),
    Column("‖E‖F / ‖O‖F", _statistic("relative_frobenius", "median")),
    Column("row p50", _statistic("row_error_p50", "median"), spare=3),
    Column("row p99", _statistic("row_error_p99", "median"), spare=5),
    Column(
        "row p99.9",
        _statistic("row_error_p99_9", "median"),
        "row: quantiles over rows of ‖E_i‖ / ‖O_i‖",
        spare=2,
    ),
    Column("rows within", _within, "rows within: share with at most the tolerance"),
    Column(
        "× framework",
        _statistic("ratio_to_framework", "median"),
        "× framework: max |E| over that of eager softmax attention in that dtype, median and worst head",
    ),
    Column("worst", _statistic("ratio_to_framework", "max")),
    Column("× framework, F", _statistic("ratio_to_framework_frobenius", "median"), "F: the same of ‖E‖F", spare=4),
)
