"""Calls of magicpig with the same inputs share what does not depend on the seed."""

import pytest
import torch

from attnprobe import QKV, approximate
from attnprobe.rng import generator


def inputs(causal=False):
    q, k, v = torch.randn(3, 2, 80, 6, generator=generator(3, "shared"), dtype=torch.float64)
    return QKV(q, k, v, causal=causal)


def fresh(qkv):
    return qkv.replace(q=qkv.q.clone(), positions=qkv.positions)


@pytest.mark.parametrize("rows", [slice(60, 80), slice(0, 80)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_later_call_is_that_of_new_inputs(rows, causal):
    qkv = inputs(causal).queries(torch.arange(80)[rows])
    for seed, d, options in ((0, 16, {}), (1, 16, {}), (1, 30, {}), (1, 30, {"bits": 4}), (1, 30, {"least_hits": 1})):
        actual = approximate("magicpig", qkv, d, seed=seed, **options)
        expected = approximate("magicpig", fresh(qkv), d, seed=seed, **options)
        assert torch.equal(actual.output, expected.output)
        assert torch.equal(actual.sampling.inclusion, expected.sampling.inclusion)


def test_a_change_in_place_is_seen():
    qkv = inputs().queries(torch.arange(60, 80))
    approximate("magicpig", qkv, 16)
    qkv.q.mul_(3)
    assert torch.equal(approximate("magicpig", qkv, 16).output, approximate("magicpig", fresh(qkv), 16).output)


def test_gradients_after_a_call_without_them():
    qkv = inputs().queries(torch.arange(60, 80))
    q = qkv.q.clone().requires_grad_()
    grown = qkv.replace(q=q, positions=qkv.positions)
    gradients = []
    for _ in range(2):
        approximate("magicpig", grown, 16).output.sum().backward()
        gradients.append(q.grad.clone())
        q.grad = None
    assert torch.equal(*gradients) and bool(gradients[0].any())
