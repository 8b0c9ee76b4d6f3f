"""Figures of ``attnprobe budget``: the smallest d over layers and heads, a map for each method and ε."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.files import chunks
from ...figures.kit import CELL, EMPTY, Scale, cell_text, heat_map
from ...figures.looks import formula, symbol
from ...figures.methods import facts, where
from ...figures.panels import Panels, balanced, draw_figures
from ...tables.labels import file_tag
from ...tables.long import Row
from ...tables.numbers import method_label
from ...tables.table import gathered, grouped_by

ACROSS = 4  # ε of a figure
MOST_BELOW = 2  # maps below each other in a column of a paper
LEAST = 0.13  # inches of a cell
NUMBERED = 0.14  # inches of a cell that says its number
NAMES = 0.9  # inches of the names of methods
BAR = 0.7  # inches of the colour scale
SPARE = 0.05  # inches between maps
AROUND = 0.8  # inches of the title and the legend of a page of fixed size
WORDS = 0.6  # inches of what a map has there beside cells
TALLEST = 1.8  # of a cell there, over its width
HATCHED = {"facecolor": EMPTY, "edgecolor": "#8a8a8a", "hatch": "/////", "linewidth": 0}
RING = {
    "marker": "o",
    "markersize": 2.6,
    "markeredgewidth": 0.6,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
}


def budget_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw d over layers and heads: ``budget-nN`` for each (source, n, target, metric), a map per method and ε.

    Methods on one layer are the rows of one map per ε. A cell is the largest d over windows, on one logarithmic colour
    scale. Hatched cells do not reach ε in some window. Grey cells were not searched. A ring marks an error that exceeds
    ε again at a larger budget.

    Returns:
        The files' paths.
    """
    rows = [row for row in rows if row["head"] is not None]
    several = [name for name in ("target", "metric") if len({row[name] for row in rows}) > 1]
    figures: list[Panels] = []
    for group in grouped_by(rows, "source", "n", "target", "metric"):
        tags = "".join(file_tag(group[0][name]) for name in ("source", *several))
        epsilons = list(dict.fromkeys(row["epsilon"] for row in group))
        across = min(ACROSS, _across(group, drawing))
        figures += [
            _figure(group, part, f"budget-n{group[0]['n']}{tags}", drawing) for part in chunks(epsilons, across)
        ]
    return draw_figures(figures, drawing, out_dir)


def _across(rows: Sequence[Row], drawing: Drawing) -> int:
    """How many maps stand side by side, at most."""
    heads = len({row["head"] for row in rows})
    return drawing.sizes.across(0.5 + LEAST * max(heads, 5))


