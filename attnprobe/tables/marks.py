"""The signs and the bold cells of tables, explained where they occur, for every format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .numbers import OPEN
from .results import UNTESTED

if TYPE_CHECKING:
    from .table import Table

SIGNS = {  # before the first cell of a line, or before a value
    "!": "bad rows, whose sum is not positive or is rounding",
    "✗": "failed or diverged",
    "–": "skipped",
    OPEN: "rounding decides it, so that it differs between machines, or its interval is wide",
}
OF_STATUS = {"failed": "✗", "diverged": "✗", "skipped": "–"}
TESTED = (
    "Bold: at each d where a test finds a worse row (p by Holm, over a layer), the best mean and the next ones before "
    "it; not ranked: yardsticks, rows with ! or with more than d"
)
TIED = "Bold: the best of comparable rows, with ties"
TOO_FEW = "none where heads and windows are too few"


def marks_legend(tables: Sequence[Table], bold: bool = True) -> list[str]:
    """A sentence on the signs in these tables, and one on their bold cells.

    Args:
        bold: whether the reader sees bold cells.
    """
    signs = {sign for table in tables for sign in _signs(table)}
    meanings = [f"{sign}: {meaning}" for sign, meaning in SIGNS.items() if sign in signs]
    undecided = any(table.undecided for table in tables)
    rules = [f"No bold: {UNTESTED}"] if undecided else []
    if any(table.best for table in tables):
        rules = [TESTED if any(table.tested for table in tables) else TIED, *([TOO_FEW] * undecided)]
    return [f"{'; '.join(part)}." for part in (meanings, rules if bold else []) if part]


def _signs(table: Table) -> list[str]:
    first = [line[0].partition(" ")[0] for line in table.lines]
    doubtful = any(OPEN in cell for line in table.lines for cell in line)
    return [*first, OPEN] if doubtful else first
