"""Rows in long form, one for each head of whatever a cell measured: what everything that is shown is made from.

And their statistics over heads, windows and repeats.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any

from ..frame.metric import METRICS
from ..frame.summary import FRAGILE
from ..records.file import STATUSES
from .labels import with_source
from .table import grouped_by

if TYPE_CHECKING:
    from ..records.shapes import Shape


STATISTICS = ("mean", "se", "median", "p10", "p90", "min", "max", "count")
NORMED = ("output_", "matrix_")  # norms of E, also the ends of their certified intervals
OF_NORM = METRICS["matrix_spectral"]
LEAST_RANKED = 6  # pairs of a rank correlation that is shown
MOST_ORDERS = 8  # pairs, all of whose orders are counted
DOUBTFUL = "doubtful"  # how many values rounding decides, beside the fragile statistics of a metric


def describe(values: Sequence[float | None], windows: Sequence[Hashable]) -> dict[str, Any]:
    """`STATISTICS` of the finite ``values``; ``windows`` names each one's text window.

    The heads and repeats of one text are not independent, so the standard error clusters by window: with the W window
    means m_w of the finite values,

        ``se = sqrt( Σ_w (m_w - m)² / (W - 1) ) / sqrt(W)``,   m the mean of the m_w,

    null for W = 1. Quantiles interpolate linearly between order statistics. A statistic that overflows is null.

    >>> statistics = describe([1.0, 3.0, 6.0, None], [0, 0, 1, 1])
    >>> [statistics[name] for name in STATISTICS]
    [3.3333333333333335, 2.0, 3.0, 1.4, 5.4, 1.0, 6.0, 3]
    """
    valid = [(float(v), w) for v, w in zip(values, windows, strict=True) if v is not None and math.isfinite(v)]
    return _described(valid) if valid else {**dict.fromkeys(STATISTICS), "count": 0}


def _described(values: Sequence[tuple[float, Hashable]]) -> dict[str, Any]:
    """`describe` of values with their windows; of infinite values those that are infinite are null."""
    import numpy as np

    x = [value for value, _ in values]
    ordered = sorted(x)
    by_window: dict[Hashable, list[float]] = {}
    for value, window in values:
        by_window.setdefault(window, []).append(value)
    error = math.nan
    with np.errstate(over="ignore", invalid="ignore"):
        if len(by_window) > 1:
            means = np.array([np.mean(group) for group in by_window.values()])
            error = means.std(ddof=1) / math.sqrt(len(means))
        return {
            "mean": finite(float(np.mean(x))),
            "se": finite(error),
            "median": finite(_exact_quantile(ordered, 0.5)),
            "p10": finite(_exact_quantile(ordered, 0.1)),
            "p90": finite(_exact_quantile(ordered, 0.9)),
            "min": finite(ordered[0]),
            "max": finite(ordered[-1]),
            "count": len(x),
        }


def _exact_quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of numpy to the last bit, which takes fifty times as long for a few values."""
    low, high, part = _neighbours(ordered, share)
    if math.isinf(high):
        return high
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def _neighbours(ordered: Sequence[float], share: float) -> tuple[float, float, float]:
    """The values below and above a quantile, and where it stands between them, from 0 to 1."""
    place = share * (len(ordered) - 1)
    return ordered[math.floor(place)], ordered[math.ceil(place)], place - math.floor(place)


