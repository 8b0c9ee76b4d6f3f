"""``attnprobe audit``."""

from __future__ import annotations

from ..base import Experiment
from .gates import GATED
from .request import AuditOutput, AuditRequest

__all__ = ["EXPERIMENT", "AuditOutput", "AuditRequest", "measure_guarantees"]

EXPERIMENT = Experiment(
    name="audit",
    summary="Test whether random methods keep a promised error with the promised probability.",
    request=AuditRequest,
    output=AuditOutput,
    plots=("calibration",),
    gated=GATED,
    examples=(
        "--method performer --d 256 --epsilon 0.1,0.5 --delta 0.05 --queries last:64 --plot",
        "--method bigbird --rows --stop --fail-above violated=0",
    ),
    python=(
        "from attnprobe.experiments.audit import AuditRequest, measure_guarantees",
        'measure_guarantees(AuditRequest(methods=("performer",), epsilon=(0.5,))).outcome.records',
    ),
)
measure_guarantees = EXPERIMENT.measure
