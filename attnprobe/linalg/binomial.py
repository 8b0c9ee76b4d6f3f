"""Confidence intervals of a probability from the frequency of an event."""

from __future__ import annotations

from ..errors import UsageError

CONFIDENCE = 0.95


def clopper_pearson(happened: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval of Clopper & Pearson (1934) for a probability, from ``happened`` events in ``trials``.

    At the lower end, ``happened`` or more events have the probability ``(1 - confidence)/2``; at the upper end,
    ``happened`` or fewer have it. Both ends are quantiles of beta distributions. The interval contains the true
    probability with probability at least ``confidence``.

    Raises:
        UsageError: impossible counts, or a confidence outside (0, 1).

    >>> [round(end, 4) for end in clopper_pearson(4, 20)]
    [0.0573, 0.4366]
    >>> [round(end, 4) for end in clopper_pearson(0, 10)]
    [0.0, 0.3085]
    """
    from scipy.special import betaincinv

    if not 0 <= happened <= trials or trials < 1 or not 0 < confidence < 1:
        raise UsageError(f"{happened} of {trials} trials at confidence {confidence}: no such interval")
    tail, missed = (1 - confidence) / 2, trials - happened
    lower = float(betaincinv(happened, missed + 1, tail)) if happened else 0.0
    upper = float(betaincinv(happened + 1, missed, 1 - tail)) if missed else 1.0
    return lower, upper
