"""Coresets: WildCat draws pivots by their residuals and obeys its bound; Thinformer includes each key as often."""

from typing import Any

import numpy as np
import pytest
import torch
from inputs import draws_of, make, one_head
from scipy.stats import chi2
from twins_coresets import TWINS, wildcat_kernel

from attnprobe import QKV, approximate
from attnprobe.errors import Unsupported, UsageError
from attnprobe.metrics.guarantees import GuaranteeReference
from attnprobe.operators.linalg.coresets import halved, randomly_pivoted
from attnprobe.operators.linalg.exceedance import bias_z
from attnprobe.rng import generator

Z = 5.0  # standard errors


def uniform(*shape, label="uniform"):
    return torch.rand(shape, generator=generator(0, "coresets", label), dtype=torch.float64)


def test_pivots_are_drawn_by_their_residuals():
    """χ² over all pairs of two pivots: the first by h_jj, the second by what the first leaves."""
    x = 1.2 * torch.randn(5, 3, generator=generator(0, "pivots"), dtype=torch.float64)
    draws = 20_000
    pivots = randomly_pivoted(x.expand(draws, -1, -1), uniform(draws, 2))
    h = (x @ x.mT).exp()
    first = h.diagonal() / h.trace()
    expected = torch.zeros(5, 5, dtype=torch.float64)
    for i in range(5):
        residual = h.diagonal() - h[:, i] ** 2 / h[i, i]
        residual[i] = 0
        expected[i] = first[i] * residual / residual.sum()
    counts = torch.bincount(pivots[:, 0] * 5 + pivots[:, 1], minlength=25).view(5, 5)
    assert not counts.diagonal().any()
    inside = expected > 0
    statistic = float(((counts - draws * expected)[inside] ** 2 / (draws * expected[inside])).sum())
    assert statistic < chi2.ppf(1 - 1e-6, int(inside.sum()) - 1)


def test_repeated_rows_are_drawn_once_and_then_the_rest():
    x = torch.randn(1, 4, 2, generator=generator(1, "pivots"), dtype=torch.float64).repeat(1, 3, 1)
    pivots = randomly_pivoted(x, uniform(1, 12))[0].tolist()
    assert sorted(pivots) == list(range(12)) and len({j % 4 for j in pivots[:4]}) == 4


@pytest.mark.parametrize("options", [{}, {"tau": 1.0}, {"temperature": "queries"}])
def test_no_entry_of_wildcat_is_off_by_more_than_its_bound(options):
    """``exp(β τ² ‖q‖²/2) √residual`` bounds ``|A - L W|``, and is 0 at the pivots."""
    qkv = make(h=1, n=40, p=4)
    approx = approximate("wildcat", qkv, 12, **options)
    assert approx.log_normalizer is not None
    k = qkv.k[0] - qkv.k[0].mean(0)
    a = (qkv.scale * qkv.q[0] @ k.mT).exp()
    shift = (qkv.scale * qkv.q[0] @ qkv.k[0].mean(0))[:, None]
    got = approx.matrix().dense()[0] * (approx.log_normalizer()[0, :, None] - shift).exp()

    def longest(x):
        return float(x.norm(dim=-1).max())

    ratio = longest(k) / longest(qkv.q[0]) if options.get("temperature") == "queries" else 1.0
    square = options.get("tau", (3.94582 * ratio) ** 0.5) ** 2
    h = (qkv.scale * k @ k.mT / square).exp()
    error = (a - got).abs()
    pivots = (error.amax(0) < 1e-8).nonzero()[:, 0]
    assert len(pivots) == 12
    residual = (h - h[:, pivots] @ torch.linalg.inv(h[pivots][:, pivots]) @ h[pivots]).diagonal().clamp(min=0)
    bound = (qkv.scale * square * qkv.q[0].square().sum(-1) / 2).exp()[:, None] * residual.sqrt()
    others = torch.ones(40, dtype=torch.bool).index_fill(0, pivots, False)
    assert (error[:, others] <= bound[:, others]).all()
    assert float((error[:, others] / bound[:, others]).max()) > 0.02


@pytest.mark.parametrize("name, options", [("wildcat", {"tau": 0.7}), ("wildcat", {"temperature": "queries"})])
def test_options_equal_their_literal_twins(name, options):
    qkv = make(n=24)
    approx = approximate(name, qkv, 6, **options)
    for row in range(qkv.h):
        twin = TWINS[name](one_head(qkv, row), 6, draws_of(approx, row), "softmax", **options)
        assert torch.allclose(approx.matrix().dense()[row], twin, atol=1e-9)


@pytest.mark.parametrize("n, d, used", [(64, 64, 64), (64, 30, 16), (64, 8, 8), (64, 2, 2), (100, 9, 8)])
def test_thinformer_retains_a_power_of_two_below_and_above_the_root_of_n(n, d, used):
    qkv = make(h=1, n=n)
    approx = approximate("thinformer", qkv, d, delta=0.9)
    assert approx.diagnostics["realised_d"].tolist() == [used]
    draws = {key: value[0] for key, value in approx.draws.items()}
    twin = TWINS["thinformer"](qkv, d, draws, "softmax", delta=0.9)
    assert torch.allclose(approx.matrix().dense()[0], twin, atol=1e-12)


