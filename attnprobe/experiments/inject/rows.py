"""The rows of ``attnprobe inject``: a row for each method, budget and set of layers, and their summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from typing_extensions import ReadOnly, TypedDict

from ...tables.labels import identity, source_labels
from ...tables.methods import statistic
from ...tables.rows import Judged, MethodRow, part
from ...tables.statistics import describe, fields_of, rank_correlation, sortable, worst_status
from ...tables.table import (
    gathered,
    grouped_by,
    method_key,
)
from .gates import GATED

if TYPE_CHECKING:
    from .record import InjectRecord


class Budgets(TypedDict):
    """A summary of the budgets of heads."""

    mean: float | None
    heads: int
    exact: int


class Method(TypedDict):
    """The fields that all records of a row share."""

    method: str
    family: str | None
    target: str | None
    n: int
    d: int | None
    budgets: Budgets | None
    layer: int | None
    predicts: str | None
    predicts_not: str | None
    model_dtype: str | None


class Kinds(TypedDict, total=False):
    """The layers of a model with local and global ones."""

    model_layers: int
    global_layers: list[int]


class InjectRow(MethodRow, Method, Kinds):
    """One method in one set of layers, over windows and seeds.

    For decoding, ``prefix`` is the number of tokens before the first step, and ``steps`` holds for each metric the
    means of each step over windows and seeds.
    """

    prefix: int | None
    greedy_steps: int | None
    steps: Mapping[str, list[float | None]] | None

    layers: list[int]
    repeats: int
    tokens: int
    cells: int
    values: int


FIELDS = fields_of(InjectRow, [*GATED.names, "seconds"])


class End(TypedDict):
    """A layer with the smallest or the largest drift."""

    layer: int
    drift: float


class Correlation(TypedDict):
    """Spearman's rank correlation of local error and drift over so many points."""

    spearman: float | None
    points: int


class Summarised(TypedDict):
    """The fields that all rows of an entry share."""

    method: ReadOnly[str | None]
    options: Mapping[str, object]
    family: str | None
    n: int
    d: int | None
    budgets: Budgets | None
    weights: str | None
    source: str | None


class InjectSummary(Summarised, Correlation):
    """The layers that tolerate a method; ``method`` is null in the entry of all methods together."""

    drift: float | None
    local_error: float | None
    best: ReadOnly[End | None]
    worst: ReadOnly[End | None]


class Profile(InjectSummary):
    """The layers that tolerate a method."""

    method: str
    best: End
    worst: End


def is_profile(entry: InjectSummary) -> TypeGuard[Profile]:
    """Whether the entry is of one method."""
    return entry["method"] is not None


def inject_rows(records: Sequence[InjectRecord]) -> list[InjectRow]:
    """The rows of the JSON contract: one per (source, method, options, n, d, layers), over windows and seeds.

    ``layer`` is the layer that was replaced alone, or null if all ``layers`` were replaced together. Rows are ordered
    by source, n, the method's first appearance, and d, with all layers first.
    """
    labels = source_labels(records)
    sources, methods = list(labels.values()), list(dict.fromkeys(map(method_key, records)))

    def key(record: InjectRecord) -> tuple[Any, ...]:
        label = labels[identity(record.get("source"))]
        decoding = sortable(record.get("prefix")), sortable(record.get("greedy_steps"))
        place = (*decoding, sortable(record.get("d")), sortable(record.get("layer")), tuple(record["layers"]))
        return sources.index(label), record["n"], methods.index(method_key(record)), *place

    groups = sorted(gathered(records, key), key=lambda group: key(group[0]))
    return [_row(group, labels[identity(group[0].get("source"))]) for group in groups]


def _row(records: Sequence[InjectRecord], label: str | None) -> InjectRow:
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
    return {
        **part(Method, first),
        "options": dict(first.get("options") or {}),
        "layers": list(first["layers"]),
        **cast(Kinds, {name: first[name] for name in Kinds.__annotations__ if name in first}),
        "prefix": first.get("prefix"),
        "greedy_steps": first.get("greedy_steps"),
        "steps": _mean_steps(cells),
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


def _mean_steps(cells: Sequence[InjectRecord]) -> dict[str, list[float | None]] | None:
    """The means of each step over cells, None where a cell has no finite value; None without decoding."""
    steps = [steps for cell in cells if (steps := cell.get("steps"))]
    if not steps:
        return None
    return {name: [_mean(values) for values in zip(*(one[name] for one in steps), strict=True)] for name in steps[0]}


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and isfinite(value)]
    return sum(finite) / len(finite) if len(finite) == len(values) else None


def mean(row: Judged, name: str) -> float | None:
    """The mean of a row's metric; None if it was not measured."""
    return statistic(row, name, "mean")


def inject_points(rows: Iterable[InjectRow]) -> list[tuple[float, float]]:
    """(local error, drift) of the rows of single layers."""
    points = []
    for row in rows:
        local, drift = mean(row, "local_error"), mean(row, "drift")
        if row["layer"] is not None and local is not None and drift is not None:
            points.append((local, drift))
    return points


def inject_summary(rows: Iterable[InjectRow]) -> list[InjectSummary]:
    """One entry per (source, n, method, options, d) whose layers were replaced one by one, then one for all of them.

    ``drift`` is that of all layers together. ``best`` and ``worst`` are the layers with the smallest and the largest
    drift. ``spearman`` is the rank correlation of local error and drift over ``points``. ``method`` is null in the last
    entry.
    """
    summary: list[InjectSummary] = []
    for group in grouped_by(rows, "source", "n"):
        entries = [_profile(alike) for alike in grouped_by(group, "method", "options", "d")]
        entries = [entry for entry in entries if entry is not None]
        if len(entries) > 1:
            summary += entries
            every: InjectSummary = {
                "method": None,
                "options": {},
                "family": None,
                "n": group[0]["n"],
                "d": None,
                "budgets": None,
                "weights": group[0].get("weights"),
                "source": group[0]["source"],
                "drift": None,
                "local_error": None,
                "best": None,
                "worst": None,
                **_correlation(inject_points(group)),
            }
            summary.append(every)
        else:
            summary += entries
    return summary


def _profile(group: Sequence[InjectRow]) -> Profile | None:
    """The layers that tolerate a method best and worst; None if no layer was replaced alone."""
    means = {row["layer"]: mean(row, "drift") for row in group if row["layer"] is not None}
    drifts = {layer: drift for layer, drift in means.items() if drift is not None}
    if not drifts:
        return None
    together = next((row for row in group if row["layer"] is None), None)
    best, worst = min(drifts, key=drifts.__getitem__), max(drifts, key=drifts.__getitem__)
    return {
        **part(Summarised, group[0]),
        "method": group[0]["method"],
        "drift": together and mean(together, "drift"),
        "local_error": together and mean(together, "local_error"),
        "best": {"layer": best, "drift": drifts[best]},
        "worst": {"layer": worst, "drift": drifts[worst]},
        **_correlation(inject_points(group)),
    }


def _correlation(points: Sequence[tuple[float, float]]) -> Correlation:
    rho = rank_correlation(*zip(*points, strict=True)) if points else None
    return {"spearman": rho, "points": len(points)}
