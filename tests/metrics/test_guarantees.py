"""Relative errors of guarantees, against their definitions in loops over dense matrices."""

import math

import pytest
import torch

from attnprobe import QKV, Approximation, Unsupported, approximate
from attnprobe.metrics import guarantees
from attnprobe.metrics.guarantees import GuaranteeReference, over_heads
from attnprobe.operators import Dense
from attnprobe.rng import generator


def inputs(causal=False, sinks=False, n=40, **more):
    q, k, v = torch.randn(3, 2, n, 6, generator=generator(3, "guarantees"), dtype=torch.float64)
    logits = torch.tensor([0.5, -1.0], dtype=torch.float64) if sinks else None
    return QKV(2 * q, k, v, causal=causal, sink_logits=logits, **more)


@pytest.mark.parametrize("causal, sinks", [(False, False), (True, False), (True, True)])
def test_errors_are_those_of_the_definitions(causal, sinks):
    qkv = inputs(causal, sinks).queries(torch.arange(30, 40))
    approx = approximate("bigbird", qkv, 20, seed=3)
    actual = GuaranteeReference(qkv).errors(approx)
    assert approx.log_normalizer is not None
    weights, log_sums = approx.matrix().dense(), approx.log_normalizer()
    for head in range(2):
        exact_rows = []
        for row in range(10):
            seen = 31 + row if causal else 40
            a = [math.exp(qkv.scale * float(qkv.q[head, row] @ qkv.k[head, j])) for j in range(seen)]
            d = sum(a) + (0 if qkv.sink_logits is None else math.exp(float(qkv.sink_logits[head])))
            numerator = torch.stack([a[j] * qkv.v[head, j] for j in range(seen)]).sum(0)
            d_own = math.exp(float(log_sums[head, row]))
            numerator_own = d_own * approx.output[head, row]
            assert float(actual["normaliser"][head, row]) == pytest.approx(abs(d_own / d - 1), rel=1e-9, abs=1e-12)
            of_numerator = float((numerator_own - numerator).norm() / numerator.norm())
            assert float(actual["numerator"][head, row]) == pytest.approx(of_numerator, rel=1e-9)
            of_output = float((approx.output[head, row] - numerator / d).norm() / (numerator / d).norm())
            assert float(actual["output"][head, row]) == pytest.approx(of_output, rel=1e-9)
            exact_rows.append(torch.tensor([x / d for x in a] + [0.0] * (40 - seen), dtype=torch.float64))
        b = torch.stack(exact_rows)
        expected = float(torch.linalg.matrix_norm(b - weights[head], 2) / torch.linalg.matrix_norm(b, 2))
        assert float(actual["matrix"][head]) == pytest.approx(expected, rel=1e-6)


def test_errors_of_heads_are_relative_frobenius_errors():
    qkv = inputs()
    approx = approximate("performer", qkv, 30)
    reference = GuaranteeReference(qkv, matrix=False)
    actual = reference.errors(approx)
    assert "matrix" not in actual
    difference = approx.output - reference.output
    expected = difference.flatten(1).norm(dim=1) / reference.output.flatten(1).norm(dim=1)
    torch.testing.assert_close(over_heads(actual["output"], reference.sizes_of("output")), expected)
    d, d_own = reference.log_normaliser.exp()[..., None], approx.log_normalizer().double().exp()[..., None]
    numerators, own = d * reference.output, d_own * approx.output
    expected = (own - numerators).flatten(1).norm(dim=1) / numerators.flatten(1).norm(dim=1)
    torch.testing.assert_close(over_heads(actual["numerator"], reference.sizes_of("numerator")), expected)


def test_what_a_method_does_not_state_has_no_error():
    qkv = inputs()
    assert set(GuaranteeReference(qkv).errors(approximate("skeinformer", qkv, 8))) == {"output", "matrix"}
    alone = Approximation(None, approximate("vmean", qkv).output)
    assert set(GuaranteeReference(qkv).errors(alone)) == {"output"}
    gaussian = GuaranteeReference(qkv, "gaussian")
    assert set(gaussian.errors(approximate("kernelized", qkv, target="gaussian"))) == {"output", "matrix"}


def test_what_is_not_finite_stays_so_and_harms_no_other_head():
    qkv = inputs()
    matrix = approximate("vmean", qkv).matrix().dense().clone()
    matrix[0, 0, 0] = math.nan
    actual = GuaranteeReference(qkv).errors(Approximation(Dense(matrix), matrix @ qkv.v))
    assert actual["matrix"].isnan().tolist() == [True, False] and int(actual["output"].isnan().sum()) == 1


def test_rows_whose_exact_output_is_zero():
    qkv = inputs()
    zero = QKV(qkv.q, qkv.k, torch.zeros_like(qkv.v))
    reference = GuaranteeReference(zero)
    assert (reference.errors(approximate("vmean", zero))["output"] == 0).all()
    other = Approximation(None, torch.ones_like(zero.v))
    assert reference.errors(other)["output"].isinf().all()


@pytest.mark.parametrize("enough", [0.1, 0.5, 0.8, 2.0])
def test_a_matrix_error_above_what_is_enough_may_be_a_lower_bound(enough):
    """It is on the same side of the limit as the exact error, and exact up to the limit."""
    qkv = inputs(n=30)
    reference = GuaranteeReference(qkv)
    approx = approximate("bigbird", qkv, 12, seed=2)
    matrix = approx.matrix().dense().clone()
    matrix[1] = reference.dense[1] + 1e-3 * (matrix[1] - reference.dense[1])
    approx = Approximation(Dense(matrix), matrix @ qkv.v)
    exact, actual = reference.errors(approx)["matrix"], reference.errors(approx, enough=enough)["matrix"]
    assert float(exact[1]) < 0.1 < float(exact[0])
    assert torch.equal(actual > enough, exact > enough) and (actual <= exact * (1 + 1e-12)).all()
    torch.testing.assert_close(actual[exact <= enough], exact[exact <= enough], rtol=1e-12, atol=0)
    assert torch.isfinite(actual).all()


def test_a_target_without_a_normaliser_has_no_error_of_one():
    approx = approximate("performer", inputs(), 8)
    assert approx.log_normalizer is not None
    assert set(GuaranteeReference(inputs(), "gaussian").errors(approx)) == {"output", "matrix"}


def test_the_norms_of_repeats_are_refused_where_both_sides_are_large(monkeypatch):
    monkeypatch.setattr(guarantees, "LARGEST", 39)
    with pytest.raises(
        Unsupported, match="the norm of a 40 x 40 matrix in every repeat takes too long: choose fewer --queries"
    ):
        _ = GuaranteeReference(inputs()).norm
    few = inputs().queries(torch.arange(39))
    expected = torch.linalg.matrix_norm(GuaranteeReference(few).dense, 2)
    torch.testing.assert_close(GuaranteeReference(few).norm, expected)


@pytest.mark.parametrize("n_q, n_k", [(9, 40), (40, 9)])
def test_a_norm_is_found_from_the_shorter_side(n_q, n_k, monkeypatch):
    sizes, solve = [], torch.linalg.eigvalsh
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda gram: sizes.append(tuple(gram.shape)) or solve(gram))
    q, k = torch.randn(2, n_q, 6), torch.randn(2, n_k, 6)
    reference = GuaranteeReference(QKV(q, k, k))
    torch.testing.assert_close(reference.norm, torch.linalg.matrix_norm(reference.dense, 2))
    assert sizes == [(2, 9, 9)]
