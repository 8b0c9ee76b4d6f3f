"""``attnprobe error``."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import ERROR
from ..base import Experiment
from .request import ErrorOutput, ErrorRequest

__all__ = ["EXPERIMENT", "ErrorOutput", "ErrorRequest", "measure_errors"]

EXPERIMENT = Experiment(
    name="error",
    summary="Measure how far a method's output is from exact attention.",
    request=ErrorRequest,
    output=ErrorOutput,
    plots=("errors", "cost", "maps", "positions"),
    more_plots=("papers", "heads"),
    gated=Gated(ERROR),
    keeps=("maps",),
    examples=(
        "--method skyformer,nystromformer --n 1024 --d 32,64,128 --plot",
        "--method all --rows --no-matrix --plot cost",
        "--method skyformer --fail-above output_spectral_relative.median=0.3 --fail-above bad_rows.max=0",
        "--method torch:sdpa-flash:dtype=bfloat16 --fail-above ratio_to_framework.max=2",
        "--method window,topk --model smollm2 --n 4096 --d 256 --rows --no-matrix --plot positions",
    ),
    python=(
        "from attnprobe.experiments.error import ErrorRequest, measure_errors",
        "measure_errors(ErrorRequest(n=(512, 1024), d=(64, 128))).outcome.records",
    ),
)
measure_errors = EXPERIMENT.measure
