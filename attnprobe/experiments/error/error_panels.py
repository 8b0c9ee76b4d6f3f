"""One panel of errors: lines against the budget, or dots at one budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from ...figures.ends import drawable
from ...figures.kit import powers_of_two
from ...figures.looks import GREY, MARKERS
from ...figures.methods import (
    HOLLOW,
    SHADE,
    Styles,
    cross_out,
    crossed,
    has,
    rank_of,
    text_label,
)
from ...tables.long import Row
from ...tables.methods import mark
from ...tables.table import gathered

LINE: dict[str, Any] = {"color": GREY, "zorder": 1.5}
DASHED: dict[str, Any] = {"linestyle": "--", "linewidth": 1.3}
DOTTED: dict[str, Any] = {"linestyle": ":", "linewidth": 1.5}
ARROW: dict[str, Any] = {"linestyle": "", "marker": "^", "markersize": 5.5}
BARS: dict[str, Any] = {"alpha": 0.4, "linewidth": 1.8}
LIGHTEST = 0.72  # of the scale of colours, that the smallest budget has
AMONG = 0.8  # of a method's line, that its budgets share
ROUND = {"marker": "o"}
SMALL = 0.7  # of the size of dots, where methods have several
BOUND: dict[str, Any] = {"color": GREY, "linestyle": ":", "marker": ".", "linewidth": 1.3}


def median_of(row: Row, name: str) -> float:
    """The median that a row is drawn at."""
    return row["metrics"][name]["median"] or 0.0


def is_out(row: Row, name: str, low: float, end: float) -> bool:
    """Whether a median lies outside the axis, or a maximum above it."""
    return drawable(row["metrics"][name].get("max")) > end or median_is_out(row, name, low, end)


def median_is_out(row: Row, name: str, low: float, end: float) -> bool:
    """Whether a median lies outside the axis."""
    return not low <= median_of(row, name) <= end


def line_panel(
    axis: Any,
    rows: Sequence[Row],
    bounds: Sequence[Row],
    name: str,
    styles: Styles,
    budgets: Sequence[int],
    end: float,
) -> None:
    """Error against budget: a line per method with its band, or with a bar where it has one budget.

    A tick is the maximum, or an arrow beyond the ``end`` of the axis. A hollow marker is a row with bad rows.
    """
    powers_of_two(axis, budgets)
    axis.set_xlim(budgets[0] / 1.4, budgets[-1] * 1.4)
    for group in gathered(rows, text_label):
        style = styles[text_label(group[0])]
        colour, marker = style["color"], style["marker"]
        shown = [row for row in group if has(row, name)]
        statistics = [row["metrics"][name] for row in shown]
        if shown and shown[0]["d"] is None:
            axis.axhline(statistics[0]["median"], **{**style, "marker": None}, zorder=1.5)
        elif shown:
            d = [row["d"] for row in shown]
            p10, middle, p90 = ([drawable(stats[key]) for stats in statistics] for key in ("p10", "median", "p90"))
            if len(d) > 1:
                axis.fill_between(d, p10, p90, color=colour, alpha=SHADE, linewidth=0)
                for edge in (p10, p90):
                    axis.plot(d, edge, color=colour, alpha=0.35, linewidth=0.7)
            else:
                axis.vlines(d, p10, p90, color=colour, **BARS)
            bad = [mark(row) == "!" for row in shown]
            axis.plot(d, middle, **style, markevery=[place for place, one in enumerate(bad) if not one])
            most = [drawable(stats["max"]) for stats in statistics]
            axis.plot(d, most, color=colour, linestyle="", marker="_", markersize=7, markeredgewidth=1.3)
            above = [x for x, y in zip(d, most, strict=True) if y > end]
            if above:
                top = {"transform": axis.get_xaxis_transform(), "clip_on": False, "in_layout": False}
                axis.plot(above, [1.0] * len(above), color=colour, **ARROW, **top)
            for x, y, one in zip(d, middle, bad, strict=True):
                if one:  # a ring stays visible around the point of another method
                    axis.plot([x], [y], color=colour, marker=marker, **HOLLOW)
        for row in group:
            if crossed(row, name):
                value = median_of(row, name) if has(row, name) and median_of(row, name) <= end else None
                cross_out(axis, row["d"] or budgets[0], value, colour)
    best = [(row["d"], median_of(row, name)) for row in bounds if row["d"] in budgets]
    if best:
        axis.plot(*zip(*best, strict=True), **BOUND)


def budget_looks(budgets: Sequence[int]) -> dict[int | None, dict[str, Any]]:
    """The colour and the marker of each budget's dots, darker with d; grey for methods without one."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    looks: dict[int | None, dict[str, Any]] = {}
    for d, marker in zip(budgets, cycle(MARKERS), strict=False):
        looks[d] = {"color": to_hex(colormaps["viridis"](LIGHTEST * (1 - rank_of(d, budgets)))), "marker": marker}
    return looks | {None: {"color": GREY, "marker": "*"}}


