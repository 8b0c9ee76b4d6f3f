"""Errors against a cost: a line for each method, its budgets beside the points, and the frontier."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from ..files import Fields
from ..tables.methods import family
from ..tables.table import gathered
from .background import on_background
from .kit import type_size
from .looks import Look
from .methods import HOLLOW, HUGE, OWN, styles_of, text_label

Limits = tuple[float, float]  # the cost of exact attention, and the error of V-Mean, which costs nothing

FRONTIER = {"color": "#c4c4c4", "linewidth": 3.0, "zorder": 0.9}  # behind the lines
OTHERS = {"color": "#bbbbbb", "linestyle": "", "marker": "o", "markersize": 2.6, "zorder": 1.2}
OTHERS_BAD = {**OTHERS, "color": "#999999", "markersize": 4.5, "markerfacecolor": "none", "markeredgewidth": 0.9}
STEPS = {"frontier: no bad rows, left of exact attention": FRONTIER}  # of a legend
RULE = (  # of a caption
    "The steps are the frontier: points without bad rows that cost less than exact attention and have less error than "
    "V-Mean and all cheaper ones. A panel without steps has no such point."
)
EDGE = {"markeredgecolor": "white", "markeredgewidth": 0.5}
OWN_EDGE = {"markeredgecolor": "black", "markeredgewidth": 0.9}  # of the user's methods among many
MOST_COLOURED = 8  # methods of many
MOST_LEAST = 6  # methods in colours where no panel has a frontier
MOST_NUMBERED = 16  # points of a panel that all have their d beside them; of more, the ends of a line have
SIDES = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))  # right, left, above, below
SIZE, WIDE, TALL = 0.833, 0.6, 0.75  # of type small, of figures' type; width and height of its digits, of its size
DESCENT = 0.3  # of type, of letters below the line
SLANTED = 0.6  # of the radius of a marker and a point, from its middle to the corner of its number, each way
STRAIGHT = 1.4  # points from a marker to the side of its number
OWN_MARK = 0.1  # points, within which a marker is that of a point
SPACE = 2.0  # points between two texts
OUT = 6.0  # points, by which a text can reach above the panel
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


def prominent(
    panels: Iterable[tuple[Sequence[Point], Sequence[Point]]], own: Collection[str] = ()
) -> tuple[set[str], dict[str, Look]]:
    """The methods that panels draw in their colours: all, or of many the user's own and those on a frontier.

    Where no panel has a frontier, these are the `MOST_LEAST` of the least errors.

    Args:
        panels: the points of each, and those of its frontier. own: the labels of the user's methods.

    Returns:
        Their labels, and the look of the others for the legend, if there are any.
    """
    panels = list(panels)
    every = {point.label for points, _ in panels for point in points}
    if len(every) <= MOST_COLOURED:
        return every, {}
    by_error = sorted((point for points, _ in panels for point in points), key=lambda point: point.error)
    least = list(dict.fromkeys(point.label for point in by_error))[:MOST_LEAST]
    named = every & {*own} | ({point.label for _, best in panels for point in best} or {*least})
    others = len(every - named)
    return named, {f"{others} other method{'s' * (others > 1)}": OTHERS} if others else {}


def coloured(
    run: Sequence[Fields], rows: Sequence[Fields], panels: Sequence[tuple[Sequence[Point], Sequence[Point]]]
) -> tuple[dict[str, Look], dict[str, Look], list[str]]:
    """The looks of the methods of `prominent`, that of the others in a legend, and the sentences of a caption on both.

    Args:
        run: all rows of the run. rows: of the points. panels: as in `prominent`.
    """
    own = {text_label(row) for row in rows if family(row) == OWN}
    named, others = prominent(panels, own)
    styles = styles_of(run, [row for row in rows if text_label(row) in named])
    styles = {label: {**look, **(OWN_EDGE if label in own and others else {})} for label, look in styles.items()}
    stepped = any(best for _, best in panels)
    several = len({row["d"] for row in rows} - {None}) > 1
    words = [
        *(["A line joins the budgets d of a method, which stand at its points where there is room."] * several),
        *([RULE] * stepped),
        *([f"Grey: methods {'without a point on a frontier' if stepped else 'of larger errors'}."] * bool(others)),
        *(["Black edges: the user's own methods."] * bool(own and others)),
    ]
    return styles, others, words


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

    for bad, look in ((False, OTHERS), (True, OTHERS_BAD)):
        axis.plot(*_places([one for one in points if one.label not in styles and one.bad == bad]), **look)
    for line in gathered([point for point in points if point.label in styles], lambda point: point.label):
        style = styles[line[0].label]
        axis.plot(*_places(line), **{**style, "marker": None}, alpha=0.6, zorder=2)
        for point in line:
            look = {**EDGE, **style, "linestyle": "", "markersize": 5.5, "zorder": 3}
            look |= {**HOLLOW, "markeredgecolor": style["color"]} if point.bad else {}
            axis.plot([point.cost], [point.error], **look)
    costs, errors = _places(best)
    if best and best[0].error < vmean < HUGE:  # V-Mean is left of the axis
        costs, errors = [costs[0] / FAR, *costs], [vmean, *errors]
    axis.add_artist(Line2D(costs, errors, drawstyle="steps-post", **FRONTIER))


def numbers(axis: Any, points: Sequence[Point], styles: Mapping[str, Mapping[str, Any]], several: bool = True) -> None:
    """Write d beside points of methods with a style, or their names, where it covers the least and nothing of others.

    The ends of lines have theirs where it covers no other point, and with `MOST_NUMBERED` points or fewer all whose
    text covers nothing. The lines of the panel are drawn, and the layout is final.

    Args:
        several: whether points have d.
    """
    lines = gathered([point for point in points if point.label in styles], lambda point: point.label)
    ends = [point for line in lines for point in (line[0], line[-1])]
    inner = [*chain(*lines)] if sum(map(len, lines)) <= MOST_NUMBERED else []
    panel = [*chain(*_on_paper(axis, axis.transAxes, [(0, 0), (1, 1)]))]  # left, bottom, right, top
    marks, curves = _drawn(axis)
    size = SIZE * type_size("font.size")
    below = 0.0 if several else DESCENT * size
    taken: list[Box] = []
    for point in dict.fromkeys([*ends, *inner]):
        text = point.label + " !" * point.bad
        if several:
            text = "" if point.d is None else str(point.d) if taken else f"d = {point.d}"
        ((x, y),) = _on_paper(axis, axis.transData, [(point.cost, point.error)])
        radius = max((reach for *place, reach in marks if math.dist(place, (x, y)) < OWN_MARK), default=0.0)
        others = [mark for mark in marks if math.dist(mark[:2], (x, y)) >= OWN_MARK]
        extent = WIDE * size * len(text), TALL * size + below
        covered: dict[Box, float] = {}
        for side in SIDES if text else ():
            box = _beside(side, (x, y), radius, extent)
            if panel[0] < box[0] and panel[1] < box[1] and box[2] < panel[2] and box[3] < panel[3] + OUT:
                hidden = sum(_within(box, [(left, up)], reach) for left, up, reach in others)
                covered[box] = MARKER * hidden + _within(box, curves, 1.0)
        free = [box for box in covered if not any(_meet(box, one) for one in taken)]
        best = min(free, key=covered.__getitem__, default=None)
        if best and covered[best] < (MARKER if point in ends else 1):
            left, bottom, right, top = best
            taken.append((left - SPACE, bottom, right + SPACE, top))
            place = (left + right) / 2 - x, bottom + below - y
            look = {"ha": "center", "va": "baseline", "fontsize": "small", "zorder": 4}
            look |= {"color": on_background(styles[point.label]["color"])}
            axis.annotate(text, (point.cost, point.error), place, textcoords="offset points", **look)


def _beside(side: tuple[int, int], at: Place, radius: float, extent: Place) -> Box:
    """The box of a text at a side of a marker."""
    gap = SLANTED * (radius + 1) if all(side) else radius + STRAIGHT
    x, y = (middle + part * (gap + one / 2) for middle, part, one in zip(at, side, extent, strict=True))
    wide, tall = extent
    return x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2


def _places(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.cost for point in points], [point.error for point in points]


def _drawn(axis: Any) -> tuple[list[tuple[float, float, float]], list[Place]]:
    """The markers of a panel, each with its radius, and places along its lines."""
    marks: list[tuple[float, float, float]] = []
    curves: list[Place] = []
    for line in axis.lines:
        corners = _on_paper(axis, line.get_transform(), line.get_xydata())
        if line.get_marker() != "None":
            reach = (line.get_markersize() + line.get_markeredgewidth()) / 2
            marks += [(x, y, reach) for x, y in corners]
        if line.get_drawstyle() == "steps-post":
            corners = [place for (x, y), (to, below) in pairwise(corners) for place in ((x, y), (to, y), (to, below))]
        if line.get_linestyle() != "None":
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


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
