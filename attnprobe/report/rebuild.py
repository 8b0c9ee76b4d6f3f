"""What a run shows, made from its records alone: for each command its text in every format and its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .condition import condition_rows, conditions_summary, render_conditions
from .condition_figures import condition_figures
from .console import Header
from .figures import error_figure
from .formats import render
from .maps import map_figures
from .run import Run
from .spectra import spectrum_rows
from .spectrum_figures import spectrum_figures
from .statistics import summarise

__all__ = ["PLOTS", "Part", "parts"]

Draw = Callable[[Path], list[Path]]

PLOTS = ("errors", "maps", "spectrum", "condition")
METRIC = "output_spectral"


@dataclass(frozen=True)
class Part:
    """What the records of one command show.

    Attributes:
        text: the tables in a format of `FORMATS`. figures: how each kind of plot is drawn into a folder, with what the
            names of its files begin with.
    """

    command: str
    header: Header
    text: Callable[[str], str]
    figures: Mapping[str, tuple[str, Draw]]
    rows: Sequence[Mapping[str, Any]]


def parts(run: Run, metric: str | None = None) -> list[Part]:
    """The parts of a run, one for each command that left records.

    Args:
        metric: what figures of errors show beside the output error.
    """
    makers = {"error": _error, "spectrum": _spectrum, "condition": _condition}
    return [makers[command](run, records, metric) for command, records in run.records.items()]


def _error(run: Run, records: Sequence[Mapping[str, Any]], metric: str | None) -> Part:
    rows, bounds = summarise(records)
    header = run.header(records)
    title = "\n".join([*header.lines, *header.warnings])
    metrics = dict.fromkeys([METRIC, metric or METRIC])

    def errors(place: Path) -> list[Path]:
        return [path for name in metrics for path in error_figure(rows, bounds, title, place, name)]

    figures = {"errors": ("error", errors)}
    if (run.path / "maps").is_dir():  # pictures of maps that are gone stay as they are
        figures["maps"] = ("maps", lambda place: map_figures(records, run.path, title, place, run.missing))
    return Part("error", header, lambda kind: render(rows, bounds, header, kind, str(run.path)), figures, rows)


def _spectrum(run: Run, records: Sequence[Mapping[str, Any]], metric: str | None) -> Part:
    rows = spectrum_rows(records)
    header = run.header(records)
    title = "\n".join([*header.lines, *header.warnings])
    draw = lambda place: spectrum_figures(rows, title, place)
    text = lambda kind: render(rows, [], header, kind, str(run.path), "spectrum")
    return Part("spectrum", header, text, {"spectrum": ("spectrum", draw)}, rows)


def _condition(run: Run, records: Sequence[Mapping[str, Any]], metric: str | None) -> Part:
    rows = condition_rows(records)
    summary = conditions_summary(rows)
    header = run.header(records)
    title = "\n".join([*header.lines, *header.warnings])
    draw = lambda place: condition_figures(rows, summary, title, place)
    text = lambda kind: render_conditions(rows, summary, header, kind, str(run.path))
    return Part("condition", header, text, {"condition": ("condition", draw)}, rows)
