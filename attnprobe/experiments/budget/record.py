"""The records of ``attnprobe budget``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from ...records.shapes import Budget, Count, Facts, Number, PerHead, Place, Shape, lists_of, unequal

__all__ = ["SHAPE", "BudgetRecord"]

PER_HEAD = ("d", "below", "error", "held", "holds_from", "fails_at", "lower", "upper")


class AtEpsilon(TypedDict):
    """The result for one ε: an entry for each head."""

    epsilon: Annotated[Number, Field(description="the largest error allowed")]
    d: Annotated[list[Budget | None], Field(description="the smallest budget tried that holds; null if none does")]
    below: Annotated[list[Budget | None], Field(description="the largest budget tried below it")]
    error: Annotated[PerHead, Field(description="the error at d")]
    held: Annotated[list[Count | None], Field(description="number of seeds that hold at d")]
    holds_from: Annotated[
        list[Budget | None], Field(description="the smallest budget from which on every budget tried holds")
    ]
    fails_at: Annotated[list[list[Budget]], Field(description="budgets above d at which too few seeds hold")]
    lower: Annotated[PerHead, Field(description="the interval of the probability that a seed holds")]
    upper: Annotated[PerHead, Field(description="its upper end")]


class Tried(TypedDict):
    """The errors at one budget, an entry for each head that was run there."""

    d: Annotated[Budget, Field(description="the budget")]
    heads: Annotated[list[Count], Field(description="the heads that were run")]
    error: Annotated[PerHead, Field(description="the largest error of the seeds that must hold")]
    median: NotRequired[Annotated[PerHead, Field(description="the median of the seeds")]]


class Refused(TypedDict):
    """A budget that a method does not support."""

    d: Budget | None
    reason: str | None


class BudgetRecord(Place):
    """The smallest budgets of one method on one layer."""

    method: Annotated[str, Field(description="the method")]
    metric: Annotated[str, Field(description="the metric that ε limits")]
    results: Annotated[list[AtEpsilon], Field(description="the result for each ε")]
    tried: Annotated[list[Tried], Field(description="the budgets that were tried")]
    metrics: NotRequired[Annotated[Facts, Field(description="empty")]]
    epsilon: NotRequired[Annotated[list[Number], Field(description="the requested ε")]]
    delta: Annotated[Number, Field(description="the share of seeds that may exceed ε")]
    resolution: Annotated[Number, Field(description="the ratio of neighbouring budgets")]
    scan: NotRequired[Annotated[bool, Field(description="whether every budget was tried")]]
    seeds: Annotated[Count, Field(description="number of seeds")]
    needed: NotRequired[Annotated[Count | None, Field(description="number of seeds that must hold")]]
    least: NotRequired[Annotated[Budget | None, Field(description="the smallest budget of the search")]]
    most: NotRequired[Annotated[Budget | None, Field(description="the largest")]]
    refused: NotRequired[Annotated[list[Refused] | None, Field(description="budgets that the method could not take")]]


def _problems(record: BudgetRecord) -> Iterator[str]:
    if record.get("most") is None and any(None in entry["d"] for entry in record["results"]):
        yield "field most: expected the largest budget, as no budget up to it is enough for a head"
    for number, entry in enumerate(record["results"]):
        yield from unequal(f"results[{number}].", {name: entry[name] for name in PER_HEAD}, record["heads"])
    for number, tried in enumerate(record["tried"]):
        yield from unequal(f"tried[{number}].", lists_of(tried, ("error", "median")), tried["heads"])


def _rows(record: BudgetRecord) -> Iterator[dict[str, Any]]:
    names = ("metric", "delta", "seeds", "needed", "least", "most")
    shared = {name: record.get(name) for name in names}
    for entry in record["results"]:
        for index, head in enumerate(record["heads"]):
            yield shared | {"epsilon": entry["epsilon"], "head": head, **{one: entry[one][index] for one in PER_HEAD}}
    if not record["results"]:
        yield shared


COLUMNS = {
    "epsilon": "the largest error allowed; a cell has a row for each ε and head",
    "metric": "the metric that ε limits",
    **{name: "as in the record" for name in ("delta", "seeds", "needed", "least", "most")},
    **{name: "as in the record, of the head" for name in PER_HEAD},
}
SHAPE = Shape(BudgetRecord, _problems, _rows, COLUMNS)
