"""A block Krylov space of ``A = EᵀE`` for N matrices E (n, m): its start block, its basis V (N, m, K), ``T = VᵀAV``."""

from __future__ import annotations

import torch
from torch import Tensor

from ...rng import generator


def start_block(m: int, s: int, seed: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """``V₁`` (m, s) in ``dtype`` and R (s, s) float64 of the Gaussian start block ``Ω = V₁ R``.

    Ω is drawn from the stream ``certificate``. Cost ``m s²``.
    """
    omega = torch.randn(m, s, generator=generator(seed, "certificate", m, s), dtype=torch.float64, device="cpu")
    v, r = torch.linalg.qr(omega.to(device))
    return v.to(dtype), r


def grown(t: Tensor, column: Tensor) -> Tensor:
    """T (N, K - s, K - s) with its next block column ``VᵀA V_k`` (N, K, s): (N, K, K), symmetric."""
    old, k = t.shape[-1], column.shape[1]
    matrix = column.new_zeros(column.shape[0], k, k)
    matrix[:, :old, :old] = t
    matrix[:, :, old:] = column
    matrix[:, old:, :old] = column[:, :old].mT
    last = matrix[:, old:, old:]
    matrix[:, old:, old:] = (last + last.mT) / 2
    return matrix


def projected(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """``x - V Vᵀ x`` (N, m, s), projected twice, and ``Vᵀ x`` (N, K, s), for x (N, m, s) and V (N, m, K).

    Cost ``4 m K s`` multiply-adds for each matrix.
    """
    inside = v.mT @ x
    x = x - v @ inside
    return x - v @ (v.mT @ x), inside


def next_block(q: Tensor, b: Tensor, v: Tensor, scale: Tensor, noise: torch.Generator) -> Tensor:
    """The next block after V, (N, m, s), from ``d = Q B``, the part of ``A V_k`` outside V.

    If the space is exhausted, d is only rounding, and Q may have directions of V. Then d is perturbed at random by one
    rounding of A and projected outside V once more.

    Args:
        q, b: the QR factors of d, (N, m, s) and (N, s, s). v: V, (N, m, K).
        scale: the size of A, (N,). noise: the generator of the perturbation.
    """
    m, s = q.shape[1:]
    u = torch.finfo(q.dtype).eps / 2
    exhausted = b.diagonal(dim1=1, dim2=2).abs().amin(-1) <= 64 * u * scale
    if exhausted.any():
        extra = torch.randn(m, s, generator=noise, dtype=torch.float64, device="cpu").to(q)
        moved = torch.linalg.qr(q @ b.to(q) + u * scale[:, None, None].to(q) * extra / m**0.5).Q
        q = torch.where(exhausted[:, None, None], moved, q)
    for _ in range(2 if exhausted.any() else 1):
        q = torch.linalg.qr(q - v @ (v.mT @ q)).Q
    return q
