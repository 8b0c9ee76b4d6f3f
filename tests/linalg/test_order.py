"""The order of scores, against a stable sort of all of them: on the CPU and on a pretended device."""

import pytest
import torch
from pretend_device import AWAY, Pretended, pretending

from attnprobe.linalg.order import largest_scores

SHAPES = [(60,), (5, 60), (2, 3, 60)]


def equal_scores(shape, levels=4):
    """Scores of a few levels, of which the lowest is -∞."""
    x = torch.randint(levels, shape, generator=torch.Generator().manual_seed(0)).double()
    return x.masked_fill(x == 0, float("-inf"))


def sorted_scores(x, count):
    values, places = x.sort(dim=-1, descending=True, stable=True)
    return values[..., :count], places.masked_fill(values == float("-inf"), -1)[..., :count]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [0, 1, 7, 25, 59, 60, 70])
def test_equal_scores_are_taken_by_their_place(shape, count):
    x = equal_scores(shape)
    expected = sorted_scores(x, count)
    for actual in (largest_scores(x, count), largest_scores(x.masked_fill(x > 2, torch.inf), count)):
        assert torch.equal(actual[1], expected[1])
    assert torch.equal(largest_scores(x, count)[0], expected[0])
    with pretending():
        values, places = largest_scores(x.to(AWAY), count)
    assert isinstance(values, Pretended) and isinstance(places, Pretended)
    assert torch.equal(places.held, expected[1]) and torch.equal(values.held, expected[0])


@pytest.mark.parametrize("count", [1, 20, 60])
def test_scores_without_ties_are_those_of_topk(count):
    x = torch.randn(4, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = x.topk(count)
    for actual, of_topk in zip(largest_scores(x, count), expected, strict=True):
        assert torch.equal(actual, of_topk)


def test_scores_that_are_not_above_the_bound_have_no_place():
    values, places = largest_scores(torch.tensor([[0.0, 2.0, 0.0, 1.0]]), 3, above=0.0)
    assert values.tolist() == [[2.0, 1.0, 0.0]] and places.tolist() == [[1, 3, -1]]


def test_nan_is_larger_than_every_number():
    x = torch.tensor([[1.0, 2.0, float("nan"), 2.0, 2.0]])
    assert largest_scores(x, 3)[1].tolist() == [[2, 1, 3]]


def test_gradients_reach_the_scores_that_are_taken():
    x = torch.tensor([[3.0, 5.0, 5.0, 5.0]], requires_grad=True)
    largest_scores(x, 2)[0].sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[0.0, 1.0, 1.0, 0.0]]
