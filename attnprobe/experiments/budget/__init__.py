"""``attnprobe budget``."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import Metric, share
from ..base import Experiment
from .request import BudgetOutput, BudgetRequest

__all__ = ["EXPERIMENT", "BudgetOutput", "BudgetRequest", "measure_budgets"]

GATED = Gated(
    (Metric("d"), Metric("d_over_n"), share("unreached"), share("counterexamples")),
    without=("d",),  # d is the result
)
EXPERIMENT = Experiment(
    name="budget",
    summary="Find the smallest budget of each head at which a method's error is at most ε.",
    request=BudgetRequest,
    output=BudgetOutput,
    plots=("budget",),
    gated=GATED,
    examples=(
        "--method skyformer --epsilon 0.1,0.3 --layer all --plot",
        "--fail-above d.max=256 --fail-above unreached=0",
    ),
    python=(
        "from attnprobe.experiments.budget import BudgetRequest, measure_budgets",
        'measure_budgets(BudgetRequest(epsilon=(0.1, 0.3), layer="all")).outcome.records',
    ),
)
measure_budgets = EXPERIMENT.measure