def fragile_statistics(
    metric: str, values: Sequence[float | None], windows: Sequence[Hashable], doubtful: Sequence[bool]
) -> dict[str, Any]:
    """The statistics of a row's metric that depend on heads with rounded rows, each with its range.

    Where rounding decides the normaliser of a row, its error differs from machine to machine, and with the number of
    threads. Such a row matters where it puts the error of its head beyond what other heads have. So: the values of
    ``doubtful`` heads, which have ``rounded_rows``, are brought into the range of the other heads' values, and a
    statistic that this moves by more than `FRAGILE` of its size is fragile. A maximum is fragile where a doubtful head
    attains it, a median where about half the heads are doubtful. Where every head is doubtful, nothing bounds them: all
    are. Bad rows alone say nothing of this: a normaliser that is clearly negative is wrong, and the same everywhere.
    Steady metrics (see `Metric`) have no fragile statistic.

    Returns:
        Both ends of each fragile statistic, and under `DOUBTFUL` the number of values of doubtful heads; empty if none
        is fragile. The ends are attained if these values are all the least, or all the largest, that the metric can
        have: of an error 0 and ∞. Every statistic but the standard error grows with each value; that has 0 and ∞.

    >>> fragile_statistics("output_spectral", [1.0, 2.0, 3.0, 90.0], [0] * 4, [False, False, False, True])
    {'doubtful': 1, 'mean': [1.5, inf], 'p90': [2.7, inf], 'max': [3.0, inf]}
    """
    declared = METRICS.get(metric, OF_NORM if metric.startswith(NORMED) else None)
    if declared is None or declared.steady or not any(doubtful):
        return {}
    every = zip(values, windows, doubtful, strict=True)
    known = [(value, window, bad) for value, window, bad in every if value is not None and math.isfinite(value)]
    if not any(bad for _, _, bad in known):
        return {}
    before = _described([(value, window) for value, window, _ in known])
    sound = [value for value, _, bad in known if not bad]
    if sound:
        after = _described([(min(max(value, min(sound)), max(sound)), window) for value, window, _ in known])
        fragile = [name for name in STATISTICS[:-1] if _differ(before[name], after[name])]
    else:
        fragile = [name for name in STATISTICS[:-1] if before[name] is not None]
    if not fragile:
        return {}
    low, high = (
        _described([(end if bad else value, window) for value, window, bad in known]) for end in declared.range
    )
    low["se"], high["se"] = 0.0, None
    ends = {name: [_or(low[name], -math.inf), _or(high[name], math.inf)] for name in fragile}
    return {DOUBTFUL: len(known) - len(sound), **ends}


def _or(value: float | None, end: float) -> float:
    return end if value is None else value


