"""The paired values of one metric in one line of two frames, and the evidence of chance in their difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..frame import Rows
from ..frame.metric import Metric
from ..frame.summary import fragile
from .chance import FEWEST, Evidence, Statistic, of_heads, of_windows, two_samples

if TYPE_CHECKING:
    from pandas import Series

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
    repeated = any(frame.duplicated(UNIT).any() for frame in (a, b))
    common = _common(a, b, [*UNIT, "seed"])
    # a repeat of one method has no partner among those of another, which may draw nothing: their means are paired
    if len(common[0]) and not (other_method and repeated):
        return Pairing("cells", *common, other_method)
    common = _common(a, b, UNIT)
    if len(common[0]):
        return Pairing("windows", *common, other_method)
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


def _common(a: Rows, b: Rows, on: list[str]) -> tuple[Rows, Rows]:
    """The rows of each frame whose values of the columns ``on`` are in both frames."""
    both = a[on].drop_duplicates().merge(b[on].drop_duplicates(), on=on)
    common_a, common_b = (frame.merge(both, on=on) for frame in (a, b))
    return common_a, common_b


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


def measured(metric: Metric, pairing: Pairing, statistic: str | None = None) -> Measured:
    """The numbers of a metric in a pairing, and the evidence of chance in their difference.

    Args:
        statistic: by default the mean; if rows that rounding decides carry it, the median; if they carry that too, the
            mean of the other heads.
    """
    a, b = (_values(frame, metric) for frame in (pairing.a, pairing.b))
    fragile_in = {name for frame in (a, b) for name in _fragile(metric, frame)}
    order = ["mean", "median"] if statistic is None else [statistic]
    chosen = next((name for name in order if name not in fragile_in), SOUND)
    compute = STATISTICS[chosen]
    if pairing.kind is None:
        return _unpaired(chosen, a, b)
    both = _units(a, pairing.on).merge(_units(b, pairing.on), on=pairing.on, suffixes=("_a", "_b"))
    # one order for all runs: the order of a sum decides its last digit
    both = both.sort_values([name for name in ("window", "seed", "layer", "head") if name in both], kind="stable")
    if pairing.kind == "cells":
        finite = both["value_a"].notna(), both["value_b"].notna()
        few, more = int((finite[0] & ~finite[1]).sum()), int((~finite[0] & finite[1]).sum())
    else:
        few, more = _lost(a, b)
    complete = both[both["value_a"].notna() & both["value_b"].notna()]
    evidence = None if len(complete) else Evidence(certain=True)  # without a pair, only lost values tell
    if chosen == SOUND:
        sound = complete[~(complete["doubtful_a"] | complete["doubtful_b"])]
        if len(sound):
            complete = sound
        else:
            why = "rounded rows carry the mean and the median, and every head has some"
            chosen, evidence = "mean", Evidence(why=why)
    evidence = evidence or _evidence(metric, pairing, complete, compute)
    if evidence.test == "windows" and not chosen.startswith("mean"):
        # what is tested is shown: the mean over windows of each window's statistic
        ends = [float(np.mean(side)) for side in zip(*_window_ends(complete, compute), strict=True)]
    else:
        used = complete if len(complete) else both
        ends = [_finite(used[f"value_{side}"].dropna(), compute) for side in "ab"]
    return Measured(ends[0], ends[1], chosen, len(complete), evidence, few, more)


def _values(frame: Rows, metric: Metric) -> Rows:
    """The value of each row, missing if it is not finite, and whether rounding decides the normaliser of the row.

    A time is one value of its cell, not of a head.
    """
    import pandas as pd

    nothing = np.full(len(frame), math.nan)
    numbers = frame[metric.name].to_numpy(float, na_value=math.nan) if metric.name in frame else nothing
    rounded = frame["rounded_rows"].to_numpy(float, na_value=0.0) if "rounded_rows" in frame else nothing
    values = frame[[*UNIT, "seed", "key"]].assign(
        value=pd.Series(numbers, index=frame.index).where(np.isfinite(numbers)),
        doubtful=pd.Series(rounded, index=frame.index) > 0,
    )
    if metric.name == "seconds":
        # the negative number of heads in place of the head: times of as many heads are paired
        heads = values.groupby("key", dropna=False)["head"].transform("size")
        values = values.assign(head=-heads.astype("Int64")).drop_duplicates("key")
    return values


def _fragile(metric: Metric, values: Rows) -> list[str]:
    """The statistics that depend on rows whose normaliser is lost to rounding."""
    codes = np.zeros(len(values), int)  # all values are one group
    windows = values["window"].to_numpy(int, na_value=-1)
    flags = fragile(metric, values["value"].to_numpy(float), codes, windows, values["doubtful"].to_numpy(bool), 1)
    return [name for name, column in flags.items() if column[0]]


def _units(values: Rows, on: list[str]) -> Rows:
    """The mean of each unit over its finite values."""
    groups = values.groupby(on, dropna=False, sort=False)
    return groups.agg(value=("value", "mean"), doubtful=("doubtful", "any"), count=("value", "size")).reset_index()


def _evidence(metric: Metric, pairing: Pairing, units: Rows, statistic: Statistic) -> Evidence:
    """The evidence of chance in the difference of units that have both values."""
    windows = units["window"].nunique(dropna=False)
    x, y = (units[f"value_{side}"].to_numpy(float) for side in "ab")
    if (pairing.same_draws and not metric.timed) or bool((x == y).all()):
        return Evidence(certain=True)
    differences = [end[1] - end[0] for end in _window_ends(units, statistic)]
    if why := _dependent(metric, pairing, units):
        return of_windows(differences, why)
    heads: Sequence[Any] = range(len(units))
    if pairing.other_method:
        # two methods differ at a head by much the same in every window: the windows of a head are exchanged together
        heads = units.groupby(["layer", "head"], dropna=False, sort=True).ngroup().to_numpy()
    count = len(set(heads))
    if len(units) == windows or (windows > 1 and count < FEWEST):
        return of_windows(differences)
    evidence = of_heads(x, y, statistic, heads)
    if windows == 1:
        return replace(evidence, why=evidence.why or f"{len(units)} heads of one window")
    pairs = f"{count} {'pairs of heads' if count == len(units) else 'heads'} in " if len(units) > windows else ""
    return replace(evidence, why=f"{pairs}{windows} windows")


def _dependent(metric: Metric, pairing: Pairing, units: Rows) -> str:
    """The reason why the values of a window are no independent pairs, in words; empty if they are independent."""
    if metric.timed:
        return ": times have no heads to pair"
    if any(frame["shares"].fillna(False).any() for frame in (pairing.a, pairing.b)):
        return ", whose heads share their draws"
    uneven = units[units["count_a"] != units["count_b"]]
    if len(uneven) and not pairing.other_method:
        a, b = (int(uneven[f"count_{side}"].iloc[0]) for side in "ab")
        return f", and other numbers of seeds: {a} in A, {b} in B"
    return ""


def _unpaired(chosen: str, a: Rows, b: Rows) -> Measured:
    """The comparison of runs that share no window: their means over windows are two samples."""
    compute = STATISTICS[chosen]
    sides = [side[side["value"].notna() & ~(side["doubtful"] & (chosen == SOUND))] for side in (a, b)]
    of_windows = [
        side.groupby("window", dropna=False)["value"].agg(lambda values: float(compute(values))) for side in sides
    ]
    known = all(map(len, of_windows))
    evidence = two_samples(*(side.tolist() for side in of_windows)) if known else Evidence(certain=True)
    ends = [_finite(side["value"], compute) for side in sides]
    if not chosen.startswith("mean") and known:
        # what is tested is shown: the mean over windows of each window's statistic
        ends = [float(side.mean()) for side in of_windows]
    return Measured(ends[0], ends[1], chosen, min(map(len, sides)), evidence, *_lost(a, b))


def _lost(a: Rows, b: Rows) -> tuple[int, int]:
    """How many values are finite in A alone and in B alone, where values have no partners: from the finite shares."""
    shares = [float(side["value"].notna().mean()) for side in (a, b)]
    # the subtrahend keeps a share such as 3/10 * 10 from being rounded up to 4
    return (
        math.ceil(max(shares[0] - shares[1], 0) * len(b) - 1e-9),
        math.ceil(max(shares[1] - shares[0], 0) * len(a) - 1e-9),
    )


def _window_ends(units: Rows, statistic: Statistic) -> list[tuple[float, float]]:
    """The statistics of both sides in each window."""
    groups = units.groupby("window", dropna=False, sort=True)
    return [(float(statistic(window["value_a"])), float(statistic(window["value_b"]))) for _, window in groups]


def _finite(values: Series, statistic: Statistic) -> float | None:
    """The statistic of values; None without values, or if it overflows."""
    numbers = values.to_numpy(float)
    if not len(numbers):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(statistic(numbers))
    return value if math.isfinite(value) else None
