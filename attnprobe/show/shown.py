"""What a command shows of a run: its tables in every format, its figures, and the lines that gates judge."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, unknown
from ..frame.metric import METRICS
from ..frame.rows import CELL, HEAD
from ..frame.summary import COUNTS, STATE, STATISTICS
from ..grammar.foreign import one_line
from .formats import check_format
from .grid import OF_SERIES, Grid, Selection, grids, with_computed
from .header import Header
from .table import Column, Table
from .writers import csv, json_rows, jsonl, latex, markdown, terminal
from .writers.markdown import escaped

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..frame.rows import RowTypes

WIDTH = 100  # the columns of a table in a pipe
# columns whose values have lines of their own for gates
PLACES = ("source", "weights", "scale_inputs", "target", "n", "d", "layer", "name", "method", "options", "requested")
TILES = (("head", "heads"), ("layer", "layer"), ("text window", "window"))
NAMED = (*PLACES, "reference")  # columns that the name of a gate's result has anyway, or does not need


@dataclass(frozen=True)
class Catalogue:
    """What ``show/catalogue/COMMAND.py`` declares: ``TITLE``, ``TABLES``, ``FIGURES``, ``CONDITIONS``, ``TILES``,
    ``WRITERS``.

    Attributes:
        conditions: makes lines on how the run was measured, from the frame of kind ``cell``; they stand above tables.
        tiles: the counts on a page: their names, and the fields of cells whose different values are counted.
        writers: further formats of the command, by name; each makes text of the frames that `Shown.frame` gives.
    """

    title: str
    tables: tuple[Table, ...]
    figures: tuple[Any, ...] = ()
    conditions: Callable[[DataFrame], Sequence[str]] | None = None
    tiles: Sequence[tuple[str, str]] = TILES
    writers: Mapping[str, Callable[[Callable[[str], DataFrame]], str]] = field(default_factory=dict)

    @classmethod
    def of(cls, command: str) -> Catalogue:
        """The catalogue of a command."""
        module = import_module(f".catalogue.{command}", __package__)
        further = (getattr(module, "FIGURES", ()), getattr(module, "CONDITIONS", None), getattr(module, "TILES", TILES))
        return cls(module.TITLE, module.TABLES, *further, getattr(module, "WRITERS", {}))

    @property
    def columns(self) -> list[Column]:
        """All columns that the tables may have."""
        return [column for table in self.tables for column in table.every]


@dataclass(frozen=True)
class Drawn:
    """One kind of figure of a run.

    Attributes:
        stem: the beginning of the names of its files. draw: draws into a folder and returns the files.
        nothing: the message if there is nothing to draw. remark: a message after drawing.
    """

    stem: str
    draw: Callable[[Path], list[Path]]
    nothing: str
    remark: str = ""


@dataclass(frozen=True)
class Shown:
    """A command's tables and figures of one run.

    Attributes:
        frame: gives the frame of a kind of rows. header: what was measured, on what.
        columns: names of columns that the user chose. run: the folder. style: of figures.
        inputs: the statistics of Q, K and V as tables of their own; None if the run has no statistics.
        files: contents of further files for the run's folder, by name. companions: further tables of the run.
        apart: columns of `Table.within` whose values have a grid each.
        best: names the best method at each place and budget (see `attnprobe.judge.best.Best`).
        metric: replaces the main metric in figures. overlay: values of papers (see `sheets`).
        remarks: messages by kind of rows, for when a figure of that kind is drawn.
    """

    command: str
    catalogue: Catalogue
    frame: Callable[[str], DataFrame]
    header: Header
    run: str | None = None
    columns: Sequence[str] = ()
    style: str = "paper"
    inputs: Shown | None = None
    files: Mapping[str, Any] = field(default_factory=dict)
    companions: Sequence[Shown] = ()
    apart: Sequence[str] = ()
    best: Any = None
    metric: str | None = None
    overlay: Any = None
    remarks: Mapping[str, str] = field(default_factory=dict)
    # by kind and table; a copy with other columns has the same rows
    _selections: dict[tuple[str, str], Selection] = field(default_factory=dict, repr=False)

    @property
    def title(self) -> str:
        return self.catalogue.title

    @property
    def tiles(self) -> Sequence[tuple[str, str]]:
        return self.catalogue.tiles

    @property
    def result(self) -> str:
        """The sentence of the first table that has one."""
        return next((grid.sentence for grid in self.tables if grid.sentence), "")

    @cached_property
    def tables(self) -> list[Grid]:
        """The filled tables. A table without any of the chosen columns is left out."""
        filled = []
        for table in self.catalogue.tables:
            names = [name for name in self.columns if _has(table, name) and self._measures(table, name)]
            if names or not self.columns:
                each = [name for name in table.within if name in self.apart]
                filled += [self._told(grid) for grid in grids(self._selection(table), names or None, each)]
        return filled

    def _selection(self, table: Table) -> Selection:
        key = table.kind, table.name
        if key not in self._selections:
            self._selections[key] = Selection.of(self.frame(table.kind), table)
        return self._selections[key]

    def _measures(self, table: Table, name: str) -> bool:
        """Whether a table's rows may have the metric of a column. Rows of heads may have any metric."""
        metric = name.removeprefix("+").partition(".")[0]
        if table.kind == HEAD or any(metric == column.name.partition(".")[0] for column in table.every):
            return True
        frame = self.frame(table.kind)
        return metric in (table.prepared(frame) if table.prepared else frame)

    def _told(self, grid: Grid) -> Grid:
        """The grid with the best method at each budget as its sentence."""
        if not grid.table.of_best or not self.duels:
            return grid
        place = {name: value for name, value in grid.place.items() if name in self.duels[0]}
        if "layer" not in place and len({duel["layer"] for duel in self.duels}) > 1:
            place["layer"] = None  # the duel over all layers together
        duels = [duel for duel in self.duels if all(duel[name] == (value or None) for name, value in place.items())]
        sentence = self.best.sentence(duels, grid.table.of_best)
        return replace(grid, sentence=sentence, reasons=(*grid.reasons, *self.best.doubts(duels)))

    @cached_property
    def duels(self) -> list[dict[str, Any]]:
        """The best method against the next one at each place and budget; all layers together stand first."""
        found = []
        for table in (table for table in self.catalogue.tables if table.of_best and self.best):
            frame = self.frame(table.kind)
            pooled = [()] if len(frame["layer"].dropna().unique()) > 1 else []
            for each in dict.fromkeys((*pooled, table.within)):
                selection = self._selection(table)
                found += self.best.methods(selection.rows, selection.lines(each), table, each)
        return found

    def with_columns(self, names: Sequence[str]) -> Shown:
        """The same with these columns alone.

        Raises:
            UsageError: a column that no table has.
        """
        check_columns([self.catalogue], names)
        return replace(self, columns=tuple(names))

    @cached_property
    def lines(self) -> list[tuple[Table, DataFrame]]:
        """The tables that have rows, each with its lines in full precision; the first table if none has rows."""
        selections = [self._selection(table) for table in self.catalogue.tables]
        filled = [selection for selection in selections if not selection.rows.empty] or selections[:1]
        of_tables = [(selection.table, selection.lines(selection.table.within)) for selection in filled]
        return [(table, with_computed(lines, table, table.within)) for table, lines in of_tables]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of all tables as JSON has them, each with the name of its table."""
        return [{"table": table.name, **row} for table, lines in self.lines for row in json_rows(lines)]

    def text(
        self,
        format: str,
        width: int | None = None,
        columns: Sequence[str] = (),
        above: Sequence[str] = (),
        announced: Collection[str] = (),
    ) -> str:
        """The tables in a format of `attnprobe.show.formats`, without a final newline.

        ``json``, ``jsonl`` and ``csv`` have every statistic in full precision; ``jsonl`` and ``csv`` have the first
        table with lines alone.

        Args:
            width: of the terminal. columns: names of columns of tables.
            above: lines of Markdown that stand first in ``github``.
            announced: warnings that the terminal has shown already; they are not repeated.
        """
        check_format(format, columns, tuple(self.catalogue.writers))
        if format in self.catalogue.writers:
            return self.catalogue.writers[format](self.frame)
        if format == "json":
            from ..frame.records.file import SCHEMA, strict_json

            contents = {"schema": SCHEMA, "command": self.command, "source": self.header.source, "run": self.run}
            best = {"best": self.duels} if self.best is not None else {}
            return strict_json({**contents, "rows": self.rows, **best}, indent=2)
        if format in ("csv", "jsonl"):
            _, lines = self.lines[0]
            if format == "jsonl":
                return jsonl(lines).rstrip("\n")
            return csv(_fields_of(lines, columns) if columns else lines).rstrip("\n")
        chosen = self.with_columns(columns) if columns else self
        if format == "latex":
            return latex(chosen.tables).rstrip("\n")
        if format in ("md", "github"):
            facts = [f"- {escaped(line)}" for line in self.header.facts]
            lines = [*(above if format == "github" else ()), *facts, "", markdown(chosen.tables)]
            return "\n".join(lines).strip()
        tty, room = _terminal(width)
        text = terminal(chosen.tables, room, tty) if chosen.tables else "no rows\n"
        below = [] if self.run is None else [f"run: {one_line(self.run)}"]
        return "\n".join([*map(one_line, self.header.above(announced)), "", text, *below])

    @property
    def figures(self) -> dict[str, Drawn]:
        """The figures of the catalogue by name."""
        return {figure.name: self._drawn(figure) for figure in map(self._judging, self.catalogue.figures)}

    def _judging(self, figure: Any) -> Any:
        """The figure, with the chosen metric in place of the main metric."""
        main = next((table.metric for table in self.catalogue.tables if table.metric), "")
        return figure.of_metric(main, self.metric) if self.metric and main else figure

    def _rows_of(self, figure: Any) -> DataFrame:
        """The rows that a figure draws. A figure that needs values of papers has no rows without them."""
        frame = self.frame(figure.kind)
        return frame.iloc[:0] if figure.overlaid and self._overlay(figure) is None else frame

    def _overlay(self, figure: Any) -> Any:
        """The values of papers, if a figure shows their metric."""
        return self.overlay if self.overlay is not None and figure.y in self.overlay else None

    def _drawn(self, figure: Any) -> Drawn:
        """A figure of the catalogue, which is drawn when its files are asked for."""

        def draw(folder: Path) -> list[Path]:
            from .figure import save, sheets

            rows, overlay = self._rows_of(figure), self._overlay(figure)
            shared = {"methods": self.frame(CELL), "overlay": overlay}
            drawn = sheets(rows, figure, self.style, **shared) if len(rows) else []
            stems = [figure.name if len(drawn) == 1 else f"{figure.name}-{part}" for part in range(1, len(drawn) + 1)]
            caption = f"{figure.title}\n\n{figure.caption}"
            files = zip(stems, drawn, strict=True)
            return [path for stem, sheet in files for path in save(sheet, folder / stem, self.style, caption)]

        return Drawn(figure.name, draw, figure.nothing, self.remarks.get(figure.kind, ""))

    def plot(self, name: str, ax: Any = None, panel: int | str = 0, legend: bool = True) -> Any:
        """Draw one panel of a figure on an axis of matplotlib, by default a new axis. Returns the axis.

        Raises:
            UsageError: nothing to draw, no such panel.
        """
        from .drawing import new_axis
        from .figure import draw

        figure = self._judging(next(figure for figure in self.catalogue.figures if figure.name == name))
        rows, overlay = self._rows_of(figure), self._overlay(figure)
        if not len(rows):
            raise UsageError(f"{name}: {figure.nothing}")
        axis = new_axis() if ax is None else ax
        draw(rows, figure, self.style, axis, methods=self.frame(CELL), overlay=overlay, panel=panel)
        if not legend and (drawn := axis.get_legend()) is not None:
            drawn.remove()
        return axis

    @property
    def gate_lines(self) -> list[dict[str, Any]]:
        """The lines that gates judge: each table's lines, at each layer, n and source by itself."""
        return [line for table in self.catalogue.tables if table.by for line in self._gate_lines(table)]

    def _gate_lines(self, table: Table) -> list[dict[str, Any]]:
        frame = self.frame(table.kind)
        # a limit holds at each place by itself, also where the table takes places together
        places = [name for name in PLACES if name not in table.pooled and name in frame]
        lines = json_rows(self._selection(table).lines(places))
        own = [name for name in (*table.each, *table.by) if name not in NAMED]
        return [
            {
                "table": table.beside or table.name,
                **_of_group(table, line),
                **line,
                "at": {name: line[name] for name in own if line[name] is not None},
            }
            for line in lines
        ]


