"""Which cells of two runs belong together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..files import Fields
from .cells import Key

MEASURED = ("ok", "diverged")


@dataclass(frozen=True)
class Pairing:
    """The pairing of a row's cells (see `compare_runs`), and the paired cells of each run.

    With ``kind`` "cells" both hold the same keys.
    """

    kind: str | None
    a: Mapping[Key, Fields]
    b: Mapping[Key, Fields]

    @property
    def pairs(self) -> list[tuple[Fields, Fields]]:
        return [(cell, self.b[key]) for key, cell in self.a.items()] if self.kind == "cells" else []

    @property
    def other_method(self) -> bool:
        """Whether the cells of B are those of another method, so that heads are a sample."""
        return any("pair" in cell for cell in self.a.values())

    @property
    def same_draws(self) -> bool:
        """Whether all common cells had the same random numbers, or drew none."""
        if self.other_method:
            return False
        both = [pair for pair in self.pairs if all(cell["status"] in MEASURED for cell in pair)]
        known = all("draws_hash" in cell for pair in both for cell in pair)
        return bool(both) and known and all(x.get("draws_hash") == y.get("draws_hash") for x, y in both)


def paired(ours: Mapping[Key, Fields], others: Mapping[Key, Fields]) -> Pairing:
    """The pairing of a row's cells; empty if one run has none.

    The repeats of two methods are no pairs, because one of them may draw nothing: their means are paired.
    """
    if not ours or not others:
        return Pairing(None, {}, {})
    places = [{(window, heads) for window, _, heads in cells} for cells in (ours, others)]
    both = places[0] & places[1]
    common = [key for key in ours if key in others]
    of_methods = any("pair" in cell for cell in ours.values())
    repeated = any(len(cells) > len(at) for cells, at in zip((ours, others), places, strict=True))
    if common and not (of_methods and repeated):
        return Pairing("cells", {key: ours[key] for key in common}, {key: others[key] for key in common})
    if not both:
        return Pairing(None, ours, others)
    common_cells = ({key: cell for key, cell in cells.items() if (key[0], key[2]) in both} for cells in (ours, others))
    return Pairing("windows", *common_cells)


def aligned(cells: Mapping[Key, Fields], others: Iterable[Key]) -> dict[Key, Fields]:
    """Cells of which each has the heads that a cell of the other run has at its window, or none of them.

    A cell with further heads becomes one cell for each such part. Its time is that of all heads, so a part has none.
    """
    heads_at: dict[Any, set[tuple[Any, ...]]] = {}
    for window, _, heads in others:
        heads_at.setdefault(window, set()).add(heads)
    parts: dict[Key, Fields] = {}
    for (window, seed, heads), cell in cells.items():
        left = list(heads)
        for other in sorted(heads_at.get(window, ())):
            part = tuple(head for head in left if head in other)
            left = [head for head in left if head not in other]
            if part:
                parts[window, seed, part] = _part(cell, part)
        if left:
            parts[window, seed, tuple(left)] = _part(cell, left)
    return parts


def _part(cell: Fields, heads: Sequence[Any]) -> Fields:
    """A cell with these of its heads only."""
    if len(heads) == len(cell["heads"]):
        return cell
    places = [cell["heads"].index(head) for head in heads]
    metrics = {name: [values[place] for place in places] for name, values in cell["metrics"].items() if values}
    return {**cell, "heads": [*heads], "metrics": metrics, "seconds": None}
