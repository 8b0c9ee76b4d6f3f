"""Attention over landmarks of Q and of K: the three softmax factors, the inverse of the core, and diagnostics.

F, A, W are the three softmax factors of Xiong et al. 2021 (their ``F̃``, ``Ã``, ``B̃``). Q~ and K~ are the landmarks of
the queries and of the keys. Z is the approximate inverse of the core A. Our ``d`` is their ``m``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...errors import UsageError
from ...operators import LowRank
from ...operators.linalg.inverses import razavi, residual, start, truncated_pinv
from ...operators.precision import product
from ...qkv import QKV
from ..base import Approximation, per_head, row_sums, segment_means, softmax_in_place
from ..summary import Summary


def check_inverse(method: str, target: str, *, inverse: str, n_iter: int, z0: str, rtol: float | None) -> None:
    """Refuse options of the inverse that are out of range or contradict each other."""
    if n_iter < 0:
        raise UsageError(f"{method}: n_iter={n_iter} is negative")
    if inverse == "schulz" and rtol is not None:
        raise UsageError(f"{method}: rtol belongs to inverse=pinv, not to inverse=schulz")
    if inverse == "pinv" and (n_iter, z0) != (6, "paper"):
        raise UsageError(f"{method}: n_iter and z0 belong to inverse=schulz, not to inverse=pinv")
    if rtol is not None and not 0 <= rtol < 1:
        raise UsageError(f"{method}: rtol={rtol} is not in [0, 1)")


def softmax_factors(qkv: QKV, q_marks: Tensor, k_marks: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """``F = softmax(s Q K~ᵀ)`` (h, n_q, d), ``A = softmax(s Q~ K~ᵀ)`` (h, d, d), ``W = softmax(s Q~ Kᵀ)`` (h, d, n_k).

    A and the landmarks Q~ and K~, (h, d, p), are float64. F and W have the dtype ``dtype``.
    """
    q, k = qkv.q.to(dtype), qkv.k.to(dtype)
    a = _core(qkv, q_marks, k_marks)
    f = softmax_in_place(product(q, (qkv.scale * k_marks).to(q).mT))
    w = softmax_in_place(product((qkv.scale * q_marks).to(q), k.mT))
    return f, a, w


def landmark_diagnostics(qkv: QKV, sums: Tensor, a: Tensor, z: Tensor) -> dict[str, Tensor]:
    """The diagnostics of a method with landmarks, (h,) each, from the row sums of B~ (h, n_q), A and Z (h, d, d).

    ``bad_rows`` counts row sums that are not positive. ``inverse_residual`` is that of Z, ``realised_d`` is d, and
    ``visited`` counts the entries of F, A and W.
    """
    d = a.shape[-1]
    return {
        "bad_rows": (~(sums > 0)).sum(-1),
        "inverse_residual": residual(a, z),
        "realised_d": per_head(qkv.h, d),
        "visited": per_head(qkv.h, d * (qkv.n_q + qkv.n_k + d)),
    }


def landmark_attention(
    qkv: QKV,
    q_marks: Tensor,
    k_marks: Tensor,
    *,
    inverse: str,
    n_iter: int,
    z0: str,
    rtol: float | None,
    draws: Mapping[str, Tensor] | None = None,
) -> Approximation:
    """``B~ = F Z W`` over the given landmarks, (h, d, p) float64. The options are those of ``nystromformer``."""
    dtype = torch.float64 if inverse == "pinv" else qkv.dtype  # a pseudo-inverse amplifies the rounding of F and W
    f, a, w = softmax_factors(qkv, q_marks, k_marks, dtype)
    z = _inverted(a, inverse, n_iter, z0, rtol)
    operator = LowRank(f, z.to(f), w)
    diagnostics = landmark_diagnostics(qkv, row_sums(operator), a, z)
    return Approximation.of(
        operator, qkv, draws=draws or {}, cores={"A": a}, inverses={"A": z}, diagnostics=diagnostics
    )


def summarised_landmarks(qkv: QKV, d: int, *, inverse: str, n_iter: int, z0: str, rtol: float | None) -> Summary:
    """The summary of ``F Z W`` over d segment means: M is Z, ``R = (n/d) W`` and ``m = n/d``.

    So ``D~ = (n/d) Σ_c L_ic``, and ``L M R / D~`` is ``F Z W`` for any queries.
    """
    q_marks, k_marks = segment_means(qkv.q, d), segment_means(qkv.k, d)
    a = _core(qkv, q_marks, k_marks)
    w = torch.softmax(qkv.scale * q_marks @ qkv.k.double().mT, -1)
    size = torch.full_like(a[..., 0], qkv.n_k / d)  # of a segment
    z = _inverted(a, inverse, n_iter, z0, rtol)
    return Summary(k_marks, torch.zeros_like(size), [z], size[..., None] * w, size)


def _core(qkv: QKV, q_marks: Tensor, k_marks: Tensor) -> Tensor:
    """A, (h, d, d)."""
    return torch.softmax(qkv.scale * q_marks @ k_marks.mT, -1)


def _inverted(a: Tensor, inverse: str, n_iter: int, z0: str, rtol: float | None) -> Tensor:
    """Z of the core A, (h, d, d)."""
    if inverse == "pinv":
        return truncated_pinv(a, rtol)
    return razavi(a, start(a, "norms" if z0 == "paper" else "global"), n_iter)
