"""Times of two runs: medians of rounds, and how much of a difference the rounds explain."""

from __future__ import annotations

from typing import Any

from ..frame import Rows
from ..frame.metric import METRICS
from .chance import Evidence, of_rounds
from .samples import Measured, Pairing

TIMED = ("seconds", "ratio_to_exact")
PLACE = ["source", "layer", "target", "backward", "n"]


def times(rounds: Rows) -> Rows:
    """A row for each cell of a frame of kind ``time``, with the medians of its rounds.

    ``seconds_spread`` and ``ratio_to_exact_spread`` are half of the range between the quartiles of the rounds, missing
    for one round. ``noise_floor`` is the median of how many times longer exact attention took when it was called again
    in a round, of the cell of exact attention at the same place.
    """
    found = rounds.drop_duplicates("key").set_index("key")
    for name in TIMED:
        values = rounds[name] if name in rounds else rounds["n"].where(False).astype("Float64")
        groups = values.groupby(rounds["key"], sort=False, dropna=False)
        found[name] = groups.median()
        spread = (groups.quantile(0.75) - groups.quantile(0.25)) / 2
        found[f"{name}_spread"] = spread.where(groups.count() > 1)
    again = (
        rounds.assign(again=rounds["repeated_seconds"] / rounds["seconds"]) if "repeated_seconds" in rounds else None
    )
    floors = again.dropna(subset=["again"]).groupby(PLACE, dropna=False)["again"].median() if again is not None else {}
    places = [tuple(place) for place in found[PLACE].itertuples(index=False)]
    known = {tuple(map(str, place)): floor for place, floor in dict(floors).items()}
    found["noise_floor"] = [known.get(tuple(map(str, place))) for place in places]
    return found.reset_index()


def of_times(name: str, pairing: Pairing) -> Measured:
    """The numbers of one cell of each run.

    The noise of a time, or of its ratio to exact attention, is the sum of both runs' spreads over their rounds; of a
    ratio at least what the ratio of exact attention to itself was off from 1. Memory and counted products have none but
    the floor of their metric.
    """
    cells = pairing.a.iloc[-1], pairing.b.iloc[-1]
    a, b = (_number(cell, name) for cell in cells)
    timed = METRICS[name].timed
    evidence = of_rounds(noise(name, cells)) if timed else Evidence(certain=True)
    return Measured(a, b, "median" if timed else "mean", 1, evidence, 0, 0)


def noise(name: str, cells: tuple[Any, Any]) -> float | None:
    """The largest difference that is noise; None for single rounds."""
    spreads = [_number(cell, f"{name}_spread") for cell in cells]
    if None in spreads:
        return None
    total = float(sum(spreads))  # type: ignore[arg-type]  # none is None
    if name != "ratio_to_exact":
        return total
    floors = [(_number(cell, "noise_floor"), _number(cell, name)) for cell in cells]
    return max([total, *(abs(floor - 1) * ratio for floor, ratio in floors if floor is not None and ratio is not None)])


def _number(cell: Any, name: str) -> float | None:
    import pandas as pd

    value = cell.get(name)
    return None if value is None or pd.isna(value) else float(value)
