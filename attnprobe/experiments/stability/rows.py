"""The rows of ``attnprobe stability``: a row for each training, and their summary over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from ...records.file import STATUSES
from ...tables.intervals import mean_interval
from ...tables.labels import identity, source_labels
from ...tables.rows import Judged, part
from ...tables.statistics import describe, fields_of, quantiles
from ...tables.table import grouped_by
from .gates import GATED
from .names import PAPER, SELF_ATTENTION

if TYPE_CHECKING:
    from .record import Condition, StabilityRecord

Steps = Mapping[str, Sequence[float | None]]


class Training(TypedDict):
    """The training, as in the record."""

    task: str
    method: str
    options: Mapping[str, object]
    family: str | None
    target: str | None
    n: int
    batch: int
    rate: float
    d: int | None
    layer: int
    seed: int
    status: str
    reason: str | None
    reference: bool | None
    requested: bool
    steps: int
    condition_tokens: int | None


class MatrixCondition(TypedDict):
    """The condition numbers of one matrix over steps, layers and heads."""

    median: float
    singular: int
    of: int
    inverted: bool


class StabilityRow(Training):
    """One training."""

    source: str | None
    ratio: float | None
    ratio_before_norm: float | None
    tau: float | None
    loss: float | None
    gradient_norm: float | None
    loss_first: float | None
    loss_last: float | None
    conditions: Mapping[str, MatrixCondition]
    per_step: Mapping[str, list[float | None]]
    cond_per_step: Mapping[str, list[float]]
    seconds: float | None


FIELDS = fields_of(StabilityRow)


class Summarised(TypedDict):
    """The fields that all trainings of an entry share."""

    task: str
    source: str | None
    method: str
    options: Mapping[str, object]
    family: str | None
    target: str | None
    n: int
    batch: int
    rate: float
    d: int | None
    layer: int
    steps: int
    reference: bool | None
    requested: bool
    condition_tokens: int | None


class StabilitySummary(Judged, Summarised):
    """The trainings of one method on one task, over seeds."""

    seeds: int
    intervals: Mapping[str, list[float] | None]
    loss_first: float | None
    loss_last: float | None
    conditions: Mapping[str, MatrixCondition]
    paper: float | None


def stability_rows(records: Sequence[StabilityRecord]) -> list[StabilityRow]:
    """The rows of the JSON contract, one for each training.

    ``tau``, ``loss`` and ``gradient_norm`` are means over the steps. ``ratio`` is the mean over the steps of ``τ_i``
    divided by that of self-attention with the same seed; null if self-attention has fewer steps. ``conditions`` holds
    for each matrix the ``median`` over steps, layers and heads (null if it is singular), the number ``singular``, the
    number ``of`` all, and whether the method ``inverted`` it. ``per_step`` holds every list of the record.
    """
    labels = source_labels(records)
    base = {
        _pair(record): record["metrics"]
        for record in records
        if (record["method"], record["options"]) == (SELF_ATTENTION, {}) and record["status"] == "ok"
    }
    return [_row(record, labels[identity(record.get("source"))], base.get(_pair(record))) for record in records]


def _pair(record: StabilityRecord) -> tuple[Any, ...]:
    """The fields that two compared trainings share."""
    names = ("task", "n", "batch", "rate", "eps", "steps", "seed")
    return identity(record["source"]), *(record[name] for name in names)


def _row(record: StabilityRecord, label: str | None, base: Steps | None) -> StabilityRow:
    steps = record["metrics"]
    loss = steps.get("loss") or [None]
    return {
        **part(Training, record),
        "source": label,
        "ratio": _ratio(steps, base, "tau"),
        "ratio_before_norm": _ratio(steps, base, "tau_before_norm"),
        "tau": _mean(steps.get("tau")),
        "loss": _mean(steps.get("loss")),
        "gradient_norm": _mean(steps.get("gradient_norm")),
        "loss_first": loss[0],
        "loss_last": loss[-1],
        "conditions": _conditions(record["conditions"]),
        "per_step": {name: list(steps.get(name) or ()) for name in sorted(steps)},
        "cond_per_step": _per_step(record["conditions"]),
        "seconds": record.get("seconds"),
    }


def _mean(values: Sequence[float | None] | None) -> float | None:
    known = [value for value in values or () if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values or ()) else None


def _ratio(steps: Steps, base: Steps | None, name: str) -> float | None:
    """The mean over the steps of the ratio to self-attention."""
    ours, reference = steps.get(name) or (), (base or {}).get(name) or ()
    if len(ours) != len(reference):
        return None
    return _mean(
        [one / other if one is not None and other else None for one, other in zip(ours, reference, strict=True)]
    )


def _conditions(entries: Sequence[Condition]) -> dict[str, MatrixCondition]:
    """The summary of each matrix's condition numbers."""
    conditions: dict[str, MatrixCondition] = {}
    for name in dict.fromkeys(entry["matrix"] for entry in entries):
        group = [entry for entry in entries if entry["matrix"] == name]
        values = [math.inf if value is None else value for entry in group for value in entry["cond"]]
        median = quantiles(values)["median"] if values else math.inf
        conditions[name] = {
            "median": median,
            "singular": sum(map(math.isinf, values)),
            "of": len(values),
            "inverted": any(entry["inverted"] for entry in group),
        }
    return conditions


