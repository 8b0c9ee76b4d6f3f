"""What a command that measures leaves behind: its answer on stdout, and tables and figures in the run's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from .progress import note

__all__ = ["draw", "show"]


def show(folder: Path, command: str, format_: str, rendered: Callable[[str], str]) -> None:
    """Print ``rendered(format_)`` and write ``tables/COMMAND.md``, ``.csv`` and ``.json``."""
    from ..records import write_text

    click.echo(rendered(format_))
    for kind in ("md", "csv", "json"):
        write_text(folder / "tables" / f"{command}.{kind}", rendered(kind) + "\n")


def draw(folder: Path, plot: bool, figures: Callable[[Path], list[Path]], nothing: str) -> list[Path]:
    """Draw into ``figures/`` where asked to, or where an older picture would contradict the new table.

    Args:
        figures: draws into a folder and returns the files. nothing: why there may be none.
    """
    place = folder / "figures"
    if not plot and not place.exists():
        return []
    paths = figures(place)
    for path in paths:
        note(f"figure: {path}")
    if not paths:
        note(f"no figure: {nothing}")
    return paths
