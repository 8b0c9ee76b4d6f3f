"""What ``attnprobe budget`` shows: rows per head, their summary per layer, tables, and the files that budgets go to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...records.file import SCHEMA, strict_json
from ...tables.labels import file_tag, identity, scale_of, source_heading, source_labels
from ...tables.numbers import brief, method_label, per_cent, significant
from ...tables.statistics import describe
from ...tables.table import Table
from ...tables.view import Figure, View
from ..base import Recorded

__all__ = [
    "budget_files",
    "budget_legend",
    "budget_rows",
    "budget_summary",
    "budget_tables",
    "view",
]

Record = Mapping[str, Any]
Row = dict[str, Any]

HEADINGS = (
    "method",
    "ε",
    "layer",
    "n",
    "d min",
    "d median",
    "d max",
    "median d/n",
    "unreached",
    "counterexamples",
    "seeds",
    "95 % interval",
)
BUDGET_SPARE = ("95 % interval", "seeds", "median d/n", "d min")  # left out first
PER_HEAD = ("d", "below", "error", "held", "lower", "upper", "settled")
MOST_NOTES = 8  # heads whose error does not fall
LEGEND = (
    "d: the smallest budget tried at which the error of at least 1 − δ of the seeds is at most ε; min, median and max "
    "over heads and windows; > d: no budget up to d is enough; ≤ d: smaller ones were not tried. unreached: heads "
    "without one. counterexamples: heads whose error exceeds ε again at a larger budget that was tried, which says "
    "nothing of other budgets. seeds: the fewest that hold at d, of any head, and the exact interval of their "
    "probability there; these seeds also chose d, so it is on the high side."
)


def view(recorded: Recorded) -> View:
    """What records of ``attnprobe budget`` show."""
    from .figures import budget_figures

    records, title = recorded.records, recorded.header.title
    rows = budget_rows(records)
    summary = budget_summary(rows)
    tables = budget_tables(summary)
    draw = lambda folder: budget_figures(records, title, folder)
    return View(
        "budget",
        recorded.header,
        rows,
        tables,
        budget_legend(tables),
        title="The smallest budget that is enough",
        summary=summary,
        judged=summary,
        figures={"budget": Figure("budget", draw, "nothing was found that could be drawn")},
        files=budget_files(records),
    )


def budget_rows(records: Iterable[Record]) -> list[Row]:
    """The rows of the JSON contract: one per ε and head; a cell in which nothing was found is one with its reason.

    ``again`` are the larger budgets tried at which too few seeds hold, and ``again_error`` the error there;
    ``no_counterexample`` says that there is none among those tried.
    """
    records = list(records)
    labels = source_labels(records)
    rows = []
    for record in records:
        names = (
            "method",
            "options",
            "target",
            "layer",
            "window",
            "n",
            "metric",
            "delta",
            "seeds",
            "needed",
            "least",
            "most",
            "resolution",
            "scan",
        )
        place = {name: record.get(name) for name in names}
        place["weights"] = (record.get("source") or {}).get("weights")
        place["source"] = labels[identity(record.get("source"))]
        place["scale_inputs"] = scale_of(record.get("source"))
        state = {"status": record["status"], "reason": record.get("reason")}
        errors = {
            (one["d"], head): error
            for one in record["tried"]
            for head, error in zip(one["heads"], one["error"], strict=True)
        }
        for found in record["found"]:
            for index, head in enumerate(record["heads"]):
                row = {**place, "epsilon": found["epsilon"], "head": head}
                row |= {name: found[name][index] for name in PER_HEAD}
                again = found["again"][index]
                row["d_over_n"] = None if row["d"] is None else row["d"] / record["n"]
                row["no_counterexample"] = None if row["d"] is None else not again
                rows.append({**row, "again": again, "again_error": [errors.get((d, head)) for d in again], **state})
        if not record["found"]:
            rows.append({**place, "epsilon": None, "head": None, **dict.fromkeys(PER_HEAD), **state})
    return rows


def budget_summary(rows: Iterable[Row]) -> list[Row]:
    """One entry per (source, method with options, target, n, metric, ε, layer), over heads and windows.

    ``metrics`` describes `BUDGET_METRICS`, the last two as shares of heads; ``range`` holds the least, median and
    largest d with a head that was not reached as infinite, and ``weakest`` the head of which the fewest seeds hold.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        who = (row["source"], row["method"], strict_json(row["options"] or {}), row["target"], row["metric"])
        lost = row["reason"] if row["head"] is None else None
        groups.setdefault((*who, row["n"], row["epsilon"], row["layer"], lost), []).append(row)
    return [_summary(some) for some in groups.values()]


