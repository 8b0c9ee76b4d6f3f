"""Skeinformer's guarantees: literal twins, the bounds as bounds, verdicts, planted faults, and the law for vectors."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from inputs import make
from scipy.stats import chi2, spearmanr
from theory_settings import check, setting_for

from attnprobe import QKV
from attnprobe.operators.linalg.sketches import gaussian
from attnprobe.theorems import chen2022, sketched
from attnprobe.theorems.chen2022 import (
    SKETCHES,
    VECTORS,
    chen2022_column_spread,
    chen2022_error_bound,
    chen2022_gaussian_failure,
    chen2022_pilots_needed,
    chen2022_pilots_of_proof,
    chen2022_sampling_failure,
    chen2022_vector_failure,
    zhou2021_sparsity,
)
from attnprobe.theorems.finding import clopper_pearson
from attnprobe.theorems.sketched import SketchedHead, chen2022_quality


def constant(h=2, n=64, p_v=3) -> QKV:
    """B = 11ᵀ/n, and values that are nearly equal: ``‖BV‖_F`` is nearly ``‖B‖_F ‖V‖_F``, so guarantees say much."""
    q = torch.zeros(h, n, 4, dtype=torch.float64)
    g = torch.Generator().manual_seed(3)
    v = 1 + 0.1 * torch.randn(h, n, p_v, generator=g, dtype=torch.float64)
    return QKV(q, q, v)


def literal(qkv, row):
    """B, V as arrays, made entry by entry."""
    q, k, v = (x[row].double().numpy() for x in (qkv.q, qkv.k, qkv.v))
    b = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        weights = [math.exp(qkv.scale * sum(q[i][c] * k[j][c] for c in range(q.shape[1]))) for j in range(len(k))]
        b[i] = np.array(weights) / sum(weights)
    return b, v


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_the_quantities_of_a_head_are_the_literal_ones(score, monkeypatch):
    monkeypatch.setattr(sketched, "ROWS", 4)
    qkv = make(n=9, n_k=11, score=score)
    for row in range(qkv.h):
        head, (b, v) = SketchedHead(qkv, row), literal(qkv, row)
        columns = [math.sqrt(sum(b[j][i] ** 2 for j in range(9))) for i in range(11)]
        lengths = [math.sqrt(sum(x * x for x in v[i])) for i in range(11)]
        p = [columns[i] * lengths[i] for i in range(11)]
        assert head.optimal.numpy() == pytest.approx([x / sum(p) for x in p], rel=1e-12)
        size = np.linalg.norm(b) * np.linalg.norm(v)
        assert head.size == pytest.approx(size, rel=1e-12)
        assert head.product * size == pytest.approx(np.linalg.norm(b @ v), rel=1e-12)
        assert head.optimum * size == pytest.approx(sum(p), rel=1e-12)
        assert head.row_norms.numpy() == pytest.approx(np.linalg.norm(b, axis=1), rel=1e-12)
        spread = max(9 * b[j][i] ** 2 / columns[i] ** 2 for j in range(9) for i in range(11))
        assert chen2022_column_spread(head.squares, head.largest, 9) == pytest.approx(spread, rel=1e-12)
        scores = qkv.scale * (qkv.q[row] @ qkv.k[row].T).numpy()
        measure = [math.log(sum(math.exp(s) for s in line)) - sum(line) / 11 for line in scores]
        assert zhou2021_sparsity(qkv)[row].numpy() == pytest.approx(measure, rel=1e-11)


@pytest.mark.parametrize("sketch", ["gaussian", "optimal", "uniform"])
def test_the_error_of_a_sketch_is_that_of_the_matrix_s(sketch):
    qkv, d = make(n=12), 5
    setting = setting_for(qkv, seeds=range(3))
    for row in range(qkv.h):
        head, (b, v) = SketchedHead(qkv, row), literal(qkv, row)
        errors = head.sketch_errors(sketch, d, setting)
        for seed in range(3):
            stream = setting.streams("skeinformer-jl", seed).head(row, sketch)
            s = np.zeros((12, d))
            if sketch == "gaussian":
                s = gaussian(12, d, stream).numpy()
            else:
                p = head.probabilities(sketch).numpy()
                places = torch.rand(d, generator=stream, dtype=torch.float64)
                for column, place in enumerate(places.tolist()):
                    i = next(i for i in range(12) if sum(p[: i + 1]) > place)
                    s[i][column] = 1 / math.sqrt(d * p[i])
            expected = np.linalg.norm(b @ v - b @ s @ s.T @ v) / (np.linalg.norm(b) * np.linalg.norm(v))
            assert float(errors[seed]) == pytest.approx(expected, rel=1e-11)


def test_the_pilots_are_those_of_the_method():
    """p̂ and β from Skeinformer's own pilot rows: same stream, so the numbers are about the method's draws."""
    qkv, d = make(n=20), 6
    setting = setting_for(qkv)
    approx = setting.run("skeinformer", d, 4)
    for row in range(qkv.h):
        head, (b, v) = SketchedHead(qkv, row), literal(qkv, row)
        p, beta = head.pilot(d, setting, 4)
        weights = np.linalg.norm(b[approx.draws["pilot_rows"][row].numpy()], axis=0) * np.linalg.norm(v, axis=1)
        assert p.numpy() == pytest.approx(weights / weights.sum(), rel=1e-11)
        assert float(beta) == pytest.approx(min(p.numpy() / head.optimal.numpy()), rel=1e-12)
        assert 0 < float(beta) < 1


def test_the_columns_of_proposition_1_are_those_of_the_unbiased_ablation():
    qkv, d = make(n=20), 6
    setting = setting_for(qkv, seeds=range(2, 5))
    for row in range(qkv.h):
        head = SketchedHead(qkv, row)
        _, errors, _ = head.sampled_by_pilots(d, setting)
        for place, seed in enumerate(setting.seeds):
            ours = setting.run("skeinformer:ablation=no-norm-weighted", d, seed).output[row]
            assert float(errors[place]) == pytest.approx(float((ours - head.output).norm() / head.size) ** 2, rel=1e-10)


def test_the_bound_of_proposition_1_is_the_papers_formula():
    for d, beta, delta in ((10, 1.0, 0.1), (64, 0.3, 0.01)):
        eta = 1 + math.sqrt(8 / beta * math.log(1 / delta))
        assert chen2022_error_bound(d, beta, delta) == pytest.approx(eta**2 / (beta * d), rel=1e-14)
        epsilon = math.sqrt(chen2022_error_bound(d, beta, delta))
        assert chen2022_sampling_failure(d, epsilon, beta) <= delta * (1 + 1e-12)  # solved for δ
    for d, epsilon, beta in ((20000, 0.5, 0.5), (100, 0.9, 0.4), (4, 0.1, 0.9)):
        tail = math.exp(-beta / 8 * max(0.0, epsilon * math.sqrt(beta * d) - 1) ** 2)
        expected = min(1.0, 1 / (beta * d * epsilon**2), tail)
        assert chen2022_sampling_failure(d, epsilon, beta) == pytest.approx(expected, rel=1e-12)
    assert chen2022_error_bound(5, 0.0, 0.1) == math.inf and chen2022_sampling_failure(5, 9.0, 0.0) == 1.0


def central_moment(d, order):
    """``E(χ²_d/d - 1)^order`` exactly, from ``E(χ²_d)^i = d (d + 2) … (d + 2i - 2)``."""
    raw = [Fraction(1)]
    for i in range(order):
        raw.append(raw[-1] * (d + 2 * i))
    return sum(math.comb(order, i) * raw[i] / Fraction(d) ** i * (-1) ** (order - i) for i in range(order + 1))


def test_the_gaussian_failure_probability_is_the_least_of_markovs():
    for d, epsilon in ((50, 2.0), (4000, 0.5), (20000, 0.5), (300, 0.1)):
        moments = [float(central_moment(d, order)) * (3 / epsilon) ** order for order in range(2, 65, 2)]
        expected = min(1.0, 2 / (d * epsilon**2), *moments)
        assert chen2022_gaussian_failure(d, epsilon) == pytest.approx(expected, rel=1e-9)
    assert chen2022_gaussian_failure(20000, 0.5) < 0.1 * 2 / (20000 * 0.25)  # a high moment
    assert central_moment(7, 4) == Fraction(12 * 49 + 48 * 7, 7**4)


@pytest.mark.parametrize("make_input", [lambda: make(n=24, seed=5), lambda: make(n=24, score=6.0), lambda: constant()])
@pytest.mark.parametrize("sketch", ["gaussian", "optimal", "uniform"])
def test_the_failure_probability_is_a_bound(make_input, sketch):
    """Of 300 seeds no more fail than the bound allows: its exact interval at 1 - 1e-6 reaches down to it."""
    qkv = make_input()
    setting = setting_for(qkv, seeds=range(300))
    said_something = 0
    for row in range(qkv.h):
        head = SketchedHead(qkv, row)
        beta = chen2022_quality(head.probabilities(sketch), head.optimal)
        errors = head.sketch_errors(sketch, 16, setting)
        for epsilon in (0.2, 0.4, 0.8):
            bound = (
                chen2022_gaussian_failure(16, epsilon)
                if sketch == "gaussian"
                else chen2022_sampling_failure(16, epsilon, beta)
            )
            low, _ = clopper_pearson(int((errors > epsilon).sum()), 300, 1 - 1e-6)
            assert low <= bound
            said_something += bound < 1
    assert said_something


def test_the_jl_verdicts():
    actual = check("skeinformer-jl", constant(n=64), (2, 48), epsilons=(0.1, 0.5, 2.0), seeds=range(36))
    message = {(one.at["sketch"], one.d, one.at["epsilon"]): set(one.verdicts()) for one in actual}
    assert message["gaussian", 2, 0.1] == {"assumption not met"} == message["optimal", 2, 0.1]
    assert message["optimal", 48, 0.5] == {"holds"} == message["uniform", 48, 0.5]
    assert message["gaussian", 48, 2.0] == {"vacuous"}  # zero is as good
    assert all(float(one.lower.min()) >= 0 and float(one.upper.max()) <= 1 for one in actual)


def test_the_assumption_of_the_guarantee_is_about_delta_and_not_about_epsilon():
    """Each δ just above the failure that is bounded meets it, and just below does not, whatever ε is."""
    qkv = constant(h=1, n=64)
    for epsilon in (0.3, 0.6):
        failure = chen2022_gaussian_failure(48, epsilon)
        assert epsilon != failure
        for delta, met in ((1.01 * failure, True), (0.99 * failure, False)):
            if delta < 1:
                actual = check("skeinformer-jl", qkv, (48,), epsilons=(epsilon,), delta=delta, seeds=range(2))
                one = next(one for one in actual if one.at["sketch"] == "gaussian")
                assert one.met.tolist() == [met] and float(one.details["failure"]) == failure


def test_the_frequencies_are_those_of_the_errors():
    qkv, d, seeds = make(n=24, seed=5), 12, range(15)
    for one in check("skeinformer-jl", qkv, (d,), epsilons=(0.1, 0.2), seeds=seeds):
        for row in range(qkv.h):
            head = SketchedHead(qkv, row)
            errors = head.sketch_errors(one.at["sketch"], d, setting_for(qkv, seeds=seeds)).tolist()
            failures = sum(error > one.at["epsilon"] for error in errors)
            assert float(one.measured[row]) == pytest.approx(failures / 15)
            assert [float(one.lower[row]), float(one.upper[row])] == list(clopper_pearson(failures, 15))
            assert bool(one.vacuous[row]) == (head.product <= one.at["epsilon"])


@pytest.mark.parametrize("make_input", [lambda: make(n=24, score=3.0), lambda: constant(n=24)])
def test_the_findings_of_proposition_1_are_the_literal_ones(make_input):
    qkv, d, seeds, delta = make_input(), 8, range(25), 0.2
    quantile, mean = check("skeinformer-proposition-1", qkv, (d,), seeds=seeds, delta=delta)
    for row in range(qkv.h):
        head = SketchedHead(qkv, row)
        betas, errors, means = (x.tolist() for x in head.sampled_by_pilots(d, setting_for(qkv, seeds=seeds)))
        assert float(quantile.bound[row]) == pytest.approx(chen2022_error_bound(d, min(betas), delta), rel=1e-12)
        assert float(quantile.measured[row]) == pytest.approx(np.quantile(errors, 0.8), rel=1e-12)
        assert float(quantile.lower[row]) <= float(quantile.measured[row]) <= float(quantile.upper[row])
        bound = sum(1 / (beta * d) for beta in betas) / 25
        assert float(mean.bound[row]) == pytest.approx(bound, rel=1e-12)
        assert float(mean.measured[row]) == pytest.approx(sum(means) / 25, rel=1e-12)
        assert bool(mean.vacuous[row]) == (bound >= head.product**2)
        assert bool(quantile.vacuous[row]) == (float(quantile.bound[row]) >= head.product**2)


def test_a_biased_sketch_is_seen(monkeypatch):
    """Columns that are not divided by their probability break the guarantee for every seed."""
    right = SketchedHead._sampled
    monkeypatch.setattr(SketchedHead, "_sampled", lambda self, p, d, stream: 3 * right(self, p, d, stream))
    actual = check("skeinformer-jl", constant(n=64), (48,))
    assert {v for one in actual if one.at["sketch"] == "uniform" for v in one.verdicts()} == {"violated"}


@pytest.mark.parametrize("make_input", [lambda: make(n=24, seed=1), lambda: constant(n=24)])
def test_the_exact_mean_of_the_squared_error(make_input):
    """Conditional on each seed's p̂: the mean of error minus expectation is within 5 standard errors of 0."""
    qkv = make_input()
    setting = setting_for(qkv, seeds=range(400))
    for row in range(qkv.h):
        _, errors, means = SketchedHead(qkv, row).sampled_by_pilots(8, setting)
        apart = errors - means
        assert abs(float(apart.mean())) < 5 * float(apart.std()) / 20
        assert abs(float((errors - 1.6 * means).mean())) > 5 * float(apart.std()) / 20  # a factor of 1.6 is seen


