"""Float32 products on a CPU, by the faster of torch's two libraries."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # ``a bᵀ``; it is not part of torch's interface
LEAST = 2**20  # multiply-adds; below, the call of oneDNN costs more than it saves


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """``a @ b`` of a (g, m, k) and b (g, k, n), as (g, m, n). It may use the memory of ``out``, of the same shape.

    On a CPU torch computes float32 products by MKL, which uses half of the width of AVX-512 on AMD's processors. On a
    processor with AVX-512, oneDNN computes large products head by head, and uses its whole width. Both round to float32
    after each multiply-add; only the order of the sums differs.
    """
    if not _is_wide(a, b):
        return torch.matmul(a, b, out=out)
    if len(a) == 1:
        return _by_onednn(a[0], b[0])[None]
    if out is None:
        out = a.new_empty(len(a), a.shape[1], b.shape[2])
    for head, (of_a, of_b) in enumerate(zip(a, b, strict=True)):
        out[head] = _by_onednn(of_a, of_b)
    return out


def _by_onednn(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of two float32 matrices; with other strides oneDNN would take hundreds of times as long."""
    if not b.is_contiguous() and not b.mT.is_contiguous():
        b = b.contiguous()
    assert ONEDNN is not None  # `_onednn` has found it
    return ONEDNN(a, b.mT, None, "none", [], "")


def _is_wide(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN computes a product: large in each head, float32, on a CPU with AVX-512, without gradients."""
    if a.dtype != torch.float32 or b.dtype != torch.float32 or a.device.type != "cpu":
        return False
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return False
    return a.shape[1] * a.shape[2] * b.shape[2] >= LEAST and _onednn()


@cache
def _onednn() -> bool:
    """Whether this processor has AVX-512, and this torch has oneDNN's product."""
    if (
        ONEDNN is None
        or not torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        or not torch.backends.mkldnn.is_available()
    ):
        return False
    one = torch.ones(1, 1)
    try:
        return bool(_by_onednn(one, one) == one)
    except (AttributeError, RuntimeError, TypeError):
        return False
