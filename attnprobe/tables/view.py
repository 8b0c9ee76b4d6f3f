"""A command's results as data, and their rendering in every format."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import UsageError, nearest
from ..files import Fields
from ..records.file import SCHEMA, encode_inf, strict_json
from ..show.writers import check_format
from .console import Header
from .formats import csv_of, github, markdown, rows_as_table
from .inputs import INPUTS_LEGEND, input_tables
from .latex import latex
from .marks import marks_legend
from .table import Column, Table, legend_of
from .terminal import plain_tables

Draw = Callable[[Path], list[Path]]
TILES = (("head", "heads"), ("layer", "layer"), ("text window", "window"))


@dataclass(frozen=True)
class Figure:
    """One kind of figure.

    Attributes:
        stem: what the names of its files begin with. draw: draws into a folder and returns the files.
        nothing: the reason if there is none. remark: a note that is printed if it is drawn.
    """

    stem: str
    draw: Draw
    nothing: str
    remark: str = ""


@dataclass(frozen=True)
class View:
    """The results of one command.

    Attributes:
        command: its name, in JSON and in the names of files. title: in words. result: the result in a
            sentence or two.
        rows, bounds: a line each in JSONL and CSV, the bounds last. summary, more: what stands beside the rows in JSON.
        tables: for people. legend: sentences of their legend, before those on columns.
        columns: all columns that the tables may have, also those that are empty in this run. fields: the names of all
            fields that the rows may have.
        judged: the rows that gates judge. figures: by kind. files: JSON beside the records, by name.
        tiles: what a page counts: names, and the fields of records whose different values are counted.
        companions: other views, whose tables are written too. run: the run's folder, where there is one. stem: what
            the labels of LaTeX's tables begin with if there is none.
    """

    command: str
    header: Header
    rows: Sequence[Fields]
    tables: Sequence[Table]
    legend: Sequence[str] = ()
    columns: Sequence[Column] = ()
    fields: Sequence[str] = ()
    title: str = ""
    result: str = ""
    bounds: Sequence[Fields] = ()
    summary: Sequence[Fields] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    judged: Sequence[Fields] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    tiles: Sequence[tuple[str, str]] = TILES
    companions: Sequence[View] = ()
    run: str | None = None
    stem: str = ""

    def of_run(self, folder: Path) -> View:
        """The view with the name of the run's folder."""
        return replace(self, run=str(folder), companions=[replace(one, run=str(folder)) for one in self.companions])

    @property
    def inputs(self) -> View | None:
        """The statistics of Q, K and V as a view of their own; None if the header has none."""
        if not self.header.inputs:
            return None
        above = replace(self.header, inputs=(), measured=())
        rows = self.header.inputs
        words = {"title": "Statistics of Q, K and V", "stem": Path(self.run or "").name}
        return replace(flat_view("inputs", rows, above), tables=input_tables(rows), legend=INPUTS_LEGEND, **words)

    @property
    def full_legend(self) -> list[str]:
        """The legend of marks, of the command, and of each column, in sentences."""
        columns = [column for table in self.tables for column in table.columns]
        return [*marks_legend(self.tables), *self.legend, *(entry.text for entry in legend_of(columns, full=True))]

    @property
    def gate_lines(self) -> list[Fields]:
        """The lines that gates judge."""
        return flat_lines(self.judged)

    def text(
        self,
        format: str,
        width: int | None = None,
        columns: Sequence[str] = (),
        above: Sequence[str] = (),
    ) -> str:
        """The view in a format, without a final newline.

        ``json`` is one object; ``jsonl`` and ``csv`` are a line for each row, at full precision, infinity as the text
        ``"inf"`` and NaN as null; ``table``, ``md``, ``latex`` and ``github`` round to three or four digits.

        Args:
            width: the terminal's, for ``table``; None asks standard output.
            columns: names of the columns to show, in this order; of ``csv`` the names of its fields. A table that has
                none of them beside its key columns is left out.
            above: lines of Markdown that stand first in ``github``, the summary of a CI job.

        Raises:
            UsageError: an unknown format or column, or columns of a format that has none.
        """
        check_format(format, columns)
        if format == "json":
            contents = {
                "schema": SCHEMA,
                "command": self.command,
                "source": self.header.source,
                "rows": self.rows,
                "bounds": self.bounds,
                "run": self.run,
                **self.more,
                **({"inputs": self.header.inputs} if self.header.inputs else {}),
                **({} if self.summary is None else {"summary": self.summary}),
            }
            return strict_json(encode_inf(contents), indent=2)
        if format == "jsonl":
            return "\n".join(strict_json(encode_inf(row)) for row in [*self.rows, *self.bounds])
        if format == "csv":
            return csv_of([*self.rows, *self.bounds], columns, self.fields)
        chosen = self.with_columns(columns) if columns else self
        if format == "table":
            return plain_tables(
                chosen.tables,
                chosen.legend,
                chosen.header,
                chosen.run,
                width,
                result=self.result if len(self.tables) > 1 else "",
            )
        if format == "github":
            return github(chosen.tables, chosen.full_legend, chosen.header, chosen.run, above)
        if format == "latex":
            label = f"{Path(self.run or '').name or self.stem}-{self.command}"
            return latex(chosen.tables, chosen.legend, chosen.header, chosen.run, label, self.title, columns)
        return markdown(chosen.tables, chosen.full_legend, chosen.header, chosen.run)

    def with_columns(self, names: Sequence[str]) -> View:
        """The view with only these columns, in this order; other key columns come first. Its legend names empty ones.

        A table with none of these columns is left out; key columns count only if no others are named.
        """
        known = [column for table in self.tables for column in table.columns]
        check_columns([*self.columns, *known], names)
        telling = [name for name in names if any(is_called(column, name) and not column.key for column in known)]
        tables = []
        for table in self.tables:
            places: list[int] = []
            for name in names:
                places += [place for place, column in enumerate(table.columns) if is_called(column, name)]
            if any(is_called(column, name) for column in table.columns for name in telling or names):
                keys = [place for place, column in enumerate(table.columns) if column.key and place not in places]
                tables.append(table.with_columns(list(dict.fromkeys([*keys, *places]))))
        shown = [column for table in tables for column in table.columns]
        empty = [name for name in names if not any(is_called(column, name) for column in shown)]
        lines = [f"Empty in this run: {', '.join(empty)}."] if empty else []
        return replace(self, tables=tables, legend=[*self.legend, *lines])


