"""A window around each token or before it, and the first tokens as sinks for all (Xiao et al. 2024, StreamingLLM).

s is the paper's number of attention sinks, w the width of its window. ``d = s + w``.
"""

from __future__ import annotations

from ...errors import Unsupported
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, per_head
from ..option import at_least
from ..registry import DISTRIBUTIONS, EVERY_MASK, register
from ..sparse_softmax import banded_softmax
from ..storage import Storage


@register(
    name="window",
    paper="Xiao et al., StreamingLLM",
    year=2024,
    family="sparse",
    tags=("deterministic", *DISTRIBUTIONS, "shift_invariant", "exact_at_full_budget", *EVERY_MASK, "biases"),
    budget="d entries of each row: the sinks and a window of d - sinks",
    cost="2 n (d + 16) p",
    oracle="torch scaled_dot_product_attention under its mask",
    limit=lambda n_q, n_k: max(n_q, n_k) + n_k + 4,
    limit_name="max(n_q, n_k) + n_k + 4",
    least=5,
    validate=at_least("window", 0, "sinks"),
    exact_at=lambda n: (2 * n, {"sinks": 0}),
    storage=Storage(evicts=True),
)
def window(
    qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", sinks: int = 4, causal: bool = False
) -> Approximation:
    """The softmax of each row over the columns ``{0 … s-1} ∪ {i - ⌊w/2⌋ … i + ⌊(w-1)/2⌋}`` with ``w = d - s``.

    Source: Xiao et al. 2024, section 3.2. The paper's models are causal, so its window looks back; here it does so for
    causal Q, K, V. For an encoder the window lies around the token: symmetric for odd w, one longer to the left for
    even w. Row i has d entries if its window lies within the text and outside the sinks, otherwise fewer:
    ``realised_d`` is the mean. With more queries than keys, a surplus query has the window of the last key. The A-shape
    of MInference is this pattern with more sinks.

    Options:
        sinks: s, the number of first tokens that every row sees.
        causal: the paper's pattern: row i sees the sinks and the w tokens ``i - w + 1 … i``, none of them after i.
            Causal Q, K, V always get it. For an encoder the exact B looks ahead, so the error then contains the
            difference of causal and full attention.

    Shapes: weights (h, n_q, u), u < d + 16 and u ≤ n_k, in dense blocks of 16 rows; output (h, n_q, p_v).
    Deterministic; cost ``n d (p + p_v)``, memory O(n d). ``visited`` is the number of entries.

    Raises:
        Unsupported: d above max(n_q, n_k) + n_k + 4, below 5, or no more than ``sinks``.
        UsageError: ``sinks`` below 0.
    """
    if d <= sinks:
        raise Unsupported(
            f"window: d={d} leaves no window with sinks={sinks}; choose d in {sinks + 1}.. or fewer sinks"
        )
    w, causal = d - sinks, causal or qkv.causal
    left, right = (w - 1, 0) if causal else (w // 2, (w - 1) // 2)
    operator, log_normalizer, entries = banded_softmax(qkv, left, right, first=sinks, causal=causal)
    keys = per_head(qkv.h, entries / qkv.n_q)
    diagnostics = {"realised_d": keys, "visited": per_head(qkv.h, entries), "scored": 0 * keys, "kv_read": keys}
    return Approximation.of(operator, qkv, diagnostics=diagnostics, log_normalizer=log_normalizer)
