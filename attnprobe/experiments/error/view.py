"""The view of ``attnprobe error``: errors by method and budget, kernels below them, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...tables.console import Header
from ...tables.long import Row
from ...tables.methods import (
    OPEN,
    caption,
    grouped,
    is_fragile,
    is_zero,
    label,
    marks_legend,
    notes,
    rivals,
    statistic,
    value_of,
)
from ...tables.numbers import significant
from ...tables.results import at_budget, in_words, led, lost, sentences
from ...tables.table import Table, grouped_by, table_of
from ...tables.ties import Value, best_of, tie_rule
from ...tables.view import Figure, View, flat_view
from ..base import Recorded
from .columns import COLUMNS, KERNEL_COLUMNS, error_columns, is_open, row_columns
from .cost_figure import cost_figure
from .error_figure import error_figure
from .heads_figure import head_figures
from .maps_figure import map_figures
from .paper_figure import paper_figure
from .papers import METRIC, reference_rows
from .positions_figure import positions_figure
from .rows import FIELDS, Place, summarise

if TYPE_CHECKING:
    from .record import ErrorRecord

PLACE = ("source", "layer", "n", "target")  # where methods are compared
MEDIAN = f"{METRIC}_relative"  # what the result and the first figure are of


def view(recorded: Recorded[ErrorRecord]) -> View:
    """The view of the records of ``attnprobe error``."""
    rows, bounds = summarise(recorded.records)
    references = reference_rows(rows, recorded.references)
    papers = [flat_view("papers", references, recorded.header)] if references else []
    return errors_view(rows, bounds, recorded.header, _figures(recorded, rows, bounds), papers, recorded.duels)


def errors_view(
    rows: Sequence[Row],
    bounds: Sequence[Row],
    header: Header,
    figures: Mapping[str, Figure] | None = None,
    companions: Sequence[View] = (),
    duels: Mapping[Place, str] | None = None,
) -> View:
    """The view of rows and lower bounds, as `summarise` makes them.

    Args:
        duels: of the places where two methods share budgets, a sentence on which of them is better.
    """
    return View(
        "error",
        header,
        rows,
        error_tables(rows, bounds, duels or {}),
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


def _figures(recorded: Recorded[ErrorRecord], rows: Sequence[Row], bounds: Sequence[Row]) -> dict[str, Figure]:
    drawing, records, metric = recorded.drawing, recorded.records, recorded.metric

    def errors(folder: Path) -> list[Path]:
        names = dict.fromkeys([MEDIAN, metric or MEDIAN])
        return [path for name in names for path in error_figure(rows, bounds, drawing, folder, name)]

    def papers(folder: Path) -> list[Path]:
        given = recorded.references
        return paper_figure(rows, drawing, folder, metric or METRIC, given) if given else []

    def maps(folder: Path) -> list[Path]:
        return map_figures(records, recorded.folder, drawing, folder, recorded.missing)

    heads = partial(head_figures, records, drawing, metric=metric or MEDIAN)
    cost = partial(cost_figure, rows, drawing, metric=metric or MEDIAN)
    positions = partial(positions_figure, rows, drawing)
    nothing = "no requested method has an error to draw; the notes below the table say why"
    figures = {
        "errors": Figure("error", errors, nothing),
        "papers": Figure("papers", papers, "no values of papers to draw; add them with --reference FILE.csv"),
        "heads": Figure("heads", heads, "this run has one layer; measure more with --layer all"),
        "cost": Figure("cost", cost, nothing),
        "positions": Figure("positions", positions, "no requested method has row metrics; measure them with --rows"),
    }
    if (recorded.folder / "maps").is_dir():  # without maps, figures that an earlier run drew stay
        figures["maps"] = Figure("maps", maps, "no requested method has a matrix to draw")
    return figures


def error_tables(
    rows: Sequence[Row], bounds: Sequence[Row], duels: Mapping[Place, str] = MappingProxyType({})
) -> list[Table]:
    """A table for each (source, layer, n, target), all with the same columns, then those of kernels."""
    every = [*rows, *bounds]
    columns = error_columns(every)
    tables = []
    for group in grouped(rows, bounds):
        duel = duels.get(tuple(group[0][name] for name in PLACE))
        lines = [*notes(group), *([duel] if duel else [])]
        tables.append(table_of(caption(group), group, columns, lines, every, rivals))
    kernels = [row for row in rows if "ratio_to_framework" in row["metrics"]]
    tables += [table_of(f"kernels · {caption(group)}", group, KERNEL_COLUMNS) for group in grouped(kernels)]
    of_rows = [row for row in rows if "profile" in row]
    return tables + [
        table_of(f"rows · {caption(group)}", group, row_columns(of_rows), rivals=rivals) for group in grouped(of_rows)
    ]


def error_legend(rows: Sequence[Row], bounds: Sequence[Row]) -> list[str]:
    """What the marks and the bounds mean."""
    parts = marks_legend(rows)
    if any(row["target"] == "gaussian" for row in rows):
        parts.append("For the target gaussian, B is C.")
    if any(is_open(row) for row in rows):
        parts.append(f"{OPEN} matrix: an interval did not close to --tol.")
    if any(_is_drawn(row) for row in rows):
        parts.append("s.e. is of one draw of the weights (--weights-seed).")
    if any(not is_zero(row) for row in bounds):
        parts.append("lower bound: the least error of rank d, zero where it is not shown.")
    return parts


def _is_drawn(row: Row) -> bool:
    """Whether the row has a standard error over randomly drawn weights."""
    drawn = str(row.get("weights") or "").startswith("initialized")
    return drawn and statistic(row, "output_spectral", "se") is not None


def error_result(rows: Sequence[Row]) -> str:
    """The method with the smallest median error, V-Mean's error, and the methods worse than V-Mean, without kernels.

    Methods tie by the rule of bold cells (see `Value.ties`). The spread over heads, windows and repeats gives the
    standard errors of medians (see `Value.of_median`). As in the tables, rows with a mark and medians that are not
    reproducible do not compete.
    """
    known = [row for row in rows if _median(row) is not None and row["family"] != "kernel"]
    places = grouped_by(known, "source", "layer", "n", "target")
    compared = [group for group in places if any(not row["reference"] for row in group)]
    if len(compared) == 1:
        text = _of_one(compared[0])
    else:
        values = [_at(_competing(group), _budgets(group)[-1]) for group in compared]
        text = led(values, "the smallest median error at the largest d")
    return sentences(text, lost(rows, lambda row: at_budget(row, label)))


def _of_one(rows: Sequence[Row]) -> str:
    """The sentences of one table."""
    methods = [row for row in rows if not row["reference"]]
    budgets = _budgets(rows)
    d = budgets[-1]
    values, competing = _at(rows, d), _competing(rows)
    alone = len({label(row) for row in methods}) == 1
    best = best_of(values if alone else _at(competing, d))
    where = "" if d is None else f" at d = {d}"
    vmean = next((_median(row) for row in rows if row["reference"] and row["method"] == "vmean"), None)
    size = _size(methods, best[0], d, values[best[0]], vmean) if best else ""
    winners = {name for budget in budgets for name in best_of(_at(competing, budget))}
    if not best:
        text = f"No method has a sound median error{where}: see the notes."
    elif alone:
        text = f"{best[0]}{where}: the median error is {size}."
    elif len(best) > 1:
        text = f"{in_words(best)} have the smallest median errors{where}{tie_rule(values, best)}: {size}."
    elif winners == set(best) and len(budgets) > 1:
        text = f"{best[0]} has the smallest median error at every d;{where} it is {size}."
    else:
        text = f"{best[0]} has the smallest median error{where}: {size}."
    worse = [name for name, one in values.items() if vmean is not None and _is_worse(one, vmean)]
    return sentences(text, f"Worse than V-Mean{where}: {in_words(worse)}." if worse else "")


def _size(methods: Sequence[Row], name: str, d: int | None, median: Value, vmean: Value | None) -> str:
    """A median error in words."""
    row = next(row for row in methods if label(row) == name and row["d"] in (None, d))
    sign = OPEN if is_fragile(row, MEDIAN, "median") else ""
    of_vmean = "" if not vmean or not vmean.value else significant(median.value / vmean.value, 2)
    size = f"{sign}{significant(median.value, 2)} of ‖BV‖₂"
    return f"{size}, {of_vmean} of V-Mean's median" if of_vmean else size


def _is_worse(one: Value, vmean: Value) -> bool:
    """Whether a median error is larger than V-Mean's and does not tie with it."""
    return one.value > vmean.value and not one.ties(vmean)


def _budgets(rows: Sequence[Row]) -> list[int | None]:
    """The budgets of methods from small to large; a single None if no method has one."""
    budgets = {row["d"] for row in rows if row["d"] is not None and not row["reference"]}
    return [*sorted(budgets)] or [None]


def _competing(rows: Sequence[Row]) -> list[Row]:
    """The rows among which the best is chosen, as the tables choose it."""
    return [row for row in rows if rivals(row) is not None and not is_fragile(row, MEDIAN, "median")]


def _at(rows: Sequence[Row], d: int | None) -> dict[str, Value]:
    """The median errors of methods at a budget, and of those without one."""
    medians = {label(row): _median(row) for row in rows if not row["reference"] and row["d"] in (None, d)}
    return {name: median for name, median in medians.items() if median is not None}


def _median(row: Row) -> Value | None:
    return value_of(row, MEDIAN, "median")
