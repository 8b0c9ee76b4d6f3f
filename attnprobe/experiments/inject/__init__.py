"""``attnprobe inject``."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import Metric, cosine, share
from ..base import Experiment
from .request import InjectOutput, InjectRequest

__all__ = ["EXPERIMENT", "InjectOutput", "InjectRequest", "measure_drift"]

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
        Metric("row_error"),
        Metric("residual_error"),
        Metric("residual_heads"),
        Metric("residual_sum"),
        share("lost_mass"),
        Metric("first_divergence", better="larger"),
        Metric("cache_bytes"),
        Metric("read_bytes"),
        Metric("greedy_match", better="larger"),
        Metric("needle_loss"),
        Metric("needle_loss_change"),
        Metric("needle_rank"),
    )
)
EXPERIMENT = Experiment(
    name="inject",
    summary="Put a method in place of a model's attention, and measure how far the model drifts.",
    request=InjectRequest,
    output=InjectOutput,
    plots=("inject",),
    gated=GATED,
    examples=(
        "--model minilm --method skyformer,nystromformer --d 32,128 --per-layer --plot",
        "--model DIR --method window,performer --layer 0-5 --n 1024 --windows 8 --batch 4",
        "--model minilm --budgets budgets.json",
        "--method skyformer --fail-above drift=0.2",
    ),
    python=(
        "from attnprobe.experiments.inject import InjectRequest, measure_drift",
        'measure_drift(InjectRequest(model="minilm", d=(32, 128))).outcome.records',
    ),
)
measure_drift = EXPERIMENT.measure
