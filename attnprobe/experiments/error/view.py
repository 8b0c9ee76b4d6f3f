"""The view of ``attnprobe error``: errors by method and budget, kernels below them, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...tables.console import Header
from ...tables.methods import OPEN, caption, grouped, marks_legend, notes, rivals, statistic
from ...tables.table import Table, table_of
from ...tables.view import Figure, View, flat_view
from ..base import Recorded
from .columns import METHOD_COLUMNS, error_columns, is_open
from .cost_figure import cost_figure
from .error_figure import error_figure
from .heads_figure import head_figures
from .kernel_columns import KERNEL_COLUMNS
from .maps_figure import map_figures
from .paper_figure import paper_figure
from .papers import METRIC, reference_rows
from .positions_figure import positions_figure
from .result import error_result
from .row_columns import ROW_COLUMNS
from .rows import FIELDS, ErrorRow, summarise

if TYPE_CHECKING:
    from .record import ErrorRecord


def view(recorded: Recorded[ErrorRecord]) -> View:
    """The view of the records of ``attnprobe error``."""
    rows, bounds = summarise(recorded.records)
    references = reference_rows(rows, recorded.references)
    papers = [flat_view("papers", references, recorded.header)] if references else []
    return errors_view(rows, bounds, recorded.header, _figures(recorded, rows, bounds), papers)


def errors_view(
    rows: Sequence[ErrorRow],
    bounds: Sequence[ErrorRow],
    header: Header,
    figures: Mapping[str, Figure] | None = None,
    companions: Sequence[View] = (),
) -> View:
    """The view of rows and lower bounds, as `summarise` makes them."""
    return View(
        "error",
        header,
        rows,
        error_tables(rows, bounds),
        error_legend(rows, bounds),
        COLUMNS,
        FIELDS,
        title="Errors of attention approximations",
        result=error_result(rows),
        bounds=bounds,
        judged=rows,
        figures=figures or {},
        companions=companions,
    )


def _figures(
    recorded: Recorded[ErrorRecord], rows: Sequence[ErrorRow], bounds: Sequence[ErrorRow]
) -> dict[str, Figure]:
    drawing, records, metric = recorded.drawing, recorded.records, recorded.metric
    leading = f"{METRIC}_relative"  # of the table too

    def errors(folder: Path) -> list[Path]:
        names = dict.fromkeys([leading, metric or leading])
        return [path for name in names for path in error_figure(rows, bounds, drawing, folder, name)]

    def papers(folder: Path) -> list[Path]:
        return paper_figure(rows, drawing, folder, metric or METRIC, recorded.references)

    def maps(folder: Path) -> list[Path]:
        return map_figures(records, recorded.folder, drawing, folder, recorded.missing)

    heads = lambda folder: head_figures(records, drawing, folder, metric or leading)
    cost = lambda folder: cost_figure(rows, drawing, folder, metric or leading)
    positions = lambda folder: positions_figure(rows, drawing, folder)
    nothing = "no requested method has an error to draw"
    figures = {
        "errors": Figure("error", errors, nothing),
        "papers": Figure("papers", papers, nothing),
        "heads": Figure("heads", heads, f"{nothing} in two layers or more; measure them with --layer all"),
        "cost": Figure("cost", cost, nothing),
        "positions": Figure("positions", positions, "no requested method has row metrics; measure them with --rows"),
    }
    if (recorded.folder / "maps").is_dir():  # without maps, figures that an earlier run drew stay
        figures["maps"] = Figure("maps", maps, "no requested method has a matrix to draw")
    return figures


COLUMNS = tuple(dict.fromkeys((*METHOD_COLUMNS, *KERNEL_COLUMNS, *ROW_COLUMNS)))


def error_tables(rows: Sequence[ErrorRow], bounds: Sequence[ErrorRow]) -> list[Table]:
    """A table for each (source, layer, n, target), all with the same columns, then those of kernels."""
    every = [*rows, *bounds]
    columns = error_columns(every)
    tables = [table_of(caption(group), group, columns, notes(group), every, rivals) for group in grouped(rows, bounds)]
    kernels = [row for row in rows if "ratio_to_framework" in row["metrics"]]
    tables += [table_of(f"kernels · {caption(group)}", group, KERNEL_COLUMNS) for group in grouped(kernels)]
    of_rows = [row for row in rows if "profile" in row]
    return tables + [
        table_of(f"rows · {caption(group)}", group, ROW_COLUMNS, rivals=rivals) for group in grouped(of_rows)
    ]


def error_legend(rows: Sequence[ErrorRow], bounds: Sequence[ErrorRow]) -> list[str]:
    """What the marks and the bounds mean."""
    parts = marks_legend(rows)
    if any(row["target"] == "gaussian" for row in rows):
        parts.append("For the target gaussian, B is C.")
    if any(is_open(row) for row in rows):
        parts.append(f"{OPEN} matrix: an interval did not close to --tol.")
    if any(_is_drawn(row) for row in rows):
        parts.append("s.e. is of one draw of the weights (--weights-seed).")
    if bounds:
        parts.append("lower bound: the least error of rank d.")
    return parts


def _is_drawn(row: ErrorRow) -> bool:
    """Whether the row has a standard error over randomly drawn weights."""
    drawn = str(row.get("weights") or "").startswith("initialized")
    return drawn and statistic(row, "output_spectral", "se") is not None
