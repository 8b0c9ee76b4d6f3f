"""Skeinformer (Chen, Zeng, Ji & Yang 2022): the guarantees of its sketches, and the quality of its pilot estimates.

B^(i) is column i of B, V_i row i of V, B_i row i of B. S (n, d) is a sketch, and ``B S Sᵀ V`` approximates BV. The
optimal sampling probabilities are ``p_i ∝ ‖B^(i)‖ ‖V_i‖``. Their estimates from d pilot rows J are ``p̂_i ∝ ‖B_J^(i)‖
‖V_i‖`` (equation 5). β is the quality of the estimates, the largest number with ``p̂_i ≥ β p_i`` for all i. Everything
is in float64, B is streamed, and random quantities use `Setting.seeds`.

A sketch with ``E[S Sᵀ] = I`` has the (ε, δ)-JL guarantee for vectors if ``‖Sᵀx‖²`` is within ``ε ‖x‖²`` of ``‖x‖²``
with probability 1 - δ, for every x. Then it nearly preserves products too (see `skeinformer-jl`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import exp, log, sqrt
from typing import Any

import torch
from torch import Tensor

from ..operators import SoftmaxAttention
from ..operators.linalg.order import median
from ..qkv import QKV
from .finding import Finding, Setting, frequency, quantile_interval, theorem
from .sketched import SketchedHead, chen2022_quality

SKETCHES = ("gaussian", "optimal", "uniform")
LEAST = sqrt(1 / 3)  # the lower bound of β in Lemma 1
ORDERS = range(2, 65, 2)  # the orders of the moments


def chen2022_error_bound(d: int, beta: float, delta: float) -> float:
    """``η² / (β d)`` with ``η = 1 + √((8/β) ln(1/δ))``: Proposition 1's bound of ``‖BV - BSSᵀV‖_F² / (‖B‖_F² ‖V‖_F²)``.

    It holds with probability 1 - δ for d columns drawn with replacement by probabilities of quality β. Source: Chen et
    al. 2022, Proposition 1, which is Theorem 1 of Drineas, Kannan & Mahoney 2006.

    >>> round(chen2022_error_bound(100, 1.0, 0.1), 3)
    0.28
    """
    if beta <= 0:
        return float("inf")
    return (1 + sqrt(8 / beta * log(1 / delta))) ** 2 / (beta * d)


def chen2022_sampling_failure(d: int, epsilon: float, beta: float) -> float:
    """A bound of ``P(‖BV - BSSᵀV‖_F > ε ‖B‖_F ‖V‖_F)`` for sampling of quality β: the δ of an (ε, δ)-JL guarantee.

    It is the lesser of ``1/(β d ε²)``, by Markov from ``E‖·‖_F² ≤ ‖B‖_F² ‖V‖_F² / (β d)``, and ``exp(-β (ε √(β d) - 1)²
    / 8)``, which is Proposition 1 solved for δ, for ``ε √(β d) > 1``.

    >>> round(chen2022_sampling_failure(1000, 0.1, 1.0), 12)
    0.1
    """
    if beta <= 0:
        return 1.0
    far = epsilon * sqrt(beta * d) - 1
    return min(1.0, 1 / (beta * d * epsilon**2), exp(-beta * far**2 / 8) if far > 0 else 1.0)


def chen2022_gaussian_failure(d: int, epsilon: float) -> float:
    """A bound of ``P(‖BV - BSSᵀV‖_F > ε ‖B‖_F ‖V‖_F)`` for a Gaussian S, ``S_ij ~ N(0, 1/d)``, and any B and V.

    The paper has ``d = Ω(ε⁻² log(1/δ))`` without a constant. The bound here is the lesser of two. The first is ``2/(d
    ε²)``, by Markov from ``E‖·‖_F² = (‖B‖_F² ‖V‖_F² + ‖BV‖_F²) / d``. The second is the least ``(3 m_l / ε)^l`` over
    even l, with ``m_l^l = E|χ²_d/d - 1|^l``: the moments of a vector's length bound those of a product (Kane & Nelson
    2014, Theorem 6.2). The central moments of χ²_d obey ``μ_l = 2 (l - 1) (μ_{l-1} + d μ_{l-2})``.

    >>> round(chen2022_gaussian_failure(2000, 0.1), 12)
    0.1
    >>> chen2022_gaussian_failure(4000, 0.5) < 2 / (4000 * 0.5**2)
    True
    """
    moments = [1.0, 0.0]  # of χ²_d/d - 1
    for order in range(2, ORDERS[-1] + 1):
        moments.append(2 * (order - 1) * (moments[-1] / d + moments[-2] / d))
    return min(1.0, 2 / (d * epsilon**2), *((3 / epsilon) ** order * moments[order] for order in ORDERS))


def chen2022_column_spread(column_squares: Tensor, column_largest: Tensor, n: int) -> float:
    """The spread s of the columns, the least number with ``B_ji² ≤ s ‖B^(i)‖² / n`` for all entries.

    It is 1 if the columns are constant, and n at most. Pilots sample every column well if it is small. It is our own
    measure, in place of the C of Chen et al. 2022, Lemma 1, see `chen2022_pilots_of_proof`.

    Args:
        column_squares: ``‖B^(i)‖²``, (n_k,). column_largest: ``max_j B_ji``, (n_k,). n: the number of rows of B.
    """
    nonzero = column_squares > 0
    return float(n * (column_largest[nonzero].square() / column_squares[nonzero]).max())


def chen2022_pilots_of_proof(least: float, n: int, delta: float) -> float:
    """``(2/C²) ln(2n/δ)``: the pilot rows for which ``β ≥ √(1/3)`` has probability 1 - δ by the proof of Lemma 1.

    C is a lower bound of ``‖B^(i)‖²/n`` for all columns i. By Hoeffding the mean of ``B_ji²`` over d uniform rows
    differs from ``‖B^(i)‖²/n`` by C/2 or more with probability at most ``2 exp(-d C²/2)``. No C is a constant: ``Σ_i
    ‖B^(i)‖² ≤ n`` over n columns, so ``C ≤ 1/n``, and more rows are needed than there are. Source: Chen et al. 2022,
    proof of Lemma 1, whose text has ``d = Ω(log n)`` for a constant C.

    Args:
        least: C, the least ``‖B^(i)‖²/n``. n: the number of columns.

    >>> round(chen2022_pilots_of_proof(1 / 512, 512, 0.1))
    4841305
    """
    return 2 / least**2 * log(2 * n / delta) if least else math.inf


def chen2022_pilots_needed(spread: float, n: int, delta: float) -> float:
    """``10 s ln(2n/δ)``: the pilot rows for which ``β ≥ √(1/3)`` has probability 1 - δ, with constants of our own.

    With s of `chen2022_column_spread`, ``n B_ji² / (s ‖B^(i)‖²)`` for a uniform row j lies in [0, 1] and has mean 1/s.
    By Chernoff, for one column the mean over d rows differs from 1/s by half of it or more with probability at most ``2
    exp(-d / (10 s))``. If no column differs so much, ``p̂_i ≥ √(1/2) / √(3/2) p_i``. So this is Chen et al. 2022, Lemma
    1, for columns of a bounded spread; its own proof needs far more, see `chen2022_pilots_of_proof`.

    >>> round(chen2022_pilots_needed(1.0, 512, 0.1))
    92
    """
    return 10 * spread * log(2 * n / delta)


def zhou2021_sparsity(qkv: QKV) -> Tensor:
    """Informer's sparsity measure ``M_i = ln Σ_j exp(S_ij) - (1/n_k) Σ_j S_ij`` of every query, (h, n_q) float64.

    Source: Zhou et al. 2021, equation 2; Chen et al. 2022, section 3.3.1. ``M_i - ln n_k`` is the logarithm of the
    arithmetic over the geometric mean of row i of A. Cost ``n_q n_k p`` multiply-adds a head.
    """
    q, k = qkv.q.double(), qkv.k.double()
    # the mean score of a query is its score with the mean key, without n² scores
    mean = (qkv.scale * q * k.mean(1, keepdim=True)).sum(-1)
    return SoftmaxAttention(q, k, qkv.scale).log_normalizer() - mean


@theorem(
    "skeinformer-jl",
    paper="Chen et al. 2022 (Skeinformer), JL guarantee of products (section 3)",
    says="a sketch of size d has ‖BV - BSSᵀV‖_F ≤ ε ‖B‖_F ‖V‖_F with probability 1 - δ",
    cost="n² p_v for each sketch, budget and seed",
)
def skeinformer_jl(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The frequency with which each sketch (Gaussian, optimal, uniform sampling) violates the guarantee, against δ.

    The assumption is that the bound of the failure probability for this d and ε is at most δ. The guarantee is vacuous
    for ``‖BV‖_F ≤ ε ‖B‖_F ‖V‖_F``: then the approximation ``0`` satisfies it too.
    """
    heads = SketchedHead.of(qkv)
    for sketch in SKETCHES:
        beta = [1.0 if sketch == "gaussian" else chen2022_quality(h.probabilities(sketch), h.optimal) for h in heads]
        for d in setting.budgets:
            errors = torch.stack([h.sketch_errors(sketch, d, setting) for h in heads])  # (h, R), of ‖B‖_F ‖V‖_F
            for epsilon in setting.epsilons:
                failure = [
                    chen2022_gaussian_failure(d, epsilon)
                    if sketch == "gaussian"
                    else chen2022_sampling_failure(d, epsilon, quality)
                    for quality in beta
                ]
                zero = torch.tensor([h.product for h in heads], dtype=torch.float64) <= epsilon
                yield Finding(
                    "skeinformer-jl",
                    d=d,
                    at={"sketch": sketch, "epsilon": epsilon, "delta": setting.delta},
                    assumption="d is large enough for (ε, δ)",
                    promise="P(‖BV - BSSᵀV‖_F > ε ‖B‖_F ‖V‖_F) ≤ δ",
                    met=_column(failure) <= setting.delta,
                    vacuous=zero,
                    **_frequency(errors > epsilon, setting.delta),
                    details={"failure": _column(failure), "quality": _column(beta), "error_mean": errors.mean(1)},
                )


