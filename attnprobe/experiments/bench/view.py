"""The view of ``attnprobe bench``: costs for each n, how they grow, and what to choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from ...grammar.lists import parse_positive
from ...tables.labels import source_heading
from ...tables.methods import (
    FAMILY,
    STATUS,
    best_of,
    caption,
    grouped,
    marked,
    marks_legend,
    notes,
    reference_label,
    rivals,
    several_families,
    shown,
)
from ...tables.numbers import method_label, per_cent, significant
from ...tables.table import Best, Column, Table, grouped_by, joined, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .gate_rows import bench_judged
from .growth import FIT_FROM
from .result import bench_result
from .rows import (
    ERROR,
    EXACT,
    FIELDS,
    BenchRow,
    BenchSummary,
    Choice,
    bench_choices,
    bench_summary,
    timed_rows,
)
from .timing import conditions, disturbances

if TYPE_CHECKING:
    from .record import BenchRecord

LIMITS = {"epsilon": "0.05,0.1,0.2,0.5", "under_ms": "1,10,100"}  # defaults without a manifest


def view(recorded: Recorded[BenchRecord]) -> View:
    """The view of the records of ``attnprobe bench``, with the conditions of their times in the header."""
    from .figures import bench_figures

    rows = timed_rows(recorded.records)
    summary = bench_summary(rows)
    limits = [_limits(recorded.config, name) for name in LIMITS]
    choices = bench_choices(rows, *limits) if any(row["error"] is not None for row in rows) else []
    above = recorded.header
    warnings = [*above.warnings, *disturbances(recorded.records, rows)]
    header = replace(above, remarks=conditions(recorded.records), warnings=warnings)
    draw = lambda folder: bench_figures(rows, recorded.drawing, folder)
    return View(
        "bench",
        header,
        rows,
        bench_tables(rows, summary, choices),
        bench_legend(rows),
        title="Cost of attention approximations",
        result=bench_result(rows),
        summary=summary,
        columns=COLUMNS,
        fields=FIELDS,
        more={"choices": choices},
        judged=bench_judged(rows, summary),
        figures={"bench": Figure("bench", draw, "nothing was measured that could be drawn")},
    )


def _limits(config: Mapping[str, Any], name: str) -> list[float]:
    """The limits of the tables of choices, from the run's manifest or by default."""
    limits = (config.get(name) or {}).get("value") or LIMITS[name]
    return parse_positive(limits, name.replace("_", "-")) if isinstance(limits, str) else list(limits)


def bench_legend(rows: Sequence[BenchRow]) -> list[str]:
    """The meaning of rows and marks."""
    parts = []
    if any(row["backward"] for row in rows):
        parts.append("A call is a forward pass and the gradient of the output's sum.")
    return [*parts, *marks_legend(rows)]


def bench_tables(rows: Sequence[BenchRow], summary: Sequence[BenchSummary], choices: Sequence[Choice]) -> list[Table]:
    """Costs, for each place and n, all with the same columns; growth; and choices, for each place and limit."""
    columns = COSTS if several_families(rows) else [column for column in COSTS if column is not FAMILY]
    tables = [table_of(caption(group), group, columns, notes(group), rows, rivals) for group in grouped(rows)]
    several = [row for row in summary if row["lengths"] > 1]
    for group in grouped_by(several, "source", "layer", "target"):
        tables.append(table_of(f"Growth with n · {_where(group[0])}", _references_last(group), GROWTH))
    for group in grouped_by(choices, "source", "layer", "target", "limit"):
        title, columns = CHOICES[group[0]["limit"]]
        tables.append(table_of(f"{title} · {_where(group[0])}", group, columns))
    return tables


def _where(row: BenchSummary | Choice) -> str:
    return joined(source_heading(row), f"layer {row['layer']}", f"target {row['target']}")


def _references_last(group: Sequence[BenchSummary]) -> list[BenchSummary]:
    """Methods in their order, then references."""
    return sorted(group, key=lambda row: row["reference"])


def _name(row: BenchRow | BenchSummary) -> str:
    return "exact (fused)" if row["method"] == EXACT else reference_label(row)


def _scaled(value: float | None, factor: float = 1.0) -> str:
    """A number in units of ``1 / factor``."""
    return "" if value is None else significant(factor * value, 3)


def _milliseconds(row: BenchRow | Choice) -> str:
    return _scaled(row["seconds"], 1e3)


def _mib(row: BenchRow | Choice) -> str:
    return _scaled(row["peak_bytes"], 2.0**-20)


def _time(row: BenchRow) -> str:
    spread = row["seconds_spread"]
    return _milliseconds(row) + ("" if spread is None else f" ± {significant(1e3 * spread, 2)}")


def _ratio(row: BenchRow) -> str:
    if row["method"] == EXACT or row["ratio_to_exact"] is None:
        return ""
    spread = row["ratio_spread"]
    return significant(row["ratio_to_exact"], 3) + ("" if spread is None else f" ± {significant(spread, 2)}")


