"""Error against budget: lines with bands or bars, or a dot plot if there is one budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn
from ...figures.kit import (
    Sheet,
    canvas,
    columns_for,
    legend,
    legend_below,
    legend_columns,
    legend_inches,
    powers_of_two,
)
from ...figures.looks import GREY
from ...figures.methods import (
    CROSS,
    HOLLOW,
    MOST_IN_PANEL,
    MOST_OF_FAMILY,
    cross_out,
    crossed,
    drawable,
    family_panels,
    flagged,
    has,
    legend_text,
    marks,
    panel_title,
    scale,
    styles_of,
    text_label,
    where,
)
from ...figures.words import formula, in_words, sentence, symbol
from ...tables.labels import source_heading
from ...tables.long import Row
from ...tables.methods import family, mark
from ...tables.table import gathered

Place = tuple[Any, Any, Any, str, str | None]  # layer, n, target, source, and the title of a panel of a family

PANELS = 12  # per figure
SPAN = 1e2  # of the panels of families about V-Mean's error
MOST_BANDS = 3  # methods; more than that have bars, because their bands would overlap


def error_figure(
    rows: Sequence[Row],
    bounds: Sequence[Row],
    drawing: Drawing,
    out_dir: str | Path,
    name: str = "output_spectral",
) -> list[Path]:
    """Draw the metric ``name`` against ``d``: one panel per (source, layer, n, target), one line per method.

    More than 8 methods of several families have a panel for each family, all on one scale. A family of more than 4
    methods has several panels.

    Points are medians over heads, windows and repeats. Bars run from p10 to p90; those of one ``d`` stand side by side.
    Medians are drawn because a few heads dominate the means of Nyström methods. Ticks are maxima. Points of rows with
    bad rows are hollow, and ``!`` marks their methods in the legend. Methods without a budget are horizontal lines;
    V-Mean's is dashed. The lower bound is dotted and drawn where its median is positive. A cross marks a row with
    diverged or failed cells. If there is one ``d``, the figure is a dot plot: the median, p10 – p90 and the maximum of
    each method.

    Args:
        out_dir: where ``error-METRIC.svg`` and the like are written (``-2``, … where there are many panels).

    Returns:
        The files' paths; none if no method's row holds the metric.
    """
    plotted = [row for row in rows if has(row, name) or crossed(row, name)]
    limits = [row for row in bounds if has(row, name)]
    if not any(has(row, name) for row in plotted) or all(row.get("reference") for row in plotted):
        return []
    budgets = {row["d"] for row in plotted if row["d"] is not None and not row.get("reference")}
    families = list(dict.fromkeys(family(row) for row in plotted if not row.get("reference")))
    place = {name: index for index, name in enumerate(families)}
    plotted.sort(key=lambda row: (bool(row.get("reference")), place.get(family(row), -1)))
    styles = styles_of(rows, plotted)
    crowded = sum(style["marker"] is not None for style in styles.values()) > MOST_IN_PANEL
    split = crowded and len(families) > 1 and len(budgets) > 1
    titles = family_panels([row for row in plotted if not row.get("reference")]) if split else {}
    shown = {_corner(row) for row in plotted}
    corners = [corner for corner in dict.fromkeys(_corner(row) for row in rows) if corner in shown]
    places = [(*corner, title) for corner in corners for title in dict.fromkeys(titles.values() or (None,))]
    dots = len(budgets) < 2
    most = _across(drawing, split) * drawing.sizes.down(_height(styles, split, dots))
    pages = [page for parts in gathered(places, lambda one: one[:4]) for page in chunks(parts, most)] if split else None

    def draw(page: Sequence[Place]) -> Sheet:
        return _page(page, plotted, limits, name, drawing, styles, titles, dots)

    return drawn(pages or chunks(places, min(most, PANELS)), draw, Path(out_dir) / f"error-{name}", drawing)


def _across(drawing: Drawing, split: bool) -> int:
    """How many panels stand side by side at most."""
    return min(drawing.sizes.across(2.1), 3 if split else 4)


def _height(styles: Mapping[str, Any], split: bool, dots: bool) -> float:
    """The height of a panel in inches."""
    if dots:
        return max(1.1, 0.19 * len(styles) + 0.5)
    return 2.3 + 0.14 * MOST_OF_FAMILY if split else 2.2


def _page(
    places: Sequence[Place],
    rows: Sequence[Row],
    bounds: Sequence[Row],
    name: str,
    drawing: Drawing,
    styles: Mapping[str, dict[str, Any]],
    titles: Mapping[str, str],
    dots: bool,
) -> Sheet:
    """One figure of up to `PANELS` panels."""
    split = places[0][4] is not None
    most = _across(drawing, split)
    columns = min(most, len(places) if split else columns_for([place[1] for place in places]))
    lines = math.ceil(len(places) / columns)
    inches = drawing.sizes.inches(columns)
    shown = [row for row in rows if any(_at(row, place, titles) for place in places)]
    marked = flagged(shown)
    keys = 0.0 if split else legend_inches([*styles], inches)
    # a row of panels that is a layer or a source, with a column for each n, has its own scale
    rowwise = not split and not dots and lines > 1 and len({place[1] for place in places}) == columns
    sharing = {"sharey": "row" if rowwise else True, "sharex": dots}
    budgets = sorted({row["d"] for row in shown if row["d"] is not None})
    title = sentence(in_words(name)) + ("" if dots else " against budget d") + ": median, p10 – p90, maximum"
    title += f". {sentence(panel_title(shown[0]))}" if split else ""
    caption = _caption(name, shown, bounds, budgets, styles, dots)
    tall, shape = _height(styles, split, dots) * lines + 0.3 + keys, (lines, columns)
    sheet, panels = canvas(drawing, title, caption, tall, shape, len(places), **sharing)
    handles: dict[str, Any] = {}
    low, high = _span([row for row in rows if _corner(row) == places[0][:4]], name) if split else (0.0, math.inf)
    label = symbol(name)
    for index, (axis, place) in enumerate(zip(panels, places, strict=True)):
        panel_rows = [row for row in shown if _at(row, place, titles)]
        limits = [row for row in bounds if _corner(row) == place[:4]]
        lowest = index + columns >= len(places)
        if dots:
            dot_panel(axis, panel_rows, limits, name, styles, handles)
            axis.set_xlabel(label if lowest else "")
            axis.tick_params(labelbottom=True)
        else:
            looks = styles_of(panel_rows) if split else styles
            own: dict[str, Any] = {}
            line_panel(axis, panel_rows, limits, name, looks, own, budgets)
            axis.set_xlabel("budget d" if lowest or split else "")
            axis.set_ylabel(label if index % columns == 0 else "")
            if split:
                entries = {key: own.pop(key) for key in looks if key in own and looks[key]["marker"]}
                entries = {
                    _beyond(legend_text(key, flagged(panel_rows)), line, low, high): line
                    for key, line in entries.items()
                }
                legend_below(axis, entries, ncols=legend_columns(list(entries), inches / columns), columnspacing=1.0)
            handles.update(own)
        axis.set_title(place[4] if split else panel_title(panel_rows[0], budgets if dots else ()))
    step = columns if rowwise else len(places)
    for start in range(0, len(places), step):
        scaled = {place[:4] for place in places[start : start + step]}
        values = [row["metrics"][name] for row in rows if has(row, name) and _corner(row) in scaled]
        scale(panels[start : start + step], values, dots, low, high)
    order = sorted(
        handles, key=lambda key: (key == CROSS, key not in styles, styles.get(key, {}).get("marker") is None)
    )
    legend(sheet, {legend_text(key, marked): handles[key] for key in order}, legend_columns(order, inches))
    return sheet


def _caption(
    name: str,
    rows: Sequence[Row],
    bounds: Sequence[Row],
    budgets: Sequence[int],
    styles: Mapping[str, dict[str, Any]],
    dots: bool,
) -> list[str]:
    """The sentences of the caption."""
    spread = "Points are medians, {} run from p10 to p90, and ticks are maxima."
    several = sum(style["marker"] is not None for style in styles.values()) > MOST_BANDS
    lines = [f"{sentence(in_words(name))}, {formula(name)}" + ("." if dots else ", against the budget d.")]
    lines.append(spread.format("bars" if dots or several else "bands"))
    lines += ["Bars of one d stand side by side."] if several and not dots else []
    lines += marks(rows, name)
    if any((row["metrics"][name]["median"] or 0) > 0 for row in bounds if row["d"] in budgets):
        lines.append("Dotted: the error of the best matrix of rank d.")
    return [*lines, where(rows, "heads", "windows", "repeats")]


def _median(row: Row, name: str) -> float:
    """The median of a row that has one."""
    return row["metrics"][name]["median"] or 0.0


def _span(rows: Sequence[Row], name: str) -> tuple[float, float]:
    """The range of the panels of families: a factor of 100 around V-Mean's error, or around the middle of all."""
    middles = [_median(row, name) for row in rows if has(row, name) and row.get("reference")]
    middles = middles or sorted(_median(row, name) for row in rows if has(row, name))
    middle = middles[len(middles) // 2]
    return (middle / SPAN, middle * SPAN) if middle > 0 else (0.0, math.inf)


def _beyond(label: str, line: Any, low: float, high: float) -> str:
    """A legend's label. If the line lies outside the panel, the label gives its value."""
    values = [value for value in line.get_ydata() if not math.isnan(value)]
    if values and max(values) < low:
        return f"{label} (below, {max(values):.0e})"
    return f"{label} (above, {min(values):.0e})" if values and min(values) > high else label


def _corner(row: Row) -> tuple[Any, ...]:
    """Where methods are compared: layer, n, target, source."""
    return row.get("layer"), row.get("n"), row.get("target"), source_heading(row)


def _at(row: Row, place: Place, titles: Mapping[str, str]) -> bool:
    """Whether a panel shows the row. The panels of all families show the references."""
    if _corner(row) != place[:4]:
        return False
    return place[4] is None or bool(row.get("reference")) or titles[text_label(row)] == place[4]


def line_panel(
    axis: Any,
    rows: Sequence[Row],
    bounds: Sequence[Row],
    name: str,
    styles: Mapping[str, dict[str, Any]],
    handles: dict[str, Any],
    budgets: Sequence[int],
) -> None:
    """Error against budget: a line per method with its band, or with bars side by side if there are many methods.

    A tick is the maximum. A hollow marker is a row with bad rows.
    """
    from matplotlib.lines import Line2D

    powers_of_two(axis, budgets)
    gap = min(math.log2(high / low) for low, high in zip(budgets, budgets[1:], strict=False))
    curves = [label for label, style in styles.items() if style["marker"]]
    bands = len(curves) <= MOST_BANDS
    step = 0 if bands else min(0.09, 0.5 / len(curves)) * min(gap, 1.0)
    margin = 1.4 * 2 ** (step * len(curves) / 2)
    axis.set_xlim(budgets[0] / margin, budgets[-1] * margin)
    for group in gathered(rows, text_label):
        label = text_label(group[0])
        style = styles[label]
        points = [(row["d"], row["metrics"][name]) for row in group if has(row, name)]
        offset = curves.index(label) - (len(curves) - 1) / 2 if label in curves else 0
        shift = 2 ** (offset * step)
        if points and points[0][0] is None:
            handles[label] = axis.axhline(points[0][1]["median"], **{**style, "marker": None}, zorder=1.5)
        elif points:
            d = [(budget or 0) * shift for budget, _ in points]
            low, middle, high = ([drawable(stats[key]) for _, stats in points] for key in ("p10", "median", "p90"))
            if bands and len(d) > 1:
                axis.fill_between(d, low, high, color=style["color"], alpha=0.14, linewidth=0)
                for edge in (low, high):
                    axis.plot(d, edge, color=style["color"], alpha=0.35, linewidth=0.7)
            else:
                axis.vlines(d, low, high, color=style["color"], alpha=0.4, linewidth=1.8)
            bad = [mark(row) == "!" for row in group if has(row, name)]
            filled = [place for place, one in enumerate(bad) if not one]
            (handles[label],) = axis.plot(d, middle, **style, markevery=filled)
            most = [drawable(stats["max"]) for _, stats in points]
            axis.plot(d, most, color=style["color"], linestyle="", marker="_", markersize=7, markeredgewidth=1.3)
            for x, y, one in zip(d, middle, bad, strict=True):
                if one:  # a ring stays visible around the point of another method
                    axis.plot([x], [y], color=style["color"], marker=style["marker"], **HOLLOW)
        for row in group:
            if crossed(row, name):
                value = _median(row, name) if has(row, name) else None
                handles.setdefault(label, Line2D([], [], **style))
                cross_out(axis, shift * (row["d"] or budgets[0]), value, False, handles, style["color"])
    positive = [(row["d"], _median(row, name)) for row in bounds if row["d"] in budgets]
    positive = [(d, value) for d, value in positive if value > 0]
    if positive:
        look = {"color": GREY, "linestyle": ":", "marker": ".", "linewidth": 1.3}
        (handles["lower bound, rank d (0 beyond)"],) = axis.plot(*zip(*positive, strict=True), **look)


def dot_panel(
    axis: Any,
    rows: Sequence[Row],
    bounds: Sequence[Row],
    name: str,
    styles: Mapping[str, dict[str, Any]],
    handles: dict[str, Any],
) -> None:
    """One budget: a line per method with its median, p10 – p90 and maximum."""
    labels = [label for label, style in styles.items() if style["marker"]]
    for position, label in enumerate(labels):
        style = styles[label]
        for row in (row for row in rows if text_label(row) == label):
            stats = row["metrics"][name] if has(row, name) else None
            if stats is not None:
                look = {"color": style["color"], "linestyle": "-", "linewidth": 2.2}
                axis.plot([drawable(stats["p10"]), drawable(stats["p90"])], [position] * 2, alpha=0.5, **look)
                face = HOLLOW if mark(row) == "!" else {}
                axis.plot([stats["median"]], [position], **{**style, "linestyle": "", "markersize": 7, **face})
                axis.plot([drawable(stats["max"])], [position], marker="|", markersize=9, markeredgewidth=1.6, **look)
            if crossed(row, name):
                x, y = (position, None) if stats is None else (_median(row, name), position)
                cross_out(axis, x, y, True, handles, style["color"])
    marked = flagged(rows)
    axis.set_yticks(range(len(labels)), [legend_text(label, marked) for label in labels])
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    for row in rows:
        if row.get("reference") and has(row, name):
            look = {"color": GREY, "linestyle": "--", "linewidth": 1.3, "zorder": 1.5}
            handles[text_label(row)] = axis.axvline(_median(row, name), **look)
    for row in bounds:
        if (value := _median(row, name)) > 0:
            look = {"color": GREY, "linestyle": ":", "linewidth": 1.5, "zorder": 1.5}
            handles[f"lower bound, rank {row['d']}"] = axis.axvline(value, **look)
