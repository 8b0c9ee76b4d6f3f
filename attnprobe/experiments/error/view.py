"""The view of ``attnprobe error``: errors by method and budget, kernels below them, and its figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...figures.methods import OWN
from ...frame.metric import ERROR
from ...grammar.lists import spans
from ...records.file import LOWER_BOUND
from ...tables.console import Header
from ...tables.duels import DUELS, best_methods
from ...tables.labels import source_heading
from ...tables.long import (
    CELL,
    STATISTICS,
    Row,
    described,
    finite,
    known,
    long_rows,
    mean,
    sortable,
    summarised,
    worst_status,
)
from ...tables.long import FIELDS as LONG
from ...tables.methods import ROUNDING, caption, family, grouped, is_zero, notes, rivals, statistic
from ...tables.table import Table, Tested, grouped_by, joined, method_key, table_of
from ...tables.view import Figure, View, flat_view
from ..base import Recorded
from .columns import COLUMNS as OF_METHODS
from .columns import KERNEL_COLUMNS, MEAN, RELATIVE, error_columns, row_columns
from .cost import COSTS, cost_figure, is_causal, judged_by
from .error_figure import error_figure
from .heads_figure import head_figures
from .maps_figure import map_figures
from .papers import METRIC, paper_figure, reference_rows
from .positions import positions_figure
from .record import PER_HEAD, SHAPE
from .result import PLACE, error_result

if TYPE_CHECKING:
    from .record import ErrorRecord

UNGATED = (  # metrics that no gate limits
    "realised_d",
    "realised_d_p10",
    "realised_d_p90",
    "matrix_passes",
    "matrix_spectral_lower",
    "matrix_spectral_upper",
    "matrix_spectral_relative_upper",
)
KERNEL = ("kernel_dtype", "row_tolerance")
RATIOS = ("output_spectral", "output_frobenius")  # errors that are also shown over V-Mean's
OF_RECORD = (
    *(*CELL, "key", "repeat", "family", "reference", "requested", "duplicates", "seconds", "matrix_skipped"),
    *KERNEL,
)
OF_HEAD = ("head", *PER_HEAD, "profile")
COLUMNS = (*OF_METHODS, *DUELS)
ROW = (
    *("method", "options", "target", "n", "d", "realised_d", "layer", "weights", "source", "scale_inputs"),
    *("heads", "windows", "repeats", "cells", "values", "status", "reason", "reference", "requested", "family"),
    *("duplicates", "matrix_open", "matrix_skipped", *KERNEL, "profile", "metrics", "fragile", "over_vmean"),
)
FIELDS = (
    *(name for name in ROW if name != "metrics"),
    "median_over_vmean",
    *(f"{name}.{statistic}" for name in (*(metric.name for metric in ERROR), *UNGATED) for statistic in STATISTICS),
    *(f"over_vmean.{name}" for name in RATIOS),
)


def view(recorded: Recorded[ErrorRecord]) -> View:
    """The view of the records of ``attnprobe error``."""
    rows, bounds = summarise(recorded.records)
    references = reference_rows(rows, recorded.references)
    papers = [flat_view("papers", references, recorded.header)] if references else []
    over_layers = pooled(recorded.records)
    figures = _figures(recorded, rows, bounds, over_layers)
    return errors_view(rows, bounds, recorded.header, figures, papers, recorded.tested, over_layers)


def summarise(records: Iterable[ErrorRecord]) -> tuple[list[Row], list[Row]]:
    """The rows of `error`'s JSON and its bounds, from the records of one run.

    A row is one (source, method, options, target, n, d, layer); its values run over heads x windows x repeats, and
    ``seconds`` over cells. ``source`` is a label where the run has several, which are never averaged together (see
    `source_labels`), else null. Per metric: `describe`. A value that is null enters no statistic and not ``count``; the
    row's ``values`` and ``cells`` give the expected numbers. ``status`` is the worst of the cells' (failed, then
    diverged, skipped, ok), and ``reason`` gives their number. A row is ``diverged`` if an output or matrix error of an
    ok cell is null. ``matrix_open`` counts the values of ‖B − B~‖₂ whose interval did not close; it is null if none was
    measured. ``over_vmean`` is the ratio of means

        ``Σ_i e_i / Σ_i v_i``,   v_i the V-Mean's error at the same source, window, head, layer, n and target as e_i,

    It is null if V-Mean was not measured there. ``median_over_vmean`` is the median of ‖E‖₂/‖BV‖₂ over that of V-Mean.
    ``fragile`` has for each metric the statistics that are not reproducible (see `fragile_statistics`). Rows are
    ordered by source, layer, n, target, the method's first appearance, and d; references come last. Bounds are the
    records of the method `LOWER_BOUND`, summarised alike.

    ``profile`` has row metrics by position: its ``keys`` lists 2^a for queries that see 2^a to 2^(a+1) - 1 keys, and
    each metric its means over these queries, heads, windows and repeats; null without a finite value.

    >>> cell = {"method": "x", "target": "softmax", "n": 8, "d": 2, "layer": 0, "heads": [0, 1], "status": "ok"}
    >>> rows, bounds = summarise([{**cell, "window": w, "metrics": {"output_spectral": [w, 3.0]}} for w in (0, 1)])
    >>> rows[0]["metrics"]["output_spectral"]["mean"], rows[0]["metrics"]["output_spectral"]["se"], bounds
    (1.75, 0.25, [])
    """
    records = list(records)
    heads = long_rows(records, SHAPE, OF_RECORD)
    sources = list(dict.fromkeys(row["source"] for row in heads))
    methods = list(dict.fromkeys(map(method_key, records)))

    def order(row: Row) -> tuple[Any, ...]:
        place = sources.index(row["source"]), *(sortable(row[name]) for name in PLACE[1:])
        return *place, row["reference"], methods.index(method_key(row)), sortable(row["d"])

    # sums do not depend on the order in which a sweep was run
    heads.sort(key=lambda row: (row["window"] or 0, row["repeat"] or 0))
    statistics = partial(_statistics, _vmean_errors(heads))
    rows = sorted(summarised(heads, (*PLACE, "method", "options", "d"), statistics), key=order)
    rows = [{name: row[name] for name in ROW if name in row} for row in rows]
    _compare_medians(rows)
    bounds = [row for row in rows if row["method"] == LOWER_BOUND]
    return [row for row in rows if row["method"] != LOWER_BOUND], bounds


def pooled(records: Sequence[ErrorRecord]) -> list[Row]:
    """The rows of records over all layers together, which are their ``layer``, as text."""
    layers = spans(sorted({record["layer"] for record in records}))
    of_all: list[Any] = [{**record, "layer": layers} for record in records]
    return summarise(of_all)[0]


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in PLACE)


def _statistics(vmean: Mapping[Any, float], group: list[Row]) -> Row:
    cells = grouped_by(group, "key", "window", "repeat")
    names = sorted({name for heads in cells for name in heads[0]}.difference(LONG, OF_RECORD, OF_HEAD))
    entry = described(group, names)
    metrics, first = entry["metrics"], group[0]
    if known(group, "seconds"):
        metrics |= described([heads[0] for heads in cells], ["seconds"])["metrics"]
    status, reason = worst_status([_status(heads) for heads in cells])
    opened = [bool(row["matrix_open"]) for row in group if "matrix_open" in row]
    return entry | {
        "options": dict(first["options"] or {}),
        "realised_d": metrics["realised_d"]["mean"] if "realised_d" in metrics else None,
        "repeats": len({row["repeat"] for row in group}),
        "cells": len(cells),
        "values": len(known(group, "head")),
        "status": status,
        "reason": reason,
        "reference": any(row["reference"] for row in group),
        "requested": any(row["requested"] for row in group),
        "family": first["family"],
        "duplicates": max(row["duplicates"] or 0 for row in group),
        "matrix_open": sum(opened) if opened else None,
        "matrix_skipped": next(iter(known(group, "matrix_skipped")), None),
        **{name: first[name] for name in KERNEL if first[name] is not None},
        **_profile(known(group, "profile")),
        "over_vmean": {name: _over_vmean(group, name, vmean) for name in RATIOS if name in metrics},
    }


def _status(heads: Sequence[Row]) -> tuple[str, str | None]:
    if heads[0]["status"] != "ok":
        return heads[0]["status"], heads[0]["reason"]
    for name in (*RATIOS, "matrix_spectral"):
        values = [row[name] for row in heads if name in row]
        if missing := sum(value is None or not math.isfinite(value) for value in values):
            return "diverged", f"{name} is not finite in {missing} of {len(values)} heads"
    return "ok", None


def _profile(profiles: Sequence[Mapping[str, Any]]) -> Row:
    """The means of the heads' profiles, which have the same positions."""
    if not profiles:
        return {}
    means = {"keys": profiles[0]["keys"]}
    for name in [name for name in profiles[0] if name not in means]:
        positions = zip(*(profile[name] for profile in profiles), strict=True)
        means[name] = [mean([one for one in values if one is not None]) for values in positions]
    return {"profile": means}


