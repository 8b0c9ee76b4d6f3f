"""Sorted blocks and a sample: unbiased, with the inclusion probabilities that they state; double counts are seen."""

from typing import Any

import numpy as np
import pytest
import torch
from inputs import draws_of, make, one_head
from twins_estimators import TWINS, gray_place

from attnprobe import QKV, approximate
from attnprobe.errors import Unsupported, UsageError
from attnprobe.metrics.guarantees import GuaranteeReference
from attnprobe.operators.linalg.exceedance import bias_z
from attnprobe.operators.linalg.hashing import sign_codes

Z = 5.0  # standard errors
HEADS = 1500  # equal heads, each with its own draws: repeats


@pytest.fixture(scope="module")
def one():
    return make(h=1, n=24, p_v=3)


@pytest.fixture(scope="module")
def repeats(one):
    q, k, v = (x.expand(HEADS, -1, -1) for x in (one.q, one.k, one.v))
    return QKV(q, k, v)


def ratios(one, approx):
    """``D~/D - 1`` of each repeat and row, (HEADS, n_q)."""
    reference = GuaranteeReference(one).log_normaliser
    assert approx.log_normalizer is not None and reference is not None
    return ((approx.log_normalizer() - reference).exp() - 1).numpy()


def z_of(x):
    return bias_z(x.mean(0), (x**2).mean(0), (x**3).mean(0), len(x))


@pytest.mark.parametrize("name", ["hyper", "kdeformer"])
def test_normalisers_are_unbiased_with_the_variance_and_the_inclusion_that_are_stated(one, repeats, name):
    """χ² of the inclusion of keys outside of the block: one key of a row, over repeats in which it is outside."""
    approx = approximate(name, repeats, 16)
    x = ratios(one, approx)
    assert (np.abs(z_of(x)) < Z).all()
    sampling = approx.sampling
    assert sampling is not None and sampling.variance is not None and sampling.inclusion is not None
    # given the blocks; and hashes of pretended repeats differ, so the law of all is a mixture
    ratio = ((1 + x) ** 2 * sampling.variance.numpy()).mean() / (x**2).mean()
    assert 0.85 < ratio < 1.15, ratio
    used = approx.matrix().dense() > 0  # (HEADS, n_q, n_k)
    own = torch.zeros(HEADS, 24, 24, dtype=torch.bool)
    columns = approx.draws["columns"]
    sampled = torch.zeros(HEADS, 24, dtype=torch.bool).scatter(1, columns, True)
    own = used & ~sampled[:, None]  # keys of the block that no draw has
    assert (own.sum(-1) <= 8).all()
    counts = sampled.double().sum(0).numpy()
    if name == "hyper":
        pi = np.full(24, 1 - (1 - 1 / 24) ** 8)
        assert torch.allclose(sampling.inclusion, torch.tensor(pi[0], dtype=torch.float64))
    else:
        v = torch.nn.functional.pad(one.v[0], (0, 1), value=1.0)
        p = v.norm(dim=-1) / torch.linalg.matrix_norm(v, 2) ** 2 + 1 / 24
        pi = (1 - (1 - p / p.sum()) ** 8).numpy()
        assert (sampling.inclusion >= pi.min() - 1e-12).all() and (sampling.inclusion <= pi.max()).all()
    z = (counts - HEADS * pi) / (HEADS * pi * (1 - pi)) ** 0.5
    assert np.abs(z).max() < 4.5 and 0.4 < z.std() < 1.6


def test_samples_that_count_in_their_block_too_are_biased_high(one, repeats):
    x = ratios(one, approximate("hyper", repeats, 16, count_twice=True))
    assert (z_of(x) > Z).mean() > 0.9 and x.mean() > 0.1


def test_blocks_hold_similar_tokens():
    """A query attends exactly to keys of its own direction, which a hash puts side by side."""
    k = torch.eye(4, dtype=torch.float64).repeat_interleave(6, 0)[None]
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    qkv = QKV(8 * k[:, order], k, torch.ones(1, 24, 1, dtype=torch.float64))
    actual = 0.0
    for seed in range(20):
        rows = approximate("hyper", qkv, 6, seed=seed, block=1.0, bits=12).matrix().dense()[0]
        actual += float((rows * (k[0][order] @ k[0].mT)).sum(-1).mean()) / 20
    assert actual > 0.8


@pytest.mark.parametrize("bits", [1, 3, 5])
def test_neighbouring_codes_differ_in_one_sign(bits):
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * bits).view(-1, bits)
    places = sign_codes(signs[None], torch.eye(bits)[None])[0]
    assert places.tolist() == [gray_place([x > 0 for x in bucket]) for bucket in signs.tolist()]
    ordered = signs[places.argsort()]
    assert (ordered.diff(dim=0).abs().sum(-1) == 2).all()


CHOICES: list[tuple[str, dict[str, Any]]] = [
    ("hyper", {"count_twice": True}),
    ("hyper", {"block": 0.3, "bits": 3}),
    ("kdeformer", {"block": 0.8}),
]


@pytest.mark.parametrize("name, options", CHOICES)
def test_options_equal_their_literal_twins(name, options):
    qkv = make(n=18, n_k=22)
    approx = approximate(name, qkv, 10, **options)
    for row in range(qkv.h):
        twin = TWINS[name](one_head(qkv, row), 10, draws_of(approx, row), "softmax", **options)
        assert torch.allclose(approx.matrix().dense()[row], twin, atol=1e-12)


@pytest.mark.parametrize("name, options", [("hyper", {}), ("hyper", {"count_twice": True}), ("kdeformer", {})])
def test_keys_that_are_drawn_several_times_count_once(name, options):
    """The number of keys and the effective sample size by hand, from the draws and the matrix."""
    qkv = make(n=24)
    approx = approximate(name, qkv, 20, **options)
    assert approx.sampling is not None and approx.sampling.ess is not None and approx.log_normalizer is not None
    dense, columns = approx.matrix().dense().double(), approx.draws["columns"]
    assert any(len(set(drawn.tolist())) < len(drawn) for drawn in columns)
    assert torch.equal(approx.diagnostics["realised_d"], (dense > 0).sum(-1).double().mean(1))
    scores = qkv.scale * qkv.q @ qkv.k.mT
    weights = dense * (approx.log_normalizer()[..., None] - scores).exp()  # w_ij
    assert torch.allclose(approx.sampling.ess, weights.sum(-1).square() / weights.square().sum(-1))


def test_impossible_options_are_refused():
    qkv = make(h=1, n=8)
    refused: tuple[dict[str, Any], ...] = ({"bits": 0}, {"bits": 17}, {"block": 0.0}, {"block": 1.5})
    for name in ("hyper", "kdeformer"):
        for options in refused:
            with pytest.raises(UsageError):
                approximate(name, qkv, 4, **options)
        with pytest.raises(Unsupported):
            approximate(name, qkv, 9)
