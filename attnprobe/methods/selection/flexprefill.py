"""FlexPrefill (Lai et al. 2025): each head has the columns and diagonals, or the blocks, with a given mass.

A probe of the last queries determines which of the two patterns a head has.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...errors import UsageError
from ...operators.linalg.order import largest_scores
from ...operators.precision import ordered_sums
from ...qkv import QKV
from ...reference import exact
from ...rng import Streams
from ..base import Approximation
from ..option import at_least
from ..registry import TWICE_KEYS
from .base import (
    Selection,
    attend,
    keys_of_pages,
    last_of_blocks,
    last_queries,
    observed,
    page_means,
    pages_seen,
    selector,
)
from .diagonals import columns_and_diagonals


def _check(target: str, *, mass: float, tau: float, block: int) -> None:
    at_least("flexprefill", 1, "block")(target, block=block)
    if not 0 < mass <= 1:
        raise UsageError(f"flexprefill: mass={mass} is not in (0, 1]")
    if tau < 0:
        raise UsageError(f"flexprefill: tau={tau} is negative")


@selector(
    name="flexprefill",
    paper="Lai et al., FlexPrefill",
    year=2025,
    tags=("shift_invariant", "prefill"),
    budget="at most d keys of each row: the fewest columns and diagonals, or blocks, that hold the mass",
    cost="2 n d p + O(n² p)",
    oracle="identity: blocks of one key and one probe row have the distance 0",
    **TWICE_KEYS,
    exact_at=lambda n: (2 * n, {"mass": 1.0}),
    validate=_check,
    small={"block": 3},
)
def flexprefill(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    mass: float = 0.95,
    tau: float = 0.1,
    block: int = 128,
) -> Approximation:
    """The softmax of each row over the columns and diagonals, or the blocks, with a share of the mass.

    P are the exact rows of the last ``block`` queries, a their mass in each block of keys, and â the softmax of
    ``mean(q in the probe) · mean(k in block)``. A head with ``√JSD(a, â)`` below ``tau`` has *blocks*: the pairs of a
    block row I and a block J with the largest softmax of ``mean(q in I) · mean(k in J)``, of all block rows together,
    until their sum is ``mass`` of the total. Other heads have *columns and diagonals*: the fewest of each with ``mass``
    of the probe.

    d bounds the keys of a row: half of them are columns and half diagonals, or they are as many complete blocks as fit
    in d. The column, diagonal or block at which the sum reaches ``mass`` is selected too, and the own block or key
    always. Source: Lai et al. 2025, section 3.

    The authors' code differs: with its default ``tau=0`` no head has blocks, it drops the item at which the sum reaches
    the mass, and it divides counts by 128 for every block size. It decodes with exact attention.

    The probe is at the end of the text, so the selection of earlier rows looks ahead. No key after a row has weight.
    With more queries than keys, surplus queries belong to the last block, and to its mean.

    Options:
        mass: γ, the share of the mass. With 1 everything that fits in d is selected.
        tau: the largest distance of a head with blocks.
        block: the number of tokens of a block, and of the queries of the probe.

    Shapes: index and weights (h, n_q, u), u ≤ d + block; output (h, n_q, p_v). Deterministic; cost ``block · n_k p``
    for the probe and ``n d (p + p_v)``, memory O(n d). ``scored`` is the scores of the probe and of pairs of blocks.

    Raises:
        Unsupported: d above 2 n_k. UsageError: an option out of its range.
    """
    inputs = observed(qkv)
    probe = last_queries(inputs, block)
    weights = exact(probe).rows(0, probe.n_q)
    lines = columns_and_diagonals(qkv, weights, probe.query_positions, d // 2, d - d // 2, 1, 1, mass)
    means = page_means(inputs.k, block)
    of_probe = _block_softmax(probe.q.mean(1, keepdim=True), means, qkv.scale)[:, 0]
    blocks = torch.arange(qkv.n_k, device=qkv.device) // block
    with ordered_sums(qkv.device):
        true = weights.new_zeros(len(weights), means.shape[1]).index_add_(1, blocks, weights.mean(1))
    has_blocks = _distance(true, of_probe) < tau
    pages = _pooled_blocks(inputs, means, d, block, mass)
    keys = keys_of_pages(pages, block, qkv.n_k)[:, qkv.query_positions // block]
    rows = last_of_blocks(pages.shape[1], block, qkv)
    width = max(lines.shape[2], keys.shape[2])
    lines, keys = (pad(x, (0, width - x.shape[2]), value=-1) for x in (lines, keys))
    index = torch.where(has_blocks[:, None, None], keys, lines)
    return attend(qkv, Selection(index, 1, float(probe.entries) + pages_seen(qkv, block, rows)))


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """The square root of the Jensen-Shannon divergence of rows, in nats, (h,)."""
    middle = (a + b) / 2
    divergence = (torch.xlogy(a, a / middle) + torch.xlogy(b, b / middle)).nan_to_num(0.0).sum(-1) / 2
    return divergence.clamp(min=0).sqrt()


def _block_softmax(queries: Tensor, means: Tensor, scale: float, hidden: Tensor | None = None) -> Tensor:
    """The softmax of queries over the means of blocks."""
    scores = scale * queries @ means.mT
    return (scores if hidden is None else scores.masked_fill(hidden, float("-inf"))).softmax(-1)


def _pooled_blocks(qkv: QKV, means: Tensor, d: int, block: int, mass: float) -> Tensor:
    """The blocks of each block row, those with the largest weights of all block rows together, (h, block rows, m)."""
    queries = page_means(qkv.q, block, qkv.query_positions)
    row, column = (torch.arange(size, device=qkv.device) for size in (queries.shape[1], means.shape[1]))
    has_queries = torch.bincount(qkv.query_positions // block, minlength=len(row)) > 0  # block rows with queries
    hidden = (column > row[:, None]) & qkv.causal
    weights = _block_softmax(queries, means, qkv.scale, hidden) * has_queries[:, None]
    largest, order = weights.flatten(1).sort(dim=1, descending=True, stable=True)
    before = largest.cumsum(1) - largest
    enough = (before >= mass * has_queries.sum()) & (mass < 1)
    selected = torch.ones_like(enough).scatter_(1, order, ~enough).view(weights.shape)
    own = column == row[:, None]
    # A weight is at most 1, so 2 puts the own block first.
    chosen = largest_scores(weights.masked_fill(own, 2.0), max(1, d // block))[1]
    return chosen.masked_fill(~((selected | own) & ~hidden).gather(2, chosen), -1)
