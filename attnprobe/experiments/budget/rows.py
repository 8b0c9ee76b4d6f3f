"""The rows of ``attnprobe budget``: rows per head, and their summary per layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

from typing_extensions import ReadOnly, TypedDict

from ...records.shapes import by_name, lists_of
from ...tables.labels import with_source
from ...tables.rows import Judged, Named, Placed, State, Where, part
from ...tables.statistics import describe, fields_of
from ...tables.table import grouped_by

if TYPE_CHECKING:
    from .record import BudgetRecord


class Search(TypedDict):
    """The question of a search, and its range."""

    metric: str
    delta: float
    seeds: int
    needed: int | None
    least: int | None
    most: int | None
    resolution: float
    scan: bool | None


class Cell(Named):
    """The cell of a row."""

    method: str
    target: str
    layer: int
    window: int
    n: int


class Place(Cell, Search):
    """The cell of a row, and how it was searched."""


class OfHead(TypedDict):
    """The result at one ε for one head, as in the record."""

    d: int | None
    below: int | None
    error: float | None
    held: int | None
    lower: float | None
    upper: float | None
    holds_from: int | None


class BudgetRow(Place, OfHead, Where, State):
    """The result at one ε for one head. Rows of cells without results have neither ε nor head."""

    epsilon: ReadOnly[float | None]
    head: ReadOnly[int | None]


class HeadRow(BudgetRow):
    """The result at one ε for one head."""

    epsilon: float
    head: int
    d_over_n: float | None
    no_counterexample: bool | None
    fails_at: list[int]
    fails_at_error: list[float | None]


FIELDS = fields_of(HeadRow)


class Weakest(TypedDict):
    """The head with the fewest seeds that hold at its d."""

    head: int
    window: int
    held: int
    lower: float
    upper: float


class Counterexample(TypedDict):
    """A head whose error exceeds ε at budgets above its d."""

    head: int
    window: int
    d: int
    fails_at: list[int]
    fails_at_error: list[float | None]
    holds_from: int | None


class Summarised(TypedDict):
    """The fields that all rows of an entry share."""

    method: str
    options: Mapping[str, object]
    target: str
    weights: str | None
    source: str | None
    scale_inputs: float
    layer: int
    n: int
    metric: str
    epsilon: float | None
    delta: float
    seeds: int
    needed: int | None
    least: int | None
    most: int | None
    resolution: float
    scan: bool | None


class Entry(Placed, Summarised):
    """The place and the method of an entry."""

    windows: int


class BudgetSummary(Judged, Entry):
    """One method at one ε on one layer, over heads and windows."""

    heads: int


class HeadsSummary(BudgetSummary):
    """The same where there is a head."""

    values: int
    range: Mapping[str, float]
    unreached: int
    counterexamples: int
    weakest: Weakest | None
    counterexample_heads: list[Counterexample]


def has_heads(entry: BudgetSummary) -> TypeGuard[HeadsSummary]:
    """Whether the entry is of heads."""
    return entry["heads"] > 0


def is_of_head(row: BudgetRow) -> TypeGuard[HeadRow]:
    """Whether the row is of a head."""
    return row["head"] is not None


def budget_rows(records: Sequence[BudgetRecord]) -> list[BudgetRow]:
    """The rows of the JSON contract: one per ε and head. A cell without results is one row with its reason.

    ``fails_at`` lists the budgets above d at which too few seeds hold, and ``fails_at_error`` the errors there.
    ``no_counterexample`` is true if ``fails_at`` is empty.
    """
    rows: list[BudgetRow] = []
    for record, source in with_source(records):
        place, state = part(Place, record), part(State, record)
        errors = {
            (one["d"], head): error
            for one in record["tried"]
            for head, error in zip(one["heads"], one["error"], strict=True)
        }
        for entry in record["results"]:
            lists = lists_of(entry, OfHead.__annotations__)
            for index, head in enumerate(record["heads"]):
                d, fails_at = entry["d"][index], entry["fails_at"][index]
                row: HeadRow = {
                    **place,
                    **source,
                    "epsilon": entry["epsilon"],
                    "head": head,
                    **part(OfHead, by_name(lists, index)),
                    "d_over_n": None if d is None else d / record["n"],
                    "no_counterexample": None if d is None else not fails_at,
                    "fails_at": fails_at,
                    "fails_at_error": [errors.get((one, head)) for one in fails_at],
                    **state,
                }
                rows.append(row)
        if not record["results"]:
            rows.append({**place, **source, "epsilon": None, "head": None, **part(OfHead, {}), **state})
    return rows


def budget_summary(rows: Iterable[BudgetRow]) -> list[BudgetSummary]:
    """One entry per (source, method with options, target, n, metric, ε, layer), over heads and windows.

    ``metrics`` describes the metrics of gates; the last two are shares of heads. ``range`` holds the smallest, median
    and largest d, where a head without a d counts as infinite. ``weakest`` is the head with the fewest seeds that hold.
    """
    place = ("source", "method", "options", "target", "metric", "n", "epsilon", "layer")
    summary = []
    for searched in grouped_by(rows, *place):
        groups = [searched] if searched[0]["head"] is not None else grouped_by(searched, "reason")
        summary += [_summary(group) for group in groups]
    return summary


def _summary(group: Sequence[BudgetRow]) -> BudgetSummary:
    first = group[0]
    windows = [row["window"] for row in group]
    worst = next((row for row in group if row["status"] != "ok"), first)
    entry: Entry = {
        **part(Summarised, first),
        "d": None,
        "at": {} if first["epsilon"] is None else {"epsilon": first["epsilon"]},
        "requested": True,
        "status": worst["status"],
        "reason": worst["reason"],
        "windows": len(set(windows)),
        "cells": len(set(windows)),
    }
    heads = list(filter(is_of_head, group))
    if not heads:
        return {**entry, "heads": 0, "values": 0, "metrics": {}}
    unreached = [float(row["d"] is None) for row in heads]
    counterexamples = [float(bool(row["fails_at"])) for row in heads]
    d = sorted(math.inf if row["d"] is None else row["d"] for row in heads)
    weakest = min((row for row in heads if row["lower"] is not None), key=lambda row: row["held"] or 0, default=None)
    values: HeadsSummary = {
        **entry,
        "heads": len({row["head"] for row in heads}),
        "values": len(heads),
        "range": {"min": d[0], "median": (d[(len(d) - 1) // 2] + d[len(d) // 2]) / 2, "max": d[-1]},
        "unreached": int(sum(unreached)),
        "counterexamples": int(sum(counterexamples)),
        "weakest": weakest and part(Weakest, weakest),
        "counterexample_heads": [part(Counterexample, row) for row in heads if row["fails_at"]],
        "metrics": {
            "d": describe([row["d"] for row in heads], windows),
            "d_over_n": describe([row["d_over_n"] for row in heads], windows),
            "unreached": describe(unreached, windows),
            "counterexamples": describe(counterexamples, windows),
        },
    }
    return values
