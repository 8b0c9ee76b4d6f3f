"""Figures as data: a `Figure` is a query of a frame, axes and marks; `draw` makes matplotlib's figure of it.

A catalogue, ``show/catalogue/COMMAND.py``, declares the figures of a command. A further figure is one `Figure`:

    Figure("errors", "Error against the budget", x="d", y="output_spectral_relative", marks=("band p10 p90", "line"))

`sheets` draws all panels, on several figures where one has no room for them; `save` writes a figure's files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..frame.summary import STATISTICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn
    from pandas import DataFrame

INTERVAL = ("low95", "high95")  # the ends of the 95 % interval of a mean, by Student's t over windows
MARKS = {  # each with the number of its statistics or columns
    "line": 0,  # joins the points of a series
    "point": 0,
    "band": 2,  # the area between two statistics
    "bar": 2,  # a thin line between two statistics, or between two columns of each row
    "tick": 1,  # a short line across at a statistic
    "stack": 0,  # bars that count rows, one colour above the other
    "cell": 0,  # a cell of a heat map
    "number": 0,  # the value, written into the cell
}
EACH = "each row"  # in `Figure.points`: every row of the frame is a point
FLAGS = {"bad": "hollow: bad rows", "over": "half filled: uses more than d"}  # of `summary`; see `looks.FLAGGED`
APART = ("source", "n", "target")  # rows with other values of these columns are in another panel
NOTES = ("", "correlation", "exponent")


@dataclass(frozen=True)
class Guide:
    """A thin line to compare with.

    Attributes:
        axis: ``x`` or ``y``: a line at a value of that axis. ``equal``: where x and y are equal. ``level``: at each
            value of the axis of slots, the value that the column ``at`` has there.
        label: its words in the legend.
    """

    axis: str
    label: str
    at: float | str = 0.0

    def __post_init__(self) -> None:
        if self.axis not in ("x", "y", "equal", "level"):
            raise ValueError(f"guide {self.label!r} has the axis {self.axis!r}, which is none of x, y, equal, level")


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        name: the figure's name on the command line, and the stem of its files. title: the figure's title on a slide.
        caption: at most two sentences, the same for every run.
        kind: of the frame's rows. prepared: makes the figure's rows of the rows of that kind, such as with a further
            column. rows: a query; the figure has the rows that it finds.
        x, y: columns of the axes: metrics, places, words, or counts of `summary`. Words are evenly spaced, and so are
            numbers of columns in ``spaced``. If y is words, values run to the right. Several y have a panel each.
        value: the column that the colours of a heat map's cells show.
        marks: what is drawn, each a name of `MARKS` with statistics: ``band p10 p90``.
        points: columns; each combination of their values is a point. By default the column of the axis that is not
            measured; with `EACH`, each row is a point.
        center: the statistic that lines and points show.
        colour: a column; each of its values is a series with its own colour. shade: a column whose values are tints
            and markers of that colour. size: a column whose values are sizes of points.
        columns, lines: columns whose values have a panel each: beside one another for ``columns``, below one another
            for ``lines``. A row without a value is in the panels of all values. apart: further such columns, which
            stand beside one another.
        log: columns whose axis, or scale of colours, is logarithmic.
        span: the least and the largest value that are drawn; by default, values far from the quartiles are cut off.
        shared: the axes that all panels share: ``xy``, ``x``, ``y`` or nothing.
        yardsticks: a query of the rows that are drawn as yardsticks, without points: V-Mean, exact attention.
        guides: see `Guide`. flags: boolean columns of `summary`, or queries, with the words of the legend for points
            that have the flag.
        best_first: whether series are ordered by their values, the least first.
        note: the number beside a series in the legend: ``correlation`` is Spearman's ρ of its points; ``exponent`` is b
            of the fit y ~ x^b. noted: a query of ``along`` and ``value`` for the points of the note; by default all.
        several: a column that must have several values; with one value, there is nothing to draw.
        overlaid: whether the figure needs values of papers. nothing: the message if there is nothing to draw.
        square: whether cells are squares without ticks, as entries of a matrix.

    Raises:
        ValueError: an unknown mark, note, statistic or axis, a caption that is too long, or cells without a value.
    """

    name: str
    title: str
    x: str
    y: str | tuple[str, ...]
    marks: tuple[str, ...]
    caption: str = ""
    kind: str = "head"
    prepared: Callable[[DataFrame], DataFrame] | None = None
    rows: str = ""
    value: str = ""
    points: tuple[str, ...] = ()
    center: str = "median"
    colour: str = "name"
    shade: str = ""
    size: str = ""
    columns: tuple[str, ...] = ("layer",)
    lines: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    spaced: tuple[str, ...] = ()
    span: tuple[float, float] | None = None
    shared: str = "xy"
    yardsticks: str = ""
    guides: tuple[Guide, ...] = ()
    flags: Mapping[str, str] = field(default_factory=lambda: FLAGS, hash=False)
    best_first: bool = False
    note: str = ""
    noted: str = ""
    square: bool = False
    overlaid: bool = False
    nothing: str = "the run has no numbers to draw"
    several: str = ""
    apart: tuple[str, ...] = APART

    def __post_init__(self) -> None:
        for mark in self.marks:
            name, *of = mark.split()
            if name not in MARKS or len(of) != MARKS[name]:
                raise ValueError(f"figure {self.name} has the mark {mark!r}, which is none of {', '.join(MARKS)}")
        faults = {
            f"note={self.note!r}, which is none of {', '.join(NOTES[1:])}": self.note not in NOTES,
            f"center={self.center!r}, which is none of {', '.join(STATISTICS)}": self.center not in STATISTICS,
            f"shared={self.shared!r}, which is neither x, y, xy nor empty": self.shared not in ("xy", "x", "y", ""),
            "cells without a value": ("cell" in self.marks) != bool(self.value),
            "a caption of more than two sentences": self.caption.count(". ") > 1,
        }
        for fault in (fault for fault, is_so in faults.items() if is_so):
            raise ValueError(f"figure {self.name} has {fault}")

    @property
    def measured(self) -> tuple[str, ...]:
        """The columns of y; each has a panel."""
        return (self.y,) if isinstance(self.y, str) else self.y

    def of_metric(self, main: str, other: str) -> Figure:
        """The figure of another metric in place of the main one."""

        def swapped(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(swapped, value))
            return other if value == main else value

        return replace(self, **{name: swapped(getattr(self, name)) for name in ("x", "y", "value", "log")})

    def of_marks(self, name: str) -> list[str]:
        """The statistics of the first mark of this name; empty if the figure has none."""
        found = [mark.split()[1:] for mark in self.marks if mark.split()[0] == name]
        return found[0] if found else []


