"""The pieces of a block Krylov space of ``A = EᵀE``: its start, its basis V in blocks (N, m, s), and ``T = VᵀAV``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rng import generator

__all__ = ["grown", "next_block", "projected", "start_block"]


def start_block(m: int, s: int, seed: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """``V₁`` (m, s) and R (s, s) float64 of the Gaussian start block ``Ω = V₁ R``, from the stream ``certificate``."""
    omega = torch.randn(m, s, generator=generator(seed, "certificate", m, s), dtype=torch.float64, device="cpu")
    v, r = torch.linalg.qr(omega.to(device))
    return v.to(dtype), r


def grown(t: Tensor, column: Tensor) -> Tensor:
    """T with the next block column ``VᵀA V_k`` (a, K, s), symmetrised."""
    old, k = t.shape[-1], column.shape[1]
    whole = column.new_zeros(column.shape[0], k, k)
    whole[:, :old, :old] = t
    whole[:, :, old:] = column
    whole[:, old:, :old] = column[:, :old].mT
    last = whole[:, old:, old:]
    whole[:, old:, old:] = (last + last.mT) / 2
    return whole


def _inside(x: Tensor, basis: list[Tensor]) -> Tensor:
    """``V Vᵀ x``."""
    return sum(v @ (v.mT @ x) for v in basis)


def projected(x: Tensor, basis: list[Tensor]) -> Tensor:
    """``x - V Vᵀ x``."""
    return x - _inside(x, basis)


def next_block(d: Tensor, basis: list[Tensor], scale: Tensor, noise: torch.Generator) -> Tensor:
    """The block after ``basis`` from d, what of ``A V_k`` lies outside it, (N, m, s).

    Where the space is exhausted d is rounding, and its QR would hold directions of the basis again: so it is moved by
    one rounding of A at random first, and projected twice.

    Args:
        scale: the size of A, (N,).
    """
    m, s = d.shape[1:]
    u = torch.finfo(d.dtype).eps / 2
    extra = torch.randn(m, s, generator=noise, dtype=torch.float64, device="cpu").to(d)
    block = torch.linalg.qr(d + u * scale[:, None, None].to(d) * extra / m**0.5).Q
    for _ in range(2):
        block = torch.linalg.qr(projected(block, basis)).Q
    return block
