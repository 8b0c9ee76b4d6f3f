"""The one renderer of figures: a `Sheet` is one figure of matplotlib with some panels.

`attnprobe.show.figure.draw` and `sheets` call it. `points` has what panels show, `marks` draws it, and `looks` has how
it looks.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure as Drawn
from matplotlib.ticker import FixedLocator

from ..errors import UsageError
from ..frame import Rows
from ..frame.metric import METRICS
from .figure import EACH, Figure
from .looks import (
    ALL,
    MAP,
    PAGE,
    Look,
    folded,
    grows,
    label_of,
    looks_of,
    set_ticks,
    size_of,
    styled,
    symbol_of,
    text_of,
    value_of,
)
from .marks import Brush, Legend, cells
from .points import GROUP, MEASURED, Data, Panel, ceil_div, ends_of, one_panel

INCH = 72  # points
TEXT = 7.0  # the width of the text of a page, in inches
# the lengths that follow are multiples of the size of type: a style with larger type gets larger panels
NARROWEST = 13  # the least width of a panel
LOWEST = 9  # the least height of a panel
TALL = 13  # the height of one of several lines of panels
LINE = 1.6  # the height of a line of text
LETTER = 0.55  # the mean width of a letter
FORMULA = "\ufffc"  # stands for a formula in a text that is wrapped
DECADES = 4  # the most decades of a scale of colours


@dataclass(frozen=True)
class Prepared:
    """A figure's data and panels, and the looks of its series."""

    data: Data
    looks: dict[Any, Look]
    panels: Sequence[Panel]


def prepared(frame: Rows, figure: Figure, methods: Rows | None, overlay: Rows | None) -> Prepared:
    """The panels of a figure. A frame without a value of the figure has no panel."""
    rows = figure.prepared(frame) if figure.prepared else frame
    measured = [name for name in figure.measured if name in rows]
    has_values = bool(measured) and rows[measured].notna().to_numpy().any()
    data = Data(rows if has_values else rows.iloc[:0], figure, overlay)
    if not len(data.rows):
        return Prepared(data, {}, [])
    # the colours of methods depend on all methods of the run, so that every figure has the same
    known = (frame if methods is None else methods).query("method.notna() and not reference")
    facts = known[["name", "method", "options", "family"]].drop_duplicates().astype(object).fillna("").to_numpy()
    named = [(name, f"{method}:{options}".rstrip(":"), family) for name, method, options, family in facts]
    others = [(name, str(name), "") for name in data.names if name not in {name for name, *_ in named}]
    return Prepared(data, looks_of([*named, *others]), data.panels)


def one_of(panels: Sequence[Panel], panel: int | str, figure: str) -> Panel:
    """The panel of this number, or whose title has these words.

    Raises:
        UsageError: no such panel; the message lists them.
    """
    titles = [_words((*candidate.line, *candidate.column)) for candidate in panels]
    # a whole title first: "d = 1" is also a part of "d = 16"
    exact = [number for number, title in enumerate(titles) if panel in (number, title)]
    found = exact or [number for number, title in enumerate(titles) if str(panel) in title]
    if not found:
        names = "; ".join(f"{number} {title}" for number, title in enumerate(titles))
        raise UsageError(f"{figure} has no panel {panel!r}; it has {names}")
    return panels[found[0]]


def parted(plot: Prepared, style: str) -> list[Sequence[Panel]]:
    """The panels of each sheet in a style."""
    if not plot.panels:
        return []
    with styled(style):
        width, height = width_of(plot.data, plot.panels, style), rcParams["figure.figsize"][1]
        size = rcParams["font.size"] / INCH
        across = across_of(plot.data, plot.panels, width)
        tall = height_of(plot.data, plot.panels, width / across)
        # a style that grows gives panels their height on a page; a slide has one height, and its panels may shrink
        if grows(style):
            room, height_of_line = PAGE, tall
        else:
            shortest = 0.7 * tall if plot.data.figure.value or plot.data.sideways else LOWEST * size
            room, height_of_line = height, min(tall, shortest)
        count = across * max(1, int((room - 6 * size) / height_of_line))
    return [plot.panels[start : start + count] for start in range(0, len(plot.panels), count)]


def width_of(data: Data, panels: Sequence[Panel], style: str) -> float:
    """The width of a sheet in inches: the style's width. Matrices side by side may need the width of a page's text."""
    width = rcParams["figure.figsize"][0]
    if not data.figure.square or not grows(style):
        return width
    least, beside = _least(data)
    wanted = beside + least * len({panel.column for panel in panels})
    return min(max(width, wanted), max(width, TEXT))


