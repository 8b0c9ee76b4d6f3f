"""The tables and figures of ``attnprobe stability``: instability against self-attention's, and condition numbers.

Rows of kind ``step`` are the steps of a training, rows of kind ``condition`` the matrices of each head at each step.
`trainings` makes a row for each training, whose ratio needs the training of self-attention with the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..figure import Figure
from ..table import BUDGET, KEY, METHOD, Column, Table

if TYPE_CHECKING:
    from pandas import DataFrame

SELF_ATTENTION = "name == 'softmax'"
TASKS = ("text", "listops", "retrieval", "pathfinder", "image")
# Chen et al. 2021 (Skyformer), appendix F: mean instability over that of self-attention
PAPER = {
    "softmax": (1.0,) * 5,
    "nystromformer": (1.03, 1.01, 0.97, 0.99, 1.02),
    "kernelized": (0.83, 0.77, 0.64, 0.74, 0.62),
    "skyformer": (0.81, 0.79, 0.64, 0.79, 0.65),
}
PAIRED = ["source", "task", "n", "batch", "learning_rate", "eps", "steps", "seed"]  # what compared trainings share
RATIOS = {"ratio": "tau", "ratio_before_norm": "tau_before_norm"}
MEANS = (*RATIOS, "tau", "loss", "gradient_norm")
OF_MATRICES = ("cond", "cond_eff", "rank")
EXACT = {"softmax": "B", "kernelized": "C"}  # the matrix of a method without a core


def conditions(cells: Any) -> list[str]:
    """The lines above the tables: which of the five tasks ran, and how the training differs from the paper's."""
    ran = [*cells["task"].unique()]
    rest = [task for task in TASKS if task not in ran]
    lines = [
        f"tasks: {', '.join(ran)} of the paper's five" + (f"; not run: {', '.join(rest)}" if rest else ""),
        "trained: 2 layers, width 64, hidden 128, 2 heads, mean pooling, Adam; "
        "the same initial weights, batches and seeds of draws for every method",
    ]
    for task in ran:
        cell = cells[cells["task"] == task].iloc[0]
        words = {"batch": "batch", "n": "tokens at most", "learning_rate": "learning rate"}
        off = [
            f"{word} {cell[name]:g}, not {cell[f'paper_{name}']:g}"
            for name, word in words.items()
            if cell[name] != cell[f"paper_{name}"]
        ]
        lines.append(f"{task} here: {'; '.join(off) or 'the batch, length and learning rate of the paper'}")
    return lines


def with_ratios(steps: Any) -> DataFrame:
    """The steps with ``ratio`` and ``ratio_before_norm``: τ over that of self-attention with the same seed.

    They are missing where self-attention failed, or trained another number of steps.
    """
    complete: Any = steps.assign(**{name: math.nan for name in (*RATIOS.values(), *MEANS) if name not in steps})
    complete["trained"] = complete.groupby("key")["step"].transform("count")
    own = complete.query(SELF_ATTENTION)
    own = own[own["status"] == "ok"].drop_duplicates([*PAIRED, "step"])
    shared = [*PAIRED, "step"]
    pairs: Any = complete.merge(own[[*shared, "trained", *RATIOS.values()]], "left", on=shared, suffixes=("", "_self"))
    # a training that diverged early has a mean over other steps than self-attention's
    paired = pairs["trained"] == pairs["trained_self"]
    for ratio, name in RATIOS.items():
        base = pairs[f"{name}_self"]
        pairs[ratio] = (pairs[name] / base.where(base != 0)).where(paired)
    return pairs


def trainings(steps: Any) -> DataFrame:
    """A row for each training: means over its steps, missing if a step has no number, and its first and last loss."""
    rows: Any = with_ratios(steps)
    groups, first = rows.groupby("key", sort=False), rows.drop_duplicates("key").set_index("key", drop=False)
    # a mean without the steps that were lost would flatter a method
    whole = groups[[*MEANS]].count().eq(groups.size(), axis=0)
    means = groups[[*MEANS]].mean().where(whole)
    losses = {
        "loss_first": first["loss"],
        "loss_last": rows.drop_duplicates("key", keep="last").set_index("key")["loss"],
    }
    own = [name for name in steps if name not in (*MEANS, *RATIOS.values(), "head", "step")]
    columns = {name: means[name].astype("Float64") for name in MEANS} | losses
    return with_setting(first[own].assign(**columns).reset_index(drop=True))


def with_setting(rows: Any) -> DataFrame:
    """The rows with ``setting``, the training in words."""
    columns = [rows[name] for name in ("batch", "learning_rate", "steps")]
    texts = [
        f"batch {batch}, learning rate {rate:g}, {steps} steps" for batch, rate, steps in zip(*columns, strict=True)
    ]
    return without_task(rows.assign(setting=texts).astype({"setting": "string"}))


def without_task(rows: Any) -> DataFrame:
    """The rows with an empty source where it only repeats the task."""
    return rows.assign(source=rows["source"].where(rows["source"] != rows["task"], ""))


