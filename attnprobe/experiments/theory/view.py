"""The view of ``attnprobe theory``: a row for each statement and head, their summary, its tables and the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ...linalg.exceedance import least_trials
from ...tables.labels import at_label, source_heading
from ...tables.long import CELL, Row, describe, known, long_rows, spread, summarised
from ...tables.long import FIELDS as LONG
from ...tables.numbers import brief, method_label
from ...tables.results import too_few_repeats
from ...tables.table import Column, Table, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .record import PER_HEAD, REQUESTED, SHAPE, STATEMENT, VERDICTS

NUMBERS = ("measured", "bound", "slack")
WORDS = {
    "holds": "hold",
    "violated": "are violated",
    "undecided": "are undecided",
    "vacuous": "are vacuous",
    "assumption not met": "have an assumption that is not met",
}
THEOREM = ("theorem", "paper", "says")
FIELDS = (*LONG, *THEOREM, *STATEMENT, *PER_HEAD, "details")


def view(recorded: Recorded) -> View:
    """The view of the records of ``attnprobe theory``."""
    from .figures import theory_figures

    rows = theory_rows(recorded.records)
    summary = theory_summary(rows)
    draw = partial(theory_figures, rows, recorded.drawing)
    return View(
        "theory",
        recorded.header,
        list(map(_shown, rows)),
        _tables(summary),
        title="What the theorems promise, and what is",
        summary=summary,
        judged=summary,
        figures={"theory": Figure("theory", draw, "no cell has a finding, so there is nothing to draw")},
    )


def theory_rows(records: Sequence[Row]) -> list[Row]:
    """One row per finding and head. A cell or a budget without a finding is a row with its reason."""
    return long_rows(records, SHAPE, (*CELL, *THEOREM))


def _shown(row: Row) -> Row:
    """A row without curves, and without what the run requested."""
    shown = {name: value for name, value in row.items() if name not in REQUESTED}
    if "details" in row:
        shown["details"] = {name: value for name, value in row["details"].items() if not isinstance(value, list)}
    return shown


def theory_summary(rows: Sequence[Row]) -> list[Row]:
    """One entry per (source, theorem, method with options, layer, n, d, at), over heads and windows.

    ``verdicts`` counts the verdicts. ``metrics`` describes the metrics of gates; the first four are shares of heads.
    ``quantiles`` holds the quantiles of the others, infinite numbers included; null if there is no number.
    """
    place = ("source", "theorem", "method", "options", "layer", "n", "d", "at", "status", "reason")
    return summarised(rows, place, _statistics)


def _statistics(group: list[Row]) -> Row:
    entry: Row = {
        **{name: group[0].get(name) for name in (*THEOREM, *STATEMENT)},
        "requested": True,
        "seeds": group[0]["seeds"],
        "cells": len({row["window"] for row in group}),
        "values": len(group),
        "verdicts": {},
        "metrics": {},
    }
    if group[0]["status"] != "ok":
        return entry | {"heads": 0, "values": 0}
    windows = [row["window"] for row in group]
    counts = Counter(row["verdict"] for row in group)
    entry["verdicts"] = {word: counts[word] for word in VERDICTS if counts[word]}
    for word in VERDICTS:
        entry["metrics"][word.replace(" ", "_")] = describe([float(row["verdict"] == word) for row in group], windows)
    entry["quantiles"] = {}
    for name in NUMBERS:
        entry["metrics"][name] = describe([row[name] for row in group], windows)
        entry["quantiles"][name] = spread(known(group, name)) or dict.fromkeys(("p10", "median", "p90"))
    return entry


def _verdict(row: Row) -> str:
    if row["status"] != "ok":
        return row["status"]
    if len(row["verdicts"]) > 1:
        return ", ".join(f"{word} {count}" for word, count in row["verdicts"].items())
    return f"{next(iter(row['verdicts']))} {row['values']}/{row['values']}"


def _ends(name: str) -> Callable[[Row], str]:
    """The outer quantiles of a number, where they differ."""

    def cell(row: Row) -> str:
        spread = row.get("quantiles", {}).get(name, {})
        if spread.get("median") is None:
            return ""
        low, high = brief(spread["p10"]), brief(spread["p90"])
        return "" if low == high else f"{low} – {high}"

    return cell


def _at(shared: Mapping[str, object]) -> Column:
    """The parameters of a statement that the others of its table do not share."""

    def own(row: Row) -> str:
        return at_label({name: value for name, value in row["at"].items() if name not in shared}, row["method"])

    return Column("at", own, "parameters of the statement", key=True)


PLACES = (
    Column("method", method_label, key=True),
    *(Column(name, f"{{{name}}}", key=True) for name in ("layer", "n", "d")),
)
QUANTILES = "median over heads and windows"
SLACK = "factor between measured and bound, above 1 where the promise holds; none of a bound of 0"
SIDES = "bound over measured where at most the bound is promised, measured over bound where at least"
VERDICTS_IN_WORDS = (
    "the first that applies: assumption not met, so nothing is promised; vacuous, the bound is true of every matrix "
    "or of an approximation by zeros; violated, the entire measured interval is beyond the bound, rounding included; "
    "undecided, a part of it is; holds"
)
ENDS = "quantiles, where they differ"
NUMBER_COLUMNS = (
    Column("verdict", _verdict, "with the number of heads", more=VERDICTS_IN_WORDS),
    Column("measured", "{quantiles[measured][median]:brief}", QUANTILES),
    Column("measured p10 – p90", _ends("measured"), ENDS, spare=1),
    Column("bound", "{quantiles[bound][median]:brief}", QUANTILES),
    Column("bound p10 – p90", _ends("bound"), ENDS, spare=3),
    Column("slack", "{quantiles[slack][median]:brief}", SLACK, more=SIDES),
    Column("slack p10 – p90", _ends("slack"), ENDS, spare=2),
)
TEXTS = {  # columns where a table has several
    "assumption": Column("assumption", "{assumption}", "what the theorem assumes", spare=4),
    "promise": Column("promise", "{promise}", "what the theorem promises", spare=5),
}
COLUMNS = (*PLACES, _at({}), *NUMBER_COLUMNS, *TEXTS.values())


def _tables(summary: Sequence[Row]) -> list[Table]:
    """One table per (source, theorem): its statement, then a line for each case that was evaluated.

    Theorems that were skipped everywhere have no table, but a line below the last one for each reason.
    """
    groups = grouped_by(summary, "source", "theorem")
    evaluated = [group for group in groups if any(row["status"] != "skipped" for row in group)]
    if not evaluated:
        return [_table(group) for group in groups]
    *tables, last = [_table(group) for group in evaluated]
    names: dict[str, dict[str, None]] = {}
    for row in (row for group in groups if group not in evaluated for row in group):
        names.setdefault(row["reason"] or "", {})[row["theorem"]] = None
    skipped = [f"– skipped, {reason}: {', '.join(theorems)}" for reason, theorems in names.items()]
    return [*tables, replace(last, notes=[*last.notes, *skipped])]


def _table(group: Sequence[Row]) -> Table:
    first = group[0]
    shared = _shared_at(group)
    at = at_label(shared, first["method"])
    notes = [f"says: {first['says']}"] if first["says"] else []
    notes += [f"at: {at}"] if at else []
    texts = {name: list(dict.fromkeys(known(group, name))) for name in TEXTS}
    for name, word in (("assumption", "assumes"), ("promise", "promises")):
        notes += [f"{word}: {texts[name][0]}"] if len(texts[name]) == 1 else []
    several = [column for name, column in TEXTS.items() if len(texts[name]) > 1]
    heads = counted(group) if any(row["heads"] for row in group) else ""
    caption = joined(f"{first['theorem']} · {first['paper']}", source_heading(first), heads)
    notes += [*too_few(group), *reasons(group, _name)]
    return table_of(caption, group, [*PLACES, _at(shared), *NUMBER_COLUMNS, *several], notes)


def too_few(rows: Sequence[Row]) -> list[str]:
    """A note on undecided probabilities of a few seeds, none of which could be shown to keep its δ."""
    undecided = [row for row in rows if "undecided" in row["verdicts"] and "delta" in row["at"]]
    return too_few_repeats((row["at"]["delta"], row["seeds"], least_trials(row["at"]["delta"])) for row in undecided)


def _shared_at(group: Sequence[Row]) -> dict[str, object]:
    given = [row["at"] for row in group if row["status"] == "ok"]
    if len(given) < 2:
        return {}
    return {name: value for name, value in given[0].items() if all(at.get(name) == value for at in given)}


def _name(row: Row) -> str:
    budget = "" if row["d"] is None else f"d = {row['d']}"
    return " ".join(filter(None, [method_label(row), f"layer {row['layer']}", f"n = {row['n']}", budget]))
