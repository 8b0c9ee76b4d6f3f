"""One panel of errors: lines against the budget, or dots at one budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...figures.ends import drawable
from ...figures.kit import powers_of_two
from ...figures.looks import GREY
from ...figures.methods import (
    HOLLOW,
    SHADE,
    Styles,
    cross_out,
    crossed,
    flagged,
    has,
    legend_text,
    slots,
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
BOUND: dict[str, Any] = {"color": GREY, "linestyle": ":", "marker": ".", "linewidth": 1.3}


def median_of(row: Row, name: str) -> float:
    """The median that a row is drawn at."""
    return row["metrics"][name]["median"] or 0.0


def is_out(row: Row, name: str, low: float, end: float) -> bool:
    """Whether a median lies outside the axis, or a maximum above it."""
    return drawable(row["metrics"][name].get("max")) > end or median_of(row, name) < low


def line_panel(
    axis: Any,
    rows: Sequence[Row],
    bounds: Sequence[Row],
    name: str,
    styles: Styles,
    budgets: Sequence[int],
    bands: bool,
    end: float,
) -> dict[str, Any]:
    """Error against budget: a line per method with its band, or with bars side by side in `slots`.

    A tick is the maximum, or an arrow beyond the ``end`` of the axis. A hollow marker is a row with bad rows. Returns
    the line of each method.
    """
    from matplotlib.lines import Line2D

    there = set(map(text_label, rows))
    curves = [label for label, style in styles.items() if style["marker"] and label in there]
    if bands:
        powers_of_two(axis, budgets)
        axis.set_xlim(budgets[0] / 1.4, budgets[-1] * 1.4)
    places = {} if bands else slots(axis, budgets, curves)
    lines: dict[str, Any] = {}
    for group in gathered(rows, text_label):
        label = text_label(group[0])
        style = styles[label]
        points = [(row["d"], row["metrics"][name]) for row in group if has(row, name)]
        if points and points[0][0] is None:
            lines[label] = axis.axhline(points[0][1]["median"], **{**style, "marker": None}, zorder=1.5)
        elif points:
            d = [places.get((label, budget), budget) for budget, _ in points]
            p10, middle, p90 = ([drawable(stats[key]) for _, stats in points] for key in ("p10", "median", "p90"))
            if bands and len(d) > 1:
                axis.fill_between(d, p10, p90, color=style["color"], alpha=SHADE, linewidth=0)
                for edge in (p10, p90):
                    axis.plot(d, edge, color=style["color"], alpha=0.35, linewidth=0.7)
            else:
                axis.vlines(d, p10, p90, color=style["color"], **BARS)
            bad = [mark(row) == "!" for row in group if has(row, name)]
            filled = [place for place, one in enumerate(bad) if not one]
            (lines[label],) = axis.plot(d, middle, **style, markevery=filled)
            most = [drawable(stats["max"]) for _, stats in points]
            axis.plot(d, most, color=style["color"], linestyle="", marker="_", markersize=7, markeredgewidth=1.3)
            above = [x for x, y in zip(d, most, strict=True) if y > end]
            if above:
                top = {"transform": axis.get_xaxis_transform(), "clip_on": False, "in_layout": False}
                axis.plot(above, [1.0] * len(above), color=style["color"], **ARROW, **top)
            for x, y, one in zip(d, middle, bad, strict=True):
                if one:  # a ring stays visible around the point of another method
                    axis.plot([x], [y], color=style["color"], marker=style["marker"], **HOLLOW)
        for row in group:
            if crossed(row, name):
                value = median_of(row, name) if has(row, name) and median_of(row, name) <= end else None
                lines.setdefault(label, Line2D([], [], **style))
                d = row["d"] or budgets[0]
                cross_out(axis, places.get((label, d), d), value, style["color"])
    best = [
        (row["d"] if bands else budgets.index(row["d"]), median_of(row, name)) for row in bounds if row["d"] in budgets
    ]
    if best:
        axis.plot(*zip(*best, strict=True), **BOUND)
    return lines


def dot_panel(
    axis: Any,
    rows: Sequence[Row],
    bounds: Sequence[Row],
    name: str,
    styles: Styles,
    ends: tuple[float, float],
) -> None:
    """One budget: a line per method with its median, p10 – p90 and maximum.

    An arrow at an edge is a median below ``ends``, those of the axis, or a maximum above. Medians beyond have numbers.
    """
    low, end = ends
    labels = [label for label, style in styles.items() if style["marker"]]
    for position, label in enumerate(labels):
        style = styles[label]
        for row in (row for row in rows if text_label(row) == label):
            stats = row["metrics"][name] if has(row, name) else None
            if stats is not None:
                look = {"color": style["color"], "linestyle": "-", "linewidth": 2.2}
                quantiles = [drawable(stats["p10"]), drawable(stats["p90"])]
                axis.plot(quantiles, [position] * 2, alpha=0.5, solid_capstyle="butt", **look)
                face = HOLLOW if mark(row) == "!" else {}
                axis.plot([stats["median"]], [position], **{**style, "linestyle": "", "markersize": 7, **face})
                axis.plot([drawable(stats["max"])], [position], marker="|", markersize=9, markeredgewidth=1.6, **look)
                if is_out(row, name, low, end):
                    below = median_of(row, name) < low
                    at, beside, arrow, aligned = (0.0, 0.05, "<", "left") if below else (1.0, 0.95, ">", "right")
                    edge = {"transform": axis.get_yaxis_transform(), "color": style["color"], "clip_on": False}
                    axis.plot([at], [position], marker=arrow, markersize=6, **edge)
                    if below or stats["median"] > end:
                        number = f"{stats['median']:.1e}" if stats["median"] else "0"
                        axis.text(beside, position, number, ha=aligned, va="center", fontsize="small", **edge)
            if crossed(row, name):
                seen = stats is not None and median_of(row, name) <= end
                x, y = (median_of(row, name), position) if seen else (position, None)
                cross_out(axis, x, y, style["color"], dots=True)
    marked = flagged(rows)
    axis.set_yticks(range(len(labels)), [legend_text(label, marked) for label in labels])
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    for row in rows:
        if row.get("reference") and has(row, name):
            axis.axvline(median_of(row, name), **LINE, **DASHED)
    for row in bounds:
        axis.axvline(median_of(row, name), **LINE, **DOTTED)
