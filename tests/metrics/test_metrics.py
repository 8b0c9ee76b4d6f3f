"""Errors of outputs and their lower bound."""

import math

import pytest
import torch
from inputs import make

from attnprobe.errors import UsageError
from attnprobe.methods import approximate
from attnprobe.metrics import OUTPUT_METRICS, lower_bound, output_errors, repeated_rows
from attnprobe.operators import Dense
from attnprobe.operators.linalg.norms import row_norms
from attnprobe.qkv import QKV
from attnprobe.reference import exact, exact_output
from attnprobe.rng import generator

F64 = torch.float64


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed, str(shape)), dtype=F64)


def literal(expected, got):
    """The six errors of one head, (n, p_v) each, by loops."""
    error = expected - got
    top = torch.linalg.svdvals(error)[0], torch.linalg.svdvals(expected)[0]

    def square(x):
        return sum(float(value) ** 2 for row in x for value in row) ** 0.5

    rows, cosines = [], []
    for a, b in zip(expected.tolist(), got.tolist(), strict=True):

        def norm(x):
            return sum(v * v for v in x) ** 0.5

        rows.append(norm([s - t for s, t in zip(a, b, strict=True)]) / norm(a))
        cosines.append(sum(s * t for s, t in zip(a, b, strict=True)) / norm(a) / norm(b))
    return {
        "output_spectral": float(top[0]),
        "output_spectral_relative": float(top[0] / top[1]),
        "output_frobenius": square(error.tolist()),
        "output_frobenius_relative": square(error.tolist()) / square(expected.tolist()),
        "output_row_relative_max": max(rows),
        "output_cosine_min": min(cosines),
    }


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("target", ["softmax", "gaussian"])
def test_output_errors_are_the_literal_ones(dtype, target):
    qkv = make(dtype=dtype)
    approx = approximate("skyformer", qkv, 6, target=target)
    errors = output_errors(exact(qkv, target), approx, qkv)
    assert set(errors) == set(OUTPUT_METRICS)
    expected = exact_output(qkv, target)
    for row in range(2):
        for name, value in literal(expected[row], approx.output[row].double()).items():
            assert errors[name].dtype == F64 and errors[name].shape == (2,)
            assert float(errors[name][row]) == pytest.approx(value, rel=1e-12)  # sums of 100 terms


def test_the_reference_may_be_an_operator_or_its_output_and_so_may_the_approximation():
    qkv = make()
    approx = approximate("vmean", qkv)
    for target in ("softmax", "gaussian"):
        one = output_errors(exact(qkv, target), approx, qkv)
        other = output_errors(exact_output(qkv, target), approx.output, qkv)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_reference_is_the_operator_that_was_given():
    """Any operator may be exact: its numbers count, not its class."""
    qkv = make()
    dense = Dense(exact(qkv, "gaussian").dense())
    errors = output_errors(dense, exact_output(qkv, "gaussian"), qkv)
    assert errors["output_spectral"].max() <= 1e-12
    scaled = QKV(qkv.q, qkv.k, qkv.v, scale=0.9)
    errors = output_errors(exact(scaled), exact_output(scaled), qkv)
    assert errors["output_spectral"].max() <= 1e-12


def test_a_padding_mask_counts_its_rows_as_right():
    mask = torch.arange(20) < 15
    qkv = make()
    padded = QKV(qkv.q, qkv.k, qkv.v, mask=mask)
    for target in ("softmax", "gaussian"):
        full = output_errors(exact(padded, target), approximate("skyformer", padded, 5, target=target), padded)
        inner = padded.compressed()
        part = output_errors(exact(inner, target), approximate("skyformer", inner, 5, target=target), inner)
        for name in full:
            assert torch.allclose(full[name], part[name], rtol=1e-12), name


def test_no_error_is_zero_and_a_zero_output_has_relative_error_one():
    qkv = make()
    expected = exact_output(qkv)
    errors = output_errors(expected, expected, qkv)
    for name, value in errors.items():
        assert torch.allclose(value, torch.full_like(value, float(name == "output_cosine_min")), atol=1e-15)
    errors = output_errors(expected, torch.zeros_like(expected), qkv)
    for name in ("output_spectral_relative", "output_frobenius_relative", "output_row_relative_max"):
        assert torch.allclose(errors[name], torch.ones(2, dtype=F64))


def test_an_output_row_of_zeros_has_no_direction_and_its_cosine_is_a_number():
    qkv = make()
    expected = exact_output(qkv)
    got = expected.clone()
    got[:, 3] = 0
    errors = output_errors(expected, got, qkv)
    assert torch.isfinite(errors["output_cosine_min"]).all() and (errors["output_cosine_min"] <= 0).all()


def test_rows_that_are_zero_in_both_do_not_count():
    expected = exact_output(make())
    got = expected * 1.1
    expected[:, 4], got[:, 4] = 0, 0
    errors = output_errors(expected, got, make())
    assert torch.allclose(errors["output_row_relative_max"], torch.tensor(0.1).double(), rtol=1e-6)
    assert torch.allclose(errors["output_cosine_min"], torch.ones(2, dtype=F64))


def test_a_head_that_is_not_finite_has_errors_nan_and_leaves_the_others_alone():
    qkv = make(h=3)
    expected = exact_output(qkv)
    got = expected + 0.1 * randn(3, 20, 5)
    clean = output_errors(expected, got, qkv)
    got[1, 7, 2] = float("nan")
    got[2, 0, 0] = float("inf")
    errors = output_errors(expected, got, qkv)
    for name, value in errors.items():
        assert torch.equal(value[0], clean[name][0])
        assert not torch.isfinite(value[1]) and (not torch.isfinite(value[2]) or name == "output_cosine_min"), name


