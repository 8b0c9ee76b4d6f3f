"""What ``attnprobe bench`` shows: costs for each n, how they grow, and what to choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ...grammar.lists import parse_positive
from ...tables.labels import source_heading
from ...tables.methods import (
    FAMILY,
    MARKS,
    STATUS,
    caption,
    family,
    grouped,
    mark,
    marked,
    notes,
    reference_label,
    several_families,
    shown,
)
from ...tables.numbers import method_label, per_cent, significant
from ...tables.table import Column, Table, grouped_by, joined, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .gate_rows import bench_judged
from .growth import FIT_FROM
from .result import bench_result
from .rows import (
    ERROR,
    EXACT,
    BenchRow,
    BenchSummary,
    Choice,
    bench_choices,
    bench_rows,
    bench_summary,
)
from .timing import conditions, disturbances

if TYPE_CHECKING:
    from .record import BenchRecord

__all__ = ["bench_legend", "bench_tables", "view"]


LIMITS = {"epsilon": "0.05,0.1,0.2,0.5", "under_ms": "1,10,100"}  # where no manifest says


def view(recorded: Recorded[BenchRecord]) -> View:
    """What records of ``attnprobe bench`` show, with the conditions of their times in the header."""
    from .figures import bench_figures

    rows = bench_rows(recorded.records)
    summary = bench_summary(rows)
    limits = [_limits(recorded.config, name) for name in LIMITS]
    choices = bench_choices(rows, *limits) if any(row["error"] is not None for row in rows) else []
    above = recorded.header
    warnings = [*above.warnings, *disturbances(recorded.records, rows)]
    header = replace(above, lines=[*above.lines, *conditions(recorded.records)], warnings=warnings)
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
        more={"choices": choices},
        judged=bench_judged(rows, summary),
        figures={"bench": Figure("bench", draw, "nothing was measured that could be drawn")},
    )


def _limits(config: Mapping[str, Any], name: str) -> list[float]:
    """The limits of the tables of choices, of the run where its manifest has them."""
    limits = (config.get(name) or {}).get("value") or LIMITS[name]
    return parse_positive(limits, name.replace("_", "-")) if isinstance(limits, str) else list(limits)


def bench_legend(rows: Sequence[BenchRow]) -> str:
    """What the rows and the marks mean, in one paragraph."""
    parts = []
    if any(row["backward"] for row in rows):
        parts.append("Each call is a forward pass and the gradient of the output's sum with respect to Q, K and V.")
    if any(map(mark, rows)):
        parts.append(MARKS)
    return " ".join(parts)


def bench_tables(rows: Sequence[BenchRow], summary: Sequence[BenchSummary], choices: Sequence[Choice]) -> list[Table]:
    """Costs, for each place and n, all with the same columns; growth; and choices, for each place and limit."""
    columns = COSTS if several_families(rows) else [column for column in COSTS if column is not FAMILY]
    tables = [table_of(caption(some), some, columns, notes(some), rows, family) for some in grouped(rows)]
    several = [row for row in summary if row["lengths"] > 1]
    for some in grouped_by(several, "source", "layer", "target"):
        tables.append(table_of(f"Growth with n · {_where(some[0])}", _by_family(some), GROWTH))
    for some in grouped_by(choices, "source", "layer", "target", "limit"):
        title, columns = CHOICES[some[0]["limit"]]
        tables.append(table_of(f"{title} · {_where(some[0])}", some, columns))
    return tables


def _where(row: BenchSummary | Choice) -> str:
    return joined(source_heading(row), f"layer {row['layer']}", f"target {row['target']}")


def _by_family(some: Sequence[BenchSummary]) -> list[BenchSummary]:
    """Methods by family, then references."""
    families = list(dict.fromkeys(family(row) for row in some if not row["reference"]))
    return sorted(some, key=lambda row: len(families) if row["reference"] else families.index(family(row)))


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


COSTS: tuple[Column[BenchRow], ...] = (
    Column("method", lambda row: marked(row, _name(row))),
    FAMILY,
    Column.of("d"),
    Column(
        "time ms\nmedian ± spread",
        _time,
        "time: of all heads, draws and output included, median of the rounds ± half the range of their quartiles",
    ),
    Column(
        "time /\nexact",
        _ratio,
        "time / exact: over exact attention by torch's fused kernel in the same dtype and round",
    ),
    Column("memory\nMiB", _mib, "memory: peak beyond Q, K and V"),
    Column(
        "GFLOP\ncounted",
        lambda row: _scaled(row["flops"], 1e-9),
        "GFLOP: of matrix products, counted, and as the leading cost says, two a multiply-add",
        spare=1,
    ),
    Column("GFLOP\nleading", lambda row: _scaled(row["leading_flops"], 1e-9), spare=2),
    Column(
        "visited\nof n²",
        lambda row: per_cent(row["visited_fraction"]),
        "visited: scores or features computed, over n²",
        spare=3,
    ),
    Column("‖E‖₂ / ‖BV‖₂\nmedian", lambda row: shown(row, ERROR, "median", 3)),
    Column("gradient\nreaches", lambda row: (row["gradient"] or "") if row["backward"] else "", spare=4),
    STATUS,
)


def _exponent(name: Literal["time_exponent", "memory_exponent"]) -> Callable[[BenchSummary], str]:
    return lambda row: "" if row[name] is None else f"{row[name]:.2f}"


def _time_exponent(row: BenchSummary) -> str:
    spread = row["time_exponent_spread"]
    return _exponent("time_exponent")(row) + ("" if spread is None else f" ± {spread:.2f}")


def _crossing(name: str, lengths: str) -> Callable[[BenchSummary], str]:
    """The n from which on a method costs less; known only where several n were measured."""

    def cell(row: BenchSummary) -> str:
        if row["method"] == EXACT or not row[lengths]:
            return ""
        return f"> {row['longest_n']}" if row[name] is None else f"{row[name]:.0f}"

    return cell


EXPONENTS = (
    "time ~ n^, memory ~ n^: exponents, the slope of log cost over log n by least squares for n ≥ "
    f"{FIT_FROM}, ± the spread of those of the rounds; claimed: by the leading cost"
)
FROM = "faster, smaller from n: less time, less memory than exact attention from there on"
GROWTH: tuple[Column[BenchSummary], ...] = (
    Column("method", _name),
    Column.of("d"),
    Column("claimed", lambda row: row["growth"]),
    Column("time ~ n^", _time_exponent, EXPONENTS),
    Column("memory ~ n^", _exponent("memory_exponent"), EXPONENTS),
    Column("faster from n", _crossing("faster_from", "lengths"), FROM),
    Column("smaller from n", _crossing("smaller_from", "memory_lengths"), FROM),
)


def _choices(limit: str) -> tuple[Column[Choice], ...]:
    return (
        Column.of("n"),
        Column(limit, lambda row: f"{row['value']:g}"),
        Column("method", lambda row: f"none of {row['of']}" if row["method"] is None else method_label(row)),
        Column.of("d"),
        Column("time ms", _milliseconds),
        Column("time / exact", lambda row: _scaled(row["ratio_to_exact"])),
        Column("MiB", _mib),
        Column(
            "error",
            lambda row: _scaled(row["error"]),
            "error: median of ‖E‖₂ / ‖BV‖₂ over heads; references are not chosen from",
        ),
    )


CHOICES = {
    "error": ("Fastest method under an error", _choices("error ≤")),
    "ms": ("Smallest error under a time", _choices("ms ≤")),
}