def _least(data: Data) -> tuple[float, float]:
    """The least width of a panel, and the width of the scale of colours beside the panels, in inches."""
    size = rcParams["font.size"] / INCH
    return (0.45 * NARROWEST * size, 10 * size) if data.figure.value else (NARROWEST * size, 0.0)


def across_of(data: Data, panels: Sequence[Panel], width: float) -> int:
    """How many panels stand side by side: the panels of a line of facets, if they have room."""
    least, beside = _least(data)
    room = max(1, int((width - beside) / least))
    lines = len({panel.line for panel in panels})
    columns = len({panel.column for panel in panels})
    wanted = columns if 1 < columns < len(panels) and lines > 1 else len(panels)
    # as many lines as the room needs, and the panels shared out evenly among them
    count = ceil_div(wanted, room)
    return ceil_div(wanted, count)


def height_of(data: Data, panels: Sequence[Panel], width: float) -> float:
    """The height of a line of panels, in inches."""
    size, figure = rcParams["font.size"] / INCH, data.figure
    if figure.square:
        return 0.9 * width
    if figure.value or data.sideways:
        texts = texts_of(data, str(figure.y))
        crowded = len(data.shades) > 2 or EACH in figure.points or any("\n" in text for text in texts)
        return size * (LINE * len(texts) * (1.4 if crowded else 1.0) + 1.5)
    return size * TALL


def texts_of(data: Data, column: str) -> list[str]:
    """The texts of an axis of words."""
    words = data.words(column)
    return [ALL.get(column, str(word)) if pd.isna(word) else folded(text_of(word, column)) for word in words]


