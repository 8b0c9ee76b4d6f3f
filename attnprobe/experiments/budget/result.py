"""The sentence that states the result of ``attnprobe budget``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ...tables.numbers import method_label
from ...tables.results import in_words, lost, sentences
from ...tables.table import gathered
from .rows import BudgetRow, is_of_head


def budget_result(rows: Sequence[BudgetRow]) -> str:
    """The number of heads in which each method reaches the smallest ε, and the d that it needs."""
    heads = [row for row in rows if is_of_head(row) and row["status"] == "ok"]
    epsilon = min((row["epsilon"] for row in heads), default=0.0)
    parts = []
    for group in gathered([row for row in heads if row["epsilon"] == epsilon], method_label):
        reached = [row["d"] for row in group if row["d"] is not None]
        size = f" (median d = {median(reached):g})" if reached else ""
        parts.append(f"{method_label(group[0])} in {len(reached)} of {len(group)} heads{size}")
    reach = f"ε = {epsilon:g} is reached by {in_words(parts)}." if parts else ""
    return sentences(reach, lost(rows, method_label))
