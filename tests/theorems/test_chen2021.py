"""Skyformer's theorem 2 and lemmas 1 and 3: bounds that are bounds, verdicts, and twins of what is measured."""

from dataclasses import replace
from itertools import pairwise
from math import comb, exp, log

import numpy as np
import pytest
import torch
from inputs import make

from attnprobe import QKV
from attnprobe.errors import Unsupported, UsageError
from attnprobe.operators import UnnormalisedAttention
from attnprobe.operators.linalg.exceedance import clopper_pearson
from attnprobe.rng import Streams, generator
from attnprobe.theorems import Finding, Setting, chen2021, get_theorem, lifted
from attnprobe.theorems.chen2021 import CONSTANT, chen2021_sufficient_budget
from attnprobe.theorems.lifted import Lifted, Residual

EPSILONS, DELTA = (0.1, 0.5), 0.1


def setting(**changes) -> Setting:
    def streams(label, seed):
        return Streams(seed, label)

    return replace(Setting((8, 32), EPSILONS, DELTA, range(8), streams, None, ()), **changes)


def check(name: str, qkv: QKV, **changes) -> list[Finding]:
    return list(get_theorem(name).check(qkv, setting(**changes)))


def circle(n: int = 150, radius: float = 0.5) -> QKV:
    """Tokens evenly spread on a circle, keys between queries: every leverage score is the same, so β = 1."""
    angle = torch.arange(2 * n).double() * torch.pi / n
    x = radius * torch.stack([angle.cos(), angle.sin()], 1)
    return QKV(x[0::2], x[1::2], x[1::2])


def scattered(n: int = 40) -> QKV:
    """Tokens far apart, each query equal to its key: C = I, and C̄ has the eigenvalue 2 n times."""
    x = 100.0 * torch.arange(n).double()[:, None]
    return QKV(x, x, x)


def dense(qkv: QKV, head: int) -> tuple[np.ndarray, np.ndarray]:
    """C̄ and C by loops over tokens."""
    x = torch.cat([qkv.q[head], qkv.k[head]]).double().numpy()
    lifted_kernel = np.array([[exp(-((a - b) ** 2).sum() * qkv.scale / 2) for b in x] for a in x])
    return lifted_kernel, lifted_kernel[: qkv.n_q, qkv.n_q :]


def nystrom(kernel: np.ndarray, picked) -> np.ndarray:
    picked = sorted(set(picked))
    inverse = np.linalg.pinv(kernel[np.ix_(picked, picked)], rcond=1e-13, hermitian=True)
    return kernel[:, picked] @ inverse @ kernel[picked]


def test_the_constant_is_the_least_of_its_derivation():
    """``1/((1 - t)(t + (1 - t) ln(1 - t)))`` over t, rounded up in the fourth digit."""
    t = np.linspace(1e-3, 1 - 1e-3, 200_001)
    least = (1 / ((1 - t) * (t + (1 - t) * np.log(1 - t)))).min()
    assert least <= CONSTANT <= least + 1e-3


def test_the_sufficient_budget_is_the_formula():
    d_stat, coherence = torch.tensor([2.0, 30.0]), torch.tensor([1.0, 0.25])
    actual = chen2021_sufficient_budget(d_stat, coherence, 500, 0.05)
    for i in range(2):
        assert float(actual[i]) == pytest.approx(
            9.822 * float(d_stat[i] / coherence[i]) * log(2 * 500 / 0.05), rel=1e-6
        )
    for delta in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(UsageError):
            chen2021_sufficient_budget(d_stat, coherence, 500, delta)


@pytest.mark.parametrize(
    "make_it",
    [
        lambda: scattered(20),
        pytest.param(circle, marks=pytest.mark.slow),
        pytest.param(lambda: make(h=1, n=40, p=2, score=0.5), marks=pytest.mark.slow),
    ],
)
def test_the_matrix_tail_under_the_theorem_is_a_tail(make_it):
    """``P(λ_max(W - Ŵ) ≥ t) ≤ N exp(-(d/R)(t + (1 - t) ln(1 - t)))``, which sets the constant, over 300 draws."""
    kernel = dense(make_it() if make_it is not circle else circle(40), 0)[0]
    total, ridge, t = len(kernel), 0.3 * np.linalg.norm(kernel, 2), 0.7
    values, vectors = np.linalg.eigh(kernel)
    psi = vectors * np.sqrt(values.clip(0) / (values.clip(0) + ridge)) @ vectors.T
    r = total * (psi**2).sum(0).max()
    rng, stated = np.random.default_rng(0), 0
    for d in (10, 20, 40, 80, 160, 320, 640):
        bound = total * exp(-d / r * (t + (1 - t) * log(1 - t)))
        beyond = 0
        for _ in range(300):
            picked = psi[:, rng.integers(total, size=d)]
            beyond += np.linalg.eigvalsh(psi @ psi - total / d * picked @ picked.T)[-1] >= t
        assert beyond <= 300 * bound + 5 * (300 * bound) ** 0.5
        stated += bound < 0.5
    assert stated >= 1


