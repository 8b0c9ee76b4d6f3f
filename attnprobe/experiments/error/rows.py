"""The rows of `error`'s JSON, from the records of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...records.file import LOWER_BOUND
from ...tables.labels import identity, scale_of, source_labels
from ...tables.long import Row
from ...tables.metrics import ERROR
from ...tables.statistics import (
    RATIOS,
    STATISTICS,
    describe,
    finite,
    fragile_statistics,
    per_head,
    sortable,
    worst_status,
)
from ...tables.table import gathered, method_key

if TYPE_CHECKING:
    from .record import ErrorRecord

Place = tuple[Any, ...]

MEDIAN = "output_spectral_relative"
ROUNDING = 1e-5  # relative errors below it may be rounding alone
UNGATED = (  # metrics that no gate limits
    "realised_d",
    "realised_d_p10",
    "realised_d_p90",
    "matrix_passes",
    "matrix_spectral_lower",
    "matrix_spectral_upper",
    "matrix_spectral_relative_upper",
)


OWN = (
    *("method", "options", "target", "n", "d", "realised_d", "layer", "weights", "source", "scale_inputs"),
    *("heads", "windows", "repeats", "cells", "values", "status", "reason", "reference", "requested", "family"),
    *("duplicates", "matrix_open", "matrix_skipped", "kernel_dtype", "row_tolerance", "profile", "fragile"),
    *("over_vmean", "median_over_vmean"),
)
FIELDS = (
    *OWN,
    *(f"{name}.{statistic}" for name in (*(metric.name for metric in ERROR), *UNGATED) for statistic in STATISTICS),
    *(f"over_vmean.{name}" for name in RATIOS),
)


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
    ``fragile`` lists for each metric the statistics that are not reproducible (see `fragile_statistics`). Rows are
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
    labels = source_labels(records)
    sources, methods = list(labels.values()), list(dict.fromkeys(map(method_key, records)))

    def key(record: ErrorRecord) -> Place:
        return (*_place(record, labels), method_key(record), record.get("d"))

    def order(group: Sequence[ErrorRecord]) -> tuple[Any, ...]:
        source, *place, method, d = key(group[0])
        is_reference = any(cell.get("reference") for cell in group)
        return sources.index(source), *map(sortable, place), is_reference, methods.index(method), sortable(d)

    groups = []
    for cells_of_row in sorted(
        gathered(records, key), key=order
    ):  # sums do not depend on the order in which a sweep was run
        groups.append(
            sorted(cells_of_row, key=lambda cell: (sortable(cell.get("window")), sortable(cell.get("repeat"))))
        )
    vmean = _vmean_errors(records, labels)
    rows = [_row(cells, _place(cells[0], labels), vmean) for cells in groups]
    _compare_medians(rows)
    bounds = [row for row in rows if row["method"] == LOWER_BOUND]
    return [row for row in rows if row["method"] != LOWER_BOUND], bounds


def _place(record: ErrorRecord, labels: Mapping[str, str | None]) -> tuple[Any, ...]:
    """Where methods are compared: source, layer, n, target."""
    label = labels[identity(record.get("source"))]
    return label, record.get("layer"), record.get("n"), record.get("target")


def _row(cells: list[ErrorRecord], place: tuple[Any, ...], vmean: Mapping[Any, float]) -> Row:
    """One row from the cells that differ only in window, repeat and heads."""
    first = cells[0]
    names = sorted({name for cell in cells for name in cell.get("metrics") or {}})  # as in records that were read back
    metrics = {}
    for name in names:
        values, windows = [], []
        for cell in cells:
            numbers = per_head(cell, name)
            values += numbers
            windows += [cell.get("window")] * len(numbers)
        metrics[name] = describe(values, windows)
    if any(cell.get("seconds") is not None for cell in cells):
        windows = [cell.get("window") for cell in cells]
        metrics["seconds"] = describe([cell.get("seconds") for cell in cells], windows)
    status, reason = worst_status(cells)
    return {
        "method": first["method"],
        "options": dict(first.get("options") or {}),
        "target": first.get("target"),
        "n": first.get("n"),
        "d": first.get("d"),
        "realised_d": metrics["realised_d"]["mean"] if "realised_d" in metrics else None,
        "layer": first.get("layer"),
        "weights": (first.get("source") or {}).get("weights"),
        "source": place[0],
        "scale_inputs": scale_of(first.get("source")),
        "heads": len({head for cell in cells for head in cell.get("heads") or ()}),
        "windows": len({cell.get("window") for cell in cells}),
        "repeats": len({cell.get("repeat") for cell in cells}),
        "cells": len(cells),
        "values": sum(len(cell.get("heads") or ()) for cell in cells),
        "status": status,
        "reason": reason,
        "reference": any(cell.get("reference") for cell in cells),
        "requested": any(cell.get("requested") for cell in cells),
        "family": first.get("family"),
        "duplicates": max((cell.get("duplicates") or 0 for cell in cells), default=0),
        "matrix_open": _matrix_open(cells),
        "matrix_skipped": next((why for cell in cells if (why := cell.get("matrix_skipped"))), None),
        **{name: value for name, value in first.items() if name in ("kernel_dtype", "row_tolerance")},
        **_profile(cells),
        "metrics": metrics,
        "fragile": {name: numbers for name in names if (numbers := fragile_statistics(cells, name))},
        "over_vmean": {name: _over_vmean(cells, name, place, vmean) for name in RATIOS if name in metrics},
    }


def _profile(cells: Sequence[ErrorRecord]) -> Row:
    """The means of the cells' profiles, which have the same positions."""
    profiles: list[Mapping[str, Any]] = [profile for cell in cells if (profile := cell.get("profile"))]
    if not profiles:
        return {}
    keys = profiles[0]["keys"]
    means: dict[str, Sequence[float | None]] = {"keys": keys}
    for name in profiles[0]:
        if name != "keys":
            heads = [head for profile in profiles for head in profile.get(name, ())]
            means[name] = [_mean([head[place] for head in heads]) for place in range(len(keys))]
    return {"profile": means}


