"""Rank correlations: those of scipy without groups, and within groups a p-value that fits permutations."""

import math

import numpy as np
import pytest

from attnprobe.frame.correlation import LEAST, rank_correlation


def test_without_groups_it_is_scipys():
    from scipy.stats import spearmanr

    draws = np.random.default_rng(0)
    for _ in range(20):
        x, y = draws.integers(6, size=(2, 9)).astype(float)
        rho, _ = rank_correlation(x, y)
        assert rho == pytest.approx(float(spearmanr(x, y).statistic), abs=1e-12)


def test_few_pairs_and_constant_values_have_none():
    few = list(range(LEAST))
    assert rank_correlation(few[1:], few[1:]) is None and rank_correlation([1] * LEAST, few) is None
    assert rank_correlation(few, few)[0] == 1.0
    assert rank_correlation([*few[1:], math.inf], few) is None and rank_correlation([*few[1:], math.nan], few) is None
    assert rank_correlation(few, few, few) is None  # no group has an order


def test_two_values_have_an_order_and_the_least_number_of_pairs_is_given():
    half = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    for x, y in ((half, list(range(6))), (list(range(6)), half)):
        assert rank_correlation(x, y)[0] == pytest.approx(13.5 / math.sqrt(13.5 * 17.5), rel=1e-12)
    assert rank_correlation([1, 2, 3], [3, 2, 1], least=3)[0] == pytest.approx(-1, abs=1e-12)
    assert rank_correlation([1, 2], [3, 2], least=3) is None


def test_groups_of_any_level_are_ranked_apart():
    x, level = np.tile([1.0, 2.0, 3.0], 4), np.repeat([0.0, 10.0, 20.0, 30.0], 3)
    groups = np.repeat([*"abcd"], 3)
    rho, p = rank_correlation(x + level, -x + level, groups)
    assert rho == -1.0 and p < 0.01
    assert rank_correlation(x + level, -x + level)[0] > 0.8


@pytest.mark.parametrize("sizes", [(12,), pytest.param((5, 9), marks=pytest.mark.slow), (4, 4, 4, 4)])
def test_the_p_value_is_that_of_permutations_within_groups(sizes):
    """Of N permutations a share q estimates p within 4 sqrt(p (1 − p) / N); the normal approximation adds its own."""
    draws, count = np.random.default_rng(1), 1000
    groups = np.repeat(np.arange(len(sizes)), sizes)
    x = draws.normal(size=sum(sizes))
    y = 0.5 * x + draws.normal(size=sum(sizes))
    rho, p = rank_correlation(x, y, groups)
    larger = 0
    for _ in range(count):
        shuffled = np.concatenate([draws.permutation(y[groups == group]) for group in np.unique(groups)])
        larger += abs(rank_correlation(x, shuffled, groups)[0]) >= abs(rho) - 1e-12
    share = larger / count
    assert abs(p - share) < 4 * math.sqrt(max(p * (1 - p), 0.01) / count) + 0.03