def dot_panel(
    axis: Any,
    rows: Sequence[Row],
    bounds: Sequence[Row],
    name: str,
    styles: Styles,
    looks: Mapping[int | None, Mapping[str, Any]],
    names: Mapping[str, str],
    ends: tuple[float, float],
) -> None:
    """A line per method with the median, p10 – p90 and maximum of each budget, the budgets below each other.

    An arrow at an edge is a median below ``ends``, those of the axis, or a maximum above. Medians beyond have numbers.

    Args:
        looks: of the dots of each budget; empty if there is one, whose dots have the colours of their methods. names:
            of methods, by label.
    """
    low, end = ends
    labels = [label for label, style in styles.items() if style["marker"]]
    budgets = [d for d in looks if d is not None]
    size = SMALL if looks else 1.0
    for row in (row for row in rows if text_label(row) in labels):
        style = {**styles[text_label(row)], **looks.get(row["d"], ROUND), "linestyle": "", "markersize": 7 * size}
        colour, position = style["color"], float(labels.index(text_label(row)))
        if row["d"] in budgets:
            position += AMONG * ((budgets.index(row["d"]) + 0.5) / len(budgets) - 0.5)
        stats = row["metrics"][name] if has(row, name) else None
        if stats is not None:
            quantiles = [drawable(stats["p10"]), drawable(stats["p90"])]
            look = {"color": colour, "linewidth": 2.2 * size}
            axis.plot(quantiles, [position] * 2, alpha=0.5, solid_capstyle="butt", **look)
            hollow = HOLLOW | {"markersize": 8 * size} if mark(row) == "!" else {}
            axis.plot([stats["median"]], [position], **{**style, **hollow})
            tick = {"color": colour, "marker": "|", "markersize": 9 * size, "markeredgewidth": 1.6}
            axis.plot([drawable(stats["max"])], [position], **tick)
            if is_out(row, name, low, end):
                below = median_of(row, name) < low
                at, beside, arrow, aligned = (0.0, 0.05, "<", "left") if below else (1.0, 0.95, ">", "right")
                edge = {"transform": axis.get_yaxis_transform(), "color": colour, "clip_on": False}
                axis.plot([at], [position], marker=arrow, markersize=6, **edge)
                if median_is_out(row, name, low, end):
                    number = f"{stats['median']:.1e}" if stats["median"] else "0"
                    axis.text(beside, position, number, ha=aligned, va="center", fontsize="small", **edge)
        if crossed(row, name):
            seen = stats is not None and median_of(row, name) <= end
            x, y = (median_of(row, name), position) if seen else (position, None)
            cross_out(axis, x, y, colour, dots=True)
    axis.set_yticks(range(len(labels)), [names[label] for label in labels])
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0, pad=5.5)  # names are clear of arrows at the edge
    for row in rows:
        if row.get("reference") and has(row, name):
            axis.axvline(median_of(row, name), **LINE, **DASHED)
    for row in bounds:
        axis.axvline(median_of(row, name), **{**LINE, "color": looks.get(row["d"], LINE)["color"]}, **DOTTED)
