"""The rows of ``attnprobe rounding``: kind ``head`` is a head in a format, kind ``step`` a step of the method there."""

from __future__ import annotations

from typing import Annotated

from ...frame.metric import metrics
from ...frame.rows import CellLine, HeadRow, RowTypes, with_metrics
from ...grammar.validation import Count, said
from . import OF_HEADS, OF_STEPS, SAID


class RoundingCell(CellLine):
    """One method at one budget, in one format."""

    format: Annotated[str | None, said("the format of numbers")] = None
    bits: Annotated[Count | None, said("the bits of its significand, the leading one included")] = None
    arithmetic: Annotated[str | None, said("the model of arithmetic: every, tensor-cores, autocast")] = None
    operations: Annotated[Count | None, said("results that were computed in the arithmetic")] = None
    as_written: Annotated[Count | None, said("results that the method's code computes in a dtype of its own")] = None
    steps: Annotated[Count | None, said("steps of the method whose results are rounded")] = None
    plan: Annotated[str | None, said("the steps that stay in float32, in one line; null without --plan")] = None


class RoundingHead(HeadRow):
    """A head in a format."""

    first_failed: Annotated[str | None, said("the first step with a result that is not finite; null if none")] = None


class StepRow(HeadRow):
    """A step of the method, of one head."""

    site: Annotated[str, said("CALLER:LINE > FUNCTION:LINE OPERATION")]
    order: Annotated[Count, said("the place of the step by its mean share over heads, from 1; 0 is rounded Q, K, V")]


SHAPE = RowTypes(
    {
        "head": with_metrics("RoundingHeads", RoundingHead, (*SAID, *OF_HEADS)),
        "step": with_metrics("RoundingSteps", StepRow, metrics(*OF_STEPS)),
    },
    RoundingCell,
)
