"""The records of ``attnprobe stability``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from ...records.shapes import Count, Number, PerHead, Place, Seed, Shape, by_name, said

STEP_METRICS = ("tau", "tau_before_norm", "loss", "gradient_norm", "weight_change", "embedding_change")


class Condition(TypedDict):
    """One matrix of one layer and head, with an entry for each step."""

    matrix: Annotated[str, said("its name")]
    inverted: Annotated[bool, said("whether the method inverts it")]
    cond: Annotated[PerHead, said("σ₁/σ_m; null if it is singular")]
    cond_eff: NotRequired[Annotated[PerHead, said("σ₁/σ_rank")]]
    rank: NotRequired[Annotated[list[Count | None], said("the numerical rank")]]
    tokens: NotRequired[Annotated[list[Count | None] | Count | None, said("its number of tokens")]]
    layer: NotRequired[Annotated[Count | None, said("the layer")]]
    head: NotRequired[Annotated[Count | None, said("the head")]]


class Setting(TypedDict):
    """A setting of a task in the paper."""

    n: Annotated[Count, said("tokens")]
    batch: Annotated[Count, said("sequences per batch")]
    rate: Annotated[Number, said("the learning rate")]


class StabilityRecord(Place):
    """The first steps of one training."""

    method: Annotated[str, said("the method")]
    task: Annotated[str, said("the task")]
    seed: Annotated[Seed, said("the seed of weights, batches and draws")]
    batch: Annotated[Count, said("sequences per batch")]
    rate: Annotated[Number, said("the learning rate")]
    eps: Annotated[Number, said("Adam's ε")]
    steps: Annotated[Count, said("the requested number of steps")]
    requested: Annotated[bool, said("false for rows that attnprobe added")]
    conditions: Annotated[list[Condition], said("condition numbers during training")]
    paper_setting: Annotated[Setting, said("the paper's setting for this task")]
    metrics: Annotated[dict[str, PerHead], said("τ, loss and the like by name, one number for each step")]
    condition_tokens: NotRequired[Annotated[Count | None, said("number of tokens of the matrices")]]


def _problems(record: StabilityRecord) -> Iterator[str]:
    for number, condition in enumerate(record["conditions"]):
        steps = len(condition["cond"])
        for name, values in condition.items():
            if isinstance(values, list) and len(values) != steps:
                where = f"field conditions[{number}].{name}"
                yield f"{where}: expected an entry for each of {steps} steps, got {len(values)}"


def _rows(record: StabilityRecord) -> Iterator[dict[str, Any]]:
    metrics = record["metrics"]
    setting = {"paper_setting": record["paper_setting"]}
    length = max((len(values) for values in metrics.values()), default=0)
    for step in range(length):
        at = {name: values[step] for name, values in metrics.items() if step < len(values)}
        yield setting | {"step": step + 1} | at
    for condition in record["conditions"]:
        lists = {name: values for name, values in condition.items() if isinstance(values, list)}
        of_matrix = {name: value for name, value in condition.items() if name not in lists}
        for step in range(len(condition["cond"])):
            yield setting | {"step": step + 1} | of_matrix | by_name(lists, step)


COLUMNS = {
    "step": "the step of the training, from 1; a cell has a row for each step, then for each matrix, head and step",
    "METRIC": "each metric of the step, by its name",
    "matrix": "the matrix of the head",
    "inverted": "whether the method inverts it",
    "cond": "its condition number",
    "cond_eff": "σ₁/σ_rank",
    "rank": "its numerical rank",
    "tokens": "its number of tokens",
    "paper_setting[NAME]": "the paper's setting",
}
SHAPE = Shape(StabilityRecord, _problems, rows=_rows, columns=COLUMNS)
