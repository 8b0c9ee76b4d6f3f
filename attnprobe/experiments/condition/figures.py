"""Figures of ``attnprobe condition``: conditions per matrix and layer, against errors, and residuals per step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...figures.kit import drawn, escaped, grid, legend, legend_below
from ...figures.methods import COLOURS, GREY, MARKERS
from ...tables.labels import file_tag, source_heading
from ...tables.numbers import method_label
from ...tables.statistics import rank_correlation
from ...tables.table import grouped_by
from .rows import ConditionRow, MeasuredRow, is_measured
from .summary import ConditionSummary, Iterated, is_iterated

__all__ = ["condition_figures"]

EXACT = ("A", "B", "C")
NAMES = {
    "A_S": r"$A_S$",
    "SAS": r"$S^\top\bar{A}S$",
    "SCS": r"$S^\top\bar{C}S$",
    "SCS+ridge": r"$S^\top\bar{C}S+\gamma I$",
    "N0": r"$N$ at $\gamma=0$",
    "N": r"$N$ (with $\gamma$)",
}
LOOKS = {  # colour and marker: scaled cores share theirs with and without a ridge, filled with one
    "A": (GREY, "o"),
    "B": (GREY, "o"),
    "C": (GREY, "o"),
    "A_S": (COLOURS[3], "D"),
    "SAS": (COLOURS[1], "s"),
    "SCS": (COLOURS[0], "o"),
    "SCS+ridge": (COLOURS[0], "o"),
    "N0": (COLOURS[2], "^"),
    "N": (COLOURS[2], "^"),
}
ORDER = ("A", "B", "C", "A_S", "SAS", "SCS", "SCS+ridge", "N0", "N")
BAND = (1.05, 1.12, 1.17, 1.30)  # of the axis's logarithm: edge, dots, counts and end of the band of singular matrices
SIX = 6  # steps that Nyströmformer and Skyformer take


def condition_figures(
    rows: Sequence[ConditionRow], summary: Sequence[ConditionSummary], title: str, out_dir: str | Path
) -> list[Path]:
    """Draw what was measured; a figure for each (source, n, d), with a panel for each layer.

    ``condition-nN-dD``: one dot per head and window on a logarithmic axis, a bar at the median, singular ones in a band
    of their own; cores with Lemma 3's scaling are green. ``condition-error-nN-dD``: condition of each inverted core
    against the method's error. ``condition-iterations-nN-dD``: residual of the Schulz iteration per step, median and
    p10 – p90 over heads, with a mark at six.

    Returns:
        The files' paths.
    """
    paths: list[Path] = []
    for some in grouped_by(rows, "source", "n"):
        source, n = some[0]["source"], some[0]["n"]
        mine = [row for row in some if row["matrix"] is not None]
        for d in list(dict.fromkeys(row["d"] for row in mine if row["d"] is not None)) or [None]:
            measured = [row for row in filter(is_measured, mine) if row["d"] in (None, d)]
            at = [row for row in summary if (row["source"], row["n"]) == (source, n) and row["d"] in (None, d)]
            budget = ("", "") if d is None else (f"-d{d}", f", d = {d}")
            tag = f"n{n}{budget[0]}{file_tag(source)}"
            lead = ", ".join([*filter(None, dict.fromkeys(map(source_heading, at))), f"n = {n}{budget[1]}"])
            drawings = (
                ("condition", _conditions, measured),
                ("condition-error", _errors, [row for row in measured if row["inverted"] and row["error"] is not None]),
                ("condition-iterations", _iterations, list(filter(is_iterated, at))),
            )
            for name, draw, shown in drawings:
                page = lambda shown, draw=draw, lead=lead: draw(shown, title, lead)
                paths += drawn([shown] if shown else [], page, Path(out_dir) / f"{name}-{tag}")
    return paths


def _label(row: MeasuredRow | Iterated, several: bool) -> str:
    name = NAMES.get(row["matrix"]) or row["matrix"].replace("$", r"\$").replace("_", r"\_")
    return f"{name}  {escaped(method_label(row))}" if row["method"] and several else name


def _conditions(rows: Sequence[MeasuredRow], title: str, lead: str) -> Any:
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
    told = f"{lead}: condition number per head, bar: median. Full: inverted by the method; empty: beside it"
    told += "; x: singular, its condition on its range" if any_flag else ""
    figure, panels = grid([f"layer {layer}" for layer in layers], 2.9, 0.3 * len(order) + 1.1, title, told)
    for index, (axis, layer) in enumerate(zip(panels, layers, strict=True)):
        for line, key in enumerate(order):
            some = [row for row in rows if row["layer"] == layer and _key(row) == key]
            _strip(axis, line, some, top)
        _axis(axis, top, any_flag)
        axis.set_yticks(range(len(order)), [labels[key] for key in order])
        axis.set_ylim(len(order) - 0.45, -1.15)
        axis.tick_params(axis="y", length=0)
        axis.tick_params(labelbottom=True)
        exact = sum(key[0] in EXACT for key in order)
        if 0 < exact < len(order):
            axis.axhline(exact - 0.5, color="#bbbbbb", linewidth=0.8)
        if index + 3 >= len(layers):
            axis.set_xlabel(r"$\sigma_1/\sigma_m$")
    return figure


def _strip(axis: Any, line: int, some: Sequence[MeasuredRow], top: float) -> None:
    """One matrix on one layer: its heads as dots, side by side in a fixed order, and their median."""
    if not some:
        return
    colour, marker = LOOKS.get(some[0]["matrix"], (COLOURS[4], "v"))
    filled = some[0].get("inverted") or some[0]["matrix"] in EXACT
    place = lambda index: line + 0.42 * ((index * 0.61803) % 1 - 0.5)
    x = [top ** BAND[1] if row["cond"] is None else max(row["cond"], 1.0) for row in some]
    y = [place(index) for index in range(len(some))]
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
    ordered = sorted(math.inf if row["cond"] is None else row["cond"] for row in some)
    middle = [ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]]
    if math.isfinite(middle[1]):
        axis.plot([sum(middle) / 2] * 2, [line - 0.36, line + 0.36], color=colour, linewidth=2.4, solid_capstyle="butt")
    ranges = [(row["cond_eff"], height) for row, height in zip(some, y, strict=True) if row["cond"] is None]
    drawn = [(value, height) for value, height in ranges if value]
    if drawn:
        axis.plot(*zip(*drawn, strict=True), linestyle="", marker="x", markersize=4, color=colour, alpha=0.55)
    flagged = len(ranges)
    if flagged:
        axis.text(top ** BAND[2], line, f"{flagged}/{len(some)}", fontsize=6.5, va="center", ha="left", color="#7a5c3a")


def _errors(rows: Sequence[MeasuredRow], title: str, lead: str) -> Any:
    """Condition of each inverted core against the method's error, a dot per head."""
    from matplotlib.lines import Line2D

    layers = list(dict.fromkeys(row["layer"] for row in rows))
    keys = list(dict.fromkeys(_key(row) for row in rows))
    told = f"{lead}: condition number against error, one dot per head; ρ: their rank correlation over heads"
    figure, panels = grid([f"layer {layer}" for layer in layers], 2.9, 2.5, title, told)
    values = [row["cond"] for row in rows if row["cond"] is not None] or [1.0]
    top = 10 ** math.ceil(math.log10(max(max(values), 10.0)))
    any_flag = any(row["cond"] is None for row in rows)
    for index, (axis, layer) in enumerate(zip(panels, layers, strict=True)):
        handles = {}
        for number, key in enumerate(keys):
            some = [row for row in rows if row["layer"] == layer and _key(row) == key]
            if not some:
                continue
            look = {
                "color": COLOURS[number % len(COLOURS)],
                "marker": MARKERS[number % len(MARKERS)],
                "linestyle": "",
                "markersize": 5,
                "alpha": 0.8,
            }
            axis.plot([row["cond"] or top ** BAND[1] for row in some], [row["error"] for row in some], **look)
            rho = rank_correlation([row["cond"] or math.inf for row in some], [row["error"] or 0.0 for row in some])
            word = "–" if rho is None else f"{rho:+.2f}"
            handles[f"{_label(some[0], True)}, ρ = {word}"] = Line2D([], [], **look)
        axis.set_yscale("log")
        _axis(axis, top, any_flag)
        axis.tick_params(labelbottom=True)
        axis.set_xlabel(r"$\sigma_1/\sigma_m$ of the core")
        if index % 3 == 0:
            axis.set_ylabel(r"error $\|E\|_2/\|BV\|_2$")
        axis.margins(y=0.14)
        legend_below(axis, handles, 0.24)
    return figure


