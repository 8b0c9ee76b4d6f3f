"""What ``attnprobe theory`` shows: rows per head, their summary per statement, and tables in every format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...records.file import strict_json, unspelt
from ...tables.labels import at_label, identity, scale_of, source_heading, source_labels
from ...tables.numbers import brief, method_label
from ...tables.statistics import describe, quantiles
from ...tables.table import Table
from ...tables.view import Figure, View
from ..base import Recorded

__all__ = ["theory_legend", "theory_rows", "theory_summary", "theory_tables", "view"]

Record = Mapping[str, Any]
Row = dict[str, Any]

VERDICTS = ("holds", "violated", "vacuous", "assumption not met")
NUMBERS = ("measured", "bound", "slack")
LOST = "nothing to compare: what was measured or its bound is NaN"
SPREAD = "p10 – p90"
SPREADS = tuple(f"{name}{of}" for name in NUMBERS for of in ("", f" {SPREAD}"))
HEADINGS = ("method", "layer", "n", "d", "at", "verdict", *SPREADS, "assumption", "promise")
SPARE = ("promise", "assumption", *(f"{name} {SPREAD}" for name in ("bound", "slack", "measured")))  # left out first
LEGEND = (
    "measured, bound, slack: median and p10 – p90 over heads and windows, blank where there is none. slack: the room "
    "that is left, bound over measured where at most the bound is promised, measured over bound where at least. "
    "verdict, of so many heads, the first that applies: assumption not met, so nothing is promised; vacuous, the bound "
    "promises no more than is true of every matrix; violated, beyond the measured interval and its rounding; holds."
)


def view(recorded: Recorded) -> View:
    """What records of ``attnprobe theory`` show."""
    from .figures import theory_figures

    records, title = recorded.records, recorded.header.title
    rows = theory_rows(records)
    summary = theory_summary(rows)
    tables = theory_tables(summary)
    draw = lambda folder: theory_figures(records, title, folder)
    return View(
        "theory",
        recorded.header,
        rows,
        tables,
        theory_legend(tables),
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
    labels = source_labels(records)
    rows = []
    for record in records:
        names = ("theorem", "paper", "says", "method", "options", "target", "layer", "window", "n")
        place = {name: record.get(name) for name in names}
        place["weights"] = (record.get("source") or {}).get("weights")
        place["source"] = labels[identity(record.get("source"))]
        place["scale_inputs"] = scale_of(record.get("source"))
        for finding in record["findings"]:
            shared = {name: finding.get(name) for name in ("d", "at", "assumption", "promise", "sense")}
            for index, head in enumerate(record["heads"]):
                row = {**place, **shared, "head": head, **_of_head(finding, index), "status": "ok", "reason": None}
                rows.append(row if row["verdict"] is not None else {**row, "status": "diverged", "reason": LOST})
        empty = {**place, **dict.fromkeys(("assumption", "promise", "verdict", "head")), "at": {}}
        lost = [(one["d"], "skipped", one["reason"]) for one in record.get("refused") or ()]
        if record["status"] not in ("ok", "diverged"):  # what diverged stands among the findings
            lost.append((None, record["status"], record.get("reason")))
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

    ``verdicts`` counts them; ``metrics`` describes `THEORY_METRICS`, of which the first four are shares of heads, and
    ``quantiles`` those of the others, infinite numbers included, null where there is no number.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        who = (row["source"], row["theorem"], row["method"], strict_json(row["options"] or {}))
        lost = (row["status"], row["reason"]) if row["status"] != "ok" else ()
        groups.setdefault((*who, row["layer"], row["n"], row["d"], strict_json(row["at"]), *lost), []).append(row)
    return [_summary(some) for some in groups.values()]


def _summary(some: Sequence[Row]) -> Row:
    first = some[0]
    names = (
        "theorem",
        "paper",
        "says",
        "method",
        "options",
        "target",
        "weights",
        "source",
        "scale_inputs",
        "layer",
        "n",
        "d",
        "at",
        "assumption",
        "promise",
        "sense",
        "status",
        "reason",
    )
    found = {name: first.get(name) for name in names} | {"requested": True, "cells": len({r["window"] for r in some})}
    if first["status"] != "ok":
        return found | {"heads": 0, "windows": found["cells"], "values": 0, "verdicts": {}, "metrics": {}}
    windows = [row["window"] for row in some]
    metrics = {
        word.replace(" ", "_"): describe([float(row["verdict"] == word) for row in some], windows) for word in VERDICTS
    }
    numbers = {name: [unspelt(row[name]) for row in some] for name in NUMBERS}
    metrics |= {name: describe(values, windows) for name, values in numbers.items()}
    said = [row["verdict"] for row in some]
    return found | {
        "heads": len({row["head"] for row in some}),
        "windows": found["cells"],
        "values": len(some),
        "verdicts": {word: said.count(word) for word in VERDICTS if word in said},
        "quantiles": {name: _quantiles(values) for name, values in numbers.items()},
        "metrics": metrics,
    }


def _quantiles(values: Sequence[float]) -> dict[str, float | None]:
    """Those of the numbers among the values."""
    kept = [value for value in values if not math.isnan(value)]
    return quantiles(kept) if kept else dict.fromkeys(("p10", "median", "p90"))


def theory_tables(summary: Sequence[Row]) -> list[Table]:
    """One table per (source, theorem): what it says, then a line for each statement that was evaluated."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in summary:
        groups.setdefault((source_heading(row), row["theorem"]), []).append(row)
    return [_table(source, some) for (source, _), some in groups.items()]


