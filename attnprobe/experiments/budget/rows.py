"""What records of ``attnprobe budget`` say: rows per head, and their summary per layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ...tables.statistics import describe
from ...tables.table import grouped_by, places

__all__ = ["budget_rows", "budget_summary"]

Record = Any
Row = Any
SEARCH = ("metric", "delta", "seeds", "needed", "least", "most", "resolution", "scan")
PLACE = ("method", "options", "target", "layer", "window", "n", *SEARCH)
SUMMARISED = (
    *("method", "options", "target", "weights", "source", "scale_inputs", "layer", "n", "metric", "epsilon"),
    *SEARCH[1:],
)
PER_HEAD = ("d", "below", "error", "held", "lower", "upper", "settled")


def budget_rows(records: Iterable[Record]) -> list[Row]:
    """The rows of the JSON contract: one per ε and head; a cell in which nothing was found is one with its reason.

    ``again`` are the larger budgets tried at which too few seeds hold, and ``again_error`` the error there;
    ``no_counterexample`` says that there is none among those tried.
    """
    records = list(records)
    rows = []
    for record, place in zip(records, places(records, *PLACE), strict=True):
        state = {name: place.pop(name) for name in ("status", "reason")}
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

    ``metrics`` describes the metrics of gates, the last two as shares of heads; ``range`` holds the least, median and
    largest d with a head that was not reached as infinite, and ``weakest`` the head of which the fewest seeds hold.
    """
    place = ("source", "method", "options", "target", "metric", "n", "epsilon", "layer")
    found = []
    for some in grouped_by(rows, *place):
        groups = [some] if some[0]["head"] is not None else grouped_by(some, "reason")
        found += [_summary(group) for group in groups]
    return found


def _summary(some: Sequence[Row]) -> Row:
    first = some[0]
    windows = [row["window"] for row in some]
    worst = next((row for row in some if row["status"] != "ok"), first)
    found = {name: first.get(name) for name in SUMMARISED} | {
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
