"""Block-sparse attention of MInference (Jiang et al. 2024): blocks of queries read blocks of keys like them."""

from __future__ import annotations

from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation
from ..option import at_least
from .base import (
    Selection,
    attend,
    last_of_blocks,
    observed,
    of_block_rows,
    page_means,
    pages_seen,
    row_pages,
    selector,
)


@selector(
    name="block-topk",
    paper="Jiang et al., MInference (block-sparse head)",
    year=2024,
    tags=("shift_invariant", "prefill"),
    budget="at most d keys of each row, in blocks: its own block, and those of the largest mean scores",
    cost="2 n d p + O(n² p)",
    validate=at_least("block-topk", 1, "block"),
    small={"block": 3},
)
def block_topk(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", block: int = 64) -> Approximation:
    """The softmax of block row I over its own block and the blocks J with the largest ``mean(q in I) · mean(k in J)``.

    A block row has its own block, and as many other complete blocks as fit in d. It has its own block even if d is
    smaller. Source: Jiang et al. 2024, section 3, the block-sparse pattern. A mean is over the tokens of a block; the
    last block may be shorter. The authors' code pads it with zeros, which makes its means smaller, and selects the own
    block by its score.

    The mean is over all queries of a block, so the selection of a row looks ahead within its block. No key after a row
    has weight. With more queries than keys, surplus queries belong to the last block, and to its mean.

    Options:
        block: the number of tokens of a block of queries, and of a block of keys.

    Shapes: index (h, ⌈n_q/b⌉, u), weights (h, n_q, u), u ≤ d + b; output (h, n_q, p_v). Deterministic; cost ``n d (p +
    p_v) + (n/b)² p``, memory O(n d). ``scored`` is the number of pairs of blocks that see each other.

    Raises:
        Unsupported: d above n_k. UsageError: ``block`` below 1.
    """
    inputs = observed(qkv)
    queries = page_means(inputs.q, block, inputs.query_positions)  # (h, block rows, p)
    means = page_means(inputs.k, block).mT  # (h, p, blocks)
    last = last_of_blocks(queries.shape[1], block, qkv)
    pages = row_pages(qkv, d, block, queries, last, lambda q: q @ means)
    index, group = of_block_rows(qkv, pages, block)
    return attend(qkv, Selection(index, group, pages_seen(qkv, block, last)))
