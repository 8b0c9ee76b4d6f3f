"""Figures of ``attnprobe condition``: conditions per matrix and layer, against errors, and residuals per step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.kit import logarithmic
from ...figures.looks import CURVE, GREY, escaped
from ...figures.methods import (
    HOLLOW,
    PROMISED,
    QUANTILES,
    SHADE,
    Styles,
    hollow_legend,
    legend_text,
    marks,
    panel_title,
    spread_legend,
    styles_of,
    text_label,
    where,
)
from ...figures.panels import Panels, draw_figures, panels_of
from ...tables.labels import file_tag
from ...tables.long import LEAST_RANKED, Row, quantiles, rank_correlation, rank_p_value, unbounded
from ...tables.methods import mark
from ...tables.numbers import method_label
from ...tables.table import gathered, grouped_by
from .record import ERROR
from .view import regular_pairs

Place = Callable[[Row], str]  # the title of a row's panel

EXACT = ("A", "B", "C")
NAMES = {
    "A": r"exact $A=\exp(S)$",
    "B": r"exact $B$, softmax",
    "C": r"exact $C$, Gaussian",
    "A_S": r"$A_S$",
    "SAS": r"$S^\top\bar{A}S$",
    "SCS": r"$S^\top\bar{C}S$",
    "SCS+ridge": r"$S^\top\bar{C}S+\gamma I$",
    "N0": r"$N$ at $\gamma=0$",
    "N": r"$N$ (with $\gamma$)",
}
MEANINGS = {  # of what an axis names, in a caption
    "A_S": "A_S: the softmax of landmark queries and keys.",
    "SAS": "SᵀĀS: the softmax kernel of Skyformer's landmarks S.",
    "SCS": "SᵀC̄S: the Gaussian kernel of Skyformer's landmarks S, with γI for its ridge.",
    "N": "N: SᵀC̄S + γI scaled as in Lemma 3.",
}
ORDER = [*NAMES]
MARKERS = dict(zip(ORDER[len(EXACT) :], ("s", "d", "v", "o", "<", "^"), strict=True))  # of the lines of cores
OTHER = "X"  # marker of a core that is not in `NAMES`
DOT: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 4.2}  # of a head
NOT_INVERTED = {"linestyle": "--", "linewidth": 1.0, "markerfacecolor": "white"}
BAND = (1.05, 1.08, 1.19, 1.30)  # of the axis's logarithm: edge, median, middle, end of the band of singular ones
BROWN = "#7a5c3a"  # words on that band
WORD = 0.1  # of a panel's height: a line of text
ON_RANGE = "A cross is σ₁ over the least singular value above rounding (on its range)."
SIX = 6  # steps that Nyströmformer and Skyformer take
LOW, HIGH = 1e-16, 1e6  # residuals are drawn between these


def condition_figures(rows: Sequence[Row], summary: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw the condition numbers: a figure for each (source, n, d), with a panel for each layer.

    ``condition-nN-dD``: one dot per head and window on a logarithmic axis, and a bar at the median. Singular matrices
    have a separate band. Cores have their method's colour.
    ``condition-error-nN-dD``: condition number of each inverted core against the method's error.
    ``condition-iterations-nN-dD``: residual of the Schulz iteration per step: median over heads, and p10 – p90 of the
    cores that methods invert, with a mark at step six.

    Returns:
        The files' paths.
    """
    figures: list[Panels] = []
    styles = styles_of([_budgetless(row) for row in rows if row["method"]])
    for group in grouped_by([row for row in rows if row.get("matrix") is not None], "source", "n"):
        source, n = group[0]["source"], group[0]["n"]
        for d in list(dict.fromkeys(row["d"] for row in group if row["d"] is not None)) or [None]:
            measured = [row for row in group if row.get("rank") is not None and row["d"] in (None, d)]
            at = [row for row in summary if (row["source"], row["n"]) == (source, n) and row["d"] in (None, d)]
            tag = f"n{n}{'' if d is None else f'-d{d}'}{file_tag(source)}"
            place = partial(panel_title, budgets=[] if d is None else [d])
            inverted = [_judged(row) for row in measured if row["inverted"] and row["error"] is not None]
            iterated = [row for row in at if "residuals" in row]
            figures += [_conditions(measured, styles, tag, place)] if measured else []
            figures += [_errors(inverted, styles, tag, place)] if any(row["error"] for row in inverted) else []
            figures += [_iterations(iterated, styles, tag, place)] if iterated else []
    return draw_figures(figures, drawing, out_dir)


