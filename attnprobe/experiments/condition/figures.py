"""Figures of ``attnprobe condition``: conditions per matrix and layer, against errors, and residuals per step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn
from ...figures.kit import Sheet, columns_of, grid, legend, legend_below, legend_columns
from ...figures.looks import COLOURS, GREY, LOOKS
from ...figures.methods import styles_of, text_label
from ...figures.words import escaped, sentence
from ...tables.labels import file_tag, source_heading
from ...tables.long import Row
from ...tables.numbers import method_label
from ...tables.statistics import rank_correlation
from ...tables.table import grouped_by

EXACT = ("A", "B", "C")
NAMES = {
    "A_S": r"$A_S$",
    "SAS": r"$S^\top\bar{A}S$",
    "SCS": r"$S^\top\bar{C}S$",
    "SCS+ridge": r"$S^\top\bar{C}S+\gamma I$",
    "N0": r"$N$ at $\gamma=0$",
    "N": r"$N$ (with $\gamma$)",
}
NYSTROMFORMER, SKYFORMER = LOOKS["nystromformer"], LOOKS["skyformer"]
OTHER = (COLOURS[4], "v")
MATRICES = {  # colour and marker; a core of one method has that method's, with and without a ridge, filled with one
    "A": (GREY, "o"),
    "B": (GREY, "o"),
    "C": (GREY, "o"),
    "A_S": NYSTROMFORMER,
    "SAS": (COLOURS[6], "d"),
    "SCS": SKYFORMER,
    "SCS+ridge": SKYFORMER,
    "N0": (COLOURS[2], "^"),
    "N": (COLOURS[2], "^"),
}
ORDER = ("A", "B", "C", "A_S", "SAS", "SCS", "SCS+ridge", "N0", "N")
BAND = (1.05, 1.12, 1.17, 1.30)  # of the axis's logarithm: edge, dots, counts and end of the band of singular matrices
WIDTH, HEIGHT = 2.1, 2.2  # inches of a panel
SIX = 6  # steps that Nyströmformer and Skyformer take


def condition_figures(rows: Sequence[Row], summary: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw the condition numbers: a figure for each (source, n, d), with a panel for each layer.

    ``condition-nN-dD``: one dot per head and window on a logarithmic axis, and a bar at the median. Singular matrices
    have a separate band. Cores with Lemma 3's scaling are green. ``condition-error-nN-dD``: condition number of each
    inverted core against the method's error. ``condition-iterations-nN-dD``: residual of the Schulz iteration per step,
    median and p10 – p90 over heads, with a mark at step six.

    Returns:
        The files' paths.
    """
    paths: list[Path] = []
    for group in grouped_by(rows, "source", "n"):
        source, n = group[0]["source"], group[0]["n"]
        panel = [row for row in group if row.get("matrix") is not None]
        for d in list(dict.fromkeys(row["d"] for row in panel if row["d"] is not None)) or [None]:
            measured = [row for row in panel if row.get("rank") is not None and row["d"] in (None, d)]
            at = [row for row in summary if (row["source"], row["n"]) == (source, n) and row["d"] in (None, d)]
            budget = ("", "") if d is None else (f"-d{d}", f", d = {d}")
            tag = f"n{n}{budget[0]}{file_tag(source)}"
            lead = ", ".join([*filter(None, dict.fromkeys(map(source_heading, at))), f"n = {n}{budget[1]}"])
            drawings = (
                ("condition", _conditions, measured),
                ("condition-error", _errors, [row for row in measured if row["inverted"] and row["error"] is not None]),
                ("condition-iterations", _iterations, [row for row in at if "residuals" in row]),
            )
            for name, draw, shown in drawings:
                page = lambda shown, draw=draw, lead=lead: draw(shown, drawing, sentence(lead))
                paths += drawn(_pages(shown, drawing), page, Path(out_dir) / f"{name}-{tag}", drawing)
    return paths


def _pages(rows: Sequence[Any], drawing: Drawing) -> list[list[Any]]:
    """The rows of each figure, which has a panel for each layer."""
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    pages = chunks(layers, min(3, drawing.sizes.across(WIDTH)) * drawing.sizes.down(HEIGHT))
    return [[row for row in rows if row["layer"] in page] for page in pages]


def _label(row: Row, several: bool) -> str:
    name = NAMES.get(row["matrix"]) or row["matrix"].replace("$", r"\$").replace("_", r"\_")
    return f"{name}  {escaped(method_label(row))}" if row["method"] and several else name


