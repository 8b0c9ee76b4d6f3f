"""The exact attention, its output, and the memory that it needs."""

import subprocess
import sys

import pytest
import torch
from inputs import make, one_head, reaching
from largest import Largest
from torch.utils._python_dispatch import TorchDispatchMode
from twins import exact as exact_twin

from attnprobe.errors import UsageError
from attnprobe.qkv import QKV
from attnprobe.reference import attention, exact, exact_output

F64 = torch.float64


def dense_output(qkv, target):
    """By the formula, dense, in float64."""
    return torch.stack([exact_twin(one_head(qkv, row), target) @ qkv.v[row].double() for row in range(qkv.h)])


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
@pytest.mark.parametrize("score", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("p, p_v", [(8, 5), (5, 8), (8, 8), (3, 1), (1, 1)])
def test_the_exact_output_is_that_of_the_dense_formula(target, score, p, p_v):
    qkv = make(n=70, p=p, p_v=p_v, score=score)
    expected = dense_output(qkv, target)
    got = exact_output(qkv, target)
    assert got.dtype == F64 and got.shape == (2, 70, p_v)
    # an exponential of scores up to G has relative error G eps: 1e-14 at score 1 (G < 20), 6e-14 at 6
    assert (got - expected).abs().max() <= 1e-14 * max(1.0, score) * float(expected.abs().max())


@pytest.mark.parametrize("score", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("n, n_k", [(70, 70), (9, 23), (1, 1)])
def test_softmax_attention_is_torchs_own(score, n, n_k):
    qkv = make(n=n, n_k=n_k, score=score)
    expected = torch.nn.functional.scaled_dot_product_attention(qkv.q, qkv.k, qkv.v, scale=qkv.scale)
    got = exact(qkv, "softmax") @ qkv.v
    assert (got - expected).abs().max() <= 1e-14 * max(1.0, score) * float(expected.abs().max())


@pytest.mark.parametrize("score", [0.1, 1.0])
def test_kernelized_attention_is_the_softmax_kernel_scaled_from_both_sides(score):
    """``C = E_Q⁻¹ A E_K⁻¹`` with ``E_X = diag(exp(‖x‖² · scale/2))``."""
    qkv = make(n=30, n_k=41, score=score)
    a = torch.exp(qkv.scale * qkv.q @ qkv.k.mT)
    e_q, e_k = (torch.exp(x.square().sum(-1) * qkv.scale / 2) for x in (qkv.q, qkv.k))
    expected = a / e_q[:, :, None] / e_k[:, None, :]
    assert ((exact(qkv, "gaussian").dense() - expected).abs() <= 1e-13 * expected).all()


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_exact_output_is_float64_whatever_the_inputs_are(target, dtype):
    qkv = make(dtype=dtype)
    got = exact_output(qkv, target)
    assert got.dtype == F64 and (got - dense_output(qkv, target)).abs().max() <= 1e-14 * float(got.abs().max())


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
def test_rectangular_inputs_and_a_scale_of_the_model(target):
    qkv = make(n=9, n_k=23)
    qkv = QKV(qkv.q, qkv.k, qkv.v, scale=0.9)
    expected = dense_output(qkv, target)
    assert (exact_output(qkv, target) - expected).abs().max() <= 2e-14 * float(expected.abs().max())
    assert (exact(qkv, target) @ qkv.v - expected).abs().max() <= 2e-14 * float(expected.abs().max())


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
def test_padding_is_zero_and_does_not_count(target):
    qkv = make(n=12)
    mask = torch.tensor([True] * 4 + [False] * 3 + [True] * 4 + [False])
    noise = torch.where(mask[:, None], 0.0, 50.0).double()
    padded = QKV(qkv.q + noise, qkv.k + noise, qkv.v + noise, mask=mask)
    inner = QKV(qkv.q[:, mask], qkv.k[:, mask], qkv.v[:, mask])
    got, dense = exact_output(padded, target), exact(padded, target).dense()
    assert (got[:, mask] - dense_output(inner, target)).abs().max() <= 1e-13 and not got[:, ~mask].any()
    for row in range(2):
        expected = exact_twin(one_head(inner, row), target)
        assert (dense[row][mask][:, mask] - expected).abs().max() <= 1e-14
    assert not dense[:, ~mask].any() and not dense[:, :, ~mask].any()


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
def test_scores_of_ten_thousand_stay_finite(target):
    qkv = reaching(1e4, dtype=torch.float32)
    assert torch.isfinite(exact_output(qkv, target)).all()
    rows = exact_output(reaching(1e4), "softmax")
    best = (make().q @ make().k.mT).argmax(-1)  # B is one-hot there
    assert (rows - torch.gather(make().v, 1, best[..., None].expand(-1, -1, 5))).abs().amax() < 1.0


def test_the_output_does_not_depend_on_the_other_heads():
    qkv = make(h=3)
    assert torch.equal(exact_output(qkv)[1], exact_output(qkv.select([1]))[0])


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
@pytest.mark.parametrize("form", [{}, {"causal": True}, {"causal": True, "sliding_window": 40, "sinks": 3}])
def test_rows_that_several_threads_compute_are_those_of_the_dense_formula(target, form):
    """Two jobs of 512 rows and one of what is left."""
    qkv = make(h=2, n=1030, p=4, p_v=3)
    qkv = QKV(qkv.q, qkv.k, qkv.v, **form)
    hidden = torch.zeros(1030, 1030, dtype=torch.bool) if qkv.visible is None else qkv.visible.hidden(1030)
    if target == "softmax":
        weights = (qkv.scale * qkv.q @ qkv.k.mT).masked_fill(hidden, float("-inf")).softmax(-1)
    else:
        weights = torch.exp(-(torch.cdist(qkv.q, qkv.k) ** 2) * qkv.scale / 2).masked_fill(hidden, 0)
    torch.testing.assert_close(exact_output(qkv, target), weights @ qkv.v, rtol=1e-11, atol=1e-11)


def test_the_fused_kernel_is_used_in_its_own_dtype():
    qkv = make(dtype=torch.float32)
    got = attention(qkv.q, qkv.k, qkv.v, qkv.scale)
    assert got.dtype == torch.float32 and got.shape == (2, 20, 5)
    assert (got.double() - dense_output(qkv, "softmax")).abs().max() <= 1e-5


def test_an_unknown_target_is_refused_with_the_nearest():
    for call in (exact, exact_output):
        with pytest.raises(UsageError, match="unknown target 'softmex'; did you mean 'softmax'"):
            call(make(), "softmex")


MEASURE = """
import resource, torch
from attnprobe.qkv import QKV
from attnprobe.reference import exact_output
torch.set_num_threads(2)
h, n, p, p_v, target = {h}, {n}, {p}, {p_v}, "{target}"
g = torch.Generator().manual_seed(0)
qkv = QKV(*(torch.randn(h, n, width, generator=g) for width in (p, p, p_v)))
warm = QKV(*(torch.randn(1, 64, width, generator=g) for width in (p, p, p_v)))
exact_output(warm, target)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
exact_output(qkv, target)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def extra_memory(**shape):
    """MiB by which the peak of a fresh process grew."""
    code = MEASURE.format(**shape)
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("target, p_v", [("softmax", 24), ("softmax", 16), ("gaussian", 24)])
def test_nothing_of_size_n_by_n_is_made(target, p_v):
    """In one thread, whose operations are seen; a fresh process has the slow test below."""
    qkv, threads = make(h=1, n=3072, p=16, p_v=p_v), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with Largest() as largest:
            exact_output(qkv, target)
    finally:
        torch.set_num_threads(threads)
    assert 3072 * p_v <= largest.numel <= 512 * 3072


@pytest.mark.slow
@pytest.mark.parametrize("target, p_v", [("softmax", 24), ("softmax", 16), ("gaussian", 24)])
def test_nothing_of_size_n_by_n_is_held(target, p_v):
    """One n x n in float64 would be 72 MiB; q, k, v of one head and the output are 2 MiB."""
    assert extra_memory(h=1, n=3072, p=16, p_v=p_v, target=target) < 30


@pytest.mark.slow
@pytest.mark.parametrize("p_v", [64, 80])
def test_twelve_heads_of_8192_tokens_need_less_than_200_mib(p_v):
    """The output alone is 48 MiB; one n x n in float64 would be 512."""
    assert extra_memory(h=12, n=8192, p=64, p_v=p_v, target="softmax") < 200


class Names(TorchDispatchMode):
    """The names of the operations that are called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("p_v, copies", [(8, False), (4, True), (12, True)])
def test_the_fused_kernel_copies_its_inputs_only_to_pad_them(p_v, copies):
    q, k, v = torch.randn(2, 6, 8), torch.randn(2, 6, 8), torch.randn(2, 6, p_v)
    with Names() as names:
        attention(q, k, v, 0.5)
    assert any("pad" in name or "clone" in name for name in names.seen) == copies
