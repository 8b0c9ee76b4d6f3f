"""Skeinformer's JL guarantee for vectors: the exact law of a Gaussian sketch, literal lengths, spikes and flat ones."""

import math

import numpy as np
import pytest
import torch
from inputs import make
from scipy.stats import chi2
from theory_settings import check, setting_for

from attnprobe import QKV
from attnprobe.linalg.sketches import gaussian
from attnprobe.theorems import sketched
from attnprobe.theorems.chen2022 import SKETCHES, VECTORS, chen2022_vector_failure
from attnprobe.theorems.finding import clopper_pearson
from attnprobe.theorems.sketched import SketchedHead


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


def by_place(qkv, d=150, epsilon=0.5, **more):
    actual = check("skeinformer-jl-vector", qkv, (d,), epsilons=(epsilon,), **more)
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
    for delta, word in ((exact * 0.99, {"assumption not met"}), (exact * 1.01, {"holds", "violated"})):
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
