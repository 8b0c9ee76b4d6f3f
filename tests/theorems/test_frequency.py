"""Exact intervals of probabilities and of quantiles."""

import math

import pytest
from scipy.stats import binom, binomtest

from attnprobe.theorems.finding import binomial_tail, clopper_pearson, quantile_interval


@pytest.mark.parametrize("trials", [1, 2, 7, 20, 333])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_scipy_finds_the_same_interval(trials, level):
    for successes in {0, 1, trials // 3, trials - 1, trials}:
        expected = binomtest(successes, trials).proportion_ci(level, "exact")
        assert clopper_pearson(successes, trials, level) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_tail_of_the_binomial_distribution():
    for n in (1, 9, 400):
        for k in range(-1, n + 2, max(1, n // 7)):
            for p in (0.0, 1e-6, 0.3, 0.9, 1.0):
                assert binomial_tail(k, n, p) == pytest.approx(float(binom.sf(k - 1, n, p)), rel=1e-10, abs=1e-300)


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
