"""Statistics of groups of rows: `summary` makes the frame that tables, figures and gates read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .metric import METRICS, Metric
from .records.file import STATUSES

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

STATISTICS = ("mean", "se", "median", "p10", "p90", "min", "max", "sum", "count")
QUANTILES: Mapping[str, float] = {"p10": 0.1, "median": 0.5, "p90": 0.9}
FRAGILE = 0.02  # relative change of a statistic; two runs within it differ by less than the 5 % of `compare`
SPARE = 0.05  # of d that a method may use beyond it
COUNTS = ("heads", "windows", "repeats", "cells", "values")
STATE = ("status", "reason", "bad", "over")


def summary(frame: DataFrame, by: Sequence[str], metrics: Sequence[str] = (), cluster: str = "window") -> DataFrame:
    """A line for each group of rows with equal columns ``by``, in the order of their first appearance.

    Beside ``by`` it has

    - ``heads, windows, repeats, cells``: how many different ones, and ``values``, the number of rows with a head;
    - ``status``: the worst of the group's cells, and ``reason``, what its cells with that status say;
    - ``bad``: whether a head has bad rows that no guard replaced. ``over``: whether more than d is used, by over 5 %;
    - ``METRIC.STAT`` for each metric and each of `STATISTICS`; ``METRIC.STAT.fragile``, whether rounding decides it;
      ``METRIC.half``, half of the 95 % interval of the mean.

    A metric that is made of means, as a perplexity, has its mean and its count alone.

    A value that was not measured enters no statistic. Infinity counts as the largest value. Quantiles interpolate
    linearly between order statistics. The heads and repeats of a text are not independent, so the standard error
    clusters by window: with the W means m_w of windows,

        ``se = sqrt( Σ_w (m_w − m)² / (W − 1) ) / sqrt(W)``,   m the mean of the m_w; missing for W = 1,
        ``half = t · se``,   t the 97.5 % quantile of Student's distribution with W − 1 degrees of freedom.

    A statistic is fragile where `rounded_rows` says that rounding decides the normaliser of some row of a head, and
    bringing the values of these heads into the range of the other heads moves the statistic by more than 2 %.

    Args:
        metrics: columns of numbers; those that the frame lacks are left out. cluster: the column whose values are
            independent of each other, if it is not the window.

    Cost: O(rows · metrics · log rows).

    >>> import pandas as pd
    >>> rows = pd.DataFrame({"method": "a", "window": [0, 0, 1], "head": [0, 1, 0], "kl": [1.0, 3.0, 6.0]})
    >>> one = summary(rows, ["method"], ["kl"]).iloc[0]
    >>> float(one["kl.mean"]), float(one["kl.se"]), float(one["kl.p90"]), int(one["windows"])
    (3.3333333333333335, 2.0, 5.4, 2)
    """
    import numpy as np
    import pandas as pd

    groups = frame.groupby(list(by), sort=False, dropna=False, observed=True)
    codes = groups.ngroup().to_numpy()
    count = int(codes.max()) + 1 if len(codes) else 0
    _, first = np.unique(codes, return_index=True)
    columns: dict[str, Any] = {name: frame[name].take(first).reset_index(drop=True) for name in by}
    columns |= _counts(frame, codes, count) | _states(frame, codes, count)
    windows = _codes(frame, cluster)
    doubtful = _numbers(frame, "rounded_rows") > 0
    for name in metrics:
        metric = METRICS.get(name)
        if name not in frame:
            continue
        if metric is not None and metric.made_of:
            of_means = {of: _described(frame, of, codes, windows, doubtful, count) for of in metric.made_of}
            columns |= _of_means(metric, of_means)
        else:
            columns |= _described(frame, name, codes, windows, doubtful, count)
    used, budget = columns.get("realised_d.mean"), columns.get("d")
    over = np.zeros(count, bool)
    if used is not None and budget is not None:
        over = used > (1 + SPARE) * pd.Series(budget).to_numpy(float, na_value=np.inf)
    return pd.DataFrame({**columns, "over": over})


def _described(
    frame: DataFrame, name: str, codes: np.ndarray, windows: np.ndarray, doubtful: np.ndarray, count: int
) -> dict[str, Any]:
    """The columns ``NAME.STAT`` and ``NAME.STAT.fragile`` of a metric."""
    values = _numbers(frame, name)
    found = statistics(values, codes, windows, count)
    flags = fragile(METRICS.get(name), values, codes, windows, doubtful, count)
    return {
        **{f"{name}.{statistic}": column for statistic, column in found.items()},
        **{f"{name}.{statistic}.fragile": column for statistic, column in flags.items()},
    }


def _of_means(metric: Metric, made_of: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The columns of a metric that is computed from the means of others."""
    import numpy as np

    name, last = metric.name, metric.made_of[-1]
    means = [columns[f"{of}.mean"] for of, columns in made_of.items()]
    made = np.array([metric.formula(*of_group) for of_group in zip(*means, strict=True)], float)
    nothing = {f"{name}.{statistic}": np.full(len(made), np.nan) for statistic in STATISTICS}
    found = {**nothing, f"{name}.mean": made, f"{name}.count": made_of[last][f"{last}.count"]}
    flag = made_of[last].get(f"{last}.mean.fragile")
    return found if flag is None else {**found, f"{name}.mean.fragile": flag}


