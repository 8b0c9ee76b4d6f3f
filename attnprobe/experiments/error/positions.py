"""Errors of rows, and the mass of the keys that they use, over the position of the query."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.ends import lowest, off_axis, outside, scale
from ...figures.files import chunks
from ...figures.kit import logarithmic, scale_of
from ...figures.methods import (
    HUGE,
    MOST_IN_PANEL,
    OWN,
    best_first,
    hollow_legend,
    marks,
    names_of,
    order_of,
    overspent,
    panel_title,
    parts,
    ranked,
    styles_of,
    text_label,
    where,
)
from ...figures.panels import Panels, balanced, draw_figures, panels_of
from ...tables.long import Row
from ...tables.methods import ROUNDING, family, mark
from .heat_maps import heat_maps, most_lines

Block = tuple[str, Sequence[Row]]  # of a source, layer, n and budget: its title, and a row for each method
Curve = dict[int, float]  # the means of positions from 2^a to 2^(a+1) - 1, by 2^a

ABOVE = 10  # times V-Mean's median error: the end of an axis, unless V-Mean has larger ones
ALL = 0.99  # a method with more mass at every position has no curve of it
QUANTITIES = {"row_error": "relative error\nof a row, mean", "mass": "mass of the\nkeys used, mean"}
AT = "query position"
ERROR = "The error of a row is ‖o~ − o‖ / ‖o‖, here the mean over queries at positions 2^a to 2^(a+1) − 1."


def positions_figure(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw the row error of each method over the position of the query, for each (source, layer, n) and budget.

    Values are means over heads, windows, repeats, and the queries at positions 2^a to 2^(a+1) - 1, counted from 1. Up
    to `MOST_IN_PANEL` methods are curves: a column of panels for each place and budget, a row for errors, and one for
    the mass of the keys used where several methods have less than all of it. More methods are lines of heat maps, the
    best at the last positions first. References are in both.

    Args:
        out_dir: where ``positions.svg`` and the like are written (``-2``, … where there are many panels).

    Returns:
        The files' paths; none if no requested method has row metrics.
    """
    shown = [row for row in rows if row.get("profile")]
    requested = [row for row in shown if not row.get("reference")]
    errors = [*chain(*(_curve(row, "row_error").items() for row in requested))]
    if not errors:
        return []
    first = min((a for a, error in errors if error > ROUNDING), default=1)
    caption = [ERROR, *([f"At positions below {first} it is rounding alone, and not drawn."] * (first > 1))]
    blocks = _blocks(shown)
    if len(set(map(text_label, requested))) > MOST_IN_PANEL:
        figures = _maps(blocks, first, caption, drawing)
    else:
        figures = _curves(rows, blocks, first, caption, drawing)
    return draw_figures(figures, drawing, out_dir)


def _blocks(rows: Sequence[Row]) -> list[Block]:
    """The rows of each place and budget; methods without a budget are in each."""
    blocks = []
    for place, group in panels_of(rows, lambda row: panel_title({**row, "target": "softmax"})):
        for d in sorted({row["d"] for row in group if row["d"] is not None}) or [None]:
            title = place if d is None else f"{place}, d = {d}"
            blocks.append((title, [row for row in group if row["d"] in (None, d)]))
    return blocks


def _curve(row: Mapping[str, Any], name: str, first: int = 1) -> Curve:
    """The means of a row from a position on; none of nearly all mass everywhere.

    Where n is a power of two, the mean of the last position alone is left out: it is one query, beside means of many.
    """
    means = zip(row["profile"]["keys"], row["profile"].get(name, ()), strict=False)
    curve = {a: y for a, y in means if y is not None and first <= a != row["n"]}
    return {} if name == "mass" and all(y > ALL for y in curve.values()) else curve