def _compare_medians(rows: Sequence[Row]) -> None:
    """Give each row its median relative error over that of V-Mean at its place."""

    def place(row: Row) -> Place:
        return row["source"], row["layer"], row["n"], row["target"]

    medians = [(row, row["metrics"].get(MEDIAN, {}).get("median")) for row in rows]
    vmean = {place(row): median for row, median in medians if row["method"] == "vmean" and row["target"] == "softmax"}
    for row, median in medians:
        reference = vmean.get(place(row)) or 0.0
        row["median_over_vmean"] = median / reference if median is not None and reference > ROUNDING else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _matrix_open(cells: list[ErrorRecord]) -> int | None:
    measured = [marks for cell in cells if isinstance(marks := cell.get("matrix_open"), (list, tuple))]
    return sum(bool(mark) for marks in measured for mark in marks) if measured else None


def _vmean_errors(records: Iterable[ErrorRecord], labels: Mapping[str, str | None]) -> dict[Any, float]:
    """V-Mean's error by (metric, source, layer, n, target, window, head)."""
    errors: dict[Any, float] = {}
    for cell in records:
        if cell["method"] != "vmean":
            continue
        place = _place(cell, labels)
        for name in RATIOS:
            relative = [value for value in per_head(cell, f"{name}_relative") if value is not None]
            is_exact = bool(relative) and max(relative) < ROUNDING  # rounding: a ratio to it means nothing
            for head, value in zip(cell.get("heads") or (), per_head(cell, name), strict=False):
                error = 0.0 if is_exact else value
                if error is not None and math.isfinite(error):
                    errors[name, *place, cell.get("window"), head] = error
    return errors


def _over_vmean(
    cells: list[ErrorRecord], name: str, place: tuple[Any, ...], vmean: Mapping[Any, float]
) -> float | None:
    """``Σ e / Σ v`` over the finite values of the row; None if a V-Mean is missing or Σ v is zero."""
    if cells[0].get("target") != "softmax":
        return None  # V-Mean's rows sum to 1 and those of C do not, so it is not a baseline there
    ours, means = [], []
    for cell in cells:
        for head, value in zip(cell.get("heads") or (), per_head(cell, name), strict=False):
            if value is not None and math.isfinite(value):
                ours.append(value)
                means.append(vmean.get((name, *place, cell.get("window"), head)))
    if not ours or None in means or sum(means) == 0:
        return None
    return finite(sum(ours) / sum(means))
