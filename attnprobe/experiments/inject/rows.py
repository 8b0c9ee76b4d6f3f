"""What records of ``attnprobe inject`` say: a row for each method, budget and set of layers, and their summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...tables.labels import identity, source_labels
from ...tables.methods import statistic
from ...tables.statistics import describe, rank_correlation, sortable, worst_status
from ...tables.table import (
    gathered,
    grouped_by,
    method_key,
)
from .gates import GATED

__all__ = ["inject_points", "inject_rows", "inject_summary", "mean"]

Record = Any
Row = Any


def inject_rows(records: Iterable[Record]) -> list[Row]:
    """The rows of the JSON contract: one per (source, method, options, n, d, layers), over windows and seeds.

    ``layer`` is the one that was replaced by itself, null where all ``layers`` were together. Rows are ordered by
    source, n, the method's first appearance, d, all layers first.
    """
    records = list(records)
    labels = source_labels(records)
    sources, methods = list(labels.values()), list(dict.fromkeys(map(method_key, records)))

    def key(record: Record) -> tuple[Any, ...]:
        label = labels[identity(record.get("source"))]
        place = (sortable(record.get("d")), sortable(record.get("layer")), tuple(record["layers"]))
        return sources.index(label), record["n"], methods.index(method_key(record)), *place

    groups = sorted(gathered(records, key), key=lambda some: key(some[0]))
    return [_row(some, labels[identity(some[0].get("source"))]) for some in groups]


def _row(records: list[Record], label: str | None) -> Row:
    """One row from the records that differ only in window and repeat; sums do not depend on their order."""
    cells = sorted(records, key=lambda cell: (cell["window"], cell.get("repeat") or 0))
    first = cells[0]
    windows = [cell["window"] for cell in cells]
    names = [name for name in GATED.names if any(name in cell["metrics"] for cell in cells)]
    one = lambda cell, name: (cell["metrics"].get(name) or [None])[0]
    metrics = {name: describe([one(cell, name) for cell in cells], windows) for name in names}
    if any(cell.get("seconds") is not None for cell in cells):
        metrics["seconds"] = describe([cell.get("seconds") for cell in cells], windows)
    status, reason = worst_status(cells)
    kept = ("method", "family", "target", "n", "d", "budgets", "layer", "predicts", "predicts_not", "model_dtype")
    return {
        **{name: first.get(name) for name in kept},
        "options": dict(first.get("options") or {}),
        "layers": list(first["layers"]),
        "weights": (first.get("source") or {}).get("weights"),
        "source": label,
        "heads": len(first["heads"]),
        "windows": len(set(windows)),
        "repeats": len({cell.get("repeat") for cell in cells}),
        "tokens": sum({cell["window"]: cell.get("tokens") or 0 for cell in cells}.values()),
        "cells": len(cells),
        "values": len(cells),
        "status": status,
        "reason": reason,
        "reference": False,
        "requested": True,
        "metrics": metrics,
    }


def mean(row: Row, name: str) -> float | None:
    """The mean of a row's metric; None where it was not measured."""
    return statistic(row, name, "mean")


def inject_points(rows: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """(local error, drift) of the rows of single layers."""
    points = []
    for row in rows:
        local, drift = mean(row, "local_error"), mean(row, "drift")
        if row["layer"] is not None and local is not None and drift is not None:
            points.append((local, drift))
    return points


def inject_summary(rows: Iterable[Row]) -> list[Row]:
    """One entry per (source, n, method, options, d) whose layers were replaced one by one, then one for all of them.

    ``drift`` is that of all layers together, ``best`` and ``worst`` the layers with the smallest and the largest
    drift, ``spearman`` the rank correlation of local error and drift over ``points``; ``method`` is null in the last.
    """
    summary = []
    for some in grouped_by(rows, "source", "n"):
        entries = [_profile(alike) for alike in grouped_by(some, "method", "options", "d")]
        entries = [entry for entry in entries if entry is not None]
        if len(entries) > 1:
            first = entries[0]
            every = dict.fromkeys(first) | {name: first[name] for name in ("source", "weights", "n")} | {"options": {}}
            entries.append(every | _correlation(inject_points(some)))
        summary += entries
    return summary


def _profile(some: Sequence[Row]) -> Row | None:
    """Which layers tolerate a method best and worst; None where none was replaced by itself."""
    means = {row["layer"]: mean(row, "drift") for row in some if row["layer"] is not None}
    drifts = {layer: drift for layer, drift in means.items() if drift is not None}
    if not drifts:
        return None
    together = next((row for row in some if row["layer"] is None), None)
    ends = {"best": min(drifts, key=drifts.__getitem__), "worst": max(drifts, key=drifts.__getitem__)}
    names = ("method", "options", "family", "n", "d", "budgets", "weights", "source")
    return {
        **{name: some[0][name] for name in names},
        **{name: together and mean(together, name) for name in ("drift", "local_error")},
        **{name: {"layer": layer, "drift": drifts[layer]} for name, layer in ends.items()},
        **_correlation(inject_points(some)),
    }


def _correlation(points: Sequence[tuple[float, float]]) -> Row:
    rho = rank_correlation(*zip(*points, strict=True)) if points else None
    return {"spearman": rho, "points": len(points)}
