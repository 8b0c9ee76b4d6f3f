"""Nyströmformer against two independent implementations, and its own identities."""

import pytest
import torch
from inputs import assert_twin, make, one_head
from twins import nystromformer as twin
from twins import segments

from attnprobe.errors import UsageError
from attnprobe.methods import approximate
from attnprobe.methods.base import distinct, ragged, row_sums, segment_means
from attnprobe.operators import LowRank
from attnprobe.qkv import QKV
from attnprobe.reference import exact
from attnprobe.rng import generator


def nys(qkv, d, **options):
    return approximate("nystromformer", qkv, d, **options)


def heads_apart(x, h):
    """(1, n, h·p) of a module as (h, n, p)."""
    return x[0].unflatten(-1, (h, -1)).transpose(0, 1)


@pytest.mark.parametrize("n, d", [(24, 6), (32, 8), (30, 10)])
@pytest.mark.parametrize("size", [0.3, 1.0])
def test_it_equals_the_module_of_transformers(n, d, size):
    """With the authors' start, one divisor over all heads, and without the trained convolution."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    modeling = pytest.importorskip(
        "transformers.models.nystromformer.modeling_nystromformer", reason="no Nyströmformer in this transformers"
    )
    config = transformers.NystromformerConfig(
        hidden_size=24,
        num_attention_heads=3,
        num_landmarks=d,
        segment_means_seq_len=n,
        attention_probs_dropout_prob=0.0,
    )
    g = torch.Generator().manual_seed(0)
    module = modeling.NystromformerSelfAttention(config).double().eval()
    module.conv_kernel_size = None  # the config of transformers 5 does not take None
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(size * torch.randn(weight.shape, generator=g, dtype=torch.float64))
        x = torch.randn(1, n, 24, generator=g, dtype=torch.float64)
        expected = heads_apart(module(x)[0], 3)
        qkv = QKV(*(heads_apart(layer(x), 3) for layer in (module.query, module.key, module.value)))
    # p^(-1/4) on each side rounds differently from p^(-1/2) on one: eps times scores of up to 100
    assert (nys(qkv, d, z0="global").output - expected).abs().max() <= 1e-12 * max(1.0, float(expected.abs().max()))
    assert (nys(qkv, d, z0="paper").output - expected).abs().max() > 1e-6  # the start matters


@pytest.mark.parametrize("n, d", [(24, 6), (40, 8), (24, 24)])
def test_it_equals_nystrom_attention(n, d):
    package = pytest.importorskip("nystrom_attention", reason="nystrom-attention is not installed")
    h, p = 3, 8
    module = package.NystromAttention(
        dim=3 * h * p, dim_head=p, heads=h, num_landmarks=d, pinv_iterations=6, residual=False
    ).double()
    with torch.no_grad():
        module.to_qkv.weight.copy_(torch.eye(3 * h * p))  # the input is [q, k, v] as it stands
        module.to_out = torch.nn.Identity()
        qkv = make(h=h, n=n, p=p, p_v=p, score=2.0)
        x = torch.cat([t.transpose(0, 1).reshape(n, h * p) for t in (qkv.q, qkv.k, qkv.v)], dim=-1)[None]
        expected = heads_apart(module(x), h)
    assert (nys(qkv, d, z0="global").output - expected).abs().max() <= 1e-12 * float(expected.abs().max())


@pytest.mark.parametrize("n, d", [(20, 1), (20, 3), (20, 6), (20, 19), (20, 20), (17, 5)])
@pytest.mark.parametrize("inverse", ["schulz", "pinv"])
def test_it_equals_its_twin_for_any_length(n, d, inverse):
    qkv = make(n=n, score=2.0)
    approx = nys(qkv, d, inverse=inverse)
    # a pseudo-inverse moves by its own condition: eps · cond² of A, below 1e6 here
    slack = 1e-9 if inverse == "pinv" else 0.0
    assert_twin(approx, qkv, twin, d, slack=slack, inverse=inverse)


@pytest.mark.parametrize("n_iter", [0, 1, 6, 25])
def test_the_steps_are_counted(n_iter):
    qkv = make()
    approx = nys(qkv, 5, n_iter=n_iter)
    for row in range(2):
        expected = twin(one_head(qkv, row), 5, {}, "softmax", n_iter=n_iter)
        assert (approx.operator.dense()[row] - expected).abs().max() <= 1e-12


@pytest.mark.parametrize("n", range(1, 12))
def test_segment_means_for_every_length_and_count(n):
    x = make(h=2, n=n, p=3).q
    for count in range(1, n + 1):
        got = segment_means(x, count)
        assert got.shape == (2, count, 3) and got.dtype == x.dtype
        for row in range(2):
            assert torch.allclose(got[row], segments(x[row], count), atol=1e-15, rtol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_segment_means_are_summed_in_float64(dtype):
    x = make(h=2, n=1000, p=3).q.to(dtype)
    expected = segment_means(x.double(), 7)
    assert torch.equal(segment_means(x, 7), expected) and expected.dtype == torch.float64


@pytest.mark.parametrize("middle", [0, 1, 2])
def test_the_row_sums_of_a_low_rank_matrix(middle):
    left, right, *factors = (
        torch.randn(2, *shape, generator=generator(0, "sums", *shape), dtype=torch.float64)
        for shape in ((7, 3), (3, 9), *[(3, 3)] * middle)
    )
    low_rank = LowRank(left, factors, right)
    torch.testing.assert_close(row_sums(low_rank), low_rank.dense().sum(-1))


def test_ragged_lists_true_places_per_head_in_order():
    for seed in range(20):
        mask = torch.rand(3, 9, generator=torch.Generator().manual_seed(seed)) < seed / 20
        got = ragged(mask)
        for row in range(3):
            assert got[row][got[row] >= 0].tolist() == mask[row].nonzero()[:, 0].tolist()
            assert (got[row][int(mask[row].sum()) :] == -1).all()


def test_distinct_draws_are_counted_by_head():
    assert distinct(torch.tensor([[4, 0, 4, 4], [3, 1, 0, 2], [5, 5, 5, 5]])).tolist() == [2, 4, 1]


@pytest.mark.parametrize("score", [1.0, 6.0])
@pytest.mark.parametrize("d", [4, 11, 20])
def test_with_a_pseudo_inverse_rows_sum_to_one(score, d):
    approx = nys(make(score=score), d, inverse="pinv")
    cond = torch.linalg.cond(approx.cores["A"]).max()
    assert cond < 1e8
    # F Z W 1 = F Z A 1 = F 1, with rounding eps · cond(A) · d
    assert (approx.operator.row_sums() - 1).abs().max() <= 1e-15 * float(cond) * d
    six = nys(make(score=score), 11)
    assert (six.operator.row_sums() - 1).abs().max() > 1e-6  # six steps are not converged


@pytest.mark.parametrize("score", [0.5, 1.0, 6.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_a_pseudo_inverse_the_full_budget_is_exact_and_with_six_steps_it_is_not(score, dtype):
    qkv = make(score=score, dtype=dtype)
    expected = exact(qkv.to(dtype=torch.float64)).dense()
    approx = nys(qkv, 20, inverse="pinv")
    cond = float(torch.linalg.cond(approx.cores["A"]).max())
    assert (approx.operator.dense() - expected).abs().max() <= 1e-15 * 20 * cond
    assert (nys(qkv, 20).operator.dense() - expected).abs().max() > 1e-3


def test_only_the_global_start_lets_heads_influence_each_other():
    qkv = make(h=2)
    qkv = QKV(qkv.q * torch.tensor([1.0, 3.0]).double()[:, None, None], qkv.k, qkv.v)
    for z0, coupled in (("paper", False), ("global", True)):
        change = nys(qkv, 6, z0=z0).output[0] - nys(qkv.select([0]), 6, z0=z0).output[0]
        assert (change.abs().max() > 1e-6) == coupled


def test_the_residual_is_that_of_the_inverse_used():
    qkv = make()
    for options in ({}, {"n_iter": 20}, {"inverse": "pinv"}, {"inverse": "pinv", "rtol": 0.5}):
        approx = nys(qkv, 6, **options)
        for row in range(2):
            a, z = approx.cores["A"][row], approx.inverses["A"][row]
            expected = (torch.eye(6, dtype=torch.float64) - a @ z).square().sum().sqrt() / 6**0.5
            assert torch.isclose(approx.diagnostics["inverse_residual"][row], expected, atol=1e-14)
    assert (approx.diagnostics["inverse_residual"] > 0.3).all()  # rtol=0.5 cuts most of the spectrum


def test_bad_rows_are_those_whose_sum_is_not_positive():
    worst = 0
    for seed in range(20):
        approx = nys(make(score=30.0, seed=seed), 5)
        count = (approx.operator.dense().sum(-1) <= 0).sum(-1)
        assert torch.equal(approx.diagnostics["bad_rows"], count)
        worst = max(worst, int(count.max()))
    assert worst > 0


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(UsageError, match="nystromformer: n_iter=-1"):
        nys(make(), 4, n_iter=-1)
    with pytest.raises(UsageError, match="nystromformer: rtol.*schulz"):
        nys(make(), 4, rtol=1e-3)