def _conditions(rows: Sequence[Row], drawing: Drawing, lead: str) -> Sheet:
    """Dots per head: a line for each matrix, a panel for each layer."""
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    families = {method_label(row) for row in rows if row["method"] and row["matrix"] != "A_S"}
    several = len(families) > 1
    place = {name: index for index, name in enumerate(ORDER)}
    order = sorted(dict.fromkeys(_key(row) for row in rows), key=lambda key: place.get(key[0], len(place)))
    labels = {key: _label(next(row for row in rows if _key(row) == key), several) for key in order}
    values = [row["cond"] or row["cond_eff"] or 1.0 for row in rows]  # crosses have their place on the axis too
    top = 10 ** math.ceil(math.log10(max(max(values), 10.0)))
    any_flag = any(row["cond"] is None for row in rows)
    caption = [
        "Condition number of each matrix: a dot for each head and window, a bar at their median.",
        "Full dots: the method inverts this matrix. Empty: it stands beside.",
    ]
    if any_flag:
        caption.append("On the right: how many are singular. A cross is the condition number of one on its range.")
    caption.append(f"{lead}.")
    title = "Condition numbers head by head; bar: median"
    names = [f"layer {layer}" for layer in layers]
    sheet, panels = grid(drawing, title, caption, names, WIDTH, 0.21 * len(order) + 0.8)
    columns = columns_of(panels)
    for index, (axis, layer) in enumerate(zip(panels, layers, strict=True)):
        for line, key in enumerate(order):
            group = [row for row in rows if row["layer"] == layer and _key(row) == key]
            _strip(axis, line, group, top)
        _axis(axis, top, any_flag)
        axis.set_yticks(range(len(order)), [labels[key] for key in order])
        axis.set_ylim(len(order) - 0.45, -1.15)
        axis.tick_params(axis="y", length=0)
        axis.tick_params(labelbottom=True)
        exact = sum(key[0] in EXACT for key in order)
        if 0 < exact < len(order):
            axis.axhline(exact - 0.5, color="#bbbbbb", linewidth=0.8)
        if index + columns >= len(layers):
            axis.set_xlabel(r"$\sigma_1/\sigma_m$")
    return sheet


def _strip(axis: Any, line: int, group: Sequence[Row], top: float) -> None:
    """One matrix on one layer: its heads as dots, side by side in a fixed order, and their median."""
    if not group:
        return
    colour, marker = MATRICES.get(group[0]["matrix"], OTHER)
    filled = group[0].get("inverted") or group[0]["matrix"] in EXACT
    place = lambda index: line + 0.42 * ((index * 0.61803) % 1 - 0.5)
    x = [top ** BAND[1] if row["cond"] is None else max(row["cond"], 1.0) for row in group]
    y = [place(index) for index in range(len(group))]
    axis.plot(
        x,
        y,
        linestyle="",
        marker=marker,
        markersize=4.2,
        color=colour,
        alpha=0.75,
        markeredgewidth=0.9,
        markerfacecolor=colour if filled else "white",
    )
    ordered = sorted(math.inf if row["cond"] is None else row["cond"] for row in group)
    middle = [ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]]
    if math.isfinite(middle[1]):
        axis.plot([sum(middle) / 2] * 2, [line - 0.36, line + 0.36], color=colour, linewidth=2.4, solid_capstyle="butt")
    ranges = [(row["cond_eff"], height) for row, height in zip(group, y, strict=True) if row["cond"] is None]
    drawn = [(value, height) for value, height in ranges if value]
    if drawn:
        axis.plot(*zip(*drawn, strict=True), linestyle="", marker="x", markersize=4, color=colour, alpha=0.55)
    flagged = len(ranges)
    if flagged:
        axis.text(
            top ** BAND[2], line, f"{flagged}/{len(group)}", fontsize="x-small", va="center", ha="left", color="#7a5c3a"
        )


def _errors(rows: Sequence[Row], drawing: Drawing, lead: str) -> Sheet:
    """Condition of each inverted core against the method's error, a dot per head."""
    from matplotlib.lines import Line2D

    layers = list(dict.fromkeys(row["layer"] for row in rows))
    keys = list(dict.fromkeys(_key(row) for row in rows))
    caption = [
        "Condition number of the core that a method inverts against the method's relative output error, a dot for "
        "each head and window.",
        f"ρ is their rank correlation. {lead}.",
    ]
    title = "Condition number against error, head by head; ρ: rank correlation"
    names = [f"layer {layer}" for layer in layers]
    sheet, panels = grid(drawing, title, caption, names, WIDTH, HEIGHT + 0.17 * len(keys))
    columns, styles = columns_of(panels), styles_of([_budgetless(row) for row in rows])
    values = [row["cond"] for row in rows if row["cond"] is not None] or [1.0]
    top = 10 ** math.ceil(math.log10(max(max(values), 10.0)))
    any_flag = any(row["cond"] is None for row in rows)
    for index, (axis, layer) in enumerate(zip(panels, layers, strict=True)):
        handles = {}
        for key in keys:
            group = [row for row in rows if row["layer"] == layer and _key(row) == key]
            if not group:
                continue
            look = {**styles[text_label(_budgetless(group[0]))], "linestyle": "", "markersize": 4.5, "alpha": 0.8}
            axis.plot([row["cond"] or top ** BAND[1] for row in group], [row["error"] for row in group], **look)
            rho = rank_correlation([row["cond"] or math.inf for row in group], [row["error"] or 0.0 for row in group])
            word = "–" if rho is None else f"{rho:+.2f}"
            handles[f"{_label(group[0], True)}, ρ = {word}"] = Line2D([], [], **look)
        axis.set_yscale("log")
        _axis(axis, top, any_flag)
        axis.tick_params(labelbottom=True)
        axis.set_xlabel(r"$\sigma_1/\sigma_m$ of the core")
        if index % columns == 0:
            axis.set_ylabel(r"error $\|E\|_2/\|BV\|_2$")
        axis.margins(y=0.14)
        legend_below(axis, handles)
    return sheet