def test_proposition_1_holds_where_it_says_something():
    """Nearly equal values: the bounds are below ‖BV‖_F², and both hold; peaked attention makes the quantile vacuous."""
    actual = check("skeinformer-proposition-1", constant(n=96), (64,), seeds=range(36))
    assert [set(one.verdicts()) for one in actual] == [{"holds"}, {"holds"}]
    quantile, mean = actual
    assert (quantile.bound > mean.bound).all() and (quantile.slack > 5).all() and (mean.slack >= 1).all()
    assert (mean.details["beta"] > 0.99).all()
    assert torch.allclose(
        quantile.bound, quantile.details["eta"] ** 2 / (quantile.details["beta"] * 64), rtol=1e-12, atol=0
    )
    peaked = check("skeinformer-proposition-1", make(n=24, score=6.0), (4,))
    assert set(peaked[0].verdicts()) <= {"vacuous", "assumption not met"}
    for one in peaked:
        assert (one.details["optimal_mean"] <= one.measured * (1 + 1e-12)).all() or one.at["statistic"] == "quantile"


def test_the_mean_bound_fails_for_a_quality_that_is_too_high(monkeypatch):
    monkeypatch.setattr(sketched, "chen2022_quality", lambda estimated, optimal: 40.0)
    actual = check("skeinformer-proposition-1", make(n=24, score=3.0), (6,))
    assert "violated" in actual[1].verdicts()


