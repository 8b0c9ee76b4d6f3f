"""Rows in long form, one for each head of whatever a cell measured: what everything that is shown is made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..records.file import STATUSES
from .labels import with_source
from .statistics import describe, fragile_statistics, quantiles
from .table import grouped_by

if TYPE_CHECKING:
    from ..records.shapes import Shape

Row = dict[str, Any]
CELL = ("method", "options", "target", "layer", "window", "n", "d")
SOURCE = ("weights", "source", "scale_inputs")
STATE = ("status", "reason")
FIELDS = (*CELL, *SOURCE, *STATE, "head")  # of every long row


def long_rows(records: Sequence[Any], shape: Shape[Any], fields: Sequence[str] = CELL) -> list[Row]:
    """The rows of records. Each has the ``fields`` of its record, its source and state, and what `Shape.rows` says.

    A record without rows is one row without a head.
    """
    rows = []
    for record, source in with_source(records):
        cell = {name: record.get(name) for name in fields} | source | {name: record.get(name) for name in STATE}
        rows += [cell | row for row in list(shape.rows(record)) or [{"head": None}]]
    return rows


def summarised(
    rows: Iterable[Row], by: Sequence[str], statistics: Callable[[list[Row]], Mapping[str, Any]]
) -> list[Row]:
    """An entry for each group of rows with equal fields ``by``, in the order of their first appearance.

    It has the place and the source of the group's first row, the worst status, the first reason, the numbers of
    ``heads`` and ``windows``, and the ``statistics`` of the group.
    """
    entries = []
    for group in grouped_by(rows, *by):
        place = {name: group[0].get(name) for name in dict.fromkeys((*by, *CELL, *SOURCE)) if name != "window"}
        state = {
            "status": max((row["status"] for row in group), key=STATUSES.index),
            "reason": next((row["reason"] for row in group if row["reason"]), None),
            "heads": len(set(known(group, "head"))),
            "windows": len({row["window"] for row in group}),
        }
        entries.append({**place, **state, **statistics(group)})
    return entries


def described(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> Row:
    """``metrics``: statistics of fields over rows of heads. ``fragile``: those that are not reproducible."""
    windows, doubtful = [row.get("window") for row in rows], [bool(row.get("rounded_rows")) for row in rows]
    metrics, fragile = {}, {}
    for name in names:
        values = [row.get(name) for row in rows]
        metrics[name] = describe(values, windows)
        if statistics := fragile_statistics(name, values, windows, doubtful):
            fragile[name] = statistics
    return {"metrics": metrics, "fragile": fragile}


def known(rows: Iterable[Mapping[str, Any]], name: str) -> list[Any]:
    """The values of a field, without nulls."""
    return [value for row in rows if (value := row.get(name)) is not None]


def unbounded(values: Iterable[float | None]) -> list[float]:
    """Numbers, with infinity for null."""
    return [math.inf if value is None else value for value in values]


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """p10, median and p90; None without values."""
    return quantiles(values) if values else None


def median(values: Sequence[float]) -> float | None:
    """The median; None without values."""
    return quantiles(values)["median"] if values else None


def mean(values: Sequence[float]) -> float | None:
    """The mean; None without values."""
    return sum(values) / len(values) if values else None