PRODUCTS = "counted, and as the leading cost says; a multiply-add is two"
COSTS: tuple[Column, ...] = (
    Column("method", lambda row: marked(row, _name(row)), key=True),
    FAMILY,
    Column("d", "{d}", key=True),
    Column(
        "time ms\nmedian ± spread",
        _time,
        "of all heads",
        short="time",
        more="draws and output included; median of the rounds ± half the range of their quartiles",
        best=Best(itemgetter("seconds"), itemgetter("seconds_spread")),
    ),
    Column(
        "time /\nexact",
        _ratio,
        "over torch's fused kernel",
        more="which computes exact attention in the same dtype and round",
        best=Best(itemgetter("ratio_to_exact"), itemgetter("ratio_spread")),
    ),
    Column("memory\nMiB", _mib, "peak beyond Q, K and V", short="memory", best=Best(itemgetter("peak_bytes"))),
    Column(
        "GFLOP\ncounted",
        lambda row: _scaled(row["flops"], 1e-9),
        "of matrix products",
        spare=1,
        short="GFLOP",
        more=PRODUCTS,
    ),
    Column(
        "GFLOP\nleading", lambda row: _scaled(row["leading_flops"], 1e-9), "of matrix products", 2, "GFLOP", PRODUCTS
    ),
    Column(
        "visited\nof n²",
        lambda row: per_cent(row["visited_fraction"]),
        "scores or features computed, over n²",
        spare=3,
        short="visited",
    ),
    Column("scored\na row", lambda row: _scaled(row["scored"]), "to choose the keys of a row", spare=4, short="scored"),
    Column(
        "keys\nread",
        lambda row: _scaled(row["kv_read"]),
        "rows of K and V loaded for a query",
        spare=4,
        short="keys read",
        more="by the query heads of a KV head together",
    ),
    Column(
        "‖E‖₂ / ‖BV‖₂\nmedian",
        lambda row: shown(row, ERROR, "median", 3),
        "‖E‖₂ / ‖BV‖₂ of the output",
        short="error",
        more="median over heads; references are not chosen from",
        best=best_of(ERROR, "median"),
    ),
    Column(
        "gradient\nreaches",
        lambda row: (row["gradient"] or "") if row["backward"] else "",
        "of Q, K and V, those that a gradient reaches",
        spare=4,
        short="gradient",
    ),
    STATUS,
)


def _exponent(name: Literal["time_exponent", "memory_exponent"]) -> Callable[[BenchSummary], str]:
    return lambda row: "" if row[name] is None else f"{row[name]:.2f}"


def _time_exponent(row: BenchSummary) -> str:
    spread = row["time_exponent_spread"]
    return _exponent("time_exponent")(row) + ("" if spread is None else f" ± {spread:.2f}")


def _crossing(name: str, lengths: str) -> Callable[[BenchSummary], str]:
    """The n from which a method costs less; known only if several n were measured."""

    def cell(row: BenchSummary) -> str:
        if row["method"] == EXACT or not row[lengths]:
            return ""
        return f"> {row['longest_n']}" if row[name] is None else f"{row[name]:.0f}"

    return cell


EXPONENTS = f"exponents for n ≥ {FIT_FROM}"
SLOPE = "the slope of log cost over log n by least squares, ± the spread of those of the rounds"
FROM = "cheaper than exact attention from there on"
GROWTH: tuple[Column, ...] = (
    Column("method", _name, key=True),
    Column("d", "{d}", key=True),
    Column("claimed", lambda row: row["growth"], "growth of the leading cost"),
    Column("time ~ n^", _time_exponent, EXPONENTS, more=SLOPE),
    Column("memory ~ n^", _exponent("memory_exponent"), EXPONENTS, more=SLOPE),
    Column("faster from n", _crossing("faster_from", "lengths"), FROM),
    Column("smaller from n", _crossing("smaller_from", "memory_lengths"), FROM),
)


def _chosen(row: Choice) -> str:
    return f"none of {row['of']}" if row["method"] is None else method_label(row)


def _choices(limit: str) -> tuple[Column, ...]:
    return (
        Column("n", "{n}", key=True),
        Column(limit, lambda row: f"{row['value']:g}", "the largest value allowed", short="limit", key=True),
        Column("method", _chosen, key=True),
        Column("d", "{d}", key=True),
        Column("time ms", _milliseconds, short="time"),
        Column("time / exact", lambda row: _scaled(row["ratio_to_exact"])),
        Column("MiB", _mib, short="memory"),
        Column(
            "error",
            lambda row: _scaled(row["error"]),
            "‖E‖₂ / ‖BV‖₂ of the output",
            more="median over heads; chosen from methods that are faster than exact attention",
        ),
    )


CHOICES = {
    "error": ("Fastest method under an error", _choices("error ≤")),
    "ms": ("Smallest error under a time", _choices("ms ≤")),
}
COLUMNS = (*COSTS, *GROWTH, *(column for _, columns in CHOICES.values() for column in columns))
