"""``attnprobe budget``."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import Metric, share
from ..base import Experiment, Turn
from .request import BudgetOutput, BudgetRequest

__all__ = ["EXPERIMENT", "BudgetOutput", "BudgetRequest", "measure_budgets"]

GATED = Gated(
    (Metric("d"), Metric("d_over_n"), share("unreached"), share("counterexamples")),
    without=("d",),  # d is the result
)
PLAN = Turn(
    "inject",
    ("--phase", "decode"),
    {
        "--keys": (
            "--d",
            None,
            "LIST",
            "Divide a fixed total among a language model's KV heads: inject --phase decode --plan, at this share of "
            "the prompt, or mean number of keys.",
        ),
        "--by": (
            "--plan",
            "residual",
            "residual|measured|row|mass",
            "With --keys: the number by which it plans. [default: residual]",
        ),
    },
)
EXPERIMENT = Experiment(
    name="budget",
    summary="Find the smallest budget of each head at which a method's error is at most ε.",
    request=BudgetRequest,
    output=BudgetOutput,
    plots=("budget",),
    gated=GATED,
    turn=PLAN,
    examples=(
        "--method skyformer --epsilon 0.1,0.3 --layer all --plot",
        "--keys 0.1 --by residual --model smollm2 --n 577 --steps 64 --windows 12 --method h2o,tova,random",
        "--fail-above d.max=256 --fail-above unreached=0",
    ),
    python=(
        "from attnprobe.experiments.budget import BudgetRequest, measure_budgets",
        'measure_budgets(BudgetRequest(epsilon=(0.1, 0.3), layer="all")).outcome.records',
    ),
)
measure_budgets = EXPERIMENT.measure
