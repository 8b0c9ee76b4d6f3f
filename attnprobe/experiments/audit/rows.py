"""What records of ``attnprobe audit`` say: rows per promise and head, and their summary per promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NotRequired, TypeGuard

from typing_extensions import ReadOnly, TypedDict

from ...linalg.exceedance import VERDICTS
from ...records.shapes import by_name, lists_of
from ...tables.labels import with_source
from ...tables.rows import Judged, Placed, State, Where, part
from ...tables.statistics import describe, fields_of
from ...tables.table import grouped_by

if TYPE_CHECKING:
    from .record import AuditRecord

NUMBERS = ("rate", "worst", "upper")


class Cell(TypedDict):
    """The cell of a row."""

    method: str
    options: Mapping[str, object]
    target: str | None
    layer: int
    window: int
    n: int
    d: int | None
    repeats: int | None
    trials: int
    confidence: float | None
    anytime: bool | None


class AuditRow(Cell, Where, State):
    """A cell, with a promise and a head where any was tested."""

    head: ReadOnly[int | None]
    quantity: ReadOnly[str | None]
    verdict: ReadOnly[str | None]


class Promise(TypedDict):
    """What is promised."""

    quantity: str
    per: str
    epsilon: float
    delta: float


class OfHead(TypedDict):
    """The result for one head, as in the record."""

    rate: float
    worst: float
    lower: float
    upper: float
    p_at_most: float
    p_above: float
    verdict: str
    rows_violated: int
    rows_holding: int


class Samples(TypedDict):
    """The statistics of the keys and the normalisers of a head; null where the method states none."""

    keys: float | None
    keys_share: float | None
    bias: float | None
    bias_z: float | None
    biased: float | None
    normaliser_sd: float | None
    sd_ratio: float | None
    ess: float | None
    least_inclusion: float | None
    capped: float | None


class StatementRow(Promise, OfHead, Samples, Cell, Where, State):
    """A promise and a head."""

    head: int


FIELDS = fields_of(StatementRow)


class Entry(Placed):
    """What an entry is of."""

    layer: int
    n: int
    d: int | None
    method: str
    trials: Sequence[int]
    quantity: str | None
    per: str | None
    epsilon: float | None
    delta: float | None


class AuditSummary(Judged, Entry):
    """One promise of a method on one layer, over heads and windows."""

    heads: int
    windows: int
    values: int
    verdicts: Mapping[str, int]
    interval: NotRequired[tuple[float, float]]


def is_statement(row: AuditRow | StatementRow) -> TypeGuard[StatementRow]:
    """Whether the row is of a promise and a head."""
    return row["head"] is not None


def audit_rows(records: Sequence[AuditRecord]) -> list[AuditRow | StatementRow]:
    """The rows of the JSON contract: one per promise and head; a cell without promises is one with its reason."""
    rows: list[AuditRow | StatementRow] = []
    for record, source in with_source(records):
        place, state = part(Cell, record), part(State, record)
        for statement in record["statements"]:
            lists = lists_of(statement, OfHead.__annotations__)
            for index, head in enumerate(record["heads"]):
                row: StatementRow = {
                    **place,
                    **source,
                    "head": head,
                    **part(Promise, statement),
                    **part(OfHead, by_name(lists, index)),
                    **part(Samples, by_name(record["metrics"], index)),
                    **state,
                }
                rows.append(row)
        if not record["statements"]:
            empty: AuditRow = {**place, **source, "head": None, "quantity": None, "verdict": None, **state}
            rows.append(empty)
    return rows


def audit_summary(rows: Iterable[AuditRow | StatementRow]) -> list[AuditSummary]:
    """One entry per (source, method with options, layer, n, d, promise), over heads and windows.

    ``verdicts`` counts them; ``metrics`` describes the metrics of gates, of which the first three are shares of heads.
    """
    place = ("source", "method", "options", "layer", "n", "d", "quantity", "per", "epsilon", "delta", "status")
    return [_summary(group) for group in grouped_by(rows, *place)]


def _summary(group: Sequence[AuditRow | StatementRow]) -> AuditSummary:
    first = group[0]
    heads = list(filter(is_statement, group))
    promise = part(Promise, first)
    windows = [row["window"] for row in heads]
    counts = Counter(row["verdict"] for row in heads)
    described: dict[str, Sequence[float | None]] = {
        word: [float(row["verdict"] == word) for row in heads] for word in VERDICTS
    }
    described |= {name: [row[name] for row in heads] for name in NUMBERS}
    known = {name: [row[name] for row in heads] for name in Samples.__annotations__}
    described |= {name: values for name, values in known.items() if any(value is not None for value in values)}
    entry: AuditSummary = {
        "method": first["method"],
        "options": first["options"],
        "target": first["target"],
        "weights": first["weights"],
        "source": first["source"],
        "scale_inputs": first["scale_inputs"],
        "layer": first["layer"],
        "n": first["n"],
        "d": first["d"],
        **promise,
        "at": {} if first["quantity"] is None else dict(promise),
        "requested": True,
        "status": first["status"],
        "reason": first["reason"],
        "trials": [min(row["trials"] for row in group), max(row["trials"] for row in group)],
        "heads": len({row["head"] for row in heads}),
        "windows": len({row["window"] for row in group}),
        "values": len(heads),
        "cells": len({row["window"] for row in group}),
        "verdicts": {word: counts[word] for word in VERDICTS if counts[word]},
        "metrics": {name: describe(values, windows) for name, values in described.items()} if heads else {},
    }
    if heads:
        most = max(heads, key=lambda row: row["worst"])
        entry["interval"] = most["lower"], most["upper"]
    return entry
