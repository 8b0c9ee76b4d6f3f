"""The metrics and statistics that gates of ``attnprobe inject`` limit."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import Metric, cosine, share

GATED = Gated(
    (
        Metric("drift"),
        Metric("logits_drift"),
        Metric("kl"),
        share("top1_agreement", "larger"),
        Metric("loss"),
        Metric("loss_own"),
        Metric("loss_change"),
        Metric("perplexity"),
        Metric("perplexity_own"),
        Metric("perplexity_change"),
        cosine("embedding_cosine"),
        Metric("local_error"),
        Metric("greedy_match", better="larger"),
    )
)
