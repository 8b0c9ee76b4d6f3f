"""What gates of ``attnprobe audit`` may be about."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import Metric, share

GATED = Gated(
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
)
