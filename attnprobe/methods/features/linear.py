"""Linear attention (Katharopoulos et al. 2020): the softmax kernel replaced by ``φ(q)·φ(k)`` with ``φ = elu + 1``.

φ is the paper's feature map, applied to each coordinate of a query or key. There are p features and no budget.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, from_log_features, per_head
from ..registry import DISTRIBUTIONS, EVERY_MASK, register


@register(
    name="linear",
    paper="Katharopoulos et al., Linear Transformer",
    year=2020,
    family="features",
    tags=("deterministic", *DISTRIBUTIONS, "permutation_equivariant", *EVERY_MASK, "own_scale"),
    budget=None,
    cost="2 n p²",
    oracle="performer-pytorch linear_attention",
)
def linear(qkv: QKV, d: None, *, streams: Streams, target: str = "softmax", scale: bool = False) -> Approximation:
    """``B~ = D~⁻¹ φ(Q) φ(K)ᵀ`` with ``φ(x) = elu(x) + 1`` and ``D~ = diag(φ(Q) φ(K)ᵀ 1)``.

    ``elu(x) + 1`` is ``x + 1`` for positive x and ``exp(x)`` otherwise, so every entry is positive. Source:
    Katharopoulos et al. 2020, section 3.2.1, equation 7. It is a separate model of attention, trained as such. On Q and
    K of a softmax model its error is the distance of two models, which no budget reduces.

    It is computed from log φ and normalised without a division, so rows stay finite for large Q and K. Causal rows sum
    over the keys up to their own (section 3.3), by prefix sums in chunks. Windowed rows sum over the keys that they
    see.

    Options:
        scale: take ``φ(√scale · x)``, which splits the model's scale over Q and K. The paper does not scale, and the
            scale does not cancel.

    Shapes: φ(Q) (h, n_q, p), φ(K) (h, n_k, p), in the Q/K/V's dtype. Deterministic; cost ``2 n p p_v``. ``visited``
    counts the features, p for each token; ``bad_rows`` counts the rows without a finite normaliser.

    Raises:
        UsageError: ``scale`` is neither true nor false.
    """
    factor = qkv.scale**0.5 if scale else 1.0
    operator, bad_rows = from_log_features(_log_phi(qkv.q * factor), _log_phi(qkv.k * factor), qkv)
    diagnostics = {"bad_rows": bad_rows, "visited": per_head(qkv.h, qkv.p * (qkv.n_q + qkv.n_k))}
    return Approximation.of(operator, qkv, diagnostics=diagnostics)


def _log_phi(x: Tensor) -> Tensor:
    """``log(elu(x) + 1)``, which is x for negative x."""
    return x.clamp(max=0) + torch.log1p(x.clamp(min=0))
