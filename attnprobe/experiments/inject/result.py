"""What a run of ``attnprobe inject`` found, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...tables.numbers import method_label, significant
from ...tables.results import best_of, led, listed, lost, sentences
from ...tables.table import grouped_by
from .rows import mean

__all__ = ["inject_result"]

Row = Any


def inject_result(rows: Sequence[Row]) -> str:
    """Which method moves the last hidden states least where it replaces all the layers."""
    together = [row for row in rows if row["layer"] is None and mean(row, "drift") is not None]
    places = [{_name(row): mean(row, "drift") or 0.0 for row in some} for some in grouped_by(together, "source", "n")]
    if len(places) == 1:
        best = best_of(places[0])
        verb = "moves" if len(best) == 1 else "move"
        drift = significant(places[0][best[0]], 2)
        found = f"In all layers, {listed(best)} {verb} the last hidden states least: a mean drift of {drift}."
    else:
        found = led(places, "the smallest drift in all layers")
    return sentences(found, lost(rows, _name))


def _name(row: Row) -> str:
    return method_label(row) + ("" if row["d"] is None else f" d = {row['d']}")
