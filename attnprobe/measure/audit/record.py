"""The rows of ``attnprobe audit``: kind ``head`` is what is known of a head, kind ``promise`` a test of a promise."""

from __future__ import annotations

from typing import Annotated, Literal

from ...frame.metric import METRICS, PROMISES
from ...frame.rows import CellLine, HeadRow, RowTypes, Value, with_metrics
from ...grammar.validation import Count, said

OF_PROMISES = ("rate", "worst", "upper")  # metrics of a test; the others are of the head


class AuditCell(CellLine):
    """One method at one budget, run with many seeds."""

    repeats: Annotated[Count | None, said("the number of seeds that were asked for")] = None
    trials: Annotated[Count, said("the number of seeds that were measured")] = 0
    confidence: Annotated[Value, said("the probability with which all verdicts of a promise are right")] = None
    anytime: Annotated[bool | None, said("whether the tests are valid at any time")] = None


class PromiseRow(HeadRow):
    """How often a head broke one promise, and the verdict."""

    quantity: Annotated[
        Literal["normaliser", "numerator", "output", "matrix"], said("the quantity whose error is promised")
    ]
    per: Annotated[Literal["head", "row"], said("whether the head or each of its rows is judged")]
    epsilon: Annotated[Value, said("ε, the promised relative error")]
    delta: Annotated[Value, said("δ, the promised probability of a larger error")]
    lower: Annotated[Value, said("lower end of the interval of `worst`, right for all heads and rows together")]
    p_at_most: Annotated[Value, said("p-value of p ≤ δ, adjusted; the least of the head's rows")]
    p_above: Annotated[Value, said("p-value of p > δ, adjusted; the largest of the head's rows")]
    verdict: Annotated[Literal["holds", "violated", "undecided"], said("the verdict")]
    rows_violated: Annotated[Count, said("rows whose promise is violated")]
    rows_holding: Annotated[Count, said("rows whose promise holds")]


OF_HEADS = [metric for metric in PROMISES if metric.name not in OF_PROMISES]
OF_HEADS += [METRICS[name] for name in ("keys", "residual_error")]
SHAPE = RowTypes(
    {
        "head": with_metrics("AuditHead", HeadRow, OF_HEADS),
        "promise": with_metrics("AuditPromise", PromiseRow, [METRICS[name] for name in OF_PROMISES]),
    },
    AuditCell,
)
