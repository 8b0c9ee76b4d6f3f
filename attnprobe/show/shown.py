"""What a command shows of a run: its tables in every format, its figures, and the lines that gates judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, unknown
from ..frame.metric import METRICS
from ..frame.summary import STATISTICS
from ..grammar.foreign import one_line
from .grid import Grid, grids, summarised
from .table import Column, Table
from .writers import check_format, csv, json_rows, jsonl, latex, markdown, terminal
from .writers.markdown import escaped

if TYPE_CHECKING:
    from pandas import DataFrame

WIDTH = 100  # of a table in a pipe
PLACES = ("source", "weights", "scale_inputs", "target", "n", "d", "layer", "name", "method", "options", "requested")
NAMED = (*PLACES, "reference")  # which the name of a gate's result has anyway


@dataclass(frozen=True)
class Catalogue:
    """What ``show/catalogue/COMMAND.py`` declares: ``TITLE``, ``TABLES``, ``FIGURES``, ``CONDITIONS``.

    Attributes:
        conditions: lines on how it was measured, from the frame of kind ``cell``; they stand above the tables.
    """

    title: str
    tables: tuple[Table, ...]
    figures: tuple[Any, ...] = ()
    conditions: Callable[[DataFrame], Sequence[str]] | None = None

    @classmethod
    def of(cls, command: str) -> Catalogue:
        """The catalogue of a command."""
        module = import_module(f".catalogue.{command}", __package__)
        further = (getattr(module, "FIGURES", ()), getattr(module, "CONDITIONS", None))
        return cls(module.TITLE, module.TABLES, *further)

    @property
    def columns(self) -> list[Column]:
        """All columns that the tables may have."""
        return [column for table in self.tables for column in table.every]


@dataclass(frozen=True)
class Drawn:
    """One kind of figure of a run.

    Attributes:
        stem: what the names of its files begin with. draw: draws into a folder and returns the files.
        nothing: what is said if there is nothing to draw.
    """

    stem: str
    draw: Callable[[Path], list[Path]]
    nothing: str
    remark: str = ""


@dataclass(frozen=True)
class Shown:
    """A command's tables and figures of one run.

    Attributes:
        frame: the frame of a kind of rows. header: what was measured, on what.
        columns: names of columns that the user chose. run: the folder. style: of figures.
        inputs: the statistics of Q, K and V as a view; None if the run has none.
    """

    command: str
    catalogue: Catalogue
    frame: Callable[[str], DataFrame]
    header: Any
    run: str | None = None
    columns: Sequence[str] = ()
    style: str = "paper"
    inputs: Any = None
    files: Mapping[str, Any] = field(default_factory=dict)
    companions: Sequence[Any] = ()
    tiles: Sequence[tuple[str, str]] = (("head", "heads"), ("layer", "layer"), ("text window", "window"))

    @property
    def title(self) -> str:
        return self.catalogue.title

    @property
    def result(self) -> str:
        """The sentence of the first table that has one."""
        return next((grid.sentence for grid in self.tables if grid.sentence), "")

    @cached_property
    def tables(self) -> list[Grid]:
        """The filled tables. Those that have none of the chosen columns are left out."""
        filled = []
        for table in self.catalogue.tables:
            names = [name for name in self.columns if _has(table, name)]
            if names or not self.columns:
                filled += grids(self.frame(table.kind), table, names or None)
        return filled

    def with_columns(self, names: Sequence[str]) -> Shown:
        """The same with these columns alone.

        Raises:
            UsageError: a column that no table has.
        """
        for name in names:
            if not any(_has(table, name) for table in self.catalogue.tables):
                raise unknown("column", name.removeprefix("+"), [column.name for column in self.catalogue.columns])
        return replace(self, columns=tuple(names))

    @cached_property
    def lines(self) -> list[DataFrame]:
        """The lines of each table in full precision."""
        return [summarised(self.frame(table.kind), table) for table in self.catalogue.tables]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of all tables as JSON has them, each with the name of its table."""
        tables = zip(self.catalogue.tables, self.lines, strict=True)
        return [{"table": table.name, **row} for table, lines in tables for row in json_rows(lines)]

    def text(
        self,
        format: str,
        width: int | None = None,
        columns: Sequence[str] = (),
        full: bool = False,
        above: Sequence[str] = (),
    ) -> str:
        """The tables in a format of `attnprobe.show.writers.FORMATS`, without a final newline.

        ``json``, ``jsonl`` and ``csv`` have every statistic in full precision; ``csv`` is of the first table.

        Args:
            width: the terminal's. columns: names of columns of tables. full: whether all facts of the source stand
                above. above: lines of Markdown that stand first in ``github``.
        """
        check_format(format, columns)
        if format == "json":
            from ..records.file import SCHEMA, strict_json

            contents = {"schema": SCHEMA, "command": self.command, "source": self.header.source, "run": self.run}
            return strict_json({**contents, "rows": self.rows}, indent=2)
        if format in ("csv", "jsonl"):
            lines = self.lines[0]
            if format == "jsonl":
                return jsonl(lines).rstrip("\n")
            return csv(lines.loc[:, [*columns]] if columns else lines).rstrip("\n")
        chosen = self.with_columns(columns) if columns else self
        if format == "latex":
            return latex(chosen.tables).rstrip("\n")
        if format in ("md", "github"):
            facts = [f"- {escaped(line)}" for line in self.header.facts]
            lines = [*(above if format == "github" else ()), *facts, "", markdown(chosen.tables)]
            return "\n".join(lines).strip()
        tty, room = _terminal(width)
        text = terminal(chosen.tables, room, tty) if chosen.tables else "no rows\n"
        last = [] if self.run is None else [f"run: {one_line(self.run)}"]
        return "\n".join([*self._above(full), "", text, *last])

    def _above(self, full: bool) -> list[str]:
        """What was measured in plain words, then warnings that were not told yet."""
        header = self.header
        told = [f"! {line}" for line in header.warnings if line not in header.announced]
        facts = header.facts if full or not header.first else header.remarks
        return [*map(one_line, [*filter(None, [header.first]), *facts, *told, *(header.measured if full else ())])]

    @property
    def figures(self) -> dict[str, Drawn]:
        """The figures of the catalogue by name."""
        return {figure.name: self._drawn(figure) for figure in self.catalogue.figures}

    def _drawn(self, figure: Any) -> Drawn:
        def draw(folder: Path) -> list[Path]:
            from .figure import save, sheets

            frame = self.frame(figure.kind)
            drawn = sheets(frame, figure, self.style)
            stems = [figure.name if len(drawn) == 1 else f"{figure.name}-{part}" for part in range(1, len(drawn) + 1)]
            return [path for stem, sheet in zip(stems, drawn, strict=True) for path in save(sheet, folder / stem)]

        return Drawn(figure.name, draw, f"the run has no rows of kind {figure.kind} to draw")

    @property
    def full_legend(self) -> list[str]:
        return []

    @property
    def gate_lines(self) -> list[dict[str, Any]]:
        """The lines that gates judge: each table's lines, at each layer, n and source by itself."""
        return [line for table in self.catalogue.tables if table.by for line in self._gate_lines(table)]

    def _gate_lines(self, table: Table) -> list[dict[str, Any]]:
        frame = self.frame(table.kind)
        whole = [name for name in PLACES if name not in table.pooled]
        lines = json_rows(summarised(frame, table, each=[name for name in whole if name in frame]))
        own = [name for name in (*table.each, *table.by) if name not in NAMED]
        return [
            {
                "table": table.name,
                **_of_group(table, line),
                **line,
                "at": {name: line[name] for name in own if line[name] is not None},
            }
            for line in lines
        ]


def _has(table: Table, name: str) -> bool:
    try:
        table.chosen([name.removeprefix("+")])
    except UsageError:
        return False
    return True


def _of_group(table: Table, line: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics of numbers of which a line has one each."""
    numbers = {name: line[name] for name in table.of_groups if name in METRICS}
    counts = {f"{name}.count": 0 if one is None else line["values"] or 1 for name, one in numbers.items()}
    return {f"{name}.{stat}": one for name, one in numbers.items() for stat in STATISTICS[:-1]} | counts


def stdout_width(piped: int = WIDTH) -> int:
    """The columns of standard output.

    Args:
        piped: those of a pipe where COLUMNS says nothing.
    """
    import os
    import shutil
    import sys

    return shutil.get_terminal_size((piped, 24)).columns if sys.stdout.isatty() or "COLUMNS" in os.environ else piped


def _terminal(width: int | None) -> tuple[bool, int]:
    """Whether standard output is a terminal, and the width of tables there."""
    import sys

    return width is not None or sys.stdout.isatty(), width or stdout_width()
