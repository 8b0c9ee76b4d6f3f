"""The role of chance in a difference between two runs: tests of pairs and of windows, and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

LEVEL = 0.05  # two-sided, of all rows of a table together
FEWEST = 6  # pairs whose exchanges can decide a row at `LEVEL`
EXACT = 16  # pairs whose exchanges are all counted
RESAMPLES = 9999  # exchanges of more pairs, besides the identity
EQUAL = 1e-6  # of a value; a smaller difference is that of sums in another order
AT_ONCE = 2**19  # exchanged values of one part, which stay in the cache
Statistic = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Evidence:
    """The evidence that one difference is not chance.

    Attributes:
        test: ``pairs``, ``windows`` or ``two samples``, which give ``p``; ``rounds``, which give ``noise``; None where
            no test applies.
        p: the two-sided p-value. least: the smallest that the test can give. freedom, se: the degrees of freedom and
            the standard error of a test of windows.
        noise: a difference up to here is noise.
        certain: nothing differs by chance between the runs, so every difference is of the program.
        why: in words, what the test rests on, or why there is none.
        means: computes, of each exchange, the smaller and the larger mean difference of its two parts, (2, exchanges).
    """

    test: str | None = None
    p: float | None = None
    least: float = 0.0
    freedom: float | None = None
    se: float | None = None
    noise: float | None = None
    certain: bool = False
    why: str = ""
    means: Callable[[], np.ndarray] | None = field(default=None, repr=False, compare=False)

    def interval(self, difference: float | None, level: float) -> tuple[float, float] | None:
        """The interval of the difference that the test does not refuse, with confidence ``1 - level``.

        Of pairs: the test of the differences less δ counts the exchanges of which one part has a mean on the far side
        of δ, so the limits are order statistics of these means. Of windows: ``difference ± t se``. None without a test,
        of a statistic other than the mean, and of too few pairs to refuse anything.

        >>> evidence = over_pairs([0.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        >>> evidence.p, evidence.interval(3.5, 0.05), evidence.interval(3.5, 0.01)
        (0.03125, (1.0, 6.0), None)
        """
        if self.means is not None:
            means = self.means()
            place = int(level * means.shape[1])
            low = float(np.partition(means[0], place)[place])
            high = -float(np.partition(-means[1], place)[place])
        elif self.freedom is not None and self.se is not None and difference is not None:
            from scipy.stats import t

            reach = float(t.isf(level / 2, self.freedom)) * self.se
            low, high = difference - reach, difference + reach
        else:
            return None
        return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def over_pairs(
    x: Sequence[float], y: Sequence[float], statistic: Statistic = np.mean, pairs: Sequence[Any] | None = None
) -> Evidence:
    """The permutation test of paired values: without a change, the two values of a pair are exchangeable.

    The p-value is the share of exchanges after which the statistics of y and of x differ by at least as much: of all
    2^m exchanges of m pairs up to `EXACT`, of `RESAMPLES` fixed ones and the identity beyond. It rests on draws that
    are independent from pair to pair, on no distribution, and holds for the inputs of these pairs alone. Values that
    differ by at most `EQUAL` of them are equal.

    Args:
        pairs: the pair of each value, such as a head in several windows: its values are exchanged together. By default
            each value is a pair.

    >>> over_pairs([1.0] * 6, [2.0] * 6).p, over_pairs([1.0, 2.0], [5.0, 5.0]).p
    (0.03125, 0.5)
    >>> over_pairs([1.0] * 6, [2.0] * 6, pairs=[0, 1, 2, 0, 1, 2]).p
    0.25
    """
    of = range(len(x)) if pairs is None else pairs
    numbers = {one: number for number, one in enumerate(sorted(set(of)))}
    pair = np.array([numbers[one] for one in of])
    sizes = np.bincount(pair).astype(float)
    if len(sizes) < 2:
        return Evidence(why="one head")
    one, other = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    other = np.where(np.isclose(other, one, rtol=EQUAL, atol=0.0), one, other)
    sums = np.bincount(pair, other - one)

    def changes(exchanged: np.ndarray) -> np.ndarray:
        if statistic is np.mean:  # linear in the exchanged differences
            return np.abs((sums.sum() - 2 * (exchanged @ sums)) / len(one))
        swapped = exchanged[:, pair]
        a, b = np.where(swapped, other, one), np.where(swapped, one, other)
        return np.abs(statistic(b, axis=-1) - statistic(a, axis=-1))

    observed = changes(np.zeros((1, len(sizes)), dtype=bool)) * (1 - 1e-12)  # equal up to the order of a sum
    count = reached = 0
    for exchanged in _exchanges(len(sizes)):
        count += len(exchanged)
        reached += int((changes(exchanged) >= observed).sum())

    def means() -> np.ndarray:
        return np.concatenate([_parts(exchanged, sums, sizes) for exchanged in _exchanges(len(sums))], axis=1)

    least = max(2.0 ** (1 - len(sizes)), 1 / count)
    return Evidence("pairs", reached / count, least, means=means if statistic is np.mean else None)


def _parts(exchanged: np.ndarray, sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The smaller and the larger mean of the exchanged and the other differences, unbounded if one part is empty."""
    count, total = exchanged @ sizes, exchanged @ sums
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.sort([total / count, (sums.sum() - total) / (sizes.sum() - count)], axis=0)
    parts[:, (count == 0) | (count == sizes.sum())] = [[-np.inf], [np.inf]]
    return parts


@lru_cache(maxsize=4)
def _exchanges(pairs: int) -> list[np.ndarray]:
    """The exchanged pairs of each permutation, (exchanges, pairs), in parts; the first exchanges none."""
    if pairs <= EXACT:
        return [(np.arange(2**pairs)[:, None] >> np.arange(pairs) & 1).astype(bool)]
    stream, part = np.random.default_rng(0), max(1, AT_ONCE // pairs)
    counts = (min(part, RESAMPLES - first) for first in range(0, RESAMPLES, part))
    drawn = [stream.integers(2, size=(count, pairs), dtype=bool) for count in counts]
    return [np.zeros((1, pairs), dtype=bool), *drawn]


def over_windows(differences: Sequence[float], why: str = "") -> Evidence:
    """Student's test that the mean of the windows' differences is 0, with one degree of freedom less than windows.

    Rests on windows whose differences are independent and near to normal; the heads of a window may share their draws.
    Equal differences have no variance, so there is no test.

    Args:
        why: words behind the number of windows: why these are tested.

    >>> evidence = over_windows([0.5, 1.5])
    >>> round(evidence.se, 12), evidence.freedom, round(evidence.p, 3)
    (0.5, 1, 0.295)
    """
    from scipy.stats import t

    count, se = len(differences), standard_error(differences)
    if se is None:
        return Evidence(why=f"one text window{why}")
    if not se:
        return Evidence(why=f"equal differences in {count} windows: no variance to test by")
    p = 2 * float(t.sf(abs(math.fsum(differences) / count) / se, count - 1))
    return Evidence("windows", p, freedom=count - 1, se=se, why=f"{count} windows{why}")


def two_samples(x: Sequence[float], y: Sequence[float]) -> Evidence:
    """Welch's test of the window means of two runs that share no window; none if neither run's means vary.

    >>> evidence = two_samples([1.0, 3.0], [2.0, 8.0, 5.0])
    >>> round(evidence.se, 12), round(evidence.freedom, 3), round(evidence.p, 3)
    (2.0, 2.909, 0.233)
    """
    from scipy.stats import t

    ses = [error for values in (x, y) if (error := standard_error(values)) is not None]
    if len(ses) < 2:
        return Evidence(why="one text window, and no cell in both runs")
    se = math.hypot(*ses)
    change = math.fsum(y) / len(y) - math.fsum(x) / len(x)
    if not se:
        return Evidence(why="equal values in the windows of each run: no variance to test by")
    shares = (ses[0] / se) ** 4 / (len(x) - 1) + (ses[1] / se) ** 4 / (len(y) - 1)
    freedom = 1 / shares
    p = 2 * float(t.sf(abs(change) / se, freedom))
    return Evidence("two samples", p, freedom=freedom, se=se, why="other windows")


def within_rounds(noise: float | None) -> Evidence:
    """The noise of timings. Rounds of one process share caches and load, so they give no p-value."""
    return Evidence("rounds", noise=noise, why="one round has no spread" if noise is None else "the rounds")


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean of independent values; None for fewer than 2, 0 for values within `EQUAL`.

    >>> standard_error([0.75 - 0.5, 0.7 - 0.45])
    0.0
    """
    if len(values) < 2:
        return None
    equal = np.ptp(values) <= EQUAL * np.max(np.abs(values))
    return 0.0 if equal else float(np.std(values, ddof=1)) / math.sqrt(len(values))


def holm(p: Iterable[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: at most α of them under no change at all, with probability 1 − α.

    With the m values in rising order, ``max_{j ≤ i} min(1, (m − j + 1) p_(j))``.

    >>> [round(value, 12) for value in holm([0.03, 0.01, 0.04])]
    [0.06, 0.03, 0.06]
    """
    values = list(p)
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = largest
    return adjusted
