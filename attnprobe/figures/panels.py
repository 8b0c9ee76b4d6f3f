"""The two kinds of panel of an error figure: lines against the budget, and dots where there is one budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..tables.methods import family, mark
from ..tables.numbers import method_label

__all__ = [
    "CROSS",
    "FLAG",
    "HOLLOW",
    "HUGE",
    "cross_out",
    "crossed",
    "dot_panel",
    "flagged",
    "has",
    "legend_text",
    "line_panel",
    "scale",
    "styles_of",
    "text_label",
]

Row = Mapping[str, Any]

# Okabe and Ito's colours (black is the references'), each with its own marker: no two lines differ by colour alone
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#7F3C8D")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "h", "<", ">", "*")
GREY = "#444444"
CROSS = "diverged or failed"
FLAG = "!: bad rows"
HOLLOW = {"markerfacecolor": "none", "markersize": 8, "markeredgewidth": 1.5, "linestyle": "", "zorder": 4}
MOST_BANDS = 3  # methods; the bands of more run together, and become bars
HUGE = 1e60  # what matplotlib draws without overflow, and far beyond what a float32 output can be off by


def line_panel(
    axis: Any,
    rows: Sequence[Row],
    bounds: Sequence[Row],
    name: str,
    styles: Mapping[str, dict[str, Any]],
    handles: dict[str, Any],
    budgets: Sequence[int],
) -> None:
    """Error against budget: a line per method with its band, or, of many methods, with bars side by side.

    A tick is the maximum, a hollow marker a row with bad rows.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(budgets))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(budgets, [str(d) for d in budgets])
    gap = min(math.log2(high / low) for low, high in zip(budgets, budgets[1:], strict=False))
    beside = [label for label, style in styles.items() if style["marker"]]
    bands = len(beside) <= MOST_BANDS
    step = 0 if bands else min(0.09, 0.5 / len(beside)) * min(gap, 1.0)
    margin = 1.4 * 2 ** (step * len(beside) / 2)
    axis.set_xlim(budgets[0] / margin, budgets[-1] * margin)
    for label, group in _by_label(rows).items():
        style = styles[label]
        found = [(row["d"], row["metrics"][name]) for row in group if has(row, name)]
        offset = beside.index(label) - (len(beside) - 1) / 2 if label in beside else 0
        shift = 2 ** (offset * step)
        if found and found[0][0] is None:
            handles[label] = axis.axhline(found[0][1]["median"], **{**style, "marker": None}, zorder=1.5)
        elif found:
            d = [budget * shift for budget, _ in found]
            low, middle, high = ([_drawn(stats[key]) for _, stats in found] for key in ("p10", "median", "p90"))
            if bands and len(d) > 1:
                axis.fill_between(d, low, high, color=style["color"], alpha=0.14, linewidth=0)
                for edge in (low, high):
                    axis.plot(d, edge, color=style["color"], alpha=0.35, linewidth=0.7)
            else:
                axis.vlines(d, low, high, color=style["color"], alpha=0.4, linewidth=1.8)
            bad = [mark(row) == "!" for row in group if has(row, name)]
            filled = [place for place, one in enumerate(bad) if not one]
            (handles[label],) = axis.plot(d, middle, **style, markevery=filled)
            most = [_drawn(stats["max"]) for _, stats in found]
            axis.plot(d, most, color=style["color"], linestyle="", marker="_", markersize=7, markeredgewidth=1.3)
            for x, y, one in zip(d, middle, bad, strict=True):
                if one:  # a ring, which a point of another method at the same place leaves visible
                    axis.plot([x], [y], color=style["color"], marker=style["marker"], **HOLLOW)
        for row in group:
            if crossed(row, name):
                value = row["metrics"][name]["median"] if has(row, name) else None
                handles.setdefault(label, Line2D([], [], **style))
                cross_out(axis, shift * (row["d"] or budgets[0]), value, False, handles, style["color"])
    positive = [(row["d"], row["metrics"][name]["median"]) for row in bounds if row["d"] in budgets]
    positive = [(d, value) for d, value in positive if value > 0]
    if positive:
        look = {"color": GREY, "linestyle": ":", "marker": ".", "linewidth": 1.3}
        (handles["lower bound, rank d (0 beyond)"],) = axis.plot(*zip(*positive, strict=True), **look)


