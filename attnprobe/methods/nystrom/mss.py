"""Spectral shifting of Nyströmformer (Verma 2021, "Beyond Nyströmformer"): what it can mean, and what it says.

F, A, W are the softmax factors over segment means, as in Nyströmformer; G is the generalised inverse of A that is
used, δ the shift; our ``d`` is the paper's ``c``.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ...errors import Unsupported, UsageError
from ...linalg.inverses import razavi, start, truncated_pinv
from ...operators import Identity, LowRank, Operator, Sparse, Sum
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, per_head, segment_means
from ..registry import register
from .landmark_attention import landmark_diagnostics, softmax_factors

RTOL = 1e-3  # the default of rtol
CLOSE = 1e-8  # of d: a denominator below it is 0/0


def _check(target: str, **o: Any) -> None:
    """Refuse options that contradict each other, each with the way out."""
    truncated = o["rank"] is not None
    wrong = {
        f"n_iter={o['n_iter']} is negative": o["n_iter"] < 0,
        "n_iter belongs to inverse=schulz, not to inverse=pinv": o["inverse"] == "pinv" and o["n_iter"] != 6,
        "rank and rtol belong to inverse=pinv, not to inverse=schulz": (
            o["inverse"] == "schulz" and (truncated or o["rtol"] != RTOL)
        ),
        f"rank={o['rank']} and rtol={o['rtol']} are two ways to truncate; give one": truncated and o["rtol"] != RTOL,
        f"rank={o['rank']} is not positive": truncated and o["rank"] < 1,
        f"rtol={o['rtol']} is not in [0, 1)": o["rtol"] is not None and not 0 <= o["rtol"] < 1,
        f"delta_override={o['delta_override']} is negative": (o["delta_override"] or 0) < 0,
    }
    for message, holds in wrong.items():
        if holds:
            raise UsageError(f"mss: {message}")


@register(
    name="mss",
    paper="Verma, Beyond Nyströmformer (an interpretation)",
    year=2021,
    family="Nyström",
    targets=("softmax",),
    kind="method",
    tags=("deterministic", "shift_invariant", "exact_at_full_budget"),
    budget="d landmarks: means of d consecutive segments of Q and of K",
    cost="4 n d p + O(d³)",
    oracle="nystromformer:inverse=pinv at δ = 0; δ is the mean discarded eigenvalue of a truncated core",
    limit=lambda n_q, n_k: min(n_q, n_k),
    validate=_check,
    exact_at=lambda n: (n, {"rtol": None}),
)
def mss(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    form: Literal["eq8", "eq4"] = "eq8",
    identity: bool = True,
    inverse: Literal["pinv", "schulz"] = "pinv",
    rank: int | None = None,
    rtol: float | None = RTOL,
    n_iter: int = 6,
    delta_override: float | None = None,
) -> Approximation:
    """``B~ = F G (I - δ G) W + δ I``, with ``δ = [tr A - tr(G A²)] / [d - tr(G A)]`` of the inverse G that is used.

    This is an interpretation. As printed, with the pseudo-inverse of A, the shift of Verma 2021 vanishes for every A
    and the method is Nyströmformer (``mss-literal`` shows it). Here G may be any generalised inverse, and δ measures
    what it left out of A: for A truncated to rank r, ``Σ_{i>r} σ_i u_iᵀv_i / (d - r)``, the mean discarded eigenvalue
    where A is positive semidefinite. It is 0 where G inverts A: then this is Nyströmformer with that inverse.
    ``δ = 0`` too where the denominator is below 1e-8 d. A core of attention is not symmetric, so its discarded part may
    have a negative trace: then δ counts as 0, as the paper has δ ≥ 0, and the method is Nyströmformer again.

    Options:
        form: ``eq8`` is ``F G (I - δ G) W`` (equations 6-8), which follows from the model ``C U Cᵀ + δ I`` for a normal
            A; ``eq4`` is ``F G (I - δ A) W`` (equations 4, 9 and 10), which does not: for ``G A = I`` it takes ``δ F
            W``, a smoothed attention, off Nyströmformer.
        identity: add the ``δ I`` of the model, which the paper's equations drop; without it B~ has rank d at most and
            its rows sum to 1 - δ for ``G A = I``. Row i is shifted at its own key: key i, and the last key where there
            are more queries than keys.
        inverse: ``pinv`` is the truncated pseudo-inverse; ``schulz`` is ``n_iter`` steps of Nyströmformer's iteration.
        rank: with ``pinv``, keep this many singular values; at most d.
        rtol: with ``pinv``, singular values below ``rtol`` times the largest count as zero; none is d times the
            epsilon of float64. Not together with ``rank``.
        n_iter: steps of ``schulz``.
        delta_override: this δ for every head instead of the formula's.

    Shapes: F (h, n_q, d), A and G (h, d, d) in float64, W (h, d, n_k). F and W are in the Q/K/V's dtype with
    ``schulz``, and in float64 with ``pinv``, which amplifies their rounding. Deterministic; cost ``4 n d p`` and
    O(d³).

    Rows sum to 1 with ``identity`` where ``G A = I``, for either form. ``delta`` is the δ of each head;
    ``bad_rows`` counts rows of B~ whose sum is not positive.

    Raises:
        Unsupported: d above n, or rank above d. UsageError: options that contradict each other.

    >>> from attnprobe import approximate
    >>> qkv = QKV(*torch.randn(3, 1, 12, 4, generator=torch.Generator().manual_seed(0)).double())
    >>> approximate("mss", qkv, 6, delta_override=0.1, rtol=None).operator.row_sums().round(decimals=6)[0, :3]
    tensor([1., 1., 1.], dtype=torch.float64)
    """
    if rank is not None and rank > d:
        raise Unsupported(f"mss: rank={rank} exceeds d={d}; choose rank in 1..{d}")
    q_means, k_means = segment_means(qkv.q.double(), d), segment_means(qkv.k.double(), d)  # (h, d, p)
    dtype = torch.float64 if inverse == "pinv" else qkv.dtype
    f, a, w = softmax_factors(qkv, q_means, k_means, dtype)
    if inverse == "pinv":
        g, delta = _truncated(a, rank, rtol)
    else:
        g = razavi(a, start(a, "norms"), n_iter)
        delta = _shift(a, g)
    if delta_override is not None:
        delta = torch.full_like(delta, delta_override)
    eye = torch.eye(d, dtype=a.dtype, device=a.device)
    inner = eye - delta[:, None, None] * (g if form == "eq8" else a)  # (h, d, d)
    operator: Operator = LowRank(f, [g.to(f), inner.to(f)], w)
    if identity:
        operator = Sum([operator, _own_key(delta.to(f), qkv.n_q, qkv.n_k)])
    diagnostics = {**landmark_diagnostics(qkv, operator, a, g), "delta": delta}
    return Approximation.of(operator, qkv, cores={"A": a}, inverses={"A": g}, diagnostics=diagnostics)


@register(
    name="mss-literal",
    paper="Verma, Beyond Nyströmformer (as printed)",
    year=2021,
    family="Nyström",
    targets=("softmax",),
    kind="method",
    tags=("deterministic", "shift_invariant", "exact_at_full_budget"),
    budget="d landmarks: means of d consecutive segments of Q and of K",
    cost="4 n d p + O(d³)",
    oracle="equals nystromformer:inverse=pinv; tr(A⁺A²) = tr A",
    limit=lambda n_q, n_k: min(n_q, n_k),
    exact_at=lambda n: (n, {}),
)
def mss_literal(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax") -> Approximation:
    """``B~ = F A⁺ (I - δ A⁺) W`` with ``δ = [tr A - tr(A⁺A²)] / [d - rank A]``, as printed: δ is 0 for every A.

    The trace does not change when factors are moved round, and ``A A⁺ A = A`` defines the pseudo-inverse, so ``tr(A⁺A²)
    = tr(A⁺ A A) = tr(A A⁺ A) = tr A``: the numerator is identically zero, whatever A is. For a singular A this makes
    ``δ = 0``; for a non-singular one ``d - rank A`` is 0 as well and the quotient 0/0, which is taken as 0. So
    every printed form (equations 4 to 10) is ``B~ = F A⁺ W``, Nyströmformer with a true pseudo-inverse in place of its
    six steps. A shift that is not zero needs another inverse: see ``mss``.

    Shapes: F (h, n_q, d), A⁺ (h, d, d), W (h, d, n_k), all in float64. Deterministic; cost ``4 n d p`` and O(d³).

    ``delta`` is the δ used, 0 in each head; ``bad_rows`` counts rows of B~ whose sum is not positive. Rows sum to 1
    where A is non-singular.

    Raises:
        Unsupported: d above n.
    """
    q_means, k_means = segment_means(qkv.q.double(), d), segment_means(qkv.k.double(), d)  # (h, d, p)
    f, a, w = softmax_factors(qkv, q_means, k_means, torch.float64)
    g = truncated_pinv(a)
    operator = LowRank(f, g, w)
    diagnostics = {**landmark_diagnostics(qkv, operator, a, g), "delta": per_head(qkv.h, 0.0)}
    return Approximation.of(operator, qkv, cores={"A": a}, inverses={"A": g}, diagnostics=diagnostics)


def _truncated(a: Tensor, rank: int | None, rtol: float | None) -> tuple[Tensor, Tensor]:
    """The truncated pseudo-inverse of A (h, d, d), and its δ from the discarded part, (h,).

    ``tr A - tr(G A²)`` is ``Σ_{i>r} σ_i u_iᵀ v_i`` and ``tr(G A)`` is r: summed from these, an ill-conditioned
    core does not turn 0/0 into a number.
    """
    d = a.shape[-1]
    u, s, v = torch.linalg.svd(a)
    if rank is not None:
        kept = (torch.arange(d, device=a.device) < rank).expand_as(s)
    else:
        rtol = d * torch.finfo(a.dtype).eps if rtol is None else rtol
        kept = s > rtol * s[:, :1]
    inverse = torch.where(kept & (s > 0), 1 / s.clamp(min=torch.finfo(s.dtype).tiny), torch.zeros_like(s))
    g = (v.mT * inverse[:, None, :]) @ u.mT
    discarded = torch.where(kept, torch.zeros_like(s), s * (u.mT * v).sum(-1)).sum(-1)
    missing = d - kept.sum(-1)
    return g, torch.where(missing > 0, discarded / missing.clamp(min=1), torch.zeros_like(discarded)).clamp(min=0)


def _shift(a: Tensor, g: Tensor) -> Tensor:
    """``δ = [tr A - tr(G A²)] / [d - tr(G A)]`` of any generalised inverse, (h,); 0 where it is 0/0 or negative."""
    trace = lambda x: x.diagonal(dim1=-2, dim2=-1).sum(-1)
    d, ga = a.shape[-1], g @ a
    missing = d - trace(ga)
    left = trace(a) - (ga * a.mT).sum((-2, -1))
    vague = missing.abs() < CLOSE * d
    return torch.where(vague, torch.zeros_like(left), left / torch.where(vague, 1.0, missing)).clamp(min=0)


def _own_key(delta: Tensor, n_q: int, n_k: int) -> Operator:
    """``δ`` at each query's own key: ``δ I`` where there are as many keys as queries."""
    if n_q == n_k:
        return Identity(delta, n_q)
    key = torch.arange(n_q, device=delta.device).clamp(max=n_k - 1)
    index = key[None, :, None].expand(len(delta), -1, -1)  # (h, n_q, 1)
    return Sparse(index, delta[:, None, None].expand(-1, n_q, 1).contiguous(), n_k)
