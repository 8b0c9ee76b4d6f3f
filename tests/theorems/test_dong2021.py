"""Rank collapse: the residual, the bound of one layer and its assumption, literal twins, planted faults."""

import math

import numpy as np
import pytest
import torch
from inputs import make
from theory_settings import check

from attnprobe import QKV, exact
from attnprobe.theorems import dong2021
from attnprobe.theorems.dong2021 import LARGEST_RANGE, composite_norm, dong2021_contraction, residual

SMALL = 0.02  # of scores whose rows range over less than 1.256


def literal(qkv, row):
    """D, q, γ, ``‖B‖₁`` of one head by loops."""
    q, k = qkv.q[row].tolist(), qkv.k[row].tolist()
    n, m, p = len(q), len(k), qkv.p
    mean = [sum(q[i][c] for i in range(n)) / n for c in range(p)]

    def dot(x, y):
        return qkv.scale * sum(a * b for a, b in zip(x, y, strict=True))

    e = [[dot([a - b for a, b in zip(q[i], mean, strict=True)], k[j]) for j in range(m)] for i in range(n)]
    ranges = [max(line) - min(line) for line in e]
    weights = [math.exp(dot(mean, k[j])) for j in range(m)]
    base = [w / sum(weights) for w in weights]
    gamma = math.sqrt(sum(ranges) / max(ranges) * max(base))
    b = torch.softmax(qkv.scale * qkv.q[row] @ qkv.k[row].T, -1)
    return ranges, base, gamma, max(sum(b[i, j].item() for i in range(n)) for j in range(m)), b


@pytest.mark.parametrize("score", [SMALL, 0.1, 1.0, 6.0])
def test_the_quantities_are_the_literal_ones(score, monkeypatch):
    monkeypatch.setattr(dong2021, "ROWS", 4)
    qkv = make(n=11, n_k=13, score=score)
    one = check("rank-collapse", qkv)[0]
    for row in range(qkv.h):
        ranges, _, gamma, columns, b = literal(qkv, row)
        assert float(one.details["range"][row]) == pytest.approx(max(ranges), rel=1e-11)
        assert float(one.details["gamma"][row]) == pytest.approx(gamma, rel=1e-11)
        assert float(one.bound[row]) == pytest.approx(2 * gamma * max(ranges), rel=1e-11)
        assert float(one.details["columns"][row]) == pytest.approx(columns, rel=1e-12)
        assert bool(one.met[row]) == (max(ranges) <= 1.256)
        assert bool(one.vacuous[row]) == (2 * gamma * max(ranges) >= math.sqrt(columns))
        v, out = qkv.v[row], b @ qkv.v[row]
        frobenius = (out - out.mean(0)).norm() / (v - v.mean(0)).norm()
        assert float(one.details["frobenius"][row]) == pytest.approx(float(frobenius), rel=1e-11)
        assert (one.details["paper"] >= one.bound * (1 - 1e-12)).all()  # 2 max|E| is at least the range


def test_the_composite_norm():
    x = make().v[0]
    columns = max(sum(abs(float(x[i, j])) for i in range(20)) for j in range(5))
    rows = max(sum(abs(float(x[i, j])) for j in range(5)) for i in range(20))
    assert float(composite_norm(x)) == pytest.approx(math.sqrt(columns * rows), rel=1e-14)


def test_the_residual_is_the_least_of_three_and_zero_for_equal_rows():
    x = make(h=3, seed=3).v
    actual = composite_norm(residual(x))
    for middle in (x.mean(1), torch.from_numpy(np.median(x.numpy(), axis=1)), (x.amax(1) + x.amin(1)) / 2):
        assert (actual <= composite_norm(x - middle[:, None]) * (1 + 1e-15)).all()
    assert composite_norm(residual(x + 1e3)).numpy() == pytest.approx(actual.numpy(), rel=1e-10)
    equal = torch.tensor([1.0, -2.0]).expand(4, 2)
    assert (residual(equal) == 0).all()
    g = torch.Generator().manual_seed(0)
    for _ in range(200):  # no random centre is better by more than a little
        middle = x.mean(1) + 0.3 * torch.randn(3, 5, generator=g, dtype=torch.float64)
        assert (composite_norm(x - middle[:, None]) > 0.85 * actual).all()