@pytest.mark.parametrize("n", [10, 100, 1000])
def test_the_sufficient_budget_collects_all_coupons(n):
    """For C̄ = [[I, I], [I, I]] the order holds exactly where each pair is drawn: the coupon collector, in closed form.

    ``ℓ_i = 1/(2 + λ)``. The budget suffices, as it must; with a tenth of the constant it would not.
    """
    d_stat, epsilon = torch.tensor(2.0 * n / (2 + 0.5)), 0.5
    sufficient = float(chen2021_sufficient_budget(d_stat, torch.tensor(1.0), n, DELTA))
    assert sufficient >= 2 * n and epsilon < 2  # vacuous on this matrix, and still a bound

    def all_drawn(d: int) -> float:
        if n <= 100:
            from fractions import Fraction

            return float(sum((-1) ** j * comb(n, j) * Fraction(n - j, n) ** d for j in range(n + 1)))
        return exp(-n * exp(-d / n))  # to within 1e-3 at n = 1000

    assert all_drawn(int(sufficient)) >= 1 - DELTA
    assert all_drawn(int(sufficient / 10)) < 1 - DELTA


def test_it_holds_and_is_not_vacuous_on_a_circle():
    qkv = circle()
    sufficient = None
    for one in check("skyformer-theorem-2", qkv, budgets=(16, 280), epsilons=(0.5,), seeds=range(36)):
        sufficient = float(one.details["sufficient"])
        assert float(one.details["coherence"]) == pytest.approx(1, rel=1e-6)
        assert not one.vacuous.any() and sufficient < 280
        assert one.verdicts() == ["holds" if one.d == 280 else "assumption not met"]
        assert float(one.measured) == 1 and float(one.lower) == clopper_pearson(36, 36)[0]
    (budget,) = check("skyformer-theorem-2-budget", qkv, epsilons=(0.5,), seeds=range(36))
    assert budget.verdicts() == ["holds"] and float(budget.measured) < sufficient == float(budget.bound)
    assert float(budget.lower) <= float(budget.measured) <= float(budget.upper) < sufficient


def test_a_planted_fault_is_a_violation(monkeypatch):
    """Landmarks that are not used: C~ = 0 is no approximation, and the promise is broken where it is made."""
    honest = Lifted.nystrom
    monkeypatch.setattr(Lifted, "nystrom", lambda self, indices: 0 * honest(self, indices))
    for one in check("skyformer-theorem-2", circle(), budgets=(16, 280), epsilons=(0.5,), seeds=range(5)):
        assert one.verdicts() == ["violated" if one.d == 280 else "assumption not met"]
    monkeypatch.setattr(chen2021, "Residual", lambda lifted, indices: Residual(lifted, indices[:0]))
    (budget,) = check("skyformer-theorem-2-budget", circle(), epsilons=(0.5,), seeds=range(2))
    assert float(budget.measured) == float("inf") and budget.verdicts() == ["violated"]


def test_too_many_samples_are_vacuous():
    actual = check("skyformer-theorem-2", scattered(20), budgets=(8, 1000), epsilons=(0.5,), seeds=range(4))
    for one in actual:
        assert one.vacuous.all()
        assert one.verdicts() == ["assumption not met" if one.d == 8 else "vacuous"]
    (budget,) = check("skyformer-theorem-2-budget", scattered(20), epsilons=(0.5,))
    assert budget.verdicts() == ["vacuous"]


