"""Whether a difference may be chance: the tests of `attnprobe.judge.compare`, their intervals, and Holm's correction.

Student's and Welch's tests are those of `scipy.stats`. The permutation test counts the exchanges itself, because its
interval must come from the same exchanges as its p-value, and scipy gives none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

LEVEL = 0.05  # two-sided, of all lines of a table together
FEWEST = 6  # pairs; fewer pairs have too few exchanges for a p-value of `LEVEL`
EXACT = 16  # up to so many pairs, all exchanges are counted
RESAMPLES = 9999  # exchanges of more pairs, besides the identity
EQUAL = 1e-6  # a smaller relative difference comes from sums in another order
AT_ONCE = 2**19  # exchanged values that are computed at once, so that they stay in the cache
Statistic = Callable[..., Any]
Interval = tuple[float, float]
Values = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Evidence:
    """The evidence that one difference is not chance.

    Attributes:
        test: ``heads``, ``windows`` or ``two samples``, which give ``p``; ``rounds``, which give ``noise``; None if no
            test applies.
        p: the two-sided p-value. least: the smallest p-value that the test can give.
        freedom, se: the degrees of freedom and the standard error of a test of windows.
        noise: the largest difference that is noise.
        certain: nothing differs by chance between the frames: a difference is an effect of what changed.
        why: in words, what the test rests on, or why there is no test.
        interval: gives, for a level, the differences that the test does not refuse, with confidence ``1 - level``. It
            gives None for a statistic other than the mean, and for too few pairs to refuse anything.
    """

    test: str | None = None
    p: float | None = None
    least: float = 0.0
    freedom: float | None = None
    se: float | None = None
    noise: float | None = None
    certain: bool = False
    why: str = ""
    interval: Callable[[float], Interval | None] = field(default=lambda level: None, repr=False, compare=False)


def of_heads(
    x: Values, y: Values, statistic: Statistic = np.mean, pairs: Sequence[Any] | np.ndarray | None = None
) -> Evidence:
    """The permutation test of paired values: without a change, the two values of a pair are exchangeable.

    The p-value is the share of exchanges after which the statistics of y and of x differ by at least as much. Up to
    `EXACT` pairs, all 2^m exchanges of m pairs are counted; of more pairs, `RESAMPLES` fixed exchanges and the
    identity. The test needs draws that are independent from pair to pair, and no distribution. It holds for the inputs
    of these pairs alone. Values whose relative difference is at most `EQUAL` are equal. The interval has each δ that
    the same test of ``y - δ`` does not refuse: its ends are order statistics of the means of the exchanged and of the
    other differences.

    Args:
        pairs: the pair of each value. The values of a pair, such as those of a head in several windows, are exchanged
            together. By default each value is a pair.

    Cost: O(2^m m), or O(10^4 m) for more than 16 pairs.

    >>> evidence = of_heads([0.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> evidence.p, evidence.interval(0.05), evidence.interval(0.01)
    (0.03125, (1.0, 6.0), None)
    >>> of_heads([1.0, 2.0], [5.0, 5.0]).p, of_heads([1.0] * 6, [2.0] * 6, pairs=[0, 1, 2, 0, 1, 2]).p
    (0.5, 0.25)
    """
    numbers, pair = np.unique(np.arange(len(x)) if pairs is None else np.array(pairs), return_inverse=True)
    if len(numbers) < 2:
        return Evidence(why="one head")
    first, second = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    second = np.where(np.isclose(second, first, rtol=EQUAL, atol=0.0), first, second)
    sums, sizes = np.bincount(pair, second - first), np.bincount(pair).astype(float)

    def changes(exchanged: np.ndarray) -> np.ndarray:
        if statistic is np.mean:  # an exchange turns the sign of a pair's difference, and the mean is linear
            return np.abs((sums.sum() - 2 * (exchanged @ sums)) / len(first))
        swapped = exchanged[:, pair]
        a, b = np.where(swapped, second, first), np.where(swapped, first, second)
        return np.abs(statistic(b, axis=-1) - statistic(a, axis=-1))

    # the same change may come out a little smaller after an exchange, from sums in another order
    observed = changes(np.zeros((1, len(sizes)), dtype=bool)) * (1 - 1e-12)
    count = reached = 0
    for exchanged in _exchanges(len(sizes)):
        count += len(exchanged)
        reached += int((changes(exchanged) >= observed).sum())
    # the exchange of all pairs changes as much as the identity: two of the 2^m exchanges
    least = max(2.0 ** (1 - len(sizes)), 1 / count)
    if statistic is not np.mean:
        return Evidence("heads", reached / count, least)
    return Evidence("heads", reached / count, least, interval=partial(_interval_of_mean, sums, sizes))


def _interval_of_mean(sums: np.ndarray, sizes: np.ndarray, level: float) -> Interval | None:
    """The interval of the permutation test; None if the exchanges are too few for the level.

    Args:
        sums, sizes: of the differences of each pair.
    """
    means = np.concatenate([_parts(exchanged, sums, sizes) for exchanged in _exchanges(len(sums))], axis=1)
    rank = int(level * means.shape[1])
    low, high = float(np.partition(means[0], rank)[rank]), -float(np.partition(-means[1], rank)[rank])
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _parts(exchanged: np.ndarray, sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The smaller and the larger mean of the exchanged and the other differences, (2, exchanges).

    An exchange of no pair or of all pairs has an empty part, and its means are unbounded.
    """
    count, total = exchanged @ sizes, exchanged @ sums
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.sort([total / count, (sums.sum() - total) / (sizes.sum() - count)], axis=0)
    parts[:, (count == 0) | (count == sizes.sum())] = [[-np.inf], [np.inf]]
    return parts


@lru_cache(maxsize=4)
def _exchanges(pairs: int) -> list[np.ndarray]:
    """The exchanges, (exchanges, pairs), in parts: whether an exchange swaps a pair. The first swaps no pair."""
    if pairs <= EXACT:  # the binary digits of 0 … 2^m - 1
        return [(np.arange(2**pairs)[:, None] >> np.arange(pairs) & 1).astype(bool)]
    stream, size = np.random.default_rng(0), max(1, AT_ONCE // pairs)
    counts = (min(size, RESAMPLES - start) for start in range(0, RESAMPLES, size))
    drawn = [stream.integers(2, size=(count, pairs), dtype=bool) for count in counts]
    return [np.zeros((1, pairs), dtype=bool), *drawn]


def of_windows(differences: Sequence[float], why: str = "") -> Evidence:
    """Student's test that the mean of the windows' differences is 0, with one degree of freedom less than windows.

    The test needs windows whose differences are independent and near to normal. The heads of a window may share their
    draws. Equal differences have no variance, so there is no test.

    Args:
        why: words behind the number of windows: the reason why windows are tested, and not heads.

    >>> evidence = of_windows([0.5, 1.5])
    >>> round(evidence.se, 12), evidence.freedom, round(evidence.p, 3)
    (0.5, 1.0, 0.295)
    """
    from scipy.stats import ttest_1samp

    if len(differences) < 2:
        return Evidence(why=f"one text window{why}")
    if not varies(differences):
        return Evidence(why=f"equal differences in {len(differences)} windows: no variance to test by")
    se = standard_error(differences)
    return _of_t(ttest_1samp(differences, 0.0), se, "windows", f"{len(differences)} windows{why}")


def two_samples(x: Sequence[float], y: Sequence[float]) -> Evidence:
    """Welch's test of the window means of two runs that share no window. If neither run's means vary, there is no test.

    >>> evidence = two_samples([1.0, 3.0], [2.0, 8.0, 5.0])
    >>> round(evidence.se, 12), round(evidence.freedom, 3), round(evidence.p, 3)
    (2.0, 2.909, 0.233)
    """
    from scipy.stats import ttest_ind

    if min(len(x), len(y)) < 2:
        return Evidence(why="one text window, and no cell in both runs")
    if not varies(x) and not varies(y):
        return Evidence(why="equal values in the windows of each run: no variance to test by")
    se = math.hypot(standard_error(x), standard_error(y))
    return _of_t(ttest_ind(y, x, equal_var=False), se, "two samples", "other windows")


def _of_t(result: Any, se: float, test: str, why: str) -> Evidence:
    """The evidence of scipy's result of a t-test."""

    def interval(level: float) -> Interval:
        low, high = result.confidence_interval(1 - level)
        return float(low), float(high)

    return Evidence(test, float(result.pvalue), freedom=float(result.df), se=se, why=why, interval=interval)


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of independent values, of at least two.

    >>> standard_error([0.5, 1.5])
    0.5
    """
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def of_rounds(noise: float | None) -> Evidence:
    """The noise of timings. Rounds of one process share caches and load, so they give no p-value."""
    return Evidence("rounds", noise=noise, why="one round has no spread" if noise is None else "the rounds")


def varies(values: Sequence[float]) -> bool:
    """Whether the relative difference of values is above `EQUAL`.

    >>> varies([0.75 - 0.5, 0.7 - 0.45]), varies([1.0, 2.0])
    (False, True)
    """
    return bool(np.ptp(values) > EQUAL * np.max(np.abs(values)))


def holm(p: Iterable[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given.

    If nothing changed, any of them is at most α with probability α at most. With the m values in rising order, the i-th
    is ``max_{j ≤ i} min(1, (m − j + 1) p_(j))``.

    >>> [round(value, 12) for value in holm([0.03, 0.01, 0.04])]
    [0.06, 0.03, 0.06]
    """
    values = list(p)
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, number in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[number]))
        adjusted[number] = largest
    return adjusted


def simultaneous(evidence: Evidence, level: float, tests: int, decided: int) -> Interval | None:
    """The interval of one of several differences that are tested together, which agrees with Holm's decision.

    The interval has the confidence ``1 - level / tests``, so that with probability ``1 - level`` all intervals hold.

    Args:
        decided: 1 or -1, the sign of a difference whose corrected p-value is at most the level; else 0.
    """
    interval = evidence.interval(level / max(tests, 1))
    if interval is None or not decided:
        return interval
    # Holm's method decides later differences at a larger level, where this interval may still have both signs
    low, high = interval
    return (max(low, 0.0), high) if decided > 0 else (low, min(high, 0.0))
