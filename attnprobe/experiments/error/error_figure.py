"""Error against budget: lines with bands or bars, or a dot plot if there is one budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ...figures.drawing import Drawing
from ...figures.ends import drawable, highest, lowest, outside, scale
from ...figures.looks import GREY, formula, in_words, sentence, symbol
from ...figures.methods import (
    CROSS,
    CROSSES,
    QUANTILES,
    Styles,
    crossed,
    family_panels,
    flagged,
    has,
    hollow_legend,
    legend_text,
    marks,
    panel_title,
    parts,
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
from .error_panels import ARROW, BARS, BOUND, DASHED, DOTTED, LINE, dot_panel, is_out, line_panel, median_of

Dots = tuple[Sequence[str], Sequence[Row]]  # the methods of a panel of one budget, and its rows

SPAN = 1e2  # of an axis above V-Mean's error
MOST_BANDS = 3  # methods; more than that have bars
MAXIMUM: dict[str, Any] = {"color": GREY, "linestyle": "", "marker": "_", "markersize": 7, "markeredgewidth": 1.3}
BEYOND = 10.0  # what maxima may add to an axis, times the largest p90, and lower bounds below the smallest p10
BEYOND_EDGE = "beyond the axis (number: median)"
MAXIMUM_BEYOND = "maximum beyond the axis"
DOTS = 0.19  # inches of a method's line
FEW_DOTS = 8  # lines below each other; twice as many have two columns


def error_figure(
    rows: Sequence[Row], bounds: Sequence[Row], drawing: Drawing, out_dir: str | Path, name: str = "output_spectral"
) -> list[Path]:
    """Draw the metric ``name`` against ``d``: one panel per (source, layer, n, target), one line per method.

    More than 6 methods have panels of families (see `family_panels`), all on one scale.

    Points are medians over heads, windows and repeats. Bands, or for many methods or variants of one, bars side by side
    run from p10 to p90.
    Medians are drawn because a few heads dominate the means of Nyström methods. Ticks are maxima. Points of rows with
    bad rows are hollow, and ``!`` marks their methods in the legend. Methods without a budget are horizontal lines;
    V-Mean's is dashed. The lower bound is dotted and drawn where it is not far below all methods. A cross marks a row
    with diverged or failed cells. If there is one ``d``, the figure is a dot plot: the median, p10 – p90 and maximum of
    each method.

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
    dots = len(budgets) < 2
    order = list(dict.fromkeys(map(_corner, rows)))
    plotted.sort(key=lambda row: order.index(_corner(row)))
    corners = gathered(plotted, _corner)
    if dots:
        figures = [_dots(corners, limits, name, budgets, styles, drawing.sizes.down(DOTS))]
    elif len(family_panels(plotted)) > 1:
        figures = [_families(rows, group, limits, name, budgets) for group in corners]
    else:
        figures = [_lines(corners, limits, name, budgets, styles)]
    return draw_figures(figures, drawing, out_dir)


