"""Intervals of a mean over few repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVEL = 0.95


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of independent values, by Student's distribution; None of fewer than 2.

    >>> [round(end, 3) for end in mean_interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) * (value - mean) for value in values) / (count - 1) / count)
    reach = student_reach(spread, count)
    return mean - reach, mean + reach


def student_reach(se: float, count: int) -> float:
    """Half of the 95 % interval of a mean of ``count`` values, at least 2, with the standard error ``se``."""
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, (1 + LEVEL) / 2)) * se
