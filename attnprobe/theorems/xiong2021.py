"""Nyströmformer (Xiong et al. 2021): the convergence of its iteration, and its exactness if all tokens are landmarks.

A is the core, softmax over the landmarks (their ``A_S``). Z_k is the k-th iterate of Razavi et al. 2014 from ``Z_0 = Aᵀ
/ (‖A‖₁ ‖A‖_∞)``, ``E_k = A A⁺ - A Z_k`` its residual, and e_k = ‖E_k‖₂. All in float64.

Because ``A Z_0 = A Aᵀ / (‖A‖₁ ‖A‖_∞)``, every E_k is a symmetric function of A Aᵀ, and one step is exactly ``E ← ¾ E³ +
¼ E⁴``. The norms follow ``e ← ¾ e³ + ¼ e⁴`` from ``e_0 = 1 - g``, with the gap ``g = σ_r² / (‖A‖₁ ‖A‖_∞)`` of the
smallest nonzero singular value. So g alone determines the number of steps. As long as e is near 1, a step only
multiplies ``1 - e`` by 13/4. The third order begins after about ``ln(1/g) / ln(13/4)`` steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import inf, log

import torch
from torch import Tensor

from ..errors import Unsupported
from ..operators.linalg.inverses import razavi, start
from ..operators.linalg.spectra import held
from ..qkv import QKV
from ..reference import exact
from .finding import Finding, Setting, theorem

EPS = torch.finfo(torch.float64).eps
MOST_STEPS = 60
PAPER_STEPS = 6
CONVERGED = 1e-8
HELD = 4096  # the most tokens for which Lemma 2 is checked: it decomposes n x n matrices, one head at a time


def xiong2021_next_residual(residual: Tensor) -> Tensor:
    """``¾ e³ + ¼ e⁴``, at most ``e³``: the residual (…) after one step from a residual e ≤ 1, (…).

    ``Z ← ¼ Z (13 I - AZ (15 I - AZ (7 I - AZ)))`` takes ``E = A A⁺ - A Z`` to ``¾ E³ + ¼ E⁴``. Source: Xiong et al.
    2021, Lemma 1 and equation 11, which state the third order without this constant.

    >>> float(xiong2021_next_residual(torch.tensor(0.5, dtype=torch.float64)))
    0.109375
    """
    return 0.75 * residual**3 + 0.25 * residual**4


def xiong2021_gap(core: Tensor) -> Tensor:
    """``g = σ_r² / (‖A‖₁ ‖A‖_∞) = 1 - ‖A A⁺ - A Z_0‖₂`` of cores (h, d, d), (h,): Lemma 1's precondition is g > 0.

    σ_r is the smallest singular value above ``d eps σ_1``. Source: Xiong et al. 2021, Lemma 1, for its Z_0.
    """
    values = torch.linalg.svdvals(core)
    nonzero = values > core.shape[-1] * EPS * values[:, :1]
    least = torch.where(nonzero, values, torch.full_like(values, inf)).amin(-1)
    return least.square() / (core.abs().sum(-2).amax(-1) * core.abs().sum(-1).amax(-1))


def xiong2021_residual_after(gap: Tensor, steps: int) -> Tensor:
    """``‖A A⁺ - A Z_steps‖₂`` in exact arithmetic, (h,), from the gaps of cores alone, (h,).

    >>> round(float(xiong2021_residual_after(torch.tensor(1e-4, dtype=torch.float64), 6)), 3)
    0.889
    """
    return next(islice(_in_exact_arithmetic(gap), steps, None))


def xiong2021_steps(gap: Tensor, residual: float = CONVERGED) -> Tensor:
    """The least number of steps with a residual of at most ``residual`` in exact arithmetic, (h,), from gaps (h,).

    It is NaN if 60 steps do not suffice.
    """
    steps = torch.full_like(gap, float("nan"))
    for step, e in zip(range(MOST_STEPS + 1), _in_exact_arithmetic(gap), strict=False):
        steps = torch.where(steps.isnan() & (e <= residual), torch.full_like(steps, step), steps)
    return steps


def _in_exact_arithmetic(gap: Tensor) -> Iterator[Tensor]:
    """Yields ``e_0, e_1, …`` from a gap, without end. For e near 1 it computes ``1 - e`` itself, to avoid rounding."""
    e, t = 1 - gap, gap
    while True:
        yield e
        closer = t * (13 - t * (15 - t * (7 - t))) / 4  # 1 - (¾ e³ + ¼ e⁴) of e = 1 - t
        e = torch.where(t < 0.5, 1 - closer, xiong2021_next_residual(e))
        t = torch.where(t < 0.5, closer, 1 - e)


@theorem(
    "nystromformer-precondition",
    paper="Xiong et al. 2021 (Nyströmformer), Lemma 1 (its condition on Z₀)",
    says="Z_0 = Aᵀ / (‖A‖₁ ‖A‖_∞) has ‖A A⁺ - A Z_0‖ < 1, so that the iteration converges to A⁺",
    cost="d³",
)
def nystromformer_precondition(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The start of the iteration on each core. The statement holds for every A; the gap says by how much.

    Vacuous for a gap within rounding, ``g ≤ d eps``: float64 cannot distinguish such a start from one that fails.
    ``steps`` is the number of steps to a residual of 1e-8, ``after_6`` the residual after the paper's six; both follow
    from g.
    """
    for d, approx in setting.runs("nystromformer"):
        core = approx.cores["A"].double().cpu()
        gap = xiong2021_gap(core)
        yield Finding(
            "nystromformer-precondition",
            d=d,
            assumption="none",
            met=torch.ones(qkv.h, dtype=torch.bool),
            promise="‖A A⁺ - A Z_0‖ < 1",
            bound=torch.ones_like(gap),
            measured=torch.linalg.matrix_norm(_range_projector(core) - core @ start(core, "norms"), 2),
            rounding=4 * d * EPS,
            vacuous=gap <= d * EPS,
            details={"gap": gap, "steps": xiong2021_steps(gap), "after_6": xiong2021_residual_after(gap, PAPER_STEPS)},
        )


