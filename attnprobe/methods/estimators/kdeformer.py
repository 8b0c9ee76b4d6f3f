"""KDEformer (Zandieh et al. 2023): exact blocks of a sorted hash, and keys sampled by the norms of their values."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...operators.linalg.sampling import weighted_with_replacement
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation
from ..registry import DISTRIBUTIONS, KEYS, register
from .sorted_blocks import SortedBlocks, block_and_sample, check_blocks


@register(
    name="kdeformer",
    paper="Zandieh et al., KDEformer",
    year=2023,
    family="LSH",
    tags=(*DISTRIBUTIONS, "uses_values", "exact_at_full_budget"),
    budget="d keys a row: a block of a sorted hash, and sampled keys",
    cost="2 n d p + 14 n p + n p²",
    oracle="unbiased normalisers; inclusion frequencies; exact at one block",
    **KEYS,
    least=2,
    validate=partial(check_blocks, "kdeformer"),
    exact_at=lambda n: (n, {"block": 1.0}),
)
def kdeformer(
    qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", bits: int = 7, block: float = 0.5
) -> Approximation:
    """``B~_ij = w_ij exp(S_ij) / D~_i``: ``w = 1`` in the block of row i, ``c_j/(s P_j)`` for sampled keys outside.

    Blocks of b keys are those of ``hyper``. The s keys of a head are drawn with replacement with ``P_j ∝ ‖v'_j‖/λ +
    1/n_k``, ``V' = [V, 1]``, λ the largest eigenvalue of ``V'ᵀ V'``; c_j is the number of draws of key j. So ``E[w_ij]
    = 1``, and D~ and N~ are unbiased. ``b + s = d``. Source: Zandieh et al. 2023, and their code.

    The paper samples by ``‖v_j‖²`` and an estimate of the density of the kernel. This is the form of the authors' code.
    The code has λ, not its root, which makes P nearly uniform. Here λ is exact.

    Options:
        bits: r, the signs of the hash. The authors' code has 7.
        block: share of d for b; the rest is s.

    Shapes: weights (h, n_q, b) and (h, n_q, s) in the Q/K/V's dtype, scores and P in float64. Draws: ``rotations`` (h,
    1, r, p), ``columns`` (h, s). It states ess, the smallest inclusion probability ``1 - (1 - P_j)^s`` of keys outside
    of the block, and the variance of D~ over D~² from the sample. The operator depends on V through P. Cost ``2 n d
    p``, ``2 n r p`` for the hashes and ``n p_v²``; memory O(n d).

    Raises:
        Unsupported: d below 2 or above n_k. UsageError: options outside their ranges.
    """
    size = max(1, int(block * d))
    blocks = SortedBlocks.of(qkv, size, bits, streams)
    probability = _probabilities(qkv.v.double())
    drawn = [
        weighted_with_replacement(of_head, d - size, streams.head(head, "columns"))
        for of_head, head in zip(probability.cpu(), qkv.heads, strict=True)
    ]
    return block_and_sample(qkv, blocks, torch.stack(drawn), probability)


def _probabilities(v: Tensor) -> Tensor:
    """P of the values (h, n_k, p_v), (h, n_k)."""
    v = torch.nn.functional.pad(v, (0, 1), value=1.0)  # V'
    largest = torch.linalg.eigvalsh(v.mT @ v)[:, -1:]
    weights = v.norm(dim=-1) / largest + 1 / v.shape[1]
    return weights / weights.sum(-1, keepdim=True)
