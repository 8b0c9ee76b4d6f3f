"""The rows of ``attnprobe theory``: ``head`` is a statement evaluated on a head, ``detail`` a further number of it."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from ...frame.metric import metrics
from ...frame.rows import CellLine, HeadRow, RowTypes, Value, with_metrics
from ...grammar.validation import Count, said

Verdict = Literal["holds", "violated", "undecided", "vacuous", "assumption not met"]
VERDICTS = get_args(Verdict)
LOST = "nothing to compare: what was measured or its bound is NaN"


class TheoryCell(CellLine):
    """One theorem on one layer, and one method if the theorem is about any method."""

    theorem: Annotated[str, said("the theorem")]
    paper: Annotated[str, said("its paper")]
    says: Annotated[str, said("the statement")]
    seeds: Annotated[Count | None, said("number of draws of a share")] = None


class StatementRow(HeadRow):
    """One statement on one head; without a head, a budget that could not be evaluated, with its reason."""

    d: Annotated[Count | None, said("the budget; null for a statement without one")]
    epsilon: Annotated[Value, said("ε of the statement")]
    delta: Annotated[Value, said("δ of the statement")]
    at: Annotated[str, said("its other parameters, as k=v,k=v")]
    sense: Annotated[Literal["at most", "at least"] | None, said("the direction of the bound")]


class TheoryHead(StatementRow):
    """The verdict on a statement, with its numbers."""

    status: Annotated[Literal["ok", "skipped", "diverged"], said("diverged: what was measured or its bound is NaN")] = (
        "ok"
    )
    reason: Annotated[str | None, said("the reason if the status is not ok")] = None
    assumption: Annotated[str | None, said("the assumption")]
    promise: Annotated[str | None, said("the bound as a formula")]
    verdict: Annotated[Verdict | None, said("the verdict")]
    met: Annotated[bool | None, said("whether the assumption is met")] = None
    vacuous: Annotated[
        bool | None, said("whether the bound is true of every matrix, or of an approximation by zeros")
    ] = None
    lower: Annotated[Value, said("the lower end of the measured interval; null if it is exact")] = None
    upper: Annotated[Value, said("the upper end")] = None
    rounding: Annotated[Value, said("the largest effect of rounding")] = None


class DetailRow(StatementRow):
    """A further number of a statement on a head: a part of the bound, or the error of a draw."""

    detail: Annotated[str, said("its name")]
    index: Annotated[Count | None, said("its place in a list, such as the number of the draw")] = None
    value: Annotated[Value, said("the number")]


SHAPE = RowTypes(
    {"head": with_metrics("TheoryRow", TheoryHead, metrics("bound", "measured", "slack")), "detail": DetailRow},
    TheoryCell,
)
