"""WildCat (Schröder & Mackey 2026) and randomly pivoted Cholesky (Chen, Epperly, Tropp & Webber 2025).

S are the d keys that ``wildcat`` draws, W its weights, ``A = exp(β Q Kᵀ)`` of keys centred by their mean, τ the
temperature. ``h = exp(β K Kᵀ/τ²)`` is the kernel of the keys, ``r_j = h_jj - h_jS h_SS⁻¹ h_Sj`` its residual.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log

import torch
from torch import Tensor

from ..approximation import Approximation
from ..errors import Unsupported
from ..operators.linalg.coresets import SQUARED_TEMPERATURE, randomly_pivoted
from ..qkv import QKV
from .entries import Bound, Entries, EntryErrors, entry_blocks, entry_errors, entry_findings, least_bound
from .finding import Finding, Setting, theorem

ROUNDING = 64  # eps of float64, times the root of the core's condition, within which an error is 0


def residuals(kernel: Tensor, pivots: Tensor) -> Tensor:
    """``r_j = h_jj - h_jS h_SS⁺ h_Sj``, at least 0, of kernels (h, n, n) and ``pivots`` S (h, d), as (h, n).

    Cost ``n d²`` and O(d³).

    >>> residuals(torch.tensor([[[1.0, 0.5], [0.5, 1.0]]]).double(), torch.tensor([[0]]))
    tensor([[0.0000, 0.7500]], dtype=torch.float64)
    """
    rows = kernel.gather(1, pivots[..., None].expand(-1, -1, kernel.shape[2]))  # (h, d, n)
    core = rows.gather(2, pivots[:, None].expand(-1, pivots.shape[1], -1))
    # a pseudo-inverse, because pivots may repeat, and the core is then singular
    solved = torch.linalg.pinv(core, hermitian=True) @ rows
    return (kernel.diagonal(dim1=1, dim2=2) - (rows * solved).sum(1)).clamp(min=0)


def chen2025_trace(values: Tensor, d: int) -> float:
    """The least bound of the expected trace of the residual after d pivots, from the eigenvalues (n,), descending.

    ``E tr(h - h_S) ≤ 2 Σ_{i>k} λ_i`` for every k with ``d ≥ k + min(k ln(1/η), k + k ln₊ 2^k)``, ``η = Σ_{i>k} λ_i /
    Σ λ_i``: theorem 3.1 of Chen et al. 2025 at ε = 1. The trace never grows, so the bound is at most ``tr h``.

    >>> round(chen2025_trace(torch.tensor([1.0, 0.1, 0.01, 0.0]), 4), 3)  # k = 1: η = 0.099, 1 + 1 + ln 2 ≤ 4
    0.22
    """
    total, best = float(values.sum()), float(values.sum())
    for k in range(1, min(d, len(values))):
        tail = float(values[k:].sum())
        # rank k: the logarithm of total / tail is infinite, and the other bound of k decides
        if tail <= 0:
            return 0.0 if 2 * k + k * k * log(2) <= d else best
        if k + min(k * log(total / tail), k + k * k * log(2)) <= d:
            best = min(best, 2 * tail)
    return best


@theorem(
    "wildcat-entry",
    paper="Schröder & Mackey 2026 (WildCat), from its derivation of W",
    says="no entry of A errs by more than exp(β τ² ‖q‖²/2) √r: |A_ij - (L W)_ij| is bounded by the residual of key j",
    cost="for each d: n² (p + d) + 16 n d (p + d)",
    per_budget=True,
    decompositions=0,
)
def wildcat_entry(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The largest error of an entry against the bound of the head, both over the largest entry of A.

    ``A_ij = ⟨φ(t q_i), φ(k_j/t)⟩`` in the Hilbert space of ``exp(β x·y)``, for every t. So ``A_ij - (L W)_ij = ⟨φ(t
    q_i), φ(k_j/t) - Σ_s W_sj φ(k_s/t)⟩``, where φ(t q) has the norm ``exp(β t² ‖q‖²/2)``. At t = τ, W projects φ(k_j/τ)
    onto those of S, and the rest has the norm √r_j. That is the paper's bound. A second finding has the t that makes
    the bound of the head least, with the same W. ``squared_temperature`` is t², ``share`` the largest ratio of an error
    to the bound of its own entry. A bound from 1 on is vacuous: ``L W = 0`` keeps it too.
    """
    wide = qkv.to(dtype=torch.float64)
    promise = "‖A - L W‖_max / ‖A‖_max ≤ max_i exp(β τ² ‖q_i‖²/2) max_j √r_j / ‖A‖_max"
    for d, approx in setting.runs("wildcat"):
        parts = [_entry_errors(wide.head(row), approx, row) for row in range(wide.h)]
        amplified = torch.tensor([factor for _, factor in parts], dtype=torch.float64)
        rounding = ROUNDING * torch.finfo(torch.float64).eps * amplified
        yield from entry_findings("wildcat-entry", d, promise, [errors for errors, _ in parts], rounding)


