"""The signs of tables and figures, each with one text, and the notes below a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..frame.metric import METRICS

if TYPE_CHECKING:
    from .grid import Grid
    from .table import Column


@dataclass(frozen=True)
class Flag:
    """A sign beside a name or a number: what it says, and how a terminal colours it."""

    sign: str
    text: str
    style: str = "yellow"


BAD = Flag("!", "has bad rows: sum of weights ≤ 0 or lost to rounding")
ROUNDING = Flag("≈", "decided by rounding")
OVER = Flag(">", "uses more than d")
FAILED = Flag("✗", "failed or diverged", "bold red")
SKIPPED = Flag("–", "skipped", "dim")
FLAGS = (BAD, ROUNDING, OVER, FAILED, SKIPPED)
OF_STATUS = {"failed": FAILED, "diverged": FAILED, "skipped": SKIPPED}
BOLD = {"smaller": "smallest", "larger": "largest"}


def flag_of(line: Mapping[str, Any]) -> Flag | None:
    """The sign of a line of a summary: that of its status, else of bad rows, else of more than d."""
    # one sign a line, the gravest: a line that failed has no rows that could be bad
    if flag := OF_STATUS.get(line.get("status") or "ok"):
        return flag
    if line.get("bad"):
        return BAD
    return OVER if line.get("over") else None


def bold_rule(columns: Iterable[Column], rivals: Sequence[str], apart: Sequence[str] = ()) -> str:
    """Which cells of these columns are bold, in one line. ``apart`` are methods without a sign that do not compete.

    >>> from attnprobe.show.table import Column
    >>> bold_rule([Column("mean", "drift.mean", best="smaller")], ["d"])
    'smallest mean at each d among methods without a sign'
    >>> bold_rule([Column("d", "d.median", best="smaller")], ["epsilon", "layer", "n"])
    'smallest d at each ε, layer and n among methods without a sign'
    >>> bold_rule([Column("mean", "drift.mean", best="smaller")], ["d"], ["topk"])
    'smallest mean at each d among methods without a sign except topk'
    """
    every = [f"{BOLD[column.best]} {column.title}" for column in columns if column.best]
    best = every[0] if len(every) == 1 else "best of a column"
    symbols = [METRICS[name].symbol if name in METRICS else name for name in rivals]
    place = f" at each {' and '.join(filter(None, [', '.join(symbols[:-1]), symbols[-1]]))}" if symbols else ""
    return f"{best}{place} among methods without a sign{' except ' if apart else ''}{', '.join(apart)}"


def notes(grid: Grid, bold: str = "bold", hidden: Sequence[str] = ()) -> list[str]:
    """The lines below a table: signs, the rule of bold cells, columns that had no room, then reasons of lines.

    Args:
        bold: what marks a bold cell. hidden: the columns without room.
    """
    signs = "; ".join(f"{flag.sign} {flag.text}" for flag in FLAGS if flag in grid.flags)
    rule = f"{bold}: {grid.rule}" if grid.rule else ""
    room = f"not shown: {', '.join(hidden)}" if hidden else ""
    return [*filter(None, [signs, rule, room]), *grid.reasons]