def _compare_medians(rows: Sequence[Row]) -> None:
    """Give each row its median relative error over that of V-Mean at its place."""
    medians = [(row, statistic(row, RELATIVE, "median")) for row in rows]
    vmean = {_place(row): median for row, median in medians if row["method"] == "vmean" and row["target"] == "softmax"}
    for row, median in medians:
        reference = vmean.get(_place(row)) or 0.0
        row["median_over_vmean"] = median / reference if median is not None and reference > ROUNDING else None


def _vmean_errors(heads: Iterable[Row]) -> dict[Any, float]:
    """V-Mean's error by (metric, source, layer, n, target, window, head)."""
    errors: dict[Any, float] = {}
    for cell in grouped_by([row for row in heads if row["method"] == "vmean"], *PLACE, "key", "window", "repeat"):
        for name in RATIOS:
            relative = known(cell, f"{name}_relative")
            is_exact = bool(relative) and max(relative) < ROUNDING  # rounding: a ratio to it means nothing
            for row in cell:
                error = 0.0 if is_exact else row.get(name)
                if error is not None:
                    errors[name, *_place(row), row["window"], row["head"]] = error
    return errors


def _over_vmean(group: Sequence[Row], name: str, vmean: Mapping[Any, float]) -> float | None:
    """``Σ e / Σ v`` over the finite values of the row; None if a V-Mean is missing or Σ v is zero."""
    if group[0]["target"] != "softmax":
        return None  # V-Mean's rows sum to 1 and those of C do not, so it is not a baseline there
    rows = [row for row in group if (value := row.get(name)) is not None and math.isfinite(value)]
    means: list[Any] = [vmean.get((name, *_place(row), row["window"], row["head"])) for row in rows]
    if not rows or None in means or sum(means) == 0:
        return None
    return finite(sum(row[name] for row in rows) / sum(means))


