"""Longformer (Beltagy et al. 2020): a sliding window, and a few global tokens that see all tokens and are seen by all.

w is the paper's window size, half of it on each side. g is its number of tokens with global attention.
"""

from __future__ import annotations

from ...errors import Unsupported
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, per_head, with_exact_rows
from ..option import at_least
from ..registry import DISTRIBUTIONS, EVERY_MASK, register
from ..sparse_softmax import banded_softmax


@register(
    name="longformer",
    paper="Beltagy et al., Longformer",
    year=2020,
    family="sparse",
    tags=("deterministic", *DISTRIBUTIONS, "shift_invariant", "exact_at_full_budget", *EVERY_MASK, "biases"),
    budget="d n entries: a window of w + 1, and global tokens as columns and as full rows",
    cost="2 n (d + 16) p",
    oracle="transformers LongformerSelfAttention",
    limit=lambda n_q, n_k: max(n_q, n_k) + n_k + 1,
    limit_name="max(n_q, n_k) + n_k + 1",
    least=3,
    validate=at_least("longformer", 0, "global_tokens"),
    exact_at=lambda n: (2 * n, {"global_tokens": 0}),
)
def longformer(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", global_tokens: int = 1) -> Approximation:
    """The softmax of row i over ``{0 … g-1} ∪ {j : |i - j| ≤ w/2}``; rows ``i < g`` are exact.

    ``w = 2 ⌊(d - 1 - 2g)/2⌋``, so that the window (w + 1), the global columns (g) and the global rows (g n entries)
    have at most d n entries. Source: Beltagy et al. 2020, section 3.1. The model's separate projections for global
    attention are trained parts and left out: all rows use the given Q, K and V. Dilated windows are left out too.

    Options:
        global_tokens: g, the first tokens of the text (for classification the paper has one, [CLS]).

    Shapes: weights (h, n_q, u), u < d - g + 16, in dense blocks of 16 rows; the global rows are an operator (h, g,
    n_k); output (h, n_q, p_v). Deterministic; cost ``n d (p + p_v)``, memory O(n d). ``realised_d`` is the mean number
    of entries of a row, ``visited`` their sum. With more queries than keys, a surplus query has the window of the last
    key. Causal rows see the part of this pattern up to themselves: ``realised_d`` is about d/2.

    Raises:
        Unsupported: d above max(n_q, n_k) + n_k + 1, below 3, or below ``1 + 2 global_tokens``.
        UsageError: ``global_tokens`` below 0.
    """
    least = 1 + 2 * global_tokens
    if d < least:
        raise Unsupported(
            f"longformer: d={d} leaves no window with global_tokens={global_tokens}; "
            f"choose d in {least}.. or fewer global tokens"
        )
    half = (d - least) // 2  # w/2
    right = 0 if qkv.causal else half
    is_global = qkv.query_positions < global_tokens  # rows of global tokens
    operator, log_normalizer, entries = banded_softmax(qkv, half, right, first=global_tokens, skip=is_global)
    operator, log_normalizer, added = with_exact_rows(qkv, operator, log_normalizer, is_global)
    keys = per_head(qkv.h, (entries + added) / qkv.n_q)
    diagnostics = {"realised_d": keys, "visited": per_head(qkv.h, entries + added), "scored": 0 * keys, "kv_read": keys}
    return Approximation.of(operator, qkv, diagnostics=diagnostics, log_normalizer=log_normalizer)
