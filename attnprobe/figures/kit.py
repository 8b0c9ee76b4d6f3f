"""The parts of every figure: a canvas under its title, legends and axes."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..grammar.foreign import printable
from .drawing import Drawing

LEADING = 1.35  # of lines, over the size of their type
LEGEND_LINE = 0.161  # inches of a line of a legend
DENSE = {"x": 60.0, "y": 300.0}  # axes whose ends are less apart have ticks between the powers of ten
PLAIN = 5e-5, 3e4  # axes within have numbers without powers of ten
BELOW_LABEL = 3.8  # sizes of type from an axis to its legend: numbers and a label are between


@dataclass(frozen=True)
class Sheet:
    """A figure, its title, and its caption: sentences that say what is drawn and which statistic."""

    figure: Any
    title: str
    caption: Sequence[str] = ()


# --- canvas and title


def letters(inches: float, size: float) -> int:
    """The number of letters of this type size, in points, on a line."""
    return max(8, int(inches * 134 / size))


def title_lines(title: str, inches: float, size: float) -> list[str]:
    """A title as lines that are no wider than the figure."""
    return textwrap.wrap(printable(title), letters(inches, size))


def title_inches(lines: Sequence[str], size: float) -> float:
    """The height of a title's lines."""
    return len(lines) * size * LEADING / 72


def canvas(
    drawing: Drawing,
    title: str,
    caption: Sequence[str],
    size: tuple[float, float],
    shape: tuple[int, int],
    panels: int | None = None,
    **sharing: Any,
) -> tuple[Sheet, list[Any]]:
    """A figure with its title, and its panels row by row.

    Args:
        title: what is drawn, and which statistic. caption: sentences that say the rest.
        size: width and height in inches without the title; a style may fix the height.
        shape: rows and columns of panels. panels: how many are used, the others are hidden; all by default.
        sharing: of matplotlib's ``subplots``.
    """
    from matplotlib.figure import Figure

    style = drawing.sizes
    inches, tall = size
    lines = title_lines(title, inches, style.size)
    lines = lines if drawing.titled else []
    height = style.tall if style.fixed else tall + title_inches(lines, style.size)
    figure = Figure(figsize=(inches, height), layout="constrained")
    axes = list(figure.subplots(*shape, squeeze=False, **sharing).flat)
    used = len(axes) if panels is None else panels
    for axis in axes[used:]:
        axis.set_visible(False)
    if lines:
        figure.suptitle("\n".join(lines), x=0.04 / inches, ha="left", fontsize=style.size, parse_math=False)
    return Sheet(figure, title, caption), axes[:used]


# --- legends


def legend(sheet: Sheet, handles: Mapping[str, Any], columns: int, **look: Any) -> None:
    """The legend below all panels; none without entries."""
    if handles:
        place = {"loc": "outside lower center", "frameon": False}
        sheet.figure.legend(handles.values(), handles.keys(), ncols=columns, **place, **look)


def legend_below(axis: Any, handles: Mapping[str, Any], **look: Any) -> None:
    """A panel's own legend, below the label of its horizontal axis whatever the panel's height."""
    from matplotlib.transforms import ScaledTranslation

    points = BELOW_LABEL * axis.xaxis.label.get_size()
    below = axis.transAxes + ScaledTranslation(0, -points / 72, axis.figure.dpi_scale_trans)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below, "borderaxespad": 0}
    axis.legend(handles.values(), handles.keys(), **place, frameon=False, fontsize="small", **look)


def legend_columns(labels: Sequence[str], inches: float, size: float = 8) -> int:
    """The number of legend entries in a row."""
    longest = max((len(plain_math(label)) for label in labels), default=1)
    return max(1, min(len(labels), int(inches / (0.45 + 0.0075 * (size - 1) * longest))))


def legend_inches(labels: Sequence[str], inches: float, size: float = 8) -> float:
    """The height of a legend below the panels."""
    return math.ceil(len(labels) / legend_columns(labels, inches, size)) * 1.45 * size / 72 if labels else 0.0


def plain_math(label: str) -> str:
    """A label without the commands of mathematics, about as long as it is drawn."""
    return re.sub(r"\\[a-z]+|[${}\\]", "", label)


# --- axes


def logarithmic(panel: Any, names: str = "xy") -> None:
    """Make axes of a panel logarithmic (see `log_ticks`); ``names`` are of the letters x and y."""
    for name in names:
        getattr(panel, f"set_{name}scale")("log", nonpositive="clip")
        log_ticks(getattr(panel, f"{name}axis"))


def log_ticks(axis: Any) -> None:
    """Ticks of a logarithmic axis at powers of ten, and at 2 and 5 times them where few powers are in its range."""
    from matplotlib.ticker import Formatter, LogLocator, NullLocator

    class Ticks(LogLocator):
        def tick_values(self, vmin: float, vmax: float) -> Any:
            self.set_params(subs=(1.0, 2.0, 5.0) if vmax < DENSE[axis.axis_name] * vmin else (1.0,))
            return super().tick_values(vmin, vmax)

    class Numbers(Formatter):
        def __call__(self, value: float, _: Any = None) -> str:
            low, high = sorted(axis.get_view_interval())
            return f"{value:g}" if PLAIN[0] <= low and high <= PLAIN[1] else power_of_ten(value)

    axis.set_major_locator(Ticks())
    axis.set_major_formatter(Numbers())
    axis.set_minor_locator(NullLocator())  # making minor ticks takes as long as the rest of a layout


def power_of_ten(value: float) -> str:
    r"""A round number with a power of ten.

    >>> print(power_of_ten(1e6), power_of_ten(2e-7))
    $10^{6}$ $2\cdot10^{-7}$
    """
    digit, _, power = f"{value:.0e}".partition("e")
    factor = "" if digit == "1" else rf"{digit}\cdot"
    return f"${factor}10^{{{int(power)}}}$"


def powers_of_two(axis: Any, values: Sequence[int], labels: Sequence[str] | None = None) -> None:
    """A horizontal axis with equal steps for doublings, and ticks only at the values."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(values))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(values, labels or [str(value) for value in values])
