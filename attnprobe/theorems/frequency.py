"""Probabilities measured over seeds, per head, with binomial confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, lgamma, log, log1p

import torch
from torch import Tensor

from ..linalg.exceedance import CONFIDENCE, clopper_pearson


@dataclass(frozen=True)
class Frequency:
    """The frequency of an event, (h,), with a confidence interval of its probability."""

    value: Tensor
    lower: Tensor
    upper: Tensor


def frequency(
    happened: Tensor, certain: Tensor | None = None, possible: Tensor | None = None, *, confidence: float = CONFIDENCE
) -> Frequency:
    """The frequency of an event (trials, h) bool, with the interval of Clopper and Pearson.

    Args:
        happened: whether the event happened, (trials, h) bool.
        certain, possible: for trials that are known only within bounds: whether the event certainly happened, and
            whether it possibly happened. The ends of the interval count these. None is ``happened``.

    Raises:
        UsageError: no trials.

    >>> measured = frequency(torch.tensor([[True], [True], [False], [True]]))
    >>> float(measured.value), round(float(measured.lower), 3), round(float(measured.upper), 3)
    (0.75, 0.194, 0.994)
    """
    certain, possible = (happened if event is None else event for event in (certain, possible))
    trials = len(happened)
    low, high = ([int(count) for count in event.sum(0)] for event in (certain & happened, possible | happened))
    ends = [
        [clopper_pearson(count, trials, confidence)[end] for count in counts] for end, counts in ((0, low), (1, high))
    ]
    lower, upper = (torch.tensor(end, dtype=torch.float64) for end in ends)
    return Frequency(happened.double().mean(0).cpu(), lower, upper)


def binomial_tail(k: int, n: int, p: float) -> float:
    """``P(X ≥ k)`` for a binomial X with n trials of probability p.

    >>> round(binomial_tail(2, 3, 0.5), 12)
    0.5
    """
    if k <= 0:
        return 1.0
    if k > n or p <= 0:
        return 0.0
    if p >= 1:
        return 1.0

    def ways(i: int) -> float:
        return lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1)

    terms = [exp(ways(i) + i * log(p) + (n - i) * log1p(-p)) for i in range(k, n + 1)]
    return min(1.0, sum(sorted(terms)))  # small ones first


def quantile_interval(values: Sequence[float], q: float, level: float = CONFIDENCE) -> tuple[float, float]:
    """An interval that contains the q-quantile of the distribution of the values with probability at least ``level``.

    Its ends are order statistics. The probability that j or more of n values are at or below the quantile is that of j
    or more successes in n trials of probability q. With too few values an end is infinite.

    >>> quantile_interval(range(1, 21), 0.5)
    (6, 15)
    """
    ordered, n, alpha = sorted(values), len(values), (1 - level) / 2
    low = max((j for j in range(1, n + 1) if binomial_tail(j, n, q) >= 1 - alpha), default=0)
    high = min((j for j in range(1, n + 1) if binomial_tail(j, n, q) <= alpha), default=0)
    return ordered[low - 1] if low else -inf, ordered[high - 1] if high else inf
