"""Curves that coincide: the lower one is drawn wider and paler, so that both are visible."""

from __future__ import annotations

import math
from typing import Any

NEAR = 0.5  # points between curves that hide each other
WIDER = 2.4  # points of line width for each curve above
LARGER = 4.0  # points of marker size for each curve above
PALE = 0.45  # opacity of a curve with another above it

Points = dict[float, float]


def show_overlaps(figure: Any) -> None:
    """Widen each curve that a curve above it covers, and make it pale. The layout must be final."""
    for axis in figure.axes:
        lines = sorted((line for line in axis.lines if _is_curve(line, axis)), key=lambda line: line.get_zorder())
        curves = [(line, _points(line, 72 / figure.dpi)) for line in lines]
        for place, (line, points) in enumerate(curves):
            above = sum(_coincide(points, later) for _, later in curves[place + 1 :])
            if above:
                line.set_linewidth(line.get_linewidth() + above * WIDER)
                line.set_markersize(line.get_markersize() + above * LARGER)
                line.set_alpha(PALE)


def _is_curve(line: Any, axis: Any) -> bool:
    """Whether a line joins points of data. Edges of bands and guides are translucent; they do not count."""
    has_style = line.get_linestyle() not in ("None", "", " ")
    return has_style and line.get_alpha() is None and line.get_transform() == axis.transData


def _points(line: Any, scale: float) -> Points:
    """The y of a line's points by their x, in points of the page; ``scale`` is the size of a pixel."""
    places = line.get_transform().transform(line.get_xydata()) * scale
    return {round(x, 2): y for x, y in places.tolist()}


def _coincide(one: Points, other: Points) -> bool:
    """Whether two curves have points at two common x at least, and are near each other at every common x."""
    gaps = [abs(one[x] - other[x]) for x in one.keys() & other.keys()]
    finite = [gap for gap in gaps if math.isfinite(gap)]
    return len(finite) > 1 and max(finite) < NEAR
