"""The rows of ``attnprobe budget``.

Kind ``head`` is a head and ε, kind ``trial`` a head and a budget, kind ``counterexample`` a budget that fails.
"""

from __future__ import annotations

from typing import Annotated

from ...frame.metric import metrics
from ...frame.rows import CellLine, HeadRow, RowTypes, Value, with_metrics
from ...grammar.validation import Budget, Count, said


class BudgetCell(CellLine):
    """The search of one method on one layer."""

    metric: Annotated[str | None, said("the metric that ε limits")] = None
    delta: Annotated[Value, said("the share of seeds that may exceed ε")] = None
    resolution: Annotated[Value, said("the ratio of neighbouring budgets")] = None
    scan: Annotated[bool | None, said("whether every budget of the resolution was tried")] = None
    seeds: Annotated[Count | None, said("number of seeds")] = None
    needed: Annotated[Count | None, said("number of seeds that must hold")] = None
    least: Annotated[Budget | None, said("the smallest budget of the search")] = None
    most: Annotated[Budget | None, said("the largest")] = None


class EpsilonRow(HeadRow):
    """The smallest budget of a head for one ε."""

    epsilon: Annotated[Value, said("the largest error allowed")]
    below: Annotated[Budget | None, said("the largest budget tried below `found`")] = None
    error: Annotated[Value, said("the error at `found`")] = None
    held: Annotated[Count | None, said("number of seeds that hold at `found`")] = None
    lower: Annotated[Value, said("the interval of the probability that a seed holds")] = None
    upper: Annotated[Value, said("its upper end")] = None
    holds_from: Annotated[
        Budget | None, said("the smallest budget from which on every budget tried holds; null if none")
    ] = None


class TrialRow(HeadRow):
    """The errors of a head at one budget."""

    d: Annotated[Budget, said("the budget that was tried")]
    error: Annotated[Value, said("the largest error of the seeds that must hold")] = None
    median: Annotated[Value, said("the median of the seeds")] = None
    refused: Annotated[str | None, said("why some heads do not take the budget; in a row without a head")] = None


class CounterexampleRow(HeadRow):
    """A budget above the smallest sufficient one at which too few seeds hold."""

    epsilon: Annotated[Value, said("the largest error allowed")]
    d: Annotated[Budget, said("the budget that fails")]
    error: Annotated[Value, said("the error there")] = None
    found: Annotated[Value, said("the smallest sufficient budget")] = None
    holds_from: Annotated[Budget | None, said("the smallest budget from which on every budget tried holds")] = None


SHAPE = RowTypes(
    {
        "head": with_metrics("BudgetHead", EpsilonRow, metrics("found", "fails")),
        "trial": TrialRow,
        "counterexample": CounterexampleRow,
    },
    BudgetCell,
)
