"""Progress and notes on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from ..grammar.foreign import one_line
from .streams import note

__all__ = ["duration", "progress_bar"]

LOG_EVERY = 60.0  # seconds between lines where stderr is no terminal


def pace(done: int, left: int, seconds: float) -> str:
    """Time so far, and once there is a rate, the rate and the time left.

    >>> pace(0, 10, 61.0), pace(30, 60, 60.0)
    ('61 s', '60 s, 30 a minute, about 2 min left')
    """
    if done <= 0:
        return f"{seconds:.0f} s"
    return f"{seconds:.0f} s, {60 * done / seconds:.3g} a minute, about {duration(left * seconds / done)} left"


def duration(seconds: float) -> str:
    """``40 s``, ``12 min`` or ``3.5 h``.

    >>> duration(39.6), duration(700), duration(12600)
    ('40 s', '12 min', '3.5 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def progress_bar() -> Iterator[tuple[Callable[[int, int, str], None], Callable[[str], None]]]:
    """``(progress, notify)``: a bar on a terminal, one line a minute in a log."""
    if not sys.stderr.isatty():
        begin = last = monotonic()
        first = None  # cells that were done when it began

        def report(done: int, total: int, label: str) -> None:
            nonlocal first, begin, last
            if first is None:
                first, begin = done, monotonic()  # sources are loaded
            if monotonic() - last > LOG_EVERY:
                last = monotonic()
                note(f"{done}/{total} cells, {pace(done - first, total - done, last - begin)}, now {label}")

        yield report, note
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False, markup=False)
    columns = (
        SpinnerColumn(),
        BarColumn(30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("preparing", total=None, rate="")
        begin, first = monotonic(), None

        def update(done: int, total: int, label: str) -> None:
            nonlocal first, begin
            if first is None:
                first, begin = done, monotonic()
            rate = f"{60 * (done - first) / (monotonic() - begin):.3g}/min" if done > first else ""
            bar.update(task, completed=done, total=total, description=one_line(label), rate=rate)

        yield update, lambda line: console.print(f"attnprobe: {one_line(line)}", soft_wrap=True)