def _conditions(rows: Sequence[Row], styles: Styles, tag: str, place: Place) -> Panels:
    """Dots per head: a line for each matrix, a panel for each layer."""
    lines = gathered(rows, _key)
    lines.sort(key=lambda group: ORDER.index(group[0]["matrix"]) if group[0]["matrix"] in ORDER else len(ORDER))
    places = {_key(group[0]): place for place, group in enumerate(lines)}
    variants = Counter(name for name, _ in {(row["method"], method_label(row)) for row in rows})
    named = [group[0] if variants[group[0]["method"]] > 1 else {**group[0], "options": {}} for group in lines]
    labels = [_label(row, True) for row in named]
    exact = sum(group[0]["matrix"] in EXACT for group in lines)
    singular = any(row["cond"] is None for row in rows)
    top = _top([row["cond"] or row["cond_eff"] for row in rows])  # crosses have their place on the axis too
    caption = [
        "Condition number of each matrix: a dot for each head and window, a bar at their median.",
        "Full dots: exact, or inverted by the method. Empty: not inverted.",
        *([f"The band counts singular matrices, which have no dot. {ON_RANGE}"] * singular),
        *_meanings(rows),
        where(rows),
    ]

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        _axis(axis, top, singular)
        for group in gathered(panel, _key):
            _strip(axis, places[_key(group[0])], group, top, _colour(group[0], styles))
        axis.set_yticks(range(len(labels)), labels)
        axis.set_ylim(len(labels) - 0.45, -1.15)
        axis.tick_params(axis="y", length=0)
        if 0 < exact < len(labels):
            axis.axhline(exact - 0.5, color="#bbbbbb", linewidth=0.8)

    dot = {"color": "#444444", **DOT}
    kinds = {(row.get("inverted") or row["matrix"] in EXACT) for row in rows}
    legend = {"exact, or inverted by the method": dot} if True in kinds else {}
    legend |= {"not inverted": dot | {"markerfacecolor": "white"}} if False in kinds else {}
    legend |= {"singular: on its range": dot | {"marker": "x"}} if singular else {}
    legend |= {"median": {**spread_legend("")[""], "markeredgewidth": 2.4}}
    title = "Condition numbers, head by head; bar: median"
    panels, height = panels_of(rows, place), 0.21 * len(labels) + 0.8
    return Panels(
        f"condition-{tag}", title, caption, panels, draw, r"$\sigma_1/\sigma_m$", legend=legend, height=height
    )


def _strip(axis: Any, line: int, group: Sequence[Row], top: float, colour: str) -> None:
    """One matrix on one layer: its heads as dots, side by side in a fixed order, and their median."""
    face = colour if group[0].get("inverted") or group[0]["matrix"] in EXACT else "white"
    heights = [line + 0.42 * ((index * 0.61803) % 1 - 0.5) for index in range(len(group))]
    x = [math.nan if row["cond"] is None else max(row["cond"], 1.0) for row in group]
    axis.plot(x, heights, color=colour, alpha=0.75, markeredgewidth=0.9, **{**DOT, "markerfacecolor": face})
    middle = min(quantiles(unbounded(row["cond"] for row in group))["median"], top ** BAND[1])
    axis.plot([middle] * 2, [line - 0.36, line + 0.36], color=colour, linewidth=2.4, solid_capstyle="butt")
    ranges = [(row["cond_eff"], height) for row, height in zip(group, heights, strict=True) if row["cond"] is None]
    for value, height in ranges:
        if value:
            axis.plot([value], [height], linestyle="", marker="x", markersize=4, color=colour, alpha=0.55)
    if ranges:
        look = {"fontsize": "x-small", "va": "center", "ha": "center", "color": BROWN}
        axis.text(top ** BAND[2], line, f"{len(ranges)}/{len(group)}", **look)


