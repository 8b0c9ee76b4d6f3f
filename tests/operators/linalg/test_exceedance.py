"""Verdicts on promises: their errors are counted exactly, or over simulated promises that hold with equality."""

import numpy as np
import pytest
from scipy.stats import binom

from attnprobe.errors import UsageError
from attnprobe.operators.linalg.exceedance import (
    PValues,
    anytime_p_values,
    bias_z,
    confidence_sequence,
    exact_p_values,
    holm,
    verdicts,
)

DELTA, TRIALS = 0.05, 400
PROMISES = 2000
LEVEL = 0.025  # of each direction at confidence 0.95


@pytest.mark.parametrize("p", [0.001, 0.05, 0.3])
def test_exact_p_values_are_the_tails_of_the_binomial_distribution(p):
    counts = np.arange(TRIALS + 1)
    p_values = exact_p_values(counts, TRIALS, p)
    np.testing.assert_allclose(p_values.at_most, binom.sf(counts - 1, TRIALS, p), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(p_values.above, binom.cdf(counts, TRIALS, p), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("p_values", [exact_p_values, anytime_p_values])
@pytest.mark.parametrize("p", [0.01, 0.03, 0.05, 0.07, 0.12])
def test_a_single_promise_is_misjudged_with_at_most_the_stated_probability(p_values, p):
    """The probability of a wrong verdict, summed over all counts."""
    counts = np.arange(TRIALS + 1)
    judged = np.array([verdicts(p_values([k], TRIALS, DELTA), 0.95)[0] for k in counts])
    wrong = "violated" if p <= DELTA else "holds"
    assert binom.pmf(counts, TRIALS, p)[judged == wrong].sum() <= LEVEL
    if p == DELTA and p_values is exact_p_values:  # as large as a discrete test can have it: no room is given away
        assert binom.pmf(counts, TRIALS, p)[judged == wrong].sum() > LEVEL / 4


def test_promises_that_hold_with_equality_are_violated_in_at_most_the_stated_share_when_tests_stop_by_themselves():
    """Every promise is judged after each 20 trials up to 2000, and stops at its first verdict."""
    generator = np.random.default_rng(0)
    steps = generator.binomial(20, DELTA, size=(100, PROMISES)).cumsum(0)
    violated = np.zeros(PROMISES, dtype=bool)
    naive = np.zeros(PROMISES, dtype=bool)
    for step, counts in enumerate(steps, 1):
        violated |= anytime_p_values(counts, 20 * step, DELTA).at_most <= LEVEL
        naive |= exact_p_values(counts, 20 * step, DELTA).at_most <= LEVEL
    most = binom.ppf(0.999, PROMISES, LEVEL)
    assert violated.sum() <= most
    assert naive.sum() > most  # exact tests do not allow to look again and again: the test can fail


def test_verdicts_of_twelve_heads_are_corrected_together():
    """Of 2000 tables of 12 heads whose promises hold with equality, few have any head that is violated."""
    counts = np.random.default_rng(1).binomial(TRIALS, DELTA, size=(PROMISES, 12))
    p = exact_p_values(counts, TRIALS, DELTA)
    tables = [verdicts(PValues(*pair), 0.95) for pair in zip(p.at_most, p.above, strict=True)]
    wrong = sum((table == "violated").any() for table in tables)
    assert wrong <= binom.ppf(0.999, PROMISES, LEVEL)
    assert ((p.at_most <= LEVEL).any(1)).sum() > 3 * wrong  # uncorrected


def test_an_error_twice_as_frequent_as_promised_is_detected():
    """The power within 2000 trials, at the rate of the one-sided rule."""
    for p_values in (exact_p_values, anytime_p_values):
        counts = np.arange(2001)
        detected = p_values(counts, 2000, DELTA).at_most <= LEVEL / 12
        assert binom.pmf(counts, 2000, 0.099)[detected].sum() > 0.99


def test_confidence_sequences_hold_at_all_times_together():
    generator = np.random.default_rng(2)
    for p in (0.02, 0.4):
        counts = generator.binomial(10, p, size=(60, 1000)).cumsum(0)
        missed = np.zeros(1000, dtype=bool)
        for step, some in enumerate(counts, 1):
            low, high = confidence_sequence(some, 10 * step, 0.9)
            assert (low <= some / (10 * step)).all() and (some / (10 * step) <= high).all()
            missed |= (p < low) | (p > high)
        assert missed.sum() <= binom.ppf(0.999, 1000, 0.1)


def test_holm_is_the_sequential_procedure():
    """Against the definition: reject the smallest p-values as long as the k-th is at most α/(m - k + 1)."""
    generator = np.random.default_rng(3)
    for _ in range(50):
        p = generator.random(7) ** 3
        for level in (0.05, 0.2):
            rejected = np.zeros(7, dtype=bool)
            for place, index in enumerate(np.argsort(p)):
                if p[index] > level / (7 - place):
                    break
                rejected[index] = True
            np.testing.assert_array_equal(holm(p) <= level, rejected)
    adjusted = holm([[0.01, np.nan], [0.02, 0.5]])
    np.testing.assert_allclose(adjusted, [[0.03, np.nan], [0.04, 0.5]])


def moments(x):
    return x.mean(0), (x**2).mean(0), (x**3).mean(0), len(x)


def test_bias_is_measured_in_standard_errors():
    x = np.random.default_rng(4).normal(0.3, 2.0, size=(4000, 3))
    x = np.concatenate([x, 2 * x.mean(0) - x])  # without skewness
    np.testing.assert_allclose(bias_z(*moments(x)), x.mean(0) / (x.std(0, ddof=1) / np.sqrt(len(x))), rtol=1e-9)
    assert np.isnan(bias_z([0.0], [0.0], [0.0], 9)).all() and np.isnan(bias_z([1.0], [1.0], [1.0], 1)).all()
    assert np.isposinf(bias_z([0.5], [0.25], [0.125], 9)).all()


def test_skewed_estimates_without_bias_are_called_biased_no_more_often_than_stated():
    """Lognormal weights with mean 1: the plain t-test calls twice as many of them biased as it says."""
    x = np.random.default_rng(5).lognormal(-0.5, 1.0, size=(300, 4000)) - 1
    for_t = x.mean(0) / (x.std(0, ddof=1) / np.sqrt(300))
    plain, corrected = (float((np.abs(z) > 2.576).mean()) for z in (for_t, bias_z(*moments(x))))
    assert corrected < 0.016 < 0.02 < plain


def test_impossible_counts_are_refused():
    for counts, trials, delta in (([3], 2, 0.1), ([-1], 2, 0.1), ([0], 0, 0.1), ([1], 2, 0.0), ([1], 2, 1.0)):
        with pytest.raises(UsageError):
            exact_p_values(counts, trials, delta)
        with pytest.raises(UsageError):
            confidence_sequence(counts, trials, delta)


@pytest.mark.parametrize("error", [3.1e-8, -0.7, 2.2e-16])
@pytest.mark.parametrize("trials", [2, 60, 1000])
def test_equal_errors_have_no_finite_z_whatever_rounding_makes_of_their_powers(error, trials):
    means = (sum([error**power] * trials) / trials for power in (1, 2, 3))
    assert bias_z(*means, trials) == np.copysign(np.inf, error)
