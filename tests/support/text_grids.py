"""Grids of words, without a frame behind them."""

from collections.abc import Sequence

from attnprobe.show.grid import Cell, Grid
from attnprobe.show.table import KEY, Column, Table


def text_grid(
    caption: str,
    headings: Sequence[str],
    lines: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> Grid:
    """A grid of these cells; ``spare`` are headings that a narrow page goes without, in this order."""
    ranks = {heading: place for place, heading in enumerate(spare)}
    columns = tuple(
        Column(name, name, meaning=f"what {name} is", priority=ranks.get(name, KEY), name=name) for name in headings
    )
    cells = [[Cell(text) for text in line] for line in lines]
    return Grid(Table("check", caption, columns=columns), columns, cells, [{} for _ in lines], reasons=tuple(notes))
