"""``attnprobe inject``."""

from __future__ import annotations

from ..base import Experiment
from .gates import GATED
from .request import InjectOutput, InjectRequest

__all__ = ["EXPERIMENT", "InjectOutput", "InjectRequest", "measure_drift"]

EXPERIMENT = Experiment(
    name="inject",
    summary="Put a method in place of a model's attention, and measure how far the model drifts.",
    request=InjectRequest,
    output=InjectOutput,
    plots=("inject",),
    gated=GATED,
    examples=(
        "--model minilm --method skyformer,nystromformer --d 32,128 --per-layer --plot",
        "--model DIR --method window,performer --layer 0-5 --n 1024 --windows 8 --batch 4",
        "--model minilm --budgets budgets.json",
        "--method skyformer --fail-above drift=0.2",
    ),
    python=(
        "from attnprobe.experiments.inject import InjectRequest, measure_drift",
        'measure_drift(InjectRequest(model="minilm", d=(32, 128))).outcome.records',
    ),
)
measure_drift = EXPERIMENT.measure
