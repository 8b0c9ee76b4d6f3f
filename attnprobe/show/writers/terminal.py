"""Grids for a terminal, drawn by rich."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..grid import Grid
from ..notes import notes
from ..table import KEY
from .text import cell_parts

GAP = 2  # spaces between columns
STAR = "*"  # stands behind the best cell where a terminal shows no bold


def terminal(grids: Iterable[Grid], width: int = 100, color: bool = False) -> str:
    """The tables for a terminal of ``width`` characters: the columns that fit, by priority, then notes.

    Args:
        color: whether the text has bold cells and colours. If not, a star stands behind a bold cell.
    """
    from rich.console import Console

    output = io.StringIO()
    console = Console(
        file=output,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
    )
    for grid in grids:
        shown = _that_fit(grid, width, color)
        hidden = [column.title for column in grid.columns if column not in shown.columns]
        console.print(grid.caption, style="bold", markup=False, highlight=False)
        if grid.sentence:
            console.print(grid.sentence, markup=False, highlight=False)
        console.print(_drawn(shown, color))
        for note in notes(grid, "bold" if color else STAR, hidden):
            console.print(note, style="dim", markup=False, highlight=False)
        console.print()
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()).rstrip() + "\n"


def _that_fit(grid: Grid, width: int, color: bool) -> Grid:
    """The grid without the columns for which there is no room: those of least priority, and of these the last."""
    from rich.cells import cell_len

    columns = zip(grid.columns, _texts(grid, color), strict=True)
    wide = {column.name: max(map(cell_len, texts)) for column, texts in columns}
    kept = list(grid.columns)
    while sum(wide[column.name] + GAP for column in kept) - GAP > width:
        spare = [column for column in reversed(kept) if column.priority < KEY]
        if not spare:
            break
        # `min` takes the first of equals, which of the reversed columns is the last
        kept.remove(min(spare, key=lambda column: column.priority))
    return grid.only(kept)


def _texts(grid: Grid, color: bool) -> list[list[str]]:
    """The texts of each column: two lines of the heading, then the cells, numbers aligned at their decimal points."""
    columns = []
    for number, (column, words) in enumerate(zip(grid.columns, grid.words, strict=True)):
        cells = [line[number] for line in grid.cells]
        parts = [cell_parts(cell, column) for cell in cells]
        if words:
            texts = ["".join(line) for line in parts]
        else:
            stars = [STAR if cell.bold and not color else "" for cell in cells]
            numbers = [line[0] + star for line, star in zip(parts, stars, strict=True)]
            ends = _padded(["".join(line[1:]) for line in parts], str.ljust)
            texts = [text + end for text, end in zip(_at_point(numbers), ends, strict=True)]
        columns.append(_padded([*["", *column.heading.split("\n")][-2:], *texts], str.ljust if words else str.rjust))
    return columns


def _padded(texts: Sequence[str], pad: Callable[[str, int], str]) -> list[str]:
    """Texts of equal width, which ``pad``, such as `str.ljust`, gives them."""
    width = max(map(len, texts), default=0)
    return [pad(text, width) for text in texts]


def _at_point(numbers: Sequence[str]) -> list[str]:
    """Numbers padded so that their decimal points, or their ends, stand below one another."""
    heads = [re.match(r"\D*\d*", number) for number in numbers]
    whole = [head[0] if head and number else "" for head, number in zip(heads, numbers, strict=True)]
    tails = [number[len(head) :] for head, number in zip(whole, numbers, strict=True)]
    return [head + tail for head, tail in zip(_padded(whole, str.rjust), _padded(tails, str.ljust), strict=True)]


def _drawn(grid: Grid, color: bool) -> Any:
    """A grid as a table of rich."""
    from rich import box
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    columns = _texts(grid, color)
    one_line = not any(texts[0].strip() for texts in columns)
    for texts in columns:
        drawn.add_column(Text("\n".join(texts[one_line:2])), overflow="fold")
    for number, line in enumerate(grid.cells):
        styles = ["bold" if cell.bold else cell.flag.style if cell.flag else "" for cell in line]
        cells = zip(columns, styles, strict=True)
        # the first two texts of a column are its heading
        drawn.add_row(*(Text(texts[number + 2], style if color else "") for texts, style in cells))
    return drawn
