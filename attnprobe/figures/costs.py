"""Errors against a cost: a line for each method, its budgets beside the points, and the frontier."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np

from ..tables.table import gathered
from .background import on_background
from .kit import type_size
from .methods import HOLLOW, HUGE

Limits = tuple[float, float]  # the cost of exact attention, and the error of V-Mean, which costs nothing

FRONTIER = {"color": "#cccccc", "linewidth": 3.0, "zorder": 0.9}  # behind the lines
BEATEN = {"color": "#bbbbbb", "linestyle": "", "marker": "o", "markersize": 2.6, "zorder": 1.2}
BEATEN_LINE = {"color": "#cccccc", "linewidth": 0.7, "zorder": 0.95}
GREY_NAME = "#666666"  # of the name of such a method
LEADER = {"arrowstyle": "-", "linewidth": 0.4, "shrinkA": 0, "shrinkB": 1.5}  # to a name that is not beside its point
REACHES = (8.0, 14.0, 22.0, 32.0, 44.0, 58.0, 74.0, 92.0, 112.0)  # points from there to the name
TURNS = 48  # directions of such a line
BEATEN_BAD = {**BEATEN, "color": "#999999", "markersize": 4.5, "markerfacecolor": "none", "markeredgewidth": 0.9}
LEAST_ERROR = {"frontier: least error, no bad rows": FRONTIER}  # of a legend
STEPS = (  # of a caption
    "The steps are the frontier, from V-Mean where that has this cost up to exact attention: points without bad rows"
)
CHEAPER = ", of less error than all cheaper ones."
EDGE = {"markeredgecolor": "white", "markeredgewidth": 0.5}
MOST_COLOURED = 8  # methods of many
MOST_LEAST = 6  # methods in colours where no panel has a frontier
MOST_NAMED = 16  # points of a panel that all have their d beside them; of more, the ends of a line have
SIDES = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))  # right, left, above, below
SIZE, WIDE, TALL = 0.833, 0.6, 0.75  # of type small, of figures' type; width and height of its digits, of its size
DESCENT = 0.3  # of type, of letters below the line
SLANTED, STRAIGHT = 2.6, 4.2  # points between the middle of a marker and the corner or the side of its number
RADIUS = 3.0  # points, of a marker
RING = 1.5  # points, by which a hollow marker is larger
ROUNDS = 8  # of placing names
SPACE = 2.0  # points between two texts
NEAR = 1.5  # points between a line to a name and a marker or another such line
CLEARLY = 1.3  # times as near to its own point as to another is a name
MARKER = 12  # places of a line that weigh as much as a marker
EVERY, LONGEST = 2.0, 2000.0  # points between places along a line, and of the longest one
FAR = 1e3  # from the least cost to the beginning of the frontier at V-Mean, which has none


@dataclass(frozen=True)
class Point:
    """A method at a budget: its label, its cost and error, both positive, and whether it has bad rows."""

    label: str
    d: int | None
    cost: float
    error: float
    bad: bool = False


Place = tuple[float, float]  # in points
Box = tuple[float, float, float, float]  # left, bottom, right, top, in points
Number = tuple[str, Point, Place, bool]  # what stands beside a point, its place from there, and whether it has a line


def frontier(points: Iterable[Point], limits: Limits = (math.inf, math.inf)) -> list[Point]:
    """The points without bad rows, within the limits, that no other beats in both cost and error, by cost.

    >>> pairs = [(1.0, 0.5), (2.0, 0.6), (3.0, 0.1), (3.0, 0.2)]
    >>> [(one.cost, one.error) for one in frontier(Point("x", None, *pair) for pair in pairs)]
    [(1.0, 0.5), (3.0, 0.1)]
    """
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, point.error)):
        if not point.bad and point.cost < limits[0] and point.error < (best[-1].error if best else limits[1]):
            best.append(point)
    return best


def prominent(panels: Iterable[tuple[Sequence[Point], Sequence[Point]]]) -> tuple[set[str], dict[str, dict[str, Any]]]:
    """The methods that panels draw in their colours: all, or of many those on a frontier.

    Where no panel has a frontier, these are the `MOST_LEAST` of the least errors.

    Args:
        panels: the points of each, and those of its frontier.

    Returns:
        Their labels, and the look of the others for the legend, if there are any.
    """
    panels = list(panels)
    named = {point.label for points, _ in panels for point in points}
    if len(named) <= MOST_COLOURED:
        return named, {}
    by_error = sorted((point for points, _ in panels for point in points), key=lambda point: point.error)
    least = list(dict.fromkeys(point.label for point in by_error))[:MOST_LEAST]
    return {point.label for _, best in panels for point in best} or {*least}, {"other methods": BEATEN}


def cloud(
    axis: Any,
    points: Sequence[Point],
    styles: Mapping[str, Mapping[str, Any]],
    best: Sequence[Point],
    vmean: float = math.inf,
) -> None:
    """Draw the points of a panel, and their frontier. Methods without a style are grey, points with bad rows hollow.

    Args:
        best: the points of the frontier by cost. vmean: the error of V-Mean, at which the frontier begins.
    """
    from matplotlib.lines import Line2D

    shown = [point for point in points if point.label in styles]
    for bad, look in ((False, BEATEN), (True, BEATEN_BAD)):
        others = [point for point in points if point.label not in styles and point.bad == bad]
        axis.plot(*_places(others), **look)
    for line in gathered([point for point in points if point.label not in styles], lambda point: point.label):
        axis.plot(*_places(line), **BEATEN_LINE)
    lines = gathered(shown, lambda point: point.label)
    for line in lines:
        style = styles[line[0].label]
        axis.plot(*_places(line), **{**style, "marker": None}, alpha=0.6, zorder=2)
        for point in line:
            look = {**style, "linestyle": "", "markersize": 5.5, "zorder": 3, **(HOLLOW if point.bad else EDGE)}
            axis.plot([point.cost], [point.error], **look)
    costs, errors = _places(best)
    if best and best[0].error < vmean < HUGE:  # V-Mean is left of the axis
        costs, errors = [costs[0] / FAR, *costs], [vmean, *errors]
    axis.add_artist(Line2D(costs, errors, drawstyle="steps-post", **FRONTIER))


def numbers(
    axis: Any,
    points: Sequence[Point],
    styles: Mapping[str, Mapping[str, Any]],
    best: Sequence[Point] = (),
    several: bool = True,
) -> None:
    """Write d beside points, or names: of each method where points have no d, else of those without a style.

    A name stands beside a point of its method, or has a line to it where there is no room.
    The lines of the panel are drawn, and the layout is final.

    Args:
        best: the points of the frontier by cost. Points near it have a name first. several: whether points have d.
    """
    from matplotlib import rcParams

    box = {"facecolor": rcParams["axes.facecolor"], "linewidth": 0, "alpha": 0.7, "pad": 0.3}  # over lines
    lines = gathered([point for point in points if point.label in styles and several], lambda point: point.label)
    others = sorted((point for point in points if point.label not in styles), key=partial(_above, best=best))
    named = [[] if several else [point for point in points if point.label in styles], others]
    for text, point, (x, y), far in _numbers(axis, lines, named):
        colour = on_background(styles[point.label]["color"] if point.label in styles else GREY_NAME)
        look = {"ha": "center", "va": "baseline", "fontsize": "small", "color": colour, "bbox": box}
        look |= {"arrowprops": {**LEADER, "color": colour}} if far else {}
        axis.annotate(text, (point.cost, point.error), (x, y), textcoords="offset points", zorder=4, **look)


def _places(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.cost for point in points], [point.error for point in points]


def _above(point: Point, best: Sequence[Point]) -> float:
    """The error of a point over that of the frontier at its cost."""
    return point.error / min((one.error for one in best if one.cost <= point.cost), default=math.inf)


def _numbers(axis: Any, lines: Sequence[Sequence[Point]], named: Sequence[Sequence[Point]]) -> list[Number]:
    """The points that have their d beside them, where it covers the least of what is drawn, and nothing of others.

    The ends of lines have it where it covers no other point, and with `MOST_NAMED` points or fewer all whose number
    covers nothing. Other methods have their name once, if need be at the end of a line. What would hide another is left
    out. Of several `ROUNDS`, in which names without room come first in the next, the one with the most names counts.

    Args:
        lines: the points of each method that have their d. named: those of other methods, in groups; the first of the
            first group has a name first.
    """
    few = sum(map(len, lines)) <= MOST_NAMED
    ends = [point for line in lines for point in (line[0], line[-1]) if point.d is not None]
    inner = [point for line in lines if few for point in line if point.d is not None]
    best: list[Number] = []
    for _ in range(ROUNDS):
        found = _round(axis, ends, inner, named)
        best = max(best, found, key=len)
        there = {point.label for _, point, *_ in found}
        if all(point.label in there for group in named for point in group):
            break
        named = [sorted(group, key=lambda point: point.label in there) for group in named]
    return best


def _round(axis: Any, ends: Sequence[Point], inner: Sequence[Point], named: Sequence[Sequence[Point]]) -> list[Number]:
    """What stands beside the points, placed one after the other."""
    low, high = _on_paper(axis, axis.transAxes, [(0, 0), (1, 1)])
    marks, curves = _drawn(axis)
    size = SIZE * type_size("font.size")
    taken: list[Box] = []
    leaders: list[Place] = []  # along lines to names
    found: list[Number] = []
    turns = dict.fromkeys((point, False) for point in [*ends, *inner])
    turns |= dict.fromkeys((point, far) for group in named for far in (False, True) for point in group)
    with_names = {*chain(*named)}
    for point, far in turns:
        is_name = point in with_names
        text = point.label + " !" * point.bad if is_name else str(point.d) if found else f"d = {point.d}"
        if is_name and any(other in with_names and other.label == point.label for _, other, *_ in found):
            continue
        (own,) = _on_paper(axis, axis.transData, [(point.cost, point.error)])
        others = [mark for mark in marks if math.dist(mark, own) > 0.1]
        below = DESCENT * size * is_name
        wide, tall = WIDE * size * len(text), TALL * size + below
        fitting: dict[Place, tuple[int, Box, list[Place]]] = {}
        for around in _around(wide, tall, RING * point.bad, far):
            for x, y in around if not fitting else ():
                box = own[0] + x - wide / 2, own[1] + y - tall / 2, own[0] + x + wide / 2, own[1] + y + tall / 2
                line = _along([own, (own[0] + x, own[1] + y)]) if far else []
                if not (low[0] < box[0] and box[2] < high[0] and low[1] < box[1] and box[3] < high[1]):
                    continue
                if _within(box, leaders, 1.0) or any(_meet(box, one) or _within(one, line, 0.0) for one in taken):
                    continue
                if far and (_within(box, marks, RADIUS) or _strays(line, [*others, *leaders])):
                    continue
                if far or not is_name or not _nearer(box, others, own):
                    covered = MARKER * _within(box, others, RADIUS) + _within(box, curves, 1.0)
                    fitting[x, y - tall / 2 + below] = covered, box, line
        place = min(fitting, key=lambda one: fitting[one][0], default=None)
        if place is not None and (far or fitting[place][0] < (MARKER if point in ends else 1)):
            _, (left, bottom, right, top), line = fitting[place]
            taken.append((left - SPACE, bottom, right + SPACE, top))
            leaders += line
            found.append((text, point, place, far))
    return found


def _around(wide: float, tall: float, ring: float, far: bool) -> Iterator[Iterator[Place]]:
    """Where the middle of a text can be from its point: at its `SIDES`, or ever farther away with a line to it."""
    if not far:
        yield (_beside(side, ring, (wide, tall)) for side in SIDES)
    for reach in REACHES if far else ():
        turns = (2 * math.pi * turn / TURNS for turn in range(TURNS))
        yield ((math.cos(one) * (reach + wide / 2), math.sin(one) * (reach + tall / 2)) for one in turns)


def _beside(side: tuple[int, int], ring: float, extent: Place) -> Place:
    """The middle of a text at a side of its point."""
    gap = (SLANTED if all(side) else STRAIGHT) + ring
    x, y = (part * (gap + one / 2) for part, one in zip(side, extent, strict=True))
    return x, y


def _strays(line: Sequence[Place], places: Sequence[Place]) -> bool:
    """Whether a line to a name comes near a place that is not near its point."""
    away = [one for one in line if math.dist(one, line[0]) > RADIUS]
    return any(math.dist(one, place) < NEAR for one in away for place in places)


def _drawn(axis: Any) -> tuple[list[Place], list[Place]]:
    """The markers of a panel, and places along its lines."""
    marks: list[Place] = []
    curves: list[Place] = []
    for line in axis.lines:
        corners = _on_paper(axis, line.get_transform(), line.get_xydata())
        if line.get_linestyle() == "None":
            marks += corners
        elif line.get_drawstyle() == "steps-post":
            turned = [place for (x, y), (to, below) in pairwise(corners) for place in ((x, y), (to, y), (to, below))]
            curves += _along(turned)
        else:
            curves += _along(corners)
    return marks, curves


def _on_paper(axis: Any, transform: Any, places: Any) -> list[Place]:
    """Places of a transform in points of the page."""
    axis.get_xlim()  # matplotlib finds the ends of an axis when they are asked for
    axis.get_ylim()
    return [
        tuple(one) for one in (np.array(transform.transform(places)).reshape(-1, 2) * 72 / axis.figure.dpi).tolist()
    ]


def _along(corners: Sequence[Place]) -> list[Place]:
    """Places along a line through some corners, about `EVERY` points apart."""
    places = []
    for (x, y), (u, v) in pairwise(corners):
        count = int(min(math.dist((x, y), (u, v)), LONGEST) / EVERY) + 1
        places += [(x + part / count * (u - x), y + part / count * (v - y)) for part in range(count + 1)]
    return places


def _within(box: Box, places: Sequence[Place], near: float) -> int:
    """How many places lie in a box or so near it."""
    left, bottom, right, top = box
    return sum(left - near < x < right + near and bottom - near < y < top + near for x, y in places)


def _nearer(box: Box, others: Sequence[Place], own: Place) -> bool:
    """Whether a box is nearer to one of the others than to its own place, or nearly."""
    left, bottom, right, top = box

    def apart(place: Place) -> float:
        x, y = place
        return math.hypot(max(left - x, 0, x - right), max(bottom - y, 0, y - top))

    return min(map(apart, others), default=math.inf) < CLEARLY * apart(own)


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