def errors_view(
    rows: Sequence[Row],
    bounds: Sequence[Row],
    header: Header,
    figures: Mapping[str, Figure] | None = None,
    companions: Sequence[View] = (),
    tested: Tested | None = None,
    over_layers: Sequence[Row] = (),
) -> View:
    """The view of rows and lower bounds, as `summarise` makes them.

    Args:
        over_layers: the rows over all layers together (see `pooled`).
        tested: the test behind bold cells, the table of the best and the result.
    """
    together = at_no_layer(rows, over_layers)
    best, best_tables = best_errors([*rows, *together], tested)
    return View(
        "error",
        header,
        rows,
        [*error_tables(rows, bounds, tested), *best_tables],
        error_legend(rows, bounds),
        COLUMNS,
        FIELDS,
        title="Errors of attention approximations",
        result=error_result(rows, tested, together),
        bounds=bounds,
        more={"best": best},
        judged=rows,
        figures=figures or {},
        companions=companions,
    )


def _figures(
    recorded: Recorded[ErrorRecord], rows: Sequence[Row], bounds: Sequence[Row], over_layers: Sequence[Row]
) -> dict[str, Figure]:
    drawing, records, metric = recorded.drawing, recorded.records, recorded.metric

    def errors(folder: Path) -> list[Path]:
        names = dict.fromkeys([RELATIVE, metric or RELATIVE])
        return [path for name in names for path in error_figure(rows, bounds, drawing, folder, name)]

    def papers(folder: Path) -> list[Path]:
        given = recorded.references
        return paper_figure(rows, drawing, folder, metric or METRIC, given) if given else []

    def maps(folder: Path) -> list[Path]:
        return map_figures(records, recorded.folder, drawing, folder, recorded.missing)

    heads = partial(head_figures, records, rows, drawing, metric=metric or RELATIVE)

    def cost(folder: Path) -> list[Path]:
        judge = metric or judged_by(over_layers)
        return cost_figure(over_layers, drawing, folder, judge, is_causal(records))

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
    rows: Sequence[Row],
    bounds: Sequence[Row],
    tested: Tested | None = None,
) -> list[Table]:
    """A table for each (source, layer, n, target), all with the same columns, then those of kernels."""
    every = [*rows, *bounds]
    columns = error_columns(every)
    tables = []
    for group in grouped(rows, bounds):
        tables.append(table_of(caption(group), group, columns, notes(group), every, rivals, tested))
    kernels = [row for row in rows if "ratio_to_framework" in row["metrics"]]
    tables += [table_of(f"kernels · {caption(group)}", group, KERNEL_COLUMNS) for group in grouped(kernels)]
    of_rows = [row for row in rows if "profile" in row]
    return tables + [
        table_of(f"rows · {caption(group)}", group, row_columns(of_rows), rivals=rivals, tested=tested)
        for group in grouped(of_rows)
    ]


