"""Spectral shifting of Nyströmformer (Verma 2021, "Beyond Nyströmformer"): an interpretation, and the printed form.

F, A, W are the softmax factors of `landmark_attention`, over segment means. G is the generalised inverse of A, δ the
shift. Our ``d`` is the paper's ``c``.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ...errors import Unsupported, UsageError
from ...operators import Identity, LowRank, Operator, Sparse, Sum
from ...operators.linalg.inverses import razavi, start, truncated_pinv
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, per_head, row_sums, segment_means
from ..registry import register
from .landmark_attention import landmark_diagnostics, softmax_factors

RTOL = 1e-3  # the default of rtol
CLOSE = 1e-8  # a denominator below this share of d counts as 0/0


def _check(target: str, **o: Any) -> None:
    """Refuse options that are out of range or contradict each other."""
    truncated = o["rank"] is not None
    faults = {
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
    for message, present in faults.items():
        if present:
            raise UsageError(f"mss: {message}")


@register(
    name="mss",
    paper="Verma, Beyond Nyströmformer (an interpretation)",
    year=2021,
    family="Nyström",
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
    """``B~ = F G (I - δ G) W + δ I`` with ``δ = [tr A - tr(G A²)] / [d - tr(G A)]`` for a generalised inverse G of A.

    This is an interpretation. As printed, with the pseudo-inverse of A, the shift of Verma 2021 vanishes for every A
    and the method is Nyströmformer (see ``mss-literal``). Here G may be any generalised inverse. δ then measures the
    part of A that G does not invert: for A truncated to rank r it is ``Σ_{i>r} σ_i u_iᵀv_i / (d - r)``, which is the
    mean discarded eigenvalue if A is positive semidefinite. In three cases δ is 0 and the method is Nyströmformer with
    the inverse G: if G inverts A; if the denominator is below 1e-8 d; if the formula is negative. The formula can be
    negative because A is not symmetric; the paper has δ ≥ 0.

    Options:
        form: ``eq8`` is ``F G (I - δ G) W`` (equations 6-8), which follows from the model ``C U Cᵀ + δ I`` for a normal
            A. ``eq4`` is ``F G (I - δ A) W`` (equations 4, 9 and 10), which does not follow from it: for ``G A = I`` it
            subtracts the smoothed attention ``δ F W`` from Nyströmformer.
        identity: add the ``δ I`` of the model, which the paper's equations omit. Without it the rank of B~ is at most
            d, and its rows sum to 1 - δ for ``G A = I``. Row i gets δ at key i, or at the last key if there are more
            queries than keys.
        inverse: ``pinv`` is the truncated pseudo-inverse; ``schulz`` is ``n_iter`` steps of Nyströmformer's iteration.
        rank: with ``pinv``, the number of singular values that are used, at most d; none is decided by ``rtol``.
        rtol: with ``pinv``, singular values below ``rtol`` times the largest count as zero; none is d times the
            epsilon of float64. Not together with ``rank``.
        n_iter: steps of ``schulz``.
        delta_override: use this δ for every head instead of the formula.

    Shapes, dtypes and cost: as ``nystromformer``, with G for Z. Deterministic.

    With ``identity`` and ``G A = I`` rows sum to 1 in either form. ``delta`` is the δ of each head; ``bad_rows`` counts
    rows of B~ with a sum that is not positive.

    Raises:
        Unsupported: d above n, or rank above d. UsageError: options that contradict each other.

    >>> from attnprobe import approximate
    >>> qkv = QKV(*torch.randn(3, 1, 12, 4, generator=torch.Generator().manual_seed(0)).double())
    >>> approximate("mss", qkv, 6, delta_override=0.1, rtol=None).operator.row_sums().round(decimals=6)[0, :3]
    tensor([1., 1., 1.], dtype=torch.float64)
    """
    if rank is not None and rank > d:
        raise Unsupported(f"mss: rank={rank} exceeds d={d}; choose rank in 1..{d}")
    q_means, k_means = segment_means(qkv.q, d), segment_means(qkv.k, d)  # (h, d, p)
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
    low_rank = LowRank(f, [g.to(f), inner.to(f)], w)
    operator, sums = low_rank, row_sums(low_rank)
    if identity:
        operator = Sum([low_rank, _own_key(delta.to(f), qkv.n_q, qkv.n_k)])
        sums = sums + delta.to(f)[:, None]
    diagnostics = {**landmark_diagnostics(qkv, sums, a, g), "delta": delta}
    return Approximation.of(operator, qkv, cores={"A": a}, inverses={"A": g}, diagnostics=diagnostics)


@register(
    name="mss-literal",
    paper="Verma, Beyond Nyströmformer (as printed)",
    year=2021,
    family="Nyström",
    tags=("deterministic", "shift_invariant", "exact_at_full_budget"),
    budget="d landmarks: means of d consecutive segments of Q and of K",
    cost="4 n d p + O(d³)",
    oracle="equals nystromformer:inverse=pinv; tr(A⁺A²) = tr A",
    limit=lambda n_q, n_k: min(n_q, n_k),
    exact_at=lambda n: (n, {}),
)
def mss_literal(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax") -> Approximation:
    """``B~ = F A⁺ (I - δ A⁺) W`` with ``δ = [tr A - tr(A⁺A²)] / [d - rank A]``, as printed: δ is 0 for every A.

    The trace is invariant under cyclic permutations, and ``A A⁺ A = A`` holds for the pseudo-inverse. So ``tr(A⁺A²) =
    tr(A⁺ A A) = tr(A A⁺ A) = tr A``: the numerator is zero for every A. For a singular A this makes ``δ = 0``. For a
    non-singular A the denominator ``d - rank A`` is 0 too, and the quotient 0/0 is taken as 0. Every printed form
    (equations 4 to 10) is therefore ``B~ = F A⁺ W``, Nyströmformer with a true pseudo-inverse in place of its six
    steps. A nonzero shift needs another inverse: see ``mss``.

    Shapes: F (h, n_q, d), A⁺ (h, d, d), W (h, d, n_k), all in float64. Deterministic; cost ``4 n d p`` and O(d³).

    ``delta`` is 0 in each head; ``bad_rows`` counts rows of B~ with a sum that is not positive. Rows sum to 1 if A is
    non-singular.

    Raises:
        Unsupported: d above n.
    """
    q_means, k_means = segment_means(qkv.q, d), segment_means(qkv.k, d)  # (h, d, p)
    f, a, w = softmax_factors(qkv, q_means, k_means, torch.float64)
    g = truncated_pinv(a)
    operator = LowRank(f, g, w)
    diagnostics = {**landmark_diagnostics(qkv, row_sums(operator), a, g), "delta": per_head(qkv.h, 0.0)}
    return Approximation.of(operator, qkv, cores={"A": a}, inverses={"A": g}, diagnostics=diagnostics)


def _truncated(a: Tensor, rank: int | None, rtol: float | None) -> tuple[Tensor, Tensor]:
    """The truncated pseudo-inverse of A (h, d, d), and its δ from the discarded part, (h,).

    It uses ``tr A - tr(G A²) = Σ_{i>r} σ_i u_iᵀ v_i`` and ``tr(G A) = r``. For an ill-conditioned core the traces
    themselves would turn 0/0 into a number.
    """
    d = a.shape[-1]
    u, s, v = torch.linalg.svd(a)
    if rank is not None:
        retained = (torch.arange(d, device=a.device) < rank).expand_as(s)
    else:
        rtol = d * torch.finfo(a.dtype).eps if rtol is None else rtol
        retained = s > rtol * s[:, :1]
    inverse = torch.where(retained & (s > 0), 1 / s.clamp(min=torch.finfo(s.dtype).tiny), torch.zeros_like(s))
    g = (v.mT * inverse[:, None, :]) @ u.mT
    discarded = torch.where(retained, torch.zeros_like(s), s * (u.mT * v).sum(-1)).sum(-1)
    missing = d - retained.sum(-1)
    return g, torch.where(missing > 0, discarded / missing.clamp(min=1), torch.zeros_like(discarded)).clamp(min=0)


def _shift(a: Tensor, g: Tensor) -> Tensor:
    """``δ = [tr A - tr(G A²)] / [d - tr(G A)]`` for any generalised inverse G, (h,); 0 if it is 0/0 or negative."""

    def trace(x: Tensor) -> Tensor:
        return x.diagonal(dim1=-2, dim2=-1).sum(-1)

    d, ga = a.shape[-1], g @ a
    missing = d - trace(ga)
    # tr(G A A) without a third product of matrices.
    left = trace(a) - (ga * a.mT).sum((-2, -1))
    vague = missing.abs() < CLOSE * d
    return torch.where(vague, torch.zeros_like(left), left / torch.where(vague, 1.0, missing)).clamp(min=0)


def _own_key(delta: Tensor, n_q: int, n_k: int) -> Operator:
    """The operator with ``δ`` at each query's own key: ``δ I`` if there are as many keys as queries."""
    if n_q == n_k:
        return Identity(delta, n_q)
    key = torch.arange(n_q, device=delta.device).clamp(max=n_k - 1)
    index = key[None, :, None].expand(len(delta), -1, -1)  # (h, n_q, 1)
    return Sparse(index, delta[:, None, None].expand(-1, n_q, 1).contiguous(), n_k)
