"""The metrics and statistics that gates of ``attnprobe budget`` limit."""

from __future__ import annotations

from ...gates.check import KEYS, Gated
from ...tables.metrics import Metric, share

GATED = Gated(
    (Metric("d"), Metric("d_over_n"), share("unreached"), share("counterexamples")),
    keys=tuple(key for key in KEYS if key != "d"),  # d is the result
)