@pytest.mark.parametrize("power", [*range(-280, 171, 10), -124, 124])
def test_errors_far_from_one_are_those_near_one(power):
    """All six metrics: relative ones are what they are near one, absolute ones that times the size."""
    size = 10.0**power
    qkv, factor = make(h=3), torch.tensor([1.0, size, 1.0], dtype=F64)[:, None, None]
    expected = exact_output(qkv)
    got = expected + 0.1 * randn(3, 20, 5)
    near, far = output_errors(expected, got, qkv), output_errors(expected * factor, got * factor, qkv)
    assert set(near) == set(OUTPUT_METRICS)
    for name in OUTPUT_METRICS:
        absolute = name in ("output_spectral", "output_frobenius")
        known = near[name] * factor[:, 0, 0] if absolute else near[name]
        assert torch.allclose(far[name], known, rtol=1e-12, atol=0), name
        assert torch.equal(far[name][[0, 2]], near[name][[0, 2]]), name


@pytest.mark.parametrize("power", range(-280, 281, 40))
def test_norms_of_rows_of_any_size(power):
    x = randn(2, 7, 5) * 10.0**power
    x[0, 3], x[1, 2] = 0, torch.tensor([3.0, 0.0, 4.0, 0.0, 0.0], dtype=F64) * 10.0**power
    actual = row_norms(x)
    assert actual[0, 3] == 0 and actual[1, 2] == pytest.approx(5 * 10.0**power, rel=1e-14)
    for row, norm in zip(x.reshape(-1, 5).tolist(), actual.reshape(-1).tolist(), strict=True):
        assert norm == pytest.approx(math.hypot(*row), rel=1e-14)
    x[0, 0, 0], x[0, 1, 1] = math.nan, math.inf
    assert row_norms(x)[0, 0].isnan() and row_norms(x)[0, 1].isinf()


def test_shapes_that_differ_are_refused():
    qkv = make()
    with pytest.raises(UsageError, match=r"\(2, 20, 4\).*\(2, 20, 5\)"):
        output_errors(exact(qkv), torch.zeros(2, 20, 4), qkv)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_no_operator_of_rank_d_has_a_smaller_output_error_and_one_attains_it(d):
    qkv = make(score=6.0)
    expected, bound = exact_output(qkv), lower_bound(exact_output(qkv), d)
    g = generator(0, "rivals")
    b = exact(qkv).dense()

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=F64)

    rivals = [normal(2, 20, d) @ normal(2, d, 20) for _ in range(20)]
    rivals += [approximate("svd", qkv, d).operator.dense()]
    u = torch.linalg.svd(expected).U[..., :d]
    best = u @ u.mT @ b
    rivals += [best + 10.0**-k * rival for k, rival in enumerate(rivals[:6], start=1)]  # near the best, cut below
    for place, rival in enumerate(rivals):
        left, values, right = torch.linalg.svd(rival)
        rival = (left[..., :d] * values[..., None, :d]) @ right[:, :d]
        errors = output_errors(expected, rival @ qkv.v, qkv)
        for name, value in bound.items():
            assert (errors[name] >= value * (1 - 1e-12)).all(), (place, name)
    errors = output_errors(expected, best @ qkv.v, qkv)
    for name, value in bound.items():
        assert torch.allclose(errors[name], value, rtol=1e-10) and (value > 0).all()


def test_the_bound_is_zero_from_the_width_of_the_values_on_and_falls_with_d():
    expected = exact_output(make())
    bounds = [lower_bound(expected, d) for d in range(8)]
    for name in bounds[0]:
        values = torch.stack([bound[name] for bound in bounds])
        assert (values[:-1] >= values[1:]).all() and (values[:5] > 0).all() and (values[5:] == 0).all()
    assert torch.allclose(bounds[0]["output_spectral_relative"], torch.ones(2, dtype=F64))
    assert torch.allclose(bounds[0]["output_frobenius_relative"], torch.ones(2, dtype=F64))


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_a_relative_bound_has_no_units_and_an_absolute_one_those_of_the_output(size):
    expected = exact_output(make())
    one, other = lower_bound(expected, 2), lower_bound(size * expected, 2)
    for name, value in one.items():
        assert torch.allclose(other[name], value if "relative" in name else size * value, rtol=1e-12, atol=0)


def test_rows_that_repeat_are_counted_in_queries_and_keys_together():
    qkv = make(n=10)
    assert repeated_rows(qkv) == 0
    q, k = qkv.q.clone(), qkv.k.clone()
    q[:, 3], q[:, 7], q[:, 9] = q[:, 1], q[:, 1], q[:, 2]
    assert repeated_rows(QKV(q, k, qkv.v)) == 0  # the keys differ
    k[:, 3], k[:, 7], k[:, 9] = k[:, 1], k[:, 1], k[:, 2]
    assert repeated_rows(QKV(q, k, qkv.v)) == 3
    for dtype in (torch.float32, torch.bfloat16):
        assert repeated_rows(QKV(q, k, qkv.v).to(dtype=dtype)) == 3
    assert repeated_rows(make(n=5, n_k=6)) == 0


def test_padding_is_no_repetition():
    qkv = make(n=6)
    mask = torch.tensor([True] * 3 + [False] * 3)
    q, k = (torch.where(mask[:, None], x, torch.zeros_like(x)) for x in (qkv.q, qkv.k))
    assert repeated_rows(QKV(q, k, qkv.v, mask=mask)) == 0
