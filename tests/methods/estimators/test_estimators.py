"""Estimators from sampled keys: unbiased, with the inclusion probabilities that they state; published faults are seen.

Rows of one call draw independently (of ``vattention``), or tables do (of ``magicpig``): many equal queries, or many
seeds, are many repeats.
"""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2
from thinned import others_slow
from twins_estimators import TWINS

from attnprobe import QKV, approximate, exact
from attnprobe.errors import Unsupported, UsageError
from attnprobe.measure.audit.measure import Tally
from attnprobe.methods.estimators import base
from attnprobe.methods.estimators.magicpig import _codes, at_least_two
from attnprobe.metrics.guarantees import GuaranteeReference
from attnprobe.operators.linalg.exceedance import bias_z, exact_p_values, verdicts
from attnprobe.rng import generator

Z = 5.0  # standard errors


def same_queries(rows, n_k=64, p=8, spread=1.0, seed=0):
    """Rows of one query: each is a repeat of the same estimate."""
    k, v = torch.randn(2, 1, n_k, p, generator=generator(seed, "estimators"), dtype=torch.float64)
    q = torch.randn(1, 1, p, generator=generator(seed, "query"), dtype=torch.float64)
    return QKV((spread * q).expand(1, rows, p), k, v)


def ratios(qkv, approx):
    """``D~/D`` and ``‖N~ - N‖/‖N‖`` with signs: D~/D - 1 (rows,), and N~/D - o (rows, p_v)."""
    reference = GuaranteeReference(qkv)
    assert approx.log_normalizer is not None and reference.log_normaliser is not None
    ratio = (approx.log_normalizer() - reference.log_normaliser).exp()[0]
    return ratio - 1, ratio[:, None] * approx.output[0].double() - reference.output[0]


def z_of(x):
    x = x.numpy()
    return bias_z(x.mean(0), (x**2).mean(0), (x**3).mean(0), len(x))


ALONE: dict[str, Any] = {"sinks": 0, "window": 0}


@pytest.mark.parametrize(
    "d, options", [(24, {}), (24, {"heavy": 0.0}), (16, {"heavy": 0.0, "epsilon": 0.8, "delta": 0.3, "verify": "D"})]
)
def test_vattention_is_unbiased_and_states_its_variance(d, options):
    qkv = same_queries(8000)
    approx = approximate("vattention", qkv, 40, **ALONE, **options)
    of_d, of_n = ratios(qkv, approx)
    assert float(of_d.std()) > 0 and abs(float(z_of(of_d))) < Z and (np.abs(z_of(of_n)) < Z).all()
    if not options:  # elsewhere D~ varies so much that the variance over D~² is skewed
        assert approx.sampling is not None and approx.sampling.variance is not None
        assert float(approx.sampling.variance.mean()) == pytest.approx(float(of_d.var()), rel=0.15)


def test_a_number_of_draws_from_the_sample_itself_is_biased_low():
    """A sample without large weights asks for few keys, and is kept; that is why ``independent`` is the default."""
    qkv, d = same_queries(8000, spread=1.5), 12
    options: dict[str, Any] = {"heavy": 0.0, "epsilon": 0.8, "verify": "D", **ALONE}
    z = {}
    for moments in ("reused", "independent"):
        z[moments] = float(z_of(ratios(qkv, approximate("vattention", qkv, d, moments=moments, **options))[0]))
    assert z["reused"] < -Z and abs(z["independent"]) < Z, z