@theorem(
    "skeinformer-proposition-1",
    paper="Chen et al. 2022 (Skeinformer), Proposition 1",
    says="columns by p̂: ‖BV - BSSᵀV‖_F² is at most η²/(βd) ‖B‖_F² ‖V‖_F² with probability 1 - δ, 1/(βd) on average",
    cost="n² p_v + n d p for each budget and seed",
)
def skeinformer_proposition_1(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The quantile and the mean of the squared error of d columns drawn by p̂ with replacement, over ``‖B‖_F² ‖V‖_F²``.

    Each seed has its own pilots, p̂ and β. The 1 - δ quantile over seeds is compared with the bound of the smallest β,
    which holds for every seed; its interval is by order statistics. The mean is exact for each p̂, ``(Σ_i ‖B^(i)‖²
    ‖V_i‖² / p̂_i - ‖BV‖_F²) / d``, and is compared with the mean of ``1/(β d)``. A bound is vacuous if it is at least
    ``‖BV‖_F²``, the error of the approximation ``0``. β is 0 and the bound infinite if the pilots miss a column.
    """
    heads = SketchedHead.of(qkv)
    for d in setting.budgets:
        samples = [h.sampled_by_pilots(d, setting) for h in heads]
        beta, errors, means = (torch.stack(parts) for parts in zip(*samples, strict=True))  # (h, R) each
        worst = beta.amin(1)
        product = torch.tensor([h.product for h in heads], dtype=torch.float64).square()
        details = {
            "beta": worst,
            "beta_median": median(beta, 1),
            "error_mean": errors.mean(1),
            "optimal_mean": torch.tensor([(h.optimum**2 - h.product**2) / d for h in heads], dtype=torch.float64),
        }
        ends = _column([quantile_interval(row, 1 - setting.delta) for row in errors.tolist()])
        bound = _column([chen2022_error_bound(d, quality, setting.delta) for quality in worst.tolist()])
        eta = 1 + (8 / worst * log(1 / setting.delta)).sqrt()
        shared = {"d": d, "assumption": "p̂_i ≥ β p_i with β > 0", "met": worst > 0}
        yield Finding(
            "skeinformer-proposition-1",
            at={"statistic": "quantile", "delta": setting.delta},
            bound=bound,
            promise="(1 - δ)-quantile of ‖BV - BSSᵀV‖_F² / (‖B‖_F² ‖V‖_F²) ≤ η²/(βd)",
            vacuous=bound >= product,
            measured=errors.quantile(1 - setting.delta, dim=1),
            lower=ends[:, 0],
            upper=ends[:, 1],
            details={**details, "eta": eta},
            **shared,
        )
        bound = (1 / (beta * d)).mean(1)
        yield Finding(
            "skeinformer-proposition-1",
            at={"statistic": "mean"},
            bound=bound,
            measured=means.mean(1),
            promise="E‖BV - BSSᵀV‖_F² / (‖B‖_F² ‖V‖_F²) ≤ E 1/(βd)",
            vacuous=bound >= product,
            rounding=1e-12 * bound.nan_to_num(posinf=0),
            details=details,
            **shared,
        )


@theorem(
    "skeinformer-lemma-1",
    paper="Chen et al. 2022 (Skeinformer), Lemma 1",
    says="with 10 s ln(2n/δ) pilot rows (our number; the proof needs more than there are), β ≥ √(1/3) with probability "
    "1 - δ",
    cost="n d p for each seed",
)
def skeinformer_lemma_1(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The frequency of β below √(1/3), against δ. The promise is that of the lemma, the number of pilots is ours.

    ``needed`` is that number, ``10 s ln(2n/δ)`` with the ``spread`` s measured on all of B. ``proof`` is the number by
    the paper's proof, which exceeds the number of rows for every B.
    """
    heads = SketchedHead.of(qkv)
    spread = [chen2022_column_spread(h.squares, h.largest, qkv.n_q) for h in heads]
    least = [float(h.squares.min()) / qkv.n_q for h in heads]
    needed = _column([chen2022_pilots_needed(of_head, qkv.n_k, setting.delta) for of_head in spread])
    for d in setting.budgets:
        beta = torch.stack([torch.stack([h.pilot(d, setting, seed)[1] for seed in setting.seeds]) for h in heads])
        yield Finding(
            "skeinformer-lemma-1",
            d=d,
            at={"delta": setting.delta},
            assumption="d ≥ 10 s ln(2n/δ), s the spread (our constants)",
            promise="P(β < √(1/3)) ≤ δ",
            met=d >= needed,
            vacuous=torch.zeros(qkv.h, dtype=torch.bool),
            **_frequency(beta < LEAST, setting.delta),
            details={
                "spread": _column(spread),
                "needed": needed,
                "proof": _column([chen2022_pilots_of_proof(of_head, qkv.n_k, setting.delta) for of_head in least]),
                "beta": beta.amin(1),
                "beta_median": median(beta, 1),
            },
        )


@theorem(
    "skeinformer-informer",
    paper="Chen et al. 2022 (Skeinformer), section 3.3.1; Zhou et al. 2021, equation 2",
    says="Informer's sparsity measure M_i grows with the probability of row i in optimal sampling",
    cost="n² p",
)
def skeinformer_informer(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """Spearman's rank correlation of M_i with ``p_i ∝ ‖B_i‖``, the optimal probabilities of rows (B = I B).

    The paper interprets Informer as a sketch of the rows of B. The interval is Fisher's with Bonett & Wright's variance
    ``(1 + ρ²/2) / (n - 3)``, as if queries were independent.
    """
    measured = zip(zhou2021_sparsity(qkv).cpu(), SketchedHead.of(qkv), strict=True)
    rho = _column([_rank_correlation(m, head.row_norms) for m, head in measured])
    varied = rho.isfinite()  # constant numbers have no ranks

    half = 1.96 * ((1 + rho.square() / 2) / max(1, qkv.n_q - 3)).sqrt()
    # a correlation of ±1 would have an infinite angle
    angle = torch.atanh(rho.clamp(-1 + 1e-15, 1 - 1e-15))
    yield Finding(
        "skeinformer-informer",
        assumption="M_i and p_i are not all equal",
        met=varied,
        sense="at least",
        promise="Spearman's ρ of M_i and p_i > 0",
        bound=torch.zeros_like(rho),
        measured=rho,
        lower=torch.tanh(angle - half),
        upper=torch.tanh(angle + half),
        vacuous=torch.zeros(qkv.h, dtype=torch.bool),
    )


def _rank_correlation(x: Tensor, y: Tensor) -> float:
    """Spearman's ρ of two (n,) tensors; NaN if one of them is constant."""
    from scipy.stats import spearmanr

    if (x == x[0]).all() or (y == y[0]).all():
        return math.nan
    correlation, _ = spearmanr(x.cpu().numpy(), y.cpu().numpy())
    return float(correlation)  # type: ignore[arg-type]  # scipy's result is a tuple of numbers that has no type


def _column(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _frequency(failed: Tensor, delta: float) -> dict[str, Any]:
    """The frequency of failures (h, R) against δ, with its exact interval."""
    failures = frequency(failed.T)
    bound = torch.full_like(failures.value, delta)
    return {"bound": bound, "measured": failures.value, "lower": failures.lower, "upper": failures.upper}


VECTORS = ("rows of B", "columns of V")


def chen2022_vector_failure(d: int, epsilon: float) -> float:
    """``P(|‖Sᵀx‖² - ‖x‖²| > ε ‖x‖²) = P(|χ²_d/d - 1| > ε)`` for a Gaussian S, ``S_ij ~ N(0, 1/d)``, and any x.

    It is exact: the d entries of Sᵀx are independent ``N(0, ‖x‖²/d)``. With P the regularised incomplete gamma function
    it is ``P(d/2, d (1 - ε)/2) + 1 - P(d/2, d (1 + ε)/2)``, at most ``2 exp(-d (ε - ln(1 + ε))/2)``. This gives the
    paper's ``d = Ω(ε⁻² log(1/δ))`` its constant. Source: Chen et al. 2022, section 3, the JL guarantee; Johnson &
    Lindenstrauss 1984.

    >>> round(chen2022_vector_failure(2, 0.5), 6)  # 1 - e^-½ + e^-1½
    0.6166
    """
    half = torch.tensor(d / 2, dtype=torch.float64)
    below = torch.special.gammainc(half, half * max(0.0, 1 - epsilon))
    return float(below + torch.special.gammaincc(half, half * (1 + epsilon)))


@theorem(
    "skeinformer-jl-vector",
    paper="Chen et al. 2022 (Skeinformer), JL guarantee of vectors (section 3)",
    says="a sketch of size d keeps ‖Sᵀx‖² within ε‖x‖² of ‖x‖² with probability 1 - δ for every x",
    cost="n² to choose x, and n d for each sketch and seed",
)
def skeinformer_jl_vector(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The frequency with which each sketch violates the guarantee for the hardest row of B and column of V, against δ.

    The hardest x is the one whose length varies most under sampling (`SketchedHead.hardest`); for a Gaussian S all
    vectors are alike. It is chosen independently of the draws, so each seed is one trial of one event. The assumption,
    for all sketches, is that d suffices for a Gaussian S by `chen2022_vector_failure`. For a sampling sketch the
    verdict says whether it has the guarantee at this d too. No sampling of fewer than n entries has it for every x,
    because it can miss the only nonzero entry of a vector. The guarantee is vacuous for ``ε ≥ 1``, because ``S = 0``
    has it. ``share`` is the share of columns of V and seeds that violate it.
    """
    heads = SketchedHead.of(qkv)
    for sketch in SKETCHES:
        chosen = {of: [h.hardest(h.probabilities(sketch), of) for h in heads] for of in VECTORS}
        for d in setting.budgets:
            columns = torch.stack([h.length_errors(h.v, sketch, d, setting) for h in heads])  # (h, p_v, R)
            for of in VECTORS:
                errors = torch.stack(
                    [h.length_errors(x, sketch, d, setting) for h, x in zip(heads, chosen[of], strict=True)]
                )
                for epsilon in setting.epsilons:
                    failure = torch.full((qkv.h,), chen2022_vector_failure(d, epsilon), dtype=torch.float64)
                    yield Finding(
                        "skeinformer-jl-vector",
                        d=d,
                        at={"sketch": sketch, "of": of, "epsilon": epsilon, "delta": setting.delta},
                        assumption="d is large enough for a Gaussian S",
                        met=failure <= setting.delta,
                        promise="P(|‖Sᵀx‖² - ‖x‖²| > ε‖x‖²) ≤ δ",
                        vacuous=torch.full((qkv.h,), epsilon >= 1),
                        **_frequency(errors > epsilon, setting.delta),
                        details={
                            "failure": failure,
                            "error_mean": errors.mean(1),
                            "share": (columns > epsilon).double().mean((1, 2)),
                        },
                    )
