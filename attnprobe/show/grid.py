"""Filled tables: a `Selection` has the rows of a `Table` and their lines, and `grids` makes typed cells from them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, unknown
from ..frame.metric import METRICS
from ..frame.read import found_by
from ..frame.summary import STATE
from ..grammar.foreign import one_line
from ..grammar.lists import counted
from .notes import OF_STATUS, ROUNDING, Flag, bold_rule, flag_of
from .table import KEY, SOUND, Column, Computed, Table

if TYPE_CHECKING:
    from pandas import DataFrame

USUAL = {"target": "softmax", "scale_inputs": 1.0}  # values of places that a caption leaves out
ABSENT = {"status": "ok", "bad": False, "over": False, "reference": False}  # the values of lines without these columns
# columns whose value is the same in all rows of a line, unless a table pools them
OF_SERIES = ("method", "family", "reference", "requested", "weights", "scale_inputs", "layers")
Value = float | int | str | bool | None
Keys = dict[str, Value]


@dataclass(frozen=True)
class Cell:
    """One cell of a grid. A writer makes text of these values, in the form of the column.

    Attributes:
        value: a number, which may be infinite, or words; None is empty.
        low, high: the ends of an interval beside the number, ``[low – high]``. half: the number after ±.
        of: the number after a slash, as in 3/72.
        text: the words to show instead of the number. flag: the sign before the text.
        bold: whether the value is the best of its rivals.
    """

    value: Value = None
    low: float | None = None
    high: float | None = None
    half: float | None = None
    of: float | None = None
    text: str = ""
    flag: Flag | None = None
    bold: bool = False

    @property
    def empty(self) -> bool:
        return self.value in (None, "") and not self.text


@dataclass(frozen=True)
class Grid:
    """A filled table: the columns that have values, and a list of cells for each line.

    Attributes:
        keys: the values of the table's columns ``by``, for each line. place: the values of the columns ``each``.
        where: the place and the numbers of heads, windows and repeats, in words.
        apart: the methods without a sign that do not compete for bold cells.
        sentence: the sentence above the cells. reasons: notes on single lines, below the cells.
    """

    table: Table
    columns: tuple[Column, ...]
    cells: list[list[Cell]]
    keys: list[Keys]
    place: Keys = field(default_factory=dict)
    where: str = ""
    sentence: str = ""
    reasons: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """The caption for a terminal."""
        return ": ".join(filter(None, [self.table.title, self.where]))

    @property
    def flags(self) -> set[Flag]:
        """The signs in the cells."""
        return {cell.flag for line in self.cells for cell in line if cell.flag}

    @property
    def rule(self) -> str:
        """Which cells are bold, in words; empty if no cell is."""
        bold = [column for number, column in enumerate(self.columns) if any(line[number].bold for line in self.cells)]
        return bold_rule(bold, self.table.rivals, self.apart) if bold else ""

    @property
    def words(self) -> list[bool]:
        """Whether each column holds words, which stand on the left, and not numbers."""
        numbers = range(len(self.columns))
        return [any(isinstance(line[number].value, str) for line in self.cells) for number in numbers]

    def only(self, columns: Sequence[Column]) -> Grid:
        """The grid with some of its columns."""
        kept = [self.columns.index(column) for column in columns]
        return replace(self, columns=tuple(columns), cells=[[line[number] for number in kept] for line in self.cells])


@dataclass(frozen=True)
class Selection:
    """The rows that a table selects, and their lines, which are made once however many formats show them."""

    table: Table
    rows: DataFrame
    _lines: dict[tuple[str, ...], DataFrame] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, frame: DataFrame, table: Table) -> Selection:
        """The rows of a frame. A metric that was not measured is missing in all rows."""
        frame = table.prepared(frame) if table.prepared else frame
        unmeasured = {
            name: math.nan for name in re.findall(r"\w+", table.rows) if name in METRICS and name not in frame
        }
        frame = frame.assign(**unmeasured)
        frame = frame.assign(**{name: of(frame) for name, of in table.derived.items()})
        return cls(table, found_by(frame, table.rows) if table.rows else frame)

    def lines(self, each: Sequence[str] = ()) -> DataFrame:
        """The lines of the table's grids with all statistics in full precision, as CSV and JSON have them.

        Args:
            each: further columns that tell lines apart. A column of `Table.within` with one value is one of them.
        """
        # such a column parts no line, so that formats with and without it share their lines
        alike = [
            name for name in self.table.within if name in self.rows and len(self.rows[[name]].drop_duplicates()) == 1
        ]
        each = tuple(dict.fromkeys((*(name for name in self.table.within if name in (*each, *alike)), *each)))
        if each not in self._lines:
            self._lines[each] = self._summarised(each)
        return self._lines[each]

    def _summarised(self, each: Sequence[str]) -> DataFrame:
        from ..frame.summary import summary

        rows, table = self.rows, self.table
        if not table.by:  # each row is a line
            return rows.reset_index(drop=True)
        by = line_keys(rows, table, each)
        known = [name for name in rows if (name in METRICS or name in table.derived) and name not in by]
        lines = summary(rows, by, known, table.cluster)
        if table.of_groups:
            groups = _groups(rows, by)
            lines = lines.assign(**{name: [of(group) for group in groups] for name, of in table.of_groups.items()})
        if "reference" in lines and not lines["reference"].is_monotonic_increasing:
            # stable: the other lines keep the order of the run's plan
            lines = lines.sort_values("reference", kind="stable").reset_index(drop=True)
        return lines


def grids(selection: Selection, columns: Sequence[str] | None = None, each: Sequence[str] = ()) -> list[Grid]:
    """The filled table: a grid for each place. Without a row of the table in the frame, there is no grid.

    Lines stand in the order of the frame, references behind methods.

    Args:
        columns: names of columns (see `Table.chosen`).
        each: further columns of the frame whose values have a grid each, such as ``layer``.

    Raises:
        UsageError: a field that is neither a metric nor a column of the frame.
    """
    table, rows = selection.table, selection.rows
    chosen = table.chosen(columns)
    if rows.empty:
        return []
    lines = _with_fields(selection.lines(each), chosen, table)
    filled = [
        (place, rows_here, lines_here, _columns(chosen, table, lines_here))
        for place, rows_here, lines_here in _places(rows, lines, (*table.each, *each))
    ]
    # a column without a value in one grid stays if another grid has one, so that grids compare
    filled_columns = {
        column
        for number, column in enumerate(chosen)
        if any(not cell.empty for *_, columns in filled for cell in columns[number])
    }
    return [
        _grid(table, place, rows_here, lines_here, _kept(filled_columns, dict(zip(chosen, columns, strict=True))))
        for place, rows_here, lines_here, columns in filled
    ]


def _kept(filled_columns: Set[Column], cells: dict[Column, list[Cell]]) -> dict[Column, list[Cell]]:
    """The columns that a grid shows, each with a value in some grid. A column of priority `KEY` needs one in this."""
    kept = {
        column: of_column
        for column, of_column in cells.items()
        if column in filled_columns and (column.priority != KEY or any(not cell.empty for cell in of_column))
    }
    return kept or dict([next(iter(cells.items()))])  # the signs of lines need a first column


def line_keys(rows: DataFrame, table: Table, each: Sequence[str] = ()) -> list[str]:
    """The columns that tell the lines of a table apart, and the columns that have one value in all rows of a line."""
    last = [name for name in OF_SERIES if name in rows and name not in table.pooled]
    return list(dict.fromkeys([*table.each, *each, *table.by, *last]))


def with_computed(lines: DataFrame, table: Table, each: Sequence[str] = ()) -> DataFrame:
    """The lines of a table with the numbers of its computed columns, which are computed place by place.

    A computed column of ready `Cell`s is left out. A computed column that shows a field in other words has the field's
    name, and the field stays as it is.
    """
    import pandas as pd

    columns = {
        column.name: column.value.function
        for column in table.every
        if isinstance(column.value, Computed) and {*column.value.needs} <= {*lines} and column.name not in lines
    }
    if not columns or lines.empty:
        return lines
    groups = _groups(lines, [*table.each, *each]) if (*table.each, *each) else [lines]
    made = pd.concat(
        [group.assign(**{name: [*function(group)] for name, function in columns.items()}) for group in groups]
    )
    ready = [name for name in columns if any(isinstance(value, Cell) for value in made[name])]
    # back in the order of the lines, which the groups have changed
    return made.drop(columns=ready).loc[lines.index]


def legend(table: Table) -> Grid:
    """A grid with the name and meaning of each column that the table may have."""
    columns = Column("column", "name", priority=KEY), Column("heading", "heading"), Column("meaning", "meaning")
    texts = [(column.name, column.title, column.meaning) for column in table.every]
    shown = Table(f"{table.name}-columns", f"Columns of {table.name}", columns=columns)
    return Grid(
        shown, columns, [[Cell(text) for text in line] for line in texts], [{"name": line[0]} for line in texts]
    )


def _with_fields(lines: DataFrame, columns: Sequence[Column], table: Table) -> DataFrame:
    """The lines with the statistics of metrics that were not measured, as missing values.

    Raises:
        UsageError: a field is missing that is no statistic.
    """
    missing = [name for column in columns for name in column.fields if name not in lines]
    for name in missing:
        if "." not in name:
            raise UsageError(f"table {table.name}: {unknown('column of the frame', name, map(str, lines))}")
    return lines.assign(**dict.fromkeys(missing, math.nan))


def _places(rows: DataFrame, lines: DataFrame, each: Sequence[str]) -> Iterator[tuple[Keys, DataFrame, DataFrame]]:
    """The rows and the lines of each place, in the order of the rows."""
    if not each:
        yield {}, rows, lines.reset_index(drop=True)
        return
    by_place = {tuple(_keys(group, each).values()): group for group in _groups(lines, each)}
    for group in _groups(rows, each):
        place = _keys(group, each)
        yield place, group, by_place[tuple(place.values())].reset_index(drop=True)


def _groups(frame: DataFrame, names: Sequence[str]) -> list[DataFrame]:
    return [group for _, group in frame.groupby(list(names), sort=False, dropna=False, observed=True)]


def _keys(group: DataFrame, names: Iterable[str]) -> Keys:
    """The values of these columns in the first row."""
    return {name: plain(group[name].iloc[0]) for name in names}


def _values(lines: DataFrame, names: Sequence[str]) -> list[tuple[Value, ...]]:
    """The values of these columns in each line."""
    return list(zip(*(map(plain, lines[name]) for name in names), strict=True)) if names else [()] * len(lines)


def plain(value: Any) -> Any:
    """A value of a frame as one of Python, words on one line; None if it is missing."""
    if isinstance(value, str):
        return one_line(value)
    if value is None or isinstance(value, Cell):
        return value
    value = value.item() if hasattr(value, "item") else value
    # by their texts, so that pandas need not be imported for it
    return None if str(value) in ("<NA>", "nan", "NaT") else value


def _columns(columns: Sequence[Column], table: Table, lines: DataFrame) -> list[list[Cell]]:
    """The cells of each column, with the best cells in bold."""
    rivals = _rivals(table, lines) if any(column.best for column in columns) else {}
    filled = [_cells(column, lines) for column in columns]
    return [
        _emboldened(cells, column.best, rivals) if column.best else cells
        for column, cells in zip(columns, filled, strict=True)
    ]


def _cells(column: Column, lines: DataFrame) -> list[Cell]:
    """The cells of a column, a cell for each line."""
    values = column.value.function(lines) if isinstance(column.value, Computed) else lines[column.value]
    further = {part: getattr(column, part) for part in ("low", "high", "half", "of", "limit")}
    numbers_of = {part: [*map(plain, lines[name])] for part, name in further.items() if name}
    fragile = [f"{name}.fragile" for name in column.shown if f"{name}.fragile" in lines]
    doubtful = [*map(any, lines[fragile].to_numpy(bool))]
    if column.flag:
        doubtful = [doubt or above > 0 for doubt, above in zip(doubtful, lines[column.flag], strict=True)]
    cells = []
    for number, value in enumerate(map(plain, values)):
        if value is None or isinstance(value, Cell):
            cells.append(value or Cell())
            continue
        parts = {part: numbers[number] for part, numbers in numbers_of.items()}
        limit = parts.pop("limit", None)
        # an infinite value was not found up to the limit
        text = f"> {limit:g}" if limit is not None and value == math.inf else ""
        flag = ROUNDING if doubtful[number] else None
        cells.append(Cell(column.words.get(value, value), text=text, flag=flag, **parts))
    return cells


def _rivals(table: Table, lines: DataFrame) -> dict[int, tuple[Value, ...]]:
    """The group of rivals of each line that competes, by the number of the line."""
    sound = found_by(_complete(lines), table.competes)
    return dict(zip(sound.index, _values(sound, table.rivals), strict=True))


def _emboldened(cells: list[Cell], best: str, rivals: Mapping[int, tuple[Value, ...]]) -> list[Cell]:
    """The cells, with the best cell of each group of at least two rivals in bold."""
    groups: dict[tuple[Value, ...], dict[int, float]] = {}
    for number, group in rivals.items():
        value = cells[number].value
        # a flagged value does not compete: the flag says why it may be wrong
        if cells[number].flag is None and isinstance(value, (int, float)) and math.isfinite(value):
            groups.setdefault(group, {})[number] = value
    least_or_most = min if best == "smaller" else max
    # with its number, because a value may be the best of one group and not of another
    leading = {(number, least_or_most(of.values())) for of in groups.values() if len(of) > 1 for number in of}
    return [replace(cell, bold=(number, cell.value) in leading) for number, cell in enumerate(cells)]


def _complete(lines: DataFrame) -> DataFrame:
    """The lines with every column that a query of them names."""
    return lines.assign(**{name: value for name, value in ABSENT.items() if name not in lines})


def _apart(table: Table, lines: DataFrame) -> tuple[str, ...]:
    """The methods without a sign that do not compete: yardsticks, which cost as much as exact attention."""
    sound = found_by(_complete(lines), SOUND)
    out = sound.index.difference(found_by(sound, table.competes).index)
    return tuple(dict.fromkeys(map(str, sound.loc[out, "method"]))) if "method" in sound else ()


def _grid(table: Table, place: Keys, rows: DataFrame, lines: DataFrame, columns: dict[Column, list[Cell]]) -> Grid:
    """The grid of one place, with the sign of each line in its first cell."""
    cells = [list(line) for line in zip(*columns.values(), strict=True)]
    states: DataFrame = lines.loc[:, [name for name in STATE if name in lines]]
    flags = [flag_of(line) for line in states.to_dict("records")]
    cells = [[replace(line[0], flag=flag or line[0].flag), *line[1:]] for line, flag in zip(cells, flags, strict=True)]
    return Grid(
        table,
        tuple(columns),
        cells,
        [dict(zip(table.by, values, strict=True)) for values in _values(lines, table.by)],
        place,
        _where(place, rows),
        one_line(table.sentence(rows)) if table.sentence else "",
        tuple(map(one_line, (*_reasons(table, lines, flags), *(table.notes(rows) if table.notes else ())))),
        _apart(table, lines) if any(column.best for column in columns) else (),
    )


def _where(place: Keys, rows: DataFrame) -> str:
    """A place in words: its values, the layers, and the numbers of heads, windows and repeats.

    Values of `USUAL`, one window and one repeat are left out.
    """
    parts = [
        _named(name, value) for name, value in place.items() if value not in (None, "") and USUAL.get(name) != value
    ]
    if "layer" in rows and "layer" not in place and rows["layer"].dtype != object:
        layers = sorted(rows["layer"].dropna().unique())
        if layers:
            parts.append(counted("layer", layers))
    for name, least in {"head": 1, "window": 2, "repeat": 2}.items():
        count = len(rows[name].dropna().unique()) if name in rows else 0
        if count >= least:
            parts.append(f"1 {name}" if count == 1 else f"{count} {name}s")
    return ", ".join(parts)


def _named(name: str, value: Value) -> str:
    """A value with the symbol of its column: ``n = 512``, ``layer 3``; words alone.

    >>> _named("n", 512), _named("layer", 3), _named("theorem", "lemma-1")
    ('n = 512', 'layer 3', 'lemma-1')
    """
    if name not in METRICS:
        return f"{name} {value}" if name in USUAL else str(value)
    symbol = METRICS[name].symbol
    return f"{symbol} = {value:g}" if len(symbol) == 1 else f"{symbol} {value}"


def _reasons(table: Table, lines: DataFrame, flags: Sequence[Flag | None]) -> list[str]:
    """Notes with the reasons of lines that failed or were skipped. Budgets of a method with one reason share a note."""
    budgets: dict[tuple[str, str, str], list[str]] = {}  # by sign, method and reason
    for number, flag in enumerate(flags):
        reason: Any = plain(lines["reason"].iloc[number]) if "reason" in lines else None
        if flag in OF_STATUS.values() and reason:
            keys = _keys(lines.iloc[[number]], table.by)
            d = keys.pop("d", None)
            method = " ".join(str(value) for value in keys.values() if value not in (None, ""))
            of_method = budgets.setdefault((flag.sign if flag else "", method, reason), [])
            if d is not None:
                of_method.append(str(d))
    notes = []
    for (sign, method, reason), of_method in budgets.items():
        of_budgets = f", d = {', '.join(of_method)}" if of_method else ""
        notes.append(f"{sign} {method}{of_budgets}: {reason}")
    return notes