@pytest.mark.parametrize("n", [25, 150])  # held, and streamed
def test_events_against_dense_matrices(n):
    """Each seed's Nyström matrix by numpy, the Loewner order by eigenvalues, the norm by singular values."""
    qkv, seeds = make(h=2, n=n, p=3, score=0.7), range(5)
    actual = {
        (one.d, one.at["epsilon"], one.at["event"]): one
        for one in check("skyformer-theorem-2", qkv, budgets=(8, n), seeds=seeds, epsilons=(0.01, 0.1, 0.5))
    }
    assert len(actual) == 2 * 3 * 2
    both = set()
    for head in range(2):
        kernel, c = dense(qkv, head)
        for d in (8, n):
            ends = []
            for seed in seeds:
                uniform = torch.rand(n, generator=Streams(seed, "skyformer-theorem-2").head(head), dtype=torch.float64)
                e = kernel - nystrom(kernel, (uniform * 2 * n).long().tolist()[:d])
                ends.append((np.linalg.eigvalsh(e)[-1], np.linalg.norm(e[:n, n:], 2)))
            for epsilon in (0.01, 0.1, 0.5):
                ridge = epsilon * np.linalg.norm(c, 2)
                for event, beyond in zip(("loewner", "norm"), zip(*ends, strict=True), strict=True):
                    one = actual[d, epsilon, event]
                    assert float(one.measured[head]) == np.mean([value <= ridge for value in beyond])
                    assert float(one.details["lambda"][head]) == pytest.approx(ridge, rel=1e-4)
                    median = sorted(beyond)[2] / ridge
                    assert float(one.details["error_over_lambda"][head]) == pytest.approx(median, rel=1e-2, abs=1e-4)
                    both.add(float(one.measured[head]))
    assert {0.0, 1.0} <= both


def test_what_the_theorem_assumes_against_loops():
    qkv = make(h=2, n=30, p=4)
    for one in check("skyformer-theorem-2", qkv, seeds=range(1)):
        for head in range(2):
            kernel, c = dense(qkv, head)
            ridge = one.at["epsilon"] * np.linalg.norm(c, 2)
            scores = np.diag(kernel @ np.linalg.inv(kernel + ridge * np.eye(60)))
            d_stat = sum(value / (value + ridge) for value in np.linalg.eigvalsh(kernel))
            coherence = min(d_stat / (60 * score) for score in scores)
            details = {name: float(value[head]) for name, value in one.details.items()}
            assert {value.dtype for value in one.details.values()} == {torch.float64}
            assert details["d_stat"] == pytest.approx(d_stat, rel=1e-4)
            assert details["coherence"] == pytest.approx(coherence, rel=1e-4)
            assert details["norm_lifted"] == pytest.approx(np.linalg.norm(kernel, 2), rel=1e-4)
            sufficient = 9.822 * d_stat / coherence * log(60 / DELTA)
            assert details["sufficient"] == pytest.approx(sufficient, rel=1e-4)
            assert bool(one.met[head]) == (one.d >= sufficient) and bool(one.vacuous[head]) == (sufficient >= 60)


def test_queries_too_far_from_every_key_have_no_ridge():
    x = make(h=1, n=6, p=2).q
    with pytest.raises(Unsupported, match=r"skyformer-theorem-2: ‖C‖ = 0 \(every query is too far from every key\)"):
        check("skyformer-theorem-2", QKV(x + 1e3, x - 1e3, x))


def test_half_precision_is_lifted_in_single():
    qkv = make(h=1, n=6, p=2).to(dtype=torch.bfloat16)
    one = Lifted(qkv, 0)
    assert one.x.dtype == torch.float32 and torch.equal(one.x[:, :6], qkv.q.float())


def test_what_the_theorem_assumes_follows_a_change_in_place():
    qkv = make(h=1, n=20, p=4)
    check("skyformer-theorem-2", qkv, seeds=range(1))
    qkv.q.mul_(0.5)
    changed, fresh = (check("skyformer-theorem-2", one, seeds=range(1)) for one in (qkv, qkv.replace(q=qkv.q.clone())))
    for one, other in zip(changed, fresh, strict=True):
        assert all(torch.equal(value, other.details[name]) for name, value in one.details.items())


