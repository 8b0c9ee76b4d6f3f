"""``attnprobe condition``."""

from __future__ import annotations

from ..base import Experiment
from .request import ConditionOutput, ConditionRequest

__all__ = ["EXPERIMENT", "ConditionOutput", "ConditionRequest", "measure_conditions"]

EXPERIMENT = Experiment(
    name="condition",
    summary="Compute condition numbers of attention matrices and of the cores that methods invert.",
    request=ConditionRequest,
    output=ConditionOutput,
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
measure_conditions = EXPERIMENT.measure
