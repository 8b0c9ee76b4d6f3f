"""What records of ``attnprobe stability`` say: a row for each training, and their summary over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...records.file import STATUSES
from ...tables.intervals import mean_interval
from ...tables.labels import identity, source_labels
from ...tables.statistics import describe, quantiles
from ...tables.table import grouped_by
from .gates import GATED
from .names import PAPER, SELF_ATTENTION

__all__ = ["stability_rows", "stability_summary"]

Record = Any
Row = Any
SHARED = ("n", "batch", "rate", "d", "layer")  # of all seeds of a method
PLACE = ("task", "method", "options", "family", "target", *SHARED, "seed", "status", "reason")
SUMMARISED = ("task", "source", "method", "options", "family", "target", *SHARED, "steps")


def stability_rows(records: Iterable[Record]) -> list[Row]:
    """The rows of the JSON contract, one for each training.

    ``tau``, ``loss`` and ``gradient_norm`` are means over the steps, ``ratio`` the mean over the steps of ``τ_i`` over
    that of self-attention with the same seed; null where there is none with as many steps. ``conditions`` holds for
    each matrix the ``median`` over steps, layers and heads (null where it is singular), how many were ``singular``
    ``of`` how many, and whether the method ``inverted`` it. ``per_step`` holds every list of the record.
    """
    records = list(records)
    labels = source_labels(records)
    base = {
        _pair(record): record["metrics"]
        for record in records
        if (record["method"], record["options"]) == (SELF_ATTENTION, {}) and record["status"] == "ok"
    }
    return [_row(record, labels[identity(record.get("source"))], base.get(_pair(record))) for record in records]


def _pair(record: Record) -> tuple[Any, ...]:
    """What two trainings that are compared have in common."""
    names = ("task", "n", "batch", "rate", "eps", "steps", "seed")
    return identity(record["source"]), *(record[name] for name in names)


def _row(record: Record, label: str | None, base: Mapping[str, Any] | None) -> Row:
    steps = record["metrics"]
    names = (*PLACE, "reference", "requested", "steps", "condition_tokens")
    loss = steps.get("loss") or [None]
    return {
        **{name: record.get(name) for name in names},
        "source": label,
        "ratio": _ratio(steps, base, "tau"),
        "ratio_before_norm": _ratio(steps, base, "tau_before_norm"),
        **{name: _mean(steps.get(name)) for name in ("tau", "loss", "gradient_norm")},
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


def _ratio(steps: Mapping[str, Any], base: Mapping[str, Any] | None, name: str) -> float | None:
    """The mean over the steps of ours over theirs."""
    ours, theirs = steps.get(name), (base or {}).get(name)
    if not ours or not theirs or len(ours) != len(theirs) or None in (*ours, *theirs) or 0 in theirs:
        return None
    return math.fsum(one / other for one, other in zip(ours, theirs, strict=True)) / len(ours)


def _conditions(entries: Sequence[Mapping[str, Any]]) -> Row:
    """For each matrix what its condition numbers were."""
    found: Row = {}
    for name in dict.fromkeys(entry["matrix"] for entry in entries):
        some = [entry for entry in entries if entry["matrix"] == name]
        values = [math.inf if value is None else value for entry in some for value in entry["cond"]]
        median = quantiles(values)["median"] if values else math.inf
        found[name] = {
            "median": median,
            "singular": sum(map(math.isinf, values)),
            "of": len(values),
            "inverted": any(entry["inverted"] for entry in some),
        }
    return found


def _per_step(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The median over layers and heads of each matrix, step by step; infinite where it is singular."""
    found = {}
    for name in dict.fromkeys(entry["matrix"] for entry in entries):
        lists = [entry["cond"] for entry in entries if entry["matrix"] == name]
        found[name] = [
            quantiles([math.inf if value is None else value for value in some])["median"]
            for some in zip(*lists, strict=False)
        ]
    return found


def stability_summary(rows: Iterable[Row]) -> list[Row]:
    """One entry per (task, method with options, d), over seeds.

    ``metrics`` describes the metrics of gates; ``intervals`` holds the 95 % interval of the mean of each, null of one
    seed. The ratio's is of paired seeds. ``paper`` is the ratio that Skyformer's appendix gives, where it has one.
    """
    return [_summary(some) for some in grouped_by(rows, "source", "task", "method", "options", "target", "d")]


def _summary(some: Sequence[Row]) -> Row:
    first = some[0]
    names = (*SUMMARISED, "reference", "requested", "condition_tokens")
    worst = max(some, key=lambda row: STATUSES.index(row["status"]))
    seeds = [row["seed"] for row in some]
    found = {name: describe([row[name] for row in some], seeds) for name in GATED.names}
    kept = {name: [row[name] for row in some if row[name] is not None] for name in GATED.names}
    intervals = {name: mean_interval(values) for name, values in kept.items()}
    matrices = dict.fromkeys(name for row in some for name in row["conditions"])
    return {
        **{name: first[name] for name in names},
        "status": worst["status"],
        "reason": worst["reason"],
        "seeds": len(some),
        "values": len(some),
        "cells": len(some),
        "metrics": found,
        "intervals": {name: None if ends is None else list(ends) for name, ends in intervals.items()},
        "loss_first": _mean([row["loss_first"] for row in some]),
        "loss_last": _mean([row["loss_last"] for row in some]),
        "conditions": {
            name: _over_seeds([row["conditions"][name] for row in some if name in row["conditions"]])
            for name in matrices
        },
        "paper": None if first["options"] else PAPER.get(first["method"], {}).get(first["task"]),
    }


def _over_seeds(entries: Sequence[Row]) -> Row:
    return {
        "median": quantiles([entry["median"] for entry in entries])["median"],
        **{name: sum(entry[name] for entry in entries) for name in ("singular", "of")},
        "inverted": entries[0]["inverted"],
    }