@pytest.mark.parametrize(
    ("column", "middle"),
    [([0, 0, 10, 10, 10], 5), ([0, 0, 0, 0, 10], 0), ([0, 1, 1, 2, 6], 2)],
    ids=["midrange", "median", "mean"],
)
def test_each_of_the_three_middles_is_taken_where_it_is_the_best(column, middle):
    x = torch.tensor(column, dtype=torch.float64)[:, None]
    assert torch.equal(residual(x), x - middle)


def test_the_constant_of_the_assumption():
    assert math.exp(LARGEST_RANGE) <= 1 + 2 * LARGEST_RANGE
    assert math.exp(LARGEST_RANGE + 1e-3) > 1 + 2 * (LARGEST_RANGE + 1e-3)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("score", [SMALL, 0.1])
def test_entries_of_attention_differ_by_the_range_of_their_row(seed, score):
    """``|B_ij - q_j| ≤ 2 D_i q_j``, the step on which the bound rests, wherever ``D_i ≤ 1.256``."""
    qkv = make(n=16, score=score, seed=seed)
    for row in range(qkv.h):
        ranges, base, _, _, b = literal(qkv, row)
        for i, spread in enumerate(ranges):
            if spread <= LARGEST_RANGE:
                for j in range(16):
                    assert abs(float(b[i, j]) - base[j]) <= 2 * spread * base[j] * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_holds_where_scores_vary_little_and_says_something(seed):
    one = check("rank-collapse", make(n=32, score=SMALL, seed=seed))[0]
    assert set(one.verdicts()) == {"holds"} and (one.bound < 1).all() and (one.slack > 1).all()


def test_the_bound_is_met_up_to_a_constant():
    """Two queries that differ, values that are the keys: nothing in the bound is loose by more than a few times."""
    x = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)
    one = check("rank-collapse", QKV(0.1 * x, x, x, scale=1.0))[0]
    assert set(one.verdicts()) == {"holds"} and float(one.slack) < 5
    assert float(one.measured) == pytest.approx(math.tanh(0.1), rel=1e-12)
    assert float(dong2021_contraction(torch.full((1, 2), 0.2), torch.full((1, 2), 0.5))) == pytest.approx(0.4)


def test_peaked_attention_does_not_meet_the_assumption_and_scores_in_between_say_nothing():
    assert set(check("rank-collapse", make(score=6.0))[0].verdicts()) == {"assumption not met"}
    between = check("rank-collapse", make(n=32, score=0.25))[0]
    assert (between.details["range"] > 0.5).all() and set(between.verdicts()) <= {"vacuous", "assumption not met"}


def test_what_softmax_does_not_see_changes_nothing():
    """One vector added to all keys, or to all queries: B changes with the queries, the ranges do not."""
    qkv = make(n=12, score=SMALL)
    plain = check("rank-collapse", qkv)[0]
    keys = check("rank-collapse", QKV(qkv.q, qkv.k + 3.0, qkv.v))[0]
    queries = check("rank-collapse", QKV(qkv.q + 3.0, qkv.k, qkv.v))[0]
    assert keys.bound.numpy() == pytest.approx(plain.bound.numpy(), rel=1e-9)
    assert keys.measured.numpy() == pytest.approx(plain.measured.numpy(), rel=1e-9)
    assert queries.details["range"].numpy() == pytest.approx(plain.details["range"].numpy(), rel=1e-9)
    values = check("rank-collapse", QKV(qkv.q, qkv.k, 5 * qkv.v + 2))[0]
    assert values.measured.numpy() == pytest.approx(plain.measured.numpy(), rel=1e-9)


def test_equal_values_stay_equal():
    qkv = make(n=12, score=SMALL)
    one = check("rank-collapse", QKV(qkv.q, qkv.k, torch.ones(2, 12, 5, dtype=torch.float64)))[0]
    assert set(one.verdicts()) == {"holds"} and (one.measured < 1e-12).all()


def test_an_output_that_does_not_collapse_is_violated(monkeypatch):
    monkeypatch.setattr(dong2021, "exact_output", lambda qkv: qkv.v.double())
    qkv = make(n=32, score=SMALL)
    assert set(check("rank-collapse", qkv)[0].verdicts()) == {"violated"}
    assert (exact(qkv).row_sums() - 1).abs().max() < 1e-12