def _differ(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return False
    return abs(before - after) > FRAGILE * max(abs(before), abs(after))


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p10, median and p90 by linear interpolation; infinite next to an infinite value."""
    ordered = sorted(values)
    return {"p10": _quantile(ordered, 0.1), "median": _quantile(ordered, 0.5), "p90": _quantile(ordered, 0.9)}


def _quantile(ordered: Sequence[float], share: float) -> float:
    low, high, part = _neighbours(ordered, share)
    if not part or math.isinf(low):
        return low
    return high if math.isinf(high) else low + part * (high - low)


def rank_correlation(x: Sequence[float], y: Sequence[float], *, least: int = LEAST_RANKED) -> float | None:
    """Spearman's rank correlation; ties share their mean rank. None for few pairs, constant values or NaN.

    Args:
        least: the number of pairs from which on there is a correlation. Of three unrelated pairs, it is 1 or -1 in one
            of three cases.

    >>> rank_correlation([1, 2, math.inf], [3.0, 2.0, 1.0], least=3)
    -1.0
    >>> rank_correlation([1, 2, math.inf], [3.0, 2.0, 1.0])
    >>> rank_correlation([1, 2, 3] * 2, [4.0] * 6), rank_correlation([4] * 6, [1.0, 2.0, 3.0] * 2)
    (None, None)
    """
    if len(x) < least or len(set(x)) < 2 or len(set(y)) < 2 or any(map(math.isnan, (*x, *y))):
        return None
    import numpy as np

    return round(float(np.corrcoef(_ranks(x), _ranks(y))[0, 1]), 12)


def rank_p_value(x: Sequence[float], y: Sequence[float]) -> float:
    """The two-sided p-value of no `rank_correlation`: of all orders of up to 8 pairs, of more by Student's t.

    >>> rank_p_value(range(6), range(6)) == 2 / math.factorial(6)
    True
    >>> round(rank_p_value(range(12), [3, 0, 1, 2, 7, 4, 11, 5, 6, 9, 8, 10]), 4)
    0.0022
    """
    import numpy as np
    from scipy.special import stdtr

    first, second = (np.array(ranks) - np.mean(ranks) for ranks in (_ranks(x), _ranks(y)))
    if len(x) <= MOST_ORDERS:
        orders = np.array([*permutations(second)]) @ first
        return float(np.mean(np.abs(orders) > abs(first @ second) - 1e-9))
    rho = first @ second / math.sqrt((first @ first) * (second @ second))
    degrees = len(x) - 2
    return 2 * float(stdtr(degrees, -abs(rho) * math.sqrt(degrees / max(1 - rho**2, 1e-15))))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in values]


def worst_status(statuses: Sequence[tuple[str, str | None]]) -> tuple[str, str | None]:
    """The worst status of cells, each with its reason, the number of cells with it, and its first reasons."""
    worst = max((status for status, _ in statuses), key=STATUSES.index)
    if worst == "ok":
        return worst, None
    reasons = Counter(reason for status, reason in statuses if status == worst)
    counts = Counter(status for status, _ in statuses)
    where = ", ".join(f"{counts[status]} {status}" for status in reversed(STATUSES[1:]) if counts[status])
    text = "; ".join(str(reason) for reason in list(reasons)[:3] if reason)
    more = f" (and {len(reasons) - 3} more reasons)" if len(reasons) > 3 else ""
    if len(statuses) == 1:
        return worst, text or None
    return worst, f"{where} of {len(statuses)} cells" + (f": {text}{more}" if text else "")


def finite(value: float) -> float | None:
    """The number; None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def sortable(value: Any) -> tuple[Any, ...]:
    """A key under which null precedes numbers and numbers precede strings."""
    if value is None:
        return (0,)
    return (2, value) if isinstance(value, str) else (1, value)


Row = dict[str, Any]
CELL = ("method", "options", "target", "layer", "window", "n", "d")
SOURCE = ("weights", "source", "scale_inputs")
STATE = ("status", "reason")
FIELDS = (*CELL, *SOURCE, *STATE, "head")  # of every long row


def long_rows(records: Sequence[Any], shape: Shape[Any], fields: Sequence[str] = CELL) -> list[Row]:
    """The rows of records. Each has the ``fields`` of its record, its source and state, and what `Shape.rows` says.

    A record without rows is one row without a head.
    """
    rows = []
    for record, source in with_source(records):
        cell = {name: record.get(name) for name in fields} | source | {name: record.get(name) for name in STATE}
        rows += [cell | row for row in list(shape.rows(record)) or [{"head": None}]]
    return rows


def summarised(
    rows: Iterable[Row], by: Sequence[str], statistics: Callable[[list[Row]], Mapping[str, Any]]
) -> list[Row]:
    """An entry for each group of rows with equal fields ``by``, in the order of their first appearance.

    It has the place and the source of the group's first row, the worst status, the first reason, the numbers of
    ``heads`` and ``windows``, and the ``statistics`` of the group.
    """
    entries = []
    for group in grouped_by(rows, *by):
        place = {name: group[0].get(name) for name in dict.fromkeys((*by, *CELL, *SOURCE)) if name != "window"}
        state = {
            "status": max((row["status"] for row in group), key=STATUSES.index),
            "reason": next((row["reason"] for row in group if row["reason"]), None),
            "heads": len(set(known(group, "head"))),
            "windows": len({row["window"] for row in group}),
        }
        entries.append({**place, **state, **statistics(group)})
    return entries


def described(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> Row:
    """``metrics``: statistics of fields over rows of heads. ``fragile``: those of `fragile_statistics` by field."""
    windows, doubtful = [row.get("window") for row in rows], [bool(row.get("rounded_rows")) for row in rows]
    metrics, fragile = {}, {}
    for name in names:
        values = [row.get(name) for row in rows]
        metrics[name] = describe(values, windows)
        if statistics := fragile_statistics(name, values, windows, doubtful):
            fragile[name] = statistics
    return {"metrics": metrics, "fragile": fragile}


def known(rows: Iterable[Mapping[str, Any]], name: str) -> list[Any]:
    """The values of a field, without nulls."""
    return [value for row in rows if (value := row.get(name)) is not None]


def unbounded(values: Iterable[float | None]) -> list[float]:
    """Numbers, with infinity for null."""
    return [math.inf if value is None else value for value in values]


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """p10, median and p90; None without values."""
    return quantiles(values) if values else None


def median(values: Sequence[float]) -> float | None:
    """The median; None without values."""
    return quantiles(values)["median"] if values else None


def mean(values: Sequence[float]) -> float | None:
    """The mean; None without values."""
    return sum(values) / len(values) if values else None
