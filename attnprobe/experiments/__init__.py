"""The commands that measure, one folder each. This is the only list of their names."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from .base import Experiment

__all__ = ["EXPERIMENTS", "experiment", "plot_kinds", "subjects_of"]

EXPERIMENTS = ("error", "spectrum", "condition", "theory", "audit", "budget", "bench", "inject", "stability")


def experiment(name: str) -> Experiment:
    """The experiment of a command."""
    return import_module(f".{name}", __package__).EXPERIMENT


@cache
def subjects_of(command: str) -> tuple[str, ...]:
    """The further fields by which rows of a command are named, such as its theorem."""
    gated = experiment(command).gated
    return () if gated is None else gated.subjects


def plot_kinds() -> list[str]:
    """The kinds of figures that ``attnprobe report`` can draw, of all commands."""
    every = map(experiment, EXPERIMENTS)
    return [kind for one in every for kind in (*one.plots, *one.more_plots)]
