"""Error against cost as a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from ...figures.costs import ARROWS, STEPS, Point, beyond, cloud, coloured, frontier, names, no_panel, others_legend
from ...figures.drawing import Drawing
from ...figures.ends import lowest, off_axis, outside, scale
from ...figures.kit import logarithmic
from ...figures.looks import SYMBOLS, formula, in_words, sentence, symbol
from ...figures.methods import (
    HUGE,
    hollow_legend,
    marks,
    panel_title,
    styles_of,
    text_label,
    where,
)
from ...figures.panels import Panels, draw_figures, panels_of
from ...files import Fields
from ...tables.long import Row
from ...tables.methods import mark, statistic
from ...tables.table import gathered

Panel = tuple[str, Sequence[Fields], Sequence[Point], Sequence[Point]]  # cost, rows, points, and the frontier

RESIDUAL, OUTPUT = "residual_error", "output_spectral_relative"
COSTS = {"visited_fraction": "entries visited", "kv_read": "keys and values read"}
AXES = {  # of a metric: statistic, factor, label
    "visited_fraction": ("mean", 100.0, "entries visited, % of queries times keys"),
    "kv_read": ("mean", 1.0, "rows of K and V read for a query"),
}
SOFTMAX = "softmax"  # the method that computes exact attention
ABOVE = 10  # times V-Mean's error, that an axis of many methods reaches
EXACT_LABEL = "exact attention"
EXACT_LINE = {"color": "black", "linewidth": 1.3, "zorder": 1}


def judged_by(rows: Sequence[Row]) -> str:
    """The metric that methods are judged by: the residual error where it was measured, else the output error."""
    return RESIDUAL if any(statistic(row, RESIDUAL, "median") is not None for row in rows) else OUTPUT


def exact_share(n: int, causal: bool) -> float:
    """The share of the n x n entries that exact attention computes."""
    return (1 + 1 / n) / 2 if causal else 1.0


def is_causal(records: Sequence[Fields]) -> bool:
    return any(record["source"].get("causal") for record in records)


def cost_figure(
    rows: Sequence[Fields], drawing: Drawing, out_dir: str | Path, metric: str, causal: bool = False
) -> list[Path]:
    """Draw the median of ``metric`` against the entries that a method visits and the keys that it reads.

    Each cost that several methods state has a panel. There is a row of panels for each (source, layer, n, target). A
    method is a line through its budgets in rising order, with its name at the end. Steps are the `frontier` of medians.
    Of many methods, others are grey (see `prominent`). V-Mean computes no entry and is dashed. Exact attention has
    error 0 and is a line at its cost. Points beyond the axis, such as errors of rounding, are arrows at its edge.

    Args:
        causal: whether exact attention computes half of the entries.
        out_dir: where ``cost-METRIC.svg`` and the like are written (``-2``, … where there are many panels).

    Returns:
        The files' paths; none if fewer than two points of requested methods have both an error and a cost.
    """
    shown = [row for row in rows if _drawn(row, metric) is not None]
    shown.sort(key=lambda row: bool(row.get("reference")))
    points = [row for row in _shown(shown) if not row.get("reference")]
    if len(points) < 2:
        return []
    stating = {name: {text_label(row) for row in points if name in prices(row)} for name in AXES}
    most = max(stating.values(), key=len)
    costs = [name for name, labels in stating.items() if labels is most or len(labels) > 1 or labels - most]
    budgets = sorted({row["d"] for row in points if row["d"] is not None})
    titles = partial(panel_title, budgets=budgets if len(budgets) == 1 else ())
    places = [(title, group) for title, group in panels_of(shown, titles) if any(row in points for row in group)]
    references = [row for row in shown if row.get("reference")]

    def exact_cost(group: Sequence[Fields], cost: str) -> float:
        exact = [price for row in group if row["method"] == SOFTMAX and (price := prices(row).get(cost))]
        exact += [100.0 * exact_share(group[0]["n"], causal)] if cost == "visited_fraction" else []
        return next(iter(exact), HUGE)

    def vmean_error(group: Sequence[Fields]) -> float:
        return next(filter(None, (_drawn(row, metric) for row in group if row["method"] == "vmean")), HUGE)

    panels = []
    for title, group in places:
        for name in costs:
            least = _lowest(group, metric)
            drawn = [point for point in _points(group, name, metric) if point.error > least]
            panels.append((title, (name, group, drawn, frontier(drawn, (exact_cost(group, name), vmean_error(group))))))
    styles, others, words = coloured(rows, points, [(drawn, steps) for _, (_, _, drawn, steps) in panels])
    yardsticks = styles_of(rows, references)

    def top(group: Sequence[Fields]) -> float:
        """The end of the axis of a place with grey methods: `ABOVE` times V-Mean's error, or the largest in colour."""
        largest = max((_drawn(row, metric) or 0.0 for row in group if text_label(row) in styles), default=0.0)
        vmean = vmean_error(group)
        return max(ABOVE * vmean, 1.3 * largest) if others and vmean < HUGE else math.inf

    def within(panel: Panel) -> list[Point]:
        return [point for point in panel[2] if point.error <= top(panel[1])]

    def out(panel: Panel) -> list[Point]:
        inside = within(panel)
        return [point for point in _points(panel[1], panel[0], metric) if point not in inside]

    def draw(axis: Any, panel: Panel) -> None:
        name, group, drawn, steps = panel
        if not drawn:  # no method here states this cost
            axis.set_visible(False)
            return
        cloud(axis, within(panel), styles, steps, vmean_error(group))
        for row in group:
            if row.get("reference"):
                axis.axhline(_drawn(row, metric), **yardsticks[text_label(row)], zorder=1)
        if exact_cost(group, name) < HUGE:
            axis.axvline(exact_cost(group, name), **EXACT_LINE)
        scale(axis, [_drawn(row, metric) for row in _shown(group)], high=top(group))
        axis.grid(axis="x")
        logarithmic(axis, "x")
        beyond(axis, out(panel), styles)
        axis.set_xlabel(AXES[name][2])

    def finish(axis: Any, panel: Panel) -> None:
        names(axis, within(panel), styles, len(budgets) > 1, out(panel))

    ends = max(_lowest(group, metric) for _, group in places), min(top(group) for _, group in places)
    notes = outside(points, lambda row: [_drawn(row, metric)], *ends)

    def legend(page: Sequence[Panel]) -> dict[str, Any]:
        there = {point.label for panel in page for point in within(panel)}
        exact = any(drawn and exact_cost(group, name) < HUGE for name, group, drawn, _ in page)
        return {  # long entries share a column
            **yardsticks,
            **others_legend(there - styles.keys()),
            **({EXACT_LABEL: EXACT_LINE} if exact else {}),
            **hollow_legend(row for row in points if text_label(row) in there),
            **(STEPS if any(steps for *_, steps in page) else {}),
            **(ARROWS if any(map(out, page)) else {}),
        }

    unpriced = [
        f"Not drawn, as they state no {price if price == 'cost' else f'number of {price}'}: {', '.join(labels)}."
        for price, labels in unstated(shown, costs).items()
        if labels
    ]
    unpriced += no_panel({COSTS[name]: stating[name] for name in AXES if name not in costs})
    caption = [
        f"Median of the {in_words(metric)}{f', {formula(metric)}' if metric in SYMBOLS else ''}, against the entries "
        "of the n x n matrix that a method visits, without scores that only choose keys, and against other costs that "
        "methods state.",
        *words,
        "The upright line: exact attention, which computes every entry that is not masked and has no error.",
        *off_axis(notes),
        *unpriced,
        *marks(shown, metric),
        where(shown, "heads", "windows", "repeats"),
    ]
    figure = Panels(
        f"cost-{metric}",
        f"{sentence(in_words(metric))} against cost: medians",
        caption,
        panels,
        draw,
        y=f"{symbol(metric)}, median",
        legend=legend,
        width=1.6 if len(costs) > 1 else drawing.sizes.wide,
        height=2.8 if others else 2.3,
        finish=finish,
        columns=len(costs),
        sharing={"sharey": "row"},
    )
    return draw_figures([figure], drawing, out_dir)