def test_the_order_implies_the_norm():
    actual = check("skyformer-theorem-2", make(h=3, n=60, p=3, score=0.5), epsilons=(0.02, 0.1, 0.3))
    for loewner, norm in zip(actual[0::2], actual[1::2], strict=True):
        assert (loewner.at["event"], norm.at["event"]) == ("loewner", "norm")
        assert (loewner.measured <= norm.measured).all()
        assert (loewner.details["error_over_lambda"] >= norm.details["error_over_lambda"] * (1 - 1e-2)).all()


def test_a_norm_far_below_the_lifted_one_is_resolved():
    """Queries far from keys: ‖C‖ is 1e-9 of ‖C̄‖, below what float32 resolves, and λ is made of ‖C‖."""
    q, k = (0.3 * torch.randn(1, 60, 3, generator=generator(0, side)) for side in "qk")
    k[..., 0] += 9.0
    far = QKV(q, k, k)
    exact, estimated = (
        check("skyformer-theorem-2", far, budgets=(60,), epsilons=(0.5,), seeds=range(3), quadrature=how)
        for how in (False, True)
    )
    kernel, c = dense(far, 0)
    assert np.linalg.norm(c, 2) < 1e-8 * np.linalg.norm(kernel, 2)
    one = estimated[0].details
    off = float((exact[0].details["d_stat"] - one["d_stat"]).abs())
    assert off <= float(one["d_stat_error"]) < 0.1 * float(one["d_stat"])
    lift, ratios = Lifted(QKV(q.double(), k.double(), k.double()), 0), []
    for seed in range(3):
        z = lift.nystrom(lifted.landmarks(far, 0, setting().streams, seed, 60)).numpy()
        ratios.append(np.linalg.norm((kernel - z @ z.T)[:60, 60:], 2) / (0.5 * np.linalg.norm(c, 2)))
    assert float(exact[1].details["error_over_lambda"]) == pytest.approx(sorted(ratios)[1], rel=1e-2)


def test_nested_samples_only_gain():
    lift = Lifted(make(h=1, n=200, p=3, score=0.5), 0)
    picked = torch.randint(400, (64,), generator=generator(0, "picked"))
    full = lift.nystrom(picked)
    for d in (1, 5, 64):
        assert torch.allclose(lift.nystrom(picked[:d]), full[:, :d], rtol=1e-6, atol=1e-9)
    errors = lift.errors(full, [1, 2, 4, 8, 16, 32, 64])
    assert (errors.lower[1:] <= errors.upper[:-1]).all() and float(errors.value[-1]) < 0.3 * float(errors.value[0])
    assert (errors.lower <= errors.value).all() and (errors.value <= errors.upper).all()


@pytest.mark.parametrize("score", [0.1, 0.7, 6.0])
@pytest.mark.parametrize("d", [1, 10, 100, 300])
def test_a_nystrom_matrix_is_below_the_kernel(score, d):
    """``C~ ⪯ C̄`` whatever the draw, to rounding: so the norm of the difference is its largest eigenvalue."""
    lift = Lifted(make(h=1, n=100, p=3, score=score), 0)
    z = lift.nystrom(torch.randint(200, (d,), generator=generator(d, "picked")))
    least = torch.linalg.eigvalsh(lift.kernel.dense()[0] - z @ z.mT)[0]
    assert float(least) > -1e-9


def test_a_core_of_low_rank_gets_the_ridge_that_it_needs(monkeypatch):
    """Tokens that are almost one: hundreds of landmarks, and a handful of eigenvalues above rounding."""
    monkeypatch.setattr(lifted, "NYSTROM_RIDGE", 1e-18)
    lift = Lifted(make(h=1, n=400, p=1, score=1e-3), 0)
    z = lift.nystrom(torch.randint(800, (700,), generator=generator(0, "picked")))
    error = lift.kernel.dense()[0] - z @ z.mT
    assert torch.isfinite(z).all() and float(torch.linalg.matrix_norm(error, 2)) < 1e-6


def test_repeated_landmarks_add_nothing():
    lift = Lifted(make(h=1, n=50, p=3), 0)
    z = lift.nystrom(torch.tensor([3, 70, 3, 3, 70, 8]))
    once = lift.nystrom(torch.tensor([3, 70, 8]))
    assert torch.allclose(z @ z.mT, once @ once.mT, atol=1e-6)