def _entry_errors(qkv: QKV, approx: Approximation, row: int) -> tuple[list[EntryErrors], float]:
    """The errors of L W of one head, less their rounding; the factor by which the core's inverse amplifies rounding."""
    assert approx.log_normalizer is not None
    mean = qkv.k[0].mean(0)
    k, q = qkv.k[0] - mean, qkv.q[0]
    log_sums = approx.log_normalizer()[row].double() - qkv.scale * q @ mean  # of the centred keys
    numbers = approx.draws["pivot_numbers"][row : row + 1].to(k.device)
    x = k * (qkv.scale / SQUARED_TEMPERATURE) ** 0.5
    pivots = randomly_pivoted(x[None], numbers)[0]
    core = gaussian(x[pivots], x[pivots])
    weights = torch.linalg.pinv(core, hermitian=True) @ gaussian(x[pivots], x)  # for G, (d, n_k)

    def at(squared: float) -> Bound:
        log_row = qkv.scale * squared * q.square().sum(-1) / 2
        return Bound(log_row, log_remainders(x, pivots, weights, squared / SQUARED_TEMPERATURE), squared)

    amplified = min(float(torch.linalg.cond(core)), 1 / torch.finfo(core.dtype).eps) ** 0.5  # by the inverse's root
    noise = ROUNDING * torch.finfo(torch.float64).eps * amplified

    def of_block(block: Entries) -> tuple[Tensor, Tensor]:  # ln |A|, and ln |A - L W| less its rounding, (b, n_k) each
        error = (block.exact - block.approximate).abs()
        return block.scores, (error - noise).clamp(min=0).log() + block.top

    blocks = entry_blocks(q, k, qkv.scale, approx.matrix().heads(slice(row, row + 1)), log_sums)
    bounds = [at(SQUARED_TEMPERATURE), least_bound(at, SQUARED_TEMPERATURE)]
    return entry_errors(map(of_block, blocks), bounds), amplified


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    """``exp(-‖x_i - y_j‖²/2)``, (a, b)."""
    return (-0.5 * torch.cdist(x, y).square()).exp()


