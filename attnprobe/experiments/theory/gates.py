"""The metrics and statistics that gates of ``attnprobe theory`` limit."""

from __future__ import annotations

from ...gates.check import KEYS, Gated
from ...tables.metrics import Metric, share

GATED = Gated(
    (
        share("holds", "larger"),
        share("violated"),
        share("vacuous"),
        share("assumption_not_met"),
        Metric("measured", None),
        Metric("bound", None),
        Metric("slack", "larger"),
    ),
    keys=("theorem", *KEYS),
)
