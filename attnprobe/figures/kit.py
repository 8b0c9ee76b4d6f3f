"""The parts of figures: a canvas under its title, legends, axes, and maps on one logarithmic colour scale."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..grammar.foreign import printable
from .background import is_map
from .drawing import Drawing
from .looks import CURVE, POINT

LEADING = 1.35  # of lines, over the size of their type
LETTERS = 134  # letters of one point on an inch of a line
LEGEND_LINE = 0.161  # inches of a line of a legend
DENSE = {"x": 200.0, "y": 300.0}  # axes whose ends are less apart have ticks between the powers of ten
LONG = {"x": 200.0, "y": 3000.0}  # those have one of them where their ends are less apart
SHORT = 8.0  # axes whose ends are less apart have more of them
PLAIN = 5e-5, 3e4  # axes within have numbers without powers of ten
CLEAR = {"x": 0.12, "y": 0.06}  # of an axis, from a named edge to the next number
BELOW_LABEL = 3.8  # sizes of type from an axis to its legend: numbers and a label are between


@dataclass(frozen=True)
class Sheet:
    """A figure, its title, and its caption: sentences that say what is drawn and which statistic.

    Attributes:
        finish: draws the rest, when the layout is final.
    """

    figure: Any
    title: str
    caption: Sequence[str] = ()
    finish: Sequence[Callable[[], None]] = ()


# --- canvas and title


def letters(inches: float, size: float) -> int:
    """The number of letters of this type size, in points, on a line."""
    return max(8, int(inches * LETTERS / size))


def word_inches(word: str, size: float) -> float:
    """The width of a word of this type size, in points: `letters` has room for it."""
    return (len(word) + 0.1) * size / LETTERS


def type_size(setting: Any) -> float:
    """The type size, in points, of a setting of matplotlib, which may be a word."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties

    return FontProperties(size=rcParams[setting]).get_size_in_points()


def title_lines(title: str, inches: float, size: float, joints: str = ":") -> list[str]:
    """A title as lines that are no wider than the figure, broken after joints and before brackets if that
    suffices.

    No line ends before or after an equals sign or a dash. A word longer than a line is broken after colons and commas.
    """
    most, lines = letters(inches, size), [""]
    for part in re.split(rf"(?<=[{joints}]) | (?=\()", re.sub(" ([=–]) ", "\u00a0\\1\u00a0", printable(title))):
        longer = f"{lines[-1]} {part}".lstrip()
        words = [re.sub(r"(?<=[:,])(?=\S)", " ", word) if len(word) > most else word for word in part.split(" ")]
        lines[-1:] = [longer] if len(longer) <= most else [lines[-1], *textwrap.wrap(" ".join(words), most)]
    return [line for line in lines if line]


def panel_name(name: str, wide: float, size: float) -> str:
    """The title of a panel in lines of at most so many inches, of this type size (see `title_lines`)."""
    lines = [
        [one] if len(one) <= letters(wide, size) else title_lines(one, wide, size, ":,") for one in name.split("\n")
    ]
    return "\n".join(line for one in lines for line in one)


def canvas(
    drawing: Drawing,
    title: str,
    heading: str,
    caption: Sequence[str],
    size: tuple[float, float],
    shape: tuple[int, int],
    panels: int | None = None,
    **sharing: Any,
) -> tuple[Sheet, list[Any]]:
    """A figure with its heading, and its panels row by row.

    Args:
        title: what is drawn, and which statistic. heading: what stands above all panels. caption: sentences that say
            the rest. size: width and height in inches without the heading; a style may fix the height.
        shape: rows and columns of panels. panels: how many are used, the others are hidden; all by default.
        sharing: of matplotlib's ``subplots``.
    """
    from matplotlib.figure import Figure

    style, letter = drawing.sizes, type_size("figure.titlesize")
    inches, tall = size
    lines = title_lines(heading, inches, letter)
    height = style.tall if style.fixed else tall + len(lines) * letter * LEADING / 72
    figure = Figure(figsize=(inches, height), layout="constrained")
    axes = list(figure.subplots(*shape, squeeze=False, **sharing).flat)
    used = len(axes) if panels is None else panels
    for axis in axes[used:]:
        axis.set_visible(False)
    if lines:
        figure.suptitle("\n".join(lines), x=0.04 / inches, ha="left", parse_math=False)
    return Sheet(figure, title, caption), axes[:used]


# --- legends


def legend(sheet: Sheet, handles: Mapping[str, Any], columns: int, **look: Any) -> None:
    """The legend below all panels; none without entries."""
    if handles:
        sheet.figure.legend(handles.values(), handles.keys(), ncols=columns, loc="outside lower center", **look)


