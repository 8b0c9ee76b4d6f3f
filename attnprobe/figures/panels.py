"""Figures in panels: a figure says what a panel shows, and the pages, axes and legends are laid out here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from ..tables.table import gathered
from .background import is_map, turned_over
from .drawing import SMALLER, Drawing
from .files import chunks, drawn, fixed_settings
from .kit import (
    LEADING,
    LEGEND_LINE,
    Scale,
    Sheet,
    canvas,
    colour_bar,
    legend,
    legend_below,
    legend_columns,
    legend_inches,
    letters,
    panel_name,
    type_size,
    yielded,
)

Rows = Sequence[Mapping[str, Any]]
Looks = Mapping[str, Mapping[str, Any]]  # of a legend, by label
PAD = 0.3  # inches around the panels
TICKS = 0.2  # inches of the numbers below a panel
ROOM = 0.4  # of the height of a panel, beside its axis
MOST_ACROSS = 3  # panels
LEFT = 6  # sizes of type from a panel's edge to its axis: a label and numbers
SCALE = 1.3  # inches of a colour scale with its label, at least
SMALL = (0.8, 0.7, 0.6, 0.5)  # of the caller's type, in the legend of an axis of the caller: the first that fits
TALL = 0.3  # of the height of such an axis, that its legend may have


@dataclass(frozen=True)
class Words:
    """What a page says around its panels.

    Attributes:
        across: panels in a row. inches, tall: the width and height of the page. shared: what all panels say. names:
            their titles. rows: names of the rows, if they have any. looks: the legend of all panels, by label.
    """

    across: int
    inches: float
    tall: float
    shared: str
    names: Sequence[str]
    rows: Sequence[str]
    looks: Looks


@dataclass(frozen=True)
class Panels:
    """A figure: its words, its panels, and how one of them is drawn.

    Attributes:
        stem: of its files. title: what is drawn, and which statistic. caption: sentences that say the rest.
        panels: the title and the rows of each. What all titles of a page say stands once, above all panels, behind
            the figure's title if that is shown. Long titles are folded.
        draw: draws rows on an axis; returns the panel's own legend, which stands below it. Entries of every panel stand
            below all panels of a page.
        finish: draws on an axis what has its place by the final layout, such as words beside points.
        x, y: labels below the lowest panels and left of the first ones; without them `draw` labels each panel.
        legend: the looks of the legend that the panels of a page share, by label, or a function that makes them of
            the rows of these panels.
        width: of a panel, in inches, at least. height: of a panel, in inches.
        columns: panels that belong in a row. If more than fit, a row has an equal part of them where there is one.
        sharing: of matplotlib's ``subplots``; by default all panels have the same axes. scale: of maps.
        named: inches of a line of the titles, which then are small; by default lines are as wide as an axis.
    """

    stem: str
    title: str
    caption: Sequence[str]
    panels: Sequence[tuple[str, Any]]
    draw: Callable[[Any, Any], Mapping[str, Any] | None]
    x: str = ""
    y: str = ""
    legend: Looks | Callable[[Sequence[Any]], Looks] = field(default_factory=dict)
    width: float = 2.1
    height: float = 2.2
    columns: int | None = None
    sharing: Mapping[str, Any] = field(default_factory=lambda: {"sharex": True, "sharey": True})
    scale: Scale | None = None
    named: float | None = None
    finish: Callable[[Any, Any], None] = lambda axis, rows: None

    def pages(self, drawing: Drawing) -> list[Sequence[Any]]:
        """The panels of each page: as many rows as there is room for beside title and legend, or a part of a row.

        Pages have about as many rows each. If no part of a row has room, a page is one row.
        """
        across = self._across(drawing)
        fitting: list[list[Sequence[Any]]] = []
        for count in [*range(math.ceil(len(self.panels) / across) * across, 0, -across), *range(across - 1, 0, -1)]:
            pages = chunks(self.panels, count)
            if fitting and len(pages) > len(fitting[0]):
                break
            if max((self._words(page, across, drawing).tall for page in pages), default=0.0) <= drawing.sizes.tall:
                fitting.append(pages)
        return fitting[-1] if fitting else chunks(self.panels, across)

    def _words(self, page: Sequence[tuple[str, Any]], across: int, drawing: Drawing) -> Words:
        """What a page says around its panels."""
        across = min(across, len(page))
        names, shared = said_once([name for name, _ in page])
        alike = self.sharing or self.scale  # panels that each have labels of their own have their titles too
        names, rows = said_in_rows(names, across) if alike else (names, [])
        looks = self._looks([rows for _, rows in page])
        row = (1, across * self.width) if self.named else (across, self.width)  # small multiples fit a column
        inches, size = drawing.sizes.inches(*row), type_size("legend.fontsize")
        wide, letter = self._lines(inches / across)
        line = letter * LEADING / 72
        before = max(len(name.splitlines()) for name, _ in page)
        after = [len(panel_name(name, wide, letter).splitlines()) for name in names]
        tall = sum(self.height - (before - max(lines)) * line for lines in chunks(after, across))
        tall -= TICKS * (len(rows) - 1) if self._ticks_once(rows) else 0.0
        tall = max(tall, SCALE if self.scale else 0.0) + PAD
        tall += LEGEND_LINE * drawing.titled + legend_inches([*looks], inches, size)
        return Words(across, inches, tall, shared, names, rows, looks)

    def sheet(self, page: Sequence[tuple[str, Any]], drawing: Drawing) -> Sheet:
        """A page."""
        from matplotlib.lines import Line2D

        words = self._words(page, self._across(drawing), drawing)
        across, inches, size = words.across, words.inches, type_size("legend.fontsize")
        shape = (math.ceil(len(page) / across), across)
        title = f"{self.title} ({words.shared})" if words.shared else self.title
        heading = title if drawing.titled else words.shared
        tall = words.tall - LEGEND_LINE * drawing.titled
        sheet, axes = canvas(drawing, title, heading, self.caption, (inches, tall), shape, len(page), **self.sharing)
        wide, letter = self._lines(inches / across)
        most = 0  # lines of the legends of panels
        owns: Sequence[Mapping[str, Any]] = []
        for place, (axis, name, (_, rows)) in enumerate(zip(axes, words.names, page, strict=True)):
            lowest = place + across >= len(page)
            axis.tick_params(labelbottom=lowest or not self._ticks_once(words.rows))
            own = self.draw(axis, rows) or {}
            axis.set_title(panel_name(name, wide, letter), fontsize=letter, parse_math=False)
            if self.y and place % across == 0:
                axis.set_ylabel(self.y)
            owns = [*owns, own]
        if (
            words.rows
        ):  # what panels have in common stands left of their first axes, upright where these are high enough
            upright = max(map(len, words.rows)) <= letters(self.height - ROOM, type_size("axes.labelsize"))
            look = {} if upright else {"rotation": 0, "ha": "right", "va": "center"}
            for axis, name in zip(axes[::across], words.rows, strict=True):
                axis.set_ylabel("\n".join(filter(None, [name, axis.get_ylabel()])), **look)
        handles = {label: Line2D([], [], **look) for label, look in words.looks.items()}
        every = [*handles.values(), *(handle for own in owns for handle in own.values())]
        yielded(axes, every, drawing.theirs)
        turned_over(axes, [] if self.scale else every)  # legends of maps name colours of the maps
        if owns:  # what each panel would say stands once, below all
            common = in_every(owns)
            owns = [{label: line for label, line in own.items() if label not in common} for own in owns]
            handles = {**common, **handles}
        for place, (axis, own) in enumerate(zip(axes, owns, strict=True)):
            if self.x and (own or place + across >= len(page)):
                axis.set_xlabel(self.x)
            if own:
                most = max(most, legend_below(axis, own, inches / across, size))
        if not drawing.sizes.fixed:
            below = legend_inches([*handles], inches, size) - legend_inches([*words.looks], inches, size)
            sheet.figure.set_figheight(sheet.figure.get_figheight() + below + most * LEGEND_LINE * shape[0])
        if self.scale:
            colour_bar(sheet.figure, axes, self.scale)
        legend(sheet, handles, legend_columns([*handles], inches, size))
        return replace(
            sheet, finish=[partial(self.finish, axis, rows) for axis, (_, rows) in zip(axes, page, strict=True)]
        )

    def _lines(self, inches: float) -> tuple[float, float]:
        """How wide a line of the title of a panel of this width is, in inches, and the size of its type, in points."""
        size = type_size("axes.titlesize")
        if self.named is not None:
            return self.named, size / SMALLER
        return max(inches - LEFT * size / 72, 0.7 * inches), size

    def _ticks_once(self, rows: Sequence[str]) -> bool:
        """Whether only the lowest panels have numbers below them: rows have names, and panels have one x axis."""
        return bool(rows) and bool(self.sharing.get("sharex"))

    def on(self, axis: Any, title: str, rows: Any, with_legend: bool) -> None:
        """Draw one panel on an axis of the caller, with its labels, and all that the legends name in one below it.

        Gridlines stay as they are, and a map has none.
        """
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        grids = [(one, any(line.get_visible() for line in one.get_gridlines())) for one in (axis.xaxis, axis.yaxis)]
        own = self.draw(axis, rows) or {}
        for one, shown in () if is_map(axis) else grids:
            one.grid(shown)
        axis.set_title(title.replace("\n", ", "), parse_math=False)
        for text, set_label in ((self.x, axis.set_xlabel), (self.y, axis.set_ylabel)):
            if text:
                set_label(text)
        handles = {label: Line2D([], [], **look) for label, look in self._looks([rows]).items()} | dict(own)
        turned_over([axis], [] if self.scale else handles.values())
        self.finish(axis, rows)
        if with_legend and handles:
            wide, tall = (inches / axis.figure.dpi for inches in axis.get_window_extent().size)
            sizes = [share * type_size("legend.fontsize") for share in SMALL]
            fitting = (size for size in sizes if legend_inches([*handles], wide, size) <= TALL * tall)
            legend_below(axis, handles, wide, next(fitting, sizes[-1]))
            if isinstance(axis.figure, Figure) and axis.figure.get_layout_engine() is None:
                axis.figure.set_layout_engine("constrained")  # it leaves room for the legend
        if with_legend and self.scale:
            colour_bar(axis.figure, [axis], self.scale)

    def _looks(self, panels: Sequence[Any]) -> Looks:
        """The shared legend of panels with these rows."""
        return self.legend(panels) if callable(self.legend) else self.legend

    def _across(self, drawing: Drawing) -> int:
        """Panels in a row: at most three, and about as many in each row, if not said otherwise."""
        count, room = len(self.panels), drawing.sizes.across(self.width)
        if not self.columns:
            return balanced(count, min(MOST_ACROSS, room))
        most = max(1, min(self.columns, count, room))
        return max((part for part in range(2, most + 1) if self.columns % part == 0), default=most)


def in_every(legends: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all of some legends have; nothing if a line has other words in another legend, such as its ρ there."""
    words: dict[Any, set[str]] = {}
    for label, line in chain(*(one.items() for one in legends)):
        look = [getattr(line, f"get_{name}", lambda: None)() for name in ("color", "marker", "linestyle")]
        words.setdefault(str(look) if any(look) else label, set()).add(label)
    told = any(len(labels) > 1 for labels in words.values())
    return {} if told else {label: line for label, line in legends[0].items() if all(label in one for one in legends)}