def _errors(rows: Sequence[Row], styles: Styles, tag: str, place: Place) -> Panels:
    """Condition of each inverted core against the method's error, a dot per head."""
    looks = {
        _label(row, True): {**styles[text_label(row)], "linestyle": "", "markersize": 4.5, "alpha": 0.8} for row in rows
    }
    bad = {_label(row, True) for row in rows if mark(row) == "!"}
    singular = any(row["cond"] is None for row in rows)
    top = _top([row["cond"] for row in rows])
    caption = [
        "Condition number of the core that a method inverts against the method's relative output error, a dot for "
        "each head and window.",
        f"ρ is Spearman's rank correlation over the regular heads, of which there are {LEAST_RANKED} or more; p counts "
        "all orders of up to 8 heads, and is by Student's t of more.",
        *_meanings(rows),
        where(rows),
        *marks(rows, ERROR),
    ]

    positive = [row["error"] for row in rows if row["error"]]  # an exact method's error may be 0
    low, high = min(positive), max(positive)
    words = WORD * max(singular, len(set(map(_key, rows))))  # of a panel's height: the names of the band and of ρ

    def draw(axis: Any, panel: Sequence[Row]) -> Mapping[str, Any]:
        own = {}
        for group in gathered(panel, _key):
            label, regular = _label(group[0], True), regular_pairs(group)
            rho = rank_correlation(*regular)
            if rho is not None:
                text = f"ρ = {rho:+.2f}, p = {rank_p_value(*regular):.2g} ({len(regular[0])} heads)".replace("-", "−")
                look = {"va": "top", "fontsize": "small", "color": looks[label]["color"], "transform": axis.transAxes}
                axis.text(0.02, 0.985 - WORD * len(axis.texts), text, **look)
            for sign, look in (("!", HOLLOW), ("", {})):
                dots = [row for row in group if mark(row) == sign]
                x, y = [row["cond"] or top ** BAND[2] for row in dots], [row["error"] for row in dots]
                (own[legend_text(label, bad)],) = axis.plot(x, y, **{**looks[label], **look})
        logarithmic(axis, "y")
        axis.set_ylim(low / 1.5, 1.5 * high * (2.25 * high / low) ** (words / (1 - words)))
        _axis(axis, top, singular)
        return own

    return Panels(
        f"condition-error-{tag}",
        "Condition number against error, head by head; ρ: rank correlation over regular heads",
        caption,
        panels_of(rows, place),
        draw,
        r"$\sigma_1/\sigma_m$ of the core",
        r"error $\|E\|_2/\|BV\|_2$",
        hollow_legend(rows),
    )


