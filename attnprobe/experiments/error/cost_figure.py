"""Error against cost: the error of a method over its computed entries and over its time, a point for each budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.kit import plain_ticks
from ...figures.looks import EXACT, LOOKS
from ...figures.methods import (
    HOLLOW,
    HUGE,
    flagged,
    legend_text,
    marks,
    panel_title,
    scale,
    styles_of,
    text_label,
    where,
)
from ...figures.panels import Panels, draw_figures, panels_of
from ...figures.words import formula, in_words, sentence, symbol
from ...tables.long import Row
from ...tables.methods import mark
from ...tables.table import gathered

EDGE = {"markeredgecolor": "white", "markeredgewidth": 0.5}
COSTS = {  # of a metric: statistic, factor, label
    "visited_fraction": ("mean", 100.0, "entries computed,\n% of queries times keys"),
    "kv_read": ("mean", 1.0, "rows of K and V\nread for a query"),
    "scored": ("mean", 1.0, "scores computed to\nchoose the keys of a row"),
}
DEEP = 1e4  # from the largest error of a panel to the smallest that counts for its axis
MOST_NAMED = 16  # points of a panel that all have their d beside them; of more, the ends of a line have
APART = (0.09, 0.06)  # of the width and height of a panel's points, between two numbers that can be read
SOFTMAX = "softmax"  # the method that computes exact attention
EXACT_LABEL = "exact attention"
EXACT_LINE = {"color": LOOKS[EXACT][0], "linewidth": 1.3, "zorder": 1}


def cost_figure(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path, metric: str) -> list[Path]:
    """Draw the median of ``metric`` against the entries that a method computes and the keys that it reads.

    Each cost that a method states has a panel. There is a row of panels for each (source, layer, n, target). A method
    is a line through its budgets in rising order; d stands at the points. V-Mean computes no entry and is dashed.
    Exact attention has error 0 and is a line at the cost of every entry. Errors of rounding are below the axis.

    Args:
        out_dir: where ``cost-METRIC.svg`` and the like are written (``-2``, … where there are many panels).

    Returns:
        The files' paths; none if fewer than two points of requested methods have both an error and a cost.
    """
    shown = [row for row in rows if _error(row, metric) is not None]
    shown.sort(key=lambda row: bool(row.get("reference")))
    points = [row for row in shown if not (row.get("reference") or row["method"] == SOFTMAX) and _costs(row)]
    if len(points) < 2:
        return []
    styles = styles_of(rows, shown)
    flags = flagged(shown)
    costs = [name for name in COSTS if any(name in _costs(row) for row in points)]
    places = [(title, group) for title, group in panels_of(shown, panel_title) if any(row in points for row in group)]

    def draw(axis: Any, panel: tuple[str, Sequence[Row]]) -> None:
        name, group = panel
        _panel(axis, group, metric, name, styles)
        errors = [error for row in group if (error := _error(row, metric)) is not None and row["method"] != SOFTMAX]
        kept = [error for error in errors if error > max(errors) / DEEP]
        scale(axis, kept)
        if len(kept) < len(errors):
            axis.set_ylim(bottom=min(kept) / 1.5)
        axis.grid(axis="x")
        axis.set_xscale("log")
        plain_ticks(axis.xaxis, axis.get_xlim())
        axis.set_xlabel(COSTS[name][2])

    legend = {legend_text(label, flags): style for label, style in styles.items() if label != SOFTMAX}
    figure = Panels(
        f"cost-{metric}",
        f"{sentence(in_words(metric))} against cost: medians",
        _caption(shown, metric),
        [(title, (name, group)) for title, group in places for name in costs],
        draw,
        y=symbol(metric),
        legend={**legend, EXACT_LABEL: EXACT_LINE},
        width=1.6,
        height=2.3,
        columns=len(costs),
        sharing={"sharey": "row"},
    )
    return draw_figures([figure], drawing, out_dir)


def _caption(rows: Sequence[Row], metric: str) -> list[str]:
    lines = [
        f"Median of the {in_words(metric)}, {formula(metric)}, against the entries of the n x n matrix that a method "
        "computes, and against other costs that methods state.",
        "A line joins the budgets d of a method, which stand at its points where they do not hide each other.",
        "The line at the right edge: exact attention, which computes every entry and has no error.",
    ]
    return [*lines, *marks(rows, metric), where(rows, "heads", "windows", "repeats")]


def _panel(axis: Any, rows: Sequence[Row], metric: str, cost: str, styles: Mapping[str, dict[str, Any]]) -> None:
    exact = [price for row in rows if row["method"] == SOFTMAX and (price := _costs(row).get(cost))]
    if cost == "visited_fraction":  # every entry
        exact = exact or [COSTS[cost][1]]
    if any(cost in _costs(row) for row in rows):
        for price in exact[:1]:
            axis.axvline(price, **EXACT_LINE)
    few = sum(cost in _costs(row) for row in rows) <= MOST_NAMED
    near = _apart(rows, metric, cost)
    named: list[tuple[float, float]] = []
    for group in gathered([row for row in rows if row["method"] != SOFTMAX], text_label):
        style = styles[text_label(group[0])]
        if group[0].get("reference"):
            axis.axhline(_error(group[0], metric), **style, zorder=1)
            continue
        points = [(price, _error(row, metric), row) for row in group if (price := _costs(row).get(cost))]
        if points:
            x, y, _ = zip(*points, strict=True)
            axis.plot(x, y, **{**style, "marker": None}, alpha=0.7, zorder=2)
        for place, (price, error, row) in enumerate(points):
            look = {"marker": style["marker"], "markersize": 5.5, "color": style["color"], "zorder": 3}
            look |= HOLLOW if mark(row) == "!" else EDGE
            axis.plot(price, error, **{**look, "linestyle": ""})
            at = (math.log(price) / near[0], math.log(max(error or 0, 1 / HUGE)) / near[1])
            free = all(max(abs(one - other) for one, other in zip(at, there, strict=True)) > 1 for there in named)
            if row["d"] is not None and free and (few or place in (0, len(points) - 1)):
                named.append(at)
                beside = {"xytext": (3, 3), "textcoords": "offset points", "fontsize": "xx-small"}
                axis.annotate(str(row["d"]), (price, error), color=style["color"], annotation_clip=True, **beside)


def _apart(rows: Sequence[Row], metric: str, cost: str) -> tuple[float, float]:
    """The least distance of two numbers in a panel, in logarithms of its cost and of its error."""
    points = [(_costs(row)[cost], error) for row in rows if cost in _costs(row) and (error := _error(row, metric))]
    spans = [math.log(max(values) / min(values)) for values in zip(*points, strict=True)] or [0.0, 0.0]
    wide, tall = (max(span * part, 1e-9) for span, part in zip(spans, APART, strict=True))
    return wide, tall


def _error(row: Row, metric: str) -> float | None:
    median = (row["metrics"].get(metric) or {}).get("median")
    return median if median is not None and median <= HUGE else None


def _costs(row: Row) -> dict[str, float]:
    """A row's positive costs, by metric."""
    known = {name: (row["metrics"].get(name) or {}).get(statistic) for name, (statistic, _, _) in COSTS.items()}
    return {name: COSTS[name][1] * value for name, value in known.items() if value}
