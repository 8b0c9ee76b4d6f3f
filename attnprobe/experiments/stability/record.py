"""The records of ``attnprobe stability``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from ...records.shapes import Count, Number, PerHead, Place, Seed, Shape

__all__ = ["SHAPE", "StabilityRecord"]


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


def _rows(record: StabilityRecord) -> Iterator[dict[str, Any]]:
    metrics = record["metrics"]
    shared = {name: record[name] for name in ("task", "batch", "rate", "eps")}
    length = max((len(values) for values in metrics.values()), default=0)
    for step in range(length):
        at = {name: values[step] for name, values in metrics.items() if step < len(values)}
        yield shared | {"step": step + 1} | at
    if not length:
        yield shared


COLUMNS = {
    **{name: "as in the record" for name in ("task", "batch", "rate", "eps")},
    "step": "the step of the training, from 1; a cell has a row for each step, not for each head",
    "METRIC": "each metric of the step, by its name",
}
SHAPE = Shape(StabilityRecord, rows=_rows, columns=COLUMNS)
