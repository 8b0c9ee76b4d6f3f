"""WildCat's entrywise bound and the trace of randomly pivoted Cholesky, against direct computations."""

import pytest
import torch
from inputs import make
from theory_settings import check

from attnprobe import Unsupported, approximate
from attnprobe.operators.linalg.coresets import SQUARED_TEMPERATURE, randomly_pivoted
from attnprobe.rng import generator
from attnprobe.theorems.schroder2026 import chen2025_trace, log_remainders, residuals


@pytest.mark.parametrize("score, verdict", [(0.05, "holds"), (1.0, "vacuous"), (3.0, "vacuous")])
def test_no_entry_of_real_weights_exceeds_its_bound(score, verdict):
    """Where scores are large, the largest bound is above every entry of A, and zeros would keep the promise."""
    qkv = make(h=2, n=48, p=4, score=score)
    findings = check("wildcat-entry", qkv, budgets=(4, 16))
    for one in findings:
        assert one.verdicts() == [verdict] * 2 and ((one.bound >= 1) == (verdict == "vacuous")).all()
        assert (one.details["share"] <= 1).all() and (one.details["share"] > 1e-3).all()
        assert (one.measured > 0).all() and (one.measured <= one.bound).all()
    for paper, least in zip(findings[::2], findings[1::2], strict=True):
        assert (least.bound <= paper.bound).all() and (least.measured == paper.measured).all()
    more = check("wildcat-entry", qkv, budgets=(4, 32))
    assert (more[2].bound < more[0].bound).all() and (more[2].measured < more[0].measured).all()


def test_the_share_is_the_largest_ratio_of_an_error_to_its_own_bound():
    qkv = make(h=1, n=48, p=4)
    one, _ = check("wildcat-entry", qkv, budgets=(8,))
    approx = approximate("wildcat", qkv, 8)
    assert approx.log_normalizer is not None
    k = qkv.k - qkv.k.mean(1, keepdim=True)
    log_sums = approx.log_normalizer() - qkv.scale * (qkv.q @ qkv.k.mean(1)[..., None])[..., 0]
    x = k * (qkv.scale / SQUARED_TEMPERATURE) ** 0.5
    kernel = (x @ x.mT).exp()
    residual = residuals(kernel, randomly_pivoted(x, approx.draws["pivot_numbers"]))
    error = ((qkv.scale * qkv.q @ k.mT).exp() - approx.matrix().dense() * log_sums.exp()[..., None]).abs()
    feature = (qkv.scale * SQUARED_TEMPERATURE * qkv.q.square().sum(-1) / 2).exp()
    share = error / feature[..., None] / residual[:, None].sqrt()
    expected = float(share[residual[:, None].expand_as(share) > 1e-6].max())
    assert float(one.details["share"]) == pytest.approx(expected, rel=1e-6) and expected < 1


def test_the_least_bound_is_far_below_the_paper_s_where_queries_are_long():
    qkv = make(h=2, n=48, p=4)
    paper, least = check("wildcat-entry", qkv.replace(q=3 * qkv.q, k=qkv.k / 3), budgets=(8,))
    assert (least.bound < paper.bound / 100).all() and (least.details["share"] <= 1).all()
    assert (least.details["squared_temperature"] < paper.details["squared_temperature"] / 2).all()


def test_a_share_is_finite_where_a_residual_is_rounding():
    """Two keys are nearly equal, so the core's rounding is all that one of them has as a residual."""
    qkv = make(h=1, n=16, p=2)
    k = torch.cat([qkv.k[:, :8], qkv.k[:, :8] + 1e-9], 1)
    for one in check("wildcat-entry", qkv.replace(k=k), budgets=(8, 12)):
        assert (one.details["share"] <= 1).all()


@pytest.mark.parametrize("squared", [0.3, 1.0, 5.0])
def test_a_remainder_is_the_norm_of_what_the_weights_leave(squared):
    x = torch.randn(9, 3, generator=generator(0, "remainder"), dtype=torch.float64)
    pivots, weights = torch.tensor([0, 4, 7]), torch.rand(3, 9, generator=generator(0, "weights")).double()
    half = x.square().sum(-1) / 2
    left = torch.eye(9).double()  # what is left of each feature, as a combination of all
    left[pivots] -= (half - half[pivots, None]).exp() * weights
    expected = (left * ((x @ x.mT / squared).exp() @ left)).sum(0).sqrt()
    torch.testing.assert_close(log_remainders(x, pivots, weights, squared).exp(), expected, rtol=1e-9, atol=1e-6)


def test_a_residual_is_a_schur_complement():
    x = torch.randn(2, 9, 3, generator=generator(0, "residual"), dtype=torch.float64)
    kernel, pivots = (x @ x.mT).exp(), torch.tensor([[0, 4, 7], [8, 1, 2]])
    for head in range(2):
        for j in range(9):
            index = [*pivots[head].tolist(), j]
            block = kernel[head][index][:, index]
            core = torch.linalg.det(block[:3, :3])
            expected = 0.0 if j in index[:3] else float(torch.linalg.det(block) / core)
            assert float(residuals(kernel, pivots)[head, j]) == pytest.approx(expected, rel=1e-8, abs=1e-9)


def test_the_trace_of_the_residual_is_below_twice_the_tail():
    qkv = make(h=2, n=40, p=2)
    actual = check("wildcat-trace", qkv, budgets=(6, 12), seeds=range(30))
    for one in actual:
        assert one.verdicts() == ["holds"] * 2 and (one.bound < 0.5).all()
        assert (one.details["best"] < one.measured).all() and (one.lower <= one.measured).all()


def test_the_trace_leaves_out_budgets_above_the_keys_and_refuses_them_alone():
    qkv = make(h=1, n=12, p=2)
    assert [one.d for one in check("wildcat-trace", qkv, budgets=(13, 12, 4, 40), seeds=range(2))] == [12, 4]
    with pytest.raises(Unsupported, match=r"d=13 exceeds n_k=12; choose d in 1\.\.12"):
        check("wildcat-trace", qkv, budgets=(40, 13))


def test_pivots_find_the_few_keys_that_differ():
    """Forty equal keys before two others: three pivots leave nothing, and the first three would leave two."""
    k = torch.cat([torch.zeros(1, 40, 4), 9 * torch.eye(4)[None, :2]], 1).double()
    (one,) = check("wildcat-trace", make(h=1, n=42, p=4).replace(k=k), (14,), seeds=range(4))
    assert float(one.measured[0]) < 1e-6 and one.verdicts() == ["holds"]


def test_a_theorem_that_drew_the_first_keys_would_be_seen():
    """The control: keys in their order are worse than twice the tail where the first keys are alike."""
    x = torch.cat([torch.zeros(1, 30, 2), 3 * torch.eye(2)[None]], 1).double() + 1e-3
    kernel = (-torch.cdist(x, x).square() / 2).exp()
    values = torch.linalg.eigvalsh(kernel)[0].flip(-1).clamp(min=0)
    first = float(residuals(kernel, torch.arange(14)[None]).sum())
    drawn = float(residuals(kernel, randomly_pivoted(x, torch.full((1, 14), 0.5).double())).sum())
    assert first > 1.9 and drawn < 1e-6 and chen2025_trace(values, 14) < 1e-6


def test_the_bound_is_the_trace_itself_where_no_rank_is_small_enough():
    values = torch.tensor([1.0, 0.9, 0.8, 0.7])
    assert chen2025_trace(values, 1) == pytest.approx(3.4)
    assert chen2025_trace(torch.tensor([1.0, 0.0, 0.0]), 3) == 0.0
