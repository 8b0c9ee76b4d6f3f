"""Errors against a cost: a line for each method with its name at the end, and the frontier."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..files import Fields
from ..tables.methods import family
from ..tables.table import gathered
from .looks import Look
from .methods import HOLLOW, HUGE, OWN, styles_of, text_label
from .texts import Texts

Limits = tuple[float, float]  # the cost of exact attention, and the error of V-Mean, which costs nothing

FRONTIER = {"color": "#c4c4c4", "linewidth": 3.0, "zorder": 0.9}  # behind the lines
OTHERS = {"color": "#bbbbbb", "linestyle": "", "marker": "o", "markersize": 2.6, "zorder": 1.2}
DIM = {"color": "#777777"}  # names of others
OTHERS_BAD = {**OTHERS, "color": "#999999", "markersize": 4.5, "markerfacecolor": "none", "markeredgewidth": 0.9}
STEPS = {"frontier: no bad rows, left of exact attention": FRONTIER}  # of a legend
RULE = (  # of a caption
    "The steps are the frontier: points without bad rows that cost less than exact attention and have less error than "
    "V-Mean and all cheaper ones. A panel without steps has no such point."
)
LINES = (
    "A line joins the budgets of a method in rising order. Its name stands at its largest d, and its least and largest "
    "d stand at one of the lines that have the same."
)
EDGE = {"markeredgecolor": "white", "markeredgewidth": 0.5}
OWN_EDGE = {"markeredgecolor": "black", "markeredgewidth": 0.9}  # of the user's methods among many
MOST_COLOURED = 8  # methods of many
MOST_LEAST = 6  # methods in colours where no panel has a frontier
MOST_GREY = 10  # other methods, which have a line and a name each
ARROWS = {"beyond the axis": {"color": OTHERS["color"], "linestyle": "", "marker": "^", "markersize": 4.5}}
FAR = 1e3  # from the least cost to the beginning of the frontier at V-Mean, which has none


@dataclass(frozen=True)
class Point:
    """A method at a budget: its label, its cost and error, both positive, and whether it has bad rows."""

    label: str
    d: int | None
    cost: float
    error: float
    bad: bool = False


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


def prominent(panels: Iterable[tuple[Sequence[Point], Sequence[Point]]], own: Collection[str] = ()) -> set[str]:
    """The methods that panels draw in their colours: all, or of many the user's own and those on a frontier.

    So has a method with a point of bad rows that no other beats. Where no panel has a frontier, these are the
    `MOST_LEAST` of the least errors.

    Args:
        panels: the points of each, and those of its frontier. own: the labels of the user's methods.
    """
    panels = list(panels)
    every = {point.label for points, _ in panels for point in points}
    if len(every) <= MOST_COLOURED:
        return every
    by_error = sorted((point for points, _ in panels for point in points), key=lambda point: point.error)
    least = list(dict.fromkeys(point.label for point in by_error))[:MOST_LEAST]
    every_best = [point for points, best in panels for point in (*best, *_spoiled(points))]
    return every & {*own} | ({point.label for point in every_best} or {*least})


def _spoiled(points: Sequence[Point]) -> list[Point]:
    """The points with bad rows that none without beats in both cost and error."""
    sound = [point for point in points if not point.bad]
    return [one for one in points if one.bad and not any(x.cost <= one.cost and x.error <= one.error for x in sound)]


def others_legend(labels: Collection[str]) -> dict[str, Look]:
    """The legend of grey methods, if there are any."""
    return {f"{len(labels)} other method{'s' * (len(labels) > 1)}": OTHERS} if labels else {}


def no_panel(stating: Mapping[str, Collection[str]]) -> list[str]:
    """The sentences of a caption on costs without a panel, of the methods that state each.

    >>> no_panel({"time": [], "keys read": ["topk"]})
    ['No panel of keys read: only topk states their number.']
    """
    return [f"No panel of {name}: only {', '.join(who)} states their number." for name, who in stating.items() if who]


def coloured(
    run: Sequence[Fields], rows: Sequence[Fields], panels: Sequence[tuple[Sequence[Point], Sequence[Point]]]
) -> tuple[dict[str, Look], set[str], list[str]]:
    """The looks of the methods of `prominent`, the labels of the others, and the sentences of a caption on both.

    Args:
        run: all rows of the run. rows: of the points. panels: as in `prominent`.
    """
    own = {text_label(row) for row in rows if family(row) == OWN}
    named = prominent(panels, own)
    others = {point.label for points, _ in panels for point in points} - named
    styles = styles_of(run, [row for row in rows if text_label(row) in named])
    styles = {label: {**look, **(OWN_EDGE if label in own and others else {})} for label, look in styles.items()}
    stepped = any(best for _, best in panels)
    named = ", ".join(sorted(others)) if len(others) > MOST_GREY else "with names where there is room"
    several = len({row["d"] for row in rows} - {None}) > 1
    words = [
        *([LINES] * several),
        *([RULE] * stepped),
        *(
            [f"Grey: methods {'without a point on a frontier' if stepped else 'of larger errors'}, {named}."]
            * bool(others)
        ),
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

    grey = gathered([point for point in points if point.label not in styles], lambda point: point.label)
    for line in grey if len(grey) <= MOST_GREY else ():
        axis.plot(*_places(line), **{**OTHERS, "linestyle": "-", "marker": "", "linewidth": 0.7, "zorder": 1.1})
    for bad, look in ((False, OTHERS), (True, OTHERS_BAD)):
        axis.plot(*_places([one for one in points if one.label not in styles and one.bad == bad]), **look)
    for line in gathered([point for point in points if point.label in styles], lambda point: point.label):
        style = styles[line[0].label]
        axis.plot(*_places(line), **{**style, "marker": None}, alpha=0.6, zorder=2)
        for point in line:
            look = {**EDGE, **style, "linestyle": "", "markersize": 5.5, "zorder": 3}
            look |= {**HOLLOW, "markeredgecolor": style["color"], "zorder": 2.5} if point.bad else {}
            axis.plot([point.cost], [point.error], **look)
    costs, errors = _places(best)
    if best and best[0].error < vmean < HUGE:  # V-Mean is left of the axis
        costs, errors = [costs[0] / FAR, *costs], [vmean, *errors]
    axis.add_artist(Line2D(costs, errors, drawstyle="steps-post", **FRONTIER))


def beyond(axis: Any, points: Sequence[Point], styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw points above or below the axis as arrows at its edge."""
    low, high = axis.get_ylim()
    for point in points:
        look = {"color": styles.get(point.label, OTHERS)["color"], "marker": "^" if point.error > high else "v"}
        look |= {"linestyle": "", "markersize": 4.5, "clip_on": False, "zorder": 3}
        axis.plot([point.cost], [min(max(point.error, low), high)], **look)
    axis.set_ylim(low, high)


