"""The rows of ``attnprobe stability``: ``step`` is a step of training, ``condition`` a matrix of a head at a step."""

from __future__ import annotations

from typing import Annotated

from ...frame.metric import metrics
from ...frame.rows import CellLine, HeadRow, Row, RowTypes, with_metrics
from ...grammar.validation import Count, Number, said

STEP_METRICS = ("tau", "tau_before_norm", "loss", "gradient_norm", "weight_change", "embedding_change")


class StabilityCell(CellLine):
    """The first steps of one training: a method at one budget, on a task with one seed."""

    task: Annotated[str, said("the task")]
    batch: Annotated[Count, said("sequences per batch")]
    learning_rate: Annotated[Number, said("the learning rate")]
    eps: Annotated[Number, said("Adam's ε")]
    steps: Annotated[Count, said("the requested number of steps")]
    condition_tokens: Annotated[Count | None, said("the most tokens of the matrices B and C")] = None
    paper_n: Annotated[Count, said("the paper's n for this task")]
    paper_batch: Annotated[Count, said("the paper's sequences per batch")]
    paper_learning_rate: Annotated[Number, said("the paper's learning rate")]


class StepRow(Row):
    """One step of training."""

    step: Annotated[Count, said("the number of the step, from 1", ge=1)]


class ConditionRow(HeadRow):
    """One matrix of one layer and head, of the first sequence of a step's batch."""

    step: Annotated[Count, said("the number of the step, from 1", ge=1)]
    layer: Annotated[Count, said("the layer")]
    matrix: Annotated[str, said("the matrix: B, C, or a core of the method")]
    inverted: Annotated[bool, said("whether the method inverts it")]
    tokens: Annotated[Count, said("the tokens that it is made of")]


SHAPE = RowTypes(
    {
        "step": with_metrics("StabilityStep", StepRow, metrics(*STEP_METRICS)),
        "condition": with_metrics("StabilityCondition", ConditionRow, metrics("cond", "cond_eff", "rank")),
    },
    StabilityCell,
)
