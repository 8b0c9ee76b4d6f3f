"""What ``attnprobe stability`` shows: a row for each training, their summary over seeds, and the paper's ratios."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...records.file import STATUSES
from ...tables.console import Header
from ...tables.intervals import mean_interval
from ...tables.labels import identity, source_labels
from ...tables.numbers import brief, significant
from ...tables.statistics import describe, quantiles
from ...tables.table import Column, Table, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .gates import GATED
from .names import PAPER, SELF_ATTENTION, TASKS, stability_label

__all__ = ["stability_rows", "stability_summary", "view"]

Record = Any
Row = Any

SHARED = ("n", "batch", "rate", "d", "layer")  # of all seeds of a method
PLACE = ("task", "method", "options", "family", "target", *SHARED, "seed", "status", "reason")
SUMMARISED = ("task", "source", "method", "options", "family", "target", *SHARED, "steps")


def view(recorded: Recorded) -> View:
    """What records of ``attnprobe stability`` show, with what was trained in the header."""
    from .figures import stability_figures

    rows = stability_rows(recorded.records)
    summary = stability_summary(rows)
    above = recorded.header
    header = Header(above.source, [*above.lines, *_trained(recorded.records)], above.warnings)
    draw = lambda folder: stability_figures(rows, header.title, folder)
    return View(
        "stability",
        header,
        rows,
        stability_tables(summary),
        title="The first steps of training",
        summary=summary,
        judged=summary,
        figures={"stability": Figure("stability", draw, "nothing was trained that could be drawn")},
    )


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


def stability_tables(summary: Sequence[Row]) -> list[Table]:
    """A table for each task, a line for each method."""
    tables = []
    for some in grouped_by(summary, "task", "source"):
        first = some[0]
        caption = joined(
            first["task"],
            f"n ≤ {first['n']}",
            f"batch {first['batch']}",
            f"learning rate {first['rate']:g}",
            f"{first['steps']} steps",
            counted(some, "seeds"),
        )
        tables.append(table_of(caption, some, COLUMNS, reasons(some, stability_label)))
    return tables


def _mean_of(name: str, text: Callable[[float], str] = brief) -> Callable[[Row], str]:
    """The mean over the seeds; nothing where some seed has none."""

    def cell(row: Row) -> str:
        mean = row["metrics"][name]["mean"]
        return "" if mean is None else text(mean)

    return cell


def _three(value: float) -> str:
    return significant(value, 3)


def _interval(row: Row) -> str:
    ends = row["intervals"]["ratio"]
    is_base = row["method"] == SELF_ATTENTION and not row["options"]
    return "" if ends is None or is_base else " – ".join(map(_three, ends))


def _losses(row: Row) -> str:
    ends = [significant(row[name], 4) for name in ("loss_first", "loss_last")]
    return " – ".join(ends) if all(ends) else ""


def _cond(name: str) -> Callable[[Row], str]:
    return lambda row: brief(row["conditions"][name]["median"]) if name in row["conditions"] else ""


def _core(row: Row) -> str:
    inverted = [name for name, entry in row["conditions"].items() if entry["inverted"]]
    return "; ".join(f"{name} {_cond(name)(row)}" for name in inverted)


COND = (
    "cond: σ₁/σ_m, median over steps, layers, heads and seeds, of the first sequence of each batch; B and C of its "
    "first tokens on the method's own Q and K, core: what the method inverts"
)
COLUMNS: tuple[Column[Row], ...] = (
    Column("method", stability_label),
    Column.of("d"),
    Column(
        "ratio",
        _mean_of("ratio", _three),
        "ratio: mean over the steps of τ over that of self-attention on the same batch, mean over seeds; its interval "
        "is Student's over the seeds, which are pairs",
    ),
    Column("95 % interval", _interval),
    Column(
        "paper",
        lambda row: "" if row["paper"] is None else f"{row['paper']:.2f}",
        "paper: Skyformer's appendix F",
    ),
    Column(
        "ratio before norm",
        _mean_of("ratio_before_norm"),
        "before norm: the same of the embedding before the last layer norm",
        spare=4,
    ),
    Column(
        "τ",
        _mean_of("tau"),
        "τ: ‖f(x_i, W_i) − f(x_i, W_{i−1})‖²_F / ‖W_i − W_{i−1}‖²_F, mean over the steps and seeds, f the embedding "
        "after two layers and the last norm",
        spare=1,
    ),
    Column("loss, first – last", _losses, "loss: mean of the first and the last step", spare=3),
    Column("‖∇‖", _mean_of("gradient_norm", _three), "‖∇‖: norm of the gradient, mean", spare=5),
    Column("cond B", _cond("B"), COND, spare=6),
    Column("cond C", _cond("C"), COND, spare=7),
    Column("cond core", _core, COND, spare=2),
    Column("status", lambda row: "" if row["status"] == "ok" else row["status"]),
)


def _trained(records: Sequence[Record]) -> list[str]:
    """The lines that say which of the five tasks ran, and in what the training differs from the paper's."""
    ran = list(dict.fromkeys(record["task"] for record in records))
    rest = [name for name in TASKS if name not in ran]
    lines = [f"tasks: {', '.join(ran)} of the paper's five" + (f"; not run: {', '.join(rest)}" if rest else "")]
    lines.append(
        "trained: 2 layers, width 64, hidden 128, 2 heads, mean pooling, Adam; "
        "the same initial weights, batches and seeds of draws for every method"
    )
    for task in ran:
        record = next(one for one in records if one["task"] == task)
        paper = record["paper_setting"]
        words = {"batch": "batch", "n": "tokens at most", "rate": "learning rate"}
        off = [
            f"{word} {record[name]:g}, not {paper[name]:g}"
            for name, word in words.items()
            if record[name] != paper[name]
        ]
        lines.append(f"{task} here: {'; '.join(off) if off else 'the batch, length and learning rate of the paper'}")
    return lines
