"""``attnprobe inject``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import Experiment, called, late
from .request import InjectOutput, InjectRequest

if TYPE_CHECKING:
    from .measure import measure_drift
else:
    measure_drift = called("inject.measure:measure_drift")

__all__ = ["EXPERIMENT", "InjectOutput", "InjectRequest", "measure_drift"]

EXPERIMENT = Experiment(
    name="inject",
    summary="Put a method in place of a model's attention, and measure how far the model drifts.",
    request=InjectRequest,
    output=InjectOutput,
    cells=late("inject.measure:InjectCells"),
    measure=late("inject.measure:measure_drift"),
    view=late("inject.view:view"),
    columns=late("inject.view:INJECT_COLUMNS"),
    fields=late("inject.rows:FIELDS"),
    plots=("inject",),
    gated=late("inject.gates:GATED"),
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