def legend_below(axis: Any, handles: Mapping[str, Any], inches: float, size: float) -> int:
    """A panel's own legend, below the label of its horizontal axis whatever the panel's height; its lines.

    Args:
        inches: the width of the panel; longer labels are folded. size: of the type, in points.
    """
    from matplotlib.transforms import ScaledTranslation

    label = axis.xaxis.label
    points = (BELOW_LABEL + LEADING * label.get_text().count("\n")) * label.get_size()
    below = axis.transAxes + ScaledTranslation(0, -points / 72, axis.figure.dpi_scale_trans)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below, "borderaxespad": 0}
    labels = [folded(label, inches, size) for label in handles]
    columns = legend_columns([*handles], inches, size)
    axis.legend(handles.values(), labels, ncols=columns, fontsize=size, **place)
    return math.ceil(sum(label.count("\n") + 1 for label in labels) / columns)


def folded(label: str, inches: float, size: float) -> str:
    """A label of a legend in lines of at most this width, broken after colons and commas.

    >>> print(folded("skyformer:inverse=schulz,sampler=wor, ρ = +0.50", 2.0, 7))
    skyformer:inverse=schulz,
    sampler=wor, ρ = +0.50
    """
    lines = [""]
    for part in re.split(r"(?<=[,:])", label):
        if lines[-1] and _entry_inches(lines[-1] + part, size) > inches:
            lines.append("")
        lines[-1] += part if lines[-1] else part.lstrip()
    return "\n".join(lines)


def legend_columns(labels: Sequence[str], inches: float, size: float) -> int:
    """The number of columns of a legend of this width, which matplotlib fills one after the other."""
    wide = [_entry_inches(label, size) for label in labels]
    for columns in range(len(labels), 1, -1):
        rows, longer = divmod(len(labels), columns)
        ends = [rows * place + min(place, longer) for place in range(columns + 1)]
        if sum(max(wide[start:end]) for start, end in zip(ends, ends[1:], strict=False)) <= inches:
            return columns
    return 1


def _entry_inches(label: str, size: float) -> float:
    """The width of an entry of a legend, with its line and the space behind it; commands of mathematics take none."""
    return size * (0.078 + 0.0075 * len(re.sub(r"\\[a-z]+|[${}\\]", "", label)))


def legend_inches(labels: Sequence[str], inches: float, size: float) -> float:
    """The height of a legend below the panels."""
    return math.ceil(len(labels) / legend_columns(labels, inches, size)) * 1.66 * size / 72 if labels else 0.0


# --- axes


def yielded(axes: Sequence[Any], handles: Sequence[Any], theirs: Mapping[str, Any]) -> None:
    """Let the user's style win where panels set lines and grids themselves.

    A width of lines is that of methods' curves, a size of markers that of their points, and others change with them. A
    map has no grid.

    Args:
        handles: of legends. theirs: of `Drawing`.
    """
    from matplotlib import rcParams
    from matplotlib.lines import Line2D

    wider = theirs.get("lines.linewidth", CURVE) / CURVE
    larger = theirs.get("lines.markersize", POINT) / POINT
    lines = {*handles, *(one for axis in axes for one in [*axis.lines, *axis.collections])}
    for line in lines if (wider, larger) != (1.0, 1.0) else ():
        line.set_linewidth(wider * np.asarray(line.get_linewidth()))
        if isinstance(line, Line2D):
            line.set_markersize(larger * line.get_markersize())
    plots = [axis for axis in axes if not is_map(axis)]
    for axis in plots if any(name.startswith("axes.grid") for name in theirs) else ():
        axis.grid(False)
        axis.grid(rcParams["axes.grid"], rcParams["axes.grid.which"], rcParams["axes.grid.axis"])


def logarithmic(panel: Any, names: str = "xy") -> None:
    """Make axes of a panel logarithmic (see `log_ticks`); ``names`` are of the letters x and y."""
    for name in names:
        getattr(panel, f"set_{name}scale")("log", nonpositive="clip")
        log_ticks(getattr(panel, f"{name}axis"))


def edge_ticks(axis: Any, edges: Mapping[float, str]) -> None:
    """Ticks with names at the places of values that an axis does not reach, such as ∞, and none of a number near them.

    Args:
        axis: the x or y axis of a panel. edges: places on it, and what stands there.
    """
    from matplotlib.ticker import Formatter, Locator

    numbers, words = axis.get_major_locator(), axis.get_major_formatter()

    class Edged(Locator):
        def __call__(self) -> Any:
            low, high = sorted(axis.get_view_interval())
            at = axis.get_transform().transform
            apart = CLEAR[axis.axis_name] * (at(high) - at(low))
            ticks = [x for x in numbers() if low <= x <= high]
            return [x for x in ticks if all(abs(at(x) - at(edge)) > apart for edge in edges)] + [*edges]

    class Named(Formatter):
        def __call__(self, value: float, pos: Any = None) -> str:
            return edges.get(value) or words(value, pos)

    if edges:
        axis.set_major_locator(Edged())
        axis.set_major_formatter(Named())


