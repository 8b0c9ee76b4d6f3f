"""Every method and every choice of its options on a GPU: the same draws, the same numbers up to rounding."""

import pytest
import torch
from every_setting import CASES, DEFAULTS, run
from inputs import make

from attnprobe.methods import get
from attnprobe.operators.blocks import BLOCK_MEMORY
from attnprobe.qkv import QKV

F64 = torch.float64
DTYPES = (F64, torch.float32, torch.bfloat16)
LOST = 0.2  # of its size: there an output is rounding on the CPU too, and nothing is compared
N = 48


def relative(got, expected):
    """``‖got - wanted‖_F / ‖wanted‖_F`` in float64."""
    expected = expected.double()
    return float((got.double() - expected).norm() / expected.norm().clamp(min=1e-300))


def same(place, got, expected, tolerance=1e-10):
    """Entry by entry. Other blocks and another order of sums move the last digits, which some methods amplify."""
    assert place.holds(got) and got.shape == expected.shape and got.dtype == expected.dtype
    return (place.back(got) - expected).abs().max() <= tolerance * max(1.0, float(expected.abs().max()))


def in_full(name, target, qkv, options):
    """The output in float64 of the same rounded inputs."""
    return run(name, target, qkv.to(dtype=F64), options).output


@pytest.mark.parametrize("name, target, options", CASES)
def test_in_float64_every_number_is_that_of_the_cpu(name, target, options, place):
    qkv, x = make(n=N), torch.linspace(-1, 1, 2 * N * 3, dtype=F64).reshape(2, N, 3)
    expected = run(name, target, qkv, options)
    got = run(name, target, place.sent(qkv), options)
    assert got.draws_hash() == expected.draws_hash() and all(draw.device.type == "cpu" for draw in got.draws.values())
    assert same(place, got.output, expected.output)
    assert same(place, got.operator @ place.sent(x), expected.operator @ x)
    assert same(place, got.operator.rmatmul(place.sent(x)), expected.operator.rmatmul(x))
    assert same(place, got.operator.rows(3, 9), expected.operator.rows(3, 9))
    assert same(place, got.operator.row_sums(), expected.operator.row_sums())
    for diagnostic, values in expected.diagnostics.items():
        assert torch.allclose(place.back(got.diagnostics[diagnostic]).double(), values.double(), rtol=1e-6, atol=1e-9)
    for core, matrix in expected.cores.items():
        assert same(place, got.cores[core], matrix)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name, target, options", CASES)
def test_in_lower_precision_it_loses_no_more_than_the_cpu_does(name, target, options, dtype, place):
    """Beside the same inputs in float64. What is rounded otherwise there may select otherwise, so bands are wide."""
    qkv = make(n=N).to(dtype=dtype)
    exact, expected = in_full(name, target, qkv, options), run(name, target, qkv, options).output
    got = run(name, target, place.sent(qkv), options).output
    assert place.holds(got) and got.dtype == dtype and got.shape == expected.shape
    lost = relative(expected, exact)
    if lost < LOST:  # a NaN is above
        assert relative(place.back(got), exact) <= 4 * lost + 64 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name, target", [case.values[:2] for case in DEFAULTS])
@pytest.mark.parametrize("form", ["padded", "causal"])
def test_padded_and_causal_forms(name, target, form, dtype, place):
    if form == "causal" and not get(name).is_causal:
        pytest.skip(f"{name} has no causal form")
    qkv = make(n=N).to(dtype=dtype)
    mask = torch.arange(N) % 9 != 4 if form == "padded" else None
    qkv = QKV(qkv.q, qkv.k, qkv.v, mask=mask, causal=form == "causal")
    exact, expected = in_full(name, target, qkv, {}), run(name, target, qkv, {})
    got = run(name, target, place.sent(qkv), {})
    assert got.draws_hash() == expected.draws_hash()
    if dtype == F64:
        assert same(place, got.output, expected.output)
        assert same(place, got.operator.dense(), expected.operator.dense())
    elif (lost := relative(expected.output, exact)) < LOST:
        assert relative(place.back(got.output), exact) <= 4 * lost + 64 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name, target", [case.values[:2] for case in DEFAULTS])
def test_gradients(name, target, place):
    qkv = make(n=N)
    actual = []
    for of in (lambda x: x, place.sent):
        leaves = [of(x).requires_grad_() for x in (qkv.q, qkv.k, qkv.v)]
        output = run(name, target, QKV(*leaves), {}).output
        weights = torch.linspace(-1, 1, output.numel(), dtype=F64).reshape(output.shape).to(output.device)
        actual.append(torch.autograd.grad((output * weights).sum(), leaves, allow_unused=True))
    for expected, got in zip(*actual, strict=True):
        assert (expected is None) == (got is None)
        if expected is not None:
            assert same(place, got, expected, 1e-8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name, target", [case.values[:2] for case in DEFAULTS])
def test_the_same_numbers_twice(name, target, dtype, place):
    """To the last bit: no sum depends on the order in which threads arrive."""
    qkv, actual = place.sent(make(n=N).to(dtype=dtype)), []
    for _ in range(2):
        approx = run(name, target, qkv, {})
        parts = approx.output, approx.operator.rmatmul(qkv.q), approx.operator.rows(3, 9)
        actual.append([place.back(part) for part in parts])
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(*actual, strict=True))


@pytest.mark.parametrize("name, target", [case.values[:2] for case in DEFAULTS])
def test_in_blocks_of_few_rows(name, target, place, monkeypatch):
    """As where memory is short."""
    qkv = make(n=N)
    expected = run(name, target, qkv, {}).output
    monkeypatch.setattr(BLOCK_MEMORY, "bytes", lambda device: 2**12)
    assert same(place, run(name, target, place.sent(qkv), {}).output, expected)