def test_inclusion_frequencies_of_vattention_are_those_stated():
    """χ² over the keys of the tail, each with probability b/n_T; heavy keys always."""
    rows, d = 10_000, 24
    qkv = same_queries(rows)
    approx = approximate("vattention", qkv, d, **ALONE)
    used = (approx.matrix().dense()[0] > 0).double()
    counts = used.sum(0)
    always = counts == rows
    tail = counts[~always]
    assert int(always.sum()) == d // 2 and len(tail) == 64 - d // 2
    assert approx.sampling is not None and approx.sampling.inclusion is not None
    pi = float(approx.sampling.inclusion[0, 0])
    assert pi == pytest.approx((d - d // 2) / len(tail))
    # counts of draws without replacement: their covariance has the eigenvalue pi (1 - pi) n_T/(n_T - 1) on the tail
    statistic = float(((tail - rows * pi) ** 2).sum()) / (rows * pi * (1 - pi)) * (len(tail) - 1) / len(tail)
    assert chi2.ppf(1e-6, len(tail) - 1) < statistic < chi2.ppf(1 - 1e-6, len(tail) - 1)


@pytest.mark.parametrize("least_hits", [1, 2])
def test_inclusion_frequencies_of_magicpig_are_those_of_its_law(least_hits):
    """χ² over keys: each collides in at least so many tables with the probability u of its angle."""
    k, v = torch.randn(2, 1, 40, 6, generator=generator(1, "pig"), dtype=torch.float64)
    q = 2 * k[:, :1] + torch.randn(1, 1, 6, generator=generator(1, "query"), dtype=torch.float64)
    repeats, tables, bits = 500, 12, 3
    qkv = QKV(*(x.expand(repeats, -1, -1) for x in (q, k, v)))  # each head draws tables of its own
    options = {"tables": tables, "bits": bits, "sinks": 0, "window": 0, "least_hits": least_hits}
    reference, approx = GuaranteeReference(qkv), approximate("magicpig", qkv, 20, **options)
    counts = (approx.matrix().dense()[:, 0] > 0).sum(0)
    assert approx.log_normalizer is not None and reference.log_normaliser is not None
    of_d = (approx.log_normalizer() - reference.log_normaliser).exp()[:, 0] - 1
    centred = k[0] - k[0].mean(0)
    u = []
    for key in centred:
        cosine = float(q[0, 0] @ key / (q[0, 0].norm() * key.norm()))
        c = (1 - math.acos(cosine) / math.pi) ** bits
        u.append(binom.sf(least_hits - 1, tables, c))
    z = (counts.numpy() - repeats * np.array(u)) / np.sqrt(repeats * np.array(u) * (1 - np.array(u)))
    assert np.abs(z).max() < 4.5 and 0.5 < z.std() < 1.6
    assert abs(float(z_of(of_d))) < Z


def test_the_law_of_two_collisions_is_accurate_where_it_is_tiny():
    for tables in (2, 3, 60, 256):
        for c in (0.0, 1e-9, 1e-6, 3e-5, 1e-3, 0.01, 0.3, 0.99, 1.0):
            expected = sum(
                math.comb(tables, hits) * c**hits * (1 - c) ** (tables - hits) for hits in range(2, tables + 1)
            )
            got = float(at_least_two(torch.tensor([c], dtype=torch.float64), tables))
            assert got == pytest.approx(expected, rel=1e-7), (tables, c)


def known_moments(rows, spread, n_k=4000):
    """Rows with a lognormal tail: σ and D of it are known to the method with ``moments=exact``."""
    scores = spread * torch.randn(n_k, generator=generator(2, "moments"), dtype=torch.float64)
    k = torch.stack([scores, torch.zeros_like(scores)], -1)[None]
    q = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, rows, 2)
    return QKV(q, k, torch.ones(1, n_k, 1, dtype=torch.float64), scale=1.0)


@cache
def few_enough():
    """Which counts of failures, of 2000 repeats, tell a rate of 0.05 apart from a larger one."""
    return exact_p_values(np.arange(2001), 2000, 0.05).at_most <= 0.025


@pytest.mark.parametrize(
    "quantile, moments, spread, selected",
    [
        ("two-sided", "exact", 0.3, True),
        ("one-sided", "exact", 0.3, False),
        pytest.param("one-sided", "authors", 0.5, False, marks=pytest.mark.slow),
    ],
)
def test_the_one_sided_rule_breaks_its_promise(quantile, moments, spread, selected):
    """2000 repeats at ε = δ = 0.05: the two-sided rule with known moments keeps its δ, the published ones do not."""
    qkv = known_moments(2000, spread)
    options = {"epsilon": 0.05, "delta": 0.05, "verify": "D", "quantile": quantile, "moments": moments}
    approx = approximate("vattention", qkv, 40, **ALONE, **options)
    of_d, _ = ratios(qkv, approx)
    happened = int((of_d.abs() > 0.05).sum())
    verdict = verdicts(exact_p_values([happened], 2000, 0.05), 0.95)[0]
    assert (verdict == "violated") != selected, happened / 2000
    if not selected:  # the power of 2000 repeats at the measured rate
        detected = few_enough()
        assert binom.pmf(np.arange(2001), 2000, happened / 2000)[detected].sum() >= 0.99, happened / 2000


def audited(qkv, method, d, repeats, **options):
    tally = Tally(GuaranteeReference(qkv, matrix=False), (0.5,), (0.05,), 0.95, rows=False, anytime=False)
    for seed in range(repeats):
        tally.add(approximate(method, qkv, d, seed=seed, **options))
    return tally.metrics()


def test_draws_with_replacement_written_into_a_mask_are_flagged_as_biased():
    qkv = same_queries(60)
    scattered = audited(qkv, "vattention", 40, 40, replace=True, **ALONE)
    assert scattered["biased"] == [1.0] and -0.2 < scattered["bias"][0] < -0.01  # type: ignore[operator]  # numbers
    assert audited(qkv, "vattention", 40, 40, **ALONE)["biased"] == [0.0]


def test_draws_with_replacement_state_their_variance_and_inclusion():
    qkv, d = same_queries(8000), 40
    approx = approximate("vattention", qkv, d, replace=True, **ALONE)
    assert approx.sampling is not None and approx.sampling.variance is not None
    of_d = ratios(qkv, approx)[0]
    stated = approx.sampling.variance[0] * (1 + of_d) ** 2  # over D~², and D~ is biased
    assert float(stated.mean()) == pytest.approx(float(of_d.var()), rel=0.05)
    used = (approx.matrix().dense()[0] > 0).double().mean(0)
    tail = used[used < 1]
    assert len(tail) == 64 - d // 2 and approx.sampling.inclusion is not None
    pi = 1 - (1 - 1 / len(tail)) ** (d // 2)
    assert torch.allclose(approx.sampling.inclusion, torch.tensor(pi, dtype=torch.float64))
    assert float(tail.mean()) == pytest.approx(pi, abs=5 * (pi * (1 - pi) / 8000 / len(tail)) ** 0.5)


@pytest.mark.parametrize("heavy", others_slow([0.05, 0.1, 0.25, 0.4], lambda heavy: heavy[0] in (0.05, 0.25)))
@pytest.mark.parametrize("causal", [True, False])
def test_few_heavy_keys_are_the_last_and_the_first_ones(heavy, causal):
    """Sinks and window do not all fit; the own key always does, and equal scores come by their places."""
    d = 40
    q, k, v = torch.randn(3, 2, 96, 8, generator=generator(0, "few"), dtype=torch.float64)
    for keys in (k, k[:, :1].expand(-1, 96, -1)):
        qkv = QKV(q, keys, v, causal=causal)
        approx = approximate("vattention", qkv, d, heavy=heavy)
        for head in range(2):
            one = qkv.head(head)
            twin = TWINS["vattention"](one, d, {"row_keys": approx.draws["row_keys"][head]}, "softmax", heavy=heavy)
            assert torch.allclose(approx.matrix().dense()[head], twin, atol=1e-12)
        if keys is k:  # a weight of 1 against the own key's
            ratio = approx.matrix().dense() / exact(qkv).dense().masked_fill(exact(qkv).dense() == 0, 1)
            assert torch.allclose(ratio.diagonal(dim1=1, dim2=2), ratio.masked_fill(ratio == 0, 9e9).amin(-1))


def far_keys(near, p=12):
    """``near`` keys at an acute angle to the query and twice as many at an angle at which two collisions are rare."""
    x = torch.randn(3 * near, p, generator=generator(3, "floor"), dtype=torch.float64)
    x[:, 0] = 0
    x = x / x.norm(dim=-1, keepdim=True)
    along = torch.full((3 * near,), -0.29, dtype=torch.float64)
    along[:near] = 0.58  # so that the mean of all keys is zero
    k = (1 - along**2).sqrt()[:, None] * x
    k[:, 0] = along
    q = torch.zeros(1, 1, p, dtype=torch.float64)
    q[..., 0] = 0.1
    return QKV(q, k[None], torch.ones(1, 3 * near, 1, dtype=torch.float64), scale=1.0)


@pytest.mark.slow
def test_the_floor_of_published_weights_is_seen_where_inclusion_is_below_1e_5():
    """Keys with u of about 1e-5 hold two thirds of D, and a run of the unbiased method uses some of them."""
    qkv, options = far_keys(20_000), {"tables": 30, "bits": 10, **ALONE}
    floored = audited(qkv, "magicpig", 2000, 40, floor=1e-4, **options)
    assert floored["least_inclusion"][0] < 1e-5  # type: ignore[operator]  # a number
    assert floored["biased"] == [1.0] and floored["bias"][0] < -0.4  # type: ignore[operator]  # a number
    assert audited(qkv, "magicpig", 2000, 40, **options)["biased"] == [0.0]


def test_budgets_of_magicpig_are_met_where_tables_are_chosen():
    q, k, v = torch.randn(3, 2, 128, 16, generator=generator(4, "budget"))
    for d in (8, 24, 64):
        approx = approximate("magicpig", QKV(q, k, v), d, bits=6)
        expected = approx.diagnostics["realised_d"]
        used = (approx.matrix().dense() > 0).sum((1, 2)).double() / 128
        assert (expected <= d).all() and (used - expected).abs().max() < 0.35 * d


def test_a_promise_about_outputs_draws_more_than_one_about_its_parts():
    qkv = same_queries(20, n_k=4000)
    qkv = qkv.replace(v=qkv.v + 2)
    drawn = {verify: approximate("vattention", qkv, 64, epsilon=0.3, verify=verify) for verify in ("D", "N", "out")}
    used = {name: float(approx.diagnostics["realised_d"]) for name, approx in drawn.items()}
    assert 4000 > used["out"] > max(used["D"], used["N"]), used
    capped = approximate("vattention", qkv, 64, epsilon=0.3, most=0.005)
    assert capped.sampling is not None and capped.sampling.capped is not None and capped.sampling.capped.all()
    assert float(capped.diagnostics["realised_d"]) < used["N"]


def test_impossible_options_are_refused():
    qkv = same_queries(4)
    refused: tuple[dict[str, Any], ...] = (
        {"heavy": 1.0},
        {"delta": 1.0},
        {"most": 0.0},
        {"epsilon": -1.0},
        {"sinks": -1},
    )
    for options in refused:
        with pytest.raises(UsageError):
            approximate("vattention", qkv, 8, **options)
    refused = ({"bits": 0}, {"tables": 1}, {"floor": -1.0}, {"least_hits": 3}, {"window": -1})
    for options in refused:
        with pytest.raises(UsageError):
            approximate("magicpig", qkv, 8, **options)
    with pytest.raises(Unsupported):
        approximate("vattention", qkv, 65)


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


@pytest.mark.parametrize("kept, few", [(20 * 80, True), (20 * 80 - 1, False)])
def test_scores_of_many_keys_are_made_again_and_are_the_same(kept, few, monkeypatch):
    monkeypatch.setattr(base, "KEPT", kept)
    qkv = inputs().queries(torch.arange(60, 80))
    made, scores = [], base._scores
    monkeypatch.setattr(base, "_scores", lambda *args: made.append(args[1:]) or scores(*args))
    first, again = (approximate("magicpig", qkv, 16).output for _ in range(2))
    assert torch.equal(first, again) and len(made) == (2 if few else 4)


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


@pytest.mark.parametrize("bits", [3, 8, 9, 15, 16, 32])
def test_a_bucket_of_magicpig_is_the_signs_of_its_table(bits):
    generator = torch.Generator().manual_seed(1)
    x, rotations = torch.randn(40, 5, generator=generator), torch.randn(3, bits, 5, generator=generator)
    codes = _codes(x, rotations)
    for table, code in zip(rotations, codes, strict=True):
        signs = x @ table.T > 0
        equal = (signs[:, None] == signs[None]).all(-1)
        assert torch.equal(code[:, None] == code[None], equal)
