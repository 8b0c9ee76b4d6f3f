"""Performer's FAVOR+ (Choromanski et al. 2021): positive orthogonal random features of the softmax kernel.

W is the paper's matrix of random rows ω, φ its feature map, and x' = √scale · x its renormalised query or key. Our
``d`` is its m, the number of features; our ``p`` is its d.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import log
from typing import Any, Literal

import torch
from torch import Tensor

from ...errors import UsageError
from ...operators.precision import product
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, from_log_features, log_feature_sums, per_head
from ..registry import DISTRIBUTIONS, EVERY_MASK, register

LIMIT = 2**16
FACTS: dict[str, Any] = {
    "paper": "Choromanski et al., Performer",
    "year": 2021,
    "family": "features",
    "tags": (*DISTRIBUTIONS, "permutation_equivariant", *EVERY_MASK),
    "budget": "d random features",
    "cost": "4 n d p",
    "oracle": "performer-pytorch FastAttention",
    "limit": lambda n_q, n_k: LIMIT,
    "limit_name": "the limit",
}


def _check(name: str, target: str, **o: Any) -> None:
    if o["eps"] < 0:
        raise UsageError(f"{name}: eps={o['eps']} is negative")
    if not o["orthogonal"] and (o["qr"], o["scaling"]) != ("haar", "chi"):
        raise UsageError(f"{name}: qr and scaling belong to orthogonal=true, not to orthogonal=false")


@register(name="performer", validate=partial(_check, "performer"), **FACTS)
def performer(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    eps: float = 0.0,
    qr: Literal["haar", "raw"] = "haar",
    scaling: Literal["chi", "sqrt"] = "chi",
    orthogonal: bool = True,
    double_norm: bool = False,
    share_heads: bool = False,
) -> Approximation:
    """``B~ = D~⁻¹ A~`` with ``A~ = φ(Q') φ(K')ᵀ`` and ``φ(x') = d^-½ exp(W x' - ‖x'‖²/2)``, ``x' = √scale · x``.

    If each row of W is N(0, I), then ``E[A~] = A = exp(scale · Q Kᵀ)``. B~ is a ratio and biased. Source: Choromanski
    et al. 2021, section 2.3, lemma 1; orthogonal rows: section 2.4. The default is computed in logarithms (see
    `from_log_features`), so it neither overflows nor needs an additive constant. Causal rows sum over the keys up to
    their own (section 2.5.1), by prefix sums in chunks. Windowed rows sum over the keys that they see.

    Options:
        eps: constant added to each feature after the authors' shift, ``exp(W x' - ‖x'‖²/2 - shift) + eps``
            (performer-pytorch has 1e-4). The shift is the largest ``W q'`` of the query, and the largest ``W k'`` of
            the head. eps does not cancel: keys with large ‖k'‖² all fall below it, which pulls B~ towards V-Mean. 0 is
            the paper's formula, where the shift cancels. In causal and windowed rows the shift is the largest ``W k'``
            of the keys that the row sees; with the authors' shift, over all keys, it would depend on hidden tokens.
        qr: ``haar`` fixes the signs of the QR decomposition, so that a block of p rows is uniform among orthogonal
            matrices; ``raw`` keeps the signs of LAPACK (performer-pytorch), which biases A~.
        scaling: the norms of the rows. ``chi`` takes those of normal vectors; ``sqrt`` takes √p, which biases A~.
        orthogonal: draw blocks of p orthogonal rows; false draws every row independently.
        double_norm: ``x' = scale · x``, the scale applied twice, as in Skyformer's comparison code.
        share_heads: the same W for all heads, as in performer-pytorch; otherwise each head draws its own.

    Shapes: W (h, d, p), φ(Q) (h, n_q, d), φ(K) (h, n_k, d) in the Q/K/V's dtype. Draws: ``projection`` (h, d, p), W
    in float64; a smaller d has the first rows of a larger one. Cost ``4 n d p``, and ``d p²`` for the draw.

    ``bad_rows`` counts rows without a finite normaliser; ``visited`` counts the features, d for each token.

    Raises:
        Unsupported: d above 65536. UsageError: a negative ``eps``; ``qr`` or ``scaling`` without orthogonal rows.
    """
    q, k, w = _inputs(qkv, d, streams, qr, scaling, orthogonal, double_norm, share_heads)
    rows = w.to(q)
    log_q, log_k = log_features(q, rows), log_features(k, rows)  # (h, n, d)
    if eps > 0:
        log_q = _plus(log_q - product(q, rows.mT).amax(-1, keepdim=True), eps)
        if qkv.visible is not None:
            top = qkv.visible.largest(product(k, rows.mT).amax(-1))[..., None]  # (h, n_q, 1)
            # φ(q_i)·(exp(log φ(k_j) - top_i) + eps) has one more feature, eps Σ_f φ_f(q_i), the same for all keys
            log_q = torch.cat([log_q - top, log_q.logsumexp(-1, keepdim=True) + log(eps)], -1)
            log_k = torch.nn.functional.pad(log_k, (0, 1))
        else:
            log_k = _plus(log_k - product(k, rows.mT).amax((1, 2), keepdim=True), eps)
    approx = _approximation(qkv, d, log_q, log_k, w)
    if eps > 0:
        return approx

    def log_normalizer() -> Tensor:
        q, k = (x * (qkv.scale if double_norm else qkv.scale**0.5) for x in (qkv.q, qkv.k))
        return log_feature_sums(log_features(q, rows), log_features(k, rows), qkv) - log(d)

    return replace(approx, log_normalizer=log_normalizer)


@register(name="performer-relu", validate=partial(_check, "performer-relu"), **FACTS)
def performer_relu(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    eps: float = 1e-3,
    qr: Literal["haar", "raw"] = "haar",
    scaling: Literal["chi", "sqrt"] = "chi",
    orthogonal: bool = True,
    double_norm: bool = False,
    share_heads: bool = False,
) -> Approximation:
    """``B~ = D~⁻¹ φ(Q') φ(K')ᵀ`` with ``φ(x') = relu(W x') + eps``, ``x' = √scale · x``: generalised attention.

    Source: Choromanski et al. 2021, section 2.2, with f = relu and h = 1, and the authors' constant. It approximates
    another kernel: its distance from the softmax kernel does not vanish for any d. Causal and windowed rows as in
    ``performer``.

    Options:
        eps: constant added to each feature. With 0 a query may share no feature with any key; ``bad_rows`` counts it.
        qr, scaling, orthogonal, double_norm, share_heads: as in ``performer``.

    Shapes, draws and cost: as ``performer``.

    Raises:
        Unsupported: d above 65536. UsageError: a negative ``eps``; ``qr`` or ``scaling`` without orthogonal rows.
    """
    q, k, w = _inputs(qkv, d, streams, qr, scaling, orthogonal, double_norm, share_heads)
    log_q, log_k = (_log_relu(product(x, w.to(x).mT), eps) for x in (q, k))  # (h, n, d)
    return _approximation(qkv, d, log_q, log_k, w)


def _log_relu(x: Tensor, eps: float) -> Tensor:
    """``log(relu(x) + eps)``, written over ``x`` unless it requires gradients."""
    return (torch.relu(x) + eps).log() if x.requires_grad else x.relu_().add_(eps).log_()


def log_features(x: Tensor, w: Tensor) -> Tensor:
    """``log(√d φ(x')) = W x' - ‖x'‖²/2`` for x' (h, n, p) and W (h, d, p), as (h, n, d)."""
    return product(x, w.mT).sub_((x * x).sum(-1, keepdim=True) / 2)  # in place: one (n, d) tensor


def projection(
    generators: tuple[torch.Generator, torch.Generator], d: int, p: int, qr: str, scaling: str, orthogonal: bool
) -> Tensor:
    """W of one head, (d, p) float64: directions from the first generator, norms from the second."""
    directions, norms = (
        torch.stack([torch.randn(p, p, generator=g, dtype=torch.float64, device="cpu") for _ in range(-(-d // p))])
        for g in generators
    )  # (blocks, p, p)
    if orthogonal:
        basis, r = torch.linalg.qr(directions)
        if qr == "haar":
            # Signs of r depend on the QR algorithm; with a positive diagonal the factorisation is unique, so Haar.
            basis = basis * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)[:, None, :]
        length = norms.norm(dim=-1) if scaling == "chi" else torch.full_like(norms[..., 0], p**0.5)
        directions = basis.mT * length[..., None]
    return directions.reshape(-1, p)[:d]


def _inputs(
    qkv: QKV, d: int, streams: Streams, qr: str, scaling: str, orthogonal: bool, double_norm: bool, share_heads: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Q', K' and W, (h, n_q, p), (h, n_k, p) and (h, d, p)."""
    factor = qkv.scale if double_norm else qkv.scale**0.5
    drawn = []
    for head in qkv.heads:
        stream = streams.shared if share_heads else partial(streams.head, head)
        generators = stream("directions"), stream("norms")
        drawn.append(projection(generators, d, qkv.p, qr, scaling, orthogonal))
    return qkv.q * factor, qkv.k * factor, torch.stack(drawn)


def _plus(log_phi: Tensor, eps: float) -> Tensor:
    """``log(φ + eps)``."""
    return torch.logaddexp(log_phi, torch.full_like(log_phi, log(eps)))


def _approximation(qkv: QKV, d: int, log_q: Tensor, log_k: Tensor, w: Tensor) -> Approximation:
    operator, bad_rows = from_log_features(log_q, log_k, qkv)
    diagnostics = {
        "bad_rows": bad_rows,
        "realised_d": per_head(qkv.h, d),
        "visited": per_head(qkv.h, d * (qkv.n_q + qkv.n_k)),
    }
    return Approximation.of(operator, qkv, draws={"projection": w}, diagnostics=diagnostics)
