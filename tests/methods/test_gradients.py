"""Gradients: autograd's is the derivative of the output, for every method and every choice of every option."""

import pytest
import torch
from every_setting import BUDGET, CASES, THINNED
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError

from attnprobe import QKV, approximate
from attnprobe.errors import UsageError
from attnprobe.measure.bench.calls import Work, differentiated
from attnprobe.methods import METHODS, get


def inputs(n, seed=0):
    return torch.randn(3, 2, n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name, target, options", THINNED)
def test_the_gradient_is_the_derivative(name, target, options):
    """With the draws of one seed held, against central differences in float64.

    Hashes, sorts and selections are constant near a point that is no tie: there the derivative is that of what is
    selected, and where a method leaves K or Q out it is 0.
    """
    if "whole_scale" in get(name).tags:
        pytest.skip("a scale in float32 moves with the largest number, and no gradient passes it")
    d = None if get(name).budget is None else BUDGET
    leaves = [x.clone().requires_grad_() for x in inputs(2 * BUDGET)]

    def run(q, k, v):
        return approximate(name, QKV(q, k, v), d, target=target, **options).output

    try:
        assert run(*leaves).requires_grad
    except UsageError as refusal:
        pytest.skip(str(refusal))
    assert gradcheck(run, leaves, eps=1e-6, atol=1e-6, rtol=1e-4, fast_mode=True)


REACHED = {"vmean": "V", "reformer": "QV"}  # of the others Q, K and V
REACHED |= {name: "Q" for name, entry in METHODS.items() if entry.format is not None}  # none passes codes and scales
REACHED["kivi"] = "QKV"  # those of recent tokens


@pytest.mark.parametrize("name", sorted({case.values[0] for case in CASES}))
def test_what_a_gradient_reaches(name):
    entry = get(name)
    qkv = QKV(*inputs(2 * BUDGET))
    work = Work(name, None if entry.budget is None else BUDGET, target=entry.targets[0], backward=True)
    assert differentiated(work, qkv) == REACHED.get(name, "QKV")


def test_the_check_sees_a_path_that_is_cut():
    leaves = [x.clone().requires_grad_() for x in inputs(8)]
    with pytest.raises(GradcheckError):
        gradcheck(lambda q, k, v: approximate("softmax", QKV(q, k.detach(), v)).output, leaves, fast_mode=True)
