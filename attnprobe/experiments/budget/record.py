"""The records of ``attnprobe budget``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from ...records.shapes import Budget, Count, Facts, Number, PerHead, Place, Shape, by_name, lists_of, said, unequal

PER_HEAD = ("d", "below", "error", "held", "holds_from", "fails_at", "lower", "upper")


class AtEpsilon(TypedDict):
    """The result for one ε: an entry for each head."""

    epsilon: Annotated[Number, said("the largest error allowed")]
    d: Annotated[list[Budget | None], said("the smallest budget tried that holds; null if none does")]
    below: Annotated[list[Budget | None], said("the largest budget tried below it")]
    error: Annotated[PerHead, said("the error at d")]
    held: Annotated[list[Count | None], said("number of seeds that hold at d")]
    holds_from: Annotated[list[Budget | None], said("the smallest budget from which on every budget tried holds")]
    fails_at: Annotated[list[list[Budget]], said("budgets above d at which too few seeds hold")]
    lower: Annotated[PerHead, said("the interval of the probability that a seed holds")]
    upper: Annotated[PerHead, said("its upper end")]


class Tried(TypedDict):
    """The errors at one budget, an entry for each head that was run there."""

    d: Annotated[Budget, said("the budget")]
    heads: Annotated[list[Count], said("the heads that were run")]
    error: Annotated[PerHead, said("the largest error of the seeds that must hold")]
    median: NotRequired[Annotated[PerHead, said("the median of the seeds")]]


class Refused(TypedDict):
    """A budget that a method does not support."""

    d: Budget | None
    reason: str | None


class BudgetRecord(Place):
    """The smallest budgets of one method on one layer."""

    method: Annotated[str, said("the method")]
    metric: Annotated[str, said("the metric that ε limits")]
    results: Annotated[list[AtEpsilon], said("the result for each ε")]
    tried: Annotated[list[Tried], said("the budgets that were tried")]
    metrics: NotRequired[Annotated[Facts, said("empty")]]
    epsilon: NotRequired[Annotated[list[Number], said("the requested ε")]]
    delta: Annotated[Number, said("the share of seeds that may exceed ε")]
    resolution: Annotated[Number, said("the ratio of neighbouring budgets")]
    scan: NotRequired[Annotated[bool, said("whether every budget of the resolution was tried")]]
    seeds: Annotated[Count, said("number of seeds")]
    needed: NotRequired[Annotated[Count | None, said("number of seeds that must hold")]]
    least: NotRequired[Annotated[Budget | None, said("the smallest budget of the search")]]
    most: NotRequired[Annotated[Budget | None, said("the largest")]]
    refused: NotRequired[Annotated[list[Refused] | None, said("budgets that the method could not take")]]


def _problems(record: BudgetRecord) -> Iterator[str]:
    if record.get("most") is None and any(None in entry["d"] for entry in record["results"]):
        yield "field most: expected the largest budget, as no budget up to it is enough for a head"
    for number, entry in enumerate(record["results"]):
        yield from unequal(f"results[{number}].", {name: entry[name] for name in PER_HEAD}, record["heads"])
    for number, tried in enumerate(record["tried"]):
        yield from unequal(f"tried[{number}].", lists_of(tried, ("error", "median")), tried["heads"])


def _rows(record: BudgetRecord) -> Iterator[dict[str, Any]]:
    for entry in record["results"]:
        for index, head in enumerate(record["heads"]):
            row = {"epsilon": entry["epsilon"], "head": head, "refused": record.get("refused")}
            yield row | by_name(lists_of(entry, PER_HEAD), index) | _tried(record, head)


def _tried(record: BudgetRecord, head: int) -> dict[str, Any]:
    """The errors of one head at each budget that was tried."""
    errors: dict[str, Any] = {}
    for tried in record["tried"]:
        if head in tried["heads"]:
            of_head = by_name(lists_of(tried, ("error", "median")), tried["heads"].index(head))
            errors |= {f"tried[{tried['d']}].{name}": value for name, value in of_head.items()}
    return errors


COLUMNS = {
    "epsilon": "the largest error allowed; a cell has a row for each ε and head",
    "refused": "the list of budgets that the method could not take",
    **{name: "as in the record, of the head" for name in PER_HEAD},
    "tried[d].error": "the largest error of the seeds that must hold, at each budget that was tried",
    "tried[d].median": "the median of the seeds there",
}
SHAPE = Shape(BudgetRecord, _problems, _rows, COLUMNS)
