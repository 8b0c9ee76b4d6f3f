"""The commands that measure, one folder each. This is the only list of their names."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .base import Experiment

if TYPE_CHECKING:
    from ..files import JsonObject
    from ..frame.records.read import ReadRecords
    from ..frame.rows import RowTypes


EXPERIMENTS = (
    "error",
    "spectrum",
    "condition",
    "theory",
    "audit",
    "rounding",
    "budget",
    "bench",
    "inject",
    "stability",
)


def experiment(name: str) -> Experiment:
    """The experiment of a command."""
    # on use, so that `attnprobe --help` imports the commands that it names and no measurement
    return import_module(f".{name}", __package__).EXPERIMENT


@cache
def subjects_of(command: str) -> tuple[str, ...]:
    """The further fields by which rows of a command are named, such as its theorem."""
    gated = experiment(command).gated
    return () if gated is None else gated.subjects


def defaults_of(method: str) -> dict[str, Any]:
    """The options of one of the project's methods at their defaults; none of a function of a user.

    It imports torch.
    """
    from ..methods import METHODS

    return {name: option.default for name, option in METHODS[method].options.items()} if method in METHODS else {}


def is_method(name: str) -> bool:
    """`attnprobe.methods.is_method`. It imports torch."""
    from ..methods import is_method

    return is_method(name)


def plot_kinds() -> list[str]:
    """The kinds of figures that ``attnprobe report`` can draw, of all commands."""
    commands = map(experiment, EXPERIMENTS)
    return [kind for command in commands for kind in (*command.plots, *command.more_plots)]


@cache
def shape_of(command: str) -> RowTypes | None:
    """The types of a command's rows; None if `EXPERIMENTS` lacks the command."""
    return experiment(command).shape if command in EXPERIMENTS else None


def read_run(path: str | os.PathLike[str]) -> ReadRecords[JsonObject]:
    """The finished cells of a file, or those of a run's folder that its tables and figures show, with their rows.

    Each is checked against the type of its command; see `read_typed`.
    """
    from ..frame.records.read import of_last_command, read_manifest, read_typed

    read = read_typed(path, shape_of)
    return of_last_command(read, read_manifest(Path(path))[0]) if Path(path).is_dir() else read
