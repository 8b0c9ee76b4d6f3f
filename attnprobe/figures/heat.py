"""Maps of layers x heads on one logarithmic colour scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .kit import Sheet, plain_ticks

EMPTY = "#d9d9d9"  # what was not measured, or is not finite
DENSE = 300  # a scale whose ends are less apart has numbers between the powers of ten too


def colours(scale: tuple[float, float]) -> dict[str, Any]:
    """The colours of the maps of one figure."""
    import matplotlib
    from matplotlib.colors import LogNorm

    return {"cmap": matplotlib.colormaps["viridis"].with_extremes(bad=EMPTY), "norm": LogNorm(*scale)}


def heat_map(
    axis: Any, values: Any, layers: Sequence[int], heads: Sequence[int], left: bool, lowest: bool, **look: Any
) -> Any:
    """Draw values, (layers, heads), as square cells; NaN is no cell. Returns the mesh.

    Args:
        left, lowest: whether the panel names its layers, and its heads. look: of `colours`, and of the cells.
    """
    mesh = axis.pcolormesh(np.ma.masked_invalid(values), edgecolors="white", **look)
    axis.set_xlim(0, len(heads))
    axis.set_ylim(len(layers), 0)
    axis.set_aspect("equal")
    for numbers, set_ticks in ((heads, axis.set_xticks), (layers, axis.set_yticks)):
        step = -(-len(numbers) // 8)  # at most about eight
        set_ticks([place + 0.5 for place in range(0, len(numbers), step)], [str(one) for one in numbers[::step]])
    axis.tick_params(length=0, pad=2, labelsize="small")
    axis.set_ylabel("layer" if left else "", fontsize="medium")
    axis.set_xlabel("head" if lowest else "", fontsize="medium")
    for spine in axis.spines.values():
        spine.set_visible(False)
    return mesh


def colour_bar(
    sheet: Sheet, panels: Sequence[Any], mesh: Any, scale: tuple[float, float], label: str, **look: Any
) -> None:
    """The colour scale of all panels, with round numbers."""
    shrink = min(1.0, 3.2 / sheet.figure.get_size_inches()[1])
    bar = sheet.figure.colorbar(mesh, ax=list(panels), pad=0.02, shrink=shrink, aspect=24, **look)
    bar.set_label(label)
    bar.outline.set_visible(False)
    plain_ticks(bar.ax.yaxis, scale, DENSE)
