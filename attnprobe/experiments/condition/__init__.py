"""``attnprobe condition``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import Experiment, called, late
from .request import ConditionOutput, ConditionRequest

if TYPE_CHECKING:
    from .measure import measure_conditions
else:
    measure_conditions = called("condition.measure:measure_conditions")

__all__ = ["EXPERIMENT", "ConditionOutput", "ConditionRequest", "measure_conditions"]

EXPERIMENT = Experiment(
    name="condition",
    summary="Compute condition numbers of attention matrices and of the cores that methods invert.",
    request=ConditionRequest,
    output=ConditionOutput,
    cells=late("condition.measure:ConditionCells"),
    measure=late("condition.measure:measure_conditions"),
    view=late("condition.view:view"),
    columns=late("condition.view:CONDITION_COLUMNS"),
    fields=late("condition.rows:FIELDS"),
    plots=("condition",),
    examples=(
        "--d 32,64,128 --layer all --plot",
        "--method skyformer:sampler=wor --iterations 12",
    ),
    python=(
        "from attnprobe.experiments.condition import ConditionRequest, measure_conditions",
        "measure_conditions(ConditionRequest(d=(32, 64), layer=(0, 5))).outcome.records",
    ),
)
