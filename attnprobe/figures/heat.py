"""Maps on one logarithmic colour scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .kit import Sheet, log_ticks

EMPTY = "#d9d9d9"  # what was not measured, or is not finite


@dataclass(frozen=True)
class Scale:
    """The colour scale of all maps of a figure.

    Attributes:
        low, high: its ends. label: of its bar. extend: as in matplotlib's ``colorbar``.
        cmap: the name of its colours. outside: ``under`` and ``over``, colours of what is beyond its ends; by default
            those of the ends.
    """

    low: float
    high: float
    label: str
    extend: str = "neither"
    cmap: str = "viridis"
    outside: Mapping[str, str] = field(default_factory=dict)

    @property
    def look(self) -> dict[str, Any]:
        """Colours and norm, for matplotlib's functions that draw arrays."""
        import matplotlib
        from matplotlib.colors import LogNorm

        colours = matplotlib.colormaps[self.cmap].with_extremes(bad=EMPTY, **self.outside)
        return {"cmap": colours, "norm": LogNorm(self.low, self.high)}


def heat_map(axis: Any, values: Any, layers: Sequence[int], heads: Sequence[int], **look: Any) -> None:
    """Draw values, (layers, heads), as square cells with a look of `Scale`; NaN is no cell."""
    axis.pcolormesh(np.ma.masked_invalid(values), edgecolors="white", **look)
    axis.set_xlim(0, len(heads))
    axis.set_ylim(len(layers), 0)
    axis.set_aspect("equal")
    for numbers, set_ticks in ((heads, axis.set_xticks), (layers, axis.set_yticks)):
        step = -(-len(numbers) // 8)  # at most about eight
        set_ticks([place + 0.5 for place in range(0, len(numbers), step)], [str(one) for one in numbers[::step]])
    axis.tick_params(length=0, pad=2, labelsize="small")
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)


def colour_bar(sheet: Sheet, panels: Sequence[Any], scale: Scale) -> None:
    """The colour scale of all panels, with round numbers."""
    from matplotlib.cm import ScalarMappable

    shrink = min(1.0, 3.2 / sheet.figure.get_size_inches()[1])
    place = {"ax": list(panels), "pad": 0.02, "shrink": shrink, "aspect": 24}
    bar = sheet.figure.colorbar(ScalarMappable(**scale.look), extend=scale.extend, **place)
    bar.set_label(scale.label)
    bar.outline.set_visible(False)
    log_ticks(bar.ax.yaxis)