def test_halving_follows_the_sum_before_it():
    """Equal pairs alternate: the second of each two is turned with probability one half and 1/(2a)."""
    step = torch.tensor([[1.0], [0.0]], dtype=torch.float64).repeat(2, 1)
    kernel = (step @ step.mT).expand(40_000, -1, -1)
    taken = halved(kernel, uniform(40_000, 2, label="pairs"), torch.ones(40_000, dtype=torch.float64), 0.5)
    assert not taken[:, 0].any()
    share, expected = float((taken[:, 1] == 3).double().mean()), 0.5 * (1 + 1 / (0.5 + np.log(16)))
    assert abs(share - expected) < Z * (0.25 / 40_000) ** 0.5


def test_of_equal_rows_all_but_the_first_pair_are_turned():
    """Any choice would do; records have this one."""
    half = torch.full((1, 2), 0.5, dtype=torch.float64)
    taken = [halved(torch.ones(1, 4, 4, dtype=torch.float64), half, torch.full((1,), coin), 0.5) for coin in (0.7, 0.3)]
    assert [one.tolist() for one in taken] == [[[0, 3]], [[1, 2]]]


def test_a_thinned_sum_is_closer_than_that_of_random_keys():
    """The reason for halving: ``Σ_J exp(S_ij) v_j`` errs less than with as many keys drawn uniformly."""
    q, k = 0.7 * torch.randn(2, 1, 256, 1, generator=generator(3, "thinned"), dtype=torch.float64)
    qkv = QKV(q, k, torch.ones(1, 256, 1, dtype=torch.float64))
    a = (qkv.scale * q[0] @ k[0].mT).exp()
    exact, errors = (a @ qkv.v[0]) / 256, {"thinned": 0.0, "random": 0.0}
    for seed in range(10):
        thinned = approximate("thinformer", qkv, 64, seed=seed).matrix().dense()[0]
        random = torch.randperm(256, generator=generator(seed, "random"))[:64]
        for name, keys in (("thinned", (thinned[0] > 0).nonzero()[:, 0]), ("random", random)):
            errors[name] += float((a[:, keys] @ qkv.v[0, keys] / 64 - exact).square().sum())
    assert errors["thinned"] < 0.7 * errors["random"], errors


def test_thinformer_is_unbiased_and_includes_each_key_as_often():
    one, repeats = make(h=1, n=16), 2000
    reference = GuaranteeReference(one)  # a head is a repeat
    q, k, v = (x.expand(repeats, -1, -1) for x in (one.q, one.k, one.v))
    qkv = QKV(q, k, v)
    approx = approximate("thinformer", qkv, 4)
    assert approx.log_normalizer is not None and reference.log_normaliser is not None
    counts = (approx.matrix().dense()[:, 0] > 0).sum(0)
    x = ((approx.log_normalizer() - reference.log_normaliser).exp() - 1).numpy()
    assert approx.sampling is not None and approx.sampling.inclusion is not None
    pi = float(approx.sampling.inclusion[0, 0])
    assert pi == 0.25
    z = (counts.numpy() - repeats * pi) / (repeats * pi * (1 - pi)) ** 0.5
    assert np.abs(z).max() < 4.5 and 0.4 < z.std() < 1.6
    assert (np.abs(bias_z(x.mean(0), (x**2).mean(0), (x**3).mean(0), repeats)) < Z).all()


def test_keys_that_thinning_drops_have_no_inclusion():
    approx = approximate("thinformer", make(h=1, n=20), 4)
    assert approx.sampling is not None and approx.sampling.inclusion is not None
    assert not approx.sampling.inclusion.any() and not approx.matrix().dense()[..., 16:].any()


def test_the_kernel_of_the_twin_is_that_of_centred_keys():
    """The twin's temperature is not the method's own: doubling the queries changes it with ``queries`` only."""
    qkv = make(h=1, n=10)
    longer = qkv.replace(q=2 * qkv.q)
    assert torch.equal(wildcat_kernel(qkv), wildcat_kernel(longer))
    assert not torch.allclose(wildcat_kernel(qkv), wildcat_kernel(longer, temperature="queries"))


def test_impossible_options_are_refused():
    qkv = make(h=1, n=8)
    refused: tuple[tuple[str, dict[str, Any]], ...] = (
        ("wildcat", {"tau": 0.0}),
        ("wildcat", {"tau": 1.0, "temperature": "queries"}),
        ("thinformer", {"delta": 1.0}),
    )
    for name, options in refused:
        with pytest.raises(UsageError):
            approximate(name, qkv, 4, **options)
        with pytest.raises(Unsupported):
            approximate(name, qkv, 9)
