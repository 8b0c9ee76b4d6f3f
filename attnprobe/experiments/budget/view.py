"""The view of ``attnprobe budget``: rows per head, their summary per layer, tables, and the files of budgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...records.file import SCHEMA
from ...tables.labels import file_tag, identity, source_heading, source_labels
from ...tables.long import CELL, SOURCE, STATE, Row, describe, long_rows, median, summarised
from ...tables.methods import YARDSTICKS
from ...tables.numbers import beyond_limit, method_label, per_cent
from ...tables.results import Value
from ...tables.table import Best, Column, Table, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .record import SHAPE, BudgetRecord

if TYPE_CHECKING:
    from ...records.shapes import Source

MOST_NOTES = 8  # heads whose error does not fall
SEARCH = ("metric", "delta", "seeds", "needed", "least", "most", "resolution", "scan")
OF_HEAD = ("epsilon", "head", "d", "below", "error", "held", "lower", "upper", "holds_from", "fails_at")
FIELDS = tuple(
    dict.fromkeys((*CELL, *SEARCH, *SOURCE, *OF_HEAD, "d_over_n", "no_counterexample", "fails_at_error", *STATE))
)
SEARCHED = ("source", "method", "options", "target", "metric", "n", "epsilon", "layer")  # of an entry of the summary
WEAKEST = ("head", "window", "held", "lower", "upper")
COUNTEREXAMPLE = ("head", "window", "d", "fails_at", "fails_at_error", "holds_from")


def _budget(name: str) -> Callable[[Row], str]:
    """A budget: ``> d`` if none up to d is enough, ``≤ d`` if smaller ones were not tried."""

    def cell(row: Row) -> str:
        if not row["heads"]:
            return ""
        d = row["range"][name]
        if math.isinf(d):
            return f"> {row['most']}"
        return f"≤ {d:g}" if 1 < d == row["least"] else f"{d:g}"

    return cell


def _share(row: Row) -> str:
    if not row["heads"]:
        return ""
    middle = row["range"]["median"]
    return f"> {per_cent((row['most'] or 0) / row['n'])}" if math.isinf(middle) else per_cent(middle / row["n"])


def _median(row: Row) -> float | None:
    """The median budget; None if half of the heads have none or nothing was measured."""
    middle = row["range"]["median"] if row["heads"] else math.inf
    return middle if math.isfinite(middle) else None


def _rivals(row: Row) -> Hashable | None:
    """Methods are compared at one ε, layer and n."""
    competes = row["status"] == "ok" and row["method"] not in YARDSTICKS
    return (row["epsilon"], row["layer"], row["n"]) if competes else None


ENOUGH = "smallest d with an error ≤ ε, over heads and windows"
TRIED = "in at least 1 − δ of the seeds; > d: no budget up to d is enough; ≤ d: smaller ones were not tried"
HELD = "the fewest seeds of a head that hold at d"
CHOSEN = "with the exact interval of their probability; these seeds also chose d, so it is on the high side"
COLUMNS: tuple[Column, ...] = (
    Column("method", method_label, key=True),
    Column("ε", "{epsilon:g}", "the largest error allowed", key=True),
    Column("layer", "{layer}", key=True),
    Column("n", "{n}", key=True),
    Column("status", lambda row: "" if row["heads"] else row["status"]),
    Column("d min", _budget("min"), ENOUGH, spare=1, more=TRIED),
    Column("d median", _budget("median"), ENOUGH, more=TRIED, best=Best(lambda row: Value.of(_median(row)))),
    Column("d max", _budget("max"), ENOUGH, more=TRIED),
    Column("median d/n", _share, "the median d over the number of tokens", spare=2),
    Column("unreached", "{unreached}/{values}", "heads without such a d"),
    Column(
        "counterexamples",
        "{counterexamples}/{values}",
        "heads whose error exceeds ε again at a larger d",
        more="of the budgets that were tried; others may exceed ε too",
    ),
    Column("seeds", "{weakest[held]}/{seeds}", HELD, spare=3, more=CHOSEN),
    Column("95 % interval", "{weakest[lower]:3} – {weakest[upper]:3}", HELD, spare=4, more=CHOSEN),
)


def view(recorded: Recorded[BudgetRecord]) -> View:
    """The view of the records of ``attnprobe budget``."""
    from .figures import budget_figures

    rows = budget_rows(recorded.records)
    summary = budget_summary(rows)
    draw = partial(budget_figures, rows, recorded.drawing)
    return View(
        "budget",
        recorded.header,
        rows,
        [_table(group) for group in grouped_by(summary, "source", "target", "metric")],
        title="The smallest budget that is enough",
        summary=summary,
        judged=summary,
        figures={"budget": Figure("budget", draw, "no head has a budget, so there is nothing to draw")},
        files=budget_files(recorded.records),
    )


def budget_rows(records: Sequence[BudgetRecord]) -> list[Row]:
    """The rows of the JSON contract: one per ε and head. A cell without results is one row with its reason.

    ``fails_at`` lists the budgets above d at which too few seeds hold, and ``fails_at_error`` the errors there.
    ``no_counterexample`` is true if ``fails_at`` is empty.
    """
    rows = []
    for tried in long_rows(records, SHAPE, (*CELL, *SEARCH)):
        row: Row = {name: tried.get(name) for name in FIELDS}
        if row["head"] is not None:
            row["fails_at_error"] = [tried.get(f"tried[{d}].error") for d in row["fails_at"]]
        if row["d"] is not None:
            row |= {"d_over_n": row["d"] / row["n"], "no_counterexample": not row["fails_at"]}
        rows.append(row)
    return rows


def budget_summary(rows: Sequence[Row]) -> list[Row]:
    """One entry per (source, method with options, target, n, metric, ε, layer), over heads and windows.

    ``metrics`` describes the metrics of gates; the last two are shares of heads. ``range`` holds the smallest, median
    and largest d, where a head without a d counts as infinite. ``weakest`` is the head with the fewest seeds that hold.
    """
    summary = []
    for searched in grouped_by(rows, *SEARCHED):
        by = SEARCHED if searched[0]["head"] is not None else (*SEARCHED, "reason")
        summary += summarised(searched, by, _statistics)
    return summary


def _statistics(group: list[Row]) -> Row:
    first, windows = group[0], [row["window"] for row in group]
    entry: Row = {
        **{name: first[name] for name in SEARCH},
        "d": None,
        "at": {} if first["epsilon"] is None else {"epsilon": first["epsilon"]},
        "requested": True,
        "cells": len(set(windows)),
    }
    if first["head"] is None:
        return {**entry, "heads": 0, "values": 0, "metrics": {}}
    unreached = [float(row["d"] is None) for row in group]
    counterexamples = [float(bool(row["fails_at"])) for row in group]
    d = sorted(math.inf if row["d"] is None else row["d"] for row in group)
    held = [row for row in group if row["lower"] is not None]
    weakest = min(held, key=lambda row: row["held"] or 0, default=None)
    return {
        **entry,
        "values": len(group),
        "range": {"min": d[0], "median": median(d), "max": d[-1]},
        "unreached": int(sum(unreached)),
        "counterexamples": int(sum(counterexamples)),
        "weakest": weakest and {name: weakest[name] for name in WEAKEST},
        "counterexample_heads": [{name: row[name] for name in COUNTEREXAMPLE} for row in group if row["fails_at"]],
        "metrics": {
            "d": describe([row["d"] for row in group], windows),
            "d_over_n": describe([row["d_over_n"] for row in group], windows),
            "unreached": describe(unreached, windows),
            "counterexamples": describe(counterexamples, windows),
        },
    }


def _table(group: Sequence[Row]) -> Table:
    """The table of one (source, target, metric), a line for each method, ε, length and layer."""
    first = group[0]
    steps = "every budget" if first["resolution"] == 1 else f"steps of {first['resolution']:g}"
    caption = joined(
        f"smallest d with {first['metric']} ≤ ε",
        source_heading(first),
        "" if first["target"] == "softmax" else f"target {first['target']}",
        counted(group) if any(row["heads"] for row in group) else "",
        f"{steps} scanned" if first["scan"] else steps,
        f"δ = {first['delta']:g}",
    )
    return table_of(caption, group, COLUMNS, _notes(group), rivals=_rivals)


def _name(row: Row) -> str:
    return f"{method_label(row)} layer {row['layer']} n = {row['n']}"


def _notes(group: Sequence[Row]) -> list[str]:
    """Cells without results, then heads whose error exceeds ε again."""
    lines = [_counterexample(row, one) for row in group for one in row.get("counterexample_heads", ())]
    more = [f"counterexamples: {len(lines) - MOST_NOTES} heads more (`--format json` has all)"]
    return reasons(group, _name) + lines[:MOST_NOTES] + more * (len(lines) > MOST_NOTES)


def _counterexample(row: Row, head: Row) -> str:
    window = f" window {head['window']}" if row["windows"] > 1 else ""
    budgets = list(zip(head["fails_at"], head["fails_at_error"], strict=True))
    beyond = ", ".join(f"{beyond_limit(error, row['epsilon'])} at {d}" for d, error in budgets[:3])
    more = f" and at {len(budgets) - 3} more" if len(budgets) > 3 else ""
    holds = "" if head["holds_from"] is None else f"; at most ε from {head['holds_from']} on"
    place = f"{_name(row)} ε = {row['epsilon']:g} head {head['head']}{window}"
    return f"counterexample: {place}: d = {head['d']}, but {beyond}{more}{holds}"


def budget_files(records: Sequence[BudgetRecord]) -> dict[str, dict[str, Any]]:
    """The contents of each ``budgets-METHOD.json``, by name: the d of every layer and head for one method and ε.

    A head has the largest d over windows, or null if one window has none. If a run has several files of a method, their
    names also contain what they differ in: ε, n, target, metric, source.
    """
    rows = [row for row in budget_rows(records) if row["head"] is not None]
    labels = source_labels(records)
    facts = {labels[identity(record["source"])]: record["source"] for record in records}
    own = {record["method"]: record.get("method_file") for record in records}
    hashes = {name: {"method_sha256": file["sha256"]} if file else {} for name, file in own.items()}
    varying = [name for name in TAGS if len({row[name] for row in rows}) > 1]
    files = {}
    for group in grouped_by(rows, "method", "options", *TAGS):
        first = group[0]
        tags = "".join(file_tag(TAGS[name](first[name])) for name in varying)
        contents = _file(group, facts[first["source"]]) | hashes[first["method"]]
        files[f"budgets{file_tag(method_label(first))}{tags}.json"] = contents
    return files


TAGS: dict[str, Callable[[Any], str]] = {  # the parts of file names
    "source": str,
    "target": str,
    "metric": str,
    "n": lambda n: f"n{n}",
    "epsilon": lambda epsilon: f"epsilon{epsilon:g}",
}


def _file(group: Sequence[Row], source: Source) -> dict[str, Any]:
    first = group[0]
    heads = []
    for rows in sorted(grouped_by(group, "layer", "head"), key=lambda rows: (rows[0]["layer"], rows[0]["head"])):
        d = [row["d"] for row in rows if row["d"] is not None]
        place = {name: rows[0][name] for name in ("layer", "head")}
        sure = all(row["no_counterexample"] for row in rows)
        lost = {"d": None, "no_counterexample": None}
        heads.append(place | ({"d": max(d), "no_counterexample": sure} if len(d) == len(rows) else lost))
    return {
        "schema": SCHEMA,
        **{name: first[name] for name in ("method", "options", "metric", "epsilon", "n")},
        **{name: source.get(name) for name in ("model", "weights")},
        **{name: first[name] for name in ("target", "scale_inputs", "delta", "seeds", "needed")},
        "windows": len({row["window"] for row in group}),
        "resolution": first["resolution"],
        "d_max": first["most"],
        "budgets": heads,
    }
