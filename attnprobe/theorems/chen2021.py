"""Skyformer (Chen, Zeng, Ji & Yang 2021): the sufficient number of uniform landmarks (theorem 2), and the spectra of
its kernels (lemmas 1 and 3).

Symbols as in `lifted`. ``λ = ε‖C‖`` with the norm of the attention matrix C, not of C̄, so that ``‖C~ - C‖ ≤ λ`` is a
relative error of ε.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import ceil, log

import torch
from torch import Tensor

from ..errors import Unsupported, UsageError
from ..metrics.condition import RIDGE, lemma3_interval, lemma3_scaled
from ..operators import GaussianAttention, UnnormalisedAttention
from ..operators.kept import Kept
from ..operators.linalg.exceedance import clopper_pearson
from ..operators.linalg.order import median
from ..qkv import QKV
from .finding import Finding, Setting, frequency, theorem
from .lifted import Lifted, Residual, landmarks, lifted_dimension

CONSTANT = 9.822  # 2/(s(1 - s)) at the root s = 0.28467 of 1 - s + 2 s ln s, rounded up
PAPER = "Chen et al. 2021 (Skyformer)"
STEP = 2**0.25  # the ratio of successive budgets
SHARP = 1e-3  # relative to ‖C̄‖; a smaller λ needs quadrature in float64


def chen2021_sufficient_budget(d_stat: Tensor, coherence: Tensor, n: float, delta: float) -> Tensor:
    """The d at which uniform landmarks reach ``C~ ⪯ C̄ ⪯ C~ + λI`` with probability at least 1 - δ:

        ``d ≥ c (d_stat/β) log(2n/δ)``,   c = 9.822,

    Chen et al. 2021, theorem 2, which does not state c. Derivation: ``ψ_i`` are the columns of ``C̄^½ (C̄ + μI)^-½``,
    ``W = Σ ψ_i ψ_iᵀ`` and ``Ŵ = (2n/d) Σ_t ψ_{i_t} ψ_{i_t}ᵀ``. Then Ŵ has mean W, ``‖W‖ ≤ 1``, and the terms have norm
    at most ``R_μ = 2n max ℓ_i(μ)``. The Laplace transform of a sum of positive semidefinite terms (Tropp 2012, lemma
    3.4 and section 5) gives ``P(λ_max(W - Ŵ) ≥ t) ≤ 2n exp(-(d/R_μ)(t + (1 - t) ln(1 - t)))``. Outside this event ``C̄
    - C~ ⪯ μ C̄^½ (C̄^½ S Sᵀ C̄^½ + μI)⁻¹ C̄^½ ⪯ μ/(1 - t) I`` (Alaoui & Mahoney 2015). This is λI for ``μ = (1 - t)
    λ``, and ``R_μ ≤ R_λ/(1 - t) = d_stat/(β (1 - t))``. The best t is 0.71533. The theorem also covers a ridge on the
    core of at most ``(1 - t) λ d/2n``.

    Args:
        d_stat, coherence: those of the lifted kernel at λ, (…). n: the number of tokens, half the rows of ``[Q; K]``.

    Raises:
        UsageError: δ not in (0, 1).

    >>> chen2021_sufficient_budget(torch.tensor(3.0), torch.tensor(1.0), 1000, 0.1).round(decimals=1)
    tensor(291.8000)
    """
    if not 0 < delta < 1:
        raise UsageError(f"delta={delta} is not in (0, 1)")
    return CONSTANT * d_stat / coherence * log(2 * n / delta)


@theorem(
    "skyformer-theorem-2",
    paper=f"{PAPER}, Theorem 2",
    says="enough uniform landmarks make ‖C~ - C‖ ≤ ε‖C‖ with probability 1 - δ",
    cost="per head: (2n)³ for d_stat, and a few (2n)² (p + d) for each seed",
    per_seed=True,
    per_budget=True,
)
def theorem_2(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """For each d and ε: the share of seeds with ``C~ ⪯ C̄ ⪯ C~ + λI`` (``loewner``) and ``‖C~ - C‖ ≤ λ`` (``norm``).

    Landmarks are drawn uniformly with replacement from the rows of ``[Q; K]``, as in the theorem. The landmarks of a
    larger d include those of a smaller d. Vacuous if the sufficient d is at least the number of rows.
    """
    # one draw of the largest d serves all budgets: the first d of it are the draw of d
    largest, facts_of_heads, measured = max(setting.budgets), [], []
    for row in range(qkv.h):
        lifted = Lifted(qkv, row)
        facts_of_heads.append(_facts(qkv, row, lifted, setting))
        ridges, seeds = facts_of_heads[-1]["lambda"], []
        for seed in setting.seeds:
            indices = landmarks(qkv, row, setting.streams, seed, largest)
            z = lifted.nystrom(indices)
            norms = lifted.errors(z, setting.budgets, block=True)
            ends = [end[:, None] <= ridges for end in (norms.value, norms.upper, norms.lower)]
            seeds.append({"loewner": lifted.order(indices, z, setting.budgets, ridges), "norm": (norms.value, *ends)})
        measured.append(seeds)
    facts = _stacked(facts_of_heads)
    texts = {"loewner": "C~ ⪯ C̄ ⪯ C~ + λI", "norm": "‖C~ - C‖ ≤ λ"}
    for i, d in enumerate(setting.budgets):
        for j, epsilon in enumerate(setting.epsilons):
            sufficient, ridge = facts["sufficient"][:, j], facts["lambda"][:, j]
            for name, event in texts.items():
                value = torch.stack([torch.stack([events[name][0][i] for events in seeds]) for seeds in measured], 1)
                successes = frequency(
                    *(
                        torch.stack([torch.stack([events[name][k][i, j] for events in seeds]) for seeds in measured], 1)
                        for k in (1, 2, 3)
                    )
                )
                yield Finding(
                    theorem="skyformer-theorem-2",
                    d=d,
                    at={"epsilon": epsilon, "delta": setting.delta, "event": name},
                    assumption="d ≥ 9.822 (d_stat/β) log(2n/δ)",
                    met=d >= sufficient,
                    promise=f"P({event}) ≥ 1 - δ, λ = ε‖C‖",
                    bound=torch.full_like(successes.value, 1 - setting.delta),
                    measured=successes.value,
                    lower=successes.lower,
                    upper=successes.upper,
                    sense="at least",
                    vacuous=sufficient >= facts["rows"],
                    details=_at(facts, j) | {"error_over_lambda": median(value / ridge, 0)},
                )


@theorem(
    "skyformer-theorem-2-budget",
    paper=f"{PAPER}, Theorem 2: landmarks",
    says="the least number of uniform landmarks with C~ ⪯ C̄ ⪯ C~ + λI is at most the number of theorem 2; vacuous if "
    "that is 2n or more, the number of rows; ∞ if 2n drawn ones do not suffice",
    cost="per head: (2n)³ for d_stat, and a few (2n)² (p + d) log log n for each seed and ε",
    decompositions=3,
    per_seed=True,
)
def theorem_2_budget(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """For each ε: the smallest d that reaches ``C~ ⪯ C̄ ⪯ C~ + λI`` with probability 1 - δ, by bisection.

    With nested samples a larger d is never worse, so each seed has one smallest d, and the (1 - δ)-quantile over seeds
    is an order statistic. The budgets are steps of a factor 2^¼ up to 2n. The measured d is one of them: at most 19 %
    above the smallest, and infinite if 2n landmarks do not suffice. The interval counts seeds by Clopper and Pearson;
    with too few seeds its upper end is infinite.
    """
    facts_of_heads, smallest = [], []
    for row in range(qkv.h):
        lifted = Lifted(qkv, row)
        facts_of_heads.append(_facts(qkv, row, lifted, setting))
        smallest.append(_smallest(qkv, row, lifted, facts_of_heads[-1]["lambda"], setting))
    facts, smallest = _stacked(facts_of_heads), torch.stack(smallest, 1)  # smallest: indices of `_grid`, (seeds, h, ε)
    counts = _counts(len(setting.seeds), 1 - setting.delta)
    for j, epsilon in enumerate(setting.epsilons):
        ends = []
        for row, rows in enumerate(facts["rows"].int().tolist()):
            tried = [0, *_grid(rows), float("inf")]
            order = [0, *smallest[:, row, j].sort().values.tolist(), len(tried) - 2]  # at k: sufficient for k seeds
            possible, reached, certain = (order[count] for count in counts)
            ends.append([tried[possible] + 1, tried[reached + 1], tried[certain + 1]])
        lower, measured, upper = torch.tensor(ends, dtype=torch.float64).T
        sufficient = facts["sufficient"][:, j]
        yield Finding(
            theorem="skyformer-theorem-2-budget",
            at={"epsilon": epsilon, "delta": setting.delta},
            assumption="none",
            met=torch.ones(qkv.h, dtype=torch.bool),
            promise="the smallest d with P(C~ ⪯ C̄ ⪯ C~ + λI) ≥ 1 - δ is at most 9.822 (d_stat/β) log(2n/δ)",
            bound=sufficient,
            measured=measured,
            lower=lower,
            upper=upper,
            vacuous=sufficient >= facts["rows"],
            details=_at(facts, j),
        )


def _facts(qkv: QKV, row: int, lifted: Lifted, setting: Setting) -> dict[str, Tensor]:
    """The `_new_facts` of one head, computed once for both theorems."""
    kept = Kept(qkv, qkv.tensors, PAPER, setting.epsilons, setting.delta, setting.quadrature)
    return kept.once(row, partial(_new_facts, lifted, setting))


def _new_facts(lifted: Lifted, setting: Setting) -> dict[str, Tensor]:
    """The quantities of the theorem for one head: (ε,), or () if they do not depend on ε."""
    size = lifted.norm(lifted.block)
    if not size:
        raise Unsupported("skyformer-theorem-2: ‖C‖ = 0 (every query is too far from every key), so λ = ε‖C‖ is 0 too")
    lambdas = size * torch.tensor(setting.epsilons, dtype=torch.float64)
    norm_lifted = lifted.norm(lifted.kernel)
    sharp = bool(lambdas.min() < SHARP * norm_lifted)
    dimension = lifted_dimension(lifted, lambdas, setting.quadrature, sharp=sharp)
    # β = min_i d_stat / (2n ℓ_i), before theorem 2: at least d_stat/2n, and 1 if all leverage scores ℓ_i are equal
    coherence = dimension.d_stat / (lifted.rows * dimension.largest)
    sufficient = chen2021_sufficient_budget(dimension.d_stat, coherence, lifted.rows / 2, setting.delta)
    return {
        "lambda": lambdas,
        "norm": torch.tensor(size, dtype=torch.float64),
        "norm_lifted": torch.tensor(norm_lifted, dtype=torch.float64),
        "rows": torch.tensor(lifted.rows, dtype=torch.float64),
        "d_stat": dimension.d_stat,
        "d_stat_error": dimension.error,
        "largest_leverage": dimension.largest,
        "coherence": coherence,
        "sufficient": sufficient,
    }


def _stacked(facts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The facts of all heads, (h, ε) or (h,)."""
    return {name: torch.stack([head[name] for head in facts]) for name in facts[0]}


