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
from .background import turned_over
from .drawing import Drawing
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
    panel_name,
    type_size,
    yielded,
)

Rows = Sequence[Mapping[str, Any]]
Looks = Mapping[str, Mapping[str, Any]]  # of a legend, by label
PAD = 0.3  # inches around the panels
SCALE = 1.3  # inches of a colour scale with its label, at least
SMALL = (0.8, 0.7, 0.6, 0.5)  # of the caller's type, in the legend of an axis of the caller: the first that fits
TALL = 0.3  # of the height of such an axis, that its legend may have


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
    finish: Callable[[Any, Any], None] = lambda axis, rows: None

    def pages(self, drawing: Drawing) -> list[Sequence[Any]]:
        """The panels of each page: as many rows as there is room for beside title and legend, or a part of a row.

        If no part of a row has room, it is one row.
        """
        across, size = self._across(drawing), type_size("legend.fontsize")
        inches = drawing.sizes.inches(across, self.width)

        def tall(page: Sequence[tuple[str, Any]]) -> float:
            looks = self._looks([rows for _, rows in page])
            rest = PAD + LEGEND_LINE * drawing.titled + legend_inches([*looks], inches, size)
            return rest + self.height * math.ceil(len(page) / across)

        rows = max(1, int(drawing.sizes.tall / self.height))
        for count in [*range(rows * across, 0, -across), *range(across - 1, 0, -1)]:
            pages = chunks(self.panels, count)
            if max(map(tall, pages), default=0.0) <= drawing.sizes.tall:
                return pages
        return chunks(self.panels, across)

    def sheet(self, page: Sequence[tuple[str, Any]], drawing: Drawing) -> Sheet:
        """A page."""
        from matplotlib.lines import Line2D

        across = min(self._across(drawing), len(page))
        shape = (math.ceil(len(page) / across), across)
        inches = drawing.sizes.inches(across, self.width)
        size = type_size("legend.fontsize")
        names, shared = said_once([name for name, _ in page])
        title = f"{self.title} ({shared})" if shared else self.title
        looks = self._looks([rows for _, rows in page])
        least = SCALE if self.scale else 0.0
        before, after = (max(len(one.splitlines()) for one in some) for some in ([name for name, _ in page], names))
        height = self.height - (before - after) * type_size("axes.titlesize") * LEADING / 72
        tall = max(height * shape[0], least) + PAD + legend_inches([*looks], inches, size)
        heading = title if drawing.titled else shared
        sheet, axes = canvas(drawing, title, heading, self.caption, (inches, tall), shape, len(page), **self.sharing)
        most = 0  # lines of the legends of panels
        owns: Sequence[Mapping[str, Any]] = []
        for place, (axis, name, (_, rows)) in enumerate(zip(axes, names, page, strict=True)):
            axis.tick_params(labelbottom=True)
            own = self.draw(axis, rows) or {}
            axis.set_title(panel_name(name, inches / across), parse_math=False)
            if self.y and place % across == 0:
                axis.set_ylabel(self.y)
            owns = [*owns, own]
        handles = {label: Line2D([], [], **look) for label, look in looks.items()}
        every = [*handles.values(), *(handle for own in owns for handle in own.values())]
        yielded(axes, every, drawing.theirs)
        turned_over(axes, [] if self.scale else every)  # legends of maps name colours of the maps
        if len(owns) > 1:  # what each panel would say stands once, below all
            common = {label: line for label, line in owns[0].items() if all(label in own for own in owns)}
            owns = [{label: line for label, line in own.items() if label not in common} for own in owns]
            handles = {**common, **handles}
        for place, (axis, own) in enumerate(zip(axes, owns, strict=True)):
            if self.x and (own or place + across >= len(page)):
                axis.set_xlabel(self.x)
            if own:
                most = max(most, legend_below(axis, own, inches / across, size))
        if not drawing.sizes.fixed:
            below = legend_inches([*handles], inches, size) - legend_inches([*looks], inches, size)
            sheet.figure.set_figheight(sheet.figure.get_figheight() + below + most * LEGEND_LINE * shape[0])
        if self.scale:
            colour_bar(sheet.figure, axes, self.scale)
        legend(sheet, handles, legend_columns([*handles], inches, size))
        return replace(
            sheet, finish=[partial(self.finish, axis, rows) for axis, (_, rows) in zip(axes, page, strict=True)]
        )

    def on(self, axis: Any, title: str, rows: Any, with_legend: bool) -> None:
        """Draw one panel on an axis of the caller, with its labels, and all that the legends name in one below it.

        Gridlines stay as they are, and a map has none.
        """
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        grids = [(one, any(line.get_visible() for line in one.get_gridlines())) for one in (axis.xaxis, axis.yaxis)]
        own = self.draw(axis, rows) or {}
        for one, shown in grids if axis.get_aspect() == "auto" else ():
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
        """Panels in a row: two of two or four, else three, if not said otherwise."""
        wanted = self.columns or {1: 1, 2: 2, 4: 2}.get(len(self.panels), 3)
        most = max(1, min(wanted, len(self.panels), drawing.sizes.across(self.width)))
        equal = [count for count in range(2, most + 1) if self.columns and self.columns % count == 0]
        return max(equal, default=most)


def draw_figures(figures: Iterable[Any], drawing: Drawing, folder: str | Path) -> list[Path]:
    """Draw figures (see `Panels`) into a folder, the pages of equal stems as ``STEM``, ``STEM-2``, …; the files' paths.

    Figures without panels are left out.
    """
    if drawing.collected is not None:
        drawing.collected.extend(figures)
        return []
    paths: list[Path] = []
    for group in gathered(figures, lambda figure: figure.stem):
        with fixed_settings(drawing):
            pages = [(figure, page) for figure in group for page in figure.pages(drawing)]
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


def panels_of(rows: Iterable[Mapping[str, Any]], title: Callable[[Any], str]) -> list[tuple[str, Rows]]:
    """The panels of rows, one for each title of a row, in the order of their first appearance.

    >>> panels_of([{"layer": 0, "head": 1}, {"layer": 2}, {"layer": 0}], "layer {layer}".format_map)
    [('layer 0', [{'layer': 0, 'head': 1}, {'layer': 0}]), ('layer 2', [{'layer': 2}])]
    """
    return [(title(group[0]), group) for group in gathered(rows, title)]
