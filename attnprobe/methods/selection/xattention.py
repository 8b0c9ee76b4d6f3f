"""XAttention (Xu et al. 2025): blocks are scored by sums along antidiagonals, and selected up to a mass.

Cell (a, b) has s queries and s keys. Block I has the tokens ``I block … (I + 1) block - 1``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import UsageError
from ...operators.blocks import block_rows, row_blocks
from ...operators.linalg.order import largest_scores
from ...operators.precision import full_precision, ordered_sums
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation
from ..option import at_least
from ..registry import TWICE_KEYS
from .base import ROWS, Selection, attend, observed, of_block_rows, pages_seen, selector


def _check(target: str, *, stride: int, block: int, mass: float) -> None:
    at_least("xattention", 1, "stride", "block")(target, stride=stride, block=block)
    if block % stride:
        raise UsageError(f"xattention: block={block} is not a multiple of stride={stride}")
    if not 0 < mass <= 1:
        raise UsageError(f"xattention: mass={mass} is not in (0, 1]")


@selector(
    name="xattention",
    paper="Xu et al., XAttention",
    year=2025,
    tags=("shift_invariant", "prefill"),
    budget="at most d keys of each row, in blocks: the first, its own, and the fewest that hold the mass",
    cost="2 n d p + O(n² p)",
    oracle="identity: with stride 1 the estimate is the mass of a block",
    **TWICE_KEYS,
    exact_at=lambda n: (2 * n, {"mass": 1.0}),
    validate=_check,
    small={"block": 2, "stride": 2},
)
def xattention(
    qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", stride: int = 8, block: int = 128, mass: float = 0.9
) -> Approximation:
    """The softmax of each block row over the first block, its own, and the others with the largest estimated mass.

    ``t_ab = (scale/s) Σ_r q_{as+s-1-r} · k_{bs+r}`` is the mean score of the antidiagonal of a cell. The estimate of a
    block is the mean over its rows a of ``Σ_b softmax_b(t_ab)``. A block row has the fewest blocks with ``mass``,
    including the one at which the sum reaches it, but no more than fit in d. The first block and its own come first and
    count. A row has both even if d is smaller. Source: Xu et al. 2025, section 2. The authors search a mass for each
    head. Their ``keep_sink`` selects the first row of blocks; the paper and this method select the first column.

    If the last cell has fewer than s tokens, its last key is repeated, and its weight is that of its own keys. The
    authors fill it with zeros.

    The estimate of a block row uses all of its queries, so the selection of a row looks ahead within its block. No key
    after a row has weight. Of queries at one position the first is used; with more queries than keys, surplus queries
    are at the last key.

    Options:
        stride: s, the side of a cell, a divisor of ``block``.
        block: the number of tokens of a block of queries, and of a block of keys.
        mass: the estimated mass of the selected blocks. With 1 all blocks that fit in d are selected.

    Shapes: index (h, ⌈n_q/block⌉, u), weights (h, n_q, u), u ≤ d + 2 block; output (h, n_q, p_v). Deterministic; cost
    ``n² p/s`` for the estimate and ``n d (p + p_v)``, memory O(n d). ``scored`` is one inner product of p numbers for
    each query and cell of keys that it sees.

    Raises:
        Unsupported: d above 2 n_k. UsageError: an option out of its range.
    """
    inputs = observed(qkv)
    estimate = _block_mass(inputs, stride, block)  # (h, block rows, blocks)
    row, column = (torch.arange(size, device=qkv.device) for size in estimate.shape[1:])
    forced = ((column == 0) | (column == row[:, None])).expand_as(estimate)
    order = largest_scores(estimate.masked_fill(forced, 2.0), max(2, d // block))[1]
    held = estimate.gather(2, order)
    missing = mass - (held.cumsum(-1) - held)  # before the block is taken
    selected = (missing > 0) | forced.gather(2, order) | (mass == 1)
    if qkv.causal:
        selected &= order <= row[:, None]
    index, group = of_block_rows(qkv, order.masked_fill(~selected, -1), block)
    return attend(qkv, Selection(index, group, pages_seen(inputs, stride, inputs.query_positions)))


@full_precision()
def _block_mass(qkv: QKV, stride: int, block: int) -> Tensor:
    """The estimated mass of each block of keys in each block of queries, (h, block rows, blocks)."""
    cells = -(-qkv.n_k // stride)
    size = torch.bincount(torch.arange(qkv.n_k, device=qkv.device) // stride)  # keys of a cell
    keys = torch.cat([qkv.k, qkv.k[:, -1:].expand(-1, cells * stride - qkv.n_k, -1)], 1).unflatten(1, (cells, stride))
    token, of_query = qkv.query_positions.unique(return_inverse=True)
    query = torch.arange(qkv.n_q, device=qkv.device)
    of_token = query.new_full((len(token),), qkv.n_q).scatter_reduce_(0, of_query, query, "amin")  # its first query
    queries = qkv.q.new_zeros(qkv.h, cells * stride, qkv.p).index_copy(1, token, qkv.q[:, of_token])
    # Reversed within a cell, so that one product of flattened cells sums along antidiagonals.
    queries = queries.unflatten(1, (cells, stride)).flip(2)
    present = torch.bincount(token // stride, minlength=cells)
    total = qkv.q.new_zeros(qkv.h, cells * stride // block + 1, -(-qkv.n_k // block))
    cell = torch.arange(cells, device=qkv.device)
    first, last = int(token[0]) // stride, int(token[-1]) // stride + 1
    for start, stop in row_blocks(last - first, block_rows(qkv.q, qkv.h * cells, cpu=ROWS)):
        start, stop = start + first, stop + first
        scores = queries[:, start:stop].flatten(2) @ keys.flatten(2).mT
        logits = qkv.scale * scores / present[start:stop, None].clamp(min=1) + (size / stride).log()
        if qkv.causal:
            logits = logits.masked_fill(cell > cell[start:stop, None], float("-inf"))
        weights = logits.softmax(-1) * (present[start:stop, None] > 0)
        of_block = weights.new_zeros(qkv.h, stop - start, total.shape[2])
        with ordered_sums(qkv.device):
            of_block.index_add_(2, cell * stride // block, weights)
            total.index_add_(1, cell[start:stop] * stride // block, of_block)
    rows = torch.bincount(cell[present > 0] * stride // block, minlength=total.shape[1])
    return (total / rows[:, None].clamp(min=1))[:, : int(token.max()) // block + 1]