def check_columns(catalogues: Sequence[Catalogue], names: Sequence[str], of_lines: bool = False) -> None:
    """Refuse a column that no table has.

    Args:
        of_lines: whether the names are of CSV, whose columns are the fields of a table's lines.
    """
    tables = [table for catalogue in catalogues for table in catalogue.tables]
    for name in names:
        plain = name.removeprefix("+")
        if of_lines:
            known = [field for table in tables for field in _fields(table)]
            metric, _, statistic = plain.partition(".")
            is_known = plain in known or metric in METRICS and statistic in STATISTICS
        else:
            known = [column.name for table in tables for column in table.every]
            is_known = any(_has(table, plain) for table in tables)
        if not is_known:
            raise unknown("column", plain, list(dict.fromkeys(known)))


def _fields(table: Table) -> list[str]:
    """The columns of a table's lines that CSV may name: those that are no statistics, and the fields of its columns."""
    shown = [field for column in table.every for field in column.fields]
    return [*table.each, *table.by, *OF_SERIES, *COUNTS, *STATE, *table.of_groups, *shown]


def fields(catalogue: Catalogue, shape: RowTypes) -> list[str]:
    """The names of all fields that CSV of the first table may have."""
    from ..frame.read import frame_of

    table = catalogue.tables[0]
    empty = Selection.of(frame_of([], shape, table.kind, {}), table).lines(table.within)
    models = (shape.cell, *(model for kind, model in shape.kinds.items() if kind == table.kind))
    measured = {name: None for model in models for name in model.model_fields}
    measured |= {column.value.partition(".")[0]: None for column in table.every if isinstance(column.value, str)}
    statistics = [f"{name}.{statistic}" for name in measured if name in METRICS for statistic in STATISTICS]
    return [*dict.fromkeys([*with_computed(empty, table, table.within).columns, *statistics])]


