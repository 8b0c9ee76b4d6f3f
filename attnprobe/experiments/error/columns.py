"""The columns of `error`'s tables of methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...records.file import LOWER_BOUND
from ...tables.methods import (
    FAMILY,
    OPEN,
    STATUS,
    best_of,
    budget,
    is_fragile,
    label,
    marked,
    several_families,
    shown,
    statistic,
)
from ...tables.numbers import per_cent, significant
from ...tables.table import Best, Column
from .rows import ErrorRow


def statistic_cell(metric: str, name: str, digits: int = 3) -> Callable[[ErrorRow], str]:
    """The cell of a statistic of a metric."""
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


def _vmean_ratio(row: ErrorRow) -> float | None:
    return (row.get("over_vmean") or {}).get("output_spectral")


def _over_vmean(row: ErrorRow) -> str:
    ratio = significant(_vmean_ratio(row), 3)
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


def _used(row: ErrorRow) -> str:
    low, high = (significant(statistic(row, f"realised_d_{name}", "mean"), 3) for name in ("p10", "p90"))
    return f"{low} – {high}" if low else ""


def _seconds(row: ErrorRow) -> float | None:
    return None if row["method"] == LOWER_BOUND else statistic(row, "seconds", "median")


def _milliseconds(row: ErrorRow) -> str:
    seconds = _seconds(row)
    return significant(None if seconds is None else 1e3 * seconds, 3)


SPREAD = "over heads, windows, repeats"
RELATIVE = "of the relative error of the output, ‖E‖₂ / ‖BV‖₂"
METHOD = Column("method", lambda row: marked(row, label(row)), key=True)
BUDGET = Column("d\n(used)", _budget, "budget (mean of what was used)", short="d", key=True)
METHOD_COLUMNS: tuple[Column, ...] = (
    METHOD,
    FAMILY,
    Column(
        "scores\ntimes", _factor, "the factor s of --scale-inputs", spare=9, more="Q and K are each times √s", key=True
    ),
    BUDGET,
    Column(
        "‖E‖₂\nmean ± s.e.",
        _absolute,
        "‖E‖₂, the spectral norm of the output's error",
        spare=9,
        short="mean",
        more="E is the exact minus the approximate output of a head; s.e. is over text windows, none for one window",
        best=best_of("output_spectral", "mean"),
    ),
    Column(
        "‖E‖₂ / ‖BV‖₂\nmedian [p10 – p90]",
        _relative,
        SPREAD,
        short="median",
        more=RELATIVE,
        best=best_of("output_spectral_relative", "median"),
    ),
    Column(
        "\nmax",
        lambda row: shown(row, "output_spectral_relative", "max", 3),
        SPREAD,
        more=RELATIVE,
        best=best_of("output_spectral_relative", "max"),
    ),
    Column(
        "‖E‖F / ‖BV‖F\nmedian",
        lambda row: shown(row, "output_frobenius_relative", "median", 3),
        "‖E‖F / ‖BV‖F, median",
        spare=5,
        short="Frobenius",
        more="the same error in the Frobenius norm",
        best=best_of("output_frobenius_relative", "median"),
    ),
    Column(
        "‖B − B~‖₂\n/ ‖B‖₂ median",
        _matrix,
        "‖B − B~‖₂ / ‖B‖₂ of whole matrices",
        spare=3,
        short="matrix",
        more="a certified interval's upper end; in half precision of the stored factors, in float32",
        best=best_of("matrix_spectral_relative", "median"),
    ),
    Column(
        "error /\nV-Mean",
        _over_vmean,
        "1 is no better than the mean of V",
        more="the method's mean ‖E‖₂ over that of V-Mean, which replaces attention by the mean of V and costs nothing",
        best=Best(lambda row: None if is_fragile(row, "output_spectral", "mean") else _vmean_ratio(row)),
    ),
    Column(
        "bad\nrows",
        _bad_rows,
        "normaliser ≤ 0 or lost to rounding",
        more="before a guard, summed over heads, windows and repeats",
    ),
    Column("guarded\nrows", _guarded_rows, "replaced by the method", spare=1, more="summed as bad rows are"),
    Column(
        "inverse\nresidual",
        statistic_cell("inverse_residual", "median", 2),
        "‖I − NZ‖_F/√d of core N, inverse Z",
        spare=6,
        more="median; repeated landmarks count",
    ),
    Column("δ\nmedian (max)", _delta, "the spectral shift of a head", spare=6, short="δ"),
    Column(
        "visited\nof n_q·n_k",
        lambda row: per_cent(statistic(row, "visited_fraction", "mean")),
        "scores or features computed, over queries times keys",
        spare=6,
        short="visited",
        more="2 d n features exceed n² from d = n/2 on",
    ),
    Column(
        "used\np10 – p90",
        _used,
        "quantiles over rows of the keys that a row has",
        spare=8,
        short="used",
        more="pages, blocks and thresholds do not hit d; means over heads, windows and repeats",
    ),
    Column(
        "scored\na row",
        statistic_cell("scored", "mean"),
        "scores computed to choose the keys of a row",
        spare=7,
        short="scored",
        more="a score is an inner product of p numbers",
    ),
    Column(
        "keys\nread",
        statistic_cell("kv_read", "mean"),
        "rows of K and V loaded for a query",
        spare=7,
        short="keys read",
        more="by the query heads of a KV head together: the union of their keys",
    ),
    Column("time\nms", _milliseconds, "of a layer's heads, median", spare=7, short="time", best=Best(_seconds)),
    STATUS,
)


def error_columns(rows: Sequence[ErrorRow]) -> list[Column]:
    """The columns that tables may have. Those of families and factors need several of them."""
    scaled = any(row.get("scale_inputs", 1) != 1 for row in rows)
    absent = [*([] if several_families(rows) else ["family"]), *([] if scaled else ["scores times"])]
    return [column for column in METHOD_COLUMNS if column.title not in absent]
