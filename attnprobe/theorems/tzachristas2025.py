"""Tzachristas et al. 2025: the error of a row that is truncated to its k largest weights and renormalised.

P is a row of exact attention, P^ its truncation to the k largest weights, τ the lost mass. The paper's k is our d. The
statements hold for causal rows too.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist

import torch
from torch import Tensor

from ..metrics.rows import row_metrics
from ..operators.blocks import row_blocks
from ..qkv import QKV
from ..reference import exact, exact_output
from .finding import Finding, Setting, theorem

PAPER = "Tzachristas et al. 2025 (top-k theory)"
ROUNDING = 64  # eps of the dtype of Q, K and V, within which two sides of an identity are equal
LEAST_KEYS = 64  # of a row; the rule for Gaussian scores holds for many keys
LEVEL, TENTH = 0.05, 0.1  # of the test of Gaussian scores; what stands for small in an asymptotic rule
BLOCK = 256


def gaussian_keys(spread: float, epsilon: float) -> float:
    """The share of keys ``k_ε / n = Φ_c(σ + Φ⁻¹(ε))`` that leaves a mass of ε, for scores i.i.d. N(μ, σ²) and large n.

    >>> round(gaussian_keys(2.9, 0.1), 3), gaussian_keys(0.0, 0.25)
    (0.053, 0.75)
    """
    normal = NormalDist()
    return 1 - normal.cdf(spread + normal.inv_cdf(epsilon))


def largest_distance(values: Tensor) -> Tensor:
    """The largest distance of two rows of each head, (h,), for ``values`` (h, n, p): ``n² p`` multiply-adds."""
    values = values.double()
    largest = values.new_zeros(len(values))
    for start, stop in row_blocks(values.shape[1], BLOCK):
        largest = torch.maximum(largest, torch.cdist(values[:, start:stop], values).amax((1, 2)))
    return largest


@theorem(
    "topk-tv",
    paper=f"{PAPER}, identity of total variation",
    says="a truncated row is at the distance of its lost mass: TV(P, P^) = τ = 1 - exp(-KL(P^ ‖ P))",
    cost="for each d: topk, and n² (p + p_v)",
    per_budget=True,
    causal=True,
    decompositions=0,
)
def topk_tv(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The largest difference of the two sides over the rows of a head, for both identities, against rounding."""
    wide = qkv.to(dtype=torch.float64)
    for d, approx in setting.runs("topk"):
        measured = row_metrics(exact(wide), approx, wide)
        lost = 1 - measured["mass"]
        sides = {"tau": (measured["tv"], lost), "kl": (measured["tv"], -torch.expm1(-measured["kl"]))}
        for of, (left, right) in sides.items():
            yield _at_most("topk-tv", d, (left - right).abs().amax(1), _equal(qkv), of, lost=lost.mean(1))


