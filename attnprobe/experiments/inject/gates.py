"""What gates of ``attnprobe inject`` may be about."""

from __future__ import annotations

from ...gates.check import Gated

__all__ = ["GATED", "INJECT_METRICS"]

INJECT_METRICS = (
    "drift",
    "logits_drift",
    "kl",
    "top1_agreement",
    "loss",
    "loss_own",
    "loss_change",
    "perplexity",
    "perplexity_own",
    "perplexity_change",
    "embedding_cosine",
    "local_error",
)
GATED = Gated(INJECT_METRICS)
