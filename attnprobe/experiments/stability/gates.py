"""What gates of ``attnprobe stability`` may be about."""

from __future__ import annotations

from ...gates.check import KEYS, Gated

__all__ = ["GATED", "STABILITY_METRICS"]

STABILITY_METRICS = ("ratio", "ratio_before_norm", "tau", "loss", "gradient_norm")
GATED = Gated(STABILITY_METRICS, keys=("task", *KEYS))
