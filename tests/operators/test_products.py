"""Float32 products by either of torch's libraries: the same matrix, and gradients as ever."""

from time import process_time

import pytest
import torch

from attnprobe.operators import precision
from attnprobe.operators.precision import LEAST, full_precision, product

HAS = precision.ONEDNN is not None and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
WIDE = pytest.mark.skipif(not HAS, reason="a CPU without AVX-512")


def draws(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("g, m, k, n", [(1, 3, 5, 7), (1, 256, 32, 257), (3, 33, 1030, 40), (2, 70, 129, 130)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_a_product_is_that_of_float64(g, m, k, n, dtype, turned, given, wide, monkeypatch):
    """By torch and by oneDNN, which a CPU without AVX-512 has too."""
    monkeypatch.setattr(precision, "_onednn", lambda: wide)
    a, b = draws(g, m, k, dtype=dtype), draws(g, k, n, dtype=dtype)
    if turned:  # the same entries with the other strides
        a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
    with full_precision():
        got = product(a, b, torch.empty(g, m, n, dtype=dtype) if given else None)
    expected = a.double() @ b.double()
    bound = 4 * k**0.5 * torch.finfo(dtype).eps * (a.double().abs() @ b.double().abs())
    assert got.shape == expected.shape and got.dtype == dtype and ((got - expected).abs() <= bound).all()


@pytest.fixture
def made_by(monkeypatch):
    """Products as on a processor that Intel made, or another one."""

    def by(intel):
        monkeypatch.setattr(precision, "is_intel", lambda: intel)
        precision._onednn.cache_clear()

    yield by
    precision._onednn.cache_clear()


@WIDE
def test_large_products_of_float32_heads_are_made_by_onednn(made_by):
    made_by(intel=False)
    a, b = draws(1, 64, 32), draws(1, 32, LEAST // (64 * 32))
    assert precision._is_wide(a, b)
    assert not precision._is_wide(a, b[..., :-1]) and not precision._is_wide(a.double(), b.double())
    assert precision._is_wide(a.expand(2, -1, -1), b.expand(2, -1, -1))


def test_on_a_processor_of_intel_they_are_torchs(made_by):
    made_by(intel=True)
    a, b = draws(1, 64, 64), draws(1, 64, 1024)
    assert not precision._is_wide(a, b) and torch.equal(product(a, b), a @ b)


@WIDE
def test_a_view_of_tokens_with_all_heads_costs_no_more_than_its_copy(made_by):
    """As keys are laid out in a model: with such strides oneDNN by itself takes over a hundred times as long."""
    made_by(intel=False)
    b, a = draws(2048, 6, 64).transpose(0, 1).mT, draws(6, 64, 64)

    def seconds(b):
        begin = process_time()
        product(a, b)
        return process_time() - begin

    copy = min(seconds(b.contiguous()) for _ in range(5))
    assert min(seconds(b) for _ in range(5)) < 20 * copy


def test_products_keep_their_gradients():
    a, b = draws(1, 64, 64).requires_grad_(), draws(1, 64, 1024)
    product(a, b).sum().backward()
    assert a.grad is not None and torch.allclose(a.grad, b.sum(2)[:, None].expand_as(a), atol=1e-4)


def test_a_torch_without_this_product_uses_its_usual_one(monkeypatch, made_by):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    made_by(intel=False)
    a, b = draws(1, 64, 64), draws(1, 64, 1024)
    assert not precision._is_wide(a, b) and torch.equal(product(a, b), a @ b)
