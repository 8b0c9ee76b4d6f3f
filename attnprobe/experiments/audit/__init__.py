"""``attnprobe audit``."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import Metric, share
from ..base import Experiment
from .request import AuditOutput, AuditRequest

__all__ = ["EXPERIMENT", "AuditOutput", "AuditRequest", "measure_guarantees"]

EXPERIMENT = Experiment(
    name="audit",
    summary="Test whether random methods keep a promised error with the promised probability.",
    request=AuditRequest,
    output=AuditOutput,
    plots=("calibration",),
    gated=Gated(
        (
            share("holds", "larger"),
            share("violated"),
            share("undecided"),
            share("biased"),
            share("rate"),
            share("worst"),
            share("upper"),
            Metric("bias_z", None),
            Metric("ess", "larger"),
            share("capped"),
        )
    ),
    examples=(
        "--method performer --d 256 --epsilon 0.1,0.5 --delta 0.05 --queries last:64 --plot",
        "--method bigbird --rows --stop --fail-above violated=0",
    ),
    quick={"n": "64", "d": "16", "head": "0", "repeats": "60"},
    python=(
        "from attnprobe.experiments.audit import AuditRequest, measure_guarantees",
        'measure_guarantees(AuditRequest(methods=("performer",), epsilon=(0.5,))).outcome.records',
    ),
)
measure_guarantees = EXPERIMENT.measure
