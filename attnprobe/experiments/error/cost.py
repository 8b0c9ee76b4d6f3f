"""Error against cost: the methods that no other beats at their cost, as tables, and a figure of all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...figures.costs import FRONTIER, LEAST_ERROR, Point, below, cloud, frontier, numbers, prominent
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
from ...tables.long import Row, long_rows, mean_interval
from ...tables.methods import ROUNDING, caption, is_fragile, is_sound, label, mark, statistic
from ...tables.numbers import significant
from ...tables.results import at_budget
from ...tables.table import Column, Table, gathered, grouped_by, method_key, table_of
from .columns import METHOD_COLUMNS
from .record import SHAPE

if TYPE_CHECKING:
    from .record import ErrorRecord

Panel = tuple[str, Sequence[Fields], Sequence[Point], Sequence[Point]]  # cost, rows, points, and the frontier
Errors = Mapping[tuple[Any, ...], float]  # of a row, by layer, window and head

MANY = 5  # requested methods from which on the tables are shown
NEAR = 1.1  # costs within this factor are equal
COST_ROUNDING = 1e-9  # relative, of a mean over heads
LEAST = 1e-300  # an error of 0, which has no logarithm
MOST_TIES = 3  # methods that are named beside the one that they tie with
RESIDUAL, OUTPUT = "residual_error", "output_spectral_relative"
WORDS = {
    RESIDUAL: ("residual error", "size of a head's error beside the residual stream"),
    OUTPUT: ("‖E‖₂ / ‖BV‖₂", "the relative error of the output"),
}
COSTS = {"visited_fraction": "entries visited, without scores that only choose keys", "kv_read": "keys and values read"}
AXES = {  # of a metric: statistic, factor, label
    "visited_fraction": ("mean", 100.0, "entries visited,\n% of queries times keys"),
    "kv_read": ("mean", 1.0, "rows of K and V\nread for a query"),
}
SOFTMAX = "softmax"  # the method that computes exact attention
EXACT_LABEL = "exact attention"
MOST_ABSENT = 2  # methods without a cost that are named
NOTHING = {"linestyle": "", "marker": ""}
CERTAIN = {"frontier: each has less error than the one before, at 95 %": FRONTIER}
UNCERTAIN = {"under the frontier: not better at 95 %, or bad rows": NOTHING}
BELOW = {"under the frontier: bad rows": NOTHING}
EXACT_LINE = {"color": "black", "linewidth": 1.3, "zorder": 1}


def judged_by(rows: Sequence[Row]) -> str:
    """The metric that methods are judged by: the residual error where it was measured, else the output error."""
    return RESIDUAL if any(statistic(row, RESIDUAL, "median") is not None for row in rows) else OUTPUT


def exact_share(n: int, causal: bool) -> float:
    """The share of the n x n entries that exact attention computes."""
    return (1 + 1 / n) / 2 if causal else 1.0


def frontier_tables(rows: Sequence[Row], records: Sequence[ErrorRecord]) -> list[Table]:
    """A table of the methods that no other beats (see `unbeaten`), for each (source, n, target) and each cost.

    There is none for fewer than `MANY` methods. Rows with a mark, medians that are not reproducible, and
    errors of rounding alone do not compete. A note names the methods that do not state the cost.
    """
    if not _are_many(records):
        return []
    causal = any(record["source"].get("causal") for record in records)
    tables = []
    for group in grouped_by(rows, "source", "n", "target"):
        metric = judged_by(group)
        errors = _errors(records, metric)
        for cost, words in COSTS.items():
            best = _best(group, cost, metric, errors, causal)
            if not all(row["reference"] for row in best):
                names = _named([*chain(*_unstated(group, [cost]).values())])
                notes = [f"left out, as they do not state this cost: {names}"] if names else []
                tables.append(
                    table_of(f"unbeaten in {words} · {caption(group)}", best, frontier_columns(metric), notes)
                )
    return tables


def _are_many(records: Sequence[ErrorRecord]) -> bool:
    return len({method_key(record) for record in records if record.get("requested")}) >= MANY


def _best(
    rows: Sequence[Fields], cost: str, metric: str, errors: Mapping[tuple[Any, ...], Errors], causal: bool
) -> list[Row]:
    """The rows cheaper than exact attention that no other beats."""
    limit = exact_share(rows[0]["n"], causal) if cost == "visited_fraction" else math.inf
    cheaper = [row for row in rows if _competes(row, metric) and _cost(row, cost) < (1 - COST_ROUNDING) * limit]
    return unbeaten(cheaper, cost, metric, errors)


def _competes(row: Fields, metric: str) -> bool:
    """Whether a row has a sound median, which is no rounding error of exact attention."""
    sound = is_sound(row) or row["method"] == "vmean"
    known = _median(row, metric) is not None and not is_fragile(row, metric, "median")
    return sound and known and (_median(row, OUTPUT) or 0.0) > ROUNDING


def unbeaten(rows: Sequence[Fields], cost: str, metric: str, errors: Mapping[tuple[Any, ...], Errors]) -> list[Row]:
    """The rows by rising cost, each with a smaller error than the one before.

    An error is smaller if the 95 % interval of the ratio (see `ratio`) lies below 1. Costs within 10 % are equal.
    ``ratio`` of a row is that to the row before, and ``ties`` names the rows after it that are neither better nor
    worse.
    """
    best: list[Row] = []
    priced = [row for row in rows if _cost(row, cost) or (row["reference"] and cost == "visited_fraction")]
    for row in sorted(priced, key=lambda row: (_cost(row, cost), _median(row, metric))):
        low, middle, high = ratio(errors, row, best[-1]) if best else (0.0, None, 0.0)
        if high < 1:
            if len(best) > 1 and _cost(row, cost) <= NEAR * _cost(best[-1], cost):
                best.pop()
                low, middle, high = ratio(errors, row, best[-1])
            best.append({**row, "ratio": {"low": low, "mean": middle, "high": high}, "ties": []})
        elif low <= 1:
            best[-1]["ties"].append(at_budget(row, label))
    return best


def ratio(errors: Mapping[tuple[Any, ...], Errors], row: Fields, other: Fields) -> tuple[float, float | None, float]:
    """The geometric mean ratio of two rows' errors in the same layers, windows and heads, in its 95 % interval.

    The interval is Student's over heads, each with its mean logarithm over windows, as the ratio of a head is much the
    same in each window. Of a single head it is over windows. Rows without a common place have no mean, and an interval
    of all numbers.
    """
    ours, theirs = errors[_key(row)], errors[_key(other)]
    logs: dict[tuple[Any, ...], list[float]] = {}
    for layer, window, head in ours.keys() & theirs.keys():
        place = layer, window, head
        logs.setdefault((layer, head), []).append(math.log(max(ours[place], LEAST) / max(theirs[place], LEAST)))
    if not logs:
        return 0.0, None, math.inf
    means = [math.fsum(of_head) / len(of_head) for of_head in logs.values()]
    low, high = mean_interval(means if len(means) > 1 else sum(logs.values(), [])) or (-math.inf, math.inf)
    return math.exp(low), math.exp(math.fsum(means) / len(means)), math.exp(min(high, 700.0))


def _errors(records: Sequence[ErrorRecord], metric: str) -> dict[tuple[Any, ...], Errors]:
    """The errors of each row by layer, window and head: means over repeats."""
    values: dict[tuple[Any, ...], dict[tuple[Any, ...], list[float]]] = {}
    for head in long_rows(records, SHAPE):
        value = head.get(metric)
        if value is not None:
            of_row = values.setdefault(_key(head), {})
            of_row.setdefault((head["layer"], head["window"], head["head"]), []).append(value)
    return {key: {place: sum(x) / len(x) for place, x in of_row.items()} for key, of_row in values.items()}


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["source"], row["n"], row["target"], *method_key(row), row["d"]


def _cost(row: Fields, cost: str) -> float:
    return statistic(row, cost, "mean") or 0.0


def _median(row: Fields, metric: str) -> float | None:
    return statistic(row, metric, "median")


def _of_above(row: Row) -> str:
    low, middle, high = (significant(row["ratio"][name], 2) for name in ("low", "mean", "high"))
    return f"{middle} [{low} – {high}]" if middle else ""


def _ties(row: Row) -> str:
    rest = len(row["ties"]) - MOST_TIES
    return ", ".join([*row["ties"][:MOST_TIES], *([f"{rest} more"] if rest > 0 else [])])


def frontier_columns(metric: str) -> list[Column]:
    """The columns of the tables of unbeaten methods."""
    heading, meaning = WORDS[metric]
    of, known = f"metrics[{metric}]", {column.name: column for column in METHOD_COLUMNS}
    return [
        Column("method", label, key=True),
        Column("d", "{d}", key=True),
        *(replace(known[name], spare=spare) for name, spare in (("visited", 0), ("scored", 4), ("keys read", 3))),
        Column(
            f"{heading}\nmedian [p10 – p90]",
            f"{{{of}[median]:3}} [{{{of}[p10]:3}} – {{{of}[p90]:3}}]",
            f"{meaning}, over layers, heads, windows",
            short=heading,
        ),
        Column(
            "ratio to the line above,\ngeometric mean [95 %]",
            _of_above,
            "geometric mean of the ratios of single heads; interval over heads",
            short="ratio",
        ),
        Column(
            "as good",
            _ties,
            "cost less than the next line; the 95 % interval of their ratio to this line holds 1",
            spare=1,
        ),
    ]


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
    other beats (see `unbeaten`). Of many methods, those that have no point on a frontier are grey. V-Mean computes no
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
    points = [row for row in shown if not (row.get("reference") or row["method"] == SOFTMAX) and _prices(row)]
    if len(points) < 2:
        return []
    costs = [name for name in AXES if any(name in _prices(row) for row in points)]
    budgets = sorted({row["d"] for row in points if row["d"] is not None})
    titles = partial(panel_title, budgets=budgets if len(budgets) == 1 else ())
    places = [(title, group) for title, group in panels_of(shown, titles) if any(row in points for row in group)]
    references = [row for row in shown if row.get("reference")]

    def limits(group: Sequence[Fields], cost: str) -> tuple[float, float]:
        free = [row for row in group if row["method"] == "vmean" and cost == "visited_fraction"]
        vmean = [_drawn(row, metric) for row in free]
        exact = [price for row in group if row["method"] == SOFTMAX and (price := _prices(row).get(cost))]
        exact += [100.0 * exact_share(group[0]["n"], causal)] if cost == "visited_fraction" else []
        return next(iter(exact), HUGE), next(filter(None, vmean), HUGE)

    errors = _errors(records, metric) if _are_many(records) else {}

    def best(group: Sequence[Fields], cost: str, drawn: Sequence[Point]) -> list[Point]:
        if not errors:
            return frontier(drawn, limits(group, cost))
        points = {(point.label, point.d): point for point in drawn}
        places = [(text_label(row), row["d"]) for row in _best(group, cost, metric, errors, causal)]
        return [points[place] for place in places if place in points]

    panels = []
    for title, group in places:
        for name in costs:
            drawn = _points(group, name, metric)
            panels.append((title, (name, group, drawn, best(group, name, drawn))))
    named, others = prominent((drawn, steps) for _, (_, _, drawn, steps) in panels)
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
        for words, labels in _unstated(shown, [name for name, *_ in page]).items():
            names = _named([label for label in labels if label in styles or words == "cost"])
            absent += [f"no {words}: {names}"] * bool(names)
        absent += [label + note for label, note in notes.items() if note and label not in there]
        under = any(below(drawn, steps, limits(group, name)[1]) for name, group, drawn, steps in page)
        exact = any(drawn and limits(group, name)[0] < HUGE for name, group, drawn, _ in page)
        return {
            **{legend_text(label, flags) + notes.get(label, ""): styles[label] for label in styles if label in there},
            **yardsticks,
            **(others if there - styles.keys() else {}),
            **(CERTAIN if errors else LEAST_ERROR),
            **((UNCERTAIN if errors else BELOW) if under else {}),
            **({EXACT_LABEL: EXACT_LINE} if exact else {}),
            **hollow_legend(row for row in points if text_label(row) in there),
            **dict.fromkeys(absent, NOTHING),
        }

    figure = Panels(
        f"cost-{metric}",
        f"{sentence(in_words(metric))} against cost: medians",
        _caption(shown, metric, len(budgets) > 1, bool(errors), bool(others)),
        panels,
        draw,
        y=f"{symbol(metric)}, median",
        legend=legend,
        width=1.6,
        height=2.3,
        finish=finish,
        columns=len(costs),
        sharing={"sharey": "row"},
    )
    return draw_figures([figure], drawing, out_dir)


def _caption(rows: Sequence[Fields], metric: str, several: bool, certain: bool, grey: bool) -> list[str]:
    symbols = f", {formula(metric)}" if metric in SYMBOLS else ""
    lines = [
        f"Median of the {in_words(metric)}{symbols}, against the entries of the n x n matrix that a method visits, "
        "without scores that only choose keys, and against other costs that methods state.",
        *(["A line joins the budgets d of a method, which stand at its points where there is room."] * several),
        "The steps are the frontier: points without bad rows that no other beats"
        + (
            ", as in a table of unbeaten methods: the ratio of error to the one before, a geometric mean of "
            "heads, is below 1 at 95 %."
            if certain
            else "."
        ),
        *(["Grey: methods without a point on a frontier, named where there is room."] * grey),
        *(["That of entries begins at V-Mean, which visits none."] * any(row["method"] == "vmean" for row in rows)),
        "The upright line: exact attention, which computes every entry that is not masked and has no error.",
    ]
    for words, labels in _unstated(rows, COSTS).items():
        lines += [f"Not drawn where they state no {words}: {', '.join(labels)}."] if labels else []
    return [*lines, *marks(rows, metric), where(rows, "heads", "windows", "repeats")]


def _named(labels: Sequence[str]) -> str:
    """Few names, or the number of many."""
    return ", ".join(labels) if len(labels) <= MOST_ABSENT else f"{len(labels)} methods"


def _unstated(rows: Sequence[Fields], costs: Iterable[str]) -> dict[str, list[str]]:
    """The methods that state no cost, and those that do not state one of ``costs`` that others state, by its words."""
    methods = [row for row in rows if not (row.get("reference") or row["method"] == SOFTMAX)]
    prices = {text_label(group[0]): set(chain(*map(_prices, group))) for group in gathered(methods, text_label)}
    lacking = {"cost": [label for label, known in prices.items() if not known]}
    for name in filter(set(chain(*prices.values())).__contains__, dict.fromkeys(costs)):
        words = COSTS[name].partition(",")[0]
        lacking[words] = [label for label, known in prices.items() if known and name not in known]
    return lacking


def _points(rows: Sequence[Fields], cost: str, metric: str) -> list[Point]:
    """The points of a panel: requested methods with this cost and an error above those of rounding."""
    methods = [row for row in rows if not row.get("reference") and row["method"] != SOFTMAX]
    least = _lowest(rows, metric)
    return [
        Point(text_label(row), row["d"], price, error, mark(row) == "!")
        for row in methods
        if (price := _prices(row).get(cost)) and (error := _drawn(row, metric) or 0.0) > least
    ]


def _lowest(rows: Sequence[Fields], metric: str) -> float:
    """The error below which points are left out."""
    return lowest(_drawn(row, metric) for row in rows if row["method"] != SOFTMAX)


def _drawn(row: Fields, metric: str) -> float | None:
    median = statistic(row, metric, "median")
    return median if median is not None and median <= HUGE else None


def _prices(row: Fields) -> dict[str, float]:
    known = {name: statistic(row, name, of) for name, (of, _, _) in AXES.items()}
    return {name: AXES[name][1] * value for name, value in known.items() if value}
