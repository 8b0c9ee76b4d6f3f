"""What gates of ``attnprobe budget`` may be about."""

from __future__ import annotations

from ...gates.check import KEYS, Gated

__all__ = ["BUDGET_METRICS", "GATED"]

BUDGET_METRICS = ("d", "d_over_n", "unreached", "counterexamples")
GATED = Gated(BUDGET_METRICS, keys=tuple(key for key in KEYS if key != "d"))  # d is what is found