def _iterations(rows: Sequence[Iterated], title: str, lead: str) -> Any:
    """Residual per step: a line for each core, a panel for each layer, and each method where several share cores."""
    from matplotlib.ticker import MaxNLocator

    layers = list(dict.fromkeys(row["layer"] for row in rows))
    keys = list(dict.fromkeys(_key(row) for row in rows))
    several = len({key[0] for key in keys}) < len(keys)
    methods = list(dict.fromkeys(key[1] for key in keys)) if several else [None]
    places = [(layer, method) for method in methods for layer in layers]
    told = f"{lead}: residual of the Schulz iteration on each core, median and p10 – p90 over heads"
    names = [f"layer {layer}" + (f", {method}" if method else "") for layer, method in places]
    columns = min(3, len(layers))
    figure, panels = grid(names, 2.9, 2.5, title, told, columns)
    low, handles = 1e-16, {}
    for index, (axis, (layer, method)) in enumerate(zip(panels, places, strict=True)):
        here = [row for row in rows if row["layer"] == layer and method in (None, _key(row)[1])]
        for number, row in enumerate(here):
            colour, marker = LOOKS.get(row["matrix"], (COLOURS[4], "v"))
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
                markevery=(number * every // len(here), every),
                markerfacecolor="white" if dashed else colour,
            )
            handles.setdefault(_label(row, row["matrix"] == "A_S" and not several), line)
        axis.set_yscale("log")
        axis.set_ylim(low / 3, 30)
        axis.set_xlim(0, len(rows[0]["residuals"]["median"]) - 1)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.axvline(SIX, color=GREY, linewidth=1.0, linestyle=":")
        axis.text(SIX, math.sqrt(low), "six steps", fontsize=7.5, color=GREY, ha="right", va="center", rotation=90)
        axis.tick_params(labelbottom=True)
        if index + columns >= len(places):
            axis.set_xlabel("step t")
        if index % columns == 0:
            axis.set_ylabel(r"$\|I-MZ_t\|_F\,/\,\sqrt{d}$")
    beside = 3 if columns > 1 or len(handles) < 4 else 2
    legend(figure, handles, beside)
    return figure


def _key(row: MeasuredRow | Iterated) -> tuple[str, str]:
    return row["matrix"], method_label(row)


def _drawn(value: float | None, low: float) -> float:
    return 1e6 if value is None or not math.isfinite(value) else min(max(value, low), 1e6)


def _axis(axis: Any, top: float, any_flag: bool) -> None:
    """Conditions from 1 to ``top``, a power of ten, at most seven powers named; beyond it a band for singular ones."""
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
            fontsize=7.5,
            color="#7a5c3a",
            transform=axis.get_xaxis_transform(),
        )

    last = round(math.log10(top))
    step = max(1, math.ceil(last / 6))
    axis.xaxis.set_major_locator(FixedLocator([10.0**k for k in range(0, last + 1, step)]))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.set_minor_locator(FixedLocator([]))