@pytest.mark.parametrize("seeds", [5, 40])
def test_the_smallest_budget_against_a_scan(seeds):
    """Every budget of the grid, every seed: the first at which enough of them succeed."""
    qkv, epsilons = make(h=2, n=30, p=2, score=0.5), (0.05, 0.3)
    grid = chen2021._grid(60)
    assert grid[0] == 1 and grid[-1] == 60
    assert all(after - before <= max(1, 0.2 * before + 1) for before, after in pairwise(grid))
    actual = check("skyformer-theorem-2-budget", qkv, epsilons=epsilons, seeds=range(seeds))
    for head in range(2):
        kernel, c = dense(qkv, head)
        succeeded = {epsilon: [] for epsilon in epsilons}  # [d]: how many seeds
        for d in grid:
            errors = []
            for seed in range(seeds):
                uniform = torch.rand(60, generator=Streams(seed, "skyformer-theorem-2").head(head), dtype=torch.float64)
                errors.append(np.linalg.norm(kernel - nystrom(kernel, (uniform * 60).long().tolist()[:d]), 2))
            for epsilon in epsilons:
                succeeded[epsilon].append(sum(error <= epsilon * np.linalg.norm(c, 2) for error in errors))
        for one in actual:
            counts = succeeded[one.at["epsilon"]]

            def first(enough, counts=counts):
                return next((i for i, count in enumerate(counts) if enough(count)), None)

            reached = first(lambda count: count / seeds >= 0.9 - 1e-12)
            possible = first(lambda count: clopper_pearson(count, seeds)[1] >= 0.9)
            certain = first(lambda count: clopper_pearson(count, seeds)[0] >= 0.9)
            assert float(one.measured[head]) == (float("inf") if reached is None else grid[reached])
            assert float(one.upper[head]) == (float("inf") if certain is None else grid[certain])
            assert float(one.lower[head]) == (1 if possible == 0 else grid[possible - 1] + 1)
            assert (certain is None) or seeds == 40


def test_the_smallest_budget_is_the_same_where_no_kernel_is_held(monkeypatch):
    qkv = make(h=2, n=30, p=2, score=0.5)
    held = check("skyformer-theorem-2-budget", qkv, epsilons=(0.05, 0.3), seeds=range(3))
    monkeypatch.setattr(lifted, "EXACT_TOKENS", 29)
    streamed = check("skyformer-theorem-2-budget", qkv, epsilons=(0.05, 0.3), seeds=range(3))
    assert not Lifted(qkv, 0).holds and len(held) == len(streamed) == 2
    for one, other in zip(held, streamed, strict=True):
        assert torch.equal(one.measured, other.measured)


def test_quadrature_agrees_with_what_is_exact():
    qkv = make(h=2, n=80, p=4)
    exact, estimated = (check("skyformer-theorem-2", qkv, seeds=range(1), quadrature=how) for how in (False, True))
    for one, other in zip(exact, estimated, strict=True):
        off = (one.details["d_stat"] - other.details["d_stat"]).abs()
        assert (off <= other.details["d_stat_error"]).all() and (off > 0).all()
        assert (one.details["d_stat_error"] == 0).all()
        ratio = other.details["sufficient"] / one.details["sufficient"]
        assert (ratio >= 1 - 1e-9).all() and (ratio <= 1.01).all()


def test_quadrature_is_the_default_beyond_the_exact_tokens(monkeypatch):
    monkeypatch.setattr(lifted, "EXACT_TOKENS", 20)
    for n, estimated in ((20, False), (21, True)):
        (one, *_) = check("skyformer-theorem-2", make(h=1, n=n, p=4), seeds=range(1))
        assert bool(one.details["d_stat_error"] > 0) is estimated


@pytest.mark.parametrize(
    "name", ["skyformer-theorem-2", "skyformer-theorem-2-budget", "skyformer-lemma-1", "skyformer-lemma-3"]
)
def test_padding_and_batching_change_nothing(name):
    qkv = make(h=2, n=30, p=4)
    mask = torch.arange(36) < 30

    def pad(x):
        return torch.cat([x, 9 * torch.ones(2, 6, x.shape[2], dtype=x.dtype)], 1)

    padded = QKV(pad(qkv.q), pad(qkv.k), pad(qkv.v), mask=mask)
    full = check(name, qkv, seeds=range(3))
    for other_qkv, rows in ((padded, [0, 1]), (qkv.select([1]), [1])):
        for one, other in zip(full, check(name, other_qkv, seeds=range(3)), strict=True):
            assert torch.allclose(one.measured[rows], other.measured, rtol=1e-12, atol=1e-15)
            assert torch.allclose(one.bound[rows], other.bound, rtol=1e-12)


