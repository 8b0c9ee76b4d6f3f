"""Spectral shifting of a symmetric kernel (Wang et al. 2014): the best ``C~ U C~ᵀ + δ I`` for given columns C~."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["shifted", "span"]


def shifted(
    kernel: Tensor, columns: Tensor, two_stage: bool = True, values: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """H (N, d), M (d, d) and δ, with ``H M Hᵀ + δ I`` the spectral shifting of a symmetric (N, N) ``kernel``.

    ``C~ U C~ᵀ = P K P - δ P`` with P = H Hᵀ the projector on the range of C~. If the rank of C~ is below d, the last
    columns of H are zero. d̄ is 0 for d = N, and δ is 0 for rank C~ = N. ``values`` are the eigenvalues of the kernel in
    ascending order, (N,), to avoid computing them again.
    """
    total, d = len(kernel), len(columns)
    sampled = kernel[:, columns]
    if two_stage and d < total:
        top = (torch.linalg.eigvalsh(kernel) if values is None else values)[-d:].sum()
        sampled[columns, torch.arange(d, device=columns.device)] -= (kernel.trace() - top) / (total - d)
    h = span(sampled)
    core = h.T @ kernel @ h
    missing = total - int(h.any(0).sum())
    delta = (kernel.trace() - core.trace()) / missing if missing else kernel.new_zeros(())
    return h, core - delta * torch.eye(d, dtype=kernel.dtype, device=kernel.device), delta


def span(columns: Tensor) -> Tensor:
    """An orthonormal basis of the range of an (n, d) matrix, with zeros for the columns that it does not need.

    Singular values below ``max(n, d) · eps`` times the largest count as zero, as they do for a pseudo-inverse.
    """
    u, s, _ = torch.linalg.svd(columns, full_matrices=False)
    return u * (s > max(columns.shape) * torch.finfo(s.dtype).eps * s[0])
