"""What a run of ``attnprobe stability`` found, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...tables.numbers import significant
from ...tables.results import best_of, led, listed, lost, sentences
from ...tables.table import gathered, grouped_by
from .names import stability_label

__all__ = ["stability_result"]

Row = Any


def stability_result(rows: Sequence[Row]) -> str:
    """Which method has the smallest instability τ, relative to self-attention."""
    known = [row for row in rows if row["ratio"] is not None and not row["reference"]]
    places = [_ratios(some) for some in grouped_by(known, "task", "source")]
    if len(places) == 1:
        best = best_of(places[0])
        verb = "has" if len(best) == 1 else "have"
        ratio = significant(places[0][best[0]], 2)
        found = f"{listed(best)} {verb} the smallest instability τ: {ratio} of self-attention's, the mean over seeds."
    else:
        found = led(places, "the smallest instability τ")
    return sentences(found, lost(rows, stability_label))


def _ratios(rows: Sequence[Row]) -> dict[str, float]:
    """The mean ratio over seeds of each method."""
    groups = gathered(rows, stability_label)
    return {stability_label(some[0]): sum(row["ratio"] for row in some) / len(some) for some in groups}
