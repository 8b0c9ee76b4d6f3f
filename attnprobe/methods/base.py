"""Helpers that several families of methods share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor

from ..approximation import Approximation as Approximation
from ..approximation import Counted as Counted
from ..operators import CausalFeatures, LowRank, Mosaic, Operator, RowOverride, Rows, SoftmaxAttention, Windows
from ..operators.windowed import window_sums, windowed_features
from ..qkv import QKV


def from_log_features(log_q: Tensor, log_k: Tensor, qkv: QKV) -> tuple[Operator, Tensor]:
    """The operator ``B~ = D~⁻¹ φ(Q) φ(K)ᵀ`` from the logarithms of positive features, and its ``bad_rows`` (h,).

    With ``t_f = log Σ_j φ_f(k_j)`` the normaliser is ``D~_i = Σ_f φ_f(q_i) exp(t_f)``. So ``B~ = L R`` with ``L =
    softmax_f(log φ_f(q_i) + t_f)`` and ``R = softmax_j(log φ_f(k_j))``, two matrices whose rows sum to 1. There is no
    division, so nothing overflows or vanishes. A common factor of the features of one query, or of all keys, cancels.

    Args:
        log_q: (h, n_q, f). log_k: (h, n_k, f). -inf is the logarithm of a feature that is 0.
        qkv: the inputs, for the keys that each query sees. Causal rows are those of `CausalFeatures`, windowed rows
            those of `windowed_features`.

    If a query shares no feature with a key, its row is NaN and counts as bad. Cost of the operator ``(n_q + n_k) f``
    exponentials; a product with c columns costs ``(n_q + n_k) f c`` multiply-adds.

    >>> operator, bad = from_log_features(torch.zeros(1, 4, 3), torch.zeros(1, 4, 3), QKV(*torch.ones(3, 1, 4, 2)))
    >>> operator.dense()[0, 0], bad
    (tensor([0.2500, 0.2500, 0.2500, 0.2500]), tensor([0]))
    """
    if qkv.sliding_window is not None:
        operator, log_sums = _windowed(log_q, log_k, qkv)
        return operator, (~torch.isfinite(log_sums)).sum(-1)
    if qkv.causal:
        h, n_k, f = log_k.shape
        # Prefix sums in chunks need a row for each token, so queries are put at their positions, and read there again.
        own = log_q.new_zeros(h, n_k, f).index_copy(1, qkv.query_positions, log_q)  # tokens without a query: not used
        operator = CausalFeatures(own, log_k)
        lost = ~torch.isfinite(operator.left.sum(-1)).flatten(1)[:, qkv.query_positions]
        return operator if qkv.square else Rows(operator, qkv.query_positions), lost.sum(-1)
    total = log_k.logsumexp(1, keepdim=True)  # (h, 1, f)
    left = torch.softmax(log_q + total, -1)  # (h, n_q, f)
    right = torch.softmax(log_k, 1)
    absent = total == float("-inf")
    if right.device.type != "cpu" or absent.any():  # on a GPU the answer would have to be waited for
        right = right.masked_fill(absent, 0)
    return LowRank(left, None, right.mT), (~torch.isfinite(left.sum(-1))).sum(-1)


def log_feature_sums(log_q: Tensor, log_k: Tensor, qkv: QKV) -> Tensor:
    """``log Σ_f φ_f(q_i) Σ_j φ_f(k_j)``, (h, n_q): the normalisers of `from_log_features`, for its arguments."""
    if qkv.sliding_window is not None:
        return window_sums(log_q, log_k, _windows(qkv, qkv.query_positions)).logsumexp(-1)
    totals = log_k.logcumsumexp(1)[:, qkv.query_positions] if qkv.causal else log_k.logsumexp(1, keepdim=True)
    return (log_q + totals).logsumexp(-1)


def _windowed(log_q: Tensor, log_k: Tensor, qkv: QKV) -> tuple[Operator, Tensor]:
    """`windowed_features`, which take one query at each position, for queries that may share positions."""
    position = qkv.query_positions
    order, rank = position.argsort(stable=True), torch.arange(qkv.n_q, device=qkv.device)
    first = torch.searchsorted(position[order], position[order])
    turn = torch.empty_like(order).index_copy_(0, order, rank - first)  # the number of earlier queries there
    # Queries share a position where a decoded text is cut at several lengths; all others take this way.
    if not turn.any():
        return windowed_features(log_q, log_k, _windows(qkv, position))
    turns = [(turn == number).nonzero()[:, 0] for number in range(int(turn.max()) + 1)]
    made = [windowed_features(log_q[:, rows], log_k, _windows(qkv, position[rows])) for rows in turns]
    starts = accumulate(map(len, turns[:-1]), initial=0)
    shape = (len(log_q), qkv.n_q, qkv.n_k)
    joined = Mosaic([(operator, start, 0) for (operator, _), start in zip(made, starts, strict=True)], shape)
    back = torch.cat(turns).argsort()
    return Rows(joined, back), torch.cat([log_sums for _, log_sums in made], 1)[:, back]


def _windows(qkv: QKV, position: Tensor) -> Windows:
    """The sliding windows of queries at ``position`` as stretches of equal length, which may go beyond the text."""
    assert qkv.sliding_window is not None
    keys = qkv.in_text(torch.arange(qkv.n_k, device=qkv.device))
    reach = min(qkv.sliding_window, int(keys[-1]) + 1) - 1
    ahead = 0 if qkv.causal else reach
    sinks = int((keys < qkv.sinks).sum())
    return Windows(qkv.in_text(position) + ahead, reach + 1 + ahead, keys, sinks)


def distinct(draws: Tensor) -> Tensor:
    """The number of distinct values in each row of ``draws`` (h, d), as (h,) float64 on the CPU."""
    ordered = draws.cpu().sort(-1).values
    return 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(-1).double()


def per_head(h: int, value: float) -> Tensor:
    """``value`` for each head, as (h,) float64 on the CPU."""
    return torch.full((h,), float(value), dtype=torch.float64, device="cpu")


def row_sums(low_rank: LowRank) -> Tensor:
    """The row sums ``L (M (R 1))`` of a low-rank matrix, (h, n_q).

    The rows of R are summed: a product of R with a vector of ones takes ten times as long.
    """
    columns = low_rank.right.sum(-1, keepdim=True)  # (h, d, 1)
    for factor in reversed(low_rank.middle):
        columns = factor @ columns
    return (low_rank.left @ columns)[..., 0]


def with_exact_rows(
    qkv: QKV, operator: Operator, log_sums: Callable[[], Tensor], exact: Tensor
) -> tuple[Operator, Callable[[], Tensor], int]:
    """The operator and its normalisers with exact attention in some rows, and the number of entries of these rows.

    Args:
        log_sums: computes the normalisers of the operator, (h, n_q). exact: the rows, (n_q,) bool.
    """
    rows = exact.nonzero()[:, 0]
    if not len(rows):
        return operator, log_sums, 0
    of_rows = qkv.queries(rows)
    every = SoftmaxAttention(of_rows.q, of_rows.shared_k, of_rows.scale, of_rows.visible, of_rows.terms)
    replaced = RowOverride(operator, rows.expand(qkv.h, -1), every)
    return replaced, lambda: log_sums().index_copy(1, rows, every.log_normalizer()), of_rows.entries


def segment_means(x: Tensor, count: int) -> Tensor:
    """The means of ``count`` consecutive segments of the tokens of ``x`` (h, n, p), as (h, count, p) float64.

    If ``count`` does not divide ``n``, the first ``n mod count`` segments are one token longer.

    >>> segment_means(torch.arange(5.0)[None, :, None], 2)[0, :, 0].tolist()
    [1.0, 3.5]
    """
    short, longer = divmod(x.shape[1], count)
    cut = longer * (short + 1)
    parts = x[:, :cut].unflatten(1, (longer, short + 1)), x[:, cut:].unflatten(1, (count - longer, short))
    return torch.cat([part.mean(2, dtype=torch.float64) for part in parts], 1)


def softmax_in_place(scores: Tensor) -> Tensor:
    """The softmax of ``scores`` (…, n) over the last dimension, in their memory, because new memory is slower.

    If ``scores`` requires gradients, the result has new memory.
    """
    return torch.softmax(scores, -1, out=None if scores.requires_grad else scores)


def ragged(mask: Tensor) -> Tensor:
    """The indices at which a bool ``mask`` (h, n) is true, for each head, as (h, u) int64; -1 in unused slots.

    >>> ragged(torch.tensor([[True, False, True], [False, True, False]]))
    tensor([[ 0,  2],
            [ 1, -1]])
    """
    counts = mask.sum(1)
    width = max(1, int(counts.max()))
    order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)[:, :width]
    return torch.where(torch.arange(width, device=mask.device) < counts[:, None], order, torch.full_like(order, -1))