def at_no_layer(rows: Sequence[Row], over_layers: Sequence[Row]) -> list[Row]:
    """The rows over all layers without a layer; none if the rows are of one."""
    several = len({row["layer"] for row in rows}) > 1
    return [{**row, "layer": None} for row in over_layers if several and row["method"] != LOWER_BOUND]


def best_errors(rows: Sequence[Row], tested: Tested | None) -> tuple[list[Row], list[Table]]:
    """The best method against the next one in each layer at each d, as rows and as tables."""

    def words(first: Row) -> str:
        where = joined(source_heading(first), f"n = {first['n']}", f"target {first['target']}")
        return f"‖E‖₂ / ‖BV‖₂ · {where}"

    return best_methods(grouped_by(rows, "source", "n", "target"), MEAN, tested, words, lambda row: row["layer"])


def error_legend(rows: Sequence[Row], bounds: Sequence[Row]) -> list[str]:
    """What the target, drawn weights and the bounds mean."""
    parts = []
    if any(row["target"] == "gaussian" for row in rows):
        parts.append("For the target gaussian, B is C.")
    if any(_is_drawn(row) for row in rows):
        parts.append("± is of one draw of the weights (--weights-seed).")
    if any(not is_zero(row) for row in bounds):
        parts.append("lower bound: the least error of rank d, zero where it is not shown.")
    if any(family(row) == OWN and {*COSTS} & {*row["metrics"]} for row in rows):
        parts.append("visited, keys read: of your own functions what these state, unchecked.")
    return parts


def _is_drawn(row: Row) -> bool:
    drawn = str(row.get("weights") or "").startswith("initialized")
    return drawn and statistic(row, "output_spectral", "se") is not None