def test_the_pilots_needed_are_the_formula():
    for spread, n, delta in ((1.0, 512, 0.1), (7.5, 30, 0.01)):
        expected = 10 * spread * (math.log(2) + math.log(n) - math.log(delta))
        assert chen2022_pilots_needed(spread, n, delta) == pytest.approx(expected, rel=1e-14)


def test_the_proof_of_lemma_1_asks_for_more_rows_than_there_are():
    """Its C is a lower bound of all ``‖B^(i)‖²/n``, by loops over B; Hoeffding's bound at its number of rows is δ."""
    qkv, delta = make(n=24, score=1.5), 0.1
    [one] = check("skeinformer-lemma-1", qkv, (8,), seeds=range(2), delta=delta)
    for row in range(qkv.h):
        b, _ = literal(qkv, row)
        least = min(sum(b[j, i] ** 2 for j in range(24)) / 24 for i in range(24))
        needed = 2 / least**2 * math.log(2 * 24 / delta)
        assert float(one.details["proof"][row]) == pytest.approx(needed, rel=1e-9)
        assert 24 * 2 * math.exp(-2 * needed * (least / 2) ** 2) == pytest.approx(delta)
        assert least <= 1 / 24 and needed > 24**2
    assert chen2022_pilots_of_proof(0.0, 24, delta) == math.inf