def log_ticks(axis: Any) -> None:
    """Ticks of a logarithmic axis at powers of ten, and at 2 and 5 times them where few powers are in its range."""
    from matplotlib import rcParams
    from matplotlib.ticker import Formatter, LogLocator, NullFormatter, NullLocator

    class Ticks(LogLocator):
        def tick_values(self, vmin: float, vmax: float) -> Any:
            between = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if vmax < SHORT * vmin else (1.0, 2.0, 5.0)
            between = between if vmax < DENSE[axis.axis_name] * vmin else (1.0, 3.0)
            self.set_params(subs=between if vmax < LONG[axis.axis_name] * vmin else (1.0,))
            return super().tick_values(vmin, vmax)

    class Numbers(Formatter):
        def __call__(self, value: float, _: Any = None) -> str:
            low, high = sorted(axis.get_view_interval())
            return f"{value:g}" if PLAIN[0] <= low and high <= PLAIN[1] else power_of_ten(value)

    axis.set_major_locator(Ticks())
    axis.set_major_formatter(Numbers())
    axis.set_minor_formatter(NullFormatter())
    visible: Any = f"{axis.axis_name}tick.minor.visible"
    if not rcParams[visible]:
        axis.set_minor_locator(NullLocator())  # making minor ticks takes as long as the rest of a layout


def power_of_ten(value: float) -> str:
    r"""A round number with a power of ten.

    >>> print(power_of_ten(1e6), power_of_ten(2e-7), power_of_ten(1.5e5))
    $10^{6}$ $2\cdot10^{-7}$ $1.5\cdot10^{5}$
    """
    digit, _, power = f"{value:.1e}".partition("e")
    factor = "" if digit == "1.0" else rf"{digit.removesuffix('.0')}\cdot"
    return f"${factor}10^{{{int(power)}}}$"


def powers_of_two(axis: Any, values: Sequence[int]) -> None:
    """A horizontal axis with equal steps for doublings, and ticks only at the values, named where there is room."""
    from matplotlib.ticker import NullLocator

    inches = axis.get_window_extent().width / axis.figure.dpi
    step = math.ceil(len(" ".join(map(str, values))) / letters(inches, type_size("xtick.labelsize")))
    named = {*values[::-1][::step]}  # the others have no room
    axis.set_xscale("log", base=2)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(values, [str(value) if value in named else "" for value in values])


CELL = 0.3  # inches of a cell of a map with small type
EMPTY = "#d9d9d9"  # what was not measured, or is not finite
WHISKER = 1.5  # ranges of the quartiles that a box plot's whiskers reach beyond them, here of logarithms
EXTENDED = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}


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


def scale_of(values: Any, label: str) -> Scale:
    """The scale that ends where the whiskers of a box plot of the logarithms end, and has arrows where values go on."""
    known = values[np.isfinite(values) & (values > 0)]
    low, high = 0.1, 1.0
    if known.size:
        first, third = np.quantile(known, (0.25, 0.75))
        reach = (third / first) ** WHISKER
        low, high = float(max(known.min(), first / reach)), float(min(known.max(), third * reach))
    low, high = (low, high) if high > 1.01 * low else (low / 1.5, high * 1.5)
    extend = EXTENDED[bool((values < low).any()), bool((values > high).any())]
    return Scale(low, high, label, extend)


def heat_map(
    axis: Any,
    values: Any,
    lines: Sequence[int | str],
    columns: Sequence[int | str],
    aspect: Any = "equal",
    **look: Any,
) -> None:
    """Draw values, (lines, columns), as square cells with a look of `Scale`; NaN is no cell.

    Args:
        values: of the first lines; the others are empty. lines: layers, or names, of which each has a tick.
        columns: heads, or names. aspect: of matplotlib's ``set_aspect``.
    """
    axis.pcolormesh(np.ma.masked_invalid(values), edgecolors="white", **look)
    axis.set_xlim(0, len(columns))
    axis.set_ylim(len(lines), 0)
    axis.set_aspect(aspect)
    for names, set_ticks in ((columns, axis.set_xticks), (lines, axis.set_yticks)):
        step = 1 if isinstance(names[0], str) else -(-len(names) // 8)  # at most about eight numbers
        set_ticks([place + 0.5 for place in range(0, len(names), step)], [str(one) for one in names[::step]])
    axis.tick_params(length=0, pad=2, labelsize="small")
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)


def cell_text(axis: Any, place: tuple[int, int], text: str, inches: float, dark: bool) -> None:
    """A text that is no wider than its cell, (line, column), of so many inches; in white on dark colours.

    Its type is small, and larger in cells wider than `CELL`.
    """
    y, x = place
    size = min(type_size("font.size") / 1.2 * max(1.0, inches / CELL), 72 * inches / max(1.2, 0.66 * len(text)))
    look = {"ha": "center", "va": "center", "color": "white" if dark else "black"}
    axis.text(x + 0.5, y + 0.54, text, fontsize=size, zorder=3, **look)


def colour_bar(figure: Any, panels: Sequence[Any], scale: Scale) -> None:
    """The colour scale of all panels, with round numbers."""
    from matplotlib.cm import ScalarMappable

    shrink = min(1.0, 3.2 * figure.dpi / figure.bbox.height)
    place = {"ax": list(panels), "pad": 0.02, "shrink": shrink, "aspect": 24}
    bar = figure.colorbar(ScalarMappable(**scale.look), extend=scale.extend, **place)
    bar.set_label(scale.label)
    bar.outline.set_visible(False)
    log_ticks(bar.ax.yaxis)
