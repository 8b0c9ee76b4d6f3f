"""MoBA (Lu et al. 2025): each query reads its own block and the blocks whose mean key it scores highest."""

from __future__ import annotations

from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation
from ..option import at_least
from .base import Selection, attend, keys_of_pages, page_means, pages_seen, row_pages, selector, working


def _caution(d: int, *, block: int) -> str | None:
    if d > block:
        return None
    return f"every d up to block={block} gives the same rows, each with its own block alone; choose a smaller block"


@selector(
    name="moba",
    paper="Lu et al., MoBA",
    year=2025,
    tags=("shift_invariant", "causal", "decodes"),
    budget="at most d keys of each row, in blocks: its own block, and those of the largest gates",
    cost="2 n d p + O(n² p)",
    oracle="identity: blocks of one key are top-k with the own key",
    validate=at_least("moba", 1, "block"),
    small={"block": 3},
    caution=_caution,
)
def moba(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", block: int = 512) -> Approximation:
    """The softmax of each row over its own block and the blocks with the largest gates ``q · mean(k in block)``.

    A row has its own block, and as many other complete blocks as fit in d; for a causal row these are before its own.
    It has its own block even if d is smaller, so every d up to ``block`` gives the same rows: choose a ``block`` far
    below d. A query behind a prompt (``inject --phase decode``) stands at the prompt's last key, so the last block is
    always read, and counts. Source: Lu et al. 2025, section 2.2, where d is the block size times the number of blocks.

    Options:
        block: the number of keys of a block. The paper has 512 for texts of 8,192 tokens.

    Shapes: index and weights (h, n_q, u), u ≤ d + block; output (h, n_q, p_v). Deterministic; cost ``n (n/block) p``
    for the gates and ``n d (p + p_v)``, memory O(n d). ``scored`` is one score for each block that a row sees.

    Raises:
        Unsupported: d above n_k. UsageError: ``block`` below 1.
    """
    numbers = working(qkv)
    means = page_means(numbers.k, block).mT  # (h, p, blocks)
    chosen = row_pages(qkv, d, block, numbers.q, qkv.query_positions, lambda q: q @ means)
    scored = pages_seen(qkv, block, qkv.query_positions)
    return attend(qkv, Selection(keys_of_pages(chosen, block, qkv.n_k), 1, scored))
