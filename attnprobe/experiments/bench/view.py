"""The view of ``attnprobe bench``: its tables, what gates judge, and the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

from ...figures.looks import EXACT
from ...tables.labels import source_heading
from ...tables.long import STATISTICS, Row, describe
from ...tables.methods import (
    FAMILY,
    STATUS,
    caption,
    grouped,
    label,
    marked,
    notes,
    rivals,
    several_families,
)
from ...tables.numbers import cell_text
from ...tables.results import Value
from ...tables.table import Best, Column, Table, grouped_by, joined, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from . import ERRORS, GATED
from .timing import (
    ERROR,
    FIT_FROM,
    METHOD,
    OF_CALLS,
    PLACE,
    STATE,
    bench_summary,
    conditions,
    time_ratio,
    timed_rows,
)

OF_ROUNDS = ("rounds", "seconds_spread", "seconds_rounds", "ratio_to_exact", "ratio_rounds", "ratio_spread")
OF_HEADS = ("visited", "visited_fraction", "scored", "kv_read", "error")
FIELDS = (
    *(*METHOD, *STATE, "weights", "source", "heads", "windows", "fragile"),
    *(*OF_CALLS, *OF_ROUNDS, *OF_HEADS, "noise_floor"),
    *(f"{name}.{statistic}" for name in ERRORS for statistic in STATISTICS),
)
EACH_N = tuple(name for name in GATED.names if name not in GATED.over_all_n)
ONCE = ("peak_bytes", "flops", "visited_fraction", "scored", "kv_read")  # costs without rounds


def view(recorded: Recorded) -> View:
    """The view of the records of ``attnprobe bench``, with the conditions of their times in the header."""
    from .figures import bench_figures

    rows = timed_rows(recorded.records)
    summary = bench_summary(rows)
    draw = partial(bench_figures, rows, recorded.drawing)
    return View(
        "bench",
        replace(recorded.header, remarks=conditions(recorded.records)),
        rows,
        _tables(rows, summary),
        _legend(rows),
        title="Cost of attention approximations",
        summary=summary,
        judged=bench_judged(rows, summary),
        figures={"bench": Figure("bench", draw, "nothing was measured that could be drawn")},
    )


def bench_judged(rows: Sequence[Row], summary: Sequence[Row]) -> list[Row]:
    """Rows for `check`: one for each row of `timed_rows`, and one without n for each entry of `bench_summary`.

    A row's ``metrics`` describe `EACH_N`: times and ratios over the rounds, costs without rounds as one value, and
    errors over heads. An entry's describe the metrics of all n together. ``judges`` names the metrics that a row has,
    so that a gate on an exponent judges only entries.
    """
    judged = []
    for row in rows:
        metrics = {name: {**described, "of": row["heads"]} for name, described in row["metrics"].items()}
        metrics |= {name: _over_rounds([row[name]]) for name in ONCE}
        metrics |= {"seconds": _over_rounds(row["seconds_rounds"]), "ratio_to_exact": _over_rounds(row["ratio_rounds"])}
        judged.append({**row, "judges": EACH_N, "metrics": metrics})
    curves = [_curve(row) for row in rows if row["requested"]]
    for entry in summary:
        grown = {
            "n": None,
            "status": "ok",
            "requested": _curve(entry) in curves,
            "judges": GATED.over_all_n,
            "metrics": {name: _over_rounds([entry[name]]) for name in GATED.over_all_n},
        }
        judged.append({**entry, **grown})
    return judged


def _curve(row: Row) -> list[Any]:
    return [row[name] for name in (*PLACE, "method", "options", "d")]


def _over_rounds(values: Sequence[float | None]) -> Row:
    """Statistics over rounds, each of which is a sample of its own."""
    return {**describe(values, range(len(values))), "of": len(values)}


def _legend(rows: Sequence[Row]) -> list[str]:
    backward = any(row["backward"] for row in rows)
    return ["A call is a forward pass and the gradient of the output's sum."] if backward else []


def _tables(rows: Sequence[Row], summary: Sequence[Row]) -> list[Table]:
    """Costs, for each place and n, all with the same columns; and growth."""
    columns = COSTS if several_families(rows) else [column for column in COSTS if column is not FAMILY]
    tables = [table_of(caption(group), group, columns, notes(group), rows, rivals) for group in grouped(rows)]
    several = [row for row in summary if row["lengths"] > 1]
    for group in grouped_by(several, "source", "layer", "target"):
        references_last = sorted(group, key=itemgetter("reference"))
        tables.append(table_of(f"Growth with n · {_where(group[0])}", references_last, GROWTH))
    return tables


def _where(row: Row) -> str:
    return joined(source_heading(row), f"layer {row['layer']}", f"target {row['target']}")


def _name(row: Row) -> str:
    return "exact (fused)" if row["method"] == EXACT else label(row)


def _ratio(row: Row) -> str:
    return "" if row["method"] == EXACT else cell_text(["{ratio_to_exact:3}", " ± {ratio_spread:2}"], row)


def _gradient(row: Row) -> str:
    return (row["gradient"] or "") if row["backward"] else ""


PRODUCTS = "counted, and as the leading cost says; a multiply-add is two"
COSTS = (
    Column("method", lambda row: marked(row, _name(row)), key=True),
    FAMILY,
    Column("d", "{d}", key=True),
    Column(
        "time ms\nmedian ± spread",
        ("{seconds:3ms}", " ± {seconds_spread:2ms}"),
        "of all heads",
        short="time",
        more="draws and output included; median of the rounds ± half the range of their quartiles",
        best=Best(lambda row: Value.of(row["seconds"], row["seconds_spread"])),
    ),
    Column(
        "time /\nexact",
        _ratio,
        "over torch's fused kernel",
        more="which computes exact attention in the same dtype; median of the ratios of each round",
        best=Best(time_ratio),
    ),
    Column(
        "memory\nMiB",
        "{peak_bytes:3MiB}",
        "peak beyond Q, K and V",
        short="memory",
        best=Best(lambda row: Value.of(row["peak_bytes"])),
    ),
    Column("GFLOP\ncounted", "{flops:3G}", "of matrix products", 1, "GFLOP", PRODUCTS),
    Column("GFLOP\nleading", "{leading_flops:3G}", "of matrix products", 2, "GFLOP", PRODUCTS),
    Column("visited\nof n²", "{visited_fraction:share}", "scores or features computed, over n²", 3, "visited"),
    Column("scored\na row", "{scored:3}", "to choose the keys of a row", 4, "scored"),
    Column(
        "keys\nread",
        "{kv_read:3}",
        "rows of K and V loaded for a query",
        4,
        "keys read",
        more="by the query heads of a KV head together",
    ),
    Column(
        "‖E‖₂ / ‖BV‖₂\nmedian",
        f"{{metrics[{ERROR}][median]:3}}",
        "‖E‖₂ / ‖BV‖₂ of the output",
        short="error",
        more="median over heads",
    ),
    Column("gradient\nreaches", _gradient, "of Q, K and V, those that a gradient reaches", 4, "gradient"),
    STATUS,
)


EXPONENTS = f"exponents for n ≥ {FIT_FROM}"
SLOPE = "the slope of log cost over log n by least squares, ± the spread of those of the rounds"
GROWTH = (
    Column("method", _name, key=True),
    Column("d", "{d}", key=True),
    Column("claimed", "{growth}", "growth of the leading cost"),
    Column("time ~ n^", ("{time_exponent:.2f}", " ± {time_exponent_spread:.2f}"), EXPONENTS, more=SLOPE),
    Column("memory ~ n^", "{memory_exponent:.2f}", EXPONENTS, more=SLOPE),
)


COLUMNS = (*COSTS, *GROWTH)
