"""Texts beside points of a panel, where they cover the least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np

from .background import on_background
from .kit import folded, type_size

Place = tuple[float, float]  # in points
Box = tuple[float, float, float, float]  # left, bottom, right, top, in points

SIDES = ((1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (-1, 0))  # right, left, above, below
FAR = (0.0, 6.0, 12.0, 20.0, 30.0, 42.0)  # points from a marker to its text, further away
SIZE, TALL = 0.833, 1.05  # of type small, of figures' type; height of a line
LEADING = 1.2  # of type, from line to line
FOLDED = 0.6  # of the width of a panel, that a line of text has at most
SLANTED = 0.6  # of the radius of a marker and a point, from its middle to the corner of its text, each way
STRAIGHT = 1.4  # points from a marker to the side of its text
OWN_MARK = 0.1  # points, within which a marker is that of a point
SPACE = 2.0  # points between two texts
OUT = 6.0  # points, by which a text can reach above the panel
MARKER = 12  # places of a line that weigh as much as a marker
AWAY = 0.1  # places of a line that weigh as much as a point of distance
LED = 5.0  # points, from which on a line leads to a text
EVERY, LONGEST = 2.0, 2000.0  # points between places along a line, and of the longest one


class Texts:
    """Texts of a panel, written one after the other, of which none covers another.

    The lines of the panel are drawn, and its layout is final.
    """

    def __init__(self, axis: Any) -> None:
        self.axis = axis
        (self.left, self.bottom), (self.right, self.top) = on_paper(axis, axis.transAxes, [(0, 0), (1, 1)])
        self.marks, self.curves = _drawn(axis)
        self.taken: list[Box] = []

    def write(self, text: str, at: Sequence[Place], colour: Any, far: bool = False) -> bool:
        """Write a text beside one of some points of the axes, where it covers the least; whether there is room.

        Args:
            far: whether it may stand away from the point, where a thin line leads to it, or on markers if need be. Else
                it covers no marker.
        """
        size = SIZE * type_size("font.size")
        text = folded(text, FOLDED * (self.right - self.left) / 72, size)
        lines = text.split("\n")
        extent = max(_wide(line, size) for line in lines), size * (TALL + LEADING * (len(lines) - 1))
        options: list[tuple[float, Box, Place, Place, Any]] = []
        for place, (x, y) in zip(at, on_paper(self.axis, self.axis.transData, at), strict=True):
            own = np.hypot(self.marks[:, 0] - x, self.marks[:, 1] - y) < OWN_MARK
            radius = max(self.marks[own, 2], default=0.0)
            for away, side in product(FAR if far else FAR[:1], SIDES):
                beside = _beside(side, (x, y), radius + away, extent)
                box = self._inside(beside)
                leader = _along([(x, y), ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)] if away > LED else [])
                if not any(_meet(box, one) or _within(one, leader) for one in self.taken):
                    marks = self.marks[~own] if box == beside else self.marks
                    hidden = MARKER * _within(box, marks, marks[:, 2]) + _within(box, self.curves, 1.0)
                    options.append((hidden + AWAY * away, box, place, (x, y), leader))
        best = min(options, key=lambda option: option[0], default=None)
        if best is None or not (far or best[0] < MARKER):
            return False
        _, (left, bottom, right, top), place, (x, y), leader = best
        self.taken.append((left - SPACE, bottom, right + SPACE, top))
        self.curves = np.concatenate([self.curves, leader])
        look = {"ha": "center", "va": "bottom", "fontsize": "small", "zorder": 4, "color": on_background(colour)}
        if len(leader):
            look["arrowprops"] = {"arrowstyle": "-", "color": look["color"], "linewidth": 0.5, "shrinkA": 0}
        self.axis.annotate(text, place, ((left + right) / 2 - x, bottom - y), textcoords="offset points", **look)
        return True

    def _inside(self, box: Box) -> Box:
        """A box, shifted into the panel."""
        left, bottom, right, top = box
        x = min(max(left, self.left), self.right - (right - left))
        y = min(max(bottom, self.bottom), self.top + OUT - (top - bottom))
        return box if (x, y) == (left, bottom) else (x, y, x + right - left, y + top - bottom)


def _wide(line: str, size: float) -> float:
    """The width of a line of type, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return text_to_path.get_text_width_height_descent(line, FontProperties(size=size), False)[0]


def on_paper(axis: Any, transform: Any, places: Any) -> list[Place]:
    """Places of a transform in points of the page."""
    axis.get_xlim()  # matplotlib finds the ends of an axis when they are asked for
    axis.get_ylim()
    return [
        tuple(one) for one in (np.array(transform.transform(places)).reshape(-1, 2) * 72 / axis.figure.dpi).tolist()
    ]


def _beside(side: tuple[int, int], at: Place, radius: float, extent: Place) -> Box:
    """The box of a text at a side of a marker."""
    gap = SLANTED * (radius + 1) if all(side) else radius + STRAIGHT
    x, y = (middle + part * (gap + one / 2) for middle, part, one in zip(at, side, extent, strict=True))
    wide, tall = extent
    return x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2


def _drawn(axis: Any) -> tuple[Any, Any]:
    """The markers of a panel, each with its radius, (markers, 3), and places along its lines, (places, 2)."""
    marks, curves = [np.empty((0, 3))], [np.empty((0, 2))]
    for line in axis.lines:
        corners = on_paper(axis, line.get_transform(), line.get_xydata())
        if line.get_marker() != "None" and corners:
            reach = (line.get_markersize() + line.get_markeredgewidth()) / 2
            marks.append(np.array([(x, y, reach) for x, y in corners]))
        if line.get_drawstyle() == "steps-post":
            corners = [place for (x, y), (to, below) in pairwise(corners) for place in ((x, y), (to, y), (to, below))]
        if line.get_linestyle() != "None":
            curves.append(_along(corners))
    return np.concatenate(marks), np.concatenate(curves)


def _along(corners: Sequence[Place]) -> Any:
    """Places along a line through some corners, about `EVERY` points apart, (places, 2)."""
    places = [np.empty((0, 2))]
    for start, end in pairwise(corners):
        count = int(min(math.dist(start, end), LONGEST) / EVERY) + 2
        places.append(np.linspace(start, end, count))
    return np.concatenate(places)


def _within(box: Box, places: Any, near: Any = 0.0) -> int:
    """How many places lie in a box or so near it."""
    left, bottom, right, top = box
    x, y = places[:, 0], places[:, 1]
    return int(((left - near < x) & (x < right + near) & (bottom - near < y) & (y < top + near)).sum())


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
