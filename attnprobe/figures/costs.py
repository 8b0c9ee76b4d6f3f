"""Errors against a cost: a line for each method, its budgets beside the points, and the frontier."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
SIDES = ((1, 1), (1, -1), (-1, 1), (-1, -1))  # right and left, above and below
SAMPLES = 24  # of a piece of a line
MARKER = 12  # of a point


@dataclass(frozen=True)
class Point:
    """A method at a budget: its label, its cost and error, both positive, and whether it has bad rows."""

    label: str
    d: int | None
    cost: float
    error: float
    bad: bool = False


Named = tuple[Point, tuple[int, int]]  # a point, and the side of its number


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


def cloud(
    axis: Any,
    points: Sequence[Point],
    styles: Mapping[str, Mapping[str, Any]],
    limits: Limits,
    best: Sequence[Point] | None = None,
) -> None:
    """Draw the points of a panel and their frontier. Methods without a style are small and grey.

    Args:
        best: the points of the frontier by cost; None are those of `frontier`.
    """
    shown = [point for point in points if point.label in styles]
    others = [(point.cost, point.error) for point in points if point.label not in styles]
    axis.plot(*(zip(*others, strict=True) if others else ((), ())), **BEATEN)
    lines = gathered(shown, lambda point: point.label)
    for line in lines:
        style = styles[line[0].label]
        axis.plot(*_places(line), **{**style, "marker": None}, alpha=0.6, zorder=2)
        for point in line:
            look = {**style, "linestyle": "", "markersize": 5.5, "zorder": 3, **(HOLLOW if point.bad else EDGE)}
            axis.plot([point.cost], [point.error], **look)
    steps = frontier(points, limits) if best is None else best
    axis.plot(*_places(steps), drawstyle="steps-post", **FRONTIER)
    for number, (point, side) in enumerate(_named(lines, points, steps)):
        text = f"d = {point.d}" if number == 0 else str(point.d)
        beside = {"xytext": (4 * side[0], 4 * side[1]), "textcoords": "offset points", "fontsize": "x-small"}
        beside |= {"ha": "left" if side[0] > 0 else "right", "va": "bottom" if side[1] > 0 else "top"}
        axis.annotate(text, (point.cost, point.error), color=styles[point.label]["color"], zorder=4, **beside)


def _places(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.cost for point in points], [point.error for point in points]


def _named(lines: Sequence[Sequence[Point]], every: Sequence[Point], steps: Sequence[Point]) -> list[Named]:
    """The points that have their d beside them, and on which side: where it covers the least of what is drawn.

    The ends of lines have it where it covers no other point, and with `MOST_NAMED` points or fewer all whose number
    covers nothing. Numbers that would hide each other are left out.

    Args:
        lines: the points of each method. every: all points of the panel. steps: those of the frontier.
    """
    wide = APART[0] * max(LEAST, _decades([point.cost for point in every]))
    tall = APART[1] * max(LEAST, _decades([point.error for point in every]))
    drawn = [_on_paper(point, wide, tall) for point in every] * MARKER
    for line in lines:
        drawn += _between([_on_paper(point, wide, tall) for point in line])
    corners = [_on_paper(point, wide, tall) for point in steps]
    for (x, y), (to, below) in pairwise(corners):
        drawn += _between([(x, y), (to, y), (to, below)])
    few = sum(map(len, lines)) <= MOST_NAMED
    taken: list[tuple[float, float]] = []
    named: list[Named] = []
    ends = [point for line in lines for point in (line[0], line[-1])]
    for point in dict.fromkeys([*ends, *(point for line in lines if few for point in line)]):
        x, y = _on_paper(point, wide, tall)
        left = min(u for u, _ in drawn)
        covered = {
            side: sum(abs(u - x - 0.7 * side[0]) < 0.5 and abs(v - y - side[1]) < 0.6 for u, v in drawn)
            + SAMPLES * (x + 0.7 * side[0] < left)  # beyond the axis
            for side in SIDES
            if not any(abs(u - x - 0.7 * side[0]) < 1 and abs(v - y - side[1]) < 1.2 for u, v in taken)
        }
        side = min(covered, key=covered.__getitem__, default=None)
        if side is not None and point.d is not None and covered[side] < (MARKER if point in ends else 1):
            taken.append((x + 0.7 * side[0], y + side[1]))
            named.append((point, side))
    return named


def _on_paper(point: Point, wide: float, tall: float) -> tuple[float, float]:
    """The place of a point in widths and heights of a number."""
    return math.log10(point.cost) / wide, math.log10(point.error) / tall


def _between(corners: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Places along a line through some corners."""
    parts = [step / SAMPLES for step in range(1, SAMPLES)]
    return [(x + part * (u - x), y + part * (v - y)) for (x, y), (u, v) in pairwise(corners) for part in parts]


def _decades(values: Sequence[float]) -> float:
    """How many powers of ten some positive numbers span."""
    return math.log10(max(values) / min(values)) if values else 0.0
