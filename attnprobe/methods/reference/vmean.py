"""V-Mean: every output is the mean of the values. Rank one, no work: the line that a method must beat."""

from __future__ import annotations

import torch

from ...operators import RankOne
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, from_log_features, per_head
from ..registry import register


@register(
    name="vmean",
    paper="Chen et al., Skeinformer (baseline)",
    year=2022,
    family="reference",
    targets=("softmax", "gaussian"),
    kind="reference",
    tags=("deterministic", "row_sums_one", "nonnegative", "permutation_equivariant", "shift_invariant", "causal"),
    budget=None,
    cost="n p",
    oracle="mean of V",
)
def vmean(qkv: QKV, d: None, *, streams: Streams, target: str = "softmax") -> Approximation:
    """``B~ = (1/n) 1 1ᵀ``: the attention of a model that attends to everything alike.

    Source: Chen et al. 2022, section 5, where it is the reference beside the methods. Causal rows are the mean of the
    values up to themselves, ``B~_ij = 1/(i + 1)`` counted from 0, which is not of rank one.

    Shapes: output (h, n, p_v). Deterministic; cost ``n p_v``.
    """
    if qkv.causal:
        same = qkv.q.new_zeros(qkv.h, qkv.n_q, 1)  # one feature, which is 1 for all
        operator, _ = from_log_features(same, same, causal=True)
        return Approximation.of(operator, qkv, diagnostics={"visited": per_head(qkv.h, 0)})
    ones = torch.ones(qkv.h, qkv.n_q, dtype=qkv.dtype, device=qkv.device)
    mean = torch.full((qkv.h, qkv.n_k), 1 / qkv.n_k, dtype=qkv.dtype, device=qkv.device)
    return Approximation.of(RankOne(ones, mean), qkv, diagnostics={"visited": per_head(qkv.h, 0)})
