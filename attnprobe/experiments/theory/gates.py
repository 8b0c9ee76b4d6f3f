"""What gates of ``attnprobe theory`` may be about."""

from __future__ import annotations

from ...gates.check import KEYS, Gated

__all__ = ["GATED", "THEORY_METRICS"]

THEORY_METRICS = ("holds", "violated", "vacuous", "assumption_not_met", "measured", "bound", "slack")
GATED = Gated(THEORY_METRICS, keys=("theorem", *KEYS))
