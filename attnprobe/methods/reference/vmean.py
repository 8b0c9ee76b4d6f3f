"""V-Mean: every output is the mean of the values. It has rank one and costs almost nothing."""

from __future__ import annotations

import torch

from ...operators import RankOne
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, from_log_features, per_head
from ..registry import DISTRIBUTIONS, EVERY_MASK, INVARIANT, register


@register(
    name="vmean",
    paper="Chen et al., Skeinformer (baseline)",
    year=2022,
    family="reference",
    targets=("softmax", "gaussian"),
    kind="reference",
    tags=("deterministic", *DISTRIBUTIONS, *INVARIANT, *EVERY_MASK, "biases"),
    budget=None,
    cost="n p",
    oracle="mean of V",
)
def vmean(qkv: QKV, d: None, *, streams: Streams, target: str = "softmax") -> Approximation:
    """``B~ = (1/n) 1 1ᵀ``: uniform attention.

    Source: Chen et al. 2022, section 5, where it is the baseline. A causal row is the mean of the values up to its own,
    ``B~_ij = 1/(i + 1)`` with i counted from 0. The causal matrix does not have rank one.

    With a sliding window, a row is the mean over the keys that it sees.

    Shapes: output (h, n_q, p_v). Deterministic; cost ``n_k p_v`` additions.
    """
    if qkv.visible is not None:
        log_ones = qkv.q.new_zeros(qkv.h, max(qkv.n_q, qkv.n_k), 1)  # the logarithm of one feature, 1 for every token
        operator, _ = from_log_features(log_ones[:, : qkv.n_q], log_ones[:, : qkv.n_k], qkv)
        return Approximation.of(operator, qkv, diagnostics={"visited": per_head(qkv.h, 0)})
    ones = torch.ones(qkv.h, qkv.n_q, dtype=qkv.dtype, device=qkv.device)
    mean = torch.full((qkv.h, qkv.n_k), 1 / qkv.n_k, dtype=qkv.dtype, device=qkv.device)
    return Approximation.of(RankOne(ones, mean), qkv, diagnostics={"visited": per_head(qkv.h, 0)})