def _at(facts: dict[str, Tensor], j: int) -> dict[str, Tensor]:
    """The facts for the j-th ε, each (h,)."""
    return {name: value if value.dim() == 1 else value[:, j] for name, value in facts.items()}


def _grid(rows: int) -> list[int]:
    """The budgets from 1 to N in steps of a factor 2^¼."""
    budgets = {1, rows}
    size = 1.0
    while (size := size * STEP) < rows:
        budgets.add(ceil(size))
    return sorted(budgets)


def _smallest(qkv: QKV, row: int, lifted: Lifted, lambdas: Tensor, setting: Setting) -> Tensor:
    """The index in `_grid` of the first sufficient budget, for each seed and ε; the grid's length if none suffices.

    The search goes from the largest λ to the smallest: a smaller one needs no smaller budget. It begins at the budget
    of the last seed.
    """
    grid = _grid(lifted.rows)
    smallest = torch.empty(len(setting.seeds), len(lambdas), dtype=torch.int64)
    for i, seed in enumerate(setting.seeds):
        indices = landmarks(qkv, row, setting.streams, seed, grid[-1])
        residual = Residual(lifted, indices) if lifted.holds else None

        def suffices(number: int, ridge: float, indices=indices, residual=residual) -> bool:
            d = grid[number]
            if residual is not None:
                return residual.within(d, ridge)
            return float(lifted.errors(lifted.nystrom(indices[:d]), [d]).value[0]) <= ridge

        low = 0
        for j in lambdas.argsort(descending=True).tolist():
            high, step = len(grid), 1
            # low - 1 is outside of the interval, so the first seed bisects
            likely = int(smallest[i - 1, j]) if i else low - 1
            while low < high:
                middle = likely if low <= likely < high else (low + high) // 2
                if suffices(middle, float(lambdas[j])):
                    high, likely = middle, middle - step
                else:
                    low, likely = middle + 1, middle + step
                # doubled from the last seed's budget on: seeds lie near each other, and each trial is a factorisation
                step *= 2
            smallest[i, j] = low
    return smallest