def _curves(
    run: Sequence[Row], blocks: Sequence[Block], first: int, caption: Sequence[str], drawing: Drawing
) -> list[Panels]:
    """Few methods: curves, at the geometric middle of the positions. Curves of bad rows have hollow points."""
    shown = [row for _, group in blocks for row in group]
    styles = styles_of(run, shown)
    selecting = {text_label(row) for row in shown if not row.get("reference") and _curve(row, "mass", first)}
    alone = len({text_label(row) for row in shown if not row.get("reference")}) == 1
    names = [name for name in QUANTITIES if name != "mass" or len(selecting) > 1 or (selecting and alone)]

    def errors(row: Mapping[str, Any]) -> list[float]:
        return [*_curve(row, "row_error", first).values()]

    every = [y for row in shown for y in errors(row)]
    yardstick = [y for row in shown if row.get("reference") for y in errors(row)]
    high = max(ABOVE * median(yardstick), 1.3 * max(yardstick)) if yardstick else HUGE

    def draw(axis: Any, panel: tuple[str, Sequence[Row]]) -> None:
        name, group = panel
        for row in group:
            curve = _curve(row, name, first)
            at = [math.sqrt(a * min(2 * a - 1, row["n"])) for a in curve]
            drawn = [y if name == "mass" or y > ROUNDING else math.nan for y in curve.values()]
            hollow = {"markerfacecolor": "none"} if mark(row) == "!" else {}
            axis.plot(at, drawn, **{**styles[text_label(row)], "markersize": 4, **hollow})
        logarithmic(axis, "x")
        axis.set_visible(bool(group))
        axis.set_ylabel(QUANTITIES[name])
        if len(axis.get_shared_y_axes().get_siblings(axis)) > 1:
            axis.label_outer()
        if name == names[-1]:  # also where places go on below it
            axis.tick_params(labelbottom=True)
            axis.set_xlabel(AT)
        if name == "mass":
            axis.set_ylim(-0.03, 1.03)
        else:
            scale(axis, every, high=high)

    named = names_of(shown)
    if "mass" in names:
        caption = [*caption, f"Mass is the exact weight of the keys that a method uses; above {ALL} it has no curve."]
    rounded = any(y <= ROUNDING for y in every)
    caption = [
        *caption,
        *(["Errors of rounding are not drawn."] * rounded),
        *off_axis(outside(shown, errors, lowest(every, high), high)),
        *marks(shown, "row_error"),
        where(shown, "heads", "windows", "repeats"),
    ]
    beside = len(blocks) == 1  # the quantities of a single place
    tall = 1.15 if drawing.sizes.fixed and not beside and len(names) > 1 else 2.0
    across = len(names) if beside else balanced(len(blocks), drawing.sizes.across(1.6))
    figures = []
    for page in chunks(blocks, len(blocks) if beside else across * drawing.sizes.down(tall * len(names))):
        panels: list[tuple[str, tuple[str, Sequence[Row]]]] = []
        for some in chunks(page, across):
            padded = [*some, *([("", ())] * (0 if beside else across - len(some)))]
            for place, name in enumerate(names):
                panels += [("" if place and not beside else title, (name, group)) for title, group in padded]
        figures.append(
            Panels(
                "positions",
                "Errors of rows over position: means",
                caption,
                panels,
                draw,
                AT,
                legend={named[label]: look for label, look in styles.items()} | hollow_legend(shown),
                width=1.6,
                height=tall,
                columns=across,
                sharing={"sharex": True, "sharey": False if beside else "row"},
            )
        )
    return figures


def _maps(blocks: Sequence[Block], first: int, caption: Sequence[str], drawing: Drawing) -> list[Panels]:
    """Many methods: a line for each, the best first, and a column for each range of positions."""
    shown = [row for _, group in blocks for row in group]
    keys = sorted({a for row in shown for a in _curve(row, "row_error", first)})

    def errors(row: Row) -> list[float]:
        curve = _curve(row, "row_error", first)
        return [curve.get(a, math.nan) for a in keys]

    def last(line: Sequence[Row]) -> float:
        """The geometric mean of a method's errors at the last positions; infinite where one is not known."""
        ends = np.array([errors(row)[-1] for row in line])
        return math.inf if np.isnan(ends).any() else float(np.log(np.maximum(ends, ROUNDING)).mean())

    every = np.array([errors(row) for row in shown])
    colours = scale_of(np.where(every <= ROUNDING, 0.0, every), "relative error of a row, mean")
    names, order = names_of(shown), ranked(shown, last)
    strong = {names[text_label(row)] for row in shown if row.get("reference") or family(row) == OWN}
    most = max(1, most_lines(drawing) - len(strong))  # beside these, which each page has
    figures = []
    for part in parts(sorted(shown, key=lambda row: order.index(text_label(row))), most):
        labels = sorted({*map(text_label, part)}, key=order.index)
        panels = []
        for title, group in blocks:
            of_line = {text_label(row): errors(row) for row in group}
            values = np.array([of_line.get(label, [math.nan] * len(keys)) for label in labels])
            panels.append((title, (values, np.zeros(values.shape, bool))))
        figures.append(
            heat_maps(
                panels,
                [names[label] for label in labels],
                [str(a) if place % 2 else "" for place, a in enumerate(keys, len(keys) % 2 + 1)],
                colours,
                len({row["d"] for row in shown} - {None}) or 1,
                drawing,
                strong,
                {names[label] for label in overspent(shown)},
                stem="positions",
                title="Errors of rows over position: means",
                caption=[
                    *caption,
                    "A column begins at its number. Errors of at most 1e-5 may be rounding.",
                    order_of(shown, "errors at the last positions"),
                    where(shown, "heads", "windows", "repeats"),
                ],
                x=AT,
                y=best_first(shown),
            )
        )
    return figures
