"""Progress and notes on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from ..grammar.foreign import one_line
from ..machine.timings import duration
from .streams import note

LOG_FIRST = 15.0  # seconds until the first line where stderr is no terminal
LOG_EVERY = 60.0  # seconds between later lines
BAR = 20  # characters
LEAST = 0.01  # the share of a run that has a rate

Report = Callable[[float, int, str], None]
Notify = Callable[[str], None]


class Pace:
    """The rate at which cells finish. It counts from the first progress: opening a model and a text comes before."""

    def __init__(self) -> None:
        self.before: float | None = None  # cells done at the first report
        self.begin, self.first = 0.0, 0.0  # the time of the first progress, and the cells done then

    def left(self, done: float, total: int) -> float | None:
        """The estimated seconds left; None before there is a rate.

        ``done`` counts cells by their work (see `attnprobe.run.loop.Ledger`).
        """
        if self.before is None:
            self.before = self.first = done
        if self.first == self.before:  # no progress before this report
            self.begin, self.first = monotonic(), done
        if done - self.first <= LEAST * total:  # the rate of a few cells would mislead
            return None
        return (monotonic() - self.begin) * (total - done) / (done - self.first)

    def state(self, done: float, total: int) -> str:
        """The finished share and the time left, in words."""
        left = self.left(done, total)
        share = f"{100 * done / max(total, 1):3.0f} %"
        return share if left is None else f"{share}, about {duration(left)} left"


@contextmanager
def progress_bar(first: str = "preparing") -> Iterator[tuple[Report, Notify]]:
    """``(report, notify)``: a bar on a terminal; in a log, a line after some seconds, then a line a minute.

    Args:
        first: the words of the bar before the first report.
    """
    with _bar(first) if sys.stderr.isatty() else _log() as both:
        yield both


@contextmanager
def _log() -> Iterator[tuple[Report, Notify]]:
    pace, due = Pace(), monotonic() + LOG_FIRST

    def report(done: float, total: int, label: str) -> None:
        nonlocal due
        state = pace.state(done, total)
        if label and monotonic() > due:  # the report of the end has no label, and needs no line
            due = monotonic() + LOG_EVERY
            note(f"{state.strip()}; now {label}")

    yield report, note


@contextmanager
def _bar(first: str) -> Iterator[tuple[Report, Notify]]:
    """A bar of one line. A narrow terminal cuts the label, never the share or the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    from rich.table import Column

    console = Console(stderr=True, highlight=False, markup=False)
    label = TextColumn(
        "{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
    )
    state = TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True))
    pace = Pace()
    with Progress(SpinnerColumn(), BarColumn(BAR), state, label, console=console, transient=True, expand=True) as bar:
        task = bar.add_task(first, total=None, state="")

        def report(done: float, total: int, label: str) -> None:
            changed: dict[str, Any] = {"description": one_line(label), "state": pace.state(done, total)}
            bar.update(task, completed=done, total=total, **changed)

        def notify(line: str) -> None:
            console.print(f"attnprobe: {one_line(line)}", soft_wrap=True)

        yield report, notify