def _points(rows: Sequence[Fields], cost: str, metric: str) -> list[Point]:
    """Requested methods with this cost."""
    methods = [row for row in _shown(rows) if not row.get("reference")]
    return [
        Point(text_label(row), row["d"], price, _drawn(row, metric) or 0.0, mark(row) == "!")
        for row in methods
        if (price := prices(row).get(cost))
    ]


def _lowest(rows: Sequence[Fields], metric: str) -> float:
    """The error below which points are left out."""
    return lowest(_drawn(row, metric) for row in _shown(rows))


def _shown(rows: Sequence[Fields]) -> list[Fields]:
    """The rows that have a point in some panel, and the references."""
    return [row for row in rows if row.get("reference") or (prices(row) and row["method"] != SOFTMAX)]


def _drawn(row: Fields, metric: str) -> float | None:
    median = statistic(row, metric, "median")
    return median if median is not None and median <= HUGE else None


def unstated(rows: Sequence[Fields], costs: Iterable[str]) -> dict[str, list[str]]:
    """The methods that state no cost, and those that do not state one of ``costs`` that others state, by its words."""
    methods = [row for row in rows if not (row.get("reference") or row["method"] == SOFTMAX)]
    stated = {text_label(group[0]): set(chain(*map(prices, group))) for group in gathered(methods, text_label)}
    lacking = {"cost": [label for label, known in stated.items() if not known]}
    for name in filter(set(chain(*stated.values())).__contains__, dict.fromkeys(costs)):
        lacking[COSTS[name]] = [label for label, known in stated.items() if known and name not in known]
    return lacking


def prices(row: Fields) -> dict[str, float]:
    known = {name: statistic(row, name, of) for name, (of, _, _) in AXES.items()}
    return {name: AXES[name][1] * value for name, value in known.items() if value}