def names(
    axis: Any,
    points: Sequence[Point],
    styles: Mapping[str, Mapping[str, Any]],
    several: bool = True,
    outside: Sequence[Point] = (),
) -> None:
    """Write the names of methods with a style at the ends of their lines, and d at both ends of lines.

    Of lines with the same budgets, the first that has room has them. Up to `MOST_GREY` other methods, and those
    outside, have names where there is room, the least errors first. The lines of the panel are drawn, and the layout
    is final.

    Args:
        several: whether points have d. outside: of `beyond`.
    """
    lines = gathered([point for point in points if point.label in styles], lambda point: point.label)
    texts = Texts(axis)
    for line in lines:
        texts.write(_name(line), [(line[-1].cost, line[-1].error)], styles[line[0].label]["color"], far=True)
    ends = gathered(lines, lambda line: tuple(point.d for point in line)) if several else []
    for alike in ends:
        for line in alike:
            at = [(point.cost, point.error) for point in dict.fromkeys((line[0], line[-1])) if point.d is not None]
            words = [f"d = {line[0].d}", str(line[-1].d)]
            colour = styles[line[0].label]["color"]
            if all([texts.write(word, [place], colour) for word, place in zip(words, at, strict=False)]):
                break
    named = {line[0].label for line in lines}
    low, high = axis.get_ylim()
    for some in (outside, points):
        others = gathered([one for one in some if one.label not in named], lambda point: point.label)
        if some is points and len(others) > MOST_GREY:
            break
        for line in sorted(others, key=lambda group: group[-1].error):
            name, place = _name(line), (line[-1].cost, min(max(line[-1].error, low), high))
            texts.write(name, [place], styles.get(line[0].label, DIM)["color"])


def _name(line: Sequence[Point]) -> str:
    return line[0].label + " !" * any(point.bad for point in line)


def _places(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.cost for point in points], [point.error for point in points]
