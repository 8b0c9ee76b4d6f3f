"""The growth of costs with n: their exponents, and the n from which one cost is below another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from statistics import linear_regression, quantiles

from ...figures.looks import EXACT
from ...tables.long import Row
from ...tables.table import grouped_by

FIT_FROM = 2048  # tokens; below it, constant costs would distort the fit
PLACE = ("source", "layer", "target", "backward")  # where costs are compared
GROWN = ("method", "options", "family", "target", "weights", "source", "layer", "backward", "d", "reference")


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


def half_range(values: Sequence[float]) -> float | None:
    """Half the range between the quartiles; None for a single value."""
    if len(values) < 2:
        return None
    first, _, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / 2


def bench_summary(rows: Sequence[Row]) -> list[Row]:
    """One entry per (source, layer, target, backward, method, options, d): the growth of time and memory with n.

    ``time_exponent`` and ``memory_exponent`` are those of `exponent`; ``time_exponent_spread`` is the spread over
    rounds. ``faster_from`` and ``smaller_from`` are the n from which it takes less time, and less memory, than exact
    attention. ``growth`` is that of the leading cost. ``lengths`` and ``memory_lengths`` count the measured n.
    """
    groups = grouped_by(rows, *PLACE, "method", "options", "d")
    exact = {_place(group[0]): group for group in groups if group[0]["method"] == EXACT}
    summary = []
    for group in groups:
        reference = exact.get(_place(group[0]), [])
        seconds, memory = _at(group, "seconds"), _at(group, "peak_bytes")
        entry = {
            **{name: group[0].get(name) for name in GROWN},
            "growth": growth(group[0]["cost"] or ""),
            "time_exponent": exponent(seconds),
            "memory_exponent": exponent(memory),
            "time_exponent_spread": _exponent_spread(group),
            "faster_from": None if group is reference else faster_from(seconds, _at(reference, "seconds")),
            "smaller_from": None if group is reference else faster_from(memory, _at(reference, "peak_bytes")),
            "lengths": len(seconds),
            "memory_lengths": len(memory),
            "longest_n": max(seconds, default=None),
        }
        summary.append(entry)
    return summary


def _place(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in PLACE)


def _at(rows: Sequence[Row], cost: str) -> dict[int, float]:
    return {row["n"]: value for row in rows if (value := row[cost])}


def _exponent_spread(rows: Sequence[Row]) -> float | None:
    """The spread of the exponents of the rounds, each fitted alone."""
    timed = [row for row in rows if row["seconds"]]
    rounds = min((len(row["seconds_rounds"]) for row in timed), default=0)
    each = [exponent({row["n"]: row["seconds_rounds"][place] for row in timed}) for place in range(rounds)]
    found = [one for one in each if one is not None]
    return half_range(found) if len(found) == len(each) else None