@theorem(
    "nystromformer-lemma-1",
    paper="Xiong et al. 2021 (Nyströmformer), Lemma 1 (Razavi et al. 2014)",
    says="the iteration converges to A⁺ in the third order: ln ‖E_{k+1}‖ / ln ‖E_k‖ ≥ 3",
    cost="d³ a step, up to 60",
)
def nystromformer_lemma_1(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The order of convergence on each core, from successive residuals above rounding.

    ``e_{k+1} ≤ e_k³`` for every step, so the smallest ``ln e_{k+1} / ln e_k`` is at least 3. If the rounding of ``A
    Z``, ``d eps ‖A‖ ‖Z‖``, exceeds every residual of the third order, the lemma's assumption is not met in float64.
    ``order`` is the slope of ln e_{k+1} in ln e_k for e_k ≤ ½, ``after_6`` the measured residual after the paper's six
    steps, ``residuals`` (h, steps) all until the head has converged. Late residuals grow again by rounding in the small
    directions of A.
    """
    for d, approx in setting.runs("nystromformer"):
        core = approx.cores["A"].double().cpu()
        series, noise = _series(core)  # (h, K) each
        least, most, slope = (torch.stack(x) for x in zip(*map(_order, series, noise), strict=True))
        after = series[:, PAPER_STEPS]
        yield Finding(
            "nystromformer-lemma-1",
            d=d,
            assumption="‖A A⁺ - A Z_0‖ < 1 above rounding",
            met=~least.isnan(),
            promise="ln ‖E_{k+1}‖ / ln ‖E_k‖ ≥ 3",
            sense="at least",
            bound=torch.full_like(least, 3.0),
            measured=least,
            lower=least,
            upper=most,
            certified=True,
            vacuous=torch.zeros(qkv.h, dtype=torch.bool),
            details={
                "order": slope,
                "after_6": after,
                "smallest": series.nan_to_num(nan=inf).amin(1),
                "residuals": series,
            },
        )


@theorem(
    "nystromformer-lemma-2",
    paper="Xiong et al. 2021 (Nyströmformer), Lemma 2",
    says="where the landmarks are the data, d = n, the approximation with the true A⁺ is B",
    cost="n³, n ≤ 4096; per head two decompositions of n x n, some 5 minutes of one core at n = 4096",
)
def nystromformer_lemma_2(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """``‖B - B~‖_F / ‖B‖_F`` of ``nystromformer:inverse=pinv`` with d = n; ``schulz`` is the error with six steps.

    There ``F = A = W = B``, and ``B B⁺ B = B``. The inverse amplifies rounding to ``n eps σ_1 / σ_r``. If that is 1 or
    more, float64 cannot decide the statement, and it is vacuous.

    Raises:
        Unsupported: n above 4096, or different numbers of queries and keys.
    """
    if qkv.n_q != qkv.n_k or qkv.n_q > HELD:
        raise Unsupported(
            f"nystromformer-lemma-2: {qkv.n_q} queries and {qkv.n_k} keys; it needs equal numbers, up to {HELD}"
        )
    seed = setting.seeds[0]
    target, numbers = exact(qkv.to(dtype=torch.float64)), []
    for row in range(qkv.h):
        b = held(target.heads(slice(row, row + 1)))
        values = torch.linalg.svdvals(b)
        nonzero = values[values > qkv.n * EPS * values[0]]
        errors = []
        for method in ("nystromformer:inverse=pinv", "nystromformer"):
            errors.append((b - held(setting.run(method, qkv.n, seed, row).matrix())).norm() / b.norm())
        rank = torch.tensor(float(len(nonzero))).to(b)
        numbers.append(torch.stack([*errors, nonzero[0] / nonzero[-1], rank]).cpu())
    error, schulz, condition, rank = torch.stack(numbers).T
    rounding = qkv.n * EPS * condition
    yield Finding(
        "nystromformer-lemma-2",
        d=qkv.n,
        assumption="landmarks are the data",
        met=torch.ones(qkv.h, dtype=torch.bool),
        promise="B~ = B",
        bound=torch.zeros_like(error),
        measured=error,
        rounding=rounding,
        vacuous=rounding >= 1,
        details={"schulz": schulz, "condition": condition, "rank": rank},
    )


def _range_projector(core: Tensor) -> Tensor:
    """``A A⁺``, the projector on the range of A, the identity if A has full rank."""
    d = core.shape[-1]
    u, s, _ = torch.linalg.svd(core)
    nonzero = s > d * EPS * s[:, :1]
    projector = (u * nonzero[:, None, :]) @ u.mT
    return torch.where(nonzero.all(-1)[:, None, None], torch.eye(d, dtype=core.dtype), projector)


def _series(core: Tensor) -> tuple[Tensor, Tensor]:
    """``e_0, e_1, …`` and the rounding of each, (h, K); NaN once a head has converged or reached its rounding.

    Each head has at least the paper's six steps.
    """
    z, projector, size = start(core, "norms"), _range_projector(core), torch.linalg.matrix_norm(core)
    residuals, noise, ended = [], [], torch.zeros(len(core), dtype=torch.bool)
    for step in range(MOST_STEPS + 1):
        error = projector - core @ z
        bad = ~torch.isfinite(error).all(-1).all(-1)
        # SVD raises for NaN, and the other heads must go on
        error = torch.where(bad[:, None, None], torch.zeros_like(error), error)
        spectral = torch.linalg.matrix_norm(error, 2)
        residuals.append(spectral.masked_fill(bad | ended, float("nan")))
        noise.append(16 * EPS * core.shape[-1] ** 0.5 * size * torch.linalg.matrix_norm(z))
        # a residual above 2 diverges: in exact arithmetic it is at most 1
        ended |= (bad | (residuals[-1] <= noise[-1]) | (residuals[-1] > 2)) & (step >= PAPER_STEPS)
        if ended.all():
            break
        z = razavi(core, z, 1)
    return torch.stack(residuals, 1), torch.stack(noise, 1)


def _order(residuals: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The smallest ``ln e_{k+1} / ln e_k``, its largest possible value under rounding, and the slope of late steps."""
    ratios, ends, points = [], [], []
    for (e, f), (after, g) in zip(_pairs(residuals, noise), _pairs(residuals[1:], noise[1:]), strict=False):
        # both residuals must stand ten times above their rounding, and e away from 1, where ln e is rounding
        if not (f < 0.1 * (1 - e) and g < 0.1 * after < 0.1):
            continue
        ratios.append(log(after) / log(e))
        ends.append(log(after - g) / log(e + f))
        if e <= 0.5:
            points.append((log(e), log(after)))

    def number(value: float | list[tuple[float, float]]) -> Tensor:
        return torch.tensor(value, dtype=torch.float64)

    slope = float("nan")
    if len(points) > 1:
        x, y = number(points).T
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    if not ratios:
        return number(float("nan")), number(float("nan")), number(slope)
    return number(min(ratios)), number(min(ends)), number(slope)


def _pairs(a: Tensor, b: Tensor) -> Iterator[tuple[float, float]]:
    return zip(a.tolist(), b.tolist(), strict=True)