def test_lemma_1_holds_with_enough_pilots():
    qkv = make(n=64, score=0.05, seed=2)
    actual = check("skeinformer-lemma-1", qkv, (4, 128), seeds=range(36))
    few, enough = actual
    assert set(few.verdicts()) == {"assumption not met"} and set(enough.verdicts()) == {"holds"}
    assert (enough.details["needed"] <= 128).all() and (enough.details["beta"] >= math.sqrt(1 / 3)).all()
    assert (enough.details["spread"] >= 1).all() and (enough.details["spread"] <= 64).all()
    peaked = check("skeinformer-lemma-1", make(n=24, score=6.0), (20,))[0]
    assert set(peaked.verdicts()) == {"assumption not met"} and (peaked.measured > 0).any()


def test_the_pilots_needed_keep_every_column_within_a_half():
    """The Chernoff bound behind them, against the exact probability for columns with one entry in s."""
    from scipy.stats import binom

    for spread in (1, 3, 10):
        d = math.ceil(chen2022_pilots_needed(spread, 1, 0.2))
        low, high = math.ceil(d / spread / 2) - 1, math.floor(1.5 * d / spread)
        outside = binom.cdf(low, d, 1 / spread) + binom.sf(high, d, 1 / spread)
        assert outside <= 0.2
    assert chen2022_column_spread(torch.ones(3), torch.full((3,), 0.5), 4) == pytest.approx(1.0)
    assert chen2022_column_spread(torch.ones(3), torch.ones(3), 4) == pytest.approx(4.0)


