"""Skyformer (Chen et al. 2021): the modified Nyström method on the lifted kernel over ``[Q; K]``.

X = [Q; K] is the paper's stack of queries and keys. S is its sub-sampling matrix, 0/1 here: it picks the rows
``indices`` of X, the *landmarks*. M = SᵀC̄S is the core over the landmarks, γ its ridge, N the scaled core that the
iteration inverts. L and R are the kernel between queries and landmarks, and between landmarks and keys.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ...errors import Unsupported, UsageError
from ...operators import LowRank, Scaled, SoftmaxAttention
from ...operators.groups import tokens
from ...operators.linalg.inverses import inverse_root, razavi, residual, start
from ...operators.linalg.sampling import kmeans, recursive_rls
from ...operators.precision import product
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, distinct, per_head, row_sums
from ..registry import TOKENS, register
from ..summary import Summary, dyadic
from .row_guard import (
    STEADY,
    certainly_wrong,
    exact_normalizer,
    guarded,
    noise_floor,
    normaliser_noise,
    sampled_key_mass,
)

Inverse = Literal["auto", "schulz", "pinv", "cholesky"]


def _resolved(target: str, inverse: Inverse, gamma: float | None) -> tuple[Inverse, float]:
    """The inverse and the ridge, with ``auto`` and None replaced by their defaults."""
    if inverse == "auto":
        inverse = "schulz" if target == "gaussian" else "pinv"
    return inverse, (0.0 if inverse == "pinv" else 0.1) if gamma is None else gamma


def _check(target: str, **o: Any) -> None:
    """Refuse options that are out of range or contradict each other."""
    inverse, gamma = _resolved(target, o["inverse"], o["gamma"])
    only_softmax = (o["guard"], o["normalizer"], o["center_keys"]) != ("none", "self", False)
    faults = {
        f"gamma={gamma} is a ridge: inverse=pinv has none; use inverse=cholesky": inverse == "pinv" and gamma != 0,
        f"gamma={gamma} is negative": gamma < 0,
        f"n_iter={o['n_iter']} is negative": o["n_iter"] < 0,
        f"scale_dim={o['scale_dim']} is not positive": o["scale_dim"] is not None and o["scale_dim"] < 1,
        f"n_iter and z0 belong to inverse=schulz, not to inverse={inverse}": (
            inverse != "schulz" and (o["n_iter"], o["z0"]) != (6, "paper")
        ),
        f"rtol={o['rtol']} is not in [0, 1)": o["rtol"] is not None and not 0 <= o["rtol"] < 1,
        f"rtol belongs to inverse=pinv, not to inverse={inverse}": inverse != "pinv" and o["rtol"] is not None,
        "guard, normalizer and center_keys belong to target=softmax": target == "gaussian" and only_softmax,
        f"guard={o['guard']} needs landmarks that are keys, not the centroids of sampler=kmeans": (
            o["sampler"] == "kmeans" and o["guard"] in ("sampled", "floor")
        ),
        f"share_heads needs a sampler that does not look at the data, not {o['sampler']}": (
            o["share_heads"] and o["sampler"] in ("rls", "kmeans")
        ),
    }
    for message, present in faults.items():
        if present:
            raise UsageError(f"skyformer: {message}")


@register(
    name="skyformer",
    paper="Chen et al., Skyformer",
    year=2021,
    family="Nyström",
    targets=("softmax", "gaussian"),
    tags=(
        "row_sums_one@softmax",
        "permutation_equivariant",
        "exact_at_full_budget",
        "psd_below@gaussian",
        "vanishing_normaliser@softmax",
        "causal",
    ),
    budget="d landmarks among the n_q + n_k rows of [Q; K]",
    cost="4 n d p + O(d³)",
    oracle="raw form = Gaussian form; exact at 2n landmarks; Loewner order",
    **TOKENS,
    validate=_check,
    exact_at=lambda n: (2 * n, {"sampler": "wor", "inverse": "pinv"}),
)
def skyformer(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    sampler: Literal["stratified", "iid", "wor", "rls", "kmeans"] = "stratified",
    inverse: Inverse = "auto",
    gamma: float | None = None,
    n_iter: int = 6,
    z0: Literal["paper", "global", "identity"] = "paper",
    rtol: float | None = None,
    guard: Literal["none", "sampled", "floor", "vmean", "exact"] = "none",
    normalizer: Literal["self", "exact"] = "self",
    center_keys: bool = False,
    scale_dim: int | None = None,
    share_heads: bool = False,
) -> Approximation:
    """``C~ = L M⁺ R`` over d landmarks for ``target=gaussian``; ``B~ = D~⁻¹ A~`` for ``target=softmax``.

    ``gaussian`` is the published model (Chen et al. 2021, equations 3 to 6): with ``κ(x, y) = exp(-‖x-y‖²·scale/2)``,
    ``L = κ(Q, X_S)``, ``R = κ(X_S, K)`` and the inverse of ``κ(X_S, X_S) + γI`` (section 4.4; lemma 3 has the scaled
    core N, whose singular values lie in (0, 1], 1 included). ``softmax`` is the curve of the paper's Figure 1: the same
    method on the softmax kernel, then row-normalised. It is computed in the Gaussian form ``B~ ∝ L M⁺ R E_K`` with
    ``E_K = diag(exp(‖k_j‖²· scale/2))``. For an exact pseudo-inverse, a positive scaling of the landmarks cancels in
    ``K S (SᵀKS)⁺ SᵀK``, and a scaling of the queries cancels in the normalisation. So this equals the raw form, but
    does not overflow and has smaller condition numbers (in the median head at d = 128 up to 1e4, not 5e7). The maxima
    of rows and heads are subtracted from the exponents; they cancel in the normalisation too.

    Options:
        sampler: ``stratified`` takes d//2 landmarks from Q and the rest from K, each uniform with replacement (the
            authors' code); ``iid`` is uniform over X with replacement (the paper's definition 1); ``wor`` is uniform
            over X without replacement; ``rls`` uses recursive ridge leverage scores; ``kmeans`` uses centroids of X,
            which are not rows of X.
        inverse: ``schulz`` is ``n_iter`` steps of Razavi's iteration on ``N = diag(r) (M + γI) diag(r)``, ``r = ((M +
            γI) 1)^-½``; ``pinv`` is the pseudo-inverse of M; ``cholesky`` is the inverse of M + γI. ``auto`` is schulz
            for gaussian and pinv for softmax.
        gamma: the ridge on the 0/1-sampled core; none is 0.1 with schulz or cholesky and 0 with pinv.
        n_iter: steps of the iteration.
        z0: start of the iteration. ``paper`` is Nᵀ / (largest column sum of N) per head; ``global`` takes the maximum
            over all heads, as the authors' code does, so that heads influence each other; ``identity`` is I, which
            converges faster.
        rtol: with pinv, eigenvalues below ``rtol`` times the largest count as zero; none is d times float64's epsilon.
        guard: the treatment of rows whose normaliser D~ lies below a rigorous lower bound, the exact mass on the
            sampled keys, or which rounding moves by more than 1 %. ``none`` leaves them (the paper); ``sampled`` uses
            the softmax over the sampled keys; ``floor`` raises D~ to the bound; ``vmean`` uses V-Mean; ``exact`` uses
            the exact row, ``n p`` multiply-adds for each. softmax only.
        normalizer: ``self`` is ``D~ = A~ 1`` (the paper); ``exact`` is the true D, a diagnostic that costs n² p.
            softmax only.
        center_keys: subtract the mean key first, which changes B~ but not B. softmax only.
        scale_dim: take ``scale = scale_dim^-½`` (the authors' code has 32); none is the model's scale.
        share_heads: the same indices for all heads, as in the authors' code.

    Shapes: L (h, n_q, d), M (h, d, d) in float64, R (h, d, n_k). L and R are in the Q/K/V's dtype if γ² ≥ its epsilon:
    then the inverse does not amplify rounding. Otherwise they are in float64. Draws: ``indices`` (h, d), or
    ``centroids`` (h, d, p). Cost ``4 n d p`` and O(d³), 4 d³ for each step of the iteration.

    Diagnostics for softmax: ``bad_rows`` counts rows whose normaliser is not positive, or so small that it is rounding.
    ``guarded_rows`` counts the replaced rows. ``rounded_rows`` counts the rows that another order of sums changes:
    those that are not replaced though rounding moves them by more than 1 %, and those whose replacement rounding
    decides.

    Causal inputs have the form of `methods.summary.dyadic`, which is not in the paper: exact attention to the query's
    own leaf of ``2 d`` keys, and d landmarks of each earlier block, among its queries and keys. It needs all queries of
    the text.

    Raises:
        Unsupported: d above n_q + n_k; causal inputs with guard, normalizer or center_keys. UsageError: options that
            contradict each other.
    """
    inverse, gamma = _resolved(target, inverse, gamma)
    scale = qkv.scale if scale_dim is None else scale_dim**-0.5
    if qkv.causal:
        if (guard, normalizer, center_keys) != ("none", "self", False):
            raise Unsupported("skyformer: guard, normalizer and center_keys have no causal form")
        options = {"inverse": inverse, "gamma": gamma, "n_iter": n_iter, "z0": z0, "rtol": rtol}
        options |= {"sampler": sampler, "share_heads": share_heads}
        summarise = partial(_summarised, d=d, gaussian=target == "gaussian", **options)
        scaled_inputs = qkv.replace(scale=scale)
        return dyadic(scaled_inputs, d, streams, summarise, queries=True, gaussian=target == "gaussian")
    q, k = qkv.q, qkv.k
    # The inverse of the core is at most 1/γ large, so with a larger ridge the rounding of L and R stays small.
    if gamma**2 < torch.finfo(qkv.dtype).eps:
        q, k = q.double(), k.double()
    if center_keys:
        k = k - k.mean(1, keepdim=True)
    draws, landmarks = _draw(q, k, d, scale, streams, qkv.heads, sampler, share_heads)  # (h, d, p)
    core = torch.exp(_exponent(landmarks.double(), landmarks.double(), scale))  # (h, d, d)
    middle, cores, inverses = _invert(core, inverse, gamma, n_iter, z0, rtol)
    middle = [factor.to(q) for factor in middle]
    used = distinct(draws["indices"]) if "indices" in draws else per_head(qkv.h, d)  # distinct landmarks
    # Schulz inverts the scaled core; its residual on the core itself would mix in the scaling.
    solved = ("scaled", "scaled") if inverse == "schulz" else ("core", "core")
    diagnostics = {
        "inverse_residual": residual(cores[solved[0]], inverses[solved[1]]),
        "realised_d": used.to(qkv.device),
        "visited": per_head(qkv.h, d * (qkv.n_q + qkv.n_k + d)),
    }
    if target == "gaussian":
        left, right = _exponent(q, landmarks, scale).exp_(), _exponent(landmarks, k, scale).exp_()
        operator = LowRank(left, middle, right)
        diagnostics["bad_rows"] = (~torch.isfinite(operator.row_sums())).sum(-1)
        return Approximation.of(operator, qkv, draws=draws, cores=cores, inverses=inverses, diagnostics=diagnostics)

    half = _half(landmarks, scale)  # (h, d)
    # In the Gaussian form log κ lacks -‖q‖² s/2 for softmax: that factor of a row cancels in the normalisation.
    left = product(q, (scale * landmarks).mT).sub_(half[:, None, :])  # log(E_Q L), (h, n_q, d)
    row_shift = left.detach().amax(-1)  # (h, n_q); the shifts cancel, and so would their gradients
    left = left.sub_(row_shift[..., None]).exp_()
    right = product(scale * landmarks, k.mT).sub_(half[..., None])  # log(R E_K), (h, d, n_k)
    head_shift = right.detach().amax((1, 2))  # (h,)
    right = right.sub_(head_shift[:, None, None]).exp_()
    low_rank = LowRank(left, middle, right)
    mass = row_sums(low_rank)  # D~ up to the positive factor exp(row_shift + head_shift)
    noise = normaliser_noise(low_rank, _norm(middle))
    if normalizer == "exact":
        attention = SoftmaxAttention(q, k, scale)
        mass = exact_normalizer(attention, row_shift + head_shift[:, None])
        diagnostics["visited"] = diagnostics["visited"] + qkv.n_q * qkv.n_k
    diagnostics["bad_rows"] = (~(mass >= noise_floor(noise))).sum(-1)
    rounded = ~(mass.abs() >= noise_floor(noise, STEADY))  # (h, n_q)
    if guard == "none":
        operator = Scaled(low_rank, left=1 / mass)
    else:
        no_keys = torch.full((qkv.h, d), -1, device="cpu")  # centroids are not keys, so they give no bound
        indices = draws.get("indices", no_keys).to(q.device)
        bound, key_index = sampled_key_mass(left, indices, qkv.n_q, k, scale, head_shift)
        bad, undecided = certainly_wrong(mass, noise, bound)
        rounded = rounded | undecided if guard == "floor" else undecided  # floor keeps the numerator, which is rounding
        operator, replaced, extra = guarded(low_rank, mass, bad, bound, guard, q, k, scale, key_index)
        diagnostics["guarded_rows"] = replaced
        diagnostics["visited"] = diagnostics["visited"] + extra.cpu()
    diagnostics["rounded_rows"] = rounded.sum(-1)
    del q, k  # their float64 copies would be a sixth of the peak of memory
    return Approximation.of(operator, qkv, draws=draws, cores=cores, inverses=inverses, diagnostics=diagnostics)


def _summarised(
    qkv: QKV, streams: Streams, *, d: int, gaussian: bool, sampler: str, share_heads: bool, **inverse: Any
) -> tuple[Summary, dict[str, Tensor]]:
    """The summary ``M⁺ R`` in the Gaussian form: the bias of a landmark is minus half its squared norm times the scale.

    For softmax R has the factor E_K; the largest exponent of the head moves from R to the bias.
    """
    q, k = qkv.q.double(), qkv.k.double()
    draws, landmarks = _draw(q, k, d, qkv.scale, streams, qkv.heads, sampler, share_heads)
    core = torch.exp(_exponent(landmarks, landmarks, qkv.scale))
    middle, _, _ = _invert(core, **inverse)
    half = _half(landmarks, qkv.scale)  # (h, d)
    if gaussian:
        right = _exponent(landmarks, k, qkv.scale).exp()
        return Summary.normalised(landmarks, -half, middle, right), draws
    right = qkv.scale * landmarks @ k.mT - half[..., None]
    shift = right.detach().amax((1, 2))[:, None]  # (h, 1)
    return Summary.normalised(landmarks, shift - half, middle, (right - shift[..., None]).exp()), draws


def _half(x: Tensor, scale: float) -> Tensor:
    """``‖x_i‖² · scale/2``, (h, n)."""
    return (x * x).sum(-1) * (scale / 2)


def _exponent(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """``log κ(x_i, y_j) = -‖x_i - y_j‖² · scale/2``, at most 0; (…, n, m)."""
    exponent = scale * x @ y.mT
    exponent -= _half(x, scale)[..., :, None]  # in place: one (n, m) tensor instead of one for each step
    exponent -= _half(y, scale)[..., None, :]
    return exponent.clamp_(max=0)


def _draw(
    q: Tensor, k: Tensor, d: int, scale: float, streams: Streams, heads: tuple[int, ...], sampler: str, shared: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """The draws of the landmarks, and the landmarks of every head, (h, d, p)."""
    n_q, n_k = q.shape[1], k.shape[1]
    streams_of = [streams.shared if shared else partial(streams.head, head) for head in heads]
    if sampler == "kmeans":
        centroids = kmeans(torch.cat([q, k], 1), d, [stream("kmeans") for stream in streams_of])
        return {"centroids": centroids.cpu()}, centroids.to(q)
    picked = []
    for row, stream in enumerate(streams_of):
        if sampler == "stratified":
            of_q = torch.randint(n_q, (d // 2,), generator=stream("queries"), device="cpu")
            of_k = torch.randint(n_k, (d - d // 2,), generator=stream("keys"), device="cpu") + n_q
            picked.append(torch.cat([of_q, of_k]))
        elif sampler == "iid":
            picked.append(torch.randint(n_q + n_k, (d,), generator=stream("iid"), device="cpu"))
        elif sampler == "wor":
            picked.append(torch.randperm(n_q + n_k, generator=stream("wor"), device="cpu")[:d])
        else:  # each head draws another number of rows at each level

            def kernel(a: Tensor, b: Tensor) -> Tensor:
                return torch.exp(_exponent(a, b, scale))

            picked.append(recursive_rls(torch.cat([q[row], k[row]]).detach(), d, kernel, stream("rls")))
    drawn = torch.stack(picked)
    index = drawn.to(q.device)
    of_q, of_k = tokens(q, index.clamp(max=n_q - 1)), tokens(k, index - n_q)  # (h, d, p)
    return {"indices": drawn}, torch.where((index < n_q)[..., None], of_q, of_k)


def _invert(
    core: Tensor, inverse: str, gamma: float, n_iter: int, z0: str, rtol: float | None
) -> tuple[list[Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """The factors of the approximate inverse, the inverted matrices, and their inverses, each (h, d, d) float64."""
    if inverse == "pinv":
        root = inverse_root(core, rtol)
        return [root, root.mT], {"core": core}, {"core": root @ root.mT}
    ridged = core + gamma * torch.eye(core.shape[-1], dtype=core.dtype, device=core.device)
    if inverse == "cholesky":
        factor, info = torch.linalg.cholesky_ex(ridged)
        failed = (info != 0)[:, None, None]  # not positive definite in float64: that head's result is NaN
        eye = torch.eye(core.shape[-1], dtype=core.dtype, device=core.device)
        middle = torch.cholesky_inverse(torch.where(failed, eye, factor))
        middle = torch.where(failed, torch.full_like(middle, float("nan")), middle)
        return [middle], {"core": ridged}, {"core": middle}
    r = ridged.sum(-1).rsqrt()  # (h, d)
    scaled = r[:, :, None] * ridged * r[:, None, :]
    z = razavi(scaled, start(scaled, "columns" if z0 == "paper" else z0), n_iter)
    middle = r[:, :, None] * z * r[:, None, :]
    return [middle], {"core": ridged, "scaled": scaled}, {"core": middle, "scaled": z}


def _norm(factors: list[Tensor]) -> Tensor:
    """``‖M⁺‖₂``, (h,): exact for a factored pseudo-inverse, otherwise an upper bound, at most √d times as large."""
    if len(factors) == 2:  # W = U Λ^-½ has orthogonal columns
        return factors[0].square().sum(-2).amax(-1)
    return factors[0].abs().sum(-1).amax(-1)