def _summary(some: Sequence[Row]) -> Row:
    first = some[0]
    names = (
        "method",
        "options",
        "target",
        "weights",
        "source",
        "scale_inputs",
        "layer",
        "n",
        "metric",
        "epsilon",
        "delta",
        "seeds",
        "needed",
        "least",
        "most",
        "resolution",
        "scan",
    )
    windows = [row["window"] for row in some]
    worst = next((row for row in some if row["status"] != "ok"), first)
    found = {name: first.get(name) for name in names} | {
        "d": None,
        "at": {} if first["epsilon"] is None else {"epsilon": first["epsilon"]},
        "requested": True,
        "status": worst["status"],
        "reason": worst["reason"],
        "windows": len(set(windows)),
        "cells": len(set(windows)),
    }
    if first["head"] is None:
        return found | {"heads": 0, "values": 0, "metrics": {}}
    unreached = [float(row["d"] is None) for row in some]
    counterexamples = [float(bool(row["again"])) for row in some]
    metrics = {name: describe([row[name] for row in some], windows) for name in ("d", "d_over_n")}
    metrics |= {"unreached": describe(unreached, windows), "counterexamples": describe(counterexamples, windows)}
    d = sorted(math.inf if row["d"] is None else row["d"] for row in some)
    held = [row for row in some if row["lower"] is not None]
    weakest = min(held, key=lambda row: row["held"], default=None)
    return found | {
        "heads": len({row["head"] for row in some}),
        "values": len(some),
        "range": {"min": d[0], "median": (d[(len(d) - 1) // 2] + d[len(d) // 2]) / 2, "max": d[-1]},
        "unreached": int(sum(unreached)),
        "counterexamples": int(sum(counterexamples)),
        "weakest": weakest and {name: weakest[name] for name in ("head", "window", "held", "lower", "upper")},
        "again": [
            {name: row[name] for name in ("head", "window", "d", "again", "again_error", "settled")}
            for row in some
            if row["again"]
        ],
        "metrics": metrics,
    }


def budget_tables(summary: Sequence[Row]) -> list[Table]:
    """One table per (source, target, metric), a line for each method, ε, length and layer."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in summary:
        groups.setdefault((source_heading(row), row["target"], row["metric"]), []).append(row)
    return [_table(*place, some) for place, some in groups.items()]


def _table(source: str, target: str, metric: str, some: Sequence[Row]) -> Table:
    heads, windows = (max(row[name] for row in some) for name in ("heads", "windows"))
    counted = f"{heads} head{'s' * (heads != 1)} x {windows} window{'s' * (windows != 1)}" if heads else ""
    first = some[0]
    steps = "every budget" if first["resolution"] == 1 else f"steps of {first['resolution']:g}"
    steps += " scanned" if first["scan"] else ""
    target = "" if target == "softmax" else f"target {target}"
    caption = " · ".join(
        filter(None, [f"smallest d with {metric} ≤ ε", source, target, counted, steps, f"δ = {first['delta']:g}"])
    )
    lines = [_line(row) for row in some]
    kept = [i for i in range(len(HEADINGS)) if any(line[i] for line in lines)]
    lines = [[line[i] for i in kept] for line in lines]
    return Table(caption, [HEADINGS[i] for i in kept], lines, _notes(some), BUDGET_SPARE)


def _line(row: Row) -> list[str]:
    epsilon = "" if row["epsilon"] is None else f"{row['epsilon']:g}"
    who = [method_label(row), epsilon, str(row["layer"]), str(row["n"])]
    if not row["heads"]:
        return [*who, row["status"], *[""] * 7]
    lowest = row["least"] if row["least"] > 1 else None
    budget = lambda d: f"> {row['most']}" if math.isinf(d) else f"≤ {d:g}" if d == lowest else f"{d:g}"
    median, values, weakest = row["range"]["median"], row["values"], row["weakest"]
    share = f"> {per_cent(row['most'] / row['n'])}" if math.isinf(median) else per_cent(median / row["n"])
    ends = "" if weakest is None else " – ".join(significant(weakest[end], 3) for end in ("lower", "upper"))
    return [
        *who,
        *(budget(row["range"][name]) for name in ("min", "median", "max")),
        share,
        f"{row['unreached']}/{values}",
        f"{row['counterexamples']}/{values}",
        "" if weakest is None else f"{weakest['held']}/{row['seeds']}",
        ends,
    ]


def _notes(some: Sequence[Row]) -> list[str]:
    """Cells in which nothing was found, then heads whose error exceeds ε again."""
    notes, told = [], []
    for row in some:
        who = f"{method_label(row)} layer {row['layer']} n = {row['n']}"
        if row["status"] != "ok":
            notes.append(f"{'–' if row['status'] == 'skipped' else '✗'} {who}: {row['status']}, {row['reason']}")
        for one in row.get("again", ()):
            window = f" window {one['window']}" if row["windows"] > 1 else ""
            beyond = ", ".join(
                f"{brief(error)} at {d}" for d, error in list(zip(one["again"], one["again_error"], strict=True))[:3]
            )
            more = f" and at {len(one['again']) - 3} more" if len(one["again"]) > 3 else ""
            settled = "" if one["settled"] is None else f"; at most ε from {one['settled']} on"
            told.append(
                f"counterexample: {who} ε = {row['epsilon']:g} head {one['head']}{window}: d = {one['d']}, but "
                f"{beyond}{more}{settled}"
            )
    more = [f"counterexamples: {len(told) - MOST_NOTES} heads more (`--format json` has all)"]
    return list(dict.fromkeys(notes)) + told[:MOST_NOTES] + more * (len(told) > MOST_NOTES)


def budget_legend(tables: Sequence[Table]) -> str:
    """What the columns mean, where there is a number."""
    return LEGEND if any("d median" in table.headings for table in tables) else ""


def budget_files(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """What ``budgets-METHOD.json`` holds, by name: the d of every layer and head for one method and ε.

    Of several windows each head has the largest d, and none (null) where one window has none. The name also tells
    apart what several files of the run differ in: ε, n, target, metric, source.
    """
    records = list(records)
    rows = [row for row in budget_rows(records) if row["head"] is not None]
    labels = source_labels(records)
    facts = {labels[identity(record["source"])]: record["source"] for record in records}
    own = {record["method"]: record.get("method_file") for record in records}
    hashes = {name: {"method_sha256": file["sha256"]} if file else {} for name, file in own.items()}
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = (row["source"], row["target"], row["metric"], row["n"], row["epsilon"])
        groups.setdefault((method_label(row), *key), []).append(row)
    differ = [len({key[place] for key in groups}) > 1 for place in range(6)]
    written = (None, str, str, str, lambda n: f"n{n}", lambda epsilon: f"epsilon{epsilon:g}")
    files = {}
    for key, some in groups.items():
        tags = "".join(file_tag(written[place](key[place])) for place in range(1, 6) if differ[place])
        contents = hashes[some[0]["method"]]
        files[f"budgets{file_tag(key[0])}{tags}.json"] = _file(some, facts[key[1]]) | contents
    return files


def _file(some: Sequence[Row], source: Mapping[str, Any]) -> dict[str, Any]:
    first = some[0]
    heads: dict[tuple[int, int], list[Row]] = {}
    for row in some:
        heads.setdefault((row["layer"], row["head"]), []).append(row)
    found = []
    for (layer, head), rows in sorted(heads.items()):
        d = [row["d"] for row in rows]
        none_found = None if None in d else all(row["no_counterexample"] for row in rows)
        found.append(
            {"layer": layer, "head": head, "d": None if None in d else max(d), "no_counterexample": none_found}
        )
    return {
        "schema": SCHEMA,
        "method": first["method"],
        "options": first["options"],
        "metric": first["metric"],
        "epsilon": first["epsilon"],
        "n": first["n"],
        "model": source.get("model"),
        "weights": source.get("weights"),
        "target": first["target"],
        "scale_inputs": first["scale_inputs"],
        "delta": first["delta"],
        "seeds": first["seeds"],
        "needed": first["needed"],
        "windows": len({row["window"] for row in some}),
        "resolution": first["resolution"],
        "d_max": first["most"],
        "budgets": found,
    }
