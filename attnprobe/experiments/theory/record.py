"""The records of ``attnprobe theory``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NotRequired, get_args

from pydantic import BeforeValidator
from typing_extensions import TypedDict

from ...records.file import decode_inf
from ...records.shapes import Count, Facts, Number, Place, Shape, by_name, lists_of, said, shallow, unequal

Real = Number | Literal["inf", "-inf"] | None
Reals = list[Real]
NUMBERS = ("bound", "measured", "lower", "upper", "rounding", "slack")
PER_HEAD = ("met", "vacuous", "verdict", *NUMBERS)
STATEMENT = ("d", "at", "assumption", "promise", "sense")
REQUESTED = ("budgets", "epsilon", "seeds")
Verdict = Literal["holds", "violated", "undecided", "vacuous", "assumption not met"]
VERDICTS = get_args(Verdict)
LOST = "nothing to compare: what was measured or its bound is NaN"


class Finding(TypedDict):
    """One statement that was evaluated: an entry for each head, infinity as a text, NaN as null."""

    d: NotRequired[Annotated[Count | None, said("the budget")]]
    at: Annotated[Facts, said("its parameters")]
    assumption: Annotated[str | None, said("the assumption")]
    promise: Annotated[str | None, said("the bound as a formula")]
    sense: Annotated[Literal["at most", "at least"], said("the direction of the bound")]
    met: Annotated[list[bool | None], said("whether the assumption is met")]
    bound: Annotated[Reals, said("the bound")]
    measured: Annotated[Reals, said("the measured value")]
    lower: Annotated[Reals | None, said("the lower end of the measured interval; null if it is exact")]
    upper: Annotated[Reals | None, said("the upper end")]
    rounding: Annotated[Reals, said("the largest effect of rounding")]
    vacuous: Annotated[
        list[bool | None],
        said("whether the bound is vacuous: true of every matrix, or of an approximation by zeros"),
    ]
    slack: Annotated[Reals, said("bound / measured for an upper bound, measured / bound for a lower one")]
    verdict: Annotated[list[Verdict | None], said("the verdict")]
    details: Annotated[
        dict[str, list[Any]], BeforeValidator(shallow), said("other numbers of the evaluation, and curves")
    ]


class Refused(TypedDict):
    """A budget that could not be evaluated."""

    d: Count | None
    reason: str | None


class TheoryRecord(Place):
    """The findings for one theorem, and for one method if the theorem is about any method."""

    theorem: Annotated[str, said("the theorem")]
    paper: Annotated[str, said("its paper")]
    says: Annotated[str, said("the statement")]
    findings: Annotated[list[Finding], said("the statements that were evaluated")]
    metrics: NotRequired[Annotated[Facts, said("empty")]]
    method: NotRequired[Annotated[str | None, said("the method; null for a statement about no method")]]
    budgets: NotRequired[Annotated[list[Count], said("the requested budgets")]]
    epsilon: NotRequired[Annotated[list[Number], said("the requested ε")]]
    delta: NotRequired[Annotated[Number | None, said("δ, the probability with which a statement may fail")]]
    seeds: NotRequired[Annotated[Count | None, said("number of draws of a share")]]
    refused: NotRequired[Annotated[list[Refused] | None, said("budgets that could not be evaluated")]]


def _problems(record: TheoryRecord) -> Iterator[str]:
    for number, finding in enumerate(record["findings"]):
        yield from unequal(f"findings[{number}].", lists_of(finding, PER_HEAD), record["heads"])
        yield from unequal(f"findings[{number}].details.", finding["details"], record["heads"])


def _rows(record: TheoryRecord) -> Iterator[dict[str, Any]]:
    requested = {name: record.get(name) for name in REQUESTED}
    for finding in record["findings"]:
        statement = {name: finding.get(name) for name in STATEMENT}
        lists = lists_of(finding, PER_HEAD)
        for index, head in enumerate(record["heads"]):
            own = dict.fromkeys(PER_HEAD) | by_name(lists, index)
            numbers = {name: decode_inf(own[name]) for name in NUMBERS if own[name] is not None}
            details = by_name(finding["details"], index)
            lost = own["verdict"] is None
            state = {"status": "diverged", "reason": LOST} if lost else {"status": "ok", "reason": None}
            yield {**requested, **statement, "head": head, **own, **numbers, "details": details, **state}
    nothing = {**requested, "head": None, "at": {}}
    for one in record.get("refused") or ():
        yield {**nothing, "d": one["d"], "status": "skipped", "reason": one["reason"]}
    if record["status"] not in ("ok", "diverged"):  # findings include diverged ones
        yield nothing


COLUMNS = {
    "theorem": "the theorem; a cell has a row for each statement and head, and one for each refused budget",
    "budgets": "the list of requested budgets",
    "epsilon": "the list of requested ε",
    "seeds": "number of draws of a share",
    "at[NAME]": "a parameter of the statement",
    "assumption": "the assumption",
    "promise": "the bound as a formula",
    "sense": "`at most` or `at least`",
    **{name: "as in the record, of the head" for name in PER_HEAD},
    "details[NAME]": "another number of the evaluation, or a curve as a list",
}
SHAPE = Shape(TheoryRecord, _problems, _rows, COLUMNS)
