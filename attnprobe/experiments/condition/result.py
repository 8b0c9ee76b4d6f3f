"""The sentence that states the result of ``attnprobe condition``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...tables.numbers import brief
from ...tables.results import at_budget, lost, sentences
from ...tables.statistics import quantiles
from ...tables.table import gathered
from .rows import ConditionRow, is_measured


def condition_result(rows: Sequence[ConditionRow]) -> str:
    """The median condition number of the matrices that each method inverts, and the number of singular ones."""
    cores = [row for row in rows if is_measured(row) and row["inverted"] and row["status"] == "ok"]
    parts = []
    for group in gathered(cores, at_budget):
        middle = quantiles([math.inf if row["cond"] is None else row["cond"] for row in group])["median"]
        parts.append(f"{brief(middle)} of {at_budget(group[0])}")
    singular = sum(row["cond"] is None for row in cores)
    medians = f"Median condition number of what is inverted: {', '.join(parts)}." if parts else ""
    also = f"{singular} of {len(cores)} of these cores are singular." if singular else ""
    return sentences(medians, also, lost([row for row in rows if row["method"]], at_budget))
