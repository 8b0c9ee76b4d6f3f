"""The small tools that methods share."""

from __future__ import annotations

import torch
from torch import Tensor

from ..approximation import Approximation
from ..operators import LowRank, Sparse, row_blocks

__all__ = [
    "Approximation", "band", "distinct", "from_log_features", "per_head", "ragged", "segment_means",
    "sparse_softmax", "tokens",
]  # fmt: skip

GATHERED_ENTRIES = 2**22  # numbers of K gathered at once


def from_log_features(log_q: Tensor, log_k: Tensor) -> tuple[LowRank, Tensor]:
    """``B~ = D~⁻¹ φ(Q) φ(K)ᵀ`` of positive features given by their logarithms; and its ``bad_rows``, (h,).

    With ``t_f = log Σ_j φ_f(k_j)`` the normaliser is ``D~_i = Σ_f φ_f(q_i) exp(t_f)``, so ``B~ = L R`` with ``L =
    softmax_f(log φ_f(q_i) + t_f)`` and ``R = softmax_j(log φ_f(k_j))``: two matrices whose rows sum to 1, without a
    division, and nothing overflows or vanishes. A factor of one query's features, or of all keys', cancels.

    Args:
        log_q: (h, n_q, f). log_k: (h, n_k, f). -inf is a feature that is 0.

    A query whose features are all 0, or 0 wherever a key has one, has no row: it is NaN and counted.

    >>> operator, bad = from_log_features(torch.zeros(1, 2, 3), torch.zeros(1, 4, 3))
    >>> operator.dense()[0, 0], bad
    (tensor([0.2500, 0.2500, 0.2500, 0.2500]), tensor([0]))
    """
    total = log_k.logsumexp(1, keepdim=True)  # (h, 1, f)
    left = torch.softmax(log_q + total, -1)  # (h, n_q, f)
    right = torch.softmax(log_k, 1)
    right = torch.where(total == float("-inf"), torch.zeros_like(right), right).mT  # (h, f, n_k)
    return LowRank(left, None, right), (~torch.isfinite(left.sum(-1))).sum(-1)


def distinct(draws: Tensor) -> Tensor:
    """How many different numbers each row of ``draws`` (h, d) holds, (h,) float64 on the CPU."""
    counts = [float(len(row.unique())) for row in draws]
    return torch.tensor(counts, dtype=torch.float64, device="cpu")


def tokens(x: Tensor, index: Tensor) -> Tensor:
    """The rows ``index`` (h, u) of ``x`` (h, n, p), (h, u, p); an empty slot, -1, takes row 0."""
    return torch.gather(x, 1, index.clamp(min=0)[..., None].expand(-1, -1, x.shape[2]))


def per_head(h: int, value: float) -> Tensor:
    """The same number for each head, (h,) float64 on the CPU."""
    return torch.full((h,), float(value), dtype=torch.float64, device="cpu")


def segment_means(x: Tensor, count: int) -> Tensor:
    """Means of ``count`` consecutive segments of the tokens of ``x`` (h, n, p); (h, count, p).

    Where ``count`` does not divide ``n``, the first ``n mod count`` segments are one token longer.

    >>> segment_means(torch.arange(5.0)[None, :, None], 2)[0, :, 0].tolist()
    [1.0, 3.5]
    """
    n = x.shape[1]
    short, longer = divmod(n, count)
    sizes = torch.full((count,), short, dtype=torch.int64, device="cpu")
    sizes[:longer] += 1
    segment = torch.arange(count, device="cpu").repeat_interleave(sizes).to(x.device)
    sums = x.new_zeros(x.shape[0], count, x.shape[2]).index_add(1, segment, x)
    return sums / sizes.to(x)[:, None]


def ragged(mask: Tensor) -> Tensor:
    """Where a bool ``mask`` (h, n) is true, per head, as (h, u) int64; slots that a head does not need are -1.

    >>> ragged(torch.tensor([[True, False, True], [False, True, False]]))
    tensor([[ 0,  2],
            [ 1, -1]])
    """
    counts = mask.sum(1)
    width = max(1, int(counts.max()))
    order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)[:, :width]
    return torch.where(torch.arange(width, device=mask.device) < counts[:, None], order, torch.full_like(order, -1))


def band(n_q: int, n_k: int, left: int, right: int, first: int = 0) -> Tensor:
    """The columns ``max(first, c - left) … min(n_k - 1, c + right)`` of each row, (n_q, u) int64 on the CPU.

    The centre c of row i is i, and the last key where there are more queries than keys. Slots that a row does not need
    are -1; u is at most ``n_k - first``, however wide the band.

    >>> band(4, 4, 1, 1, first=1)
    tensor([[ 1, -1, -1],
            [ 1,  2, -1],
            [ 1,  2,  3],
            [ 2,  3, -1]])
    """
    centre = torch.arange(n_q, device="cpu").clamp(max=n_k - 1)
    start, last = (centre - left).clamp(min=first), (centre + right).clamp(max=n_k - 1)
    width = max(0, min(left + right + 1, n_k - first))
    columns = start[:, None] + torch.arange(width, device="cpu")  # (n_q, u)
    return torch.where(columns <= last[:, None], columns, torch.full_like(columns, -1))


def sparse_softmax(q: Tensor, k: Tensor, scale: float, index: Tensor) -> Sparse:
    """The softmax of each row over the columns ``index`` alone, as a sparse operator (h, n_q, n_k).

    ``B~_ij = exp(S_ij - max) / Σ_{j' in row i} exp(S_ij' - max)`` for the columns j of row i, 0 elsewhere. The shift by
    the row's own maximum cancels. A row without a column is zero.

    Args:
        q, k: (h, n_q, p) and (h, n_k, p). index: (h, n_q, u) int64, each column at most once a row; -1 is an empty
            slot. Costs ``n_q u p``; keys are gathered for a block of rows of one head at a time.
    """
    index = index.to(q.device)
    weights = q.new_empty(index.shape)  # (h, n_q, u)
    size = max(1, GATHERED_ENTRIES // (index.shape[2] * k.shape[2]))
    for head in range(q.shape[0]):
        for start, stop in row_blocks(q.shape[1], size):
            columns = index[head, start:stop]  # (b, u)
            keys = k[head][columns.clamp(min=0)]  # (b, u, p)
            scores = (keys @ (scale * q[head, start:stop, :, None]))[..., 0]
            weights[head, start:stop] = torch.softmax(scores.masked_fill(columns < 0, float("-inf")), -1)
    return Sparse(index, weights, k.shape[1])  # which zeroes the weights of empty slots, those of empty rows included
