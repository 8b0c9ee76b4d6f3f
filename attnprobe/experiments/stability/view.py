"""The view of ``attnprobe stability``: a row for each training, their summary over seeds, and the paper's ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from ...records.file import STATUSES
from ...tables.long import Row, describe, known, long_rows, mean_interval, median, unbounded
from ...tables.numbers import brief, method_label, significant
from ...tables.table import Column, Table, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from . import GATED
from .naming import TASKS
from .record import SHAPE, STEP_METRICS, StabilityRecord

SELF_ATTENTION = "softmax"
# Chen et al. 2021 (Skyformer), appendix F: mean instability over that of self-attention
PAPER: dict[str, dict[str, float]] = {
    name: dict(zip(TASKS, values, strict=True))
    for name, values in {
        SELF_ATTENTION: (1.0,) * 5,
        "nystromformer": (1.03, 1.01, 0.97, 0.99, 1.02),
        "kernelized": (0.83, 0.77, 0.64, 0.74, 0.62),
        "skyformer": (0.81, 0.79, 0.64, 0.79, 0.65),
    }.items()
}
METHOD = (
    *("task", "method", "options", "family", "target", "n", "batch", "rate", "d", "layer"),
    *("reference", "requested", "steps", "condition_tokens", "source"),
)
TRAINING = (*METHOD, "eps", "seed", "status", "reason")
PAIRED = ("source", "task", "n", "batch", "rate", "eps", "steps", "seed")  # the fields that compared trainings share
ENDS = ("loss_first", "loss_last")
OF_STEPS = ("ratio", "ratio_before_norm", "tau", "loss", "gradient_norm", *ENDS)
FIELDS = (*TRAINING, *OF_STEPS, "conditions", "per_step", "cond_per_step", "seconds")


def stability_label(row: Row) -> str:
    """The method in the form of the command line; softmax attention by its name in the paper."""
    return "self-attention" if is_self_attention(row) else method_label(row)


def is_self_attention(row: Row) -> bool:
    """Whether the row is of softmax attention, by which others are divided."""
    return row["method"] == SELF_ATTENTION and not row["options"]


def _interval(row: Row) -> str:
    ends = row["intervals"]["ratio"]
    return "" if ends is None or is_self_attention(row) else " – ".join(significant(end, 3) for end in ends)


def _core(row: Row) -> str:
    inverted = [(name, entry) for name, entry in row["conditions"].items() if entry["inverted"]]
    return "; ".join(f"{name} {brief(entry['median'])}" for name, entry in inverted)


COND = "σ₁/σ_m, median"
FIRST_TOKENS = (
    "over steps, layers and heads, then over seeds, of the first sequence of each batch; B and C of its first tokens "
    "on the method's own Q and K, core: what the method inverts"
)
RATIO = "of τ over self-attention's"
PAIRS = "mean over the steps on the same batches, and over seeds; the interval is Student's over the seeds, as pairs"
COLUMNS: tuple[Column, ...] = (
    Column("method", stability_label, key=True),
    Column("d", "{d}", key=True),
    Column("ratio", "{metrics[ratio][mean]:3}", RATIO, more=PAIRS),
    Column("95 % interval", _interval, RATIO, more=PAIRS),
    Column("paper", "{paper:.2f}", "Skyformer's appendix F"),
    Column(
        "ratio before norm",
        "{metrics[ratio_before_norm][mean]:brief}",
        "before the last layer norm",
        spare=4,
        more="the ratio of the embedding there",
    ),
    Column(
        "τ",
        "{metrics[tau][mean]:brief}",
        "squared change of the embedding over that of the weights",
        spare=1,
        more="‖f(x_i, W_i) − f(x_i, W_{i−1})‖²_F / ‖W_i − W_{i−1}‖²_F, mean over the steps and seeds, f the embedding "
        "after two layers and the last norm",
    ),
    Column(
        "loss, first – last",
        "{loss_first:4} – {loss_last:4}",
        "of the first and last step",
        spare=3,
        short="loss",
        more="mean over seeds",
    ),
    Column("‖∇‖", "{metrics[gradient_norm][mean]:3}", "mean norm of the gradient", spare=5, short="∇"),
    Column("cond B", "{conditions[B][median]:brief}", COND, spare=6, more=FIRST_TOKENS),
    Column("cond C", "{conditions[C][median]:brief}", COND, spare=7, more=FIRST_TOKENS),
    Column("cond core", _core, COND, spare=2, more=FIRST_TOKENS),
    Column("status", lambda row: "" if row["status"] == "ok" else row["status"]),
)


def view(recorded: Recorded[StabilityRecord]) -> View:
    """The view of the records of ``attnprobe stability``, with the trainings in the header."""
    from .figures import stability_figures

    rows = stability_rows(recorded.records)
    summary = stability_summary(rows)
    header = replace(recorded.header, remarks=_trained(recorded.records), inputs=(), measured=())
    draw = partial(stability_figures, rows, recorded.drawing)
    return View(
        "stability",
        header,
        rows,
        [_table(group) for group in grouped_by(summary, "task", "source")],
        title="The first steps of training",
        summary=summary,
        judged=summary,
        tiles=[(name, name) for name in ("task", "method", "seed")],
        figures={"stability": Figure("stability", draw, "nothing was trained that could be drawn")},
    )


def stability_rows(records: Sequence[StabilityRecord]) -> list[Row]:
    """The rows of the JSON contract, one for each training.

    ``tau``, ``loss`` and ``gradient_norm`` are means over the steps. ``ratio`` is the mean over the steps of ``τ_i``
    divided by that of self-attention with the same seed; null if self-attention has fewer steps. ``conditions`` holds
    for each matrix the ``median`` over steps, layers and heads (null if it is singular), the number ``singular``, the
    number ``of`` all, and whether the method ``inverted`` it. ``per_step`` holds every list of the record.
    """
    steps = long_rows(records, SHAPE, ("key", "seconds", *TRAINING))
    rows = [_training(group) for group in grouped_by(steps, "key")]
    bases = {_pair(row): row["per_step"] for row in rows if is_self_attention(row) and row["status"] == "ok"}
    for row in rows:
        base = bases.get(_pair(row), {})
        row["ratio"] = _ratio(row["per_step"], base, "tau")
        row["ratio_before_norm"] = _ratio(row["per_step"], base, "tau_before_norm")
    return rows


def _training(group: Sequence[Row]) -> Row:
    """One training, from the rows of its steps and of its matrices."""
    steps = [row for row in group if "step" in row and "matrix" not in row]
    per_step = {name: [row[name] for row in steps if name in row] for name in sorted(STEP_METRICS)}
    per_step = {name: values for name, values in per_step.items() if values}
    loss = per_step.get("loss") or [None]
    matrices = grouped_by([row for row in group if "matrix" in row], "matrix")
    return {
        **{name: group[0][name] for name in TRAINING},
        "ratio": None,
        "ratio_before_norm": None,
        **{name: _mean(per_step.get(name, ())) for name in ("tau", "loss", "gradient_norm")},
        "loss_first": loss[0],
        "loss_last": loss[-1],
        "conditions": {some[0]["matrix"]: _condition(some) for some in matrices},
        "per_step": per_step,
        "cond_per_step": {
            some[0]["matrix"]: [_cond(of_step) for of_step in grouped_by(some, "step")] for some in matrices
        },
        "seconds": group[0]["seconds"],
    }


def _condition(rows: Sequence[Row]) -> Row:
    """The condition numbers of one matrix over steps, layers and heads."""
    return {
        "median": _cond(rows),
        "singular": sum(row["cond"] is None for row in rows),
        "of": len(rows),
        "inverted": any(row["inverted"] for row in rows),
    }


def _cond(rows: Sequence[Row]) -> float | None:
    return median(unbounded(row["cond"] for row in rows))


def _pair(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in PAIRED)


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None without values or if one is unknown."""
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None


