"""The rows of ``attnprobe theory``: rows per finding and head, and their summary per statement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NotRequired, TypeGuard

from typing_extensions import ReadOnly, TypedDict

from ...records.file import decode_inf
from ...records.shapes import by_name, lists_of
from ...tables.labels import with_source
from ...tables.rows import Judged, Placed, Quantiles, State, Where, part
from ...tables.statistics import describe, fields_of, quantiles
from ...tables.table import grouped_by

if TYPE_CHECKING:
    from .record import TheoryRecord

VERDICTS = ("holds", "violated", "vacuous", "assumption not met")
NUMBERS = ("measured", "bound", "slack")
LOST = "nothing to compare: what was measured or its bound is NaN"
Real = float | str | None


class Cell(TypedDict):
    """The cell of a row."""

    theorem: str
    paper: str
    says: str
    method: str | None
    options: Mapping[str, object]
    target: str | None
    layer: int
    window: int
    n: int


class TheoryRow(Cell, Where, State):
    """A cell or a budget, with the finding of one head if there is any."""

    d: int | None
    at: Mapping[str, object]
    assumption: str | None
    promise: str | None
    head: ReadOnly[int | None]
    verdict: str | None


class OfHead(TypedDict):
    """A finding for one head, as in the record."""

    met: bool | None
    bound: ReadOnly[Real]
    measured: ReadOnly[Real]
    lower: Real
    upper: Real
    rounding: Real
    vacuous: bool | None
    slack: Real
    verdict: str | None


class FindingRow(TheoryRow, OfHead):
    """A finding for one head."""

    sense: str
    head: int
    details: Mapping[str, object]


FIELDS = fields_of(FindingRow)


class Statement(TypedDict):
    """The fields that all rows of an entry share."""

    theorem: str
    paper: str
    says: str
    method: str | None
    options: Mapping[str, object]
    target: str | None
    weights: str | None
    source: str | None
    scale_inputs: float
    layer: int
    n: int
    d: int | None
    at: Mapping[str, object]
    assumption: str | None
    promise: str | None
    sense: str | None
    status: str
    reason: str | None


class Entry(Placed, Statement):
    """The place and the statement of an entry."""


class TheorySummary(Judged, Entry):
    """One statement on one layer, over heads and windows."""

    heads: int
    windows: int
    values: int
    verdicts: Mapping[str, int]
    quantiles: NotRequired[Mapping[str, Quantiles | dict[str, None]]]


def is_finding(row: TheoryRow) -> TypeGuard[FindingRow]:
    """Whether the row is of a head."""
    return row["head"] is not None


def theory_rows(records: Sequence[TheoryRecord]) -> list[TheoryRow]:
    """The rows of the JSON contract: one per finding and head. A cell or budget without any is a row with its reason.

    Infinity is ``"inf"``, NaN is null. If a statement has no verdict because of NaN, the row is ``diverged``.
    ``details`` holds the finding's numbers of that head. Only the records hold its curves.
    """
    rows: list[TheoryRow] = []
    for record, source in with_source(records):
        place = part(Cell, record)
        for finding in record["findings"]:
            lists = lists_of(finding, OfHead.__annotations__)
            for index, head in enumerate(record["heads"]):
                of_head = part(OfHead, by_name(lists, index))
                details = {name: values[index] for name, values in sorted(finding["details"].items())}
                row: FindingRow = {
                    **place,
                    **source,
                    "d": finding.get("d"),
                    "at": finding["at"],
                    "assumption": finding["assumption"],
                    "promise": finding["promise"],
                    "sense": finding["sense"],
                    "head": head,
                    **of_head,
                    "details": {name: value for name, value in details.items() if not isinstance(value, list)},
                    "status": "diverged" if of_head["verdict"] is None else "ok",
                    "reason": LOST if of_head["verdict"] is None else None,
                }
                rows.append(row)
        states: list[tuple[int | None, State]] = [
            (one["d"], {"status": "skipped", "reason": one["reason"]}) for one in record.get("refused") or ()
        ]
        if record["status"] not in ("ok", "diverged"):  # findings include diverged ones
            states.append((None, part(State, record)))
        for d, state in states:
            empty: TheoryRow = {
                **place,
                **source,
                "assumption": None,
                "promise": None,
                "verdict": None,
                "head": None,
                "at": {},
                "d": d,
                **state,
            }
            rows.append(empty)
    return rows


def theory_summary(rows: Iterable[TheoryRow]) -> list[TheorySummary]:
    """One entry per (source, theorem, method with options, layer, n, d, at), over heads and windows.

    ``verdicts`` counts the verdicts. ``metrics`` describes the metrics of gates; the first four are shares of heads.
    ``quantiles`` holds the quantiles of the others, infinite numbers included; null if there is no number.
    """
    place = ("source", "theorem", "method", "options", "layer", "n", "d", "at", "status", "reason")
    return [_summary(group) for group in grouped_by(rows, *place)]


def _summary(group: Sequence[TheoryRow]) -> TheorySummary:
    first = group[0]
    cells = len({row["window"] for row in group})
    entry: Entry = {**part(Statement, first), "requested": True, "cells": cells}
    if first["status"] != "ok":
        return {**entry, "heads": 0, "windows": cells, "values": 0, "verdicts": {}, "metrics": {}}
    heads = list(filter(is_finding, group))
    windows = [row["window"] for row in heads]
    shares = {word: [float(row["verdict"] == word) for row in heads] for word in VERDICTS}
    numbers = {name: [decode_inf(row[name]) for row in heads] for name in NUMBERS}
    described = {name.replace(" ", "_"): values for name, values in shares.items()} | numbers
    counts = {word: int(sum(values)) for word, values in shares.items()}
    return {
        **entry,
        "heads": len({row["head"] for row in heads}),
        "windows": cells,
        "values": len(heads),
        "verdicts": {word: count for word, count in counts.items() if count},
        "quantiles": {name: _quantiles(values) for name, values in numbers.items()},
        "metrics": {name: describe(values, windows) for name, values in described.items()},
    }


def _quantiles(values: Sequence[float]) -> Quantiles | dict[str, None]:
    """The quantiles of the values that are numbers."""
    numbers = [value for value in values if not math.isnan(value)]
    return quantiles(numbers) if numbers else dict.fromkeys(("p10", "median", "p90"))
