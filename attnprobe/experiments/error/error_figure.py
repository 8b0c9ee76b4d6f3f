"""Error against budget: lines with bands or bars, or a dot plot of one budget or many methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from ...figures.drawing import Drawing, Style
from ...figures.ends import drawable, highest, lowest, outside, scale
from ...figures.looks import GREY, formula, in_words, sentence, symbol
from ...figures.methods import (
    CROSS,
    CROSSES,
    QUANTILES,
    Styles,
    crossed,
    has,
    hollow_legend,
    left_out,
    marks,
    names_of,
    order_of,
    panel_title,
    parts,
    ranked,
    shared_legend,
    spread_legend,
    styles_of,
    text_label,
    where,
)
from ...figures.panels import Panels, draw_figures
from ...records.file import LOWER_BOUND
from ...tables.labels import source_heading
from ...tables.long import Row
from ...tables.methods import family
from ...tables.table import gathered
from .error_panels import (
    ARROW,
    BARS,
    BOUND,
    DASHED,
    DOTTED,
    LINE,
    budget_looks,
    dot_panel,
    is_out,
    line_panel,
    median_is_out,
    median_of,
)

Dots = tuple[Sequence[str], Sequence[Row]]  # the methods of a panel of dots, and its rows

SPAN = 1e2  # of an axis above V-Mean's error
MOST_LINES = 3  # methods; those of more are dots, because their bands would overlap
MAXIMUM: dict[str, Any] = {"color": GREY, "linestyle": "", "marker": "_", "markersize": 7, "markeredgewidth": 1.3}
BEYOND = 10.0  # what maxima may add to an axis, times the largest p90, and lower bounds below the smallest p10
BEYOND_EDGE = "beyond the axis"
MAXIMUM_BEYOND = "maximum beyond the axis"
DOTS = 0.19  # inches of a method's line, at least
STEP = 0.1  # inches from a budget's dot to the next
DOT: dict[str, Any] = {"linestyle": "", "markersize": 5}
TALL = 3.1  # inches of methods' lines below each other; more have two columns


def error_figure(
    rows: Sequence[Row], bounds: Sequence[Row], drawing: Drawing, out_dir: str | Path, name: str = "output_spectral"
) -> list[Path]:
    """Draw the metric ``name`` against ``d``: one panel per (source, layer, n, target), one line per method.

    Points are medians over heads, windows and repeats, because a few heads dominate the means of Nyström methods. Bands
    run from p10 to p90. Ticks are maxima. Points of rows with bad rows are hollow, and their methods have ``!``.
    Methods without a budget are horizontal lines; V-Mean's is dashed. The lower bound is dotted and drawn where it is
    not far below all methods. A cross marks a row with diverged or failed cells.

    Of one ``d``, or of more methods than `MOST_LINES`, the figure is a dot plot: a line per method, by rising medians,
    with the median, p10 – p90 and maximum of each ``d``.

    Args:
        out_dir: where ``error-METRIC.svg`` and the like are written (``-2``, … where there are many panels).

    Returns:
        The files' paths; none if no method's row holds the metric.
    """
    plotted = [row for row in rows if has(row, name) or crossed(row, name)]
    if not any(has(row, name) for row in plotted) or all(row.get("reference") for row in plotted):
        return []
    budgets = sorted({row["d"] for row in plotted if row["d"] is not None})
    limits = _near(bounds, plotted, name)
    methods = [row for row in plotted if not row.get("reference")]
    families = list(dict.fromkeys(map(family, methods)))
    place = {name: index for index, name in enumerate(families)}
    plotted.sort(key=lambda row: (bool(row.get("reference")), place.get(family(row), -1)))
    styles = styles_of(rows, plotted)
    dots = len(budgets) < 2 or len(set(map(text_label, methods))) > MOST_LINES
    order = list(dict.fromkeys(map(_corner, rows)))
    plotted.sort(key=lambda row: order.index(_corner(row)))
    corners = gathered(plotted, _corner)
    if dots:
        figure = _dots(corners, limits, name, budgets, styles, drawing.sizes)
    else:
        figure = _lines(corners, limits, name, budgets, styles)
    caption = [*figure.caption, *left_out(rows, plotted, text_label).sentences]
    return draw_figures([replace(figure, caption=caption)], drawing, out_dir)


def _dots(
    corners: Sequence[Sequence[Row]],
    limits: Sequence[Row],
    name: str,
    budgets: Sequence[int],
    styles: Styles,
    sizes: Style,
) -> Panels:
    """A line for each method with a dot for each budget, by rising medians, as many as a page has; one scale.

    Many methods of one place stand in two columns.
    """
    rows = [row for group in corners for row in group]
    values = _values([*rows, *limits], name)
    high = _end(rows, values, name)
    ends = lowest(values, high), highest(values, high)
    order, names = ranked(rows, lambda line: median(_finite(row, name) for row in line)), names_of(rows)
    by_error = sorted(rows, key=lambda row: order.index(text_label(row)))
    places = [_corner(group[0]) for group in corners]
    several = len(budgets) > 1
    looks = budget_looks(budgets) if several else {}
    line = max(DOTS, STEP * (1 + len(budgets)))
    most, half = sizes.down(line), math.ceil(len(order) / 2)
    split = parts(by_error, min(most, half) if len(corners) == 1 and line * len(order) > TALL else most)

    def draw(axis: Any, panel: Dots) -> None:
        labels, group = panel
        there = {label: styles[label] for label in labels}
        dot_panel(axis, group, _at(limits, group[0]), name, there, looks, names, ends)
        scale(axis, values, dots=True, high=high)

    panels = [
        (panel_title(group[0], () if several else budgets), (sorted({*map(text_label, part)}, key=order.index), group))
        for part in split
        for group in sorted(gathered(part, _corner), key=lambda group: places.index(_corner(group[0])))
    ]
    there = {row["d"] for row in rows if not row.get("reference")}
    legend = {"no d" if d is None else f"d = {d}": {**look, **DOT} for d, look in looks.items() if d in there}
    legend |= {text_label(row): LINE | DASHED for row in rows if row.get("reference") and has(row, name)}
    legend |= {f"lower bound, rank {'d' if several else row['d']}": LINE | DOTTED for row in limits}
    legend |= {QUANTILES: BARS | LINE | {"linewidth": 2.2}, "maximum": MAXIMUM | {"marker": "|"}}
    measured = _measured(rows, name)
    edge = BEYOND_EDGE + " (number: median)" * any(median_is_out(row, name, *ends) for row in measured)
    out = any(is_out(row, name, *ends) for row in measured)
    legend |= {edge: {"color": GREY, "linestyle": "", "marker": ">"}} if out else {}
    legend |= hollow_legend(rows) | ({CROSS: CROSSES} if any(crossed(row, name) for row in rows) else {})
    return Panels(
        f"error-{name}",
        sentence(in_words(name)) + ": median, p10 – p90, maximum",
        [
            *_caption(name, rows, limits, budgets, True),
            order_of(rows, "medians"),
            *([f"The axis ends at {SPAN:g} times V-Mean's error."] * (high < _largest(values))),
        ],
        panels,
        draw,
        symbol(name),
        legend=legend,
        height=max(1.1, DOTS + line * max(len(labels) for _, (labels, _) in panels) + 0.5),
        columns=len(corners) if len(corners) > 1 else min(2, len(split)),
        sharing={"sharex": True, "sharey": "row" if len(corners) > 1 else False},
    )


def _finite(row: Row, name: str) -> float:
    """A row's median; infinite where it has none that is drawable."""
    return drawable(median_of(row, name)) if has(row, name) else math.inf


