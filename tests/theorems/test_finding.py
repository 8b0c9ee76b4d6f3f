"""Verdicts: their order, which is that of `Finding.verdicts`, and that every statement keeps to it; exact intervals."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from inputs import make
from scipy.stats import binom, binomtest
from theory_settings import check

from attnprobe import QKV
from attnprobe.theorems import THEOREMS, Finding
from attnprobe.theorems.finding import clopper_pearson, frequency, quantile_interval


def of(met, vacuous, measured, bound, sense="at most", **more):
    def number(x):
        return torch.tensor([x], dtype=torch.float64)

    ends = {name: number(x) if name != "rounding" else x for name, x in more.items()}
    return Finding(
        "t",
        "a",
        torch.tensor([met]),
        "p",
        number(bound),
        number(measured),
        torch.tensor([vacuous]),
        sense=sense,
        **ends,
    )


def test_a_bound_of_0_has_no_slack():
    assert float(of(True, False, 2.0, 1.0).slack) == 0.5 and float(of(True, False, 2.0, 1.0, "at least").slack) == 2
    for sense in ("at most", "at least"):
        assert math.isnan(of(True, False, 1e-13, 0.0, sense).slack)


@pytest.mark.parametrize("sense", ["at most", "at least"])
def test_what_is_not_assumed_comes_first_then_what_is_not_promised_then_what_is_lost(sense):
    selected, broken = (1.0, 3.0) if sense == "at most" else (3.0, 1.0)
    for met, vacuous, measured in itertools.product((True, False), (True, False), (selected, broken, math.nan)):
        expected = (
            "assumption not met"
            if not met
            else "vacuous"
            if vacuous
            else None
            if math.isnan(measured)
            else "holds"
            if measured == selected
            else "violated"
        )
        assert of(met, vacuous, measured, 2.0, sense).verdicts() == [expected]


def test_an_interval_and_rounding_must_lie_beyond_the_bound_as_a_whole():
    assert of(True, False, 2.5, 2.0, lower=1.9, upper=3.0).verdicts() == ["undecided"]
    assert of(True, False, 2.5, 2.0, lower=2.1, upper=3.0).verdicts() == ["violated"]
    assert of(True, False, 2.5, 2.0, lower=2.1, upper=3.0, rounding=0.2).verdicts() == ["undecided"]
    assert of(True, False, 2.5, 2.0, lower=1.9, upper=3.0, rounding=0.6).verdicts() == ["undecided"]
    assert of(True, False, 1.5, 2.0, lower=1.0, upper=2.1).verdicts() == ["undecided"]
    assert of(True, False, 1.5, 2.0, lower=1.0, upper=2.1, rounding=0.2).verdicts() == ["holds"]
    assert of(True, False, 2.5, 2.0, "at least", lower=1.9, upper=3.0).verdicts() == ["undecided"]
    assert replace(of(True, False, 2.5, 2.0, lower=1.9, upper=3.0), certified=True).verdicts() == ["holds"]
    assert of(True, False, 1.5, 2.0, "at least", lower=1.0, upper=2.1).verdicts() == ["undecided"]
    assert of(True, False, 1.5, 2.0, "at least", lower=1.0, upper=1.9).verdicts() == ["violated"]
    assert of(True, False, 1.5, 2.0, "at least", rounding=0.6).verdicts() == ["holds"]
    assert of(True, False, 2.0, 2.0).verdicts() == ["holds"] == of(True, False, 2.0, 2.0, "at least").verdicts()


@pytest.mark.parametrize(
    "failed, of_seeds, verdict",
    [(0, 35, "undecided"), (0, 36, "holds"), (0, 20, "undecided"), (5, 20, "undecided"), (6, 20, "violated")],
)
def test_a_share_of_failures_that_the_exact_test_cannot_place_on_one_side_of_delta_is_undecided(
    failed, of_seeds, verdict
):
    """At δ = 0.1: 0.9^35 = 0.0250 + 3e-5 and 0.9^36 = 0.0225; P(X ≥ 5) = 0.043 and P(X ≥ 6) = 0.011 of 20."""
    share = frequency(torch.arange(of_seeds)[:, None] < failed)
    ends = {"lower": float(share.lower), "upper": float(share.upper)}
    assert of(True, False, float(share.value), 0.1, **ends).verdicts() == [verdict]


def test_infinite_numbers_are_compared_and_nan_is_not():
    inf = math.inf
    assert of(True, False, 1.0, inf).verdicts() == ["holds"] and of(True, False, inf, 1.0).verdicts() == ["violated"]
    assert of(True, False, inf, 1.0, "at least").verdicts() == ["holds"]
    for lost in (
        of(True, False, 1.0, math.nan),
        of(True, False, 1.0, 2.0, lower=math.nan),
        of(True, False, inf, 1.0, rounding=inf),
    ):
        assert lost.verdicts() == [None] and bool(lost.lost)


def uniform(n=40):
    q = torch.zeros(1, n, 4, dtype=torch.float64)
    return QKV(q, q, torch.randn(1, n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


BOTH = {  # where the assumption fails and the bound would say nothing either
    "skyformer-theorem-2": (make(n=24, score=3.0), (6,)),
    "skeinformer-jl": (make(n=24, score=3.0), (6,)),
    "skeinformer-jl-vector": (uniform(), (1,)),
    "skeinformer-proposition-1": (make(n=24, score=1e4), (2,)),
    "eckart-young": (make(n=24, score=1.0), (12,)),
    "rank-collapse": (make(n=24, score=6.0), (6,)),
}


@pytest.mark.parametrize("name", BOTH)
def test_a_theorem_whose_assumption_fails_is_not_called_vacuous(name):
    qkv, budgets = BOTH[name]
    both = 0
    for one in check(name, qkv, budgets, epsilons=(0.1, 1.5), methods=("window", "skyformer"), seeds=range(4)):
        for met, vacuous, verdict in zip(one.met.tolist(), one.vacuous.tolist(), one.verdicts(), strict=True):
            assert (verdict == "assumption not met") == (not met)
            assert (verdict == "vacuous") == (met and vacuous)
            both += vacuous and not met
    assert both


def test_inputs_without_any_structure_have_verdicts_everywhere():
    """Values or scores that are all zero, one token, repeated tokens: nothing is violated there, and nothing NaN."""
    zero, g = torch.zeros(1, 8, 4, dtype=torch.float64), torch.Generator().manual_seed(1)
    x, y, v = torch.randn(3, 1, 8, 4, generator=g, dtype=torch.float64)

    def same(t):
        return t[:, :1].expand(1, 8, 4)

    inputs = {
        "no scores": (zero, zero, v),
        "no values": (x, y, zero),
        "nothing": (zero, zero, zero),
        "one token": (x[:, :1], y[:, :1], v[:, :1]),
        "repeated": (same(x), same(y), v),
    }
    for what, three in inputs.items():
        qkv = QKV(*three)
        for name in sorted(set(THEOREMS) - {"ma-property", "shift-bound"}):  # a method may be bad, a bound wrong
            if what == "one token" and name.startswith("shift-"):
                continue
            d = 1 if what == "one token" else 4
            for one in check(name, qkv, (d,), methods=("nystromformer",), seeds=range(3)):
                assert not {None, "violated"} & set(one.verdicts()), (what, name, dict(one.at))
    for one in check("ma-property", QKV(x, y, zero), (4,), methods=("nystromformer",)):
        assert one.at["of"] == "matrix" or (one.measured == 0).all()  # an output of zeros is met exactly


@pytest.mark.parametrize("trials", [1, 2, 7, 20, 333])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_scipy_finds_the_same_interval(trials, level):
    for successes in {0, 1, trials // 3, trials - 1, trials}:
        expected = binomtest(successes, trials).proportion_ci(level, "exact")
        assert clopper_pearson(successes, trials, level) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_the_interval_covers_every_probability_and_none_much_more_than_it_must(level):
    ends = [clopper_pearson(k, 12, level) for k in range(13)]
    coverage = [
        sum(binom.pmf(k, 12, p) for k in range(13) if ends[k][0] <= p <= ends[k][1])
        for p in (i / 500 for i in range(501))
    ]
    assert min(coverage) >= level - 1e-12
    low, high = ends[5]
    assert binom.sf(4, 12, low) == pytest.approx((1 - level) / 2) == binom.cdf(5, 12, high)


@pytest.mark.parametrize("n, q", [(5, 0.9), (20, 0.5), (50, 0.9), (400, 0.99)])
def test_order_statistics_cover_the_quantile(n, q):
    low, high = quantile_interval(range(1, n + 1), q)
    below = 0.0 if low == -math.inf else binom.cdf(low - 1, n, q)  # fewer than low values below the quantile
    above = 0.0 if high == math.inf else binom.sf(high - 1, n, q)
    assert below <= 0.025 + 1e-12 and above <= 0.025 + 1e-12
    if low != -math.inf:
        assert binom.cdf(low, n, q) > 0.025  # the next value would be too high
    if high != math.inf:
        assert binom.sf(high - 2, n, q) > 0.025


def test_too_few_values_bound_nothing():
    assert quantile_interval([3.0, 1.0], 0.5) == (-math.inf, math.inf)
    assert quantile_interval([float(x) for x in range(100)][::-1], 0.5) == (39.0, 60.0)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"met": torch.tensor([True, True])}, "t: one number per head is needed"),
        ({"sense": "below"}, "and sense='below'"),
        ({"met": torch.tensor([1.0])}, "t: met and vacuous must be boolean"),
        ({"vacuous": torch.tensor([0])}, "t: met and vacuous must be boolean"),
    ],
)
def test_a_finding_that_cannot_be_judged_is_refused(change, says):
    with pytest.raises(ValueError, match=says):
        replace(of(True, False, 1.0, 2.0), **change)
