"""Truncated rows: the identities, the diameter bound, the rule for Gaussian scores; and planted faults."""

from dataclasses import replace
from math import exp

import pytest
import torch
from inputs import make
from scipy.stats import jarque_bera, norm
from theory_settings import setting_for

from attnprobe.operators import Scaled
from attnprobe.theorems import THEOREMS
from attnprobe.theorems.tzachristas2025 import LEAST_KEYS, gaussian_keys, largest_distance

F64 = torch.float64
FORMS = {"all": {}, "causal": {"causal": True}, "window": {"causal": True, "sliding_window": 30}}


def findings_of(name, qkv, *args, setting=None, **more):
    return list(THEOREMS[name].check(qkv, setting or setting_for(qkv, *args, **more)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("score", [1.0, 20.0])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_the_identities_and_the_diameter_bound_hold(form, score, dtype):
    qkv = make(n=70, score=score, dtype=dtype).replace(**FORMS[form])
    for name, sides in (("topk-tv", ["tau", "kl"]), ("topk-output", ["factorisation", "diameter"])):
        every = findings_of(name, qkv, (3, 16))
        assert [(one.d, one.at["of"]) for one in every] == [(d, of) for d in (3, 16) for of in sides]
        for one in every:
            assert one.verdicts() == ["holds"] * 2, (one, one.measured, one.bound)


def scaled_setting(qkv, by):
    """A setting whose topk has weights that are not renormalised."""
    setting = setting_for(qkv, (5,))

    def run(method, d, seed, row=None):
        approx = setting.run(method, d, seed)
        share = torch.full(approx.operator.shape[:2], by, dtype=F64)
        return replace(approx, operator=Scaled(approx.operator, left=share), output=approx.output * by)

    return replace(setting, run=run)


@pytest.mark.parametrize("name", ["topk-tv", "topk-output"])
def test_rows_that_are_not_renormalised_break_the_identities(name):
    qkv = make(n=40)
    first, *_ = findings_of(name, qkv, setting=scaled_setting(qkv, 0.9))
    assert first.verdicts() == ["violated"] * 2


def test_the_rule_for_gaussian_scores_is_met_by_them_and_not_by_heavy_tails():
    assert gaussian_keys(1e-9, 0.3) == pytest.approx(0.7)
    g = torch.Generator().manual_seed(0)
    n, p = 4000, 64
    qkv = make(n=n, h=1, p=p)
    q, k = torch.randn(2, 1, n, p, generator=g, dtype=F64)
    flat = qkv.replace(q=q[:, :40] / q[:, :40].norm(dim=-1, keepdim=True) * p**0.5, k=k, v=k)
    [one] = findings_of("topk-gaussian", flat, epsilons=(0.1,))
    assert float(one.details["keys"] / one.details["rule"]) == pytest.approx(1.0, abs=0.1)
    assert abs(float(one.details["kurtosis"])) < 0.2 and float(one.details["rejected"]) <= 0.1
    assert one.verdicts() == ["holds"]
    sharp = flat.replace(k=k * (torch.rand(1, n, 1, generator=g, dtype=F64) < 0.05) * 6)
    [one] = findings_of("topk-gaussian", sharp, epsilons=(0.1,))
    assert one.verdicts() == ["assumption not met"] and float(one.details["rejected"]) == 1


@pytest.mark.parametrize("spread, verdict", [(1.2, "holds"), (3.0, "assumption not met")])
def test_the_rule_is_about_many_keys_of_like_weight(spread, verdict):
    """Where scores spread by 3, a few of 1,000 keys carry a row, and Gaussian rows need 1.6 times the rule's keys."""
    g = torch.Generator().manual_seed(5)
    q, k = torch.randn(2, 1, 1000, 64, generator=g, dtype=F64)
    q = q[:, :200] / q[:, :200].norm(dim=-1, keepdim=True) * 8
    [one] = findings_of("topk-gaussian", make(n=1000, h=1, p=64).replace(q=spread * q, k=k, v=k), epsilons=(0.2,))
    assert one.verdicts() == [verdict] and float(one.details["rejected"]) <= 0.1
    assert float(one.details["keys"] / one.details["rule"]) == pytest.approx(1 if verdict == "holds" else 1.6, rel=0.15)


@pytest.mark.parametrize("by, verdict", [(0.88, "violated"), (0.95, "holds"), (1.05, "holds"), (1.2, "violated")])
def test_a_rule_that_says_too_few_or_too_many_keys_is_violated_beyond_a_tenth(by, verdict, monkeypatch):
    monkeypatch.setattr("attnprobe.theorems.tzachristas2025.gaussian_keys", lambda *args: by * gaussian_keys(*args))
    g = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 1, 1000, 64, generator=g, dtype=F64)
    [one] = findings_of("topk-gaussian", make(n=1000, h=1, p=64).replace(q=q[:, :200], k=k, v=k), epsilons=(0.1,))
    assert one.verdicts() == [verdict], (one.measured, one.bound, one.lower)


def test_few_keys_and_impossible_epsilons_are_left_out():
    [one] = findings_of("topk-gaussian", make(n=20), epsilons=(0.5, 1.0))
    assert one.at == {"epsilon": 0.5} and one.verdicts() == ["assumption not met"] * 2


def test_the_largest_distance_is_that_of_all_pairs():
    x = torch.randn(2, 300, 5, generator=torch.Generator().manual_seed(0), dtype=F64)
    assert torch.allclose(largest_distance(x), torch.cdist(x, x).amax((1, 2)))


@pytest.mark.parametrize("form", FORMS)
def test_keys_by_the_rule_are_the_literal_ones(form):
    """Row by row over the keys that it sees; rows of few keys do not count."""
    n, near = LEAST_KEYS + 14, LEAST_KEYS + 6
    sizes = {"sliding_window": near} if form == "window" else {}
    epsilon, qkv = 0.2, make(n=n).replace(**{**FORMS[form], **sizes})
    [one] = findings_of("topk-gaussian", qkv, epsilons=(epsilon,))
    for head in range(2):
        needed, ruled, kurtosis, p, variance = [], [], [], [], []
        for row in range(n):
            seen = [j for j in range(n) if not qkv.causal or (j <= row and (form == "causal" or row - j < near))]
            if len(seen) < LEAST_KEYS:
                continue
            scores = qkv.scale * qkv.q[head, row] @ qkv.k[head, seen].mT
            share, count = 0.0, 0
            for weight in sorted(torch.softmax(scores, 0).tolist(), reverse=True):
                count += 1
                share += weight
                if share >= 1 - epsilon:
                    break
            needed.append(count)
            away = scores - scores.mean()
            sigma = float(away.square().mean().sqrt())
            ruled.append(len(seen) * float(norm.sf(sigma + norm.ppf(epsilon))))
            kurtosis.append(float((away**4).mean()) / sigma**4 - 3)
            p.append(jarque_bera(scores.numpy()).pvalue)
            variance.append(exp(sigma**2) / len(seen))
        assert float(one.details["keys"][head]) == pytest.approx(sum(needed) / len(needed))
        assert float(one.details["rule"][head]) == pytest.approx(sum(ruled) / len(ruled), rel=1e-9)
        assert float(one.measured[head]) == pytest.approx(abs(sum(needed) / sum(ruled) - 1), rel=1e-9)
        assert float(one.details["kurtosis"][head]) == pytest.approx(sum(kurtosis) / len(kurtosis), rel=1e-9)
        rejected = sum(value < 0.05 for value in p) / len(p)
        assert float(one.details["rejected"][head]) == rejected
        assert float(one.details["variance"][head]) == pytest.approx(sum(variance) / len(variance), rel=1e-9)