def _iterations(rows: Sequence[Row], drawing: Drawing, lead: str) -> Sheet:
    """Residual per step: a line for each core, a panel for each layer, and for each method if several share cores."""
    from matplotlib.ticker import MaxNLocator

    layers = list(dict.fromkeys(row["layer"] for row in rows))
    keys = list(dict.fromkeys(_key(row) for row in rows))
    several = len({key[0] for key in keys}) < len(keys)
    methods = list(dict.fromkeys(key[1] for key in keys)) if several else [None]
    places = [(layer, method) for method in methods for layer in layers]
    caption = [
        "Residual of the Schulz iteration on each core, step by step: median over heads, with a band from p10 to p90.",
        f"Dotted: the six steps that the methods take. {lead}.",
    ]
    title = "Residual of the Schulz iteration: median and p10 – p90 over heads"
    names = [f"layer {layer}" + (f", {method}" if method else "") for layer, method in places]
    sheet, panels = grid(drawing, title, caption, names, WIDTH, HEIGHT, len(layers))
    columns = columns_of(panels)
    low, handles = 1e-16, {}
    for index, (axis, (layer, method)) in enumerate(zip(panels, places, strict=True)):
        lines = [row for row in rows if row["layer"] == layer and method in (None, _key(row)[1])]
        for number, row in enumerate(lines):
            colour, marker = MATRICES.get(row["matrix"], OTHER)
            dashed = row["matrix"] in ("SCS", "N0")
            curve = {name: [_drawn(x, low) for x in row["residuals"][name]] for name in ("p10", "median", "p90")}
            steps = range(len(curve["median"]))
            axis.fill_between(steps, curve["p10"], curve["p90"], color=colour, alpha=0.08, linewidth=0)
            every = max(1, len(steps) // 8)
            (line,) = axis.plot(
                steps,
                curve["median"],
                color=colour,
                linestyle="--" if dashed else "-",
                linewidth=1.6,
                marker=marker,
                markersize=4,
                markevery=(number * every // len(lines), every),
                markerfacecolor="white" if dashed else colour,
            )
            handles.setdefault(_label(row, row["matrix"] == "A_S" and not several), line)
        axis.set_yscale("log")
        axis.set_ylim(low / 3, 30)
        axis.set_xlim(0, len(rows[0]["residuals"]["median"]) - 1)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.axvline(SIX, color=GREY, linewidth=1.0, linestyle=":")
        axis.text(SIX, math.sqrt(low), "six steps", fontsize="small", color=GREY, ha="right", va="center", rotation=90)
        axis.tick_params(labelbottom=True)
        if index + columns >= len(places):
            axis.set_xlabel("step t")
        if index % columns == 0:
            axis.set_ylabel(r"$\|I-MZ_t\|_F\,/\,\sqrt{d}$")
    legend(sheet, handles, legend_columns([*handles], drawing.sizes.inches(columns)))
    return sheet


def _budgetless(row: Row) -> Any:
    """The row of a core as the row of a method without budget, so that no line joins its points."""
    return {**row, "d": None}


def _key(row: Row) -> tuple[str, str]:
    return row["matrix"], method_label(row)


def _drawn(value: float | None, low: float) -> float:
    return 1e6 if value is None or not math.isfinite(value) else min(max(value, low), 1e6)


def _axis(axis: Any, top: float, any_flag: bool) -> None:
    """An axis from 1 to ``top``, a power of ten, with at most seven labels, and a band above it for singular ones."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    axis.set_xscale("log")
    axis.set_xlim(top**-0.03, top ** (BAND[3] if any_flag else 1.03))
    if any_flag:
        axis.axvspan(top ** BAND[0], top ** BAND[3], color="#f3ece4", linewidth=0, zorder=0)
        axis.text(
            top ** ((BAND[0] + BAND[3]) / 2),
            0.985,
            "singular",
            ha="center",
            va="top",
            fontsize="small",
            color="#7a5c3a",
            transform=axis.get_xaxis_transform(),
        )

    last = round(math.log10(top))
    step = max(1, math.ceil(last / 6))
    axis.xaxis.set_major_locator(FixedLocator([10.0**k for k in range(0, last + 1, step)]))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.set_minor_locator(FixedLocator([]))
