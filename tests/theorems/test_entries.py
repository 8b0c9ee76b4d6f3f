"""Largest entries of errors, against dense float64 matrices."""

import pytest
import torch
from inputs import make

from attnprobe import approximate
from attnprobe.rng import generator
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