def _figure(rows: Sequence[Row], epsilons: Sequence[float], stem: str, drawing: Drawing) -> Panels:
    """A map for each method and some ε, or one of all methods for each ε if there is one layer."""
    layers, heads = (sorted({row[name] for row in rows}) for name in ("layer", "head"))
    methods = list(dict.fromkeys(map(method_label, rows)))
    lines, names = (layers, 0.3) if len(layers) > 1 else (methods, NAMES)
    maps = [methods] if len(layers) == 1 else [[method] for method in methods]
    columns = len(epsilons)
    if len(maps) > MOST_BELOW and columns == 1:
        columns = balanced(len(maps), _across(rows, drawing))
    wide = (drawing.sizes.inches(columns, names + NUMBERED * len(heads)) - BAR - names) / columns
    least, fixed = max(len(heads), 5), drawing.sizes.fixed
    most_wide = (0.5 if fixed else CELL), drawing.sizes.tall / 1.5 / len(lines)
    cell = min(*most_wide, (wide + BAR / columns - SPARE) / least)  # inches
    if cell < NUMBERED:  # a colour scale stands for numbers
        cell = min(*most_wide, wide / least)
    most = max(row["most"] or 0 for row in rows)
    budgets = [row["d"] for row in rows if row["d"] is not None]
    low, high = (min(budgets), max(budgets)) if budgets else (1, 2)
    ends = (low, high) if high > low else (low / 1.5, high * 1.5)
    scale = Scale(*ends, "smallest d")
    shown = "number" if cell >= NUMBERED else "colour"
    keys = _keys(rows, most, f"{shown}: smallest d with {symbol(rows[0]['metric'])} ≤ ε")

    def draw(axis: Any, panel: Sequence[Row]) -> dict[str, Any]:
        values = np.full((len(lines), len(heads)), math.nan)
        for group in gathered(panel, lambda row: (method_label(row), row["layer"], row["head"])):
            line = group[0]["layer"] if len(layers) > 1 else method_label(group[0])
            place = lines.index(line), heads.index(group[0]["head"])
            values[place] = _marked(axis, group, place)
            if cell >= NUMBERED and math.isfinite(values[place]):
                least = min(row["least"] or 1 for row in group)  # smaller budgets were not tried
                text = f"{'≤' if values[place] == least > 1 else ''}{values[place]:g}"
                cell_text(axis, place, text, cell, values[place] < math.sqrt(ends[0] * ends[1]))
        heat_map(axis, values, lines, heads, linewidth=0.4, zorder=1, **scale.look)
        if fixed:  # cells fill the page
            rows_of_maps = axis.get_subplotspec().get_gridspec().nrows
            room = (drawing.sizes.tall - AROUND) / rows_of_maps - WORDS
            axis.set_aspect(min(TALLEST, max(1.0, room / len(lines) / cell)))
        return keys

    return Panels(
        stem,
        "Smallest budget d that is enough, head by head: largest over windows",
        [
            f"The smallest budget d with {formula(rows[0]['metric'])} ≤ ε, of each layer and head: the largest over "
            f"windows. ε = {', '.join(f'{epsilon:g}' for epsilon in epsilons)}.",
            *["Colours follow the numbers, from dark to light."] * bool(budgets and cell >= NUMBERED),
            f"Hatched: no d up to {most} is enough in some window. Ring: the error exceeds ε again at a larger d.",
            f"Grey: not searched. {where(rows)}",
        ],
        [
            (
                "\n".join([*(some if len(layers) > 1 else []), f"ε = {epsilon:g}", facts(rows)]),
                [row for row in rows if row["epsilon"] == epsilon and method_label(row) in some],
            )
            for some in maps
            for epsilon in epsilons
        ],
        draw,
        "head",
        "layer" if len(layers) > 1 else "",
        width=names / columns + cell * len(heads),
        height=0.55 + cell * max(len(lines), 2),
        columns=columns,
        sharing={"sharey": True},
        scale=scale if budgets and cell < NUMBERED else None,
    )


def _keys(rows: Sequence[Row], most: int, cells: str) -> dict[str, Any]:
    """The legend of cells, of those that are hatched, and of rings."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys: dict[str, Any] = {cells: Line2D([], [], linestyle="")}
    if any(row["d"] is None for row in rows):
        keys[f"no d up to {most}"] = Patch(**HATCHED)
    if any(row["fails_at"] for row in rows):
        keys["error above ε again at a larger d"] = Line2D([], [], linestyle="", **RING)
    return keys


def _marked(axis: Any, cell: Sequence[Row], place: tuple[int, int]) -> float:
    """The largest d over the windows of a cell, NaN where there is none; hatches and rings are drawn."""
    from matplotlib.patches import Rectangle

    y, x = place
    d = [row["d"] for row in cell if row["d"] is not None]
    reached = len(d) == len(cell)
    if not reached:
        axis.add_patch(Rectangle((x + 0.02, y + 0.02), 0.96, 0.96, zorder=2, **HATCHED))
    if any(row["fails_at"] for row in cell):
        axis.plot([x + 0.84], [y + 0.16], zorder=4, **RING)
    return max(d) if reached else math.nan
