"""Exponentials without subnormal numbers: which become zero, that the rest stays, and what it does to a matrix."""

import pytest
import torch
from inputs import make

from attnprobe.operators import GaussianAttention, SoftmaxAttention, UnnormalisedAttention
from attnprobe.operators.terms import Terms
from attnprobe.operators.underflow import exp_, least_exponent, softmax
from attnprobe.rng import generator

TINY = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}
SPREAD = {torch.float32: 30.0, torch.float64: 250.0}  # of scores whose exponentials underflow


def sharp_scores(dtype, rows=7, keys=300):
    return SPREAD[dtype] * torch.randn(2, rows, keys, generator=generator(0, "scores"), dtype=dtype)


def subnormal(x):
    return (x != 0) & (x.abs() < torch.finfo(x.dtype).tiny)


@pytest.mark.parametrize("dtype", TINY)
def test_small_weights_are_zero_and_the_others_are_torchs_to_the_bit(dtype):
    scores = sharp_scores(dtype)
    expected, got = torch.softmax(scores, -1), softmax(scores.clone())
    assert subnormal(expected).any() and not subnormal(got).any()
    changed = expected != got
    assert (got[changed] == 0).all() and (expected[changed] <= scores.shape[-1] * TINY[dtype]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_flat_weights_and_half_precision_are_torchs(dtype):
    scores = torch.randn(2, 5, 9, generator=generator(0, "flat")).to(dtype) * (8 if dtype.itemsize == 2 else 1)
    assert torch.equal(softmax(scores.clone()), torch.softmax(scores, -1))


@pytest.mark.parametrize("shape", [(2, 0, 5), (0, 3, 5)])
def test_no_rows_have_no_weights(shape):
    assert softmax(torch.zeros(shape)).shape == exp_(torch.zeros(shape)).shape == shape


def test_half_precision_has_no_least_exponent():
    assert least_exponent(torch.zeros(1, dtype=torch.float16)) == -float("inf")
    assert least_exponent(torch.zeros(1), keys=1000) > least_exponent(torch.zeros(1)) > -88


def test_hidden_keys_and_rows_that_are_not_finite_stay_what_they_are():
    scores = sharp_scores(torch.float32)
    scores[..., 100:] = -float("inf")
    scores[0, 0, 0] = float("nan")
    expected, got = torch.softmax(scores, -1), softmax(scores.clone())
    assert torch.equal(expected.isnan(), got.isnan()) and not got[..., 100:].nan_to_num().any()


@pytest.mark.parametrize("dtype", TINY)
def test_exponentials_below_the_least_normal_number_are_zero(dtype):
    exponents = -sharp_scores(dtype).abs() * 4
    expected, got = exponents.exp(), exp_(exponents.clone())
    assert subnormal(expected).any() and not subnormal(got).any()
    assert torch.equal(torch.where(expected < TINY[dtype], 0, expected), got)


@pytest.mark.parametrize("dtype", TINY)
def test_gradients_are_those_of_torch(dtype):
    scores = sharp_scores(dtype).requires_grad_()
    towards = torch.randn(scores.shape, generator=generator(0, "towards"), dtype=dtype)
    [expected] = torch.autograd.grad((torch.softmax(scores, -1) * towards).sum(), scores)
    [got] = torch.autograd.grad((softmax(scores) * towards).sum(), scores)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("kind", [SoftmaxAttention, UnnormalisedAttention, GaussianAttention])
@pytest.mark.parametrize("dtype", TINY)
def test_blocks_of_a_sharp_head_hold_no_subnormal_number(kind, dtype):
    qkv = make(h=1, n=150, score=SPREAD[dtype], dtype=dtype)
    q, k = qkv.q, qkv.k
    operator = kind(q, k, 0.4)
    dense = operator.dense()
    assert operator._underflows == [True] and not subnormal(dense).any()
    flat = kind(q / 100, k / 100, 0.4)
    assert flat._underflows == [False]


@pytest.mark.parametrize("kind", [SoftmaxAttention, UnnormalisedAttention, GaussianAttention])
def test_a_head_that_may_underflow_is_found_whatever_the_direction_of_its_rows(kind):
    """The bound holds: where nothing is looked at, nothing is subnormal."""
    for seed in range(200):
        size = 10 ** float(torch.rand((), generator=generator(seed, "size")) * 2 - 0.5)
        q, k = size * torch.randn(2, 1, 40, 3, generator=generator(seed, "rows"))
        operator = kind(q, k + 5 * size, 1.0)
        if not operator._underflows[0]:
            assert not subnormal(operator.dense()).any()


@pytest.mark.parametrize("kind", [SoftmaxAttention, UnnormalisedAttention, GaussianAttention])
def test_a_flat_head_underflows_by_its_bias_alone(kind):
    qkv = make(h=1, n=150, score=0.1, dtype=torch.float32)
    for lowest, expected in ((-20.0, False), (-95.0, True)):
        bias = torch.linspace(lowest, 0, 150).expand(1, 150, 150)
        operator = kind(qkv.q, qkv.k, 0.4, terms=Terms(bias=bias))
        assert operator._underflows == [expected] and not subnormal(operator.dense()).any()
