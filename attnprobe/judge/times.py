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
    for one round. ``noise_floor`` is of the cell of exact attention at the same place: exact attention is called twice
    in each round, and the floor is the median ratio of the second time to the first.
    """
    cells = rounds.drop_duplicates("key").set_index("key")
    for name in TIMED:
        values = rounds[name] if name in rounds else rounds["n"].where(False).astype("Float64")  # all missing
        groups = values.groupby(rounds["key"], sort=False, dropna=False)
        cells[name] = groups.median()
        spread = (groups.quantile(0.75) - groups.quantile(0.25)) / 2
        cells[f"{name}_spread"] = spread.where(groups.count() > 1)
    floors: dict[tuple[str, ...], float] = {}
    if "repeated_seconds" in rounds:
        repeated = rounds.assign(again=rounds["repeated_seconds"] / rounds["seconds"]).dropna(subset=["again"])
        medians = repeated.groupby(PLACE, dropna=False)["again"].median()
        # as text, because a missing value of pandas equals no other
        floors = {tuple(map(str, place)): floor for place, floor in medians.items()}
    cells["noise_floor"] = [floors.get(tuple(map(str, place))) for place in cells[PLACE].itertuples(index=False)]
    return cells.reset_index()


def of_times(name: str, pairing: Pairing) -> Measured:
    """The numbers of one cell of each run.

    The noise of a time, and of its ratio to exact attention, is the sum of both runs' spreads over their rounds. The
    noise of a ratio is at least what the ratio of exact attention to itself was off from 1. Memory and counted products
    have no noise but the floor of their metric.
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
    """A number of a row of a frame; None if it is missing."""
    import pandas as pd

    value = cell.get(name)
    return None if value is None or pd.isna(value) else float(value)