def test_a_lemma_that_fails_is_violated(monkeypatch):
    monkeypatch.setattr(chen2022, "chen2022_pilots_needed", lambda *args: 0.0)
    qkv = make(n=24, score=1.5)
    few, more = check("skeinformer-lemma-1", qkv, (2, 8))
    assert "violated" in few.verdicts()
    for one in (few, more):
        for row in range(qkv.h):
            head = SketchedHead(qkv, row)
            betas = [float(head.pilot(one.d, setting_for(qkv), seed)[1]) for seed in range(20)]
            assert float(one.measured[row]) == pytest.approx(sum(beta < 3**-0.5 for beta in betas) / 20)


def test_the_rank_correlation_is_that_of_each_head(monkeypatch):
    qkv = make(n=60, score=2.0)
    expected = [
        float(spearmanr(m.numpy(), head.row_norms.numpy()).statistic)
        for m, head in zip(zhou2021_sparsity(qkv), SketchedHead.of(qkv), strict=True)
    ]
    assert check("skeinformer-informer", qkv)[0].measured.tolist() == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr(chen2022, "zhou2021_sparsity", lambda qkv: torch.zeros(qkv.h, qkv.n_q))
    equal = check("skeinformer-informer", qkv)[0]  # numbers that are all equal have no order
    assert equal.measured.isnan().all() and set(equal.verdicts()) == {"assumption not met"}
    monkeypatch.undo()
    flat = check("skeinformer-informer", qkv.replace(v=torch.zeros_like(qkv.v), k=torch.zeros_like(qkv.k)))[0]
    assert flat.measured.isnan().all()


def test_the_sparsity_measure_goes_with_the_row_norms():
    actual = check("skeinformer-informer", make(n=60, score=2.0))[0]
    assert set(actual.verdicts()) == {"holds"} and (actual.measured > 0.5).all()
    for rho, low, high in zip(actual.measured.tolist(), actual.lower.tolist(), actual.upper.tolist(), strict=True):
        half = 1.959964 * math.sqrt((1 + rho**2 / 2) / 57)
        assert (low, high) == pytest.approx(
            (math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half)), abs=1e-4
        )