def draw(
    frame: DataFrame,
    figure: Figure,
    style: str = "paper",
    ax: Axes | None = None,
    *,
    methods: DataFrame | None = None,
    overlay: DataFrame | None = None,
    panel: int | str | None = None,
) -> Drawn:
    """The figure of a run's frame, with all its panels on one sheet.

    Args:
        frame: of kind `Figure.kind`.
        style: ``paper``, ``slide``, or a style of matplotlib's by its name or as FILE.mplstyle.
        ax: draws the only panel on this axis, in the style of its figure.
        methods: a frame with all methods of the run, which decides their colours; by default ``frame``.
        overlay: values of papers (see `sheets`).
        panel: draws one panel alone, by its number or a part of its title; by default all panels.

    Raises:
        UsageError: nothing to draw; no such panel; an axis for several panels.

    Cost: about 0.1 s a panel.
    """
    from .drawing import Sheet, one_of, prepared

    plot = prepared(frame, figure, methods, overlay)
    if not plot.panels:
        raise UsageError(f"{figure.name}: nothing to draw; the frame of kind {figure.kind} has no rows for it")
    panels = plot.panels if panel is None else [one_of(plot.panels, panel, figure.name)]
    return Sheet(plot, panels, style, ax).drawn()


def sheets(
    frame: DataFrame,
    figure: Figure,
    style: str = "paper",
    *,
    methods: DataFrame | None = None,
    overlay: DataFrame | None = None,
) -> list[Drawn]:
    """The figure on as many sheets as its panels need in a style. Without anything to draw, there is no sheet.

    Args:
        overlay: values of papers. A row is a value of a measured column of the figure, with any of the columns
            ``method``, ``n``, ``d``, ``layer``, ``weights``. A value is drawn in each panel that has a row with the
            same values of these columns; the legend counts the values that are drawn.
    """
    from .drawing import Sheet, parted, prepared

    plot = prepared(frame, figure, methods, overlay)
    return [Sheet(plot, panels, style).drawn() for panels in parted(plot, style)]


def save(
    drawn: Drawn, stem: Path, style: str = "paper", caption: str = "", formats: Sequence[str] = ("svg", "pdf", "png")
) -> list[Path]:
    """Write a figure's files, byte for byte the same for the same figure, and its caption as text."""
    from .drawing import settle
    from .looks import styled

    written = []
    with styled(style):
        settle(drawn)
    if caption:
        written.append(stem.with_name(f"{stem.name}.txt"))
        written[0].write_text(f"{caption}\n", encoding="utf-8")
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        # without dates, which would make two files of one figure differ
        facts: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
        with styled(style):
            drawn.savefig(path, metadata=facts)
        written.append(path)
    return written
