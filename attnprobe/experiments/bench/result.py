"""The sentence that states the result of ``attnprobe bench``."""

from __future__ import annotations

from collections.abc import Sequence

from ...tables.numbers import significant
from ...tables.results import Value, at_budget, best_of, in_words, lost, sentences, tie_rule
from .rows import BenchRow


def bench_result(rows: Sequence[BenchRow]) -> str:
    """The fastest methods at the largest n, and the number of methods that take less time than exact attention.

    Methods tie if their medians over rounds differ by no more than the spreads of both.
    """
    timed = [row for row in rows if not row["reference"] and row["ratio_to_exact"] is not None]
    n = max((row["n"] for row in timed), default=0)
    ratios: dict[str, Value] = {}
    for row in timed:
        ratio = row["ratio_to_exact"]
        name = at_budget(row)
        if row["n"] == n and ratio is not None and (name not in ratios or ratio < ratios[name].value):
            ratios[name] = Value(ratio, row["ratio_spread"])
    if not ratios:
        return lost(rows, at_budget)
    best = best_of(ratios)
    faster = sum(ratio.value < 1 for ratio in ratios.values())
    verb = "takes" if len(best) == 1 else "take"
    tie = tie_rule(ratios, best, "spreads over rounds")
    size = significant(ratios[best[0]].value, 2)
    least = f"{in_words(best)} {verb} the least time{tie}, {size} times exact attention's."
    if not faster:
        none = f"At n = {n}, none of {len(ratios)} methods and budgets is faster than exact attention; {least}"
        return sentences(none, lost(rows, at_budget))
    return sentences(
        f"At n = {n}, {least}",
        f"{faster} of {len(ratios)} methods and budgets are faster than exact attention.",
        lost(rows, at_budget),
    )