def balanced(count: int, most: int) -> int:
    """How many of some panels stand in a row, at most so many, where rows have about as many each.

    >>> [balanced(count, 3) for count in (1, 3, 4, 5)]
    [1, 3, 2, 3]
    """
    return math.ceil(count / math.ceil(count / most)) if count else 1


def draw_figures(figures: Iterable[Any], drawing: Drawing, folder: str | Path) -> list[Path]:
    """Draw figures (see `Panels`) into a folder, the pages of equal stems as ``STEM``, ``STEM-2``, …; the files' paths.

    Titles of several pages say which part each is. Figures without panels are left out.
    """
    if drawing.collected is not None:
        drawing.collected.extend(figures)
        return []
    paths: list[Path] = []
    for group in gathered(figures, lambda figure: figure.stem):
        with fixed_settings(drawing):
            pages = [(figure, page) for figure in group for page in figure.pages(drawing)]
        parts = [f", part {number} of {len(pages)}" * (len(pages) > 1) for number in range(1, len(pages) + 1)]
        pages = [(replace(one, title=one.title + part), page) for (one, page), part in zip(pages, parts, strict=True)]
        paths += drawn(pages, lambda page: page[0].sheet(page[1], drawing), Path(folder) / group[0].stem, drawing)
    return paths


def said_once(titles: Sequence[str]) -> tuple[list[str], str]:
    """The titles of panels without the parts that all of them have, and these parts. Empty ones are of empty panels.

    >>> said_once(["layer 0, d = 8\\nsparse", "layer 0, d = 8\\nfeatures"]), said_once(["layer 0, d = 8"])
    ((['sparse', 'features'], 'layer 0, d = 8'), ([''], 'layer 0, d = 8'))
    """
    lines = [[line.split(", ") for line in title.split("\n")] for title in titles]
    parts = [dict.fromkeys(chain(*one)) for one, title in zip(lines, titles, strict=True) if title]
    shared = [part for part in (parts or [{}])[0] if all(part in own for own in parts)]
    rest = [[", ".join(part for part in line if part not in shared) for line in one] for one in lines]
    return ["\n".join(filter(None, one)) for one in rest], ", ".join(shared)


