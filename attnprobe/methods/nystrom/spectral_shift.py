"""The prototype model and spectral shifting (Wang et al. 2014): the two dense yardsticks of the Nyström family.

C is d columns of the approximated matrix and R d rows of it; U is the small middle matrix. K is the symmetric kernel
``C̄`` over X = [Q; K] and N = n_q + n_k its size. C~ is d columns of the shifted kernel ``K~ = K - d̄ I``, δ the shift.
Our ``d`` is the papers' ``c``. Here C is the papers' letter, not Gaussian attention.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...operators import GaussianAttention, LowRank
from ...operators.linalg.inverses import shifted, span
from ...qkv import QKV
from ...reference import exact
from ...rng import Streams
from ..base import Approximation, per_head
from ..registry import TOKENS, register


@register(
    name="prototype",
    paper="Wang & Zhang, Improving CUR matrix decomposition and the Nyström approximation",
    year=2013,
    family="Nyström",
    targets=("softmax", "gaussian"),
    tags=("permutation_equivariant", "shift_invariant@softmax", "exact_at_full_budget@softmax", "diagnostic"),
    budget="d columns and d rows of B; d columns of the lifted C̄ for gaussian",
    cost="O(n² p + n² d)",
    oracle="no U fits better: the residual is orthogonal to C and R",
    limit=lambda n_q, n_k: min(n_q, n_k),
    max_n=2048,
    exact_at=lambda n: (n, {}),
)
def prototype(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax") -> Approximation:
    """``B~ = C (C⁺ B R⁺) R`` for softmax; the off-diagonal block of ``C U Cᵀ``, ``U = C⁺ C̄ (C⁺)ᵀ``, for gaussian.

    The middle matrix U minimises ``‖B - C U R‖_F`` for the sampled columns and rows. It needs all entries of the
    matrix, so this is a yardstick: a Nyström method whose only error comes from the choice of columns. B is not
    symmetric, so it needs rows R besides the columns (CUR). The lifted kernel C̄ over [Q; K] is symmetric and positive
    semidefinite and needs columns only. B~ is then the block of ``C U Cᵀ`` with queries as rows and keys as columns; U
    is the best for C̄, not for that block. Source: Wang & Zhang 2013.

    Both are computed with orthonormal bases: ``B~ = H (Hᵀ B T) Tᵀ`` with H a basis of the columns of C and T of the
    rows of R. This is the same matrix without the two pseudo-inverses. Columns are scaled to norm 1 first, which does
    not change their span.

    Shapes: H (h, n_q, d), the middle (h, d, d), Tᵀ (h, d, n_k), all in float64. Draws: ``order`` (h, n_q + n_k), a
    random order of [Q; K]. softmax takes its first d queries and first d keys, gaussian its first d tokens. They are
    uniform without replacement, and a larger budget contains those of a smaller one. Dense: n ≤ 2048.

    Raises:
        Unsupported: n above 2048, or d above n.
    """
    n_q = qkv.n_q
    orders, left, middle, right = [], [], [], []
    for head in qkv.heads:
        order = torch.randperm(n_q + qkv.n_k, generator=streams.head(head, "order"), device="cpu")
        alone = qkv.select([head]).to(dtype=torch.float64)
        if target == "softmax":
            matrix = exact(alone).dense()[0]  # (n_q, n_k)
            rows, columns = (part[:d].to(qkv.device) for part in (order[order < n_q], order[order >= n_q] - n_q))
            h, t = span(_unit(matrix[:, columns])), span(_unit(matrix[rows].T))
            parts = h, h.T @ matrix @ t, t.T
        else:
            matrix = lifted(alone)
            # Norms of columns differ by orders of magnitude, and would decide the rank that rounding leaves.
            h = span(_unit(matrix[:, order[:d].to(qkv.device)]))
            parts = h[:n_q], h.T @ matrix @ h, h[n_q:].T
        for factors, part in zip((left, middle, right), parts, strict=True):
            factors.append(part)
        orders.append(order)
    visited = n_q * qkv.n_k if target == "softmax" else (n_q + qkv.n_k) ** 2
    operator = LowRank(torch.stack(left), torch.stack(middle), torch.stack(right))
    diagnostics = {"realised_d": per_head(qkv.h, d), "visited": per_head(qkv.h, visited)}
    return Approximation.of(operator, qkv, draws={"order": torch.stack(orders)}, diagnostics=diagnostics)


@register(
    name="spectral-shift",
    paper="Wang et al., Improving the modified Nyström method using spectral shifting",
    year=2014,
    family="Nyström",
    targets=("gaussian",),
    tags=("permutation_equivariant", "exact_at_full_budget", "diagnostic"),
    budget="d columns of the lifted C̄",
    cost="O(n³)",
    oracle="exact on θI + rank d; no (U, δ) fits better: tr E = 0 and C~ᵀ E C~ = 0",
    **TOKENS,
    max_n=1024,
    exact_at=lambda n: (2 * n, {}),
)
def spectral_shift(
    qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", shift: Literal["two-stage", "none"] = "two-stage"
) -> Approximation:
    """The off-diagonal block of ``C~ U C~ᵀ + δ I ≈ C̄``: C~ is d columns of ``C̄ - d̄ I``, and U and δ are fitted.

    There are two stages. With K = C̄ and N = n_q + n_k, the first computes ``d̄ = (tr K - Σ of the d largest
    eigenvalues) / (N - d)`` and takes d sampled columns C~ of ``K - d̄ I``. The second computes

        ``δ = [tr K - tr(C~⁺ K C~)] / [N - rank C~]``,   ``U = C~⁺ K (C~⁺)ᵀ - δ (C~ᵀ C~)⁺``,

    the best U and δ for this C~ in the Frobenius norm. It is exact for ``K = θ I + (a positive semidefinite matrix of
    rank ≤ d)`` if the sampled columns span the low-rank part. Source: Wang et al. 2014; Verma 2021, equation 2.

    The method needs a symmetric positive semidefinite matrix. Attention is not one, so the method approximates the
    lifted C̄ over [Q; K], whose block with queries as rows and keys as columns is kernelized attention. ``δ I`` lies on
    the diagonal of C̄, outside that block: the block differs from that of ``prototype`` by U and, through d̄, by the
    columns. U and δ are the best for C̄, not for the block. Softmax attention is refused: ``(B + Bᵀ)/2`` is another
    matrix, and not semidefinite.

    Options:
        shift: ``two-stage`` as above; ``none`` takes C~ from K itself (d̄ = 0) and fits U and δ in the same way. For C̄
            it is never worse than the prototype model with the same columns, but not exact on ``θ I + (rank ≤ d)``.

    It is computed with an orthonormal basis H of C~, which gives the same matrix: ``C~ U C~ᵀ = H (Hᵀ K H - δ I) Hᵀ``.

    Shapes: H (h, N, d), the middle (h, d, d), all in float64. Draws: ``indices`` (h, d), uniform over [Q; K] without
    replacement. A diagnostic: it computes C̄ densely with its eigenvalues; n ≤ 1024.

    ``delta`` is the δ of each head.

    Raises:
        Unsupported: the target softmax; n above 1024; d above n_q + n_k.
    """
    n_q, total = qkv.n_q, qkv.n_q + qkv.n_k
    drawn, left, middle, right, deltas = [], [], [], [], []
    for head in qkv.heads:
        drawn.append(torch.randperm(total, generator=streams.head(head, "indices"), device="cpu")[:d])
        kernel = lifted(qkv.select([head]).to(dtype=torch.float64))
        h, core, delta = shifted(kernel, drawn[-1].to(qkv.device), two_stage=shift == "two-stage")
        left.append(h[:n_q])
        middle.append(core)
        right.append(h[n_q:].T)
        deltas.append(delta)
    operator = LowRank(torch.stack(left), torch.stack(middle), torch.stack(right))
    diagnostics = {"realised_d": per_head(qkv.h, d), "visited": per_head(qkv.h, total**2), "delta": torch.stack(deltas)}
    return Approximation.of(operator, qkv, draws={"indices": torch.stack(drawn)}, diagnostics=diagnostics)


def lifted(qkv: QKV) -> Tensor:
    """The Gaussian kernel over [Q; K] of one head, (n_q + n_k, n_q + n_k)."""
    x = torch.cat([qkv.q, qkv.k], 1)
    return GaussianAttention(x, x, qkv.scale).dense()[0]


def _unit(columns: Tensor) -> Tensor:
    """The columns divided by their norms. A column of zeros stays zero."""
    norms = columns.norm(dim=0)
    return columns / torch.where(norms > 0, norms, torch.ones_like(norms))
