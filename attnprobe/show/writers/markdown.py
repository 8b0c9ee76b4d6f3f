"""Grids in GitHub's Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from ..grid import Cell, Grid
from ..notes import notes
from ..table import Column
from .text import cell_text


def markdown(grids: Iterable[Grid]) -> str:
    """The tables in GitHub's Markdown, each with its caption above and its notes below."""
    return "\n\n".join(map(_markdown, grids)) + "\n"


def _markdown(grid: Grid) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    def text(cell: Cell, column: Column) -> str:
        return f"**{cell_text(cell, column)}**" if cell.bold else cell_text(cell, column)

    table = [
        line(column.title for column in grid.columns),
        line("---" if left else "---:" for left in grid.words),
        *(line(map(text, cells, grid.columns)) for cells in grid.cells),
    ]
    above = [f"**{grid.caption}**", *filter(None, [grid.sentence])]
    return "\n\n".join([*above, "\n".join(table), *notes(grid)])
