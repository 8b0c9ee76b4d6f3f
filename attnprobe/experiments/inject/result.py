"""The sentence that states the result of ``attnprobe inject``."""

from __future__ import annotations

from collections.abc import Sequence

from ...tables.methods import statistic
from ...tables.numbers import significant
from ...tables.results import Value, at_budget, best_of, in_words, led, lost, sentences, tie_rule
from ...tables.table import grouped_by
from .rows import InjectRow, mean


def inject_result(rows: Sequence[InjectRow]) -> str:
    """The method with the smallest change of the last hidden states when it replaces all layers."""
    together = [row for row in rows if row["layer"] is None and mean(row, "drift") is not None]
    places = [{at_budget(row): _drift(row) for row in group} for group in grouped_by(together, "source", "n")]
    if len(places) != 1:
        return sentences(led(places, "the smallest drift in all layers"), lost(rows, at_budget))
    drifts = places[0]
    best = best_of(drifts)
    verb = "moves" if len(best) == 1 else "move"
    size = f"a mean drift of {significant(drifts[best[0]].value, 2)}"
    text = f"In all layers, {in_words(best)} {verb} the last hidden states least{tie_rule(drifts, best)}: {size}."
    return sentences(text, lost(rows, at_budget))


def _drift(row: InjectRow) -> Value:
    return Value(mean(row, "drift") or 0.0, statistic(row, "drift", "se"))