def _dots(
    corners: Sequence[Sequence[Row]],
    limits: Sequence[Row],
    name: str,
    budgets: Sequence[int],
    styles: Styles,
    most: int,
) -> Panels:
    """A line for each method at one budget, by rising medians, at most so many below each other; one scale.

    Many methods of one place stand in two columns.
    """
    rows = [row for group in corners for row in group]
    values, high = _values([*rows, *limits], name), _end(rows, name)
    ends = lowest(values, high), highest(values, high)
    medians = {
        label: [
            drawable(median_of(row, name)) if has(row, name) else math.inf for row in rows if text_label(row) == label
        ]
        for label in styles
    }
    order = sorted(medians, key=lambda label: median(medians[label]))
    by_error = sorted(rows, key=lambda row: order.index(text_label(row)))
    places = [_corner(group[0]) for group in corners]
    half = math.ceil(len(order) / 2)
    split = parts(by_error, min(most, half) if len(corners) == 1 and half > FEW_DOTS else most)

    def draw(axis: Any, panel: Dots) -> None:
        labels, group = panel
        dot_panel(axis, group, _at(limits, group[0]), name, {label: styles[label] for label in labels}, ends)
        scale(axis, values, dots=True, high=high)

    panels = [
        (panel_title(group[0], budgets), (sorted({*map(text_label, part)}, key=order.index), group))
        for part in split
        for group in sorted(gathered(part, _corner), key=lambda group: places.index(_corner(group[0])))
    ]
    legend = {text_label(row): LINE | DASHED for row in rows if row.get("reference") and has(row, name)}
    legend |= {f"lower bound, rank {row['d']}": LINE | DOTTED for row in limits}
    legend |= {QUANTILES: BARS | LINE | {"linewidth": 2.2}, "maximum": MAXIMUM | {"marker": "|"}}
    out = any(is_out(row, name, *ends) for row in _measured(rows, name))
    legend |= {BEYOND_EDGE: {"color": GREY, "linestyle": "", "marker": ">"}} if out else {}
    legend |= hollow_legend(rows) | ({CROSS: CROSSES} if any(crossed(row, name) for row in rows) else {})
    return Panels(
        f"error-{name}",
        sentence(in_words(name)) + ": median, p10 – p90, maximum",
        [
            *_caption(name, rows, limits, budgets, styles, True),
            "Methods stand by rising medians.",
            *([f"The axis ends at {SPAN:g} times V-Mean's error."] * math.isfinite(high)),
        ],
        panels,
        draw,
        symbol(name),
        legend=legend,
        height=max(1.1, DOTS * (1 + max(len(labels) for _, (labels, _) in panels)) + 0.5),
        columns=len(corners) if len(corners) > 1 else min(2, len(split)),
        sharing={"sharex": True, "sharey": "row" if len(corners) > 1 else False},
    )


