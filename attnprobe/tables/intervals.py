"""Intervals of a mean over few repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["mean_interval", "student"]

PANELS = 400  # of Simpson's rule
LEVEL = 0.95


def student(share: float, freedom: int) -> float:
    """The number t below which Student's distribution of so many degrees of freedom has this share, above one half.

    By bisection on ``½ + c ∫ cos(θ)^(ν-1) dθ`` from 0 to ``arctan(t/√ν)``, which is the distribution under ``t = √ν
    tan θ``; right to 1e-9.

    >>> [round(student(0.975, freedom), 3) for freedom in (1, 2, 10, 100)]
    [12.706, 4.303, 2.228, 1.984]
    """
    size = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 + size * _area(middle, freedom - 1) < share else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of independent values, by Student's distribution; None of fewer than 2.

    >>> [round(end, 3) for end in mean_interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    reach = student((1 + LEVEL) / 2, count - 1) * spread
    return mean - reach, mean + reach


def _area(end: float, power: int) -> float:
    """``∫ cos(θ)^power dθ`` from 0 to ``end`` by Simpson's rule."""
    step = end / PANELS
    heights = [math.cos(place * step) ** power for place in range(PANELS + 1)]
    return step / 3 * (heights[0] + heights[-1] + 4 * math.fsum(heights[1:-1:2]) + 2 * math.fsum(heights[2:-1:2]))
