"""``attnprobe stability``."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import Metric
from ..base import Experiment
from .request import StabilityOutput, StabilityRequest

__all__ = ["EXPERIMENT", "StabilityOutput", "StabilityRequest", "measure_stability"]

GATED = Gated(
    (Metric("ratio"), Metric("ratio_before_norm"), Metric("tau"), Metric("loss"), Metric("gradient_norm")),
    subjects=("task",),
)
EXPERIMENT = Experiment(
    name="stability",
    summary="Train with each method as the attention, and measure how far each step moves the embedding.",
    request=StabilityRequest,
    output=StabilityOutput,
    plots=("stability",),
    gated=GATED,
    examples=(
        "--task listops --method kernelized,skyformer --plot",
        "--task listops:batch=8,text:n=1000,batch=8 --text reviews.tsv",
        "--task image:data=cifar.npz --seeds 5 --device cuda",
        "--fail-above ratio.max=1",
    ),
    quick={"tasks": "listops:n=64,batch=4", "methods": "skyformer", "steps": "3", "seeds": "1", "d": "8"},
    python=(
        "from attnprobe.experiments.stability import StabilityRequest, measure_stability",
        'measure_stability(StabilityRequest(tasks=("listops:n=512,batch=8",), methods=("skyformer",))).outcome.records',
    ),
)
measure_stability = EXPERIMENT.measure