def said_in_rows(titles: Sequence[str], across: int) -> tuple[list[str], list[str]]:
    """The titles of panels without what their row has in common, which stands left of it, and that of each row.

    What a column has in common, only its first panel says. There are no names of rows if a row has nothing in common.

    >>> said_in_rows(["topk, d = 8", "topk, d = 16", "lsh, d = 8", "lsh, d = 16", "V-Mean"], 2)
    (['d = 8', 'd = 16', '', '', ''], ['topk', 'lsh', 'V-Mean'])
    """
    panels = [list(dict.fromkeys(chain(*(line.split(", ") for line in title.split("\n"))))) for title in titles]
    rows = chunks(panels, across)
    shared = [[part for part in row[0] if all(part in own for own in row)] for row in rows]
    if len(rows) < 2 or across < 2 or not all(any(parts) for parts in shared):
        return [*titles], []
    rest = [
        [[part for part in own if part not in parts] for own in row] for row, parts in zip(rows, shared, strict=True)
    ]
    for place, first in enumerate(rest[0]):
        column = [row[place] for row in rest[1:] if len(row) > place]
        for own in column:
            own[:] = [part for part in own if not all(part in other for other in (first, *filter(None, column)))]
    return [", ".join(own) for row in rest for own in row], [", ".join(parts) for parts in shared]


def panels_of(rows: Iterable[Mapping[str, Any]], title: Callable[[Any], str]) -> list[tuple[str, Rows]]:
    """The panels of rows, one for each title of a row, in the order of their first appearance.

    >>> panels_of([{"layer": 0, "head": 1}, {"layer": 2}, {"layer": 0}], "layer {layer}".format_map)
    [('layer 0', [{'layer': 0, 'head': 1}, {'layer': 0}]), ('layer 2', [{'layer': 2}])]
    """
    return [(title(group[0]), group) for group in gathered(rows, title)]
