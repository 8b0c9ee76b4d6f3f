"""``attnprobe audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import Experiment, called, late
from .request import AuditOutput, AuditRequest

if TYPE_CHECKING:
    from .measure import measure_guarantees
else:
    measure_guarantees = called("audit.measure:measure_guarantees")

__all__ = ["EXPERIMENT", "AuditOutput", "AuditRequest", "measure_guarantees"]

EXPERIMENT = Experiment(
    name="audit",
    summary="Test whether random methods keep a promised error with the promised probability.",
    request=AuditRequest,
    output=AuditOutput,
    cells=late("audit.measure:AuditCells"),
    measure=late("audit.measure:measure_guarantees"),
    view=late("audit.view:view"),
    columns=late("audit.view:AUDIT_COLUMNS"),
    fields=late("audit.rows:FIELDS"),
    plots=("calibration",),
    gated=late("audit.gates:GATED"),
    examples=(
        "--method performer --d 256 --epsilon 0.1,0.5 --delta 0.05 --queries last:64 --plot",
        "--method bigbird --rows --stop --fail-above violated=0",
    ),
    python=(
        "from attnprobe.experiments.audit import AuditRequest, measure_guarantees",
        'measure_guarantees(AuditRequest(methods=("performer",), epsilon=(0.5,))).outcome.records',
    ),
)
