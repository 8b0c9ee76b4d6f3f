"""Grids in GitHub's Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...grammar.foreign import one_line
from ..grid import Cell, Grid
from ..notes import notes
from ..table import Column
from .text import cell_text

MARKUP = re.compile(r"[\\|*_~<`]|(?<=!)\[|\](?=[(\[:])|&(?=[#\w]+;)")


def escaped(text: str) -> str:
    r"""Text on one line that Markdown takes as it is.

    >>> print(escaped("a_b | `c`"))
    a\_b \| \`c\`
    """
    return MARKUP.sub(r"\\\g<0>", one_line(text))


def markdown(grids: Iterable[Grid]) -> str:
    """The tables in GitHub's Markdown, each with its caption above and its notes below."""
    return "\n\n".join(map(_markdown, grids)) + "\n"


def _markdown(grid: Grid) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def text(cell: Cell, column: Column) -> str:
        words = escaped(cell_text(cell, column))
        return f"**{words}**" if cell.bold else words

    table = [
        line(escaped(column.title) for column in grid.columns),
        line("---" if left else "---:" for left in grid.words),
        *(line(map(text, cells, grid.columns)) for cells in grid.cells),
    ]
    above = [f"**{escaped(grid.caption)}**", *map(escaped, filter(None, [grid.sentence]))]
    return "\n\n".join([*above, "\n".join(table), *map(escaped, notes(grid))])
