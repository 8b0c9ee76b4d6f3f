"""What a run shows, made from its records alone: for each command its text in every format and its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..experiments.bench.view import BenchReport
from ..experiments.budget.figures import budget_figures
from ..experiments.budget.view import budget_files, budget_rows
from ..experiments.condition.figures import condition_figures
from ..experiments.condition.view import (
    condition_legend,
    condition_rows,
    condition_tables,
    conditions_summary,
    render_conditions,
)
from ..experiments.error.cost_figure import cost_figure
from ..experiments.error.maps_figure import map_figures
from ..experiments.error.paper_figure import paper_figure
from ..experiments.error.papers import METRIC, Reference, reference_rows
from ..experiments.error.rows import summarise
from ..experiments.inject.figures import inject_figures
from ..experiments.inject.view import inject_rows
from ..experiments.spectrum.figures import spectrum_figures
from ..experiments.spectrum.view import spectrum_rows
from ..experiments.stability.view import StabilityReport
from ..experiments.theory.figures import theory_figures
from ..experiments.theory.view import theory_rows
from ..figures.heat import head_figures
from ..figures.kit import error_figure
from ..tables.console import Header
from ..tables.formats import Plain, render, tables_of
from ..tables.numbers import significant
from .run import Run

__all__ = ["PLOTS", "Part", "parts"]

Draw = Callable[[Path], list[Path]]
Records = Sequence[Mapping[str, Any]]

PLOTS = (
    "errors",
    "papers",
    "heads",
    "cost",
    "maps",
    "spectrum",
    "condition",
    "theory",
    "budget",
    "bench",
    "inject",
    "stability",
)
LIMITS = {"epsilon": "0.05,0.1,0.2,0.5", "under_ms": "1,10,100"}  # of bench, where no manifest says


@dataclass(frozen=True)
class Part:
    """What the records of one command show.

    Attributes:
        text: the tables in a format of `FORMATS`. figures: how each kind of plot is drawn into a folder, with what the
            names of its files begin with. tables: the tables for people and their legend. more: other texts, by name.
        files: JSON beside the records, by file name.
    """

    command: str
    header: Header
    text: Callable[[str], str]
    figures: Mapping[str, tuple[str, Draw]]
    tables: Callable[[], tuple[list[Plain], str]]
    more: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)


def parts(run: Run, metric: str | None = None, references: Sequence[Reference] = ()) -> list[Part]:
    """The parts of a run, one for each command that left records.

    Args:
        metric: what figures of errors show, beside the output error in the one that the command itself draws.
        references: values of papers, which stand beside those of a run of ``error``.
    """
    makers = {
        "error": _error,
        "spectrum": _spectrum,
        "condition": _condition,
        "theory": _theory,
        "bench": _bench,
        "budget": _budget,
        "inject": _inject,
        "stability": _stability,
    }
    return [makers[command](run, records, metric, references) for command, records in run.records.items()]


def _error(run: Run, records: Records, metric: str | None, references: Sequence[Reference]) -> Part:
    rows, bounds = summarise(records)
    header = run.header(records)
    title = "\n".join([*header.lines, *header.warnings])
    metrics = dict.fromkeys([METRIC, metric or METRIC])

    def errors(place: Path) -> list[Path]:
        return [path for name in metrics for path in error_figure(rows, bounds, title, place, name)]

    papers = lambda place: paper_figure(rows, title, place, metric or METRIC, references)
    relative = metric or f"{METRIC}_relative"
    heads = lambda place: head_figures(records, title, place, relative)
    cost = lambda place: cost_figure(rows, title, place, relative)
    figures = {"errors": ("error", errors), "papers": ("papers", papers)}
    figures |= {"heads": ("heads", heads), "cost": ("cost", cost)}
    if (run.path / "maps").is_dir():  # pictures of maps that are gone stay as they are
        figures["maps"] = ("maps", lambda place: map_figures(records, run.path, title, place, run.missing))
    beside = reference_rows(rows, references)
    brief = [{name: significant(x) if isinstance(x, float) else x for name, x in row.items()} for row in beside]
    text = lambda kind: render(brief if kind == "md" else beside, [], header, kind, str(run.path), "papers")
    more = {"papers": text} if beside else {}
    whole = lambda kind: render(rows, bounds, header, kind, str(run.path))
    return Part("error", header, whole, figures, lambda: tables_of(rows, bounds, "error"), more)


def _spectrum(run: Run, records: Records, metric: str | None, references: Sequence[Reference]) -> Part:
    rows = spectrum_rows(records)
    header = run.header(records)
    title = "\n".join([*header.lines, *header.warnings])
    draw = lambda place: spectrum_figures(rows, title, place)
    text = lambda kind: render(rows, [], header, kind, str(run.path), "spectrum")
    return Part("spectrum", header, text, {"spectrum": ("spectrum", draw)}, lambda: tables_of(rows, [], "spectrum"))


def _condition(run: Run, records: Records, metric: str | None, references: Sequence[Reference]) -> Part:
    rows = condition_rows(records)
    summary = conditions_summary(rows)
    header = run.header(records)
    title = "\n".join([*header.lines, *header.warnings])
    draw = lambda place: condition_figures(rows, summary, title, place)
    text = lambda kind: render_conditions(rows, summary, header, kind, str(run.path))
    tables = lambda: (condition_tables(summary), condition_legend(summary))
    return Part("condition", header, text, {"condition": ("condition", draw)}, tables)


def _theory(run: Run, records: Records, metric: str | None, references: Sequence[Reference]) -> Part:
    rows = theory_rows(records)
    header = run.header(records)
    title = "\n".join([*header.lines, *header.warnings])
    draw = lambda place: theory_figures(records, title, place)
    text = lambda kind: render(rows, [], header, kind, str(run.path), "theory")
    return Part("theory", header, text, {"theory": ("theory", draw)}, lambda: tables_of(rows, [], "theory"))


def _budget(run: Run, records: Records, metric: str | None, references: Sequence[Reference]) -> Part:
    rows = budget_rows(records)
    header = run.header(records)
    title = "\n".join([*header.lines, *header.warnings])
    draw = lambda place: budget_figures(records, title, place)
    text = lambda kind: render(rows, [], header, kind, str(run.path), "budget")
    tables = lambda: tables_of(rows, [], "budget")
    return Part("budget", header, text, {"budget": ("budget", draw)}, tables, files=budget_files(records))


def _bench(run: Run, records: Records, metric: str | None, references: Sequence[Reference]) -> Part:
    config = run.manifest.get("config") or {}
    limits = {name: (config.get(name) or {}).get("value") or default for name, default in LIMITS.items()}
    found = BenchReport.of(records, run.header(records), **limits)
    text = lambda kind: found.text(kind, str(run.path))
    return Part("bench", found.header, text, {"bench": ("bench", found.figures)}, found.tables)


def _inject(run: Run, records: Records, metric: str | None, references: Sequence[Reference]) -> Part:
    rows = inject_rows(records)
    header = run.header(records)
    title = "\n".join([*header.lines, *header.warnings])
    draw = lambda place: inject_figures(rows, title, place)
    text = lambda kind: render(rows, [], header, kind, str(run.path), "inject")
    return Part("inject", header, text, {"inject": ("inject", draw)}, lambda: tables_of(rows, [], "inject"))


def _stability(run: Run, records: Records, metric: str | None, references: Sequence[Reference]) -> Part:
    found = StabilityReport.of(records, run.header(records))
    text = lambda kind: found.text(kind, str(run.path))
    return Part("stability", found.header, text, {"stability": ("stability", found.figures)}, found.tables)
