"""Statistics of groups of rows: `summary` makes the frame that tables, figures and gates read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .metric import METRICS, Metric
from .records.file import STATUSES

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

STATISTICS = ("mean", "se", "median", "p10", "p90", "min", "max", "sum", "count")
QUANTILES: Mapping[str, float] = {"p10": 0.1, "median": 0.5, "p90": 0.9}
# Rounding that moves a statistic by more than this share decides it. Two runs that each move by less differ by less
# than the tolerance of `compare`, 5 %.
FRAGILE = 0.02
SPARE = 0.05  # the share of d by which a method may exceed d
COUNTS = ("heads", "windows", "repeats", "cells", "values")
STATE = ("status", "reason", "bad", "over")


def summary(frame: DataFrame, by: Sequence[str], metrics: Sequence[str] = (), cluster: str = "window") -> DataFrame:
    """A line for each group of rows with equal columns ``by``, in the order of their first appearance.

    The columns besides ``by`` are

    - ``heads, windows, repeats, cells``: the number of different values of each; ``values``: of rows with a head;
    - ``status``: the worst status of the group's cells; ``reason``: the reasons of the cells with that status;
    - ``bad``: whether a head has bad rows that no guard replaced; ``over``: whether d is exceeded by more than 5 %;
    - ``METRIC.STAT`` for each metric and each of `STATISTICS`; ``METRIC.half``, half of the 95 % interval of the mean;
    - ``METRIC.STAT.fragile``: whether rounding decides the statistic (see `fragile`).

    A metric that is made of means, as a perplexity, has its mean and its count alone.

    A value that was not measured enters no statistic. Infinity counts as the largest value. Quantiles interpolate
    linearly between order statistics. The heads and repeats of a text are not independent, so the standard error
    clusters by window: with the W means m_w of windows,

        ``se = sqrt( Σ_w (m_w − m)² / (W − 1) ) / sqrt(W)``,   m the mean of the m_w; missing for W = 1,
        ``half = t · se``,   t the 97.5 % quantile of Student's distribution with W − 1 degrees of freedom.

    Args:
        metrics: columns of numbers; a column that the frame lacks is left out.
        cluster: the column whose values are independent of each other.

    Cost: O(rows · metrics · log rows).

    >>> import pandas as pd
    >>> rows = pd.DataFrame({"method": "a", "window": [0, 0, 1], "head": [0, 1, 0], "kl": [1.0, 3.0, 6.0]})
    >>> line = summary(rows, ["method"], ["kl"]).iloc[0]
    >>> float(line["kl.mean"]), float(line["kl.se"]), float(line["kl.p90"]), int(line["windows"])
    (3.3333333333333335, 2.0, 5.4, 2)
    """
    import numpy as np
    import pandas as pd

    # every row gets the number of its group; all statistics are computed on arrays, for all groups at once
    groups = frame.groupby(list(by), sort=False, dropna=False, observed=True)
    codes = groups.ngroup().to_numpy()
    count = int(codes.max()) + 1 if len(codes) else 0
    _, first = np.unique(codes, return_index=True)
    columns: dict[str, Any] = {name: frame[name].take(first).reset_index(drop=True) for name in by}
    columns |= _counts(frame, codes, count) | _states(frame, codes, count)
    windows = _codes(frame, cluster)
    doubtful = numbers_of(frame, "rounded_rows") > 0
    described = partial(_described, frame, codes=codes, windows=windows, doubtful=doubtful, count=count)
    for name in (name for name in metrics if name in frame):
        metric = METRICS.get(name)
        if metric is not None and metric.made_of:
            columns |= _of_means(metric, {other: described(other) for other in metric.made_of})
        else:
            columns |= described(name)
    return pd.DataFrame({**columns, "over": _over(columns, count)})


def _over(columns: Mapping[str, Any], count: int) -> np.ndarray:
    """Whether a group uses more than its budget d; a group without a budget uses never too much."""
    import numpy as np
    import pandas as pd

    used, budget = columns.get("realised_d.mean"), columns.get("d")
    if used is None or budget is None:
        return np.zeros(count, bool)
    return used > (1 + SPARE) * pd.Series(budget).to_numpy(float, na_value=np.inf)


def _described(
    frame: DataFrame, name: str, codes: np.ndarray, windows: np.ndarray, doubtful: np.ndarray, count: int
) -> dict[str, Any]:
    """The columns ``NAME.STAT`` and ``NAME.STAT.fragile`` of a metric."""
    values = numbers_of(frame, name)
    found = statistics(values, codes, windows, count)
    flags = fragile(METRICS.get(name), values, codes, windows, doubtful, count)
    return {
        **{f"{name}.{statistic}": column for statistic, column in found.items()},
        **{f"{name}.{statistic}.fragile": column for statistic, column in flags.items()},
    }


def _of_means(metric: Metric, made_of: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The columns of a metric that is computed from the means of others."""
    import numpy as np

    # the count and the fragility are those of the last of the others, which alone depends on the method
    name, last = metric.name, metric.made_of[-1]
    means = [columns[f"{other}.mean"] for other, columns in made_of.items()]
    made = np.array([metric.formula(*of_group) for of_group in zip(*means, strict=True)], float)
    nothing = {f"{name}.{statistic}": np.full(len(made), np.nan) for statistic in STATISTICS}
    found = {**nothing, f"{name}.mean": made, f"{name}.count": made_of[last][f"{last}.count"]}
    flag = made_of[last].get(f"{last}.mean.fragile")
    return found if flag is None else {**found, f"{name}.mean.fragile": flag}


