"""The yardsticks: V-Mean, the truncated SVD, and the two exact matrices as methods."""

import pytest
import torch
from inputs import make, output_band

from attnprobe import QKV, approximate, exact
from attnprobe.methods import get
from attnprobe.methods.reference import exact_attention, svd, vmean
from attnprobe.reference import exact_output


def test_each_module_registers_its_methods():
    modules = {name: get(name).function.__module__ for name in ("softmax", "kernelized", "svd", "vmean")}
    expected = [exact_attention.__name__] * 2 + [svd.__name__, vmean.__name__]
    assert list(modules.values()) == expected


def test_every_row_of_vmean_is_the_mean_of_the_values_that_count():
    qkv = make(n=9)
    expected = qkv.v.mean(1, keepdim=True).expand_as(qkv.v)
    torch.testing.assert_close(approximate("vmean", qkv).output, expected, rtol=1e-12, atol=1e-12)
    mask = torch.tensor([True] * 5 + [False] * 4)
    padded = QKV(qkv.q, qkv.k, qkv.v, mask=mask)
    torch.testing.assert_close(
        approximate("vmean", padded).output[:, mask], qkv.v[:, mask].mean(1, keepdim=True).expand(-1, 5, -1)
    )


def test_row_i_of_causal_vmean_is_the_mean_of_the_values_up_to_i():
    qkv = make(n=7)
    causal = QKV(qkv.q, qkv.k, qkv.v, causal=True)
    expected = torch.stack([qkv.v[:, : i + 1].mean(1) for i in range(7)], dim=1)
    torch.testing.assert_close(approximate("vmean", causal).output, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
@pytest.mark.parametrize("d", [1, 3, 8])
def test_the_svd_of_rank_d_leaves_the_singular_values_beyond_d(target, d):
    qkv = make(n=8).to(dtype=torch.float64)
    dense = exact(qkv, target).dense()
    values = torch.linalg.svdvals(dense - approximate("svd", qkv, d, target=target).operator.dense())
    expected = torch.linalg.svdvals(dense)[:, d:]
    torch.testing.assert_close(values[:, : expected.shape[1]], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("name", "target"), [("softmax", "softmax"), ("kernelized", "gaussian")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_exact_matrix_as_a_method_has_the_error_of_its_dtype(name, target, dtype):
    qkv = make(n=33).to(dtype=dtype)
    approx = approximate(name, qkv, target=target)
    assert approx.output.dtype == dtype
    errors = (approx.output.double() - exact_output(qkv, target)).abs()
    assert (errors <= output_band(approx, qkv, dtype)).all()
