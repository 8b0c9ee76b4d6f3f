"""``attnprobe budget``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import Experiment, called, late
from .request import BudgetOutput, BudgetRequest

if TYPE_CHECKING:
    from .measure import measure_budgets
else:
    measure_budgets = called("budget.measure:measure_budgets")

__all__ = ["EXPERIMENT", "BudgetOutput", "BudgetRequest", "measure_budgets"]

EXPERIMENT = Experiment(
    name="budget",
    summary="Find the smallest budget of each head at which a method's error is at most ε.",
    request=BudgetRequest,
    output=BudgetOutput,
    cells=late("budget.measure:BudgetCells"),
    measure=late("budget.measure:measure_budgets"),
    view=late("budget.view:view"),
    columns=late("budget.view:COLUMNS"),
    fields=late("budget.rows:FIELDS"),
    plots=("budget",),
    gated=late("budget.gates:GATED"),
    examples=(
        "--method skyformer --epsilon 0.1,0.3 --layer all --plot",
        "--fail-above d.max=256 --fail-above unreached=0",
    ),
    python=(
        "from attnprobe.experiments.budget import BudgetRequest, measure_budgets",
        'measure_budgets(BudgetRequest(epsilon=(0.1, 0.3), layer="all")).outcome.records',
    ),
)
