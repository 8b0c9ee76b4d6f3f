"""Rank collapse (Dong, Cordonnier & Loukas 2021): how much nearer to rank one an attention layer takes the values.

``res(X) = X - 1xᵀ`` with the x that makes it smallest, ``‖X‖_{1,∞} = √(‖X‖₁ ‖X‖_∞)`` of the largest absolute column sum
and the largest absolute row sum. E are the scores but for what is common to a row or, by q̄, to a column: ``S = scale ·
(Q - 1q̄ᵀ) Kᵀ + 1 (scale K q̄)ᵀ``, q̄ the mean query; D_i is the range of row i of the first term, r the second, ``q =
softmax(r)``.

The paper's layer has inputs X and weights W; given are Q, K and V of one head, whatever made them. What is left of its
proof then needs no X: with ``B = softmax(E + 1rᵀ)`` and every ``D_i ≤ 1.256``,

    ``|B_ij - q_j| ≤ 2 D_i q_j``, hence ``|res(BV)| ≤ |(B - 1qᵀ) res(V)| ≤ 2 D_i qᵀ|res(V)|`` entry by entry, and
    ``‖res(BV)‖_{1,∞} ≤ 2 γ max_i D_i ‖res(V)‖_{1,∞}`` with ``γ = √(Σ_i D_i / max_i D_i · max_j q_j)``.

Its cubic rate is this with ``D_i ≤ 2 max|E| ≤ 2 ‖W_QK‖₁ ‖res(X)‖²_{1,∞} / √p``, which says how D shrinks from layer to
layer in a network of attention alone. No skip connection, no MLP and no output projection is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..operators import block_rows, row_blocks
from ..qkv import QKV
from ..reference import exact_output
from .finding import Finding
from .registry import Setting, theorem

__all__ = ["LARGEST_RANGE", "composite_norm", "dong2021_contraction", "residual"]

LARGEST_RANGE = 1.256  # e^x ≤ 1 + 2x up to here
ROWS = 256  # of B alive at once


def composite_norm(x: Tensor) -> Tensor:
    """``‖X‖_{1,∞} = √(‖X‖₁ ‖X‖_∞)`` of the last two dimensions; no norm, since it breaks the triangle inequality.

    Source: Dong et al. 2021, section 2.

    >>> composite_norm(torch.tensor([[1.0, -1.0], [3.0, 1.0]]))
    tensor(4.)
    """
    size = x.abs()
    return (size.sum(-2).amax(-1) * size.sum(-1).amax(-1)).sqrt()


def residual(x: Tensor) -> Tensor:
    """``res(X) = X - 1xᵀ`` of (…, n, c), with the best of three x: the columns' means, medians and midranges.

    Medians make ``‖·‖₁`` smallest, midranges the largest entry; the least ``‖·‖_{1,∞}`` of all x has no formula, and
    the best of these is above it.
    """
    middles = torch.stack([x.mean(-2), x.median(-2).values, (x.amax(-2) + x.amin(-2)) / 2])
    centred = x - middles[..., None, :]  # (3, …, n, c)
    best = composite_norm(centred).argmin(0)
    return torch.take_along_dim(centred, best[None, ..., None, None], 0)[0]


def dong2021_contraction(ranges: Tensor, base: Tensor) -> Tensor:
    """``2 γ max_i D_i`` with ``γ = √(Σ_i D_i / max_i D_i · max_j q_j)``: a bound of ``‖res(BV)‖ / ‖res(V)‖``, (h,).

    For ``D_i ≤ 1.256``. Source: Dong et al. 2021, the step of Theorem 2.2's proof that is about one layer, for given Q,
    K, V; its ``4 γ β / √p ‖res(X)‖³`` puts ``2 β ‖res(X)‖² / √p`` for D and ``‖res(X)‖`` for ``‖res(V)‖``.

    Args:
        ranges: D, (h, n_q). base: ``q = softmax(r)``, (h, n_k).

    >>> even = torch.full((1, 4), 0.25, dtype=torch.float64)
    >>> float(dong2021_contraction(even, even))
    0.5
    """
    return 2 * (ranges.sum(-1) * ranges.amax(-1) * base.amax(-1)).sqrt()


@theorem(
    "rank-collapse",
    paper="Dong, Cordonnier & Loukas 2021, Theorem 2.2, one layer",
    says="where scores vary little, attention shrinks the residual of V: ‖res(BV)‖ ≤ 2γ max D ‖res(V)‖",
    cost="n² p",
)
def rank_collapse(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """``‖res(BV)‖_{1,∞} / ‖res(V)‖_{1,∞}`` of each head against its bound.

    ``res(BV)`` is the least of `residual` and of the x of the proof, ``V's + res(V)ᵀ q``. The bound is vacuous where it
    is at least ``√‖B‖₁``, which holds for every stochastic B. ``frobenius`` is the same quotient in the Frobenius norm,
    ``relative`` is ``‖res(BV)‖ / ‖BV‖`` and ``values`` is ``‖res(V)‖ / ‖V‖``, both in ``‖·‖_{1,∞}``; ``paper`` is the
    bound with ``2 max|E|`` for D.
    """
    heads = [_scores(qkv, row) for row in range(qkv.h)]
    ranges, base, largest, columns = (torch.stack(parts) for parts in zip(*heads, strict=True))
    v, out = qkv.v.double(), exact_output(qkv)
    rest, left = residual(v), residual(out)
    proof = out - (v - rest)[:, :1] - base[:, None, :] @ rest
    size, after = composite_norm(rest), torch.minimum(composite_norm(left), composite_norm(proof))
    unit = torch.where(size > 0, size, torch.ones_like(size))  # values that are all equal stay so
    bound = dong2021_contraction(ranges, base)
    gamma = bound / (2 * ranges.amax(1))
    centred = lambda x: torch.linalg.matrix_norm(x - x.mean(1, keepdim=True))
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
        promise="‖res(BV)‖ ≤ 2γ max D ‖res(V)‖",
        **fields,
        details={name: value.cpu() for name, value in details.items()},
    )


def _scores(qkv: QKV, row: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """D (n_q,), q (n_k,), max|E| and ``‖B‖₁`` of one head; E with the mean key taken out, which B does not see."""
    q, k = qkv.q[row].double(), qkv.k[row].double()
    mean, keys = q.mean(0), k - k.mean(0)
    ranges, columns, largest = [], k.new_zeros(len(k)), k.new_zeros(())
    common = qkv.scale * keys @ mean  # r but for a constant, (n_k,)
    for start, stop in row_blocks(len(q), block_rows(q, len(k), ROWS)):
        e = qkv.scale * (q[start:stop] - mean) @ keys.T
        ranges.append(e.amax(1) - e.amin(1))
        largest = torch.maximum(largest, e.abs().max())
        columns += torch.softmax(e + common, -1).sum(0)
    return torch.cat(ranges), torch.softmax(common, -1), largest, columns.max()
