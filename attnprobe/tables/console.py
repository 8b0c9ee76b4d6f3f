"""The base of every printed report: a console that writes into a string, and the header."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderHook, RenderResult
from rich.segment import Segment

from ..grammar.foreign import printable
from .numbers import short_hashes

STYLES = {"!": "yellow", "≈": "yellow", "✗": "bold red", "–": "dim"}
UNLIMITED = 10_000


@dataclass(frozen=True)
class Header:
    """The header of every table: the source's facts as data and as lines, and warnings (each fallback is one).

    A line that repeats a warning is shown once, as the warning. ``first`` is the measurement in plain words. ``inputs``
    has the statistics of Q, K and V, a row per layer and head (see `input_rows`), and ``measured`` has them in a few
    lines. ``remarks`` are lines about the run. ``announced`` are warnings that the terminal has shown already.
    """

    source: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    warnings: Sequence[str] = ()
    inputs: Sequence[Mapping[str, Any]] = ()
    measured: Sequence[str] = ()
    first: str = ""
    remarks: Sequence[str] = ()
    announced: Collection[str] = ()

    @property
    def facts(self) -> list[str]:
        """The lines without the warnings, and the remarks."""
        lines = [line for line in self.lines if not any(warning in line for warning in self.warnings)]
        return [*lines, *self.remarks]


def print_header(line: Callable[[str, str], None], header: Header) -> None:
    """Print what was measured in plain words, new warnings, and statistics of the inputs, a line each.

    Args:
        line: prints a line in a style.
    """
    if header.first:
        line(header.first, "bold")
    for fact in header.remarks if header.first else header.facts:
        line(short_hashes(fact), "")
    for warning in header.warnings:
        if warning not in header.announced:
            line(f"! {warning}", "bold yellow")
    for fact in header.measured:
        line(fact, "dim")


class Printable(RenderHook):
    """Makes what a console prints `printable`, before colours are added."""

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        return [_PrintableParts(one) for one in renderables]


@dataclass(frozen=True)
class _PrintableParts:
    renderable: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.renderable, options):
            yield Segment(printable(segment.text), segment.style, segment.control)


def console_of(width: int, terminal: bool) -> Console:
    """A console that writes `printable` text into a string."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=True if terminal else None,
        force_jupyter=False,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
    console.push_render_hook(Printable())
    return console


def finished(console: Console) -> str:
    """What was printed, without spaces at the ends of lines."""
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())
