"""The metrics and statistics that gates of ``attnprobe budget`` limit."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import Metric, share

GATED = Gated(
    (Metric("d"), Metric("d_over_n"), share("unreached"), share("counterexamples")),
    without=("d",),  # d is the result
)
