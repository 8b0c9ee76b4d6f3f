"""Figures of ``attnprobe budget``: the smallest d over layers and heads, a map for each method and ε."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...figures.heat import EMPTY, colour_bar, colours, heat_map
from ...figures.kit import SYMBOLS, canvas, chunks, drawn, tiles
from ...tables.labels import file_tag, source_heading
from ...tables.numbers import method_label
from ...tables.table import grouped_by
from .rows import HeadRow, budget_rows, is_found

if TYPE_CHECKING:
    from .record import BudgetRecord

__all__ = ["budget_figures"]

ACROSS, DOWN = 4, 6  # of a figure: ε and methods
PLAIN = {"$": "", r"\|": "‖", r"\tilde{B}": "B~", r"\;": " ", "_2": "₂", "_F": "F", "-": " − "}
NUMBERED = 16  # heads of a map whose cells say their number


def budget_figures(records: Sequence[BudgetRecord], title: str, out_dir: str | Path) -> list[Path]:
    """Draw d over layers and heads: ``budget-nN`` for each (source, n, target, metric), a map per method and ε.

    A cell is the largest d over windows, on one logarithmic colour scale. Hatched: not reached in some window. Grey:
    not searched. A ring: the error exceeds ε again at a larger budget.

    Returns:
        The files' paths.
    """
    rows = list(filter(is_found, budget_rows(records)))
    several = [name for name in ("target", "metric") if len({row[name] for row in rows}) > 1]
    paths: list[Path] = []
    for some in grouped_by(rows, "source", "n", "target", "metric"):
        first = some[0]
        stem = f"budget-n{first['n']}{file_tag(first['source'])}"
        stem += "".join(file_tag(first[name]) for name in several)
        methods, epsilons = (list(dict.fromkeys(map(of, some))) for of in (method_label, _epsilon))
        draw = lambda page, some=some: _figure(some, page[0], page[1], title)
        paths += drawn(tiles(methods, epsilons, DOWN, ACROSS), draw, Path(out_dir) / stem)
    return paths


def _epsilon(row: HeadRow) -> float:
    return row["epsilon"]


def _figure(rows: Sequence[HeadRow], methods: Sequence[str], epsilons: Sequence[float], title: str) -> Any:
    """A map for each of some methods and ε."""
    first = rows[0]
    layers, heads = (sorted({row[name] for row in rows}) for name in ("layer", "head"))
    numbered = len(heads) <= NUMBERED
    cell = 0.3 if numbered else 0.15  # inches
    wide, high = 0.5 + cell * max(len(heads), 5), 0.6 + cell * max(len(layers), 2)
    least, most = min(row["least"] or 1 for row in rows), max(row["most"] or 0 for row in rows)
    target = "" if first["target"] == "softmax" else f"target {first['target']}"
    where = ", ".join(filter(None, [source_heading(first), f"n = {first['n']}", target]))
    told = [
        f"{where}: the smallest d with {_symbol(first['metric'])} ≤ ε, head by head",
        f"hatched: no d up to {most} is enough; ring: the error exceeds ε again at a larger d",
    ]
    inches, tall = max(6.4, wide * len(epsilons) + 1.9), high * len(methods) + 0.4
    figure, panels = canvas(title, told, inches, tall, (len(methods), len(epsilons)))
    found = [row["d"] for row in rows if row["d"] is not None]
    low, high = (min(found), max(found)) if found else (1, 2)
    scale = (low, high) if high > low else (low / 1.5, high * 1.5)
    mesh, look = None, {**colours(scale), "linewidth": 0.4, "zorder": 1}
    for down, (method, axes) in enumerate(zip(methods, chunks(panels, len(epsilons)), strict=True)):
        for epsilon, axis in zip(epsilons, axes, strict=True):
            some = [row for row in rows if method_label(row) == method and row["epsilon"] == epsilon]
            values = _marked(axis, some, layers, heads)
            is_left = epsilon == epsilons[0]
            mesh = heat_map(axis, values, layers, heads, is_left, down == len(methods) - 1, **look)
            if numbered:
                _numbers(axis, values, scale, least)
            name = f"{method}  " if is_left else ""
            axis.set_title(f"{name}ε = {epsilon:g}", fontsize=8.5, parse_math=False)
    colour_bar(figure, panels, mesh, scale, "smallest d")
    return figure


def _symbol(metric: str) -> str:
    """A metric in a line that is no formula."""
    text = SYMBOLS.get(metric, metric)
    for tex, plain in PLAIN.items():
        text = text.replace(tex, plain)
    return text


def _marked(axis: Any, some: Sequence[HeadRow], layers: Sequence[int], heads: Sequence[int]) -> Any:
    """The largest d over windows, (layers, heads), NaN where there is none; hatches and rings are drawn."""
    from matplotlib.patches import Rectangle

    ring = {"marker": "o", "markersize": 2.6, "markerfacecolor": "white", "markeredgecolor": "black"}
    values = np.full((len(layers), len(heads)), math.nan)
    for rows in grouped_by(some, "layer", "head"):
        y, x = layers.index(rows[0]["layer"]), heads.index(rows[0]["head"])
        d = [row["d"] for row in rows if row["d"] is not None]
        if len(d) < len(rows):
            look = {"facecolor": EMPTY, "edgecolor": "#8a8a8a", "hatch": "/////", "linewidth": 0}
            axis.add_patch(Rectangle((x + 0.02, y + 0.02), 0.96, 0.96, zorder=2, **look))
        else:
            values[y, x] = max(d)
        if any(row["again"] for row in rows):
            axis.plot([x + 0.84], [y + 0.16], markeredgewidth=0.6, zorder=4, **ring)
    return values


def _numbers(axis: Any, values: Any, scale: tuple[float, float], least: int) -> None:
    """Each cell's number, in white where the colour is dark; below the least, nothing was tried."""
    middle = math.sqrt(scale[0] * scale[1])
    for (y, x), d in np.ndenumerate(values):
        if math.isfinite(d):
            colour = "white" if d < middle else "black"
            text = f"{'≤' if d == least > 1 else ''}{d:g}"
            axis.text(x + 0.5, y + 0.54, text, ha="center", va="center", fontsize=5.8, color=colour, zorder=3)
