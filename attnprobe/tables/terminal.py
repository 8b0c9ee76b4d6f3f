"""Tables for a terminal (or a pipe, where no digit may be lost), drawn by rich."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Table as Drawn
from rich.text import Text

from .console import STYLES, UNLIMITED, Header, console_of, finished, print_header, width_of
from .numbers import aligned
from .table import Table, legend_of

__all__ = ["plain_tables", "plan_table", "timings_table"]

MARKS = ("!", "✗", "–")  # of lines


def plain_tables(
    tables: Sequence[Table],
    legend: str,
    header: Header,
    run: str | None = None,
    width: int | None = None,
) -> str:
    """Tables between the header and a legend.

    Columns of words are on the left, others aligned at the decimal point. On a terminal a word that the line above
    begins with too is not repeated, and bands have headings; a pipe may be searched, so there each line says it all.
    A table that is wider than the terminal goes without its spare columns, or where it names none some of the columns
    of numbers; then words are wrapped. The legend says which columns are left out, and what the others mean, before
    ``legend``.

    Args:
        width: the terminal's; ``None`` asks standard output, and a pipe has no width.
    """
    terminal = width is not None or sys.stdout.isatty()
    room = (width or shutil.get_terminal_size().columns) if terminal else UNLIMITED
    shown = _fitting(tables, room, terminal)
    drawn = [_drawn(table, columns, room, terminal) for table, columns in zip(tables, shown, strict=True)]
    least, most = (max((width_of(one, which) for one in drawn), default=0) for which in ("minimum", "maximum"))
    needed = max(least, min(most, room))
    wide = max(needed, room if terminal else 100)
    console = console_of(wide, terminal)
    print_header(console, header, terminal)
    for table, one in zip(tables, drawn, strict=True):
        console.print()
        if table.caption:
            console.print(Text(table.caption, style="bold"), soft_wrap=not terminal)
        console.print(one)
        if table.notes:
            console.print()
        for line in table.notes:
            console.print(Text(line, style=STYLES.get(line[:1], "")), soft_wrap=not terminal)
    if not tables:
        console.print("no rows")
    console.print()
    parts = (legend_of(tables, _headings(tables, shown)), legend, _left_out(tables, shown, terminal))
    console.print(Text(" ".join(filter(None, parts)), style="dim"), width=min(wide, max(80, min(needed, 120))))
    if run is not None:
        console.print(Text(f"run: {run}", style="dim"), soft_wrap=True)
    return finished(console)


def _headings(tables: Sequence[Table], shown: Sequence[Sequence[int]]) -> list[str]:
    return [table.headings[i] for table, columns in zip(tables, shown, strict=True) for i in columns]


def _left_out(tables: Sequence[Table], shown: Sequence[Sequence[int]], terminal: bool) -> str:
    """What the legend says of columns for which there is no room."""
    names = [
        table.headings[i]
        for table, columns in zip(tables, shown, strict=True)
        for i in _columns(table, terminal)
        if i not in columns
    ]
    return f"Left out at this width: {', '.join(dict.fromkeys(names))} (`--format md` has all)." if names else ""


def _has_band_headings(table: Table, terminal: bool) -> bool:
    return terminal and len({*table.bands} - {""}) > 1


def _columns(table: Table, terminal: bool) -> list[int]:
    """The columns but for the one whose words stand as headings of bands."""
    columns = range(len(table.headings))
    if not _has_band_headings(table, terminal):
        return list(columns)
    return [i for i in columns if [line[i] for line in table.lines] != list(table.bands)]


def _fitting(tables: Sequence[Table], room: int, terminal: bool) -> list[list[int]]:
    """Of each table the columns for which there is room; tables with the same headings have the same ones."""
    found: dict[tuple[str, ...], list[int]] = {}
    for headings in dict.fromkeys(tuple(table.headings) for table in tables):
        found[headings] = _fitting_columns([one for one in tables if tuple(one.headings) == headings], room, terminal)
    return [found[tuple(table.headings)] for table in tables]


def _fitting_columns(alike: Sequence[Table], room: int, terminal: bool) -> list[int]:
    """Spare columns go first; without any, of more than four every second column of numbers goes, then the last."""
    table = alike[0]
    columns = _columns(table, terminal)

    def fit(which: str) -> bool:
        return all(width_of(_drawn(one, columns, room, terminal), which) <= room for one in alike)

    for heading in table.spare:
        if fit("maximum"):
            return columns
        columns = [i for i in columns if table.headings[i] != heading]
    while not table.spare and len(columns) > 4 and not fit("minimum"):
        numbers = [i for i in columns if not _is_wordy(table, i)]
        columns = [i for i in columns if i not in numbers[2::2]] if len(numbers) > 5 else columns[:-1]
    return columns


def _is_wordy(table: Table, i: int) -> bool:
    """Whether a column holds words."""
    return any(line[i][:1].isalpha() for line in table.lines)


def _padded(text: str, width: int, left: bool) -> str:
    """The text in so many columns of a terminal; a combining mark, as in C̄, takes none."""
    spaces = " " * (width - cell_len(text))
    return text + spaces if left else spaces + text


def _drawn(table: Table, columns: Sequence[int], room: int, terminal: bool) -> Drawn:
    """One table; where a name has several lines, a rule stands between names."""
    names = [_unmarked(line[0]) for line in table.lines]
    marks = [line[0].removesuffix(name).strip() for line, name in zip(table.lines, names, strict=True)]
    texts = {i: names if i == 0 else [line[i] for line in table.lines] for i in columns}
    wordy = {i: _is_wordy(table, i) for i in columns}
    cells = {i: some if wordy[i] else aligned(some) for i, some in texts.items()}
    headings = {i: _folded(table, i) for i in columns}
    widths = {i: max(map(cell_len, [*headings[i], *cells[i]])) for i in columns}
    wraps = terminal and sum(widths.values()) + 2 * len(columns) - 2 > room
    drawn = Drawn(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    if any(marks):
        drawn.add_column("", no_wrap=True)
    for i in columns:
        if wraps and wordy[i]:
            longest = max((cell_len(word) for text in [*headings[i], *cells[i]] for word in text.split()), default=1)
            drawn.add_column(table.headings[i], overflow="fold", min_width=longest)
            continue
        heading = "\n".join(_padded(part, widths[i], wordy[i]) for part in headings[i])
        drawn.add_column(Text(heading), no_wrap=True, min_width=widths[i])
        cells[i] = [_padded(text, widths[i], wordy[i]) for text in cells[i]]
    bands, headed = table.bands or [""] * len(names), _has_band_headings(table, terminal)
    several = any(names[place] == names[place - 1] for place in range(1, len(names)))
    for place, (name, band) in enumerate(zip(names, bands, strict=True)):
        again = place > 0 and (name, band) == (names[place - 1], bands[place - 1])
        begins = (place == 0 or band != bands[place - 1]) and (headed or not band)
        if place and (begins or (several and not again)):
            drawn.add_section()
        if begins and band:
            drawn.add_row(*[""] * any(marks), Text(band, style="bold"))
        line = [Text(cells[i][place]) for i in columns]
        if again and terminal:
            line[0] = Text("")
        if any(marks):
            line.insert(0, Text(marks[place]))
        drawn.add_row(*line, style=STYLES.get(marks[place], "" if band or not table.bands else "cyan"))
    return drawn


def _folded(table: Table, i: int) -> list[str]:
    """The lines of a heading; two where a heading of the table has two."""
    lines = table.folded.get(table.headings[i], table.headings[i]).split("\n")
    return [*lines, ""] if table.folded and len(lines) == 1 else lines


def _unmarked(cell: str) -> str:
    """The first cell of a line without its mark."""
    mark, _, name = cell.partition(" ")
    return name if mark in MARKS and name else cell


def timings_table(seconds: Mapping[str, float], total: float) -> str:
    """Stage, seconds and share of ``total``, the longest first; the last line is what no stage claims.

    >>> print(timings_table({"capture": 3.0, "exact": 6.5}, total=10.0))
    stage              seconds   share
    exact                6.500   65.0%
    capture              3.000   30.0%
    attnprobe itself     0.500    5.0%
    """
    lines = sorted(seconds.items(), key=lambda item: -item[1])
    lines.append(("attnprobe itself", max(total - sum(seconds.values()), 0.0)))
    width = max(len(stage) for stage, _ in lines)
    rows = [f"{'stage':{width}}  {'seconds':>8}  {'share':>6}"]
    for stage, spent in lines:
        rows.append(f"{stage:{width}}  {spent:8.3f}  {spent / total if total > 0 else 0:6.1%}")
    return "\n".join(rows)


def plan_table(rows: Mapping[tuple[str, int, int | str], Mapping[str, Any]]) -> str:
    """What a sweep would measure, a line per weights, n and layer."""
    table = Drawn(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("weights", "n", "layer", "windows", "d", "cells", "done", "of"):
        table.add_column(heading, justify="left" if heading in ("weights", "of", "d") else "right")
    for (weights, n, layer), row in rows.items():
        budgets = ", ".join(str(d) for d in row["d"] if d is not None)
        counts = (str(len(row["windows"])), budgets, str(row["cells"]), str(row["done"]))
        table.add_row(weights, str(n), str(layer), *counts, Text(", ".join(row["names"])))
    console = console_of(max(100, min(width_of(table), 160)), terminal=False)
    console.print(table)
    return finished(console)
