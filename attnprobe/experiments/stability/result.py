"""The sentence that states the result of ``attnprobe stability``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from ...tables.numbers import significant
from ...tables.results import Value, best_of, in_words, led, lost, sentences, tie_rule
from ...tables.table import gathered, grouped_by
from .names import stability_label
from .rows import StabilityRow


def stability_result(rows: Sequence[StabilityRow]) -> str:
    """The method with the smallest instability τ relative to self-attention."""
    known = [row for row in rows if row["ratio"] is not None and not row["reference"]]
    places = [_ratios(group) for group in grouped_by(known, "task", "source")]
    if len(places) != 1:
        return sentences(led(places, "the smallest instability τ"), lost(rows, stability_label))
    ratios = places[0]
    best = best_of(ratios)
    verb = "has" if len(best) == 1 else "have"
    size = f"{significant(ratios[best[0]].value, 2)} of self-attention's, the mean over seeds"
    text = f"{in_words(best)} {verb} the smallest instability τ{tie_rule(ratios, best)}: {size}."
    return sentences(text, lost(rows, stability_label))


def _ratios(rows: Sequence[StabilityRow]) -> dict[str, Value]:
    """The mean ratio over seeds of each method."""
    ratios = {}
    for group in gathered(rows, stability_label):
        values = [row["ratio"] for row in group if row["ratio"] is not None]
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        ratios[stability_label(group[0])] = Value(fmean(values), error)
    return ratios
