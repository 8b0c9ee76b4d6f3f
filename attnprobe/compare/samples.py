"""The samples of one metric in one row of two runs: paired values, statistics, and evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from ..files import Fields
from ..frame.metric import Metric
from ..tables.long import Row, fragile_statistics, sortable
from ..tables.table import gathered
from .cells import per_head
from .chance import FEWEST, Evidence, over_pairs, over_windows, two_samples
from .pairing import Pairing
from .verdicts import numbers

Statistic = Callable[..., Any]
SOUND = "mean without rounded rows"
STATISTICS: Mapping[str, Statistic] = {"mean": np.mean, "median": np.median, SOUND: np.mean}


class _Value(NamedTuple):
    window: Any
    seed: Any
    head: Any
    number: float | None
    doubtful: bool


@dataclass(frozen=True)
class _Unit:
    """A pair: the values of both runs at one window and head, and seed if the runs share it."""

    window: Any
    a: list[_Value]
    b: list[_Value]

    @cached_property
    def numbers(self) -> tuple[float | None, float | None]:
        return _mean(self.a), _mean(self.b)

    @property
    def doubtful(self) -> bool:
        return any(value.doubtful for value in (*self.a, *self.b))


Measured = tuple[Row, Evidence, tuple[int, int]]


def measured(metric: Metric, pairing: Pairing) -> Measured:
    """A metric of a pairing's cells, by the first statistic that does not depend on rounded rows.

    Returns:
        Its fields of a row, the evidence of chance in the difference, and how many values are finite in A alone and in
        B alone.
    """
    a, b = (_values(cells.values(), metric) for cells in (pairing.a, pairing.b))
    carried: set[str] = set()  # by rounded rows
    for values in (a, b):
        numbers_of, windows, doubtful = (
            [getattr(value, name) for value in values] for name in ("number", "window", "doubtful")
        )
        carried |= fragile_statistics(metric.name, numbers_of, windows, doubtful).keys()
    statistic = next((name for name in ("mean", "median") if name not in carried), SOUND)
    if pairing.kind is None:
        return _unpaired(statistic, a, b)
    units = _units(a, b, pairing.kind)
    lost = _lost([(unit.a, unit.b) for unit in units] if pairing.kind == "cells" else [(a, b)])
    complete = [unit for unit in units if None not in unit.numbers]
    evidence = None if complete else Evidence(certain=True)
    if statistic == SOUND:
        sound = [unit for unit in complete if not unit.doubtful]
        if sound:
            complete = sound
        else:
            why = "rounded rows carry the mean and the median, and every head has some"
            statistic, evidence = "mean", Evidence(why=why)
    ends = _ends(complete or units, STATISTICS[statistic])
    evidence = evidence or _evidence(metric, pairing, complete, STATISTICS[statistic])
    if evidence.test == "windows" and statistic != "mean":
        a_of, b_of = zip(*_window_ends(complete, STATISTICS[statistic]), strict=True)
        ends = fmean(a_of), fmean(b_of)
    return _fields(statistic, ends, len(complete), evidence), evidence, lost


def _fields(statistic: str, ends: tuple[float | None, float | None], count: int, evidence: Evidence) -> Row:
    return {**numbers(*ends, evidence.se), "statistic": statistic, "values": count}


def _evidence(metric: Metric, pairing: Pairing, units: Sequence[_Unit], statistic: Statistic) -> Evidence:
    windows = {unit.window for unit in units}
    differences = [y - x for x, y in _window_ends(units, statistic)]
    if (pairing.same_draws and not metric.timed) or all(x == y for x, y in (unit.numbers for unit in units)):
        return Evidence(certain=True)
    if why := _dependent(metric, pairing, units):
        return over_windows(differences, why)
    pairs: Sequence[Any] = range(len(units))
    if pairing.other_method:  # the difference of a head is much the same in every window
        pairs = [unit.a[0].head for unit in units]
    count = len(set(pairs))
    if len(units) == len(windows) or (len(windows) > 1 and count < FEWEST):
        return over_windows(differences)
    x, y = zip(*(unit.numbers for unit in units), strict=True)
    evidence = over_pairs(x, y, statistic, pairs)
    if len(windows) == 1:
        return replace(evidence, why=evidence.why or f"{len(units)} heads of one window")
    of_heads = f"{count} {'pairs of heads' if count == len(units) else 'heads'} in "
    why = f"{of_heads if len(units) > len(windows) else ''}{len(windows)} windows"
    return replace(evidence, why=why)


def _dependent(metric: Metric, pairing: Pairing, units: Sequence[_Unit]) -> str:
    """Why the values of a window are no independent pairs, in words; empty if they are."""
    if metric.timed:
        return ": times have no heads to pair"
    if any(map(heads_share_draws, (*pairing.a.values(), *pairing.b.values()))):
        return ", whose heads share their draws"
    counts = set() if pairing.other_method else {(len(unit.a), len(unit.b)) for unit in units}
    if uneven := [counted for counted in counts if counted[0] != counted[1]]:
        return ", and other numbers of seeds: {} in A, {} in B".format(*uneven[0])
    return ""


def heads_share_draws(cell: Fields) -> bool | None:
    """Whether the heads of a cell share their draws, by an option or its default; None if that is not known.

    >>> (
    ...     heads_share_draws({"options": {"share_heads": True}}),
    ...     heads_share_draws({}),
    ...     heads_share_draws({"method_file": {"file": "mine.py"}}),
    ... )
    (True, False, None)
    """
    origin = cell.get("method_file")
    default = origin.get("share_heads") if origin else False
    return (cell.get("options") or {}).get("share_heads", default)


def _unpaired(statistic: str, a: Sequence[_Value], b: Sequence[_Value]) -> Measured:
    """The comparison of runs that share no window: their means over windows are two samples."""
    samples = [
        [
            (value.window, value.number)
            for value in values
            if value.number is not None and not (statistic == SOUND and value.doubtful)
        ]
        for values in (a, b)
    ]
    of = STATISTICS[statistic]
    windows = [gathered(sample, lambda pair: pair[0]) for sample in samples]
    means = [[float(of([number for _, number in one])) for one in each] for each in windows]
    evidence = two_samples(means[0], means[1]) if all(means) else Evidence(certain=True)
    a_of, b_of = (_of([number for _, number in sample], of) for sample in samples)
    if statistic != "mean" and all(means):
        a_of, b_of = fmean(means[0]), fmean(means[1])
    return _fields(statistic, (a_of, b_of), min(map(len, samples)), evidence), evidence, _lost([(a, b)])


def _values(cells: Iterable[Fields], metric: Metric) -> list[_Value]:
    """All values in a fixed order. A cell without the metric gives one value without a number for each head."""
    sample = []
    for cell in cells:
        heads = [tuple(cell["heads"])] if metric.name == "seconds" else cell["heads"]
        numbers = per_head(cell, metric.name) or [None] * len(heads)
        rounded = cell["metrics"].get("rounded_rows") or [None] * len(heads)
        for head, number, count in zip(heads, numbers, rounded, strict=False):
            sample.append(_Value(cell.get("window"), cell.get("seed"), head, number, bool(count)))
    return sorted(sample, key=lambda value: (sortable(value.window), sortable(value.seed), value.head))


def _units(a: Sequence[_Value], b: Sequence[_Value], kind: str) -> list[_Unit]:
    """The units of a pairing: each window, head and seed, or each window and head if the seeds differ."""
    units: dict[Any, _Unit] = {}
    for run, values in (("a", a), ("b", b)):
        for value in values:
            key = (value.window, value.head, value.seed if kind == "cells" else None)
            getattr(units.setdefault(key, _Unit(value.window, [], [])), run).append(value)
    return [unit for unit in units.values() if unit.a and unit.b]


def _lost(groups: Iterable[tuple[Sequence[_Value], Sequence[_Value]]]) -> tuple[int, int]:
    """The numbers of values that are finite in A alone and in B alone, by their shares in each group."""
    lost = gained = 0
    for a, b in groups:
        finite = [sum(value.number is not None for value in values) / len(values) for values in (a, b)]
        lost += math.ceil(max(finite[0] - finite[1], 0) * len(b) - 1e-9)
        gained += math.ceil(max(finite[1] - finite[0], 0) * len(a) - 1e-9)
    return lost, gained


def _ends(units: Sequence[_Unit], statistic: Statistic) -> tuple[float | None, float | None]:
    sides = zip(*(unit.numbers for unit in units), strict=True)
    a, b = (_of([number for number in side if number is not None], statistic) for side in sides)
    return a, b


def _window_ends(units: Sequence[_Unit], statistic: Statistic) -> list[tuple[float, float]]:
    """The statistics of both runs in each window, where both are finite."""
    ends = (_ends(window, statistic) for window in gathered(units, lambda unit: unit.window))
    return [(x, y) for x, y in ends if x is not None and y is not None]


def _of(numbers: Sequence[float], statistic: Statistic) -> float | None:
    if not numbers:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(statistic(numbers))
    return value if math.isfinite(value) else None


def _mean(values: Sequence[_Value]) -> float | None:
    if len(values) == 1:
        return values[0].number
    return _of([value.number for value in values if value.number is not None], np.mean)
