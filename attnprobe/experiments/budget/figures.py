"""Figures of ``attnprobe budget``: the smallest d over layers and heads, a map for each method and ε."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...figures.heat import EMPTY, head_ticks, plain_ticks
from ...figures.kit import SYMBOLS, fixed_settings, saved, title_lines
from ...tables.labels import file_tag, source_heading
from ...tables.numbers import method_label
from .view import budget_rows

__all__ = ["budget_figures"]

Row = Mapping[str, Any]
Maps = dict[tuple[str, float], list[Row]]  # by method and ε

ACROSS, DOWN = 4, 6  # of a figure: ε and methods
PLAIN = {"$": "", r"\|": "‖", r"\tilde{B}": "B~", r"\;": " ", "_2": "₂", "_F": "F", "-": " − "}
NUMBERED = 16  # heads of a map whose cells say their number


def budget_figures(records: Sequence[Mapping[str, Any]], title: str, out_dir: str | Path) -> list[Path]:
    """Draw d over layers and heads: ``budget-nN`` for each (source, n, target, metric), a map per method and ε.

    A cell is the largest d over windows, on one logarithmic colour scale. Hatched: not reached in some window. Grey:
    not searched. A ring: the error exceeds ε again at a larger budget.

    Returns:
        The files' paths.
    """
    places: dict[tuple[Any, ...], Maps] = {}
    for row in budget_rows(records):
        if row["head"] is not None:
            place = (source_heading(row), row["source"], row["n"], row["target"], row["metric"])
            maps = places.setdefault(place, {})
            maps.setdefault((method_label(row), row["epsilon"]), []).append(row)
    several = {place: len({other[place] for other in places}) > 1 for place in (3, 4)}
    paths: list[Path] = []
    with fixed_settings():
        for key, maps in places.items():
            heading, source, n, target, metric = key
            stem = f"budget-n{n}{file_tag(source)}"
            stem += "".join(file_tag(key[place]) for place in several if several[place])
            told = ", ".join(filter(None, [heading, f"n = {n}", "" if target == "softmax" else f"target {target}"]))
            for number, (methods, epsilons) in enumerate(_pages(maps)):
                figure = _figure(maps, methods, epsilons, metric, title, told)
                paths += saved(figure, Path(out_dir) / f"{stem}{f'-{number + 1}' if number else ''}")
    return paths


def _pages(maps: Maps) -> list[tuple[list[str], list[float]]]:
    """Methods and ε of each figure."""
    methods, epsilons = (list(dict.fromkeys(key[place] for key in maps)) for place in (0, 1))
    return [
        (methods[i : i + DOWN], epsilons[j : j + ACROSS])
        for i in range(0, len(methods), DOWN)
        for j in range(0, len(epsilons), ACROSS)
    ]


def _figure(maps: Maps, methods: Sequence[str], epsilons: Sequence[float], metric: str, title: str, told: str) -> Any:
    import matplotlib
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    rows = [row for some in maps.values() for row in some]
    layers, heads = (sorted({row[name] for row in rows}) for name in ("layer", "head"))
    numbered = len(heads) <= NUMBERED
    cell = 0.3 if numbered else 0.15  # inches
    wide, high = 0.5 + cell * max(len(heads), 5), 0.6 + cell * max(len(layers), 2)
    inches = max(6.4, wide * len(epsilons) + 1.9)
    lines = title_lines(title, int(inches * 15.5))
    lines.append(f"{told}: the smallest d with {_symbol(metric)} ≤ ε, head by head")
    least, most = min(row["least"] for row in rows), max(row["most"] for row in rows)
    lines.append(f"hatched: no d up to {most} is enough; ring: the error exceeds ε again at a larger d")
    tall = high * len(methods) + 0.4 + 0.16 * len(lines)
    figure = Figure(figsize=(inches, tall), layout="constrained")
    panels = figure.subplots(len(methods), len(epsilons), squeeze=False)
    found = [row["d"] for row in rows if row["d"] is not None]
    low, high = (min(found), max(found)) if found else (1, 2)
    scale = (low, high) if high > low else (low / 1.5, high * 1.5)
    colours = matplotlib.colormaps["viridis"].with_extremes(bad=EMPTY)
    look = {"cmap": colours, "norm": LogNorm(*scale), "edgecolors": "white", "linewidth": 0.4}
    for down, method in enumerate(methods):
        for across, epsilon in enumerate(epsilons):
            axis = panels[down][across]
            values = _drawn(axis, maps.get((method, epsilon), ()), layers, heads)
            mesh = axis.pcolormesh(np.ma.masked_invalid(values), zorder=1, **look)
            if numbered:
                _numbers(axis, values, scale, least)
            axis.set_xlim(0, len(heads))
            axis.set_ylim(len(layers), 0)
            axis.set_aspect("equal")
            name = method if across == 0 else ""
            axis.set_title("  ".join(filter(None, [name, f"ε = {epsilon:g}"])), fontsize=8.5, parse_math=False)
            head_ticks(axis, layers, heads, across == 0, down == len(methods) - 1)
            for spine in axis.spines.values():
                spine.set_visible(False)
    bar = figure.colorbar(mesh, ax=panels.ravel().tolist(), pad=0.02, shrink=min(1.0, 3.2 / tall), aspect=24)
    bar.set_label("smallest d")
    bar.outline.set_visible(False)
    plain_ticks(bar.ax.yaxis, scale)
    figure.suptitle("\n".join(lines), x=0.012, ha="left", fontsize=8, parse_math=False)
    return figure


def _symbol(metric: str) -> str:
    """A metric in a line that is no formula."""
    text = SYMBOLS.get(metric, metric)
    for tex, plain in PLAIN.items():
        text = text.replace(tex, plain)
    return text


def _drawn(axis: Any, some: Sequence[Row], layers: Sequence[int], heads: Sequence[int]) -> Any:
    """The largest d over windows, (layers, heads), NaN where there is none; hatches and rings are drawn."""
    from matplotlib.patches import Rectangle

    cells: dict[tuple[int, int], list[Row]] = {}
    for row in some:
        cells.setdefault((layers.index(row["layer"]), heads.index(row["head"])), []).append(row)
    values = np.full((len(layers), len(heads)), math.nan)
    for (y, x), rows in cells.items():
        if any(row["d"] is None for row in rows):
            look = {"facecolor": EMPTY, "edgecolor": "#8a8a8a", "hatch": "/////", "linewidth": 0}
            axis.add_patch(Rectangle((x + 0.02, y + 0.02), 0.96, 0.96, zorder=2, **look))
        else:
            values[y, x] = max(row["d"] for row in rows)
        if any(row["again"] for row in rows):
            axis.plot(
                [x + 0.84],
                [y + 0.16],
                marker="o",
                markersize=2.6,
                markerfacecolor="white",
                markeredgecolor="black",
                markeredgewidth=0.6,
                zorder=4,
            )
    return values


def _numbers(axis: Any, values: Any, scale: tuple[float, float], least: int) -> None:
    """Each cell's number, in white where the colour is dark; below the least, nothing was tried."""
    middle = math.sqrt(scale[0] * scale[1])
    for (y, x), d in np.ndenumerate(values):
        if math.isfinite(d):
            colour = "white" if d < middle else "black"
            text = f"{'≤' if d == least > 1 else ''}{d:g}"
            axis.text(x + 0.5, y + 0.54, text, ha="center", va="center", fontsize=5.8, color=colour, zorder=3)