def cross_out(axis: Any, x: float, y: float | None, dots: bool, handles: dict[str, Any], colour: str) -> None:
    """A cross on what did not converge; at the edge of the panel, in the method's colour, where it has no value."""
    from matplotlib.lines import Line2D

    look = {"linestyle": "", "marker": "x", "color": "black", "markersize": 8, "markeredgewidth": 1.5, "zorder": 5}
    handles[CROSS] = Line2D([], [], **look)
    if y is not None:
        axis.plot([x], [y], **look)
        return
    look["color"] = colour
    if dots:
        axis.plot([0.98], [x], transform=axis.get_yaxis_transform(), **look)
    else:
        axis.plot([x], [0.97], transform=axis.get_xaxis_transform(), **look)


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
    groups = _by_label(rows)
    for position, label in enumerate(labels):
        style = styles[label]
        for row in groups.get(label, ()):
            stats = row["metrics"][name] if has(row, name) else None
            if stats is not None:
                look = {"color": style["color"], "linestyle": "-", "linewidth": 2.2}
                axis.plot([_drawn(stats["p10"]), _drawn(stats["p90"])], [position] * 2, alpha=0.5, **look)
                face = HOLLOW if mark(row) == "!" else {}
                axis.plot([stats["median"]], [position], **{**style, "linestyle": "", "markersize": 7, **face})
                axis.plot([_drawn(stats["max"])], [position], marker="|", markersize=9, markeredgewidth=1.6, **look)
            if crossed(row, name):
                x, y = (position, None) if stats is None else (stats["median"], position)
                cross_out(axis, x, y, True, handles, style["color"])
    marked = flagged(rows)
    axis.set_yticks(range(len(labels)), [legend_text(label, marked) for label in labels])
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    for row in rows:
        if row.get("reference") and has(row, name):
            look = {"color": GREY, "linestyle": "--", "linewidth": 1.3, "zorder": 1.5}
            handles[text_label(row)] = axis.axvline(row["metrics"][name]["median"], **look)
    for row in bounds:
        if (value := row["metrics"][name]["median"]) > 0:
            look = {"color": GREY, "linestyle": ":", "linewidth": 1.5, "zorder": 1.5}
            handles[f"lower bound, rank {row['d']}"] = axis.axvline(value, **look)


def scale(
    panels: Sequence[Any], values: Sequence[Mapping[str, Any]], dots: bool, low: float = 0.0, high: float = math.inf
) -> None:
    """A logarithmic error axis where the values span more than a factor of 20, else one that starts at zero.

    Values outside ``low`` to ``high`` do not stretch it.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    keys = ("p10", "median", "p90", "max")
    positive = [stats[key] for stats in values for key in keys if 0 < _drawn(stats.get(key)) < HUGE]
    inside = [value for value in positive if low <= value <= high]
    for panel in panels:
        axis = panel.xaxis if dots else panel.yaxis
        panel.grid(axis="x" if dots else "y", color="#dddddd", linewidth=0.6)
        if inside and max(inside) > 20 * min(inside):
            (panel.set_xscale if dots else panel.set_yscale)("log")
            if len(inside) < len(positive):
                (panel.set_xlim if dots else panel.set_ylim)(min(inside) / 1.5, max(inside) * 1.5)
            decades = math.log10(max(inside) / min(inside))
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)))
            far = max(inside) > 1e4 or min(inside) < 1e-3
            power = lambda value, _: f"$10^{{{round(math.log10(value))}}}$" if value > 0 else ""
            axis.set_major_formatter(FuncFormatter(power if far and decades >= 2.5 else lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        else:
            (panel.set_xlim if dots else panel.set_ylim)(0, 1.1 * max(inside) if len(inside) < len(positive) else None)


def styles_of(rows: Sequence[Row], shown: Iterable[Row] | None = None) -> dict[str, dict[str, Any]]:
    """The look of each method, the same in every figure of the rows; references are grey and dashed, and last.

    Args:
        shown: the rows whose methods are wanted, of those that decide on the looks; all by default.
    """
    styles: dict[str, dict[str, Any]] = {}
    count = 0
    families = list(dict.fromkeys(family(row) for row in rows if not row.get("reference")))
    place = {name: index for index, name in enumerate(families)}
    for row in sorted(rows, key=lambda row: (bool(row.get("reference")), place.get(family(row), -1))):
        label = text_label(row)
        if label in styles:
            continue
        if row.get("reference"):
            styles[label] = {"color": GREY, "marker": None, "linestyle": "--", "linewidth": 1.3}
            continue
        line = "-" if row["d"] is not None else "-."
        styles[label] = {
            "color": COLOURS[count % len(COLOURS)],
            "marker": MARKERS[count % len(MARKERS)],
            "linestyle": line,
        }
        styles[label] |= {"linewidth": 1.6, "markersize": 5}
        count += 1
    wanted = set(styles) if shown is None else set(map(text_label, shown))
    return {label: style for label, style in styles.items() if label in wanted}


def text_label(row: Row) -> str:
    """The legend's text; a dollar would start mathematics, and matplotlib hides what starts with an underscore."""
    if row["method"] == "vmean" and row.get("reference"):
        return "V-Mean"
    label = method_label(row).replace("$", r"\$")
    return f" {label}" if label.startswith("_") else label


def flagged(rows: Iterable[Row]) -> set[str]:
    """The labels of methods that left bad rows as they are."""
    return {text_label(row) for row in rows if mark(row) == "!"}


def legend_text(label: str, marked: Iterable[str]) -> str:
    """A method's entry in a legend: with ``!`` where it is one of those that are marked."""
    return f"{label} !" if label in marked else label


def _by_label(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(text_label(row), []).append(row)
    return groups


def _drawn(value: float | None) -> float:
    return math.nan if value is None else min(value, HUGE)


def has(row: Row, name: str) -> bool:
    """Whether the row has a median of the metric that can be drawn."""
    median = (row["metrics"].get(name) or {}).get("median")
    return median is not None and median <= HUGE


def crossed(row: Row, name: str) -> bool:
    """Whether the row is marked by a cross: cells that diverged or failed, or a median beyond drawing."""
    return row["status"] in ("failed", "diverged") or (name in row["metrics"] and not has(row, name))