def _measured(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows of methods, not of yardsticks, that hold the metric."""
    return [row for row in rows if has(row, name) and not row.get("reference")]


def _lines(
    corners: Sequence[Sequence[Row]], limits: Sequence[Row], name: str, budgets: Sequence[int], styles: Styles
) -> Panels:
    """A line for each method, a panel for each place. A row of panels that is a layer or source has its own scale."""
    rows = [row for group in corners for row in group]
    every = _values([*rows, *limits], name)
    high = _end(rows, every, name)
    low = lowest(every, high)
    notes = outside([row for row in rows if has(row, name)], lambda row: [median_of(row, name)], low, high)
    lengths = {row["n"] for row in rows}
    rowwise = 1 < len(lengths) <= 4 and len(corners) > len(lengths)

    def level(row: Row) -> tuple[Any, ...] | None:
        return (row.get("layer"), row.get("target"), source_heading(row)) if rowwise else None

    values = {level(group[0]): _values(group, name) for group in gathered([*rows, *limits], level)}  # of each axis
    ends = {axis: highest(every, high) for axis, every in values.items()}
    out = any(is_out(row, name, 0.0, ends[level(row)]) for row in _measured(rows, name))

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        here = level(panel[0])
        line_panel(axis, panel, _at(limits, panel[0]), name, styles, budgets, ends[here])
        scale(axis, values[here], high=high)

    spread = spread_legend(QUANTILES, banded=True) | {"maximum": MAXIMUM}
    spread |= {MAXIMUM_BEYOND: {"color": GREY, **ARROW}} if out else {}
    bound = {"lower bound, rank d": BOUND} if any(row["d"] in budgets for row in limits) else {}
    return Panels(
        f"error-{name}",
        sentence(in_words(name)) + " against budget d: median, p10 – p90, maximum",
        _caption(name, rows, limits, budgets, False),
        [(panel_title(group[0]), group) for group in corners],
        draw,
        "budget d",
        symbol(name),
        shared_legend(rows, styles, name, notes) | spread | hollow_legend(rows) | bound,
        columns=len(lengths) if rowwise else None,
        sharing={"sharey": "row" if rowwise else True},
    )


def _values(rows: Sequence[Row], name: str) -> list[float | None]:
    """What an axis of errors holds: medians, and of requested methods quantiles, and the maxima near them."""
    methods = [row for row in rows if not row.get("reference") and row["method"] != LOWER_BOUND]
    statistics = [row["metrics"][name] for row in methods if has(row, name)]
    values = [row["metrics"][name]["median"] for row in rows if has(row, name)]
    values += [stats.get(key) for stats in statistics for key in ("p10", "p90")]
    most = BEYOND * _largest(values)
    return [*values, *(value for stats in statistics if (value := drawable(stats.get("max"))) <= most)]


def _near(bounds: Sequence[Row], rows: Sequence[Row], name: str) -> list[Row]:
    """The lower bounds that are drawn: not far below all methods, and at two budgets, or at the only one."""
    lows = [low for row in rows if has(row, name) and (low := drawable(row["metrics"][name]["p10"])) > 0]
    least = min(lows, default=math.inf) / BEYOND
    near = [row for row in bounds if has(row, name) and median_of(row, name) >= least]
    budgets = {row["d"] for row in rows if row["d"] is not None}
    return near if len({row["d"] for row in near}) >= min(2, len(budgets)) else []


def _at(rows: Sequence[Row], row: Row) -> list[Row]:
    return [one for one in rows if _corner(one) == _corner(row)]


def _caption(name: str, rows: Sequence[Row], bounds: Sequence[Row], budgets: Sequence[int], dots: bool) -> list[str]:
    lines = [f"{sentence(in_words(name))}, {formula(name)}" + ("." if dots else ", against the budget d.")]
    spread = "bars" if dots else "bands"
    lines.append(f"Points are medians, {spread} run from p10 to p90, and ticks are maxima, or arrows beyond the axis.")
    lines += marks(rows, name)
    if any(row["d"] in budgets for row in bounds):
        lines.append("Dotted: the error of the best matrix of rank d, where it is not far below all methods.")
    return [*lines, where(rows, "heads", "windows", "repeats")]


def _largest(values: Sequence[float | None]) -> float:
    return max((value for value in map(drawable, values) if value == value), default=math.inf)


def _end(rows: Sequence[Row], values: Sequence[float | None], name: str) -> float:
    """The largest value on an axis, which all pages share.

    If a method's p90 is above `SPAN` times V-Mean's error, or the middle of all, it is that, so that a method that
    diverges does not squeeze the others; else it is the largest of ``values``.
    """
    shown = [row for row in rows if has(row, name)]
    middles = [median_of(row, name) for row in shown if row.get("reference")]
    middles = middles or sorted(median_of(row, name) for row in shown)
    high = middles[len(middles) // 2] * SPAN or math.inf
    return high if max(drawable(row["metrics"][name]["p90"]) for row in shown) > high else _largest(values)


def _corner(row: Row) -> tuple[Any, ...]:
    return row.get("layer"), row.get("n"), row.get("target"), source_heading(row)