def test_an_opposite_order_is_violated(monkeypatch):
    monkeypatch.setattr(chen2022, "zhou2021_sparsity", lambda qkv: -zhou2021_sparsity(qkv))
    assert set(check("skeinformer-informer", make(n=60, score=2.0))[0].verdicts()) == {"violated"}


def even(v) -> QKV:
    """B = 11ᵀ/n, with these values (n, p_v)."""
    q = torch.zeros(1, len(v), 4, dtype=torch.float64)
    return QKV(q, q, v[None].double())


def spiky(n=400) -> QKV:
    """Values that are one large entry among small ones."""
    v = torch.full((n, 2), 0.01)
    v[17] = 500.0
    return even(v)


def flat(n=400) -> QKV:
    """Values of one size and of two signs."""
    return even(torch.randn(n, 2, generator=torch.Generator().manual_seed(1)).sign())


def test_the_failure_is_the_tails_of_chi_square():
    for d in (1, 2, 7, 64, 500, 4096):
        for epsilon in (0.02, 0.2, 0.9, 1.0, 3.0):
            expected = chi2.cdf(d * (1 - epsilon), d) + chi2.sf(d * (1 + epsilon), d)
            assert chen2022_vector_failure(d, epsilon) == pytest.approx(expected, rel=1e-9)
            assert expected <= 2 * math.exp(-d / 2 * (epsilon - math.log(1 + epsilon)))
    assert chen2022_vector_failure(2, 0.5) == pytest.approx(1 - math.exp(-0.5) + math.exp(-1.5), rel=1e-13)


@pytest.mark.parametrize("d, epsilon", [(4, 0.5), (16, 0.5), (16, 0.2), (40, 0.3)])
def test_gaussian_sketches_fail_as_often_as_chi_square_says(d, epsilon):
    """For a spike and for a flat vector alike: the exact interval of 1500 seeds at 1 - 1e-6 holds the probability."""
    for qkv in (spiky(60), flat(60)):
        head = SketchedHead(qkv, 0)
        errors = head.length_errors(head.v[:, 0], "gaussian", d, setting_for(qkv, seeds=range(1500)))
        low, high = clopper_pearson(int((errors > epsilon).sum()), 1500, 1 - 1e-6)
        exact = chi2.cdf(d * (1 - epsilon), d) + chi2.sf(d * (1 + epsilon), d)
        assert low <= exact <= high
        assert not low <= chi2.cdf(2 * d * (1 - epsilon), 2 * d) + chi2.sf(2 * d * (1 + epsilon), 2 * d) <= high


@pytest.mark.parametrize("sketch", SKETCHES)
def test_lengths_are_those_of_the_matrix_s(sketch):
    qkv, d = make(n=12), 5
    setting = setting_for(qkv, seeds=range(3))
    for row in range(qkv.h):
        head = SketchedHead(qkv, row)
        b = head.b.dense()[0].numpy()
        several = head.length_errors(head.v, sketch, d, setting)
        for x, errors in (
            (b[3], head.length_errors(torch.tensor(b[3]), sketch, d, setting)),
            (head.v[:, 1].numpy(), several[1]),
        ):
            for seed in range(3):
                stream = setting.streams("skeinformer-jl", seed).head(row, sketch)
                s = np.zeros((12, d))
                if sketch == "gaussian":
                    s = gaussian(12, d, stream).numpy()
                else:
                    p = head.probabilities(sketch).numpy()
                    for column, place in enumerate(torch.rand(d, generator=stream, dtype=torch.float64).tolist()):
                        i = next(i for i in range(12) if sum(p[: i + 1]) > place)
                        s[i][column] = 1 / math.sqrt(d * p[i])
                length = sum(float(s[:, column] @ x) ** 2 for column in range(d))
                expected = abs(length - float(x @ x)) / float(x @ x)
                assert float(errors[seed]) == pytest.approx(expected, rel=1e-10, abs=1e-13)


