"""What a run of ``attnprobe condition`` found, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...tables.numbers import brief, method_label
from ...tables.results import lost, sentences
from ...tables.statistics import quantiles
from ...tables.table import gathered

__all__ = ["condition_result"]

Row = Any


def condition_result(rows: Sequence[Row]) -> str:
    """The median condition number of what each method inverts, and how many of these matrices are singular."""
    cores = [row for row in rows if row.get("inverted") and row["status"] == "ok"]
    parts = []
    for some in gathered(cores, _name):
        middle = quantiles([math.inf if row["cond"] is None else row["cond"] for row in some])["median"]
        parts.append(f"{brief(middle)} of {_name(some[0])}")
    singular = sum(row["cond"] is None for row in cores)
    found = f"Median condition number of what is inverted: {', '.join(parts)}." if parts else ""
    also = f"{singular} of {len(cores)} of these cores are singular." if singular else ""
    return sentences(found, also, lost([row for row in rows if row["method"]], _name))


def _name(row: Row) -> str:
    return method_label(row) + ("" if row["d"] is None else f" d = {row['d']}")