def test_lemma_1_is_the_smallest_eigenvalue():
    qkv = make(h=2, n=30, p=4)
    (one,) = check("skyformer-lemma-1", qkv)
    for head in range(2):
        q = qkv.q[head].numpy()
        values = np.linalg.eigvalsh([[exp(qkv.scale * (a @ b)) for b in q] for a in q])
        assert float(one.measured[head]) == pytest.approx(values[0] / values[-1], abs=float(one.rounding[head]))
    assert one.verdicts() == ["holds"] * 2
    repeated = qkv.q[:, torch.tensor([0, *range(29)])]
    (one,) = check("skyformer-lemma-1", QKV(repeated, qkv.k, qkv.v))  # singular: zero up to rounding
    assert (one.measured.abs() <= one.rounding).all() and one.verdicts() == ["holds"] * 2


def test_the_rounding_of_lemma_1_decides_what_is_violated(monkeypatch):
    """``(p + 4) G eps + n eps`` with G the largest exponent and the shift: beyond it, below zero is a violation."""
    qkv, eps = make(h=2, n=30, p=4), torch.finfo(torch.float64).eps
    (one,) = check("skyformer-lemma-1", qkv)
    growth = 2 * qkv.scale * qkv.q.double().square().sum(-1).amax(-1)
    assert torch.allclose(one.rounding, eps * ((4 + 4) * growth + 30), rtol=1e-12, atol=0)
    for factor, verdict in ((0.99, "holds"), (1.01, "violated")):
        low = torch.tensor([-factor * float(one.rounding.min()), *[1.0] * 29]).double()
        monkeypatch.setattr(torch.linalg, "eigvalsh", lambda matrix, low=low: low)
        assert verdict in check("skyformer-lemma-1", qkv)[0].verdicts()


@pytest.mark.parametrize("score", [1.0, 6.0, 60.0])
def test_lemma_1_holds_at_large_scores(score):
    (one,) = check("skyformer-lemma-1", make(h=2, n=100, p=4, score=score))
    assert one.verdicts() == ["holds"] * 2 and (one.rounding < 1e-9).all()


def test_a_matrix_that_is_not_a_kernel_violates_lemma_1(monkeypatch):
    monkeypatch.setattr(UnnormalisedAttention, "dense", lambda self: -torch.eye(self.shape[1]).double()[None] + 0.1)
    (one,) = check("skyformer-lemma-1", make(h=1, n=30, p=4))
    assert one.verdicts() == ["violated"]


def test_lemma_3_against_loops_and_the_eigenvalue_one():
    qkv, seeds = make(h=2, n=30, p=4), range(3)
    actual = {(one.d, one.at["end"]): one for one in check("skyformer-lemma-3", qkv, seeds=seeds)}
    assert len(actual) == 4 and all(one.verdicts() == ["holds"] * 2 for one in actual.values())
    for head in range(2):
        kernel = dense(qkv, head)[0]
        for d in (8, 32):
            ends = []
            for seed in seeds:
                uniform = torch.rand(d, generator=Streams(seed, "skyformer-theorem-2").head(head), dtype=torch.float64)
                picked = (uniform * 60).long().tolist()
                core = kernel[np.ix_(picked, picked)] + 0.1 * np.eye(d)
                r = [1 / sum(row) ** 0.5 for row in core]
                ends.append(np.linalg.eigvalsh(core * np.outer(r, r))[[0, -1]])
            assert float(actual[d, "smallest"].measured[head]) == pytest.approx(min(low for low, _ in ends), rel=1e-9)
            assert float(actual[d, "largest"].measured[head]) == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize("ridge, end", [(-0.9, "smallest"), (-0.9, "largest")])
def test_a_core_that_is_not_positive_violates_lemma_3(monkeypatch, ridge, end):
    """A negative ridge takes the core out of the positive semidefinite matrices, or its scaling out of the reals."""
    monkeypatch.setattr(chen2021, "RIDGE", ridge)
    actual = {one.at["end"]: one for one in check("skyformer-lemma-3", make(h=1, n=30, p=1, score=0.1), budgets=(8,))}
    assert actual["smallest"].verdicts() == ["violated"]