def _measured(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows of methods, not of yardsticks, that hold the metric."""
    return [row for row in rows if has(row, name) and not row.get("reference")]


def _lines(
    corners: Sequence[Sequence[Row]], limits: Sequence[Row], name: str, budgets: Sequence[int], styles: Styles
) -> Panels:
    """A line for each method, a panel for each place. A row of panels that is a layer or source has its own scale."""
    rows = [row for group in corners for row in group]
    high = _end(rows, name)
    notes = _notes(rows, name, lowest(_values([*rows, *limits], name), high), high)
    lengths = {row["n"] for row in rows}
    rowwise = 1 < len(lengths) <= 4 and len(corners) > len(lengths)

    def level(row: Row) -> tuple[Any, ...] | None:
        return (row.get("layer"), row.get("target"), source_heading(row)) if rowwise else None

    values = {level(group[0]): _values(group, name) for group in gathered([*rows, *limits], level)}  # of each axis
    ends = {axis: highest(every, high) for axis, every in values.items()}
    out = any(is_out(row, name, 0.0, ends[level(row)]) for row in _measured(rows, name))

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        here = level(panel[0])
        line_panel(axis, panel, _at(limits, panel[0]), name, styles, budgets, not _are_barred(styles), ends[here])
        scale(axis, values[here], high=high)

    return Panels(
        f"error-{name}",
        sentence(in_words(name)) + " against budget d: median, p10 – p90, maximum",
        _caption(name, rows, limits, budgets, styles, False),
        [(panel_title(group[0]), group) for group in corners],
        draw,
        "budget d",
        symbol(name),
        shared_legend(rows, styles, name, notes) | _rest(rows, limits, budgets, _are_barred(styles), out),
        columns=len(lengths) if rowwise else None,
        sharing={"sharey": "row" if rowwise else True},
    )


def _families(
    run: Sequence[Row], rows: Sequence[Row], limits: Sequence[Row], name: str, budgets: Sequence[int]
) -> Panels:
    """A panel for each family of the rows of one place, all on one scale."""
    place = panel_title(rows[0])
    panels = [(f"{place}\n{title}", panel) for title, panel in family_panels(rows)]
    styles = styles_of(run, rows)
    references = {text_label(row): styles[text_label(row)] for row in rows if row.get("reference")}
    values, high = _values([*rows, *_at(limits, rows[0])], name), _highest(rows, name)
    notes = _notes(rows, name, lowest(values, high), high)
    marked = flagged(rows)
    end = highest(values, high)
    out = any(is_out(row, name, 0.0, end) for row in _measured(rows, name))

    def draw(axis: Any, panel: Sequence[Row]) -> Mapping[str, Any]:
        lines = line_panel(axis, panel, _at(limits, panel[0]), name, styles, budgets, False, end)
        scale(axis, values, high=high)
        return {
            legend_text(label, marked) + notes.get(label, ""): line
            for label, line in lines.items()
            if label not in references
        }

    crosses = {CROSS: CROSSES} if any(crossed(row, name) for row in rows) else {}
    return Panels(
        f"error-{name}",
        sentence(in_words(name)) + " against budget d: median, p10 – p90, maximum",
        _caption(name, rows, limits, budgets, styles, False),
        panels,
        draw,
        "budget d",
        symbol(name),
        references | crosses | _rest(rows, limits, budgets, True, out),
        height=2.3,
    )


def _values(rows: Sequence[Row], name: str) -> list[float | None]:
    """What an axis of errors holds: medians, and of requested methods quantiles, and the maxima near them."""
    methods = [row for row in rows if not row.get("reference") and row["method"] != LOWER_BOUND]
    statistics = [row["metrics"][name] for row in methods if has(row, name)]
    values = [row["metrics"][name]["median"] for row in rows if has(row, name)]
    values += [stats.get(key) for stats in statistics for key in ("p10", "p90")]
    most = BEYOND * max((value for value in map(drawable, values) if value == value), default=math.inf)
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


def _rest(
    rows: Sequence[Row], limits: Sequence[Row], budgets: Sequence[int], barred: bool, out: bool
) -> dict[str, Any]:
    """The legend of what is drawn beside lines of methods."""
    spread = spread_legend(QUANTILES, not barred) | {"maximum": MAXIMUM}
    spread |= {MAXIMUM_BEYOND: {"color": GREY, **ARROW}} if out else {}
    bound = {"lower bound, rank d": BOUND} if any(row["d"] in budgets for row in limits) else {}
    return spread | hollow_legend(rows) | bound


def _caption(
    name: str, rows: Sequence[Row], bounds: Sequence[Row], budgets: Sequence[int], styles: Styles, dots: bool
) -> list[str]:
    spread = "Points are medians, {} run from p10 to p90, and ticks are maxima, or arrows beyond the axis."
    barred = dots or _are_barred(styles)
    lines = [f"{sentence(in_words(name))}, {formula(name)}" + ("." if dots else ", against the budget d.")]
    lines.append(spread.format("bars" if barred else "bands"))
    lines += ["Methods of one d stand side by side in its column."] if barred and not dots else []
    lines += marks(rows, name)
    if any(row["d"] in budgets for row in bounds):
        lines.append("Dotted: the error of the best matrix of rank d, where it is not far below all methods.")
    return [*lines, where(rows, "heads", "windows", "repeats")]


def _are_barred(styles: Styles) -> bool:
    """Whether methods have bars, because their bands would overlap."""
    return sum(style["marker"] is not None for style in styles.values()) > MOST_BANDS


def _highest(rows: Sequence[Row], name: str) -> float:
    """The end of the panels of families: 100 times V-Mean's error, or the middle of all."""
    middles = [median_of(row, name) for row in rows if has(row, name) and row.get("reference")]
    middles = middles or sorted(median_of(row, name) for row in rows if has(row, name))
    return middles[len(middles) // 2] * SPAN or math.inf


def _end(rows: Sequence[Row], name: str) -> float:
    """`_highest`, if a method's p90 is above it: one that diverges does not squeeze the others."""
    high = _highest(rows, name)
    most = max(drawable(row["metrics"][name]["p90"]) for row in rows if has(row, name))
    return high if most > high else math.inf


def _notes(rows: Sequence[Row], name: str, low: float, high: float = math.inf) -> dict[str, str]:
    """The notes of a legend (see `outside`) on medians."""
    return outside([row for row in rows if has(row, name)], lambda row: [median_of(row, name)], low, high)


def _corner(row: Row) -> tuple[Any, ...]:
    return row.get("layer"), row.get("n"), row.get("target"), source_heading(row)