def _fields_of(lines: DataFrame, names: Sequence[str]) -> DataFrame:
    """The lines with these fields alone. ``METRIC`` stands for each ``METRIC.STAT``. An unknown field is empty."""
    fields: list[str] = []
    for name in names:
        of_metric = [] if name in lines else [field for field in lines if field.startswith(f"{name}.")]
        fields += of_metric or [name]
    return lines.reindex(columns=[*dict.fromkeys(fields)])


def _has(table: Table, name: str) -> bool:
    """Whether a table may show a column."""
    try:
        table.chosen([name.removeprefix("+")])
    except UsageError:
        return False
    return True


def _of_group(table: Table, line: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics of a metric of which a line has one number, for gates: each statistic is that number."""
    numbers = {name: line[name] for name in table.of_groups if name in METRICS}
    counts = {f"{name}.count": 0 if number is None else line["values"] or 1 for name, number in numbers.items()}
    # so that ``--fail-above time_exponent.max=1`` works although a line has one exponent
    return {f"{name}.{stat}": number for name, number in numbers.items() for stat in STATISTICS[:-1]} | counts


def stdout_width(piped: int = WIDTH) -> int:
    """The columns of standard output.

    Args:
        piped: the columns of a pipe, unless the variable COLUMNS sets them.
    """
    import os
    import shutil
    import sys

    return shutil.get_terminal_size((piped, 24)).columns if sys.stdout.isatty() or "COLUMNS" in os.environ else piped


def _terminal(width: int | None) -> tuple[bool, int]:
    """Whether standard output is a terminal, and the width of tables there."""
    import sys

    return width is not None or sys.stdout.isatty(), width or stdout_width()
