"""What every printed report stands on: a console that writes into a string, and the header."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .numbers import short_hashes

__all__ = ["STYLES", "UNLIMITED", "Header", "console_of", "finished", "print_header", "width_of"]

STYLES = {"!": "yellow", "≈": "yellow", "✗": "bold red", "–": "dim"}
UNLIMITED = 10_000


@dataclass(frozen=True)
class Header:
    """What stands above every table: the source's facts as data and as lines, and warnings (each fallback is one).

    A line that repeats a warning is shown once, as the warning. ``inputs`` is what Q, K and V are like, a row per layer
    and head (see `input_rows`), and ``measured`` the same in a few lines.
    """

    source: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    warnings: Sequence[str] = ()
    inputs: Sequence[Mapping[str, Any]] = ()
    measured: Sequence[str] = ()

    @property
    def facts(self) -> list[str]:
        """The lines that repeat no warning."""
        return [line for line in self.lines if not any(warning in line for warning in self.warnings)]


def print_header(console: Console, header: Header, terminal: bool) -> None:
    """The source's facts, the warnings, and what the inputs are like, a line each."""
    for line in header.facts:
        console.print(Text(short_hashes(line)), soft_wrap=not terminal)
    for line in header.warnings:
        console.print(Text(f"! {line}", style="bold yellow"), soft_wrap=not terminal)
    for line in header.measured:
        console.print(Text(line, style="dim"), soft_wrap=not terminal)


def console_of(width: int, terminal: bool) -> Console:
    """A console that writes into a string."""
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=True if terminal else None,
        force_jupyter=False,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )


def finished(console: Console) -> str:
    """What was printed, without spaces at the ends of lines."""
    text = console.file.getvalue()
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def width_of(table: Table, which: str = "maximum") -> int:
    """The columns that a table needs at most, or at ``minimum``."""
    console = console_of(UNLIMITED, terminal=False)
    return getattr(Measurement.get(console, console.options, table), which)