def _table(source: str, some: Sequence[Row]) -> Table:
    first = some[0]
    notes = [] if not first["says"] else [f"says: {first['says']}"]
    shared = _shared_at(some)
    if told := at_label({**first, "at": shared}):
        notes.append(f"at: {told}")
    texts = {}
    for name, word in (("assumption", "assumes"), ("promise", "promises")):
        said = list(dict.fromkeys(row[name] for row in some if row[name]))
        if len(said) == 1:
            notes.append(f"{word}: {said[0]}")
        texts[name] = len(said) > 1
    for row in some:
        sign = {"ok": "", "skipped": "–"}.get(row["status"], "✗")
        who = " ".join(filter(None, [_method(row), f"layer {row['layer']}", f"n = {row['n']}", _budget(row)]))
        if sign and (note := f"{sign} {who}: {row['status']}, {row['reason']}") not in notes:
            notes.append(note)
    own = [{name: value for name, value in row["at"].items() if name not in shared} for row in some]
    lines = [_line({**row, "at": at}, texts) for row, at in zip(some, own, strict=True)]
    kept = [i for i in range(len(HEADINGS)) if any(line[i] for line in lines)]
    caption = " · ".join(filter(None, [f"{first['theorem']} · {first['paper']}", source, _counted(some)]))
    lines = [[line[i] for i in kept] for line in lines]
    return Table(caption, [HEADINGS[i] for i in kept], lines, notes, SPARE)


def _shared_at(some: Sequence[Row]) -> dict[str, Any]:
    """The parameters that all statements have in common, where there are several."""
    given = [row["at"] for row in some if row["status"] == "ok"]
    if len(given) < 2:
        return {}
    return {name: value for name, value in given[0].items() if all(at.get(name) == value for at in given)}


def _line(row: Row, texts: Mapping[str, bool]) -> list[str]:
    """One statement as the cells of a line, in the order of `HEADINGS`."""
    line = [_method(row), str(row["layer"]), str(row["n"]), "" if row["d"] is None else str(row["d"]), at_label(row)]
    if row["status"] != "ok":
        return [*line, row["status"], *[""] * 8]
    spread = row["quantiles"]
    line.append(
        ", ".join(f"{word} {count}" for word, count in row["verdicts"].items())
        if len(row["verdicts"]) > 1
        else f"{next(iter(row['verdicts']))} {row['values']}/{row['values']}"
    )
    for name in NUMBERS:
        known = spread[name]["median"] is not None
        low, middle, high = (brief(spread[name][at]) if known else "" for at in ("p10", "median", "p90"))
        line += [middle, "" if low == high else f"{low} – {high}"]
    return [*line, *((row[name] or "" if texts[name] else "") for name in ("assumption", "promise"))]


def _method(row: Row) -> str:
    return method_label(row) if row["method"] else ""


def _budget(row: Row) -> str:
    return "" if row["d"] is None else f"d = {row['d']}"


def _counted(some: Sequence[Row]) -> str:
    heads, windows = (max(row[name] for row in some) for name in ("heads", "windows"))
    return f"{heads} head{'s' * (heads != 1)} x {windows} window{'s' * (windows != 1)}" if heads else ""


def theory_legend(tables: Sequence[Table]) -> str:
    """What the columns mean, where there is a number."""
    return LEGEND if any("measured" in table.headings for table in tables) else ""
