"""Steps behind a compressed prompt, and budgets of heads, on a GPU."""

import pytest
import torch
from inputs import make

pytest.importorskip("pydantic", reason="commands need pydantic")

from attnprobe.measure.inject.allocation import lava_budgets
from attnprobe.measure.inject.policy import PromptPolicy, Steps, prompt_text
from attnprobe.methods import METHODS
from attnprobe.qkv import QKV

PROMPT, N = 80, 90


@pytest.fixture(scope="module")
def qkv():
    made = make(n=N)
    return QKV(made.q, made.k, made.v, causal=True)


@pytest.mark.share
@pytest.mark.parametrize("name", ["snapkv", "h2o", "tova", "expected", "knorm", "keydiff", "window", "random"])
def test_steps_behind_a_compressed_prompt(name, qkv, place):
    outputs = []
    for inputs in (qkv, place.sent(qkv)):
        text = prompt_text(inputs, PROMPT)
        policy = PromptPolicy(METHODS[name], 20, 0, {}, PROMPT, lambda layer, row, text=text: text)
        steps = inputs.replace(q=inputs.q[:, PROMPT:], positions=torch.arange(PROMPT, N, device=inputs.device))
        outputs.append(policy.row(Steps(0, 0, 0, steps, PROMPT)))
    for expected, got in zip(*outputs, strict=True):
        assert torch.allclose(place.back(got), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.share
def test_budgets_of_heads(qkv, place):
    assert lava_budgets({0: place.sent(qkv)}, PROMPT, 20) == lava_budgets({0: qkv}, PROMPT, 20)
