"""The times of a run's cells: medians of rounds, and how much rounds differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import median, quantiles
from typing import Any

from ..files import Fields
from ..records.file import strict_json

TIMES = ("seconds", "ratio_to_exact")


def timed_cells(cells: Iterable[Fields]) -> list[dict[str, Any]]:
    """Cells whose rows of kind ``time`` are rounds, each with its medians.

    ``seconds`` and ``ratio_to_exact`` are medians over rounds; ``seconds_spread`` and ``ratio_to_exact_spread`` are
    half of the range between their quartiles. ``noise_floor`` is the median of how many times longer exact attention
    took when it was called again in a round, of the cell of exact attention at the same place; None without one.
    """
    timed = [_timed(cell) for cell in cells]
    floors = {_place(cell): median(cell["repeated"]) for cell in timed if cell["repeated"]}
    return [{**cell, "noise_floor": floors.get(_place(cell))} for cell in timed]


def _timed(cell: Fields) -> dict[str, Any]:
    rounds = [row for row in cell["rows"] if row["kind"] == "time"]
    values = {name: [row[name] for row in rounds if row.get(name) is not None] for name in TIMES}
    numbers: dict[str, Any] = {name: median(some) if some else None for name, some in values.items()}
    numbers |= {f"{name}_spread": half_range(some) for name, some in values.items()}
    repeated = [
        row["repeated_seconds"] / row["seconds"] for row in rounds if row.get("repeated_seconds") and row["seconds"]
    ]
    pairs = [pair.partition("=") for pair in (cell["options"] or "").split(",") if pair]
    options = {name: value for name, _, value in pairs}
    facts = {"weights": cell["source"].get("weights"), "options": options, "repeated": repeated}
    return {"peak_bytes": None, "flops": None, **cell, **numbers, **facts}


def _place(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return strict_json(cell["source"]), *itemgetter("layer", "target", "backward", "n")(cell)


def half_range(values: Sequence[float]) -> float | None:
    """Half the range between the quartiles; None for a single value.

    >>> half_range([1.0, 2.0, 3.0, 4.0, 8.0]), half_range([1.0])
    (1.0, None)
    """
    if len(values) < 2:
        return None
    first, _, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / 2