def _counts(trials: int, probability: float) -> tuple[int, int, int]:
    """The least numbers of successful seeds at which the probability is possible, reached and certain.

    ``trials + 1`` means that no number of seeds makes it certain.
    """
    ends = [clopper_pearson(k, trials) for k in range(trials + 1)]
    possible = next(k for k, (_, upper) in enumerate(ends) if upper >= probability)
    certain = next((k for k, (lower, _) in enumerate(ends) if lower >= probability), trials + 1)
    # 1e-9: a product such as 0.9 · 10 may round to just above 9
    return possible, ceil(probability * trials - 1e-9), certain


LARGEST = 4096  # the largest number of queries in the dense softmax kernel


@theorem(
    "skyformer-lemma-1",
    paper=f"{PAPER}, Lemma 1",
    says="the softmax kernel exp(scale · x·y) is positive semidefinite",
    cost="n³",
)
def lemma_1(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The smallest eigenvalue of ``exp(scale · Q Qᵀ)`` over the largest, in float64, for the first 4096 queries.

    Rounding: an entry whose exponent is a sum of p products of size at most G has the relative error ``(p + 4) G eps``.
    The entries are positive, so the matrix has this error relative to its norm. The eigenvalues add ``n eps``.
    """
    inner = qkv.compressed()
    least, band = [], []
    for row in range(qkv.h):
        q = inner.q[row : row + 1, :LARGEST].double()
        values = torch.linalg.eigvalsh(UnnormalisedAttention(q, q, inner.scale).dense()[0])
        growth = 2 * float(inner.scale * q.square().sum(-1).max())  # the score, and the shift
        least.append(float(values[0] / values[-1]))
        band.append(torch.finfo(torch.float64).eps * ((inner.p + 4) * growth + q.shape[1]))
    measured = torch.tensor(least, dtype=torch.float64)
    never = torch.zeros(qkv.h, dtype=torch.bool)
    yield Finding(
        theorem="skyformer-lemma-1",
        assumption="none",
        met=~never,
        promise="the smallest eigenvalue of exp(scale · Q Qᵀ), over its largest, is at least 0",
        bound=torch.zeros_like(measured),
        measured=measured,
        rounding=torch.tensor(band, dtype=torch.float64),
        sense="at least",
        vacuous=never,
    )


@theorem(
    "skyformer-lemma-3",
    paper=f"{PAPER}, Lemma 3",
    says="the scaled core D^-½ (SᵀC̄S + γI) D^-½ has its spectrum in (0, 1]; printed as (0, 1), which is false",
    cost="d³ for each seed",
)
def lemma_3(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The extreme eigenvalues of the scaled core over uniform landmarks at γ = 0.1, the worst of all seeds.

    ``D = diag((SᵀC̄S + γI) 1)``. The paper's interval is open at 1, so the printed lemma is false for every core: 1 is
    always an eigenvalue, with eigenvector ``D^½ 1``, because the core is similar to a row-stochastic matrix. The
    verdict is about the interval closed at 1, for which the lemma holds.
    """
    heads, never = [Lifted(qkv, row) for row in range(qkv.h)], torch.zeros(qkv.h, dtype=torch.bool)
    for d in setting.budgets:
        ends = []
        for seed in setting.seeds:
            picked = [head.x[:, landmarks(qkv, row, setting.streams, seed, d)] for row, head in enumerate(heads)]
            x = torch.cat(picked).double()  # (h, d, p)
            core = GaussianAttention(x, x, heads[0].scale).dense()
            core.diagonal(dim1=1, dim2=2).add_(RIDGE)
            ends.append(lemma3_interval(lemma3_scaled(core))[:2])
        low, high = (torch.stack(end) for end in zip(*ends, strict=True))
        rounding = 16 * d * torch.finfo(torch.float64).eps
        for name, measured, bound, sense, printed in (
            ("largest", high.amax(0), 1.0, "at most", " (printed: below 1, which is false: it is 1)"),
            ("smallest", low.amin(0), 0.0, "at least", ""),
        ):
            yield Finding(
                theorem="skyformer-lemma-3",
                d=d,
                at={"gamma": RIDGE, "end": name},
                assumption="γ > 0",
                met=~never,
                promise=f"the {name} eigenvalue of D^-½ (SᵀC̄S + γI) D^-½ is {sense} {bound:g}{printed}",
                bound=torch.full_like(measured, bound),
                measured=measured,
                rounding=rounding,
                sense=sense,
                vacuous=never,
            )
