"""Tri-shape (Li et al. 2024, SCBench): first keys, a window, and the last rows as full rows.

L is the number of last tokens whose rows are full. Without them the pattern is A-shape, which is `window`.
"""

from __future__ import annotations

from ...errors import Unsupported
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, per_head, with_exact_rows
from ..option import at_least
from ..registry import BOTH_WAYS, DISTRIBUTIONS, register
from ..sparse_softmax import banded_softmax


@register(
    name="tri-shape",
    paper="Li et al., SCBench (Tri-shape)",
    year=2024,
    family="sparse",
    tags=("deterministic", *DISTRIBUTIONS, "shift_invariant", "exact_at_full_budget", "causal", "local", "biases"),
    budget="d n entries: first keys and a window of each row, and the last rows as full rows",
    cost="2 n (d + 16) p",
    oracle="torch scaled_dot_product_attention under its mask",
    **BOTH_WAYS,
    least=3,
    validate=at_least("tri-shape", 0, "first", "last"),
    exact_at=lambda n: (2 * n, {"first": 0, "last": 1}),
    small={"first": 1, "last": 1},
)
def tri_shape(
    qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", first: int = 4, last: int = 100
) -> Approximation:
    """The softmax of row i over ``{0 … first-1} ∪ {i - ⌊w/2⌋ … i + ⌊(w-1)/2⌋}``; rows of the last L tokens are exact.

    ``w = ⌊(d - L) n / (n - L)⌋ - first``, so that the first keys, the window and the full rows (L n entries) have at
    most d n entries. Causal rows have the last w keys up to their own. With at most L tokens all rows are exact.
    Source: Li et al. 2024, section 3, for prompts whose last tokens are the question.

    n is the number of keys. The rows that are full depend on the end of the text, so this is a pattern of a prompt and
    not of decoding.

    Options:
        first: the number of first keys that all rows have (attention sinks).
        last: L, the number of last tokens whose rows are full.

    Shapes: weights (h, n_q, u), u < first + w + 16, in dense blocks of 16 rows; the full rows are an operator (h, L,
    n_k); output (h, n_q, p_v). Deterministic; cost ``n d (p + p_v)``, memory O(n d). ``realised_d`` is the mean number
    of entries of a row, ``visited`` their sum.

    Raises:
        Unsupported: d above max(n_q, n_k) + n_k, below 3, or without room for a window.
        UsageError: an option below 0.
    """
    is_full = qkv.query_positions >= qkv.n_k - last
    window = 0
    if last < qkv.n_k:
        # The full rows take their entries from the budget d n; the rest is shared by the other rows.
        window = (d - last) * qkv.n_k // (qkv.n_k - last) - first
        if window < 1:
            raise Unsupported(
                f"tri-shape: d={d} leaves no window with last={last}, first={first}; choose d above {last + first}, "
                "or fewer last rows or first keys"
            )
    left, right = (window - 1, 0) if qkv.causal else (window // 2, (window - 1) // 2)
    operator, log_normalizer, entries = banded_softmax(qkv, left, right, first, skip=is_full)
    operator, log_normalizer, added = with_exact_rows(qkv, operator, log_normalizer, is_full)
    keys = per_head(qkv.h, (entries + added) / qkv.n_q)
    diagnostics = {"realised_d": keys, "visited": per_head(qkv.h, entries + added), "scored": 0 * keys, "kv_read": keys}
    return Approximation.of(operator, qkv, diagnostics=diagnostics, log_normalizer=log_normalizer)