def test_the_hardest_vector_is_the_one_whose_length_varies_most(monkeypatch):
    monkeypatch.setattr(sketched, "ROWS", 4)
    qkv = make(n=15, score=3.0)
    for row in range(qkv.h):
        head = SketchedHead(qkv, row)
        for of, vectors in (("rows of B", head.b.dense()[0]), ("columns of V", head.v.T)):
            for sketch in ("optimal", "uniform"):
                p = head.probabilities(sketch)
                spreads = [sum(float(x[i]) ** 4 / float(p[i]) for i in range(15)) / float(x @ x) ** 2 for x in vectors]
                assert torch.equal(head.hardest(p, of), vectors[int(np.argmax(spreads))])
    unequal = torch.ones(15, 2, dtype=torch.float64) * 100
    unequal[:, 1] = torch.eye(15)[4]
    head = SketchedHead(even(unequal), 0)
    assert torch.equal(head.hardest(head.probabilities("uniform"), "columns of V"), head.v[:, 1])  # the short spike
    nothing = SketchedHead(even(torch.zeros(6, 2)), 0)
    assert not nothing.hardest(nothing.optimal, "columns of V").any()
    assert not nothing.length_errors(nothing.v, "gaussian", 3, setting_for(even(torch.zeros(6, 2)))).any()


def by_place(qkv, d=150, epsilon=0.5, seeds=range(36), **more):
    actual = check("skeinformer-jl-vector", qkv, (d,), epsilons=(epsilon,), seeds=seeds, **more)
    return {(one.at["sketch"], one.at["of"]): one for one in actual}


def test_sampling_breaks_the_guarantee_on_a_spike_and_not_on_flat_vectors():
    """150 Gaussian columns are enough for ε = ½, but uniform ones see a spike among 400 places too seldom."""
    actual = by_place(spiky())
    assert actual["uniform", "columns of V"].verdicts() == ["violated"]
    assert actual["uniform", "rows of B"].verdicts() == ["holds"]  # constant rows have the same length in every sample
    assert actual["optimal", "columns of V"].verdicts() == ["holds"]  # it knows the spike
    assert actual["optimal", "rows of B"].verdicts() == ["violated"]  # and then misses constant rows
    assert float(actual["uniform", "columns of V"].measured) > 0.6
    assert all(one.verdicts() == ["holds"] for (sketch, _), one in actual.items() if sketch == "gaussian")
    assert float(actual["uniform", "columns of V"].details["share"]) > 0.6
    assert all(one.verdicts() == ["holds"] for one in by_place(flat()).values())
    assert float(by_place(flat())["uniform", "columns of V"].measured) == 0


def test_the_verdicts_and_what_they_count():
    qkv, d, seeds = make(n=24, seed=5), 12, range(15)
    exact = chen2022_vector_failure(d, 0.6)
    for delta, word in ((exact * 0.99, {"assumption not met"}), (exact * 1.01, {"holds", "undecided", "violated"})):
        actual = by_place(qkv, d, 0.6, delta=delta, seeds=seeds)
        assert set(actual) == {(sketch, of) for sketch in SKETCHES for of in VECTORS}
        for (sketch, of), one in actual.items():
            assert set(one.verdicts()) <= word and (one.details["failure"] == exact).all()
            for row in range(qkv.h):
                head = SketchedHead(qkv, row)
                x = head.hardest(head.probabilities(sketch), of)
                errors = head.length_errors(x, sketch, d, setting_for(qkv, seeds=seeds)).tolist()
                failures = sum(error > 0.6 for error in errors)
                assert float(one.measured[row]) == pytest.approx(failures / 15)
                assert [float(one.lower[row]), float(one.upper[row])] == list(clopper_pearson(failures, 15))
    assert {v for one in by_place(qkv, 24, 1.5).values() for v in one.verdicts()} == {"vacuous"}  # S = 0 is as good


def test_a_sketch_that_forgets_to_be_scaled_is_seen(monkeypatch):
    monkeypatch.setattr(sketched, "gaussian", lambda *args: 1.5 * gaussian(*args))
    actual = by_place(flat())
    assert {v for (sketch, _), one in actual.items() if sketch == "gaussian" for v in one.verdicts()} == {"violated"}
