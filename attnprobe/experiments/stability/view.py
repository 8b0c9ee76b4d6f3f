"""What ``attnprobe stability`` shows: a row for each training, their summary over seeds, and the paper's ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...records.file import STATUSES, strict_json
from ...tables.console import Header
from ...tables.intervals import mean_interval
from ...tables.labels import identity, source_labels
from ...tables.numbers import brief, significant
from ...tables.statistics import describe, quantiles
from ...tables.table import Table, grouped_by
from ...tables.view import Figure, View
from ..base import Recorded
from .gates import STABILITY_METRICS
from .names import PAPER, SELF_ATTENTION, TASKS, stability_label

__all__ = ["stability_rows", "stability_summary", "view"]

Record = Mapping[str, Any]
Row = dict[str, Any]

HEADINGS = (
    "method",
    "d",
    "ratio",
    "95 % interval",
    "paper",
    "ratio before norm",
    "τ",
    "loss, first – last",
    "‖∇‖",
    "cond B",
    "cond C",
    "cond core",
    "status",
)
SPARE = ("cond C", "cond B", "‖∇‖", "ratio before norm", "loss, first – last", "cond core", "τ")
LEGEND = (
    "τ: ‖f(x_i, W_i) − f(x_i, W_{i−1})‖²_F / ‖W_i − W_{i−1}‖²_F, mean over the steps and seeds, f the embedding after "
    "two layers and the last norm. ratio: mean over the steps of τ over that of self-attention on the same batch, mean "
    "over seeds; its interval is Student's over the seeds, which are pairs. paper: Skyformer's appendix F. before "
    "norm: the same of the embedding before the last layer norm. loss: mean of the first and the last step. ‖∇‖: norm "
    "of the gradient, mean. cond: σ₁/σ_m, median over steps, layers, heads and seeds, of the first sequence of each "
    "batch; B and C of its first tokens on the method's own Q and K, core: what the method inverts."
)


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
        [_table(some) for some in grouped_by(summary, "task", "source")],
        LEGEND,
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
    names = (
        "task",
        "method",
        "options",
        "family",
        "target",
        "n",
        "batch",
        "rate",
        "d",
        "layer",
        "seed",
        "status",
        "reason",
        "reference",
        "requested",
        "steps",
        "condition_tokens",
    )
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
    return math.fsum(values) / len(values) if values and None not in values else None


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

    ``metrics`` describes `STABILITY_METRICS`; ``intervals`` holds the 95 % interval of the mean of each, null of one
    seed. The ratio's is of paired seeds. ``paper`` is the ratio that Skyformer's appendix gives, where it has one.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        who = (row["method"], strict_json(row["options"] or {}), row["target"], row["d"])
        groups.setdefault((row["source"], row["task"], *who), []).append(row)
    return [_summary(some) for some in groups.values()]


def _summary(some: Sequence[Row]) -> Row:
    first = some[0]
    names = (
        "task",
        "source",
        "method",
        "options",
        "family",
        "target",
        "n",
        "batch",
        "rate",
        "d",
        "layer",
        "steps",
        "reference",
        "requested",
        "condition_tokens",
    )
    worst = max(some, key=lambda row: STATUSES.index(row["status"]))
    seeds = [row["seed"] for row in some]
    found = {name: describe([row[name] for row in some], seeds) for name in STABILITY_METRICS}
    kept = {name: [row[name] for row in some if row[name] is not None] for name in STABILITY_METRICS}
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


def _table(some: Sequence[Row]) -> Table:
    first = some[0]
    lines = [_line(row) for row in some]
    kept = [i for i in range(len(HEADINGS)) if any(line[i] for line in lines)]
    seeds = max(row["seeds"] for row in some)
    caption = (
        f"{first['task']} · n ≤ {first['n']} · batch {first['batch']} · learning rate {first['rate']:g} · "
        f"{first['steps']} steps · {seeds} seed{'s' * (seeds != 1)}"
    )
    notes = []
    for row in some:
        if row["status"] != "ok":
            sign = "–" if row["status"] == "skipped" else "✗"
            notes.append(f"{sign} {stability_label(row)}: {row['status']}, {row['reason']}")
    lines = [[line[i] for i in kept] for line in lines]
    return Table(caption, [HEADINGS[i] for i in kept], lines, notes, SPARE)


def _line(row: Row) -> list[str]:
    ratio, ends = row["metrics"]["ratio"]["mean"], row["intervals"]["ratio"]
    is_base = row["method"] == SELF_ATTENTION and not row["options"]
    losses = [significant(row[name], 4) for name in ("loss_first", "loss_last")]
    tau, gradient = (row["metrics"][name]["mean"] for name in ("tau", "gradient_norm"))
    before = row["metrics"]["ratio_before_norm"]["mean"]
    return [
        stability_label(row),
        "" if row["d"] is None else str(row["d"]),
        significant(ratio, 3),
        "" if ends is None or is_base else f"{significant(ends[0], 3)} – {significant(ends[1], 3)}",
        "" if row["paper"] is None else f"{row['paper']:.2f}",
        "" if before is None else brief(before),
        "" if tau is None else brief(tau),
        " – ".join(losses) if all(losses) else "",
        significant(gradient, 3),
        *(_cond(row["conditions"].get(name)) for name in ("B", "C")),
        "; ".join(f"{name} {_cond(entry)}" for name, entry in row["conditions"].items() if entry["inverted"]),
        "" if row["status"] == "ok" else row["status"],
    ]


def _cond(entry: Row | None) -> str:
    return "" if entry is None else brief(entry["median"])


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
