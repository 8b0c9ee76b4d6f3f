"""Errors against a cost: a line for each method, its budgets beside the points, and the frontier."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..tables.table import gathered
from .methods import HOLLOW

Limits = tuple[float, float]  # the cost of exact attention, and the error of V-Mean, which costs nothing

FRONTIER = {"color": "#222222", "linewidth": 1.0, "alpha": 0.8, "zorder": 1.5}
BEATEN = {"color": "#bbbbbb", "linestyle": "", "marker": ".", "markersize": 4, "zorder": 1.2}
EDGE = {"markeredgecolor": "white", "markeredgewidth": 0.5}
CLEAR = 0.8  # of an error: a method that is clearly better has less
MOST_COLOURED = 8  # methods of many
MOST_NAMED = 16  # points of a panel that all have their d beside them; of more, the ends of a line have
APART = (0.14, 0.07)  # of the width and height of a panel's points, between two numbers that can be read
LEAST = 0.5  # decades of an axis, about


@dataclass(frozen=True)
class Point:
    """A method at a budget: its label, its cost and error, both positive, and whether it has bad rows."""

    label: str
    d: int | None
    cost: float
    error: float
    bad: bool = False


def frontier(points: Iterable[Point], limits: Limits = (math.inf, math.inf), part: float = 1.0) -> list[Point]:
    """The points without bad rows, within the limits, that no other beats in both cost and error, by cost.

    Args:
        part: each error is less than this part of the one before.

    >>> pairs = [(1.0, 0.5), (2.0, 0.6), (3.0, 0.1), (3.0, 0.2)]
    >>> [(one.cost, one.error) for one in frontier(Point("x", None, *pair) for pair in pairs)]
    [(1.0, 0.5), (3.0, 0.1)]
    """
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, point.error)):
        if not point.bad and point.cost < limits[0] and point.error < (part * best[-1].error if best else limits[1]):
            best.append(point)
    return best


def prominent(panels: Iterable[tuple[Sequence[Point], Limits]]) -> tuple[set[str], dict[str, dict[str, Any]]]:
    """The methods that panels draw in their colours: all, or of many those with the most points on frontiers.

    Args:
        panels: the points of each, and the limits of its `frontier`.

    Returns:
        Their labels, and the legend of what else is drawn.
    """
    panels = list(panels)
    named = {point.label for points, _ in panels for point in points}
    if len(named) <= MOST_COLOURED:
        return named, {"frontier": FRONTIER}
    counts = Counter(point.label for points, limits in panels for point in frontier(points, limits, CLEAR))
    return {label for label, _ in counts.most_common(MOST_COLOURED)}, {"frontier": FRONTIER, "other methods": BEATEN}


def cloud(axis: Any, points: Sequence[Point], styles: Mapping[str, Mapping[str, Any]], limits: Limits) -> None:
    """Draw the points of a panel and their `frontier`. Methods without a style are small and grey."""
    shown = [point for point in points if point.label in styles]
    others = [(point.cost, point.error) for point in points if point.label not in styles]
    axis.plot(*(zip(*others, strict=True) if others else ((), ())), **BEATEN)
    for line in gathered(shown, lambda point: point.label):
        style = styles[line[0].label]
        axis.plot(*_places(line), **{**style, "marker": None}, alpha=0.6, zorder=2)
        for point in line:
            look = {**style, "linestyle": "", "markersize": 5.5, "zorder": 3, **(HOLLOW if point.bad else EDGE)}
            axis.plot([point.cost], [point.error], **look)
    axis.plot(*_places(frontier(points, limits)), drawstyle="steps-post", **FRONTIER)
    for number, point in enumerate(_named(shown, points)):
        text = f"d = {point.d}" if number == 0 else str(point.d)
        beside = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": "x-small"}
        axis.annotate(text, (point.cost, point.error), color=styles[point.label]["color"], zorder=4, **beside)


def _places(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.cost for point in points], [point.error for point in points]


def _named(points: Sequence[Point], every: Sequence[Point]) -> list[Point]:
    """The points that have their d beside them: all or the ends of lines, as far as these do not hide each other.

    Args:
        every: all points of the panel.
    """
    ends = [line[place] for line in gathered(points, lambda point: point.label) for place in (0, -1)]
    wanted = [point for point in points if point.d is not None and (len(points) <= MOST_NAMED or point in ends)]
    wide = APART[0] * max(LEAST, _decades([point.cost for point in every]))
    tall = APART[1] * max(LEAST, _decades([point.error for point in every]))
    named: list[Point] = []
    for point in wanted:
        if not any(
            abs(math.log10(point.cost / other.cost)) <= wide and abs(math.log10(point.error / other.error)) <= tall
            for other in named
        ):
            named.append(point)
    return named


def _decades(values: Sequence[float]) -> float:
    """How many powers of ten some positive numbers span."""
    return math.log10(max(values) / min(values)) if values else 0.0
