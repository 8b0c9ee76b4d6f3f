"""What a run of ``attnprobe bench`` found, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...tables.numbers import method_label, significant
from ...tables.results import best_of, listed, lost, sentences

__all__ = ["bench_result"]

Row = Any


def bench_result(rows: Sequence[Row]) -> str:
    """Which methods are fastest at the largest n, and how many take less time than exact attention."""
    timed = [row for row in rows if not row["reference"] and row["ratio_to_exact"] is not None]
    n = max((row["n"] for row in timed), default=0)
    ratios: dict[str, float] = {}
    for row in timed:
        if row["n"] == n:
            ratios[_name(row)] = min(row["ratio_to_exact"], ratios.get(_name(row), row["ratio_to_exact"]))
    found = ""
    if ratios:
        best = best_of(ratios)
        faster = sum(ratio < 1 for ratio in ratios.values())
        verb = "takes" if len(best) == 1 else "take"
        size = f"{significant(ratios[best[0]], 2)} times exact attention's"
        found = f"At n = {n}, {listed(best)} {verb} the least time, {size}."
        found += f" {faster} of {len(ratios)} methods and budgets are faster than exact attention."
    return sentences(found, lost(rows, _name))


def _name(row: Row) -> str:
    return method_label(row) + ("" if row["d"] is None else f" d = {row['d']}")