@theorem(
    "topk-output",
    paper=f"{PAPER}, output error and diameter bound",
    says="‖o - o^‖ = τ ‖μ_tail - μ_head‖ ≤ τ · diam(V)",
    cost="for each d: topk, and n² (p + 2 p_v)",
    per_budget=True,
    causal=True,
    decompositions=0,
)
def topk_output(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """Both sides of the identity, and the worst row's share of its bound, ``max_i ‖o_i - o^_i‖ / (τ_i diam)``.

    The error of a row is taken less its rounding.
    """
    wide = qkv.to(dtype=torch.float64)
    diameter = largest_distance(wide.v).cpu()
    sizes = exact_output(wide).norm(dim=-1).cpu()
    for d, approx in setting.runs("topk"):
        measured = {name: values.cpu() for name, values in row_metrics(exact(wide), approx, wide).items()}
        difference = (measured["row_error"] - measured["tv"] * measured["tail_gap"]).abs().amax(1)
        yield _at_most("topk-output", d, difference, _equal(qkv), "factorisation")
        rounding = ROUNDING * torch.finfo(qkv.dtype).eps
        # without its rounding, of which a row that loses nothing has some
        error, lost = (measured["row_error"] - rounding).clamp(min=0) * sizes, 1 - measured["mass"]
        share = torch.where(error > 0, error / (lost * diameter[:, None]), torch.zeros_like(error))
        yield _at_most("topk-output", d, share.amax(1), torch.ones(qkv.h), "diameter", mean=share.mean(1))


@theorem(
    "topk-gaussian",
    paper=f"{PAPER}, rule for Gaussian scores",
    says="if scores are i.i.d. Gaussian with s.d. σ, k_ε ≈ n Φ_c(σ + Φ⁻¹(ε)) keys leave a mass of ε",
    cost="n² (p + p_v)",
    causal=True,
    decompositions=0,
)
def topk_gaussian(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The mean over rows of k_ε beside the rule at each row's own standard deviation of scores, as a relative distance.

    The assumption is tested: the test of Jarque & Bera (1980) rejects Gaussian scores at `LEVEL` for at most a tenth
    of the rows. The rule is asymptotic in the number of keys: rows that see fewer than 64 keys do not count, k_ε may
    differ from the rule by a tenth, and ``exp(σ²)/n``, the relative variance of ``Σ_j exp(s_j)``, is at most a tenth,
    mean over rows. ``keys`` and ``rule`` are the two means, ``kurtosis`` is the mean excess kurtosis of the scores,
    ``rejected`` the share of rows whose scores are not Gaussian, ``variance`` that relative variance.
    """
    wide = qkv.to(dtype=torch.float64)
    for epsilon in setting.epsilons:
        # the rule is about a mass of ε; other theorems allow a relative error of 1 and more
        if not 0 < epsilon < 1:
            continue
        heads = [_head_keys(wide.head(row), epsilon) for row in range(wide.h)]
        needed, ruled, spread, skewness, kurtosis, count = (torch.stack(part) for part in zip(*heads, strict=True))
        p = torch.exp(-count / 12 * (skewness.square() + kurtosis.square() / 4))  # chi-squared, two degrees of freedom
        rejected, variance = (p < LEVEL).double().mean(1), (spread.square().exp() / count).mean(1)
        yield Finding(
            theorem="topk-gaussian",
            at={"epsilon": epsilon},
            assumption="scores of a row are i.i.d. Gaussian (rejected in at most 10% of rows), mean exp(σ²)/n ≤ 10%",
            met=(rejected <= TENTH) & (variance <= TENTH),
            promise="|mean k_ε / mean n Φ_c(σ + Φ⁻¹(ε)) - 1| ≤ 10%",
            bound=torch.full((qkv.h,), TENTH, dtype=torch.float64),
            measured=(needed.mean(1) / ruled.mean(1) - 1).abs(),
            vacuous=torch.zeros(qkv.h, dtype=torch.bool),
            details={
                "keys": needed.mean(1),
                "rule": ruled.mean(1),
                "kurtosis": kurtosis.mean(1),
                "rejected": rejected,
                "variance": variance,
            },
        )


def _head_keys(qkv: QKV, epsilon: float) -> tuple[Tensor, ...]:
    """Of the rows of one head that see enough keys, (rows,) each.

    These are k_ε, its value by the rule, s.d., skewness and excess kurtosis of scores, and the number of visible keys.
    """
    visible, rows = qkv.visible, []
    for start, stop in row_blocks(qkv.n_q, BLOCK):
        scores = qkv.scale * qkv.q[0, start:stop] @ qkv.k[0].mT
        hidden = torch.zeros_like(scores, dtype=torch.bool)
        if visible is not None:
            hidden = visible.of(slice(start, stop)).hidden(qkv.n_k)
        count = (~hidden).sum(1)
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1).sort(-1, descending=True).values
        mean = scores.masked_fill(hidden, 0).sum(1) / count
        away = (scores - mean[:, None]).masked_fill(hidden, 0)
        spread = (away.square().sum(1) / count).sqrt()
        ruled = [
            int(n) * gaussian_keys(float(s), epsilon) if n >= LEAST_KEYS else 0.0
            for n, s in zip(count, spread, strict=True)
        ]
        found = (
            (weights.cumsum(-1) < 1 - epsilon).sum(1) + 1,
            torch.tensor(ruled, dtype=torch.float64, device=count.device),
            spread,
            away.pow(3).sum(1) / count / spread**3,
            away.pow(4).sum(1) / count / spread**4 - 3,
            count,
        )
        rows.append(torch.stack([part.double() for part in found])[:, count >= LEAST_KEYS].cpu())
    return tuple(torch.cat(rows, 1))


PROMISES = {
    "tau": "TV(P, P^) = τ but for rounding",
    "kl": "TV(P, P^) = 1 - exp(-KL) but for rounding",
    "factorisation": "‖o - o^‖ = τ ‖μ_tail - μ_head‖ but for rounding",
    "diameter": "‖o - o^‖ / (τ diam(V)) ≤ 1",
}


def _equal(qkv: QKV) -> Tensor:
    """The largest difference of two sides of an identity that rounding makes, (h,)."""
    return torch.full((qkv.h,), ROUNDING * torch.finfo(qkv.dtype).eps)


def _at_most(name: str, d: int, measured: Tensor, bound: Tensor, of: str, **details: Tensor) -> Finding:
    """A finding without an assumption, about the worst row of each head."""
    h = len(measured)
    return Finding(
        theorem=name,
        d=d,
        at={"of": of},
        assumption="none",
        met=torch.ones(h, dtype=torch.bool),
        promise=PROMISES[of],
        bound=bound.double(),
        measured=measured.double().cpu(),
        vacuous=torch.zeros(h, dtype=torch.bool),
        details={name: value.double().cpu() for name, value in details.items()},
    )
