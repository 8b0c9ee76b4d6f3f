"""Rank collapse (Dong, Cordonnier & Loukas 2021): how far one attention layer moves the values towards rank one.

``res(X) = X - 1xᵀ`` with the x that minimises it. ``‖X‖_{1,∞} = √(‖X‖₁ ‖X‖_∞)`` combines the largest absolute column
sum and the largest absolute row sum. With the mean query q̄, the scores are ``S = E + 1rᵀ`` with ``E = scale · (Q -
1q̄ᵀ) Kᵀ`` and ``r = scale · K q̄``. D_i is the range of row i of E, and ``q = softmax(r)``.

The paper's layer has inputs X and weights W. Here Q, K and V of one head are given. The part of the proof about one
layer needs no X: with ``B = softmax(E + 1rᵀ)`` and every ``D_i ≤ 1.256``,

    ``|B_ij - q_j| ≤ 2 D_i q_j``, hence ``|res(BV)| ≤ |(B - 1qᵀ) res(V)| ≤ 2 D_i qᵀ|res(V)|`` entry by entry, and
    ``‖res(BV)‖_{1,∞} ≤ 2 γ max_i D_i ‖res(V)‖_{1,∞}`` with ``γ = √(Σ_i D_i / max_i D_i · max_j q_j)``.

The paper's cubic rate follows with ``D_i ≤ 2 max|E| ≤ 2 ‖W_QK‖₁ ‖res(X)‖²_{1,∞} / √p``, which describes how D shrinks
from layer to layer in a network of pure attention, without skip connections, MLPs and output projections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..operators.blocks import block_rows, row_blocks
from ..operators.linalg.order import median
from ..qkv import QKV
from ..reference import exact_output
from .finding import Finding, Setting, theorem

LARGEST_RANGE = 1.256  # e^x ≤ 1 + 2x up to here
ROWS = 256  # rows of B in memory at a time


def composite_norm(x: Tensor) -> Tensor:
    """``‖X‖_{1,∞} = √(‖X‖₁ ‖X‖_∞)`` of X (…, n, c), (…). It is not a norm: the triangle inequality fails.

    Source: Dong et al. 2021, section 2.

    >>> composite_norm(torch.tensor([[1.0, -1.0], [3.0, 1.0]]))
    tensor(4.)
    """
    size = x.abs()
    return (size.sum(-2).amax(-1) * size.sum(-1).amax(-1)).sqrt()


def residual(x: Tensor) -> Tensor:
    """``res(X) = X - 1xᵀ`` of X (…, n, c), (…, n, c), with the best of three x: means, medians or midranges of columns.

    Medians minimise ``‖·‖₁``, midranges the largest entry. The least ``‖·‖_{1,∞}`` over all x has no formula; the best
    of these three is an upper bound of it.
    """
    middles = torch.stack([x.mean(-2), median(x, -2), (x.amax(-2) + x.amin(-2)) / 2])
    centred = x - middles[..., None, :]  # (3, …, n, c)
    best = composite_norm(centred).argmin(0)
    return torch.take_along_dim(centred, best[None, ..., None, None], 0)[0]


def dong2021_contraction(ranges: Tensor, base: Tensor) -> Tensor:
    """``2 γ max_i D_i`` with ``γ = √(Σ_i D_i / max_i D_i · max_j q_j)``: a bound of ``‖res(BV)‖ / ‖res(V)‖``, (h,).

    For ``D_i ≤ 1.256``. Source: Dong et al. 2021, the step for one layer in the proof of Theorem 2.2, for given Q, K,
    V. Its ``4 γ β / √p ‖res(X)‖³`` has ``2 β ‖res(X)‖² / √p`` for D and ``‖res(X)‖`` for ``‖res(V)‖``.

    Args:
        ranges: D, (h, n_q). base: ``q = softmax(r)``, (h, n_k).

    >>> even = torch.full((1, 4), 0.25, dtype=torch.float64)
    >>> float(dong2021_contraction(even, even))
    0.5
    """
    return 2 * (ranges.sum(-1) * ranges.amax(-1) * base.amax(-1)).sqrt()


@theorem(
    "rank-collapse",
    paper="Dong, Cordonnier & Loukas 2021 (rank collapse), Theorem 2.2, one layer",
    says="where scores vary little, attention shrinks the residual of V: ‖res(BV)‖ ≤ 2γ max D ‖res(V)‖",
    cost="n² p",
)
def rank_collapse(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """``‖res(BV)‖_{1,∞} / ‖res(V)‖_{1,∞}`` of each head against its bound.

    ``res(BV)`` is the lesser of `residual` and of the residual with the x of the proof, which is the x of V plus
    ``res(V)ᵀ q``. The bound is vacuous if it is at least ``√‖B‖₁``, a bound for every stochastic B. ``frobenius`` is
    the same quotient in the Frobenius norm. ``relative`` is ``‖res(BV)‖ / ‖BV‖`` and ``values`` is ``‖res(V)‖ / ‖V‖``,
    both in ``‖·‖_{1,∞}``. ``paper`` is the bound with ``2 max|E|`` for D.
    """
    heads = [_scores(qkv, row) for row in range(qkv.h)]
    ranges, base, largest, columns = (torch.stack(parts) for parts in zip(*heads, strict=True))
    v, out = qkv.v.double(), exact_output(qkv)
    rest, left = residual(v), residual(out)
    # v - rest is the same row 1xᵀ everywhere, so its first row is x
    proof = out - (v - rest)[:, :1] - base[:, None, :] @ rest
    size, after = composite_norm(rest), torch.minimum(composite_norm(left), composite_norm(proof))
    unit = torch.where(size > 0, size, torch.ones_like(size))  # for equal values the residual is 0 before and after
    bound = dong2021_contraction(ranges, base)
    gamma = bound / (2 * ranges.amax(1))

    def centred(x: Tensor) -> Tensor:
        return torch.linalg.matrix_norm(x - x.mean(1, keepdim=True))

    numbers = {
        "met": ranges.amax(1) <= LARGEST_RANGE,
        "bound": bound,
        "measured": after / unit,
        "vacuous": bound >= columns.sqrt(),
        "rounding": 1e-13 * composite_norm(v) / unit,
    }
    details = {
        "range": ranges.amax(1),
        "gamma": gamma,
        "paper": 4 * gamma * largest,
        "columns": columns,
        "frobenius": centred(out) / centred(v),
        "relative": after / composite_norm(out),
        "values": size / composite_norm(v),
    }
    fields: dict[str, Any] = {name: value.cpu() for name, value in numbers.items()}
    yield Finding(
        "rank-collapse",
        assumption="max_i D_i ≤ 1.256",
        promise="‖res(BV)‖ / ‖res(V)‖ ≤ 2γ max D",
        **fields,
        details={name: value.cpu() for name, value in details.items()},
    )


def _scores(qkv: QKV, row: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """D (n_q,), q (n_k,), max|E| and ``‖B‖₁`` of one head. The mean key is subtracted, which does not change B."""
    q, k = qkv.q[row].double(), qkv.k[row].double()
    # a vector added to every key adds a constant to each row of S, and scores without it are smaller
    mean, keys = q.mean(0), k - k.mean(0)
    ranges, columns, largest = [], k.new_zeros(len(k)), k.new_zeros(())
    common = qkv.scale * keys @ mean  # r up to a constant, (n_k,)
    for start, stop in row_blocks(len(q), block_rows(q, len(k), ROWS)):
        e = qkv.scale * (q[start:stop] - mean) @ keys.T
        ranges.append(e.amax(1) - e.amin(1))
        largest = torch.maximum(largest, e.abs().max())
        columns += torch.softmax(e + common, -1).sum(0)
    return torch.cat(ranges), torch.softmax(common, -1), largest, columns.max()
