"""The records of ``attnprobe stability``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from ...records.shapes import Count, Number, PerHead, Place, Seed, Shape, by_name

STEP_METRICS = ("tau", "tau_before_norm", "loss", "gradient_norm", "weight_change", "embedding_change")


class Condition(TypedDict):
    """One matrix of one layer and head, with an entry for each step."""

    matrix: Annotated[str, Field(description="its name")]
    inverted: Annotated[bool, Field(description="whether the method inverts it")]
    cond: Annotated[PerHead, Field(description="σ₁/σ_m; null if it is singular")]
    cond_eff: NotRequired[Annotated[PerHead, Field(description="σ₁/σ_rank")]]
    rank: NotRequired[Annotated[list[Count | None], Field(description="the numerical rank")]]
    tokens: NotRequired[Annotated[list[Count | None] | Count | None, Field(description="its number of tokens")]]
    layer: NotRequired[Annotated[Count | None, Field(description="the layer")]]
    head: NotRequired[Annotated[Count | None, Field(description="the head")]]


class Setting(TypedDict):
    """A setting of a task in the paper."""

    n: Annotated[Count, Field(description="tokens")]
    batch: Annotated[Count, Field(description="sequences per batch")]
    rate: Annotated[Number, Field(description="the learning rate")]


class StabilityRecord(Place):
    """The first steps of one training."""

    method: Annotated[str, Field(description="the method")]
    task: Annotated[str, Field(description="the task")]
    seed: Annotated[Seed, Field(description="the seed of weights, batches and draws")]
    batch: Annotated[Count, Field(description="sequences per batch")]
    rate: Annotated[Number, Field(description="the learning rate")]
    eps: Annotated[Number, Field(description="Adam's ε")]
    steps: Annotated[Count, Field(description="the requested number of steps")]
    requested: Annotated[bool, Field(description="false for rows that attnprobe added")]
    conditions: Annotated[list[Condition], Field(description="condition numbers during training")]
    paper_setting: Annotated[Setting, Field(description="the paper's setting for this task")]
    metrics: Annotated[dict[str, PerHead], Field(description="τ, loss and the like by name, one number for each step")]
    condition_tokens: NotRequired[Annotated[Count | None, Field(description="number of tokens of the matrices")]]


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
