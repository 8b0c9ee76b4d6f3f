"""Quest (Tang et al. 2024): each query reads the pages of keys whose largest possible score is highest.

P is the paper's page size. ``lo`` and ``hi`` are the smallest and the largest value of each coordinate in a page.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation
from ..option import at_least
from .base import (
    Selection,
    Share,
    attend,
    keys_of_pages,
    pages_seen,
    row_pages,
    selector,
    shared,
    working,
)


@selector(
    name="quest",
    paper="Tang et al., Quest",
    year=2024,
    joint=True,
    tags=("shift_invariant", "causal", "decodes"),
    budget="at most d keys of each row, in pages: its own page, and those of the largest bounds",
    cost="2 n d p + O(n² p)",
    oracle="identity: the bound of a page is at least its largest score",
    validate=at_least("quest", 1, "page"),
    small={"page": 3},
)
def quest(
    qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", page: int = 16, share: Share = "head"
) -> Approximation:
    """The softmax of each row over its own page and the pages with the largest ``u_g = Σ_t max(q_t lo_gt, q_t hi_gt)``.

    ``u_g`` is at least the score of every key in the page, divided by the scale. A row has its own page, and as many
    other complete pages as fit in d. It has its own page even if d is smaller. Source: Tang et al. 2024, section 3. The
    authors' evaluation code differs: it selects the own page by its bound, has at least 3 pages, and computes the first
    two layers exactly. Its CUDA code always has the own page, as here.

    The bounds of a page are those of all its keys. A causal row uses only bounds of pages before its own, so later keys
    have no influence. A query behind a prompt (``inject --phase decode``) stands at the prompt's last key, so the last
    page is always read, and counts.

    Options:
        page: P, the number of keys of a page.
        share: ``head``: each query head has pages of its own, as in the paper. With ``group-mean`` or ``group-max`` the
            query heads of a KV head have the same pages, by the mean or the largest of their bounds. It is that of the
            given heads, so a part of a group has other sets.

    Shapes: index and weights (h, n_q, u), u ≤ d + P; output (h, n_q, p_v). Deterministic; cost ``2 n (n/P) p`` for the
    bounds and ``n d (p + p_v)``, memory O(n d). ``scored`` is two scores for each page that a row sees.

    Raises:
        Unsupported: d above n_k. UsageError: ``page`` below 1.
    """
    numbers, pages = working(qkv), -(-qkv.n_k // page)
    padding = numbers.k[:, -1:].expand(-1, pages * page - qkv.n_k, -1)  # repeats a key, which moves no bound
    keys = torch.cat([numbers.k, padding], 1).unflatten(1, (pages, page))
    low, high = keys.amin(2).mT, keys.amax(2).mT  # (h, p, pages)

    def bounds(q: Tensor) -> Tensor:
        # The larger product of a coordinate is with the upper end if it is positive: two products, no maximum of all.
        return shared(q.clamp(min=0) @ high + q.clamp(max=0) @ low, qkv, share)

    chosen = row_pages(qkv, d, page, numbers.q, qkv.query_positions, bounds)
    index = keys_of_pages(chosen, page, qkv.n_k)
    return attend(qkv, Selection(index, 1, 2 * pages_seen(qkv, page, qkv.query_positions)))