def log_remainders(x: Tensor, pivots: Tensor, weights: Tensor, squared: float) -> Tensor:
    """``ln ‖φ(x_j/t) - Σ_s W_sj φ(x_s/t)‖`` for the features φ of ``exp(x·y)`` and ``t² = squared``, (n,) float64.

    Args:
        pivots: S, (d,).
        weights: ``exp(a_s - a_j) W_sj``, (d, n), with ``a = ‖x‖²/2``: the weights for a Gaussian kernel.

    The square is never too small by rounding: 64 eps of the sum of its terms' sizes are added, times those of the
    kernel's exponents. Cost ``n d (p + d)``.

    >>> x = torch.tensor([[0.0], [2.0]]).double()
    >>> weights = torch.tensor([[1.0, 0.5]]).double()  # W = 1, ½ e^2
    >>> log_remainders(x, torch.tensor([0]), weights, 2.0)[1].exp().square().round(decimals=4)  # e^2 - e^2 + e^4/4
    tensor(13.6495, dtype=torch.float64)
    """
    half = x.square().sum(-1) / 2
    own = x / squared**0.5
    moved = half / squared - half
    scaled = weights * (moved[pivots, None] - moved).exp()  # W for a Gaussian kernel at t
    core, rows = gaussian(own[pivots], own[pivots]), gaussian(own[pivots], own)
    square = 1 - 2 * (scaled * rows).sum(0) + (scaled * (core @ scaled)).sum(0)
    size = (1 + scaled.abs().sum(0)).square() * (1 + half.max() / squared)
    rounding = ROUNDING * torch.finfo(x.dtype).eps * size
    norm = 0.5 * (square.clamp(min=0) + rounding).log() + half / squared
    return norm.nan_to_num(torch.inf, torch.inf)  # where W overflows


@theorem(
    "wildcat-trace",
    paper="Chen, Epperly, Tropp & Webber 2025 (randomly pivoted Cholesky), Theorem 3.1",
    says="d random pivots leave an expected trace of the residual of at most twice the best of rank k, for k below d",
    cost="n³ for the eigenvalues of h, and n d² for each d and seed",
    per_seed=True,
    per_budget=True,
)
def wildcat_trace(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The mean over seeds of ``Σ_j r_j`` as a share of ``Σ_j h_jj``, against the bound at the best k.

    The interval has three standard errors on each side. ``best`` is the smallest possible share for d pivots, ``Σ_{i>d}
    λ_i / Σ λ_i``.
    """
    if min(setting.budgets) > qkv.n_k:
        raise Unsupported(f"d={min(setting.budgets)} exceeds n_k={qkv.n_k}; choose d in 1..{qkv.n_k}")
    k = qkv.k.double()
    k = k - k.mean(1, keepdim=True)
    x = k * (qkv.scale / SQUARED_TEMPERATURE) ** 0.5
    half = x.square().sum(-1) / 2
    tilt = (half - half.amax(1, keepdim=True)).exp()
    # exp(β K Kᵀ/τ²) over its largest diagonal entry: shares of the trace are the same, and nothing overflows
    kernel = tilt[:, :, None] * (-0.5 * torch.cdist(x, x).square()).exp() * tilt[:, None]
    values = torch.linalg.eigvalsh(kernel).flip(-1).clamp(min=0)
    total = kernel.diagonal(dim1=1, dim2=2).sum(-1)
    for d in setting.budgets:
        if d > qkv.n_k:
            continue
        shares = []
        for seed in setting.seeds:
            streams = setting.streams("wildcat-trace", seed)
            drawn = [torch.rand(d, generator=streams.head(head), dtype=torch.float64) for head in qkv.heads]
            pivots = randomly_pivoted(x, torch.stack(drawn).to(x.device))
            shares.append(residuals(kernel, pivots).sum(-1) / total)
        share = torch.stack(shares).cpu()
        mean = share.mean(0)
        error = 3 * share.std(0, correction=min(1, len(share) - 1)) / len(share) ** 0.5
        bound = torch.tensor([chen2025_trace(of_head, d) for of_head in values.cpu()], dtype=torch.float64)
        bound = bound / total.cpu()
        yield Finding(
            theorem="wildcat-trace",
            d=d,
            assumption="none",
            met=torch.ones(qkv.h, dtype=torch.bool),
            promise="E Σ r_j / Σ h_jj ≤ 2 Σ_{i>k} λ_i / Σ λ_i",
            bound=bound,
            measured=mean,
            lower=mean - error,
            upper=mean + error,
            rounding=ROUNDING * torch.finfo(torch.float64).eps,
            vacuous=bound >= 1 - 1e-12,
            details={"best": (values[:, d:].sum(-1) / total).cpu()},
        )
