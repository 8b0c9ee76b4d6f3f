"""Progress and notes on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

import click

__all__ = ["note", "progress_bar"]

LOG_EVERY = 60.0  # seconds between lines where stderr is no terminal


def note(line: str) -> None:
    """One line for a person, on stderr."""
    with suppress(OSError):  # a stderr that cannot be written to is no reason to lose a run
        click.echo(f"attnprobe: {' '.join(line.split())}", err=True)


@contextmanager
def progress_bar() -> Iterator[tuple[Callable[[int, int, str], None], Callable[[str], None]]]:
    """``(progress, notify)``: a bar on a terminal, one line a minute in a log."""
    if not sys.stderr.isatty():
        begin = last = monotonic()

        def report(done: int, total: int, label: str) -> None:
            nonlocal last
            if monotonic() - last > LOG_EVERY:
                last = monotonic()
                note(f"{done}/{total} cells, {last - begin:.0f} s, now {label}")

        yield report, note
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False, markup=False)
    columns = (SpinnerColumn(), BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("{task.description}", markup=False))  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("preparing", total=None)

        def update(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        yield update, lambda line: console.print(f"attnprobe: {line}", soft_wrap=True)
