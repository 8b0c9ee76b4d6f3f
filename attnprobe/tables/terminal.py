"""Tables for a terminal (or a pipe, where no digit may be lost), drawn by rich."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Table as Drawn
from rich.text import Text

from .columns import Column, Group, columns_of, family, grouped, legend, mark, notes
from .console import STYLES, UNLIMITED, Header, console_of, finished, print_header, width_of
from .numbers import aligned, significant
from .table import Table, legend_of

__all__ = ["error_tables", "family_tables", "flat_table", "plain_tables", "timings_table"]


def error_tables(
    rows: Sequence[Mapping[str, Any]],
    bounds: Sequence[Mapping[str, Any]],
    header: Header,
    run: str | None = None,
    width: int | None = None,
) -> str:
    """The tables of `error`, one per (layer, n, target); see `family_tables`."""
    groups = grouped(rows, bounds)
    every = columns_of([row for group in groups for row in group.rows])
    return family_tables(groups, every, lambda shown: legend(groups, shown), header, run, width)


def family_tables(
    groups: Sequence[Group],
    every: Sequence[Column],
    told: Callable[[Sequence[Column]], str],
    header: Header,
    run: str | None = None,
    width: int | None = None,
) -> str:
    """One table for each group, its methods by family, between the header and a legend.

    On a terminal too narrow for every column those that matter least are left out, and the legend says which; a pipe
    gets them all, however wide. Rows that are not ok, or have bad rows, carry a mark as well as a colour, and their
    reasons stand beneath the table.

    Args:
        told: the legend of the columns that are shown.
        width: the terminal's width; ``None`` asks standard output, and a pipe has no width.
    """
    terminal = width is not None or sys.stdout.isatty()
    room = (width or shutil.get_terminal_size().columns) if terminal else UNLIMITED
    shown = [column for column in every if column.name != "family" or not terminal]  # a terminal has headings
    while (needed := max((width_of(_table(group, shown)) for group in groups), default=0)) > room:
        spare = max(shown, key=lambda column: column.spare, default=None)
        if spare is None or spare.spare == 0:
            break
        shown.remove(spare)
    wide = max(needed, room if terminal else 100)
    console = console_of(wide, terminal)
    print_header(console, header, terminal)
    for group in groups:
        console.print()
        console.print(Text(group.caption, style="bold"), soft_wrap=not terminal)
        console.print(_table(group, shown, terminal))
        remarks = notes(group.rows)
        if remarks:
            console.print()
        for sign, line in remarks:
            console.print(Text(line, style=STYLES[sign]), soft_wrap=not terminal)
    if not groups:
        console.print("no rows")
    console.print()
    text = told(shown)
    missing = [column for column in every if column not in shown and column.name != "family"]
    if left_out := [" ".join(filter(None, column.heading)) for column in missing]:
        text += f" Left out at this width: {', '.join(left_out)} (`--format md` has all)."
    console.print(Text(text, style="dim"), width=min(wide, max(80, min(needed, 120))))
    if run is not None:
        console.print(Text(f"run: {run}", style="dim"), soft_wrap=True)
    return finished(console)


def flat_table(
    rows: Sequence[Mapping[str, Any]], header: Header, run: str | None = None, width: int | None = None
) -> str:
    """Any rows as one table with a column per field: for the commands that have no layout of their own.

    On a terminal words are wrapped, numbers never; into a pipe nothing is. ``width`` as in `error_tables`.
    """
    terminal = width is not None or sys.stdout.isatty()
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Drawn(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for name in names:
        values = [row.get(name) for row in rows]
        number = all(value is None or isinstance(value, (int, float)) for value in values)
        words = terminal and any(isinstance(value, (str, list, tuple, Mapping)) for value in values)
        longest = max((len(word) for value in values for word in _value(value).split()), default=1) if words else None
        justify = "right" if number else "left"
        table.add_column(name, justify=justify, no_wrap=not words, overflow="fold", min_width=longest)
    for row in rows:
        table.add_row(*(Text(_value(row.get(name))) for name in names))
    room = max(width or shutil.get_terminal_size().columns, width_of(table, "minimum")) if terminal else width_of(table)
    console = console_of(max(room, 80), terminal)
    print_header(console, header, terminal)
    if header.lines or header.warnings:
        console.print()
    console.print(table if rows else "no rows")
    if run is not None:
        console.print(Text(f"run: {run}", style="dim"), soft_wrap=True)
    return finished(console)


def plain_tables(
    tables: Sequence[Table],
    legend: str,
    header: Header,
    run: str | None = None,
    width: int | None = None,
) -> str:
    """Tables between the header and a legend.

    Columns of words are on the left, others aligned at the decimal point; a table that is wider than the terminal
    goes without its spare columns, or where it names none some of the columns of numbers. The legend says which, and
    what the others mean, before ``legend``.
    ``width`` as in `error_tables`.
    """
    terminal = width is not None or sys.stdout.isatty()
    room = (width or shutil.get_terminal_size().columns) if terminal else UNLIMITED
    kept = [_columns_for(table.headings, table.lines, room, table.spare) for table in tables]
    made = [_of_strings(one.headings, one.lines, some, terminal) for one, some in zip(tables, kept, strict=True)]
    needed = max(map(width_of, made), default=0)
    console = console_of(max(needed, room if terminal else 100), terminal)
    print_header(console, header, terminal)
    for table, drawn in zip(tables, made, strict=True):
        console.print()
        console.print(Text(table.caption, style="bold"), soft_wrap=not terminal)
        console.print(drawn)
        if table.notes:
            console.print()
        for line in table.notes:
            console.print(Text(line, style=STYLES.get(line[:1], "")), soft_wrap=not terminal)
    if not tables:
        console.print("no rows")
    console.print()
    shown = [table.headings[i] for table, some in zip(tables, kept, strict=True) for i in some]
    left_out = [name for table, some in zip(tables, kept, strict=True) for name in _others(table.headings, some)]
    legend = f"{legend_of(tables, shown)} {legend}".strip()
    if left_out:
        legend += f" Left out at this width: {', '.join(dict.fromkeys(left_out))} (`--format md` has all)."
    console.print(Text(legend, style="dim"), width=max(80, min(needed, 120)))
    if run is not None:
        console.print(Text(f"run: {run}", style="dim"), soft_wrap=True)
    return finished(console)


def _others(headings: Sequence[str], kept: Sequence[int]) -> list[str]:
    return [heading for i, heading in enumerate(headings) if i not in kept]


def _wordy(lines: Sequence[Sequence[str]], i: int) -> bool:
    """Whether a column holds words."""
    return any(line[i][:1].isalpha() or line[i][:1] in STYLES for line in lines if line[i])


def _columns_for(headings: Sequence[str], lines: Sequence[Sequence[str]], room: int, spare: Sequence[str]) -> list[int]:
    """The columns that fit: ``spare`` ones go, or of more than four columns of numbers every second, then the last."""
    cells = [aligned([line[i] for line in lines]) for i in range(len(headings))]
    size = lambda i: max(map(cell_len, [headings[i], *cells[i]])) + 2
    kept = list(range(len(headings)))
    for name in spare:
        if sum(map(size, kept)) - 2 > room and name in headings:
            kept.remove(headings.index(name))
    while not spare and sum(map(size, kept)) - 2 > room and len(kept) > 4:
        numbers = [i for i in kept if not _wordy(lines, i)]
        kept = [i for i in kept if i not in numbers[2::2]] if len(numbers) > 5 else kept[:-1]
    return kept


def _padded(text: str, width: int, left: bool) -> str:
    """The text in so many columns of a terminal; a combining mark, as in C̄, takes none."""
    spaces = " " * (width - cell_len(text))
    return text + spaces if left else spaces + text


def _of_strings(headings: Sequence[str], lines: Sequence[Sequence[str]], kept: Sequence[int], terminal: bool) -> Drawn:
    """One table of strings; on a terminal a word that the line above begins with too is not repeated."""
    table = Drawn(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    columns = []
    for i in kept:
        cells = [line[i] for line in lines]
        wordy = _wordy(lines, i)
        cells = cells if wordy else aligned(cells)
        width = max(map(cell_len, [headings[i], *cells]))
        table.add_column(Text(_padded(headings[i], width, wordy)), no_wrap=True)
        columns.append([_padded(cell, width, wordy) for cell in cells])
    for place, line in enumerate(lines):
        again = terminal and place > 0 and lines[place - 1][0] == line[0]
        if place and terminal and not again:
            table.add_section()
        texts = [Text(column[place], no_wrap=True) for column in columns]
        table.add_row(*([Text("")] if again else texts[:1]), *texts[1:])
    return table


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


def plan_table(rows: Mapping[tuple[str, int, int], Mapping[str, Any]]) -> str:
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


def _table(group: Group, columns: Sequence[Column], terminal: bool = True) -> Drawn:
    """One group; on a terminal a method's name stands on the first of its rows only, and families have headings.

    A pipe may be searched: there each row says it all.
    """
    table = Drawn(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    marks = [mark(row) for row in group.rows]
    if any(marks):
        table.add_column("", no_wrap=True)
    cells = []
    for column in columns:
        # rich strips what it aligns to the right, and with it the alignment of the points: align here
        texts = column.cells(group.rows)
        width = max(map(len, [*column.heading, *texts]))
        pad = str.ljust if column.name in ("method", "family", "status") else str.rjust
        table.add_column(Text("\n".join(pad(line, width) for line in column.heading)), no_wrap=True)
        cells.append([pad(text, width) for text in texts])
    ends = {len(group.methods), len(group.methods) + len(group.references)}
    named = [(row["method"], str(row.get("options"))) for row in group.rows]
    several = len(set(named[: len(group.methods)])) < len(group.methods)
    kinds = [family(row) for row in group.methods] if terminal else []
    kinds = kinds if len(set(kinds)) > 1 else []
    for index in range(len(named)):
        again = 0 < index < len(group.methods) and named[index] == named[index - 1]
        if index and (index in ends or (several and index < len(group.methods) and not again)):
            table.add_section()
        if index < len(kinds) and (index == 0 or kinds[index] != kinds[index - 1]):
            if index and not several:
                table.add_section()
            table.add_row(*[""] * any(marks), Text(kinds[index], style="bold"))
        texts = [Text(column[index], no_wrap=True) for column in cells]
        if again and terminal:
            texts[0] = Text("")
        if any(marks):
            texts.insert(0, Text(marks[index]))
        table.add_row(*texts, style=STYLES.get(marks[index], "" if index < len(group.methods) else "cyan"))
    return table


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_value(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        if len(value) > 4 and not isinstance(value[0], str):
            return f"{', '.join(_value(item) for item in value[:4])}, … ({len(value)} values)"
        return ", ".join(_value(item) for item in value)
    return str(value)