class Sheet:
    """Some panels of a figure on one figure of matplotlib."""

    def __init__(self, plot: Prepared, panels: Sequence[Panel], style: str, ax: Any = None) -> None:
        self.plot, self.panels, self.style, self.ax = plot, panels, style, ax
        self.data, self.figure = plot.data, plot.data.figure
        self.legend = Legend()
        self.norm = self._norm() if self.figure.value else None

    def drawn(self) -> Drawn:
        """Draw the panels.

        Raises:
            UsageError: an axis for several panels.
        """
        if self.ax is not None:
            one_panel(self.panels)
            # the caller's axis, in the caller's style
            self._fill([self.ax], 1)
            self.ax.set(**dict(zip(("xlabel", "ylabel"), self._names(), strict=True)))
            entries = self.legend.entries(self.data.names, self.figure.colour, self.figure.note)
            if entries:
                self.ax.legend(entries.values(), entries.keys(), fontsize="small")
            return self.ax.figure
        with styled(self.style):
            size = width_of(self.data, self.plot.panels, self.style), rcParams["figure.figsize"][1]
            across = min(across_of(self.data, self.plot.panels, size[0]), len(self.panels))
            lines = ceil_div(len(self.panels), across)
            drawn = Drawn(size, layout="constrained")
            # a canvas without pyplot, which keeps every figure open and may need a screen
            FigureCanvasAgg(drawn)
            axes = drawn.subplots(lines, across, squeeze=False).ravel().tolist()
            self._fill(axes, across)
            self._finish(drawn, lines, across)
        return drawn

    def _fill(self, axes: Sequence[Any], across: int) -> None:
        """Draw the panels on the axes, and remove the axes that are left over."""
        for axis in axes[len(self.panels) :]:
            axis.remove()
        axes = axes[: len(self.panels)]
        width, size = axes[0].figure.get_size_inches()[0] / across, rcParams["font.size"] / INCH
        for number, (axis, panel) in enumerate(zip(axes, self.panels, strict=True)):
            if self.norm:
                cells(axis, self.data, panel, self.norm, self.legend, most=max(3, int(0.3 * width / size)))
            else:
                brush = Brush(axis, self.data, panel, self.plot.looks, self.legend)
                self._scale(axis, panel, brush, most=max(3, min(7, int(0.22 * width / size))))
                brush.draw()
            self._title(axis, panel, number, across, width)
        if self.norm:
            self._bar(axes, ceil_div(len(axes), across), self.norm)

    def _finish(self, drawn: Any, lines: int, across: int) -> None:
        """Give the sheet the height that its panels need, the names of the axes, the legend, and a slide's title."""
        width, height = drawn.get_size_inches()
        size = rcParams["font.size"] / INCH
        entries = self.legend.entries(self.data.names, self.figure.colour, self.figure.note)
        below = _add_legend(drawn, entries, width) + 0.3 * size if entries else 0.0
        x, y = self._names()
        bottom, top = below + (1.2 * size if x else 0.0), LINE * size if self.style == "slide" else 0.0
        if grows(self.style):
            # each line of panels has the height of its highest title above it
            titles = [axis.get_title().count("\n") + 1 for axis in drawn.axes[: len(self.panels)]]
            above = sum(max(titles[start : start + across]) for start in range(0, len(titles), across))
            tall = lines * height_of(self.data, self.panels, width / across) + LINE * size * above + bottom + 1.5 * size
            if self.norm:  # the name of the scale of colours stands beside it
                tall = max(tall, LETTER * size * len(label_of(self.figure.value)) + bottom + 3 * size)
            # one panel has at least the height of the style
            height = max(tall, height) if len(self.panels) == 1 and not self.norm else tall
            drawn.set_size_inches(width, height)
        look = {"fontsize": rcParams["axes.labelsize"]}
        middle = (bottom + height - top) / 2 / height
        label = drawn.text(0.3 * size / width, middle, y, rotation=90, ha="left", va="center", **look)
        # a name that is longer than the axis is broken before its symbol
        if label.get_window_extent(drawn.canvas.get_renderer()).height > 0.9 * (height - bottom - top) * drawn.dpi:
            label.set_text(y.replace("  ", "\n", 1))
        # the panels begin right of the name of y
        left = 0.0
        if y:
            box = label.get_window_extent(drawn.canvas.get_renderer())
            left = (box.width / drawn.dpi + 0.4 * size) / width
        drawn.text(0.5 + left / 2, below / height, x, ha="center", va="bottom", **look)
        if top:
            drawn.suptitle(self.figure.title, x=0.01, ha="left")
        drawn.get_layout_engine().set(rect=(left, bottom / height, 1 - left, 1 - bottom / height))

    def _norm(self) -> Normalize:
        """The scale of colours of all sheets; a logarithmic scale has at most `DECADES`."""
        values = np.concatenate([panel.points["value"].to_numpy(float) for panel in self.plot.panels])
        is_log = self.figure.value in self.figure.log
        low, high = ends_of(values, is_log)
        return LogNorm(max(low, high / 10.0**DECADES), high, clip=True) if is_log else Normalize(low, high, clip=True)

    def _scale(self, axis: Any, panel: Panel, brush: Brush, most: int) -> None:
        """The scales, limits and ticks of a panel; x has at most ``most`` ticks."""
        sides = ("y", "x") if self.data.sideways else ("x", "y")
        for side, column, ends in zip(sides, (panel.along, panel.measured), (brush.along, brush.values), strict=True):
            ticks, limit = getattr(axis, f"{side}axis"), getattr(axis, f"set_{side}lim")
            if column == panel.along and self.data.is_words(column):
                texts = texts_of(self.data, column)
                ticks.set_major_locator(FixedLocator(range(len(texts))))
                ticks.set_ticklabels(texts)
                axis.tick_params(axis=side, length=0)
                axis.grid(False, axis=side)
                limit(*(reversed(ends) if side == "y" else ends))
                continue
            # an axis of numbers
            is_log = column in self.figure.log
            getattr(axis, f"set_{side}scale")("log" if is_log else "linear")
            limit(*ends)
            # an axis of the run's own values, such as budgets, has its ticks there
            is_key = column == panel.along and column in panel.points
            values = self.data.rows[column].dropna().unique() if is_key else ()
            set_ticks(ticks, ends, is_log, sorted(values), most if side == "x" else 7)

    def _title(self, axis: Any, panel: Panel, number: int, across: int, width: float) -> None:
        """Write the title of a panel. In a full grid, each line and each column is named once, at the edge."""
        lines = len({other.line for other in self.panels})
        several = not self.data.sideways and len({other.measured for other in self.plot.panels}) > 1
        full = 1 < lines < len(self.panels) == lines * across == lines * len({p.column for p in self.panels})
        beside = symbol_of(panel.measured) if several else ""
        facets = (*panel.line, *panel.column)
        if full:
            facets = panel.column if number < across else ()
        line = _words(panel.line) if full and number % across == 0 else ""
        size = size_of("axes.titlesize")
        room = 0.8 * width if self.norm else width - _least(self.data)[1] / across
        letters = int(room * INCH / (LETTER * size))
        title = wrapped(_words(facets), letters)
        longest = max(map(len, title.split("\n")))
        # a word that is longer than the panel makes the type smaller
        axis.set_title(title, fontsize=size * min(1.0, letters / longest) if longest else size)
        # the facets of a line stand at its left, as high as the panel
        high = height_of(self.data, self.panels, width) * INCH / (LETTER * size_of("axes.labelsize"))
        axis.set_ylabel("\n".join(filter(None, [wrapped(line, int(high)), beside])))
        # shared axes have numbers at the edge of the sheet alone
        if "x" in self.figure.shared and not self.figure.square:
            axis.tick_params(labelbottom=number + across >= len(self.panels))
        if self.norm or ("y" in self.figure.shared and not several):
            axis.tick_params(labelleft=number % across == 0)

    def _names(self) -> tuple[str, str]:
        """The names of the axes x and y. The y of a heat map has a name only if it is a number."""
        first = self.panels[0]
        several = len({panel.measured for panel in self.plot.panels}) > 1
        x, y = (first.measured, "") if self.data.sideways else (first.along, "" if several else first.measured)
        if self.norm:
            y = str(self.figure.y) if str(self.figure.y) in METRICS else ""
        return ("", "") if self.figure.square else (label_of(x), label_of(y) if y else "")

    def _bar(self, axes: Sequence[Any], lines: int, norm: Normalize) -> None:
        """Draw the scale of colours, with arrows at its ends where values lie beyond them."""
        low, high = float(norm.vmin or 0.0), float(norm.vmax or 1.0)
        values = np.concatenate([np.abs(panel.points["value"].to_numpy(float)) for panel in self.plot.panels])
        beyond = (bool((values < low).any()), bool((values > high).any()))
        arrows = {(True, True): "both", (True, False): "min", (False, True): "max", (False, False): "neither"}[beyond]
        look = {"extend": arrows, "pad": 0.02, "aspect": 25, "shrink": min(1.0, 2.5 / lines)}
        bar = axes[0].figure.colorbar(ScalarMappable(norm, MAP), ax=[*axes], label=label_of(self.figure.value), **look)
        set_ticks(bar.ax.yaxis, (low, high), isinstance(norm, LogNorm))