def _per_step(entries: Sequence[Condition]) -> dict[str, list[float]]:
    """The median over layers and heads of each matrix, step by step; infinite if it is singular."""
    medians = {}
    for name in dict.fromkeys(entry["matrix"] for entry in entries):
        lists = [entry["cond"] for entry in entries if entry["matrix"] == name]
        medians[name] = [
            quantiles([math.inf if value is None else value for value in column])["median"]
            for column in zip(*lists, strict=False)
        ]
    return medians


def stability_summary(rows: Iterable[StabilityRow]) -> list[StabilitySummary]:
    """One entry per (task, method with options, d), over seeds.

    ``metrics`` describes the metrics of gates. ``intervals`` holds the 95 % interval of each mean; null for one seed.
    The interval of the ratio is over paired seeds. ``paper`` is the ratio in Skyformer's appendix, if it has one.
    """
    return [_summary(group) for group in grouped_by(rows, "source", "task", "method", "options", "target", "d")]


def _summary(group: Sequence[StabilityRow]) -> StabilitySummary:
    first = group[0]
    worst = max(group, key=lambda row: STATUSES.index(row["status"]))
    seeds = [row["seed"] for row in group]
    spreads = {name: describe([row[name] for row in group], seeds) for name in GATED.names}
    known = {name: [row[name] for row in group if row[name] is not None] for name in GATED.names}
    intervals = {name: mean_interval(values) for name, values in known.items()}
    matrices = dict.fromkeys(name for row in group for name in row["conditions"])
    return {
        **part(Summarised, first),
        "status": worst["status"],
        "reason": worst["reason"],
        "seeds": len(group),
        "values": len(group),
        "cells": len(group),
        "metrics": spreads,
        "intervals": {name: None if ends is None else list(ends) for name, ends in intervals.items()},
        "loss_first": _mean([row["loss_first"] for row in group]),
        "loss_last": _mean([row["loss_last"] for row in group]),
        "conditions": {
            name: _over_seeds([row["conditions"][name] for row in group if name in row["conditions"]])
            for name in matrices
        },
        "paper": None if first["options"] else PAPER.get(first["method"], {}).get(first["task"]),
    }


def _over_seeds(entries: Sequence[MatrixCondition]) -> MatrixCondition:
    return {
        "median": quantiles([entry["median"] for entry in entries])["median"],
        "singular": sum(entry["singular"] for entry in entries),
        "of": sum(entry["of"] for entry in entries),
        "inverted": entries[0]["inverted"],
    }
