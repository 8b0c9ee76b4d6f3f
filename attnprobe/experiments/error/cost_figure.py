"""Error against cost: what a method's entries and its time buy, a point for each budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.kit import canvas, chunks, drawn, legend, legend_columns, plain_ticks, symbol
from ...figures.methods import (
    FLAG,
    GREY,
    HOLLOW,
    HUGE,
    flagged,
    legend_text,
    panel_title,
    rank_of,
    scale,
    styles_of,
    text_label,
)
from ...tables.labels import source_heading
from ...tables.methods import mark
from ...tables.table import gathered
from .rows import ErrorRow

__all__ = ["cost_figure"]


DOWN = 3  # rows of panels of a figure
EDGE = {"markeredgecolor": "white", "markeredgewidth": 0.5}
COSTS = (
    ("visited_fraction", "mean", 100.0, "entries computed, % of n²"),
    ("seconds", "median", 1e3, "time of all heads of a layer, ms"),
)


def cost_figure(rows: Sequence[ErrorRow], header_line: str, out_dir: str | Path, metric: str) -> list[Path]:
    """Draw the median of ``metric`` against the entries that a method computes and against its time.

    A row of panels for each (source, layer, n, target), a line for each method through its budgets in their order, the
    markers growing with d. V-Mean, which computes no entry, is a dashed line.

    Args:
        header_line: the title: the source and every fallback, in one or more lines.
        out_dir: where ``cost-METRIC.svg`` and ``.png`` are written (``-2``, … beyond 3 rows of panels).

    Returns:
        The files' paths; none where fewer than two points of requested methods have both an error and a cost.
    """
    kept = [row for row in rows if _error(row, metric) is not None]
    kept.sort(key=lambda row: bool(row.get("reference")))
    points = [row for row in kept if not row.get("reference") and any(_cost(row, *cost[:3]) for cost in COSTS)]
    if len(points) < 2:
        return []
    styles = styles_of(rows, kept)
    places = [place for place in dict.fromkeys(map(_place, kept)) if any(_place(row) == place for row in points)]
    draw = lambda page: _page(page, kept, metric, header_line, styles)
    return drawn(chunks(places, DOWN), draw, Path(out_dir) / f"cost-{metric}")


def _page(
    places: Sequence[tuple[Any, ...]],
    rows: Sequence[ErrorRow],
    metric: str,
    title: str,
    styles: Mapping[str, dict[str, Any]],
) -> Any:
    inches = 7.6
    marked = flagged(rows)
    told = "median error; markers grow with the budget d" + (f"; hollow, {FLAG}" if marked else "")
    legend_lines = -(-len(styles) // legend_columns(list(styles), inches))
    tall, shape = 2.5 * len(places) + 0.6 + 0.19 * legend_lines, (len(places), len(COSTS))
    figure, panels = canvas(title, [told], inches, tall, shape, sharey="row", sharex="col")
    handles: dict[str, Any] = {}
    for place, axes in zip(places, chunks(panels, len(COSTS)), strict=True):
        here = [row for row in rows if _place(row) == place]
        for (name, statistic, factor, label), axis in zip(COSTS, axes, strict=True):
            _panel(axis, here, metric, (name, statistic, factor), styles, handles)
            axis.set_xlabel(label if place == places[-1] else "")
            axis.set_title(panel_title(here[0]))
        scale(list(axes), [row["metrics"][metric] for row in here], False)
        axes[0].set_ylabel(symbol(metric))
    for axis in panels:
        axis.tick_params(labelbottom=True)
        axis.set_xscale("log")
        plain_ticks(axis.xaxis, axis.get_xlim())
        axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    order = [label for label in styles if label in handles]
    legend(figure, {legend_text(label, marked): handles[label] for label in order}, legend_columns(order, inches))
    return figure


def _panel(
    axis: Any,
    here: Sequence[ErrorRow],
    metric: str,
    cost: tuple[str, str, float],
    styles: Mapping[str, dict[str, Any]],
    handles: dict[str, Any],
) -> None:
    budgets = sorted({row["d"] for row in here if row["d"] is not None})
    for group in gathered(here, text_label):
        label = text_label(group[0])
        style = styles[label]
        if group[0].get("reference"):
            handles[label] = axis.axhline(_error(group[0], metric), color=GREY, linestyle="--", linewidth=1.3, zorder=1)
            continue
        points = [(_cost(row, *cost), _error(row, metric), row) for row in group if _cost(row, *cost)]
        if not points:
            continue
        x, y, _ = zip(*points, strict=True)
        axis.plot(x, y, color=style["color"], linewidth=1.2, alpha=0.7, zorder=2)
        for price, error, row in points:
            size = 4.5 + 4 * rank_of(row, budgets)
            look = {"marker": style["marker"], "markersize": size, "color": style["color"], "zorder": 3}
            look |= HOLLOW if mark(row) == "!" else EDGE
            (point,) = axis.plot(price, error, **{**look, "linestyle": ""})
        handles.setdefault(label, point)


def _error(row: ErrorRow, metric: str) -> float | None:
    median = (row["metrics"].get(metric) or {}).get("median")
    return median if median is not None and median <= HUGE else None


def _cost(row: ErrorRow, name: str, statistic: str, factor: float) -> float | None:
    """A row's cost; None where it has none that a logarithmic axis can show."""
    value = (row["metrics"].get(name) or {}).get(statistic)
    return factor * value if value else None


def _place(row: ErrorRow) -> tuple[Any, ...]:
    return source_heading(row), row.get("layer"), row.get("n"), row.get("target")
