"""Nyströmformer (Xiong et al. 2021): landmarks that are means of segments.

F, A, W are the paper's three softmax factors (``F̃``, ``Ã``, ``B̃``), Z its iterative inverse ``Z*`` of
A; our ``d`` is its ``m``.
"""

from __future__ import annotations

from typing import Literal

import torch

from ..errors import UsageError
from ..linalg.inverses import razavi, residual, start, truncated_pinv
from ..operators import LowRank
from ..qkv import QKV
from ..rng import Streams
from .base import Approximation, per_head, segment_means
from .registry import register


def _check(target: str, *, inverse: str, n_iter: int, z0: str, rtol: float | None) -> None:
    if n_iter < 0:
        raise UsageError(f"nystromformer: n_iter={n_iter} is negative")
    if inverse == "schulz" and rtol is not None:
        raise UsageError("nystromformer: rtol belongs to inverse=pinv, not to inverse=schulz")
    if inverse == "pinv" and (n_iter, z0) != (6, "paper"):
        raise UsageError("nystromformer: n_iter and z0 belong to inverse=schulz, not to inverse=pinv")
    if rtol is not None and not 0 <= rtol < 1:
        raise UsageError(f"nystromformer: rtol={rtol} is not in [0, 1)")


@register(
    name="nystromformer",
    paper="Xiong et al., Nyströmformer",
    year=2021,
    family="Nyström",
    targets=("softmax",),
    kind="method",
    tags=("deterministic", "shift_invariant", "exact_at_full_budget"),
    budget="d landmarks: means of d consecutive segments of Q and of K",
    cost="4 n d p + O(d³)",
    oracle="transformers NystromformerSelfAttention; nystrom-attention NystromAttention",
    limit=lambda n_q, n_k: min(n_q, n_k),
    validate=_check,
    exact_at=lambda n: (n, {"inverse": "pinv"}),
)
def nystromformer(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    inverse: Literal["schulz", "pinv"] = "schulz",
    n_iter: int = 6,
    z0: Literal["paper", "global"] = "paper",
    rtol: float | None = None,
) -> Approximation:
    """``B~ = F Z W`` with ``F = softmax(s Q K~ᵀ)``, ``A = softmax(s Q~ K~ᵀ)``, ``W = softmax(s Q~ Kᵀ)`` and ``Z ≈ A⁺``.

    ``Q~`` and ``K~`` are the means of d consecutive segments (the first ``n mod d`` are one token longer). Source:
    Xiong et al. 2021, section 3. Its depthwise convolution, a trained part, is left out.

    Options:
        inverse: ``schulz`` is ``n_iter`` steps of the paper's iteration; ``pinv`` the true pseudo-inverse. They are
            different methods: six steps leave a residual of 0.9-0.99 on real cores and act as a regulariser, and the
            true pseudo-inverse is often several times worse.
        n_iter: steps of the iteration.
        z0: its start, ``paper`` is ``Aᵀ / (‖A‖₁ ‖A‖_∞)`` for each head; ``global`` divides by a maximum over all
            heads, as the authors' code does, so that heads influence each other.
        rtol: with ``pinv``, singular values below ``rtol`` times the largest count as zero; none is d times the
            epsilon of float64.

    Shapes: F (h, n_q, d), A and Z (h, d, d) in float64, W (h, d, n_k). F and W are in the Q/K/V's dtype with
    ``schulz``, and in float64 with ``pinv``, which amplifies their rounding. Deterministic; cost ``4 n d p`` and
    O(d³), 4 d³ for each step of the iteration.

    Row sums are 1 with ``pinv`` and a non-singular A, otherwise near 1. ``bad_rows`` counts rows of B~ whose sum is not
    positive.

    Raises:
        Unsupported: d above n. UsageError: ``n_iter`` below 0; an option of the other inverse.
    """
    q, k = qkv.q, qkv.k
    q_means, k_means = segment_means(q.double(), d), segment_means(k.double(), d)  # (h, d, p)
    a = torch.softmax(qkv.scale * q_means @ k_means.mT, -1)  # (h, d, d)
    if inverse == "pinv":
        z = truncated_pinv(a, rtol)
        q, k = q.double(), k.double()
    else:
        z = razavi(a, start(a, "norms" if z0 == "paper" else "global"), n_iter)
    f = torch.softmax(qkv.scale * q @ k_means.to(q).mT, -1)  # (h, n_q, d)
    w = torch.softmax(qkv.scale * q_means.to(q) @ k.mT, -1)  # (h, d, n_k)
    operator = LowRank(f, z.to(q), w)
    sums = operator.row_sums()
    diagnostics = {
        "bad_rows": (~(sums > 0)).sum(-1),
        "inverse_residual": residual(a, z),
        "realised_d": per_head(qkv.h, d),
        "visited": per_head(qkv.h, d * (qkv.n_q + qkv.n_k + d)),
    }
    return Approximation.of(operator, qkv, cores={"A": a}, inverses={"A": z}, diagnostics=diagnostics)