def flat_lines(rows: Sequence[Fields]) -> list[Fields]:
    """Rows with ``metrics`` and ``fragile`` as lines of a summary, which gates judge (see `attnprobe.judge.gates`)."""
    lines = []
    for row in rows:
        judges, doubts = row.get("judges"), row.get("fragile") or {}
        line = {name: value for name, value in row.items() if name not in ("metrics", "fragile", "judges")}
        values = row.get("values") or row.get("cells") or row.get("heads")
        line |= {"table": str(judges) if judges else row.get("table"), "values": values}
        for metric, statistics in (row.get("metrics") or {}).items():
            if statistics is not None and (judges is None or metric in judges):
                of = statistics.get("of", row.get("cells" if metric == "seconds" else "values"))
                if statistics.get("count") == of:
                    statistics = {**statistics, "count": values or of}
                line |= {f"{metric}.{name}": value for name, value in statistics.items()}
                line |= {f"{metric}.{name}.fragile": True for name in doubts.get(metric, ())}
        lines.append(line)
    return lines


def flat_view(command: str, rows: Sequence[Fields], header: Header | None = None) -> View:
    """Any rows with a column for each field, for results without a layout of their own."""
    return View(command, header or Header(), rows, [rows_as_table(command, rows)] if rows else [])


def spelling(name: str) -> str:
    """A column's name for comparison: letters and digits, with Greek letters as words.

    >>> spelling("d for ε"), spelling("error / V-Mean"), spelling("‖E‖₂"), spelling("D_for_epsilon")
    ('dforepsilon', 'errorvmean', 'e2', 'dforepsilon')
    """
    letters = []
    for character in unicodedata.normalize("NFKC", name):
        words = unicodedata.name(character, "").split()
        if words[:1] == ["GREEK"]:
            character = words[-1]
        if character.isalnum():
            letters.append(character.casefold())
    return "".join(letters) or name.strip()


def is_called(column: Column, name: str) -> bool:
    """Whether this is the name of a column, or its heading."""
    return spelling(name) in (spelling(column.name), spelling(column.title))


def check_columns(columns: Iterable[Column], names: Iterable[str]) -> None:
    """Refuse an unknown column."""
    columns = list(columns)
    known = list(dict.fromkeys(column.name for column in columns if column.name))
    for name in names:
        if not any(is_called(column, name) for column in columns):
            near = nearest(name, known)
            choices = "" if "choose from" in near else f" Columns: {', '.join(known)}"
            raise UsageError(f"unknown column '{name}'{near}{choices}")
