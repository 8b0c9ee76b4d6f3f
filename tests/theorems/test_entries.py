"""Largest entries of errors, against dense float64 matrices; Thinformer's numerators against its discrepancy."""

import pytest
import torch
from inputs import make
from theory_settings import check

from attnprobe import approximate
from attnprobe.rng import generator
from attnprobe.theorems.carrell2025 import log_discrepancies
from attnprobe.theorems.entries import Bound, EntryErrors, entry_blocks, entry_errors, entry_findings, least_bound


def test_blocks_are_the_rows_of_both_matrices():
    qkv = make(h=1, n=300, p=4)
    approx = approximate("thinformer", qkv, 8)
    assert approx.log_normalizer is not None
    log_sums = approx.log_normalizer()[0]
    q, k = qkv.q[0], qkv.k[0]
    blocks = list(entry_blocks(q, k, qkv.scale, approx.matrix(), log_sums))
    assert [len(block.scores) for block in blocks] == [256, 44]
    exact = torch.cat([block.exact * block.top.exp() for block in blocks])
    approximate_rows = torch.cat([block.approximate * block.top.exp() for block in blocks])
    torch.testing.assert_close(exact, (qkv.scale * q @ k.mT).exp(), rtol=1e-12, atol=0)
    torch.testing.assert_close(approximate_rows, approx.matrix().dense()[0] * log_sums.exp()[:, None])


@pytest.mark.parametrize("shift", [0.0, 900.0])  # exp(900) overflows
def test_errors_are_those_of_dense_matrices(shift):
    exact, error = (torch.rand(7, 3, generator=generator(0, name)).double() for name in ("exact", "error"))
    row, column = (torch.rand(size, generator=generator(0, f"{size}")).double() for size in (7, 3))
    blocks = [(exact[i : i + 2].log() + shift, error[i : i + 2].log() + shift) for i in range(0, 7, 2)]
    bounds = [
        Bound(row.log() + shift, column.log(), 3.0),
        Bound(column.sum().log() + row.log() + shift, row[:3].log(), 2.0),
    ]
    actual = entry_errors(blocks, bounds)
    size = exact.max()
    expected = (error.max() / size, row.max() * column.max() / size, (error / row[:, None] / column).max())
    assert actual[0] == pytest.approx([*(float(x) for x in expected), 3.0], rel=1e-9)
    share = (error / row[:, None] / column.sum() / row[:3]).max()
    assert actual[1].share == pytest.approx(float(share), rel=1e-9) and actual[1].temperature == 2


def test_matrices_of_zeros_have_no_errors():
    zero = torch.full((2, 3), -torch.inf, dtype=torch.float64)
    assert entry_errors([(zero, zero)], [Bound(torch.zeros(2), torch.zeros(3), 4.0)]) == [(0, 0, 0, 4)]


def test_a_promise_that_zeros_keep_is_vacuous_unless_it_is_broken():
    """At the paper's temperature, and at the one of the least bound."""
    errors = [(0.5, 0.9, 0.6), (0.5, 1.0, 0.6), (2.0, 1.5, 1.4)]
    heads = [[EntryErrors(*one, 1.0), EntryErrors(0.5, 0.8, 0.9, 2.0)] for one in errors]
    paper, least = entry_findings("wildcat-entry", 4, "", heads)
    assert paper.verdicts() == ["holds", "vacuous", "violated"] and paper.at == {"temperature": "paper"}
    assert least.verdicts() == ["holds"] * 3 and least.at == {"temperature": "least"}
    assert least.details["squared_temperature"].tolist() == [2] * 3


@pytest.mark.parametrize("best", [0.04, 0.7, 20.0])
def test_the_least_of_a_convex_bound_is_found(best):
    def at(squared):
        return Bound(torch.tensor([0.0, squared]), torch.tensor([best**2 / squared, 0.0]), squared)

    assert least_bound(at, 1.0).temperature == pytest.approx(best, rel=0.02)


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
