"""Figures of ``attnprobe budget``: the smallest d over layers and heads, a map for each method and ε."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.files import chunks
from ...figures.kit import EMPTY, Scale, heat_map
from ...figures.looks import formula
from ...figures.methods import where
from ...figures.panels import Panels, draw_figures
from ...tables.labels import file_tag
from ...tables.long import Row
from ...tables.numbers import method_label
from ...tables.table import gathered, grouped_by

ACROSS = 4  # ε of a figure
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
    figures: list[Panels] = []
    for group in grouped_by(rows, "source", "n", "target", "metric"):
        tags = "".join(file_tag(group[0][name]) for name in ("source", *several))
        epsilons = list(dict.fromkeys(row["epsilon"] for row in group))
        heads = len({row["head"] for row in group})
        across = min(ACROSS, drawing.sizes.across(0.5 + LEAST * max(heads, 5)))
        figures += [
            _figure(group, part, f"budget-n{group[0]['n']}{tags}", drawing) for part in chunks(epsilons, across)
        ]
    return draw_figures(figures, drawing, out_dir)


def _figure(rows: Sequence[Row], epsilons: Sequence[float], stem: str, drawing: Drawing) -> Panels:
    """A map for each method and some ε."""
    layers, heads = (sorted({row[name] for row in rows}) for name in ("layer", "head"))
    wide = (drawing.sizes.inches(len(epsilons)) - 0.9) / len(epsilons)
    cell = min(0.3, (wide - 0.3) / max(len(heads), 5))  # inches
    most = max(row["most"] or 0 for row in rows)
    budgets = [row["d"] for row in rows if row["d"] is not None]
    low, high = (min(budgets), max(budgets)) if budgets else (1, 2)
    ends = (low, high) if high > low else (low / 1.5, high * 1.5)
    hatched = any(row["d"] is None for row in rows)
    scale = Scale(*ends, "smallest d" + f"\n(hatched: none up to {most})" * hatched)

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        values = _marked(axis, panel, layers, heads)
        heat_map(axis, values, layers, heads, linewidth=0.4, zorder=1, **scale.look)
        if cell >= NUMBERED:
            _numbers(axis, values, ends, min(row["least"] or 1 for row in panel))

    return Panels(
        stem,
        "Smallest budget d that is enough, head by head: largest over windows",
        [
            f"The smallest budget d with {formula(rows[0]['metric'])} ≤ ε, of each layer and head: the largest over "
            "windows.",
            f"Hatched: no d up to {most} is enough in some window. Ring: the error exceeds ε again at a larger d.",
            f"Grey: not searched. {where(rows)}",
        ],
        [
            (f"{method_label(group[0])}\nε = {epsilon:g}", [row for row in group if row["epsilon"] == epsilon])
            for group in gathered(rows, method_label)
            for epsilon in epsilons
        ],
        draw,
        "head",
        "layer",
        width=min(1.5, wide),
        height=0.55 + cell * max(len(layers), 2),
        columns=len(epsilons),
        sharing={},
        scale=scale,
    )


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