def statistics(values: np.ndarray, codes: np.ndarray, windows: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """`STATISTICS` of the values of each group, and ``half`` (see `summary`); NaN is no value.

    Args:
        values: of each row. codes: the number of each row's group. windows: the number of each row's text window.
        count: the number of groups.
    """
    import numpy as np

    known = ~np.isnan(values)
    values, codes, windows = values[known], codes[known], windows[known]
    sizes = np.bincount(codes, minlength=count)
    order = np.lexsort((values, codes))  # by group, then by value
    ordered, starts = values[order], np.concatenate([[0], np.cumsum(sizes)[:-1]])
    empty = sizes == 0

    def quantile(share: float) -> np.ndarray:
        return _quantiles(ordered, starts, sizes, share)

    errors, half = _standard_errors(values, codes, windows, count)
    with np.errstate(all="ignore"):
        sums = np.bincount(codes, values, count)
        found = {
            "mean": sums / sizes,
            "se": errors,
            **{name: quantile(share) for name, share in QUANTILES.items()},
            "min": quantile(0.0),
            "max": quantile(1.0),
            "sum": sums,
        }
    columns = {name: np.where(empty, np.nan, found[name]) for name in STATISTICS if name != "count"}
    return columns | {"count": sizes, "half": half}


def _quantiles(ordered: np.ndarray, starts: np.ndarray, sizes: np.ndarray, share: float) -> np.ndarray:
    """A quantile of each group.

    Args:
        ordered: the values, group after group, rising within each. starts, sizes: of the groups in ``ordered``.
    """
    import numpy as np

    if not len(ordered):
        return np.full(len(sizes), np.nan)
    positions = share * np.maximum(sizes - 1, 0)
    below = np.floor(positions).astype(int)
    part = positions - below
    # an empty group at the end starts behind the last value; its result is not used
    last = len(ordered) - 1
    low = ordered[np.minimum(starts + below, last)]
    high = ordered[np.minimum(starts + np.ceil(positions).astype(int), last)]
    # the arithmetic of numpy.quantile, which is exact at both ends
    between = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    # numpy gives NaN beside an infinity, which counts as the largest value here
    return np.where((part == 0) | (low == high), low, np.where(np.isinf(high), high, between))


def _standard_errors(
    values: np.ndarray, codes: np.ndarray, windows: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The standard error of each group's mean, and half of the mean's 95 % interval; NaN for one window."""
    import numpy as np
    from scipy.special import stdtrit

    # a pair is a window of a group; its mean enters once, however many heads and repeats it has
    pairs, of_pair = np.unique(np.stack([codes, windows]), axis=1, return_inverse=True)
    of_pair = of_pair.reshape(-1)  # some versions of numpy give two dimensions
    groups, number = pairs[0], np.bincount(pairs[0], minlength=count)
    with np.errstate(all="ignore"):
        means = np.bincount(of_pair, values) / np.bincount(of_pair)
        deviations = means - (np.bincount(groups, means, count) / number)[groups]
        error = np.sqrt(np.bincount(groups, deviations**2, count) / (number - 1)) / np.sqrt(number)
    error = np.where(number > 1, error, np.nan)
    return error, stdtrit(np.maximum(number - 1, 1), 0.975) * error


def fragile(
    metric: Metric | None,
    values: np.ndarray,
    codes: np.ndarray,
    windows: np.ndarray,
    doubtful: np.ndarray,
    count: int,
) -> dict[str, np.ndarray]:
    """The statistics of each group that rounding decides, as flags; a statistic that is nowhere fragile is left out.

    A row whose normaliser rounding decides has another error on another machine. That matters if it takes the error of
    its head out of the range of the other heads. So a statistic is fragile if it moves by more than `FRAGILE` when the
    values of doubtful heads are brought into the range of the other heads. If every head is doubtful, nothing bounds
    them, and all statistics are fragile. Steady metrics (see `Metric`) have no fragile statistic.

    Args:
        doubtful: whether each row is of a head with ``rounded_rows``. The other arguments are as in `statistics`.
    """
    import numpy as np

    if metric is None or metric.steady or not doubtful.any():
        return {}
    before = statistics(values, codes, windows, count)
    sound = statistics(np.where(doubtful, np.nan, values), codes, windows, count)
    brought = np.clip(values, sound["min"][codes], sound["max"][codes])
    after = statistics(np.where(doubtful, brought, values), codes, windows, count)
    has_doubtful = np.bincount(codes[doubtful & ~np.isnan(values)], minlength=count) > 0
    all_doubtful = sound["count"] == 0
    flags = {}
    for name in STATISTICS[:-1]:
        with np.errstate(invalid="ignore"):
            moved = np.abs(before[name] - after[name])
            differ = moved > FRAGILE * np.maximum(np.abs(before[name]), np.abs(after[name]))
        flags[name] = has_doubtful & (all_doubtful | differ) & ~np.isnan(before[name])
    return {name: flag for name, flag in flags.items() if flag.any()}


def numbers_of(frame: DataFrame, name: str) -> np.ndarray:
    """A column as float64, NaN where nothing was measured."""
    import numpy as np

    if name not in frame:
        return np.full(len(frame), np.nan)
    return frame[name].to_numpy(float, na_value=np.nan)


def _codes(frame: DataFrame, name: str) -> np.ndarray:
    """The values of a column as numbers from 0 on, -1 where it is missing."""
    import numpy as np
    import pandas as pd

    return pd.factorize(frame[name])[0] if name in frame else np.zeros(len(frame), int)


def _counts(frame: DataFrame, codes: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """How many different heads, windows, repeats and cells each group has, and how many rows with a head."""
    import numpy as np

    counts = {}
    for plural, name in (("heads", "head"), ("windows", "window"), ("repeats", "repeat"), ("cells", "key")):
        of_rows = _codes(frame, name)
        pairs = np.unique(np.stack([codes, of_rows])[:, of_rows >= 0], axis=1)
        counts[plural] = np.bincount(pairs[0], minlength=count) if name in frame else np.zeros(count, int)
    # without the column, as of whole cells, every row is a value
    with_head = _codes(frame, "head") >= 0 if "head" in frame else np.ones(len(frame), bool)
    return counts | {"values": np.bincount(codes[with_head], minlength=count)}


def _states(frame: DataFrame, codes: np.ndarray, count: int) -> dict[str, Any]:
    """The worst status of each group with its reason, and whether heads have bad rows."""
    import numpy as np

    ranks = frame["status"].map(STATUSES.index).to_numpy(int) if "status" in frame else np.zeros(len(frame), int)
    worst = np.zeros(count, int)
    # `worst[codes] = …` would keep the last row of each group and not the worst
    np.maximum.at(worst, codes, ranks)
    guarded = ~np.isnan(numbers_of(frame, "guarded_rows"))
    # a guard has replaced the rows that it counts, so they spoil nothing
    spoiled = (numbers_of(frame, "bad_rows") > 0) & ~guarded
    bad = np.zeros(count, bool)
    np.logical_or.at(bad, codes, spoiled)
    reasons: list[str | None] = [None] * count
    # in one pass over the rows: a frame of maps has a group for each block
    lost = np.flatnonzero((ranks > 0) & (ranks == worst[codes]))
    texts: dict[int, dict[str, None]] = {}
    for group, text in zip(codes[lost], frame["reason"].iloc[lost] if len(lost) else (), strict=True):
        if isinstance(text, str):
            texts.setdefault(int(group), {})[str(text)] = None
    for group, of_group in texts.items():
        reasons[group] = "; ".join(of_group) or None
    return {"status": [STATUSES[rank] for rank in worst], "reason": reasons, "bad": bad}
