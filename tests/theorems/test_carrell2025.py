"""Thinformer's numerators against the discrepancy of its coreset."""

import pytest
import torch
from inputs import make
from theory_settings import check

from attnprobe.rng import generator
from attnprobe.theorems.carrell2025 import log_discrepancies


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_entry_of_the_numerators_exceeds_its_bound(dtype):
    qkv = make(h=2, n=64, p=4, dtype=dtype)
    findings = check("thinformer-entry", qkv, budgets=(8, 32))
    assert [one.at["temperature"] for one in findings] == ["paper", "least"] * 2
    for one in findings:
        assert one.verdicts() == ["vacuous"] * 2 and (one.bound > 1).all()  # zeros keep it too
        assert (one.details["share"] <= 1).all() and (one.details["share"] > 1e-2).all()
        assert (one.measured > 0).all()
    assert (findings[2].bound < findings[0].bound).all() and (findings[2].measured < findings[0].measured).all()
    assert (findings[1].bound <= findings[0].bound).all() and (findings[1].measured == findings[0].measured).all()


def test_the_least_bound_is_far_below_the_paper_s_where_queries_are_long():
    qkv = make(h=2, n=64, p=4)
    paper, least = check("thinformer-entry", qkv.replace(q=4 * qkv.q, k=qkv.k / 4), budgets=(16,))
    assert (least.bound < paper.bound / 100).all() and (least.details["share"] <= 1).all()
    assert (least.details["squared_temperature"] < 0.2).all() and (paper.details["squared_temperature"] == 1).all()


def test_a_bound_below_the_largest_entry_is_not_vacuous():
    """Values are nearly equal, and so are keys."""
    qkv = make(h=2, n=64, p=4, score=1e-4)
    one, _ = check("thinformer-entry", qkv.replace(v=1 + 0.01 * qkv.v), (16,))
    assert one.verdicts() == ["holds"] * 2 and (one.bound < 1).all()


def test_a_discrepancy_is_a_form_of_the_kernel():
    x, u = (torch.randn(7, 3, generator=generator(0, name), dtype=torch.float64) for name in "xu")
    kernel = (x @ x.mT).exp()
    assert torch.allclose(log_discrepancies(x, u).exp(), (u * (kernel @ u)).sum(0).sqrt(), rtol=1e-12)
    assert torch.isfinite(log_discrepancies(40 * x, u)).all()  # where the kernel itself overflows


def test_the_bound_is_reached_where_all_keys_are_the_query():
    """Cauchy and Schwarz are equal if both sides are multiples of one feature."""
    same = torch.tensor([0.7, -0.4]).double().expand(1, 16, 2).contiguous()
    qkv = make(h=1, n=16, p=2).replace(q=same, k=same)
    one, least = check("thinformer-entry", qkv, (4,))
    assert float(one.details["share"]) == pytest.approx(1, rel=1e-9)
    assert float(one.measured) == pytest.approx(float(one.bound), rel=1e-9)
    assert float(least.bound) == pytest.approx(float(one.bound), rel=1e-3)  # which is the least already