def _iterations(rows: Sequence[Row], styles: Styles, tag: str, place: Place) -> Panels:
    """Residual per step: a line for each core, a panel for each layer, and for each method if several share cores."""
    from matplotlib.ticker import MaxNLocator

    keys = set(map(_key, rows))
    several = len({matrix for matrix, _ in keys}) < len(keys)
    last = max(len(row["residuals"]["median"]) for row in rows) - 1
    every = max(1, (last + 1) // 8)
    least = min(_drawn(x) for row in rows for x in row["residuals"]["p10"])
    caption = [
        "Residual of the Schulz iteration on each core, step by step: median over heads. Full, with a band from p10 to "
        "p90: the core that the method inverts. Empty: not inverted.",
        f"Dotted: the six steps that the methods take. {where(rows)}",
    ]

    def title(row: Row) -> str:
        return "\n".join([place(row)] + [method_label(row)] * several)

    def look(row: Row) -> dict[str, Any]:
        line = {"linestyle": "-", "linewidth": CURVE} if row["inverted"] else NOT_INVERTED
        return {"color": _colour(row, styles), "marker": MARKERS.get(row["matrix"], OTHER), "markersize": 4, **line}

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        for number, row in enumerate(panel):
            low, middle, high = ([_drawn(x) for x in row["residuals"][name]] for name in ("p10", "median", "p90"))
            steps = range(len(middle))
            if row["inverted"]:
                axis.fill_between(steps, low, high, color=look(row)["color"], alpha=SHADE, linewidth=0)
            axis.plot(steps, middle, markevery=(number * every // len(panel), every), **look(row))
        logarithmic(axis, "y")
        axis.set_ylim(least / 3, 30)
        axis.set_xlim(0, last)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.axvline(SIX, color=GREY, linewidth=1.0, linestyle=":")
        words = {"fontsize": "small", "color": GREY, "ha": "right", "va": "bottom", "rotation": 90}
        axis.text(SIX, 0.03, "six steps", transform=axis.get_xaxis_transform(), **words)

    empty = {"not inverted": {"color": GREY, "marker": "o", "markersize": 4, **NOT_INVERTED}}
    legend = {_label(row, row["matrix"] == "A_S" and not several): look(row) for row in rows}
    legend |= spread_legend(QUANTILES, banded=True) if any(row["inverted"] for row in rows) else {}
    legend |= {} if all(row["inverted"] for row in rows) else empty
    return Panels(
        f"condition-iterations-{tag}",
        "Residual of the Schulz iteration: median and p10 – p90 over heads",
        caption,
        sorted(panels_of(rows, title), key=lambda panel: method_label(panel[1][0]) if several else ""),
        draw,
        "step t",
        r"$\|I-MZ_t\|_F\,/\,\sqrt{d}$",
        legend,
    )


def _label(row: Row, several: bool) -> str:
    name = NAMES.get(row["matrix"]) or row["matrix"].replace("$", r"\$").replace("_", r"\_")
    return f"{name}  {escaped(method_label(row))}" if row["method"] and several else name


def _meanings(rows: Sequence[Row]) -> list[str]:
    """Sentences on the matrices that rows name."""
    there = {row["matrix"].removesuffix("+ridge").removesuffix("0") for row in rows}
    return [words for name, words in MEANINGS.items() if name in there]


def _colour(row: Row, styles: Styles) -> str:
    """The colour of the method whose core the matrix is; grey for an exact matrix."""
    return styles[text_label(row)]["color"] if row["method"] else GREY


def _budgetless(row: Row) -> Row:
    """The row of a core as the row of a method without budget, so that no line joins its points."""
    return {**row, "d": None}


def _judged(row: Row) -> Row:
    """The row of a head with its bad rows as `mark` reads them."""
    return {**row, "metrics": {"bad_rows": {"max": row.get("bad_rows")}}}


def _key(row: Row) -> tuple[str, str]:
    return row["matrix"], method_label(row)


def _drawn(value: float) -> float:
    return min(max(value, LOW), HIGH)


def _top(values: Sequence[float | None]) -> float:
    """The power of ten at the end of an axis of condition numbers."""
    return 10 ** math.ceil(math.log10(max([10.0, *filter(None, values)])))


def _axis(axis: Any, top: float, singular: bool) -> None:
    """An axis from 1 to ``top``, a power of ten, with at most seven labels, and a band above it for singular ones."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_xscale("log")
    axis.set_xlim(top**-0.03, top ** (BAND[3] if singular else 1.03))
    if singular:
        axis.axvspan(top ** BAND[0], top ** BAND[3], color=PROMISED, linewidth=0, zorder=0)
        words = {"ha": "right", "va": "top", "fontsize": "small", "color": BROWN}
        axis.text(0.99, 0.985, "singular", transform=axis.transAxes, **words)
    last = round(math.log10(top))
    axis.xaxis.set_major_locator(FixedLocator([10.0**k for k in range(0, last + 1, max(1, math.ceil(last / 6)))]))
    axis.xaxis.set_minor_locator(NullLocator())