def matrices(rows: Any) -> DataFrame:
    """A row for each training and matrix: medians over steps, layers and heads, and how many are singular."""
    known: Any = _measured(rows)
    known = known.assign(singular=known["cond"] == math.inf, matrices=1)
    groups = known.groupby(["key", "matrix"], sort=False)
    first = known.drop_duplicates(["key", "matrix"]).set_index(["key", "matrix"], drop=False)
    medians = {name: groups[name].median() for name in OF_MATRICES}
    counts = {name: groups[name].sum() for name in ("singular", "matrices")}
    own = [name for name in first if name not in ("head", "step")]
    return with_setting(first[own].assign(layer=None, **medians, **counts).reset_index(drop=True))


def _measured(rows: Any) -> DataFrame:
    """The rows that have a matrix, with each number of it."""
    return rows[rows["matrix"].notna()].assign(**{name: math.nan for name in OF_MATRICES if name not in rows})


def cores(rows: Any) -> DataFrame:
    """A row for each step of a training: the median ``cond`` of the last matrix that the method inverts, or its own."""
    known: Any = _measured(rows)
    inverted = known[known["inverted"]].drop_duplicates("key", keep="last").set_index("key")["matrix"]
    core = known["key"].map(inverted).astype("string").fillna(known["method"].map(EXACT).astype("string"))
    of_core = known[known["matrix"] == core]
    first = of_core.drop_duplicates(["key", "step"]).set_index(["key", "step"], drop=False)
    medians = of_core.groupby(["key", "step"], sort=False)["cond"].median()
    return without_task(first.assign(cond=medians).drop(columns=["head", "layer"]).reset_index(drop=True))


def _paper(rows: Any) -> float | None:
    """The ratio of a method and task in the paper."""
    name, task = rows["name"].iloc[0], rows["task"].iloc[0]
    return dict(zip(TASKS, PAPER.get(name, ()), strict=False)).get(task)


def _target(rows: Any) -> str:
    return rows["target"].iloc[0]


def _inverted(rows: Any) -> bool:
    return bool(rows["inverted"].iloc[0])


def _seeds(rows: Any) -> Sequence[str]:
    """What the numbers are over."""
    seeds = rows["seed"].nunique()
    return [f"mean over steps, then over {seeds} seeds; ± half of the 95 % interval over seeds"] if seeds > 1 else []


TITLE = "The first steps of training"
CONDITIONS = conditions
TILES = (("task", "task"), ("method", "method"), ("seed", "seed"))
EACH = ("task", "source", "n", "setting")
NAMED = replace(METHOD, words={**METHOD.words, "softmax": "self-attention"})
TARGET = Column("target", "target", meaning="the exact matrix that the method approximates")
TABLES = (
    Table(
        "trainings",
        "Instability of training",
        kind="step",
        prepared=trainings,
        each=EACH,
        by=("name", "d"),
        cluster="seed",
        columns=(
            NAMED,
            BUDGET,
            Column("τ / τ of\nself-attention", "ratio.mean", half="ratio.half", priority=8),
            Column("paper", "paper", digits=None, priority=7, meaning="this ratio in Skyformer's appendix F"),
            Column("ratio before\nlast norm", "ratio_before_norm.mean", priority=3),
            Column("τ", "tau.mean", priority=6),
            Column("first\nloss", "loss_first.mean", digits=4, priority=4),
            Column("last\nloss", "loss_last.mean", digits=4, priority=5),
        ),
        more=(
            Column("gradient\nnorm", "gradient_norm.mean"),
            Column("mean\nloss", "loss.mean", digits=4),
            TARGET,
        ),
        of_groups={"paper": _paper, "target": _target},
        notes=_seeds,
    ),
    Table(
        "conditions",
        "Condition numbers in training",
        kind="condition",
        prepared=matrices,
        each=EACH,
        by=("name", "d", "matrix"),
        cluster="seed",
        columns=(
            NAMED,
            BUDGET,
            Column("matrix", "matrix", priority=KEY, meaning="B and C of the first tokens, cores of all tokens"),
            Column("inverted", "inverted", words={True: "yes", False: ""}, meaning="whether the method inverts it"),
            Column("σ₁/σ_m\nmedian", "cond.median", priority=8),
            Column("σ₁/σ_r\nmedian", "cond_eff.median", priority=4),
            Column("rank\nmedian", "rank.median", priority=3),
            Column("singular", "singular.sum", of="matrices.sum", digits=0, priority=7),
        ),
        more=(TARGET,),
        of_groups={"inverted": _inverted, "target": _target},
    ),
)
FIGURES = (
    Figure(
        "stability",
        "First steps of training",
        x="step",
        y=("tau", "loss", "gradient_norm"),
        marks=("band min max", "line"),
        kind="step",
        prepared=without_task,
        columns=("task", "d"),
        apart=("source", "weights", "scale_inputs", "n"),
        log=("tau",),
        shared="x",
        yardsticks=SELF_ATTENTION,
        caption="Medians over seeds, with all seeds between the least and the largest.",
    ),
    Figure(
        "stability-condition",
        "Condition of attention in training",
        x="step",
        y="cond",
        marks=("band min max", "line"),
        kind="condition",
        prepared=cores,
        columns=("task", "d"),
        apart=("source", "weights", "scale_inputs", "n"),
        log=("cond",),
        yardsticks=SELF_ATTENTION,
        caption="Condition number of the core that a method inverts, of B or C without one; lines are medians over "
        "seeds, and bands have all seeds.",
    ),
)
