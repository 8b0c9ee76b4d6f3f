"""Norms and singular values of tall, thin matrices (outputs), in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from ..operators.blocks import block_rows, row_blocks

CHUNK = 2048  # rows taken to float64 at once: 2-4 times faster than all of them
PLAIN = 1e-125, 1e125  # within this range no square that counts underflows, and no sum overflows


def output_norms(e: Tensor) -> tuple[Tensor, Tensor]:
    """Spectral and Frobenius norm of each (n, p) matrix of ``e`` (h, n, p), as float64 (h,), (h,).

    They come from the p x p Gram matrix, summed in float64 over chunks of rows. Its largest eigenvalue and its trace
    have a relative error of 1e-15. Its small eigenvalues, which are less accurate, are not used. The norms of a matrix
    with a value that is not finite are NaN. Cost ``n p²`` multiply-adds; memory a chunk of 2048 rows in float64.

    >>> [float(x) for x in output_norms(torch.diag(torch.tensor([3.0, 4.0]))[None])]
    [4.0, 5.0]
    """
    h, n, p = e.shape
    size = e.abs().amax((1, 2)).double()  # (h,): scaled out, so that no square overflows
    good = torch.isfinite(size)
    unit = torch.where(good & (size > 0), size, torch.ones_like(size))
    gram = torch.zeros(h, p, p, dtype=torch.float64, device=e.device)
    for first, last in row_blocks(n, block_rows(gram, h * p, CHUNK)):
        chunk = e[:, first:last].double() / unit[:, None, None]
        gram += chunk.mT @ chunk
    gram = torch.where(good[:, None, None], gram, torch.zeros_like(gram))
    nan = torch.full_like(size, float("nan"))
    spectral, frobenius = (torch.where(good, norm * unit, nan) for norm in gram_norms(gram))
    return spectral, frobenius


def row_norms(x: Tensor) -> Tensor:
    """The norm of each row of ``x`` (…, p), as (…) float64. Rows whose squares would under- or overflow are scaled.

    >>> row_norms(torch.tensor([[3.0, 4.0], [3e-200, 4e-200], [3e170, 4e170]], dtype=torch.float64)).tolist()
    [5.0, 5e-200, 5e+170]
    """
    x = x.double()
    norms = x.norm(dim=-1)
    unsafe = ~((norms > PLAIN[0]) & (norms < PLAIN[1]))
    if x.shape[-1] and unsafe.any():
        rows = x[unsafe]
        size = rows.abs().amax(-1)
        unit = torch.where((size > 0) & torch.isfinite(size), size, torch.ones_like(size))
        norms[unsafe] = (rows / unit[:, None]).norm(dim=-1) * unit
    return norms


def gram_norms(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Spectral and Frobenius norm, (h,) float64 each, of matrices with the Gram matrices ``gram`` (h, p, p).

    A Gram matrix with a value that is not finite has norms NaN. Cost O(p³).
    """
    good = torch.isfinite(gram).all(-1).all(-1)
    gram = torch.where(good[:, None, None], gram, torch.zeros_like(gram))
    nan = torch.full(good.shape, float("nan"), dtype=gram.dtype, device=gram.device)
    spectral = torch.linalg.eigvalsh(gram)[:, -1].clamp(min=0).sqrt()
    frobenius = gram.diagonal(dim1=1, dim2=2).sum(-1).sqrt()
    return torch.where(good, spectral, nan), torch.where(good, frobenius, nan)


def tail_singular_values(x: Tensor) -> Tensor:
    """All singular values of each (n, p) matrix of ``x`` (h, n, p), descending, float64 (h, min(n, p)).

    They come from the QR decomposition and the SVD of its p x p factor. Their absolute error is ``eps · σ₁``; from a
    Gram matrix all values below ``√eps · σ₁`` would be lost. Cost ``n p²``.
    """
    return torch.linalg.svdvals(torch.linalg.qr(x.double(), mode="r").R)
