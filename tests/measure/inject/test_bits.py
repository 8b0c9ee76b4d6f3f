"""`benchmarks/bits.py`: the numbers that may predict the damage of few bits, and how they are compared."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from attnprobe import QKV
from attnprobe.measure.inject.policy import Steps
from attnprobe.methods import approximate
from attnprobe.run.plan import parse_methods

PROMPT, N = 40, 46


@pytest.fixture
def bits(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    return import_module("bits")


def steps_of(seed=0):
    """Four query heads on two KV heads, and the steps behind a prompt."""
    draws = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(h, N, 32, generator=draws) for h in (4, 2, 2))
    qkv = QKV(q, k, v, causal=True)
    return Steps(0, 0, 0, qkv.replace(q=q[:, PROMPT:], positions=torch.arange(PROMPT, N)), PROMPT)


def test_the_fisher_error_is_the_divergence_of_weights_to_second_order(bits):
    """With eight bits the rest is of the third order."""
    steps, [request] = steps_of(), parse_methods(["q8_0"], "softmax")
    found = bits.stored_errors(steps, request)
    made = approximate("q8_0", QKV(steps.qkv.q, steps.k, steps.v))
    k = [torch.cat([x, steps.qkv.shared_k[:, PROMPT:]], 1).double() for x in (steps.k, made.stored[0])]
    later = torch.arange(N) > torch.arange(PROMPT, N)[:, None]
    scores = [
        (steps.qkv.scale * steps.qkv.q.double() @ keys.repeat_interleave(2, 0).mT).masked_fill(later, -torch.inf)
        for keys in k
    ]
    own, got = (x.log_softmax(-1) for x in scores)
    kl = (own.exp() * (own - got).masked_fill(later, 0)).sum(-1)  # (heads, steps)
    assert found["fisher"].tolist() == pytest.approx(kl.unflatten(0, (2, 2)).mean((1, 2)).tolist(), rel=0.05)
    gaps = [(a - b).double().square().mean((1, 2)) for a, b in zip(made.stored, (steps.k, steps.v), strict=True)]
    assert torch.allclose(found["storage"], (gaps[0] + gaps[1]) / 2)
    sizes = [x.double().square().mean((1, 2)) for x in (steps.k, steps.v)]
    assert torch.allclose(found["storage_share"], (gaps[0] / sizes[0] + gaps[1] / sizes[1]) / 2)


def test_correlations_are_of_all_places_and_means_over_layers_and_formats(bits):
    draws = np.random.default_rng(0)
    places = [(layer, form, head) for layer in range(3) for form in ("a", "b") for head in range(7)]
    damage, numbers = draws.random(len(places)), draws.random((len(places), 2))

    def rho(part, row):
        return spearmanr(numbers[part, row], damage[part])[0]

    found = bits.correlations(places, numbers, damage)
    for row in range(2):
        of_layers = [rho([at for at, place in enumerate(places) if place[0] == layer], row) for layer in range(3)]
        of_formats = [rho([at for at, place in enumerate(places) if place[1] == form], row) for form in "ab"]
        expected = [rho(slice(None), row), np.mean(of_layers), np.mean(of_formats)]
        assert found[row].tolist() == pytest.approx(expected)
    halves = bits.of_halves(places, np.stack([damage, damage * 2, damage + 1, damage], 1))
    assert halves.tolist() == pytest.approx([1.0, 1.0, 1.0])
