"""Exact intervals of a probability and of a quantile from independent repetitions, by the binomial distribution."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, lgamma, log, log1p

__all__ = ["binomial_tail", "clopper_pearson", "quantile_interval"]

LEVEL = 0.95


def binomial_tail(k: int, n: int, p: float) -> float:
    """``P(X ≥ k)`` for X binomial with n trials of probability p.

    >>> round(binomial_tail(2, 3, 0.5), 12)
    0.5
    """
    if k <= 0:
        return 1.0
    if k > n or p <= 0:
        return 0.0
    if p >= 1:
        return 1.0
    ways = lambda i: lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1)
    terms = [exp(ways(i) + i * log(p) + (n - i) * log1p(-p)) for i in range(k, n + 1)]
    return min(1.0, sum(sorted(terms)))  # small ones first


def clopper_pearson(successes: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """An interval that holds the probability of a success with a chance of at least ``level``, whatever it is.

    Its ends are the p at which as many successes or more, and as many or fewer, have probability ``(1 - level) / 2``
    (Clopper & Pearson 1934), found by bisection.

    >>> low, high = clopper_pearson(0, 10)
    >>> low, round(high, 4)
    (0.0, 0.3085)
    """
    alpha = (1 - level) / 2
    low = 0.0 if successes == 0 else _root(lambda p: binomial_tail(successes, trials, p) - alpha)
    high = 1.0 if successes == trials else _root(lambda p: 1 - binomial_tail(successes + 1, trials, p) - alpha)
    return low, high


def quantile_interval(values: Sequence[float], q: float, level: float = LEVEL) -> tuple[float, float]:
    """An interval that holds the q-quantile of the values' distribution with a chance of at least ``level``.

    Its ends are order statistics: at least j of n values lie at or below the quantile with the chance that a binomial
    number of n trials of probability q is j or more. An end that no value bounds is infinite.

    >>> quantile_interval(range(1, 21), 0.5)
    (6, 15)
    """
    ordered, n, alpha = sorted(values), len(values), (1 - level) / 2
    low = max((j for j in range(1, n + 1) if binomial_tail(j, n, q) >= 1 - alpha), default=0)
    high = min((j for j in range(1, n + 1) if binomial_tail(j, n, q) <= alpha), default=0)
    return ordered[low - 1] if low else -inf, ordered[high - 1] if high else inf


def _root(rising) -> float:
    """Where a monotone function of [0, 1] changes its sign, to one unit in the last place."""
    low, high = 0.0, 1.0
    falls = rising(low) > 0
    while low < (middle := (low + high) / 2) < high:
        if (rising(middle) > 0) == falls:
            low = middle
        else:
            high = middle
    return middle
