"""The paired values of one metric in one line of two frames, and the evidence of chance in their difference."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..frame import Rows
from ..frame.metric import Metric
from ..frame.summary import fragile, numbers_of
from .chance import FEWEST, Evidence, Statistic, of_heads, of_windows, two_samples

SOUND = "mean without rounded rows"  # over the heads without rows that rounding decides
STATISTICS: Mapping[str, Statistic] = {
    "mean": np.mean,
    "median": np.median,
    "p10": lambda values, axis=None: np.quantile(values, 0.1, axis=axis),
    "p90": lambda values, axis=None: np.quantile(values, 0.9, axis=axis),
    "max": np.max,
    SOUND: np.mean,
}
UNIT = ["layer", "window", "head"]  # identifies a value of a pair, with the seed if both frames have it
ORDER = ("window", "seed", "layer", "head")  # of units: one order for all runs, which decides the last digit of a sum
MISSING = np.iinfo(np.int64).max  # the number of a missing window or head, behind all others
MEASURED = ("ok", "diverged")  # statuses of cells that drew random numbers


@dataclass(frozen=True)
class Pairing:
    """How the rows of one line of two frames belong together.

    Attributes:
        kind: ``cells`` pairs rows of one layer, window, head and seed; ``windows`` pairs means over seeds; None pairs
            nothing, because no window or no head is in both.
        a, b: the rows that are compared. other_method: whether two methods are compared, so that their heads are a
            sample of heads.
    """

    kind: str | None
    a: Rows
    b: Rows
    other_method: bool = False

    @property
    def on(self) -> list[str]:
        return [*UNIT, "seed"] if self.kind == "cells" else UNIT

    @property
    def same_draws(self) -> bool:
        """Whether all common rows had the same random numbers, or drew none."""
        if self.other_method or self.kind != "cells":
            return False
        both = self.a.merge(self.b, on=self.on, suffixes=("_a", "_b"))
        both = both[both["status_a"].isin(MEASURED) & both["status_b"].isin(MEASURED)]
        equal = (both["draws_a"] == both["draws_b"]).fillna(False)
        return bool(len(both)) and bool(equal.all())


def paired(a: Rows, b: Rows, other_method: bool) -> Pairing:
    """The pairing of one line in A and in B."""
    a, b = _filled(a, b), _filled(b, a)
    _, of_a, of_b = _numbered(a, b, UNIT)
    repeated = any(len(np.unique(numbers)) < len(numbers) for numbers in (of_a, of_b))
    _, seeds_a, seeds_b = _numbered(a, b, [*UNIT, "seed"])
    # a repeat of one method has no partner among those of another, which may draw nothing: their means are paired
    for kind, in_a, in_b in (("cells", seeds_a, seeds_b), ("windows", of_a, of_b)):
        common = np.intersect1d(in_a, in_b)
        if len(common) and not (kind == "cells" and other_method and repeated):
            kept = ((a, np.isin(in_a, common)), (b, np.isin(in_b, common)))
            return Pairing(kind, *(side if of.all() else side[of] for side, of in kept), other_method=other_method)
    return Pairing(None, a, b, other_method)


def _filled(rows: Rows, others: Rows) -> Rows:
    """The rows; a cell that failed has no heads, and gets a row for each head of the other frame."""
    lost = rows["head"].isna() & (rows["status"] != "ok")
    if not lost.any():
        return rows
    import pandas as pd

    heads = others[[*UNIT]].drop_duplicates()
    filled = rows[lost].drop(columns="head").merge(heads, on=["layer", "window"], how="left")
    return pd.concat([rows[~lost], filled], ignore_index=True)


def _numbered(a: Rows, b: Rows, on: Collection[str]) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """The units of two frames, which are the different values of the columns ``on``, in their `ORDER`.

    Returns the values of each column of the units, and the number of the unit of each row of ``a`` and of ``b``.
    """
    names = [name for name in ORDER if name in on]
    columns = []
    for name in names:
        if name == "seed":  # a text
            columns.append(np.unique([*a[name], *b[name]], return_inverse=True)[1].reshape(-1))
        else:
            columns.append(np.concatenate([side[name].to_numpy(np.int64, na_value=MISSING) for side in (a, b)]))
    units, numbers = np.unique(np.stack(columns), axis=1, return_inverse=True)
    numbers = numbers.reshape(-1)  # some versions of numpy give two dimensions
    return dict(zip(names, units, strict=True)), numbers[: len(a)], numbers[len(a) :]


@dataclass(frozen=True)
class Measured:
    """A metric of a pairing.

    Attributes:
        a, b: the statistic of both sides. values: the number of pairs in the statistic.
        few, more: how many values are finite in A alone, and in B alone.
    """

    a: float | None
    b: float | None
    statistic: str
    values: int
    evidence: Evidence
    few: int
    more: int


@dataclass(frozen=True)
class Values:
    """The values of a metric in a frame.

    Attributes:
        rows: the columns that identify each value. value: NaN if it is missing or not finite.
        doubtful: whether rounding decides the normaliser of a row of the head.
    """

    rows: Rows
    value: np.ndarray
    doubtful: np.ndarray

    @property
    def windows(self) -> np.ndarray:
        return self.rows["window"].to_numpy(np.int64, na_value=MISSING)


@dataclass(frozen=True)
class Units:
    """The values of both sides for each unit of a pairing, in their `ORDER`.

    Attributes:
        window: the window of each unit. head: a number for its layer and head.
        a, b: the means of each unit's finite values, NaN if it has none. counts: the numbers of its values in A and B.
        doubtful: whether rounding decides a normaliser of the unit on either side.
    """

    window: np.ndarray
    head: np.ndarray
    a: np.ndarray
    b: np.ndarray
    counts: np.ndarray
    doubtful: np.ndarray

    @classmethod
    def of(cls, a: Values, b: Values, on: Collection[str]) -> Units:
        units, *numbers = _numbered(a.rows, b.rows, on)
        size = len(units["window"])
        means, doubtful = [], np.zeros(size, bool)
        for side, of_rows in zip((a, b), numbers, strict=True):
            known = ~np.isnan(side.value)
            with np.errstate(invalid="ignore"):  # 0/0 of a unit without a value is NaN
                sums = np.bincount(of_rows[known], side.value[known], size)
                means.append(sums / np.bincount(of_rows[known], minlength=size))
            doubtful |= np.bincount(of_rows, side.doubtful, size) > 0
        _, heads = np.unique(np.stack([units["layer"], units["head"]]), axis=1, return_inverse=True)
        counts = np.stack([np.bincount(of_rows, minlength=size) for of_rows in numbers])
        both = cls(units["window"], heads.reshape(-1), means[0], means[1], counts, doubtful)
        return both.take(np.logical_and(counts[0], counts[1]))

    def __len__(self) -> int:
        return len(self.window)

    def take(self, chosen: np.ndarray) -> Units:
        """The chosen units."""
        of_units = (self.window, self.head, self.a, self.b)
        window, head, a, b = (of_unit[chosen] for of_unit in of_units)
        return Units(window, head, a, b, self.counts[:, chosen], self.doubtful[chosen])

    def ends(self, statistic: Statistic) -> list[tuple[float, float]]:
        """The statistics of both sides in each window."""
        return list(zip(*(_by_window(side, self.window, statistic) for side in (self.a, self.b)), strict=True))


def measured(metric: Metric, pairing: Pairing, statistic: str | None = None) -> Measured:
    """The numbers of a metric in a pairing, and the evidence of chance in their difference.

    Args:
        statistic: by default the mean; if rows that rounding decides carry it, the median; if they carry that too, the
            mean of the other heads.
    """
    a, b = (_values(frame, metric) for frame in (pairing.a, pairing.b))
    fragile_in = {name for values in (a, b) for name in _fragile(metric, values)}
    order = ["mean", "median"] if statistic is None else [statistic]
    chosen = next((name for name in order if name not in fragile_in), SOUND)
    compute = STATISTICS[chosen]
    if pairing.kind is None:
        return _unpaired(chosen, a, b)
    both = Units.of(a, b, pairing.on)
    finite = ~np.isnan([both.a, both.b])
    if pairing.kind == "cells":
        few, more = int((finite[0] & ~finite[1]).sum()), int((~finite[0] & finite[1]).sum())
    else:
        few, more = _lost(a, b)
    complete = both.take(finite[0] & finite[1])
    evidence = None if len(complete) else Evidence(certain=True)  # without a pair, only lost values tell
    if chosen == SOUND:
        sound = complete.take(~complete.doubtful)
        if len(sound):
            complete = sound
        else:
            why = "rounded rows carry the mean and the median, and every head has some"
            chosen, evidence = "mean", Evidence(why=why)
    evidence = evidence or _evidence(metric, pairing, complete, compute)
    if evidence.test == "windows" and not chosen.startswith("mean"):
        # what is tested is shown: the mean over windows of each window's statistic
        ends = [float(np.mean(side)) for side in zip(*complete.ends(compute), strict=True)]
    else:
        used = complete if len(complete) else both
        ends = [_finite(side, compute) for side in (used.a, used.b)]
    return Measured(ends[0], ends[1], chosen, len(complete), evidence, few, more)


def _values(frame: Rows, metric: Metric) -> Values:
    """The values of a metric, one of each row; a time is one value of its cell, not of a head."""
    value = numbers_of(frame, metric.name)
    value = np.where(np.isfinite(value), value, math.nan)
    rows, doubtful = frame[[*UNIT, "seed"]], numbers_of(frame, "rounded_rows") > 0
    if metric.name != "seconds":
        return Values(rows, value, doubtful)
    # the negative number of heads in place of the head: times of as many heads are paired
    heads = -frame.groupby("key", dropna=False)["head"].transform("size").astype("Int64")
    first = ~frame["key"].duplicated().to_numpy()
    return Values(rows.assign(head=heads)[first], value[first], doubtful[first])


def _fragile(metric: Metric, values: Values) -> list[str]:
    """The statistics that depend on rows whose normaliser is lost to rounding."""
    codes = np.zeros(len(values.value), int)  # all values are one group
    flags = fragile(metric, values.value, codes, values.windows, values.doubtful, 1)
    return [name for name, column in flags.items() if column[0]]


def _evidence(metric: Metric, pairing: Pairing, units: Units, statistic: Statistic) -> Evidence:
    """The evidence of chance in the difference of units that have both values."""
    windows = len(np.unique(units.window))
    if (pairing.same_draws and not metric.timed) or bool((units.a == units.b).all()):
        return Evidence(certain=True)
    differences = [end[1] - end[0] for end in units.ends(statistic)]
    if why := _dependent(metric, pairing, units):
        return of_windows(differences, why)
    # two methods differ at a head by much the same in every window: the windows of a head are exchanged together
    heads = units.head if pairing.other_method else np.arange(len(units))
    count = len(np.unique(heads))
    if len(units) == windows or (windows > 1 and count < FEWEST):
        return of_windows(differences)
    evidence = of_heads(units.a, units.b, statistic, heads)
    if windows == 1:
        return replace(evidence, why=evidence.why or f"{len(units)} heads of one window")
    pairs = f"{count} {'pairs of heads' if count == len(units) else 'heads'} in " if len(units) > windows else ""
    return replace(evidence, why=f"{pairs}{windows} windows")


def _dependent(metric: Metric, pairing: Pairing, units: Units) -> str:
    """The reason why the values of a window are no independent pairs, in words; empty if they are independent."""
    if metric.timed:
        return ": times have no heads to pair"
    if any(frame["shares"].fillna(False).any() for frame in (pairing.a, pairing.b)):
        return ", whose heads share their draws"
    uneven = units.counts[:, units.counts[0] != units.counts[1]]
    if uneven.size and not pairing.other_method:
        return f", and other numbers of seeds: {uneven[0, 0]} in A, {uneven[1, 0]} in B"
    return ""


def _unpaired(chosen: str, a: Values, b: Values) -> Measured:
    """The comparison of runs that share no window: their means over windows are two samples."""
    compute = STATISTICS[chosen]
    values, of_windows = [], []
    for side in (a, b):
        used = ~np.isnan(side.value) & ~(side.doubtful & (chosen == SOUND))
        values.append(side.value[used])
        of_windows.append(_by_window(side.value[used], side.windows[used], compute))
    known = all(map(len, of_windows))
    evidence = two_samples(*of_windows) if known else Evidence(certain=True)
    ends = [_finite(of_side, compute) for of_side in values]
    if not chosen.startswith("mean") and known:
        # what is tested is shown: the mean over windows of each window's statistic
        ends = [float(np.mean(side)) for side in of_windows]
    return Measured(ends[0], ends[1], chosen, min(map(len, values)), evidence, *_lost(a, b))


def _lost(a: Values, b: Values) -> tuple[int, int]:
    """How many values are finite in A alone and in B alone, where values have no partners: from the finite shares."""
    shares = [float(np.mean(~np.isnan(side.value))) for side in (a, b)]
    # the subtrahend keeps a share such as 3/10 * 10 from being rounded up to 4
    return (
        math.ceil(max(shares[0] - shares[1], 0) * len(b.value) - 1e-9),
        math.ceil(max(shares[1] - shares[0], 0) * len(a.value) - 1e-9),
    )


def _by_window(values: np.ndarray, windows: np.ndarray, statistic: Statistic) -> list[float]:
    """The statistic of the values in each window."""
    return [float(statistic(values[windows == window])) for window in np.unique(windows)]


def _finite(values: np.ndarray, statistic: Statistic) -> float | None:
    """The statistic of values without NaN; None without values, or if it overflows."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(statistic(values))
    return value if math.isfinite(value) else None
