"""Subsets of rows that represent all rows: randomly pivoted Cholesky and kernel halving. All in float64."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

SQUARED_TEMPERATURE = 3.94582  # τ² of the kernel exp(β x·y/τ²) of keys as long as the queries, of WildCat's authors


def randomly_pivoted(x: Tensor, uniform: Tensor) -> Tensor:
    """Rows of ``x`` (h, N, p) drawn by randomly pivoted Cholesky of ``H_ij = exp(x_i·x_j)``, (h, d) int64.

    Each of the d steps draws row i with probability proportional to the diagonal of the residual, ``H_ii - H_iS H_SS⁻¹
    H_Si`` for the rows S drawn before. If the residual is zero, the next rows are drawn uniformly from those that are
    not drawn yet.

    ``H = D G D`` with the Gaussian kernel G and ``D = diag(exp(‖x_i‖²/2))``. Only G is factored; its diagonal is 1.
    Residuals of G below N eps are rounding and count as 0. Source: Chen, Epperly, Tropp & Webber 2025.

    Args:
        uniform: (h, d) numbers from [0, 1), one for each step, which choose by inversion.

    Cost ``N d (d/2 + p)`` multiply-adds; memory ``N d`` numbers.

    >>> randomly_pivoted(torch.tensor([[[9.0], [0.0], [1.0]]]).double(), torch.tensor([[0.5, 0.5, 0.5]]).double())
    tensor([[0, 2, 1]])
    """
    h, total, _ = x.shape
    half = x.square().sum(-1) / 2  # (h, N)
    tilt = (2 * (half - half.amax(-1, keepdim=True))).exp()  # H_ii, up to a factor
    residual, left = torch.ones_like(half), torch.ones_like(half)  # the diagonal for G; which rows are left
    factor = x.new_zeros(h, total, uniform.shape[1])
    drawn = []
    for step in range(uniform.shape[1]):
        weights = residual * tilt
        weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, left)
        sums = weights.cumsum(-1)
        row = torch.searchsorted(sums, uniform[:, step, None] * sums[:, -1:], right=True).clamp(max=total - 1)
        drawn.append(row)
        of_row = row[..., None].expand(-1, 1, x.shape[2])
        product = (x.gather(1, of_row) @ x.mT)[:, 0]  # (h, N)
        column = (product - half - half.gather(1, row)).exp()
        known = factor[..., :step]
        own = known.gather(1, row[..., None].expand(-1, 1, step))  # (h, 1, step)
        column = column - (known @ own.mT)[..., 0]
        pivot = residual.gather(1, row)
        column = torch.where(pivot > 0, column / pivot.clamp(min=torch.finfo(x.dtype).tiny).sqrt(), 0.0)
        factor[..., step] = column
        residual = residual - column.square()
        residual = residual.masked_fill(residual < total * torch.finfo(x.dtype).eps, 0.0).scatter(1, row, 0.0)
        left = left.scatter(1, row, 0.0)
    return torch.cat(drawn, 1)


def halved(kernel: Tensor, uniform: Tensor, coin: Tensor, delta: float) -> Tensor:
    """Half of the rows of each kernel matrix K (…, S, S), one of each pair ``2i, 2i + 1``; (…, S/2) int64.

    Kernel halving keeps the sum ``ψ = Σ_i ±(K(x_2i, ·) - K(x_2i+1, ·))`` small; the sign is + if 2i is taken. A pair
    counteracts the sum of the pairs before it: ``2i + 1`` is taken with probability ``½ (1 + α_i/a_i)``, cut off at 0
    and 1, for ``α_i = ⟨ψ, f_i⟩``, ``f_i = K(x_2i, ·) - K(x_2i+1, ·)`` and ``a_i = ‖f_i‖ max_{l ≤ i} ‖f_l‖ (½ + ln(2
    S/δ))``. Then ψ is sub-Gaussian with probability 1 - δ/2. Source: Dwivedi & Mackey 2024; Carrell et al. 2025.

    Args:
        uniform: (…, S/2) numbers from [0, 1), one for each pair.
        coin: (…,) numbers from [0, 1), one for each matrix. Below ½ all pairs are exchanged at the end, so that each
            row is taken with probability ½.

    Cost O(S²) for each matrix.
    """
    size = kernel.shape[-1]
    differences = kernel[..., ::2] - kernel[..., 1::2]
    differences = differences[..., ::2, :] - differences[..., 1::2, :]  # ⟨f_i, f_l⟩, (…, S/2, S/2)
    norms = differences.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    bound = norms * norms.cummax(-1).values * (0.5 + log(2 * size / delta))  # a_i
    threshold = (2 * uniform - 1) * bound
    turned = [torch.zeros_like(coin, dtype=torch.bool)]  # the first pair has no sum before it
    sums = differences[..., 0, :]  # ⟨ψ, f_l⟩ for all l
    for pair in range(1, size // 2):
        turn = threshold[..., pair] <= sums[..., pair]
        turned.append(turn)
        sums = sums + torch.where(turn, -1.0, 1.0)[..., None] * differences[..., pair, :]
    second = torch.stack(turned, -1) ^ (coin < 0.5)[..., None]
    return torch.arange(0, size, 2, device=kernel.device) + second.long()
