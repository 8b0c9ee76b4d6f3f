"""The metrics and statistics that gates of ``attnprobe stability`` limit."""

from __future__ import annotations

from ...gates.check import KEYS, Gated
from ...tables.metrics import Metric

GATED = Gated(
    (Metric("ratio"), Metric("ratio_before_norm"), Metric("tau"), Metric("loss"), Metric("gradient_norm")),
    keys=("task", *KEYS),
)
