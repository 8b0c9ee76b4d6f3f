"""The tables of ``attnprobe bench`` in every format: costs for each n, growth, and what to choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...grammar.lists import parse_positive
from ...tables.columns import Column, family, family_table, grouped, label, mark, shown
from ...tables.console import Header
from ...tables.labels import source_heading
from ...tables.numbers import method_label, per_cent, significant
from ...tables.table import Table
from ...tables.terminal import family_tables, plain_tables
from ...tables.view import Figure, View
from ..base import Recorded
from .gates import bench_judged
from .growth import FIT_FROM
from .rows import ERROR, EXACT, bench_choices, bench_rows, bench_summary, conditions, disturbances

__all__ = ["bench_legend", "bench_tables", "view"]

Row = dict[str, Any]

LIMITS = {"epsilon": "0.05,0.1,0.2,0.5", "under_ms": "1,10,100"}  # where no manifest says
GROWTH = ("method", "d", "claimed", "time ~ n^", "memory ~ n^", "faster from n", "smaller from n")
CROSSINGS = {"faster_from": "lengths", "smaller_from": "memory_lengths"}  # and of how many n they are known


def view(recorded: Recorded) -> View:
    """What records of ``attnprobe bench`` show, with the conditions of their times in the header."""
    from .figures import bench_figures

    rows = bench_rows(recorded.records)
    summary = bench_summary(rows)
    limits = [_limits(recorded.config, name) for name in LIMITS]
    choices = bench_choices(rows, *limits) if any(row["error"] is not None for row in rows) else []
    above = recorded.header
    warnings = [*above.warnings, *disturbances(recorded.records, rows)]
    header = replace(above, lines=[*above.lines, *conditions(recorded.records)], warnings=warnings)
    draw = lambda folder: bench_figures(rows, header.title, folder)
    return View(
        "bench",
        header,
        rows,
        *bench_tables(rows, summary, choices),
        title="Cost of attention approximations",
        summary=summary,
        more={"choices": choices},
        terminal=lambda above, run, width: _terminal(rows, summary, choices, above, run, width),
        judged=bench_judged(rows, summary),
        figures={"bench": Figure("bench", draw, "nothing was measured that could be drawn")},
    )


def _limits(config: Mapping[str, Any], name: str) -> list[float]:
    """The limits of the tables of choices, of the run where its manifest has them."""
    found = (config.get(name) or {}).get("value") or LIMITS[name]
    return parse_positive(found, name.replace("_", "-")) if isinstance(found, str) else list(found)


def _terminal(
    rows: Sequence[Row],
    summary: Sequence[Row],
    choices: Sequence[Row],
    header: Header,
    run: str | None,
    width: int | None,
) -> str:
    groups = grouped(rows, [])
    costs = family_tables(groups, _shown(rows), lambda columns: bench_legend(rows, columns), header, None, width)
    more = _more(summary, choices)
    return costs + ("\n" + plain_tables(more, _more_legend(summary, choices), Header(), run, width) if more else "")


def bench_tables(rows: Sequence[Row], summary: Sequence[Row], choices: Sequence[Row]) -> tuple[list[Table], str]:
    """The tables for people and their legend."""
    columns = _shown(rows)
    tables = [family_table(group, columns) for group in grouped(rows, [])]
    return tables + _more(summary, choices), f"{bench_legend(rows, columns)} {_more_legend(summary, choices)}".strip()


def bench_legend(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """What the columns and the marks mean, in one paragraph."""
    parts = ["; ".join(column.meaning for column in columns if column.meaning) + "."]
    if any(row["backward"] for row in rows):
        parts.insert(0, "Each call is a forward pass and the gradient of the output's sum with respect to Q, K and V.")
    if any(mark(row) for row in rows):
        parts.append("Marks: ! bad rows, ✗ failed or diverged, – skipped.")
    return " ".join(parts)


def _more(summary: Sequence[Row], choices: Sequence[Row]) -> list[Table]:
    """Growth, and choices, for each place."""
    several = [row for row in summary if row["lengths"] > 1]
    tables = [_growth(some) for some in _by(several, lambda row: (source_heading(row), row["layer"], row["target"]))]
    place = lambda row: (source_heading(row), row["layer"], row["target"], row["limit"])
    return [table for table in tables if table.lines] + [_choice(some) for some in _by(choices, place)]


def _more_legend(summary: Sequence[Row], choices: Sequence[Row]) -> str:
    parts = []
    if any(row["time_exponent"] is not None for row in summary):
        parts.append(
            f"time ~ n^, memory ~ n^: exponents, the slope of log cost over log n by least squares for n ≥ "
            f"{FIT_FROM}, ± the spread of those of the rounds; claimed: by the leading cost."
        )
    if any(row["lengths"] > 1 for row in summary):
        parts.append("faster, smaller from n: less time, less memory than exact attention from there on.")
    if choices:
        parts.append("error: median of ‖E‖₂ / ‖BV‖₂ over heads; references are not chosen from.")
    return " ".join(parts)


def _by(rows: Sequence[Row], place: Callable[[Row], Any]) -> list[list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(place(row), []).append(row)
    return list(groups.values())


def _growth(some: Sequence[Row]) -> Table:
    """How costs grow: methods by family, then references."""
    families = list(dict.fromkeys(family(row) for row in some if not row["reference"]))
    known = [row for row in some if row["longest_n"] is not None]
    known.sort(key=lambda row: families.index(family(row)) if not row["reference"] else len(families))
    lines = []
    for row in known:
        exponents = ["" if row[name] is None else f"{row[name]:.2f}" for name in ("time_exponent", "memory_exponent")]
        if row["time_exponent_spread"] is not None:
            exponents[0] += f" ± {row['time_exponent_spread']:.2f}"
        crossings = [
            ""
            if row["method"] == EXACT or not row[known]
            else f"> {row['longest_n']}"
            if row[name] is None
            else f"{row[name]:.0f}"
            for name, known in CROSSINGS.items()
        ]
        budget = "" if row["d"] is None else str(row["d"])
        lines.append([_name(row), budget, row["growth"], *exponents, *crossings])
    kept = [i for i in range(len(GROWTH)) if any(line[i] for line in lines)]
    where = [source_heading(some[0]), f"layer {some[0]['layer']}", f"target {some[0]['target']}"]
    caption = f"Growth with n · {' · '.join(filter(None, where))}"
    return Table(caption, [GROWTH[i] for i in kept], [[line[i] for i in kept] for line in lines], [])


def _choice(some: Sequence[Row]) -> Table:
    first, limited = some[0], some[0]["limit"] == "error"
    where = [source_heading(first), f"layer {first['layer']}", f"target {first['target']}"]
    caption = "Fastest method under an error" if limited else "Smallest error under a time"
    headings = ["n", "error ≤" if limited else "ms ≤", "method", "d", "time ms", "time / exact", "MiB", "error"]
    lines = []
    for row in some:
        if row["method"] is None:
            lines.append([str(row["n"]), f"{row['value']:g}", f"none of {row['of']}", "", "", "", "", ""])
            continue
        budget = "" if row["d"] is None else str(row["d"])
        costs = (1e3 * row["seconds"], row["ratio_to_exact"], _mib(row["peak_bytes"]), row["error"])
        numbers = [significant(value, 3) for value in costs]
        lines.append([str(row["n"]), f"{row['value']:g}", method_label(row), budget, *numbers])
    return Table(f"{caption} · {' · '.join(filter(None, where))}", headings, lines)


def _name(row: Row) -> str:
    return "exact (fused)" if row["method"] == EXACT else label(row)


def _mib(value: float | None) -> float | None:
    return None if value is None else value / 2**20


def _shown(rows: Sequence[Row]) -> list[Column]:
    """The columns in which some row has something to say; the family where there are several."""
    several = len({family(row) for row in rows} - {""}) > 1
    return [
        column
        for column in COLUMNS
        if any(any(column.pieces(row)) for row in rows) and (several or column.name != "family")
    ]


def _time(row: Row) -> tuple[str, str]:
    if row["seconds"] is None:
        return "", ""
    spread = row["seconds_spread"]
    return significant(1e3 * row["seconds"], 3), "" if spread is None else significant(1e3 * spread, 2)


def _ratio(row: Row) -> tuple[str, str]:
    spread = row["ratio_spread"]
    timed = row["method"] != EXACT and row["ratio_to_exact"] is not None
    return (significant(row["ratio_to_exact"], 3), significant(spread, 2)) if timed else ("", "")


def _giga(value: float | None) -> str:
    return significant(None if value is None else value / 1e9, 3)


COLUMNS = (
    Column("method", ("method", ""), lambda row: (_name(row),)),
    Column("family", ("family", ""), lambda row: (family(row),)),
    Column("d", ("d", ""), lambda row: ("" if row["d"] is None else str(row["d"]),)),
    Column(
        "seconds",
        ("time ms", "median ± spread"),
        _time,
        (("", ""), (" ± ", "")),
        "time: of all heads, draws and output included, median of the rounds ± half the range of their quartiles",
    ),
    Column(
        "ratio",
        ("time /", "exact"),
        _ratio,
        (("", ""), (" ± ", "")),
        "time / exact: over exact attention by torch's fused kernel in the same dtype and round",
    ),
    Column(
        "memory",
        ("memory", "MiB"),
        lambda row: (significant(_mib(row["peak_bytes"]), 3),),
        meaning="memory: peak beyond Q, K and V",
    ),
    Column(
        "flops",
        ("GFLOP", "counted"),
        lambda row: (_giga(row["flops"]),),
        meaning="GFLOP: of matrix products, counted, and as the leading cost says, two a multiply-add",
        spare=1,
    ),
    Column("leading", ("GFLOP", "leading"), lambda row: (_giga(row["leading_flops"]),), spare=2),
    Column(
        "visited",
        ("visited", "of n²"),
        lambda row: (per_cent(row["visited_fraction"]),),
        meaning="visited: scores or features computed, over n²",
        spare=3,
    ),
    Column("error", ("‖E‖₂ / ‖BV‖₂", "median"), lambda row: (shown(row, ERROR, "median", 3),)),
    Column(
        "gradient", ("gradient", "reaches"), lambda row: ((row["gradient"] or "") if row["backward"] else "",), spare=4
    ),
    Column("status", ("", "status"), lambda row: ("" if row["status"] == "ok" else row["status"],), spare=5),
)
