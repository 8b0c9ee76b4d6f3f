"""The commands that measure, one folder each. This is the only list of their names."""

from __future__ import annotations

from importlib import import_module

from .base import Experiment

__all__ = ["EXPERIMENTS", "experiment", "plot_kinds"]

EXPERIMENTS = ("error", "spectrum", "condition", "theory", "audit", "budget", "bench", "inject", "stability")


def experiment(name: str) -> Experiment:
    """The experiment of a command."""
    return import_module(f".{name}", __package__).EXPERIMENT


def plot_kinds() -> list[str]:
    """The kinds of figures that ``attnprobe report`` can draw, of all commands."""
    every = map(experiment, EXPERIMENTS)
    return [kind for one in every for kind in (*one.plots, *one.more_plots)]
