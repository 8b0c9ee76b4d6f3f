"""The d largest entries of each row, chosen from all scores: the yardstick of sparse patterns.

S = scale · Q Kᵀ and B = softmax(S) as in the glossary. T_i is the set of the d largest scores of row i.
"""

from __future__ import annotations

import torch

from ...operators import SoftmaxAttention, Sparse
from ...operators.blocks import head_blocks, reach
from ...operators.linalg.order import largest_scores
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, Counted, per_head
from ..registry import DISTRIBUTIONS, EVERY_MASK, INVARIANT, KEYS, register
from ..sparse_softmax import key_costs

BLOCK, ENTRIES = 64, 2**21  # rows and scores of one head in memory at a time


@register(
    name="topk",
    paper="Gupta et al., Top-k Attention",
    year=2021,
    family="sparse",
    kind="reference",
    tags=("deterministic", *DISTRIBUTIONS, *INVARIANT, "exact_at_full_budget", "diagnostic", *EVERY_MASK, "biases"),
    budget="d entries of each row: those with the largest scores",
    cost="n² p",
    oracle="torch scaled_dot_product_attention under its mask",
    **KEYS,
    exact_at=lambda n: (n, {}),
)
def topk(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", renormalize: bool = True) -> Approximation:
    """``B~_ij = exp(S_ij) / Σ_{j' in T_i} exp(S_ij')`` for the d largest scores ``T_i`` of row i, 0 elsewhere.

    Source: Gupta et al. 2021, whose k is our d. B's own d largest entries (``renormalize=false``) are the closest to B,
    row by row, of all matrices with d entries a row. Renormalised, as in the paper, another choice can be closer, so
    this is a yardstick, not a lower bound. Of equal scores the first ones count. A causal row takes the d largest
    scores of the keys up to itself; the first d rows take all of these keys.

    Options:
        renormalize: divide by the sum over ``T_i``, so that rows sum to 1; ``false`` divides by the sum over all keys.

    Shapes: weights (h, n_q, d) in the dtype of the Q/K/V, output (h, n_q, p_v). Deterministic; cost ``n² p`` for all
    scores, in blocks of rows, and ``n d p_v``; memory O(n d).

    Raises:
        Unsupported: d above n_k.
    """
    index = torch.empty(qkv.h, qkv.n_q, d, dtype=torch.int64, device=qkv.device)
    weights = qkv.q.new_empty(qkv.h, qkv.n_q, d)
    log_sums = qkv.q.new_empty(qkv.h, qkv.n_q)
    visible = qkv.visible
    every_key = SoftmaxAttention(qkv.q, qkv.shared_k, qkv.scale, visible, qkv.terms)
    for heads, start, stop in head_blocks(every_key, max(1, min(BLOCK, ENTRIES // qkv.n_k))):
        exact, seen = every_key, qkv.n_k
        if visible is not None and qkv.device.type == "cpu":  # a GPU would have to be waited for to know
            seen = max(d, int(visible.last[start:stop].max()) + 1)
            if renormalize:  # else all keys are summed
                keys = slice(reach(seen - 1, qkv.n_k))
                terms = None if qkv.terms is None else qkv.terms.of(keys=keys)
                exact = SoftmaxAttention(qkv.q, qkv.shared_k[:, keys], qkv.scale, visible, terms)
        scores = exact.scores(heads, start, stop)  # (heads, b, n_k)
        largest, index[heads, start:stop] = largest_scores(scores[..., :seen], d)
        shift = largest[..., :1]  # it cancels; a logarithm of the sum would be as coarse as the scores themselves
        numerator, summed = torch.exp(largest - shift), scores if not renormalize else largest
        total = torch.exp(summed - shift).sum(-1, keepdim=True)
        weights[heads, start:stop] = numerator / total
        log_sums[heads, start:stop] = (shift + total.log())[..., 0]

    def every() -> torch.Tensor:
        return per_head(qkv.h, qkv.entries)

    costs = Counted({**key_costs(qkv, index), "visited": every, "scored": lambda: every() / qkv.n_q})
    operator = Sparse(index, weights, qkv.n_k, distinct=True)
    return Approximation.of(operator, qkv, diagnostics=costs, log_normalizer=lambda: log_sums)
