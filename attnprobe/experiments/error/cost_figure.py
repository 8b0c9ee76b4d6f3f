"""Error against cost: the error of a method over its computed entries and over its time, a point for each budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn
from ...figures.kit import Sheet, canvas, legend, legend_columns, legend_inches, plain_ticks
from ...figures.looks import EXACT, LOOKS
from ...figures.methods import (
    HOLLOW,
    HUGE,
    flagged,
    legend_text,
    marks,
    panel_title,
    rank_of,
    scale,
    styles_of,
    text_label,
    where,
)
from ...figures.words import formula, in_words, sentence, symbol
from ...tables.labels import source_heading
from ...tables.long import Row
from ...tables.methods import mark
from ...tables.table import gathered

HEIGHT = 2.3  # inches of a panel
EDGE = {"markeredgecolor": "white", "markeredgewidth": 0.5}
Cost = tuple[str, str, float, str]  # metric, statistic, factor, label
COSTS: tuple[Cost, ...] = (
    ("visited_fraction", "mean", 100.0, "entries computed,\n% of queries times keys"),
    ("seconds", "median", 1e3, "time of all heads\nof a layer, ms"),
    ("kv_read", "mean", 1.0, "rows of K and V\nread for a query"),
    ("scored", "mean", 1.0, "scores computed to\nchoose the keys of a row"),
)
ALWAYS = ("visited_fraction", "seconds")  # costs that have a panel whatever is measured
SOFTMAX = "softmax"  # the method that computes exact attention
EXACT_LABEL = "exact attention"


def cost_figure(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path, metric: str) -> list[Path]:
    """Draw the median of ``metric`` against the entries that a method computes, its time, and the keys that it reads.

    Entries and time have a panel each, and so has every further cost that a method states. There is a row of panels for
    each (source, layer, n, target). A method is a line through its budgets in rising order; larger markers have larger
    d. V-Mean computes no entry and is a dashed line. Exact attention has error 0 and is a black line at the cost of
    every entry.

    Args:
        out_dir: where ``cost-METRIC.svg`` and the like are written (``-2``, … where there are many panels).

    Returns:
        The files' paths; none if fewer than two points of requested methods have both an error and a cost.
    """
    shown = [row for row in rows if _error(row, metric) is not None]
    shown.sort(key=lambda row: bool(row.get("reference")))
    yardstick = lambda row: row.get("reference") or row["method"] == SOFTMAX
    points = [row for row in shown if not yardstick(row) and any(_cost(row, *cost[:3]) for cost in COSTS)]
    if len(points) < 2:
        return []
    styles = styles_of(rows, shown)
    places = [place for place in dict.fromkeys(map(_place, shown)) if any(_place(row) == place for row in points)]
    costs = [cost for cost in COSTS if cost[0] in ALWAYS or any(_cost(row, *cost[:3]) for row in points)]
    draw = lambda page: _page(page, shown, metric, costs, drawing, styles)
    pages = chunks(places, drawing.sizes.down(HEIGHT))
    return drawn(pages, draw, Path(out_dir) / f"cost-{metric}", drawing)


def _page(
    places: Sequence[tuple[Any, ...]],
    rows: Sequence[Row],
    metric: str,
    costs: Sequence[Cost],
    drawing: Drawing,
    styles: Mapping[str, dict[str, Any]],
) -> Sheet:
    shown = [row for row in rows if _place(row) in places]
    marked = flagged(shown)
    inches = drawing.sizes.inches(len(costs))
    tall, shape = HEIGHT * len(places) + 0.3 + legend_inches([*styles, EXACT_LABEL], inches), (len(places), len(costs))
    title = f"{sentence(in_words(metric))} against cost: medians"
    sheet, panels = canvas(drawing, title, _caption(shown, metric), tall, shape, sharey="row", sharex="col")
    handles: dict[str, Any] = {}
    for place, axes in zip(places, chunks(panels, len(costs)), strict=True):
        panel_rows = [row for row in shown if _place(row) == place]
        for (name, statistic, factor, label), axis in zip(costs, axes, strict=True):
            _panel(axis, panel_rows, metric, (name, statistic, factor), styles, handles)
            axis.set_xlabel(label if place == places[-1] else "")
            axis.set_title(panel_title(panel_rows[0]))
        scale(list(axes), [row["metrics"][metric] for row in panel_rows if row["method"] != SOFTMAX], False)
        axes[0].set_ylabel(symbol(metric))
    for axis in panels:
        axis.tick_params(labelbottom=True)
        axis.set_xscale("log")
        plain_ticks(axis.xaxis, axis.get_xlim())
        axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    order = [label for label in [*styles, EXACT_LABEL] if label in handles]
    legend(sheet, {legend_text(label, marked): handles[label] for label in order}, legend_columns(order, inches))
    return sheet


def _caption(rows: Sequence[Row], metric: str) -> list[str]:
    lines = [
        f"Median of the {in_words(metric)}, {formula(metric)}, against the entries of the n x n matrix that a method "
        "computes, and against its median time.",
        "A line joins the budgets of a method; its markers grow with d.",
        "Black: exact attention, which computes every entry and has no error"
        + (", at its time here." if any(row["method"] == SOFTMAX for row in rows) else "."),
        "Times are of single cells without warm-up, and not joined; attnprobe bench measures time.",
    ]
    return [*lines, *marks(rows, metric), where(rows, "heads", "windows", "repeats")]


def _panel(
    axis: Any,
    rows: Sequence[Row],
    metric: str,
    cost: tuple[str, str, float],
    styles: Mapping[str, dict[str, Any]],
    handles: dict[str, Any],
) -> None:
    budgets = sorted({row["d"] for row in rows if row["d"] is not None})
    exact = [price for row in rows if row["method"] == SOFTMAX if (price := _cost(row, *cost))]
    if cost[0] == "visited_fraction":  # every entry
        exact = exact or [cost[2]]
    measured = any(_cost(row, *cost) for row in rows)
    for price in exact[: int(measured)]:
        handles[EXACT_LABEL] = axis.axvline(price, color=LOOKS[EXACT][0], linewidth=1.3, zorder=1)
    for group in gathered([row for row in rows if row["method"] != SOFTMAX], text_label):
        label = text_label(group[0])
        style = styles[label]
        if group[0].get("reference"):
            handles[label] = axis.axhline(_error(group[0], metric), **style, zorder=1)
            continue
        points = [(_cost(row, *cost), _error(row, metric), row) for row in group if _cost(row, *cost)]
        if not points:
            continue
        x, y, _ = zip(*points, strict=True)
        if cost[0] != "seconds":  # single timings scatter too much for a line
            axis.plot(x, y, **{**style, "marker": None}, alpha=0.7, zorder=2)
        for price, error, row in points:
            size = 4.5 + 4 * rank_of(row["d"], budgets)
            look = {"marker": style["marker"], "markersize": size, "color": style["color"], "zorder": 3}
            look |= HOLLOW if mark(row) == "!" else EDGE
            (point,) = axis.plot(price, error, **{**look, "linestyle": ""})
        handles.setdefault(label, point)


def _error(row: Row, metric: str) -> float | None:
    median = (row["metrics"].get(metric) or {}).get("median")
    return median if median is not None and median <= HUGE else None


def _cost(row: Row, name: str, statistic: str, factor: float) -> float | None:
    """A row's cost; None if it has none or if the cost is not positive."""
    value = (row["metrics"].get(name) or {}).get(statistic)
    return factor * value if value else None


def _place(row: Row) -> tuple[Any, ...]:
    return source_heading(row), row.get("layer"), row.get("n"), row.get("target")
