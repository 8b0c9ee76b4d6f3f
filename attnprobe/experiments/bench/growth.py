"""The growth of a cost with n: its exponent, and the n from which one cost is below another."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from statistics import linear_regression

FIT_FROM = 2048  # tokens; below it, constant costs would distort the fit


def growth(cost: str) -> str:
    """The growth with n of the cost that the registry states for a method.

    >>> growth("n² (p + d)"), growth("2 n d p + O(n √n p)"), growth("4 n d p + O(d³)")
    ('n²', 'n √n', 'n')
    """
    return next((word for word in ("n³", "n²", "n √n") if word in cost), "n")


def exponent(cost_at: Mapping[int, float]) -> float | None:
    """The slope of log cost over log n by least squares for n ≥ 2048; None for fewer than two of them.

    >>> round(exponent({1024: 9.0, 2048: 1.0, 4096: 4.0, 8192: 16.0}), 6)
    2.0
    """
    points = [(log(n), log(cost)) for n, cost in cost_at.items() if n >= FIT_FROM and cost > 0]
    return linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else None


def faster_from(method: Mapping[int, float], exact: Mapping[int, float]) -> float | None:
    """The n from which a method costs less than exact attention; None if it costs more at the longest n of both.

    Between the last n at which it costs more and the next n, log cost is interpolated linearly in log n. If it costs
    less at every n, the result is the shortest n.

    >>> faster_from({512: 2.0, 1024: 4.0, 2048: 8.0}, {512: 1.0, 1024: 4.0, 2048: 16.0})
    1024.0
    """
    lengths = sorted(n for n in set(method) & set(exact) if method[n] > 0 and exact[n] > 0)
    gaps = [log(method[n] / exact[n]) for n in lengths]
    if not lengths or gaps[-1] >= 0:
        return None
    slower = max((place for place, gap in enumerate(gaps) if gap >= 0), default=None)
    if slower is None:
        return float(lengths[0])
    (n_0, gap_0), (n_1, gap_1) = ((lengths[place], gaps[place]) for place in (slower, slower + 1))
    return float(n_0 * (n_1 / n_0) ** (gap_0 / (gap_0 - gap_1)))
