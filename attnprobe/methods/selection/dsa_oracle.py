"""One set of keys for all heads, by their summed weight: the target of the indexer of DeepSeek sparse attention."""

from __future__ import annotations

import torch

from ...operators import SoftmaxAttention
from ...operators.blocks import block_rows, row_blocks
from ...operators.groups import of_members
from ...operators.linalg.order import largest_scores
from ...operators.precision import full_precision
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation
from ..registry import INVARIANT
from .base import ROWS, AnySets, Selection, attend, means_of_sets, rows_of_sets, selector, working


@selector(
    name="dsa-oracle",
    paper="DeepSeek-AI, DeepSeek-V3.2-Exp (what its indexer is trained for)",
    year=2025,
    kind="reference",
    joint=True,
    tags=(*INVARIANT, "diagnostic", "causal", "decodes"),
    budget="d keys of each row, the same for all heads: those with the largest sums of weights",
    cost="n² p + 2 n d p",
    oracle="identity: of one head it is top-k",
    small={"sets": "group"},
)
def dsa_oracle(
    qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", sets: AnySets = "layer"
) -> Approximation:
    """The softmax of each row over the d keys with the largest ``Σ_heads B_ij``, which all heads share.

    Source: DeepSeek-AI 2025, section 2.1. There a small indexer scores all keys and selects 2,048 of them for all heads
    of a layer. It is trained on the summed attention of the heads. This method uses these sums themselves. So its error
    is that of one set for all heads, without that of an indexer. A comparison with `topk` shows the gain of separate
    sets. The heads of a layer are the given ones, so a head alone has other sets.

    Options:
        sets: ``layer``: all heads have one set; ``group``: the query heads of a KV head have one; ``head``:
            each has its own, which is `topk`.

    Shapes: index and weights (h, n_q, d), output (h, n_q, p_v). Deterministic; cost ``n² p`` for all scores, in blocks
    of rows, and ``n d (p + p_v)``; memory O(n d). ``visited`` counts all scores that rows see.

    Raises:
        Unsupported: d above n_k.
    """
    numbers = working(qkv)
    index = torch.empty(qkv.h, qkv.n_q, d, dtype=torch.int64, device=qkv.device)
    with full_precision():
        exact = SoftmaxAttention(numbers.q, numbers.shared_k, qkv.scale, qkv.visible, qkv.terms)
        for start, stop in row_blocks(qkv.n_q, block_rows(qkv.q, qkv.h * qkv.n_k, cpu=ROWS // 8)):
            seen = max(d, exact.seen(start, stop))
            scores = exact.first_keys(start, stop, seen).scores(slice(0, qkv.h), 0, stop - start)
            sums = means_of_sets(scores.double().softmax(-1), qkv, sets)  # (m, b, seen)
            index[:, start:stop] = of_members(largest_scores(sums, d, above=0.0)[1], rows_of_sets(qkv, sets))
    approx = attend(qkv, Selection(index, 1, float(qkv.entries)))
    # The oracle scores all keys, and says so; its indexer would score them in few dimensions.
    approx.diagnostics["visited"].fill_(qkv.entries)
    return approx
