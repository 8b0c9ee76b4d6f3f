"""Figures of ``attnprobe budget``: the smallest d over layers and heads, a map for each method and ε."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn, tiles
from ...figures.heat import EMPTY, colour_bar, colours, heat_map
from ...figures.kit import Sheet, canvas
from ...figures.words import formula, sentence
from ...tables.labels import file_tag, source_heading
from ...tables.long import Row
from ...tables.numbers import method_label
from ...tables.table import grouped_by

ACROSS, DOWN = 4, 6  # of a figure: ε and methods
LEAST = 0.13  # inches of a cell
NUMBERED = 0.17  # inches of a cell that says its number


def budget_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw d over layers and heads: ``budget-nN`` for each (source, n, target, metric), a map per method and ε.

    A cell is the largest d over windows, on one logarithmic colour scale. Hatched cells do not reach ε in some window.
    Grey cells were not searched. A ring marks an error that exceeds ε again at a larger budget.

    Returns:
        The files' paths.
    """
    rows = [row for row in rows if row["head"] is not None]
    several = [name for name in ("target", "metric") if len({row[name] for row in rows}) > 1]
    paths: list[Path] = []
    for group in grouped_by(rows, "source", "n", "target", "metric"):
        first = group[0]
        stem = f"budget-n{first['n']}{file_tag(first['source'])}"
        stem += "".join(file_tag(first[name]) for name in several)
        methods, epsilons = (list(dict.fromkeys(map(of, group))) for of in (method_label, _epsilon))
        draw = lambda page, group=group: _figure(group, page[0], page[1], drawing)
        layers, heads = (len({row[name] for row in group}) for name in ("layer", "head"))
        down = min(DOWN, drawing.sizes.down(0.6 + LEAST * layers))
        across = min(ACROSS, drawing.sizes.across(0.5 + LEAST * max(heads, 5)))
        paths += drawn(tiles(methods, epsilons, down, across), draw, Path(out_dir) / stem, drawing)
    return paths


def _epsilon(row: Row) -> float:
    return row["epsilon"]


def _figure(rows: Sequence[Row], methods: Sequence[str], epsilons: Sequence[float], drawing: Drawing) -> Sheet:
    """A map for each of some methods and ε."""
    first = rows[0]
    layers, heads = (sorted({row[name] for row in rows}) for name in ("layer", "head"))
    wide = (drawing.sizes.inches(len(epsilons)) - 0.9) / len(epsilons)
    cell = min(0.3, (wide - 0.3) / max(len(heads), 5))  # inches
    high = 0.5 + cell * max(len(layers), 2)
    numbered = cell >= NUMBERED
    least, most = min(row["least"] or 1 for row in rows), max(row["most"] or 0 for row in rows)
    target = "" if first["target"] == "softmax" else f"target {first['target']}"
    where = ", ".join(filter(None, [source_heading(first), f"n = {first['n']}", target]))
    caption = [
        f"The smallest budget d with {formula(first['metric'])} ≤ ε, of each layer and head: the largest over windows.",
        f"Hatched: no d up to {most} is enough in some window. Ring: the error exceeds ε again at a larger d.",
        f"Grey: not searched. {sentence(where)}.",
    ]
    title = "Smallest budget d that is enough, head by head: largest over windows"
    sheet, panels = canvas(drawing, title, caption, high * len(methods) + 0.3, (len(methods), len(epsilons)))
    budgets = [row["d"] for row in rows if row["d"] is not None]
    low, high = (min(budgets), max(budgets)) if budgets else (1, 2)
    scale = (low, high) if high > low else (low / 1.5, high * 1.5)
    mesh, look = None, {**colours(scale), "linewidth": 0.4, "zorder": 1}
    for down, (method, axes) in enumerate(zip(methods, chunks(panels, len(epsilons)), strict=True)):
        for epsilon, axis in zip(epsilons, axes, strict=True):
            group = [row for row in rows if method_label(row) == method and row["epsilon"] == epsilon]
            values = _marked(axis, group, layers, heads)
            is_left = epsilon == epsilons[0]
            mesh = heat_map(axis, values, layers, heads, is_left, down == len(methods) - 1, **look)
            if numbered:
                _numbers(axis, values, scale, least)
            name = f"{method}\n" if is_left else ""
            axis.set_title(f"{name}ε = {epsilon:g}", fontsize="medium", parse_math=False)
    colour_bar(sheet, panels, mesh, scale, "smallest d")
    return sheet


def _marked(axis: Any, group: Sequence[Row], layers: Sequence[int], heads: Sequence[int]) -> Any:
    """The largest d over windows, (layers, heads), NaN where there is none; hatches and rings are drawn."""
    from matplotlib.patches import Rectangle

    ring = {"marker": "o", "markersize": 2.6, "markerfacecolor": "white", "markeredgecolor": "black"}
    values = np.full((len(layers), len(heads)), math.nan)
    for rows in grouped_by(group, "layer", "head"):
        y, x = layers.index(rows[0]["layer"]), heads.index(rows[0]["head"])
        d = [row["d"] for row in rows if row["d"] is not None]
        if len(d) < len(rows):
            look = {"facecolor": EMPTY, "edgecolor": "#8a8a8a", "hatch": "/////", "linewidth": 0}
            axis.add_patch(Rectangle((x + 0.02, y + 0.02), 0.96, 0.96, zorder=2, **look))
        else:
            values[y, x] = max(d)
        if any(row["fails_at"] for row in rows):
            axis.plot([x + 0.84], [y + 0.16], markeredgewidth=0.6, zorder=4, **ring)
    return values


def _numbers(axis: Any, values: Any, scale: tuple[float, float], least: int) -> None:
    """Each cell's number, in white on dark colours. Budgets below ``least`` were not tried."""
    middle = math.sqrt(scale[0] * scale[1])
    for (y, x), d in np.ndenumerate(values):
        if math.isfinite(d):
            colour = "white" if d < middle else "black"
            text = f"{'≤' if d == least > 1 else ''}{d:g}"
            axis.text(x + 0.5, y + 0.54, text, ha="center", va="center", fontsize=5.2, color=colour, zorder=3)
