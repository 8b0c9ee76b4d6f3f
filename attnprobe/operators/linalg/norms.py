"""Norms and singular values of tall, thin matrices (outputs), in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from ..blocks import block_rows, row_blocks

CHUNK = 2048  # rows taken to float64 at once: 2-4 times faster than all of them


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


def row_norms(x: Tensor, axes: int = 1) -> Tensor:
    """The norm over the last axis of ``x`` (…, p), or over more, in its dtype, right in the whole range of the dtype.

    Squares that would under- or overflow are those of rows divided by a power of two.

    >>> row_norms(torch.tensor([[3.0, 4.0], [3e-200, 4e-200], [3e170, 4e170]], dtype=torch.float64)).tolist()
    [5.0, 5e-200, 5e+170]
    """
    if x.dim() == axes:
        return row_norms(x[None], axes)[0]
    last = tuple(range(-axes, 0))
    norms = x.norm(dim=last)
    if not x.numel():
        return norms
    if x.device.type != "cpu":  # which rows are right would have to be waited for
        return _scaled_norms(x, last)
    wrong = ~in_range(norms.square())
    return norms.index_put((wrong,), _scaled_norms(x[wrong], last)) if wrong.any() else norms


def _scaled_norms(x: Tensor, last: tuple[int, ...]) -> Tensor:
    """`row_norms` over the axes ``last``, of rows divided by their `unit_of`."""
    unit = unit_of(x, len(last))
    norms = (x / unit).norm(dim=last)
    return norms * unit.reshape(norms.shape)


def in_range(sums: Tensor) -> Tensor:
    """Whether each of these sums of squares is right: no square that counts underflowed, and the sum did not overflow.

    A sum of 0 may be one of squares that underflowed.
    """
    limits = torch.finfo(sums.dtype)
    return (sums > limits.tiny**0.8) & (sums < limits.max**0.8)


def unit_of(x: Tensor, axes: int = 1) -> Tensor:
    """The power of two of the largest entry over the last axes of ``x``, which are kept; 1 if it is 0 or not finite.

    Division by it is exact, and no square that counts under- or overflows afterwards.

    >>> unit_of(torch.tensor([[-5.0, 1.0], [0.0, 0.0]])).tolist()
    [[4.0], [1.0]]
    """
    return power_of_two(x.abs().amax(tuple(range(-axes, 0)), keepdim=True))


def power_of_two(size: Tensor) -> Tensor:
    """The largest power of two that is at most ``size``, of any shape; 1 if it is 0 or not finite.

    >>> power_of_two(torch.tensor([5.0, 0.3, 0.0])).tolist()
    [4.0, 0.25, 1.0]
    """
    power = size / (2 * torch.frexp(size).mantissa)
    return torch.where((size > 0) & torch.isfinite(size), power, torch.ones_like(size))


def unit_of_squares(size: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """By what entries of a ``size`` (…) are divided before their products are summed in ``dtype``: a power of two.

    It is 1 if no product of entries down to ``tiny^¼`` times as large under- or overflows.

    >>> unit_of_squares(torch.tensor([1e-3, 1e-200], dtype=torch.float64)).tolist() == [1.0, 2.0**-665]
    True
    """
    limits = torch.finfo(dtype)
    fits = (size > limits.tiny**0.25) & (size < limits.max**0.25)
    return torch.where(fits, torch.ones_like(size), power_of_two(size))


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