def wrapped(text: str, letters: int) -> str:
    r"""A text in lines of at most so many letters. A longer word stays whole, but a name is broken before its options.

    A formula counts as one letter and stays whole.

    >>> wrapped("skyformer:guard=sampled, d\xa0=\xa08", 16)
    'skyformer:\nguard=sampled,\nd\xa0=\xa08'
    >>> wrapped(r"a word, $\varepsilon$", 9)
    'a word, $\\varepsilon$'
    """
    formulas = iter(re.findall(r"\$[^$]*\$", text))
    text = re.sub(r"\$[^$]*\$", FORMULA, text)
    if max(map(len, text.split()), default=0) > letters:
        text = text.replace(":", ":\n")
    lines = "\n".join(textwrap.fill(line, letters, break_long_words=False) for line in text.split("\n"))
    return re.sub(FORMULA, lambda _: next(formulas), lines)


def _words(facets: Sequence[tuple[str, Any]]) -> str:
    """The facets of a panel in words, for its title.

    >>> _words([("layer", 0), ("d", 16), ("family", "sketch")])
    'layer\xa00, $d$\xa0=\xa016, sketch'
    """
    parts = [
        (METRICS[value].title if name == MEASURED else value_of(name, value)) for name, value in facets if name != GROUP
    ]
    return ", ".join(parts)


def _add_legend(drawn: Any, entries: dict[str, Any], width: float) -> float:
    """Put the legend below the panels, in as many columns as fit; returns its height in inches."""
    letters = int(width * INCH / (LETTER * size_of("legend.fontsize"))) - 6  # without the room of the mark
    labels = [textwrap.fill(label, letters) for label in entries]
    for columns in range(min(6, len(entries)), 0, -1):
        legend = drawn.legend(entries.values(), labels, loc="lower center", ncols=columns, borderaxespad=0.2)
        box = legend.get_window_extent(drawn.canvas.get_renderer())
        if box.width <= 0.98 * width * drawn.dpi or columns == 1:
            return box.height / drawn.dpi
        # too wide: matplotlib tells a legend's size only once it is made
        legend.remove()
    return 0.0


def settle(drawn: Drawn) -> None:
    """Lay the figure out for good, so that each file has the same layout, byte for byte."""
    # at few dots an inch, text is measured as narrower than it is drawn at many
    if rcParams["savefig.dpi"] != "figure":
        drawn.set_dpi(rcParams["savefig.dpi"])
    drawn.draw_without_rendering()
    with rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
        drawn.set_layout_engine(None)  # with an engine, even one that does nothing, each file is drawn twice
    # rounded, because ids in SVG are hashes of positions, whose last digits vary between processes
    for axis in drawn.axes:
        left, bottom, width, height = (round(end, 6) for end in axis.get_position().bounds)
        axis.set_position((left, bottom, width, height))


def new_axis() -> Axes:
    """The axis of a new figure of pyplot, which a notebook shows."""
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]
