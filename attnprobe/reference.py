"""The exact attention that everything is compared with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .errors import unknown
from .operators import GaussianAttention, Operator, Padded, SoftmaxAttention
from .qkv import QKV

__all__ = ["TARGETS", "attention", "exact", "exact_output", "last_seen"]

TARGETS = ("softmax", "gaussian")


def exact(qkv: QKV, target: str = "softmax") -> Operator:
    """The exact operator, (h, n_q, n_k), in the dtype of ``qkv``.

    ``softmax`` is ``B = softmax(scale · Q Kᵀ)``; ``gaussian`` is ``C_ij = exp(-‖q_i - k_j‖² · scale/2)``. With a
    padding mask, padded rows and columns are zero; of causal inputs, entries above the diagonal, and a row of B is a
    softmax over the keys up to its own. Nothing n x n is held.

    Raises:
        UsageError: an unknown target.

    >>> B = exact(QKV(*torch.ones(3, 1, 4, 2)))
    >>> B.row_sums()
    tensor([[1., 1., 1., 1.]])
    """
    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    inner = qkv.compressed()
    kind = SoftmaxAttention if target == "softmax" else GaussianAttention
    operator = kind(inner.q, inner.k, inner.scale, last_seen(inner))
    return operator if qkv.mask is None else Padded(operator, qkv.mask)


def exact_output(qkv: QKV, target: str = "softmax") -> Tensor:
    """``B V`` or ``C V`` in float64, (h, n_q, p_v), whatever the dtype of ``qkv``.

    Head by head, so that the float64 copies are of one head only. On a CPU the softmax output is torch's fused
    kernel; elsewhere, where float64 has no fused kernel, and for ``gaussian``, a loop over row blocks. Cost
    ``2 h n_q n_k p`` multiply-adds, memory O(h n p). Agrees with the dense float64 formula to 1e-15 relative.
    """
    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    inner = qkv.compressed()
    out = torch.empty(inner.h, inner.n_q, inner.p_v, dtype=torch.float64, device=inner.device)
    with torch.no_grad():
        for head in range(inner.h):
            q, k, v = (x[head : head + 1].double() for x in (inner.q, inner.k, inner.v))
            if target == "gaussian":
                out[head] = (GaussianAttention(q, k, inner.scale, last_seen(inner)) @ v)[0]
            elif inner.device.type == "cpu":
                out[head] = attention(q, k, v, inner.scale, inner.causal)[0]
            else:
                out[head] = (SoftmaxAttention(q, k, inner.scale, last_seen(inner)) @ v)[0]
    if qkv.mask is None:
        return out
    whole = out.new_zeros(qkv.h, qkv.n_q, qkv.p_v)
    whole[:, qkv.mask] = out
    return whole


def last_seen(qkv: QKV) -> Tensor | None:
    """The last key that each query sees, (n,) int64: itself, where Q, K, V are causal; None is all keys."""
    return torch.arange(qkv.n_q, device=qkv.device) if qkv.causal else None


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False) -> Tensor:
    """``softmax(scale · q kᵀ) v`` by torch's fused kernel, in the dtype given; (h, n, p) tensors.

    ``causal`` hides the keys behind each query.

    The kernel is reached only by 4-D tensors whose head dimensions agree: 3-D tensors, or ``p_v ≠ p``, silently
    take a path that holds n x n (1.7 GiB at n = 4096 with 12 heads). So the smaller dimension is padded with zero
    columns, which change neither the scores nor the other columns of the output.
    """
    p, p_v = q.shape[-1], v.shape[-1]
    q, k, v = (functional.pad(x, (0, max(p, p_v) - x.shape[-1])) for x in (q, k, v))
    out = functional.scaled_dot_product_attention(q[None], k[None], v[None], scale=scale, is_causal=causal)
    return out[0, :, :, :p_v]
