"""Error against cost as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...figures.costs import CHEAPER, FRONTIER, LEAST_ERROR, STEPS, Point, cloud, frontier, numbers, prominent
from ...figures.drawing import Drawing
from ...figures.ends import lowest, outside, scale
from ...figures.kit import logarithmic
from ...figures.looks import SYMBOLS, formula, in_words, sentence, symbol
from ...figures.methods import (
    HUGE,
    flagged,
    hollow_legend,
    legend_text,
    marks,
    panel_title,
    styles_of,
    text_label,
    where,
)
from ...figures.panels import Panels, draw_figures, panels_of
from ...files import Fields
from ...tables.methods import mark, statistic
from .unbeaten import AXES, COSTS, SOFTMAX, are_many, best_at, errors_of, exact_share, few_or_number, prices, unstated

if TYPE_CHECKING:
    from .record import ErrorRecord

Panel = tuple[str, Sequence[Fields], Sequence[Point], Sequence[Point]]  # cost, rows, points, and the frontier

EXACT_LABEL = "exact attention"
NOTHING = {"linestyle": "", "marker": ""}
CERTAIN = {"frontier: less error at 95 %, no bad rows": FRONTIER}
TESTED = (
    ". The ratio of errors to the point before, a geometric mean of heads as in a table of unbeaten methods, is below "
    "1 at 95 %. Medians are no part of this test, so some may lie under the steps."
)
EXACT_LINE = {"color": "black", "linewidth": 1.3, "zorder": 1}


def cost_figure(
    rows: Sequence[Fields],
    drawing: Drawing,
    out_dir: str | Path,
    metric: str,
    causal: bool = False,
    records: Sequence[ErrorRecord] = (),
) -> list[Path]:
    """Draw the median of ``metric`` against the entries that a method visits and the keys that it reads.

    Each cost that a method states has a panel. There is a row of panels for each (source, layer, n, target). A method
    is a line through its budgets in rising order; d stands at the points. Steps are the frontier: the points that no
    other beats (see `unbeaten`). Of many methods, others are grey (see `prominent`). V-Mean computes no
    entry and is dashed. Exact attention has error 0 and is a line at its cost. Errors of rounding are below the axis.

    Args:
        causal: whether exact attention computes half of the entries. records: of the rows. From `MANY` methods on
            heads decide what beats what, as in the tables; else the medians do.
        out_dir: where ``cost-METRIC.svg`` and the like are written (``-2``, … where there are many panels).

    Returns:
        The files' paths; none if fewer than two points of requested methods have both an error and a cost.
    """
    shown = [row for row in rows if _drawn(row, metric) is not None]
    shown.sort(key=lambda row: bool(row.get("reference")))
    points = [row for row in shown if not (row.get("reference") or row["method"] == SOFTMAX) and prices(row)]
    if len(points) < 2:
        return []
    costs = [name for name in AXES if any(name in prices(row) for row in points)]
    budgets = sorted({row["d"] for row in points if row["d"] is not None})
    titles = partial(panel_title, budgets=budgets if len(budgets) == 1 else ())
    places = [(title, group) for title, group in panels_of(shown, titles) if any(row in points for row in group)]
    references = [row for row in shown if row.get("reference")]

    def limits(group: Sequence[Fields], cost: str) -> tuple[float, float]:
        free = [row for row in group if row["method"] == "vmean" and cost == "visited_fraction"]
        vmean = [_drawn(row, metric) for row in free]
        exact = [price for row in group if row["method"] == SOFTMAX and (price := prices(row).get(cost))]
        exact += [100.0 * exact_share(group[0]["n"], causal)] if cost == "visited_fraction" else []
        return next(iter(exact), HUGE), next(filter(None, vmean), HUGE)

    errors = errors_of(records, metric) if are_many(records) else {}

    def best(group: Sequence[Fields], cost: str, drawn: Sequence[Point]) -> list[Point]:
        if not errors:
            return frontier(drawn, limits(group, cost))
        points = {(point.label, point.d): point for point in drawn}
        places = [(text_label(row), row["d"]) for row in best_at(group, cost, metric, errors, causal)]
        return [points[place] for place in places if place in points]

    panels = []
    for title, group in places:
        for name in costs:
            drawn = _points(group, name, metric)
            panels.append((title, (name, group, drawn, best(group, name, drawn))))
    named, others = prominent((drawn, steps) for _, (_, _, drawn, steps) in panels)
    stepped = any(steps for _, (*_, steps) in panels)
    styles = styles_of(rows, [row for row in points if text_label(row) in named])
    yardsticks = styles_of(rows, references)

    def draw(axis: Any, panel: Panel) -> None:
        name, group, drawn, steps = panel
        if not drawn:  # no method here states this cost
            axis.set_visible(False)
            return
        cloud(axis, drawn, styles, steps, limits(group, name)[1])
        for row in group:
            if row.get("reference"):
                axis.axhline(_drawn(row, metric), **yardsticks[text_label(row)], zorder=1)
        if limits(group, name)[0] < HUGE:
            axis.axvline(limits(group, name)[0], **EXACT_LINE)
        scale(axis, [_drawn(row, metric) for row in group if row["method"] != SOFTMAX])
        axis.grid(axis="x")
        logarithmic(axis, "x")
        axis.set_xlabel(AXES[name][2])

    def finish(axis: Any, panel: tuple[str, Sequence[Fields], Sequence[Point], Sequence[Point]]) -> None:
        numbers(axis, panel[2], styles, panel[3], len(budgets) > 1)

    flags = flagged(shown)
    notes = outside(points, lambda row: [_drawn(row, metric)], max(_lowest(group, metric) for _, group in places))

    def legend(page: Sequence[Panel]) -> dict[str, Any]:
        there = {point.label for _, _, drawn, _ in page for point in drawn}
        absent = []
        for words, labels in unstated(shown, [name for name, *_ in page]).items():
            names = few_or_number([label for label in labels if label in styles or words == "cost"])
            absent += [f"no {words}: {names}"] * bool(names)
        absent += [label + note for label, note in notes.items() if note and label not in there]
        exact = any(drawn and limits(group, name)[0] < HUGE for name, group, drawn, _ in page)
        return {  # long entries share a column
            **{legend_text(label, flags) + notes.get(label, ""): styles[label] for label in styles if label in there},
            **yardsticks,
            **(others if there - styles.keys() else {}),
            **({EXACT_LABEL: EXACT_LINE} if exact else {}),
            **hollow_legend(row for row in points if text_label(row) in there),
            **((CERTAIN if errors else LEAST_ERROR) if any(steps for *_, steps in page) else {}),
            **dict.fromkeys(absent, NOTHING),
        }

    figure = Panels(
        f"cost-{metric}",
        f"{sentence(in_words(metric))} against cost: medians",
        _caption(shown, metric, len(budgets) > 1, bool(errors), bool(others), stepped),
        panels,
        draw,
        y=f"{symbol(metric)}, median",
        legend=legend,
        width=1.6,
        height=3.2 if others else 2.3,
        finish=finish,
        columns=len(costs),
        sharing={"sharey": "row"},
    )
    return draw_figures([figure], drawing, out_dir)


def _caption(rows: Sequence[Fields], metric: str, several: bool, certain: bool, grey: bool, stepped: bool) -> list[str]:
    symbols = f", {formula(metric)}" if metric in SYMBOLS else ""
    lines = [
        f"Median of the {in_words(metric)}{symbols}, against the entries of the n x n matrix that a method visits, "
        "without scores that only choose keys, and against other costs that methods state.",
        *(["A line joins the budgets d of a method, which stand at its points where there is room."] * several),
        *([STEPS + (TESTED if certain else CHEAPER)] * stepped),
        *(["Grey: methods without a point on a frontier, named where there is room."] * (grey and stepped)),
        *(["Grey: methods of larger errors, named where there is room."] * (grey and not stepped)),
        "The upright line: exact attention, which computes every entry that is not masked and has no error.",
    ]
    for words, labels in unstated(rows, COSTS).items():
        lines += [f"Not drawn where they state no {words}: {', '.join(labels)}."] if labels else []
    return [*lines, *marks(rows, metric), where(rows, "heads", "windows", "repeats")]


def _points(rows: Sequence[Fields], cost: str, metric: str) -> list[Point]:
    """The points of a panel: requested methods with this cost and an error above those of rounding."""
    methods = [row for row in rows if not row.get("reference") and row["method"] != SOFTMAX]
    least = _lowest(rows, metric)
    return [
        Point(text_label(row), row["d"], price, error, mark(row) == "!")
        for row in methods
        if (price := prices(row).get(cost)) and (error := _drawn(row, metric) or 0.0) > least
    ]


def _lowest(rows: Sequence[Fields], metric: str) -> float:
    """The error below which points are left out."""
    return lowest(_drawn(row, metric) for row in rows if row["method"] != SOFTMAX)


def _drawn(row: Fields, metric: str) -> float | None:
    median = statistic(row, metric, "median")
    return median if median is not None and median <= HUGE else None