def statistics(values: np.ndarray, codes: np.ndarray, windows: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """`STATISTICS` of the values of each group, and ``half`` (see `summary`); NaN is no value.

    Args:
        values, codes, windows: of each row, its number, the number of its group, and that of its text window.
        count: the number of groups.
    """
    import numpy as np

    known = ~np.isnan(values)
    values, codes, windows = values[known], codes[known], windows[known]
    sizes = np.bincount(codes, minlength=count)
    order = np.lexsort((values, codes))
    ordered, starts = values[order], np.concatenate([[0], np.cumsum(sizes)[:-1]])
    empty = sizes == 0

    def at(share: float) -> np.ndarray:
        return _quantiles(ordered, starts, sizes, share)

    errors, half = _standard_errors(values, codes, windows, count)
    with np.errstate(all="ignore"):
        sums = np.bincount(codes, values, count)
        found = {
            "mean": sums / sizes,
            "se": errors,
            **{name: at(share) for name, share in QUANTILES.items()},
            "min": at(0.0),
            "max": at(1.0),
            "sum": sums,
        }
    columns = {name: np.where(empty, np.nan, found[name]) for name in STATISTICS if name != "count"}
    return columns | {"count": sizes, "half": half}


def _quantiles(ordered: np.ndarray, starts: np.ndarray, sizes: np.ndarray, share: float) -> np.ndarray:
    """A quantile of each group of ``ordered``, groups one after the other and ascending within each."""
    import numpy as np

    if not len(ordered):
        return np.full(len(sizes), np.nan)
    places = share * np.maximum(sizes - 1, 0)
    below = np.floor(places).astype(int)
    part = places - below
    last = len(ordered) - 1
    low = ordered[np.minimum(starts + below, last)]
    high = ordered[np.minimum(starts + np.ceil(places).astype(int), last)]
    # the arithmetic of numpy.quantile, which is exact at both ends
    between = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    return np.where((part == 0) | (low == high), low, np.where(np.isinf(high), high, between))


def _standard_errors(
    values: np.ndarray, codes: np.ndarray, windows: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The standard error of each group's mean, and half of the mean's 95 % interval; NaN of one window."""
    import numpy as np
    from scipy.special import stdtrit

    pairs, of_pair = np.unique(np.stack([codes, windows]), axis=1, return_inverse=True)
    of_pair = of_pair.reshape(-1)
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
    """The statistics of each group that rounding decides, as flags; empty if it decides none.

    A row whose normaliser rounding decides has another error on another machine. It matters where it takes the error of
    its head out of the range of the other heads. Where every head is doubtful, nothing bounds them: all statistics are
    fragile. Steady metrics (see `Metric`) have no fragile statistic.

    Args:
        doubtful: whether each row is of a head with ``rounded_rows``; the others as `statistics` takes them.
    """
    import numpy as np

    if metric is None or metric.steady or not doubtful.any():
        return {}
    before = statistics(values, codes, windows, count)
    sound = statistics(np.where(doubtful, np.nan, values), codes, windows, count)
    brought = np.clip(values, sound["min"][codes], sound["max"][codes])
    after = statistics(np.where(doubtful, brought, values), codes, windows, count)
    some = np.bincount(codes[doubtful & ~np.isnan(values)], minlength=count) > 0
    alone = sound["count"] == 0
    flags = {}
    for name in STATISTICS[:-1]:
        with np.errstate(invalid="ignore"):
            moved = np.abs(before[name] - after[name])
            differ = moved > FRAGILE * np.maximum(np.abs(before[name]), np.abs(after[name]))
        flags[name] = some & (alone | differ) & ~np.isnan(before[name])
    return {name: column for name, column in flags.items() if column.any()}


def _numbers(frame: DataFrame, name: str) -> np.ndarray:
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
    import numpy as np

    found = {}
    for plural, name in (("heads", "head"), ("windows", "window"), ("repeats", "repeat"), ("cells", "key")):
        each = _codes(frame, name)
        pairs = np.unique(np.stack([codes, each])[:, each >= 0], axis=1)
        found[plural] = np.bincount(pairs[0], minlength=count) if name in frame else np.zeros(count, int)
    with_head = _codes(frame, "head") >= 0 if "head" in frame else np.ones(len(frame), bool)
    return found | {"values": np.bincount(codes[with_head], minlength=count)}


def _states(frame: DataFrame, codes: np.ndarray, count: int) -> dict[str, Any]:
    """The worst status of each group with its reason, and whether heads have bad rows."""
    import numpy as np

    ranks = frame["status"].map(STATUSES.index).to_numpy(int) if "status" in frame else np.zeros(len(frame), int)
    worst = np.zeros(count, int)
    np.maximum.at(worst, codes, ranks)
    guarded = ~np.isnan(_numbers(frame, "guarded_rows"))
    spoiled = (_numbers(frame, "bad_rows") > 0) & ~guarded
    bad = np.zeros(count, bool)
    np.logical_or.at(bad, codes, spoiled)
    reasons: list[str | None] = [None] * count
    for group in np.flatnonzero(worst > 0):
        cells = frame.loc[(codes == group) & (ranks == worst[group])]
        texts = [str(text) for text in cells["reason"].tolist() if isinstance(text, str)]
        reasons[group] = "; ".join(dict.fromkeys(texts)) or None
    return {"status": [STATUSES[rank] for rank in worst], "reason": reasons, "bad": bad}
