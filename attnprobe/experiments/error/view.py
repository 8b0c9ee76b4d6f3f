"""What ``attnprobe error`` shows: errors by method and budget, kernels beneath them, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...figures.heat import head_figures
from ...figures.kit import error_figure
from ...tables.columns import columns_of, family_table, grouped, legend
from ...tables.console import Header
from ...tables.formats import rows_as_table
from ...tables.numbers import significant
from ...tables.table import Table
from ...tables.terminal import error_tables, plain_tables
from ...tables.view import Figure, View, flat_view
from ..base import Recorded
from .cost_figure import cost_figure
from .kernels_view import kernel_legend, kernel_tables
from .maps_figure import map_figures
from .paper_figure import paper_figure
from .papers import METRIC, reference_rows
from .rows import summarise

__all__ = ["errors_view", "view"]

Row = Mapping[str, Any]


def view(recorded: Recorded) -> View:
    """What records of ``attnprobe error`` show."""
    rows, bounds = summarise(recorded.records)
    references = reference_rows(rows, recorded.references)
    papers = [_papers(references, recorded.header)] if references else []
    return errors_view(rows, bounds, recorded.header, _figures(recorded, rows, bounds), papers)


def errors_view(
    rows: Sequence[Row],
    bounds: Sequence[Row],
    header: Header,
    figures: Mapping[str, Figure] | None = None,
    beside: Sequence[View] = (),
) -> View:
    """The view of rows and lower bounds, as `summarise` makes them."""
    tables, legend_of_tables = _tables(rows, bounds)
    return View(
        "error",
        header,
        rows,
        tables,
        legend_of_tables,
        title="Errors of attention approximations",
        bounds=bounds,
        terminal=lambda above, run, width: _terminal(rows, bounds, above, run, width),
        judged=rows,
        figures=figures or {},
        beside=beside,
    )


def _figures(recorded: Recorded, rows: Sequence[Row], bounds: Sequence[Row]) -> dict[str, Figure]:
    title, records, metric = recorded.header.title, recorded.records, recorded.metric
    relative = metric or f"{METRIC}_relative"

    def errors(folder: Path) -> list[Path]:
        names = dict.fromkeys([METRIC, metric or METRIC])
        return [path for name in names for path in error_figure(rows, bounds, title, folder, name)]

    def papers(folder: Path) -> list[Path]:
        return paper_figure(rows, title, folder, metric or METRIC, recorded.references)

    def maps(folder: Path) -> list[Path]:
        return map_figures(records, recorded.folder, title, folder, recorded.missing)

    heads = lambda folder: head_figures(records, title, folder, relative)
    cost = lambda folder: cost_figure(rows, title, folder, relative)
    nothing = "no requested method has an error to draw"
    figures = {
        "errors": Figure("error", errors, nothing),
        "papers": Figure("papers", papers, nothing),
        "heads": Figure("heads", heads, nothing),
        "cost": Figure("cost", cost, nothing),
    }
    if (recorded.folder / "maps").is_dir():  # pictures of maps that are gone stay as they are
        figures["maps"] = Figure("maps", maps, "no requested method has a matrix to draw")
    return figures


def _papers(rows: Sequence[Row], header: Header) -> View:
    """What was measured beside what a paper's figure shows."""
    brief = [{name: significant(x) if isinstance(x, float) else x for name, x in row.items()} for row in rows]
    return replace(flat_view("papers", rows, header), tables=[rows_as_table("papers", brief)])


def _tables(rows: Sequence[Row], bounds: Sequence[Row]) -> tuple[list[Table], str]:
    """The tables for people, and their legend."""
    groups = grouped(rows, bounds)
    columns = columns_of([row for group in groups for row in group.rows])
    kernels = kernel_tables(rows)
    tables = [family_table(group, columns) for group in groups] + kernels
    return tables, f"{legend(groups, columns)} {kernel_legend(kernels)}".strip()


def _terminal(rows: Sequence[Row], bounds: Sequence[Row], header: Header, run: str | None, width: int | None) -> str:
    """The tables of errors, and beneath them those of kernels."""
    kernels = kernel_tables(rows)
    if not kernels:
        return error_tables(rows, bounds, header, run, width)
    above = error_tables(rows, bounds, header, None, width)
    return f"{above}\n{plain_tables(kernels, kernel_legend(kernels), Header(), run, width)}"
