"""Efficient attention (Shen et al. 2021): a softmax over the features of Q and one over the sequence of K.

ρ_q and ρ_k are the paper's normalisations in their softmax form. Its d_k is our p.
"""

from __future__ import annotations

import torch

from ...operators import LowRank
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, per_head
from ..registry import DISTRIBUTIONS, INVARIANT, register


@register(
    name="efficient",
    paper="Shen et al., Efficient Attention",
    year=2021,
    family="features",
    tags=("deterministic", *DISTRIBUTIONS, *INVARIANT, "own_scale"),
    budget=None,
    cost="2 n p²",
    oracle="performer-pytorch FastAttention without a projection",
)
def efficient(qkv: QKV, d: None, *, streams: Streams, target: str = "softmax", scale: bool = False) -> Approximation:
    """``B~ = ρ_q(Q) ρ_k(K)ᵀ``: softmax over each query's p features, softmax over the n keys of each feature.

    The softmaxes sum to 1, so the rows of B~ sum to 1 without a normaliser. A vector added to every key cancels in ρ_k.
    Source: Shen et al. 2021, with softmax normalisation. Like ``linear`` it is a separate model of attention.

    Options:
        scale: take the softmaxes of ``√scale · Q`` and ``√scale · K``, as some implementations do. The paper does not
            scale.

    Shapes: ρ_q(Q) (h, n_q, p), ρ_k(K) (h, n_k, p), in the Q/K/V's dtype. Deterministic; cost ``2 n p p_v``.
    ``visited`` counts the features, p for each token.

    Raises:
        UsageError: ``scale`` is neither true nor false.
    """
    factor = qkv.scale**0.5 if scale else 1.0
    rho_q = torch.softmax(qkv.q * factor, -1)  # (h, n_q, p)
    rho_k = torch.softmax(qkv.k * factor, 1)  # (h, n_k, p)
    diagnostics = {"visited": per_head(qkv.h, qkv.p * (qkv.n_q + qkv.n_k))}
    return Approximation.of(LowRank(rho_q, None, rho_k.mT), qkv, diagnostics=diagnostics)
