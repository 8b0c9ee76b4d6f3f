"""What ``attnprobe theory`` shows: rows per head, their summary per statement, and tables in every format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...records.file import unspelt
from ...tables.labels import at_label, source_heading
from ...tables.numbers import brief, method_label
from ...tables.rows import Quantiles
from ...tables.statistics import describe, quantiles
from ...tables.table import Column, Table, counted, grouped_by, joined, places, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded

__all__ = ["theory_rows", "theory_summary", "theory_tables", "view"]

Record = Any
Row = Any

VERDICTS = ("holds", "violated", "vacuous", "assumption not met")
PLACE = ("theorem", "paper", "says", "method", "options", "target", "layer", "window", "n")
WHERE = ("theorem", "paper", "says", "method", "options", "target", "weights", "source", "scale_inputs")
STATEMENT = (*WHERE, "layer", "n", "d", "at", "assumption", "promise", "sense", "status", "reason")
NUMBERS = ("measured", "bound", "slack")
LOST = "nothing to compare: what was measured or its bound is NaN"


def view(recorded: Recorded) -> View:
    """What records of ``attnprobe theory`` show."""
    from .figures import theory_figures

    records, title = recorded.records, recorded.header.title
    rows = theory_rows(records)
    summary = theory_summary(rows)
    draw = lambda folder: theory_figures(records, title, folder)
    return View(
        "theory",
        recorded.header,
        rows,
        theory_tables(summary),
        title="What the theorems promise, and what is",
        summary=summary,
        judged=summary,
        figures={"theory": Figure("theory", draw, "nothing was found that could be drawn")},
    )


def theory_rows(records: Iterable[Record]) -> list[Row]:
    """The rows of the JSON contract: one per finding and head; a cell or a budget without any is one with its reason.

    An infinite number is ``"inf"``, NaN null; where a statement has no verdict because of it, the row is ``diverged``.
    ``details`` holds the finding's numbers of that head; its curves stand in the records alone.
    """
    records = list(records)
    rows: list[Row] = []
    for record, place in zip(records, places(records, *PLACE), strict=True):
        status, reason = place.pop("status"), place.pop("reason")
        for finding in record["findings"]:
            shared = {name: finding.get(name) for name in ("d", "at", "assumption", "promise", "sense")}
            for index, head in enumerate(record["heads"]):
                row = {**place, **shared, "head": head, **_of_head(finding, index), "status": "ok", "reason": None}
                rows.append(row if row["verdict"] is not None else {**row, "status": "diverged", "reason": LOST})
        empty = {**place, **dict.fromkeys(("assumption", "promise", "verdict", "head")), "at": {}}
        lost = [(one["d"], "skipped", one["reason"]) for one in record.get("refused") or ()]
        if status not in ("ok", "diverged"):  # what diverged stands among the findings
            lost.append((None, status, reason))
        rows += [{**empty, "d": d, "status": status, "reason": reason} for d, status, reason in lost]
    return rows


def _of_head(finding: Mapping[str, Any], index: int) -> Row:
    """What a finding says of one head."""
    names = ("met", "bound", "measured", "lower", "upper", "rounding", "vacuous", "slack", "verdict")
    row = {name: None if finding[name] is None else finding[name][index] for name in names}
    details = {name: values[index] for name, values in sorted(finding["details"].items())}
    return row | {"details": {name: value for name, value in details.items() if not isinstance(value, list)}}


def theory_summary(rows: Iterable[Row]) -> list[Row]:
    """One entry per (source, theorem, method with options, layer, n, d, at), over heads and windows.

    ``verdicts`` counts them; ``metrics`` describes the metrics of gates, of which the first four are shares of heads,
    and ``quantiles`` those of the others, infinite numbers included, null where there is no number.
    """
    place = ("source", "theorem", "method", "options", "layer", "n", "d", "at", "status", "reason")
    return [_summary(some) for some in grouped_by(rows, *place)]


def _summary(some: Sequence[Row]) -> Row:
    first = some[0]
    windows = [row["window"] for row in some]
    cells = len(set(windows))
    found = {name: first.get(name) for name in STATEMENT} | {"requested": True, "cells": cells}
    if first["status"] != "ok":
        return found | {"heads": 0, "windows": cells, "values": 0, "verdicts": {}, "metrics": {}}
    metrics = {
        word.replace(" ", "_"): describe([float(row["verdict"] == word) for row in some], windows) for word in VERDICTS
    }
    numbers = {name: [unspelt(row[name]) for row in some] for name in NUMBERS}
    metrics |= {name: describe(values, windows) for name, values in numbers.items()}
    said = [row["verdict"] for row in some]
    return found | {
        "heads": len({row["head"] for row in some}),
        "windows": cells,
        "values": len(some),
        "verdicts": {word: said.count(word) for word in VERDICTS if word in said},
        "quantiles": {name: _quantiles(values) for name, values in numbers.items()},
        "metrics": metrics,
    }


def _quantiles(values: Sequence[float]) -> Quantiles | dict[str, None]:
    """Those of the numbers among the values."""
    kept = [value for value in values if not math.isnan(value)]
    return quantiles(kept) if kept else dict.fromkeys(("p10", "median", "p90"))


def theory_tables(summary: Sequence[Row]) -> list[Table]:
    """One table per (source, theorem): what it says, then a line for each statement that was evaluated."""
    return [_table(some) for some in grouped_by(summary, "source", "theorem")]


def _table(some: Sequence[Row]) -> Table:
    first = some[0]
    shared = _shared_at(some)
    at = at_label(shared, first["method"])
    notes = [f"says: {first['says']}"] if first["says"] else []
    notes += [f"at: {at}"] if at else []
    texts = {}
    for name, word in (("assumption", "assumes"), ("promise", "promises")):
        texts[name] = list(dict.fromkeys(row[name] for row in some if row[name]))
        notes += [f"{word}: {texts[name][0]}"] if len(texts[name]) == 1 else []
    columns = [
        *PLACES,
        Column[Row]("at", lambda row: at_label(_own_at(row, shared), row["method"])),
        *NUMBER_COLUMNS,
        *(Column(name, _text(name), spare=spare) for name, spare in TEXTS.items() if len(texts[name]) > 1),
    ]
    heads = counted(some) if any(row["heads"] for row in some) else ""
    caption = joined(f"{first['theorem']} · {first['paper']}", source_heading(first), heads)
    return table_of(caption, some, columns, notes + reasons(some, _name))


def _shared_at(some: Sequence[Row]) -> dict[str, Any]:
    """The parameters that all statements have in common, where there are several."""
    given = [row["at"] for row in some if row["status"] == "ok"]
    if len(given) < 2:
        return {}
    return {name: value for name, value in given[0].items() if all(at.get(name) == value for at in given)}


def _own_at(row: Row, shared: Mapping[str, object]) -> dict[str, object]:
    """The parameters of a statement that it has for itself."""
    return {name: value for name, value in row["at"].items() if name not in shared}


def _method(row: Row) -> str:
    return method_label(row) if row["method"] else ""


def _name(row: Row) -> str:
    budget = "" if row["d"] is None else f"d = {row['d']}"
    return " ".join(filter(None, [_method(row), f"layer {row['layer']}", f"n = {row['n']}", budget]))


def _verdict(row: Row) -> str:
    if row["status"] != "ok":
        return row["status"]
    if len(row["verdicts"]) > 1:
        return ", ".join(f"{word} {count}" for word, count in row["verdicts"].items())
    return f"{next(iter(row['verdicts']))} {row['values']}/{row['values']}"


def _ends(name: str, *ends: str) -> Callable[[Row], str]:
    """A quantile, or two where they differ."""

    def cell(row: Row) -> str:
        spread = row.get("quantiles", {}).get(name, {})
        if spread.get("median") is None:
            return ""
        texts = [brief(spread[end]) for end in ends]
        return "" if len(texts) > len(set(texts)) else " – ".join(texts)

    return cell


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: (row[name] or "") if row["status"] == "ok" else ""


PLACES: tuple[Column[Row], ...] = (Column("method", _method), *map(Column.of, ("layer", "n", "d")))
QUANTILES = "measured, bound, slack: median and p10 – p90 over heads and windows, blank where there is none"
SLACK = (
    "slack: the room that is left, bound over measured where at most the bound is promised, measured over bound where "
    "at least"
)
VERDICT = (
    "verdict, of so many heads, the first that applies: assumption not met, so nothing is promised; vacuous, the bound "
    "promises no more than is true of every matrix; violated, beyond the measured interval and its rounding; holds"
)
NUMBER_COLUMNS: tuple[Column[Row], ...] = (
    Column("verdict", _verdict, VERDICT),
    Column("measured", _ends("measured", "median"), QUANTILES),
    Column("measured p10 – p90", _ends("measured", "p10", "p90"), spare=1),
    Column("bound", _ends("bound", "median")),
    Column("bound p10 – p90", _ends("bound", "p10", "p90"), spare=3),
    Column("slack", _ends("slack", "median"), SLACK),
    Column("slack p10 – p90", _ends("slack", "p10", "p90"), spare=2),
)
TEXTS = {"assumption": 4, "promise": 5}  # columns where a table has several, and how readily they are left out
