"""The two exact matrices as methods: softmax attention in its own dtype, and kernelized attention.

B and C are those of the glossary.
"""

from __future__ import annotations

from ...operators import SoftmaxAttention
from ...qkv import QKV
from ...reference import exact, own_output
from ...rng import Streams
from ..base import Approximation, per_head
from ..registry import DISTRIBUTIONS, EVERY_MASK, INVARIANT, register


@register(
    name="softmax",
    paper="Vaswani et al., Attention Is All You Need",
    year=2017,
    family="exact",
    kind="reference",
    tags=("deterministic", *DISTRIBUTIONS, *INVARIANT, "exact_at_full_budget", "diagnostic", *EVERY_MASK, "biases"),
    budget=None,
    cost="2 n² p",
    oracle="torch scaled_dot_product_attention",
    exact_at=lambda n: (None, {}),
)
def softmax(qkv: QKV, d: None, *, streams: Streams, target: str = "softmax") -> Approximation:
    """``B = softmax(scale · Q Kᵀ)`` in the dtype of the Q/K/V: its error is the rounding of that dtype.

    Shapes: output (h, n_q, p_v), by torch's fused kernel. Deterministic; cost ``2 n² p``, memory O(n p).
    """
    operator = SoftmaxAttention(qkv.q, qkv.shared_k, qkv.scale, qkv.visible, qkv.terms)
    output = own_output(qkv)
    diagnostics = {"visited": per_head(qkv.h, qkv.entries)}
    return Approximation(operator, output, diagnostics=diagnostics, log_normalizer=operator.log_normalizer)


@register(
    name="kernelized",
    paper="Chen et al., Skyformer",
    year=2021,
    family="exact",
    targets=("softmax", "gaussian"),
    tags=(
        "deterministic",
        "nonnegative",
        "permutation_equivariant",
        "exact_at_full_budget@gaussian",
        "diagnostic",
        "causal",
        "decodes",
        "local",
    ),
    budget=None,
    cost="2 n² p",
    oracle="identity C = E_Q⁻¹ A E_K⁻¹ with the softmax kernel",
    exact_at=lambda n: (None, {}),
)
def kernelized(qkv: QKV, d: None, *, streams: Streams, target: str = "softmax") -> Approximation:
    """``C_ij = exp(-‖q_i - k_j‖² · scale/2)``, not row-normalised: the paper's replacement of softmax attention.

    The result is C for both targets. Against ``target=gaussian`` its error is rounding. Against ``target=softmax`` it
    is the distance of two different models of attention, not an approximation error. Source: Chen et al. 2021
    (Skyformer), section 4.1, equation 3.

    Shapes: output (h, n_q, p_v). Deterministic; cost ``2 n² p``, memory O(n p).
    """
    return Approximation.of(exact(qkv, "gaussian"), qkv, diagnostics={"visited": per_head(qkv.h, qkv.entries)})