def _ratio(steps: Row, base: Row, name: str) -> float | None:
    """The mean over the steps of the ratio to self-attention."""
    ours, reference = steps.get(name, ()), base.get(name, ())
    if len(ours) != len(reference):
        return None
    pairs = zip(ours, reference, strict=True)
    return _mean([one / other if one is not None and other else None for one, other in pairs])


def stability_summary(rows: Iterable[Row]) -> list[Row]:
    """One entry per (task, method with options, d), over seeds.

    ``metrics`` describes the metrics of gates. ``intervals`` holds the 95 % interval of each mean; null for one seed.
    The interval of the ratio is over paired seeds. ``paper`` is the ratio in Skyformer's appendix, if it has one.
    """
    return [_summary(group) for group in grouped_by(rows, "source", "task", "method", "options", "target", "d")]


def _summary(group: Sequence[Row]) -> Row:
    first = group[0]
    worst = max(group, key=lambda row: STATUSES.index(row["status"]))
    seeds = [row["seed"] for row in group]
    matrices = dict.fromkeys(name for row in group for name in row["conditions"])
    return {
        **{name: first[name] for name in METHOD},
        "status": worst["status"],
        "reason": worst["reason"],
        "seeds": len(group),
        "values": len(group),
        "cells": len(group),
        "metrics": {name: describe([row[name] for row in group], seeds) for name in GATED.names},
        "intervals": {name: mean_interval(known(group, name)) for name in GATED.names},
        **{name: _mean([row[name] for row in group]) for name in ENDS},
        "conditions": {
            name: _over_seeds([row["conditions"][name] for row in group if name in row["conditions"]])
            for name in matrices
        },
        "paper": None if first["options"] else PAPER.get(first["method"], {}).get(first["task"]),
    }


def _over_seeds(entries: Sequence[Row]) -> Row:
    return {
        "median": median([entry["median"] for entry in entries]),
        "singular": sum(entry["singular"] for entry in entries),
        "of": sum(entry["of"] for entry in entries),
        "inverted": entries[0]["inverted"],
    }


def _table(group: Sequence[Row]) -> Table:
    first = group[0]
    caption = joined(
        first["task"],
        f"n ≤ {first['n']}",
        f"batch {first['batch']}",
        f"learning rate {first['rate']:g}",
        f"{first['steps']} steps",
        counted(group, "seeds"),
    )
    return table_of(caption, group, COLUMNS, reasons(group, stability_label))


def _trained(records: Sequence[StabilityRecord]) -> list[str]:
    """The lines of the header: which of the five tasks ran, and how the training differs from the paper's."""
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
