"""Tables for a terminal (or a pipe, where no digit may be lost), drawn by rich."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.table import Table as Drawn
from rich.text import Text

from ..grammar.folding import fold_name, name_parts
from .console import STYLES, UNLIMITED, Header, console_of, finished, print_header
from .marks import SIGNS, marks_legend
from .numbers import aligned
from .table import Entry, Table, gathered, is_word, legend_of

LEGEND_LINES = 3
INTERVAL = " ["  # what an interval behind its number begins with


def plain_tables(
    tables: Sequence[Table],
    legend: Sequence[str],
    header: Header,
    run: str | None = None,
    width: int | None = None,
    marked: bool = True,
    result: str = "",
) -> str:
    """Tables with the header above and the legend below, which has `LEGEND_LINES` lines on the shown columns.

    Columns of words are on the left, others are aligned at the decimal point. A terminal shows the first word of
    several lines once. A pipe has it on each line, so that lines can be searched. A table that is wider than the
    terminal drops its spare columns, or without spare columns some of the columns of numbers. Then words are wrapped,
    intervals stand below their number, and numbers are not aligned.

    Args:
        legend: sentences before those on columns. marked: whether a sentence explains signs and bold cells.
        result: of all tables, in sentences.
        width: the terminal's; ``None`` asks standard output. A pipe has the width that COLUMNS says, or no limit.
    """
    terminal = width is not None or sys.stdout.isatty()
    room = width or stdout_width()
    limited = room < UNLIMITED
    layouts = [Layout.of(table, terminal) for table in tables]
    shown = _fitting(layouts, room)
    wide = [layout.width(columns, layout.words) > room for layout, columns in zip(layouts, shown, strict=True)]
    layouts = [Layout.of(one.table, terminal, aligning=not close) for one, close in zip(layouts, wide, strict=True)]
    drawn = [_drawn(layout, columns, room) for layout, columns in zip(layouts, shown, strict=True)]
    widths = [layout.width(columns) for layout, columns in zip(layouts, shown, strict=True)]
    least = max(
        (layout.width(columns, layout.least) for layout, columns in zip(layouts, shown, strict=True)), default=0
    )
    needed = max(least, min(max(widths, default=0), room))
    console = console_of(max(needed, room if limited else 100), terminal)

    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), width=room, soft_wrap=not limited)

    print_header(line, header)
    for table, one in zip(tables, drawn, strict=True):
        console.print()
        if table.caption:
            line(table.caption, "bold")
        console.print(one)
        if table.notes:
            console.print()
        for note in table.notes:
            line(note, STYLES.get(note[:1], ""))
    if not tables:
        console.print("no rows")
    console.print()
    if result:
        line(result, "bold")
        console.print()
    pairs = list(zip(tables, shown, strict=True))
    columns = [table.columns[i] for table, places in pairs for i in places]
    present = {column.name for column in columns}
    hidden = [column for table, places in pairs for i, column in enumerate(table.columns) if i not in places]
    left_out = list(dict.fromkeys(column.title if column.name in present else column.name for column in hidden))
    if marked:
        legend = [*marks_legend(tables, bold=terminal), *legend]
    entries = [*map(Entry, legend), *legend_of(columns)]
    for one in _legend(entries, left_out, min(room, max(80, min(needed, 120)))):
        line(one, "dim")
    if run is not None:
        console.print(Text(f"run: {run}", style="dim"), soft_wrap=True)
    return finished(console)


def _legend(entries: Sequence[Entry], left_out: Sequence[str], width: int) -> list[str]:
    """As many entries as `LEGEND_LINES` lines hold, then a line that names columns left out and where the rest is."""
    shown: list[str] = []
    rest = False
    for entry in entries:
        if len(_wrapped([*shown, entry.text], width)) <= LEGEND_LINES:
            shown.append(entry.text)
        else:
            rest = True
    pointers = [f"Left out: {', '.join(left_out)} (--columns)."] if left_out else []
    pointers += ["--format md explains the rest."] if rest else []
    return [*_wrapped(shown, width), *_wrapped(pointers, width)]


def _wrapped(entries: Sequence[str], width: int) -> list[str]:
    return textwrap.wrap(" ".join(entries), width, break_long_words=False, break_on_hyphens=False)


def stdout_width(piped: int = UNLIMITED) -> int:
    """The columns of standard output.

    Args:
        piped: those of a pipe where COLUMNS says nothing.
    """
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    columns = os.environ.get("COLUMNS", "")
    return (int(columns) or piped) if columns.isdecimal() and columns.isascii() else piped


@dataclass(frozen=True)
class Layout:
    """A table before the choice of the columns that fit.

    Attributes:
        terminal: whether it is drawn on a terminal, else into a pipe. marks, names: of lines, of their first cells.
        wordy: whether a column holds words.
        headings: the lines of each. cells: of each column, numbers aligned. widths: of each column.
        words: the longest part of each column of words, else its width (see `name_parts`). least: of each column of
            words or intervals.
    """

    table: Table
    terminal: bool
    marks: Sequence[str]
    names: Sequence[str]
    wordy: Sequence[bool]
    headings: Sequence[Sequence[str]]
    cells: Sequence[Sequence[str]]
    widths: Sequence[int]
    words: Sequence[int]
    least: Sequence[int]

    @classmethod
    def of(cls, table: Table, terminal: bool, aligning: bool = True) -> Layout:
        """The layout of a table, with numbers aligned at their points or at their ends."""
        firsts = [line[0].partition(" ") for line in table.lines]
        marks = [mark if mark in SIGNS and name else "" for mark, _, name in firsts]
        names = [first[2] if mark else "".join(first) for mark, first in zip(marks, firsts, strict=True)]
        every = range(len(table.columns))
        texts = [names if i == 0 else [line[i] for line in table.lines] for i in every]
        wordy = [any(map(is_word, column)) for column in texts]
        cells = [aligned(column) if aligning and not wordy[i] else column for i, column in enumerate(texts)]
        headings = [_folded(table, i) for i in every]
        parts = [[*headings[i], *cells[i]] for i in every]
        widths = [max(map(cell_len, part)) for part in parts]
        folded = [min(widths[i], _longest_part(parts[i])) for i in every]
        words = [folded[i] if wordy[i] else widths[i] for i in every]
        spread = [any(INTERVAL in cell for cell in texts[i]) for i in every]
        below = [_longest_part([*headings[i], *texts[i]]) for i in every]  # numbers that are folded are not aligned
        least = [min(words[i], below[i]) if spread[i] else words[i] for i in every]
        return cls(table, terminal, marks, names, wordy, headings, cells, widths, words, least)

    @property
    def every(self) -> Sequence[int]:
        """The places of all columns."""
        return range(len(self.table.columns))

    def folded(self, columns: Sequence[int], room: int) -> dict[int, int]:
        """The widths of columns such that the table fits. Words are folded first, the widest first."""
        widths = {i: self.widths[i] for i in columns}
        excess = self.width(columns) - room
        for i in sorted(columns, key=lambda i: (not self.wordy[i], -self.widths[i])):
            cut = min(max(excess, 0), self.widths[i] - self.least[i])
            widths[i] -= cut
            excess -= cut
        return widths

    def width(self, columns: Sequence[int], of: Sequence[int] | None = None) -> int:
        """The width of the table with these columns; ``of``: the width of each column, not folded by default."""
        widths = self.widths if of is None else of
        marks = [1] if any(self.marks) else []
        return sum([*marks, *(widths[i] for i in columns)]) + 2 * (len(marks) + len(columns) - 1)


def _fitting(layouts: Sequence[Layout], room: int) -> list[Sequence[int]]:
    """The columns that fit, for each table. Tables with the same headings, as spare, have the same columns."""

    def kind(layout: Layout) -> tuple[str, ...]:
        return *layout.table.headings, *layout.table.spare

    columns = {kind(alike[0]): _fitting_columns(alike, room) for alike in gathered(layouts, kind)}
    return [columns[kind(layout)] for layout in layouts]


def _fitting_columns(alike: Sequence[Layout], room: int) -> Sequence[int]:
    """Spare columns go first, then words and intervals are folded, then the last columns of numbers go.

    Columns that identify a row stay, and those that answer a question (`Column.spare` below 0). Of a table without
    spare columns, of more than four, every second column of numbers goes, then the last.
    """
    first = alike[0]
    columns: Sequence[int] = first.every
    for heading in first.table.spare:
        if all(layout.width(columns) <= room for layout in alike):
            return columns
        columns = [i for i in columns if first.table.headings[i] != heading]
    if first.table.spare:
        of = first.table.columns
        others = [i for i in columns if not (of[i].key or of[i].spare < 0 or first.wordy[i])]
        least = 0 if any(of[i].spare < 0 for i in columns) else 1
        while len(others) > least and any(layout.width(columns, layout.least) > room for layout in alike):
            last = others.pop()
            columns = [i for i in columns if i != last]
        return columns
    while len(columns) > 4 and any(layout.width(columns, layout.least) > room for layout in alike):
        numbers = [i for i in columns if not first.wordy[i]]
        columns = [i for i in columns if i not in numbers[2::2]] if len(numbers) > 5 else columns[:-1]
    return columns


def _padded(text: str, width: int, left: bool) -> str:
    """Lines padded to a width. Combining marks, as in C̄, take no column."""
    lines = []
    for line in text.split("\n"):
        spaces = " " * (width - cell_len(line))
        lines.append(line + spaces if left else spaces + line)
    return "\n".join(lines)


def _drawn(layout: Layout, columns: Sequence[int], room: int) -> Drawn:
    """One table, with rules between names if a name has several lines."""
    names, marks = layout.names, layout.marks
    best = {*layout.table.best}
    widths = layout.folded(columns, room)
    drawn = Drawn(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    if any(marks):
        drawn.add_column("", no_wrap=True)
    cells = {i: layout.cells[i] for i in columns}
    for i in columns:
        width, left = widths[i], layout.wordy[i]
        headings = layout.headings[i]
        if width < layout.widths[i]:
            headings = [fold_name(heading, width) for heading in headings]
            cells[i] = [fold_name(text, width) for text in cells[i]]
        heading = "\n".join(_padded(part, width, left) for part in headings)
        drawn.add_column(Text(heading), no_wrap=True, min_width=width)
        cells[i] = [_padded(text, width, left) for text in cells[i]]
    several = any(names[place] == names[place - 1] for place in range(1, len(names)))
    for place, name in enumerate(names):
        again = place > 0 and name == names[place - 1]
        if place and several and not again:
            drawn.add_section()
        line = [Text(cells[i][place], style="bold" if (place, i) in best else "") for i in columns]
        if again and layout.terminal:
            line[0] = Text("")
        if any(marks):
            line.insert(0, Text(marks[place]))
        drawn.add_row(*line, style=STYLES.get(marks[place], ""))
    return drawn


def _folded(table: Table, i: int) -> list[str]:
    """The lines of a heading; two where a heading of the table has two."""
    lines = [heading.strip() for heading in table.columns[i].heading.split("\n")]
    folded = any("\n" in column.heading for column in table.columns)
    return [*lines, ""] if folded and len(lines) == 1 else lines


def _longest_part(texts: Sequence[str]) -> int:
    """The width of the longest part of some names, with the indent of a folded line."""
    return max((cell_len(part.rstrip()) + 1 for text in texts for part in name_parts(text)), default=1)
