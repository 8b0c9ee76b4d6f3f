"""What a record of ``attnprobe audit`` holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from ...records.shapes import Count, Number, PerHead, Place, Shape, by_name, lists_of, said, unequal

PER_HEAD = ("rate", "worst", "lower", "upper", "p_at_most", "p_above", "verdict", "rows_violated", "rows_holding")
METRICS = {
    "keys": "the number of keys, landmarks or features that a row uses, mean over rows and repeats",
    "keys_share": "the same over the number of keys that a row sees",
    "residual_error": "mean over rows and repeats of r² / (1 + r²) with r = ‖W_O,h (o~ - o)‖ / ‖x + y‖, of a model",
    "bias": "the mean over repeats and rows of D~/D − 1",
    "bias_z": "the bias over its standard error, corrected for skewness",
    "biased": "1 if the bias is not chance at the stated confidence, over all heads, and beyond rounding",
    "normaliser_sd": "the standard deviation of D~/D over repeats, root mean square over rows",
    "sd_ratio": "the standard deviation that the method states over the measured one",
    "ess": "the effective sample size of the weights, mean over rows and repeats",
    "least_inclusion": "the smallest probability with which a visible key is used",
    "capped": "the share of rows whose number of samples reached a cap",
}


class Statement(TypedDict):
    """One promise: an entry for each head."""

    quantity: Annotated[Literal["normaliser", "numerator", "output", "matrix"], said("the quantity with the error")]
    per: Annotated[Literal["head", "row"], said("whether heads or each of their rows are judged")]
    epsilon: Annotated[Number, said("ε, the promised relative error")]
    delta: Annotated[Number, said("δ, the promised probability of a larger one")]
    rate: Annotated[PerHead, said("the share of repeats with a larger error, mean over rows")]
    worst: Annotated[PerHead, said("the largest such share of a row; of a head, its own")]
    lower: Annotated[PerHead, said("the lower end of the interval of `worst`, right for all heads and rows together")]
    upper: Annotated[PerHead, said("the upper end")]
    p_at_most: Annotated[PerHead, said("the p-value of p ≤ δ, adjusted; the least of the head's rows")]
    p_above: Annotated[PerHead, said("the p-value of p > δ, adjusted; the largest of the head's rows")]
    verdict: Annotated[list[Literal["holds", "violated", "undecided"]], said("the verdict")]
    rows_violated: Annotated[list[Count], said("the number of rows that are violated")]
    rows_holding: Annotated[list[Count], said("the number of rows that hold")]


class AuditRecord(Place):
    """How often one method at one budget exceeded promised errors."""

    method: Annotated[str, said("the method")]
    repeats: NotRequired[Annotated[Count, said("the requested number of seeds")]]
    trials: Annotated[Count, said("the number of seeds that were measured")]
    confidence: NotRequired[Annotated[Number, said("the probability with which all verdicts of a statement are right")]]
    anytime: NotRequired[Annotated[bool, said("whether the tests are valid at any time")]]
    statements: Annotated[list[Statement], said("the promises that were tested")]
    metrics: Annotated[dict[str, PerHead], said("; ".join(f"`{name}`: {meaning}" for name, meaning in METRICS.items()))]


def _problems(record: AuditRecord) -> Iterator[str]:
    for number, statement in enumerate(record["statements"]):
        yield from unequal(f"statements[{number}].", lists_of(statement, PER_HEAD), record["heads"])
    yield from unequal("metrics.", record["metrics"], record["heads"])


def _rows(record: AuditRecord) -> Iterator[dict[str, Any]]:
    for statement in record["statements"]:
        of_statement = {name: statement[name] for name in ("quantity", "per", "epsilon", "delta")}
        lists = lists_of(statement, PER_HEAD)
        for index, head in enumerate(record["heads"]):
            row = {**of_statement, "head": head, **by_name(lists, index)}
            yield row | by_name(record["metrics"], index)


COLUMNS = {
    "quantity": "the quantity; a cell has a row for each promise and head",
    "per": "whether heads or rows are judged",
    "epsilon": "ε",
    "delta": "δ",
    **{name: "as in the record, of the head" for name in PER_HEAD},
    "METRIC": "each metric of the head, by its name: `bias`, `bias_z`, `ess`, …",
}
SHAPE = Shape(AuditRecord, _problems, _rows, COLUMNS)
