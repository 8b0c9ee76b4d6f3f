"""What records of ``attnprobe theory`` say: rows per finding and head, and their summary per statement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...records.file import unspelt
from ...tables.rows import Quantiles
from ...tables.statistics import describe, quantiles
from ...tables.table import grouped_by, places

__all__ = ["theory_rows", "theory_summary"]

Record = Any
Row = Any
VERDICTS = ("holds", "violated", "vacuous", "assumption not met")
PLACE = ("theorem", "paper", "says", "method", "options", "target", "layer", "window", "n")
WHERE = ("theorem", "paper", "says", "method", "options", "target", "weights", "source", "scale_inputs")
STATEMENT = (*WHERE, "layer", "n", "d", "at", "assumption", "promise", "sense", "status", "reason")
NUMBERS = ("measured", "bound", "slack")
LOST = "nothing to compare: what was measured or its bound is NaN"


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
