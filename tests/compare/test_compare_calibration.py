"""How often `compare` flags runs without a change, and how often it finds a planted one.

The model of the records: the error of head h, window w and row r in a run is

    e = μ_r (1 + α_w + β_h + γ_wh) (1 + δ) + μ_r σ z,   α, β, γ, z normal with s.d. 0.3, 0.3, 0.1, 1,

where the effects of the text α, of the head β and of both γ are the same in both runs, and the noise of the draws z is
drawn anew in each. δ is 0 in A, and in B the planted change. The effects cancel in the paired differences, so each of
these tests has its level, but for the number of exchanges that 12 heads have.

    pytest -m slow tests/compare/test_compare_calibration.py     # 1500 pairs of runs for every number of windows
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, nct, t

from attnprobe.compare.chance import LEVEL, holm, over_heads, over_windows
from attnprobe.compare.runs import compare_runs

HEADS, ROWS, NOISE = 12, 4, 0.1
METRIC = "output_spectral_relative"
SURE = 1e-4  # the probability that a right level falls out of its band


def pairs(count, windows, change=0.0, seed=0):
    """Pairs of runs of the model, each as the records of A and of B."""
    rng = np.random.default_rng([seed, windows])
    for _ in range(count):
        text, head = 0.3 * rng.normal(size=(windows, 1)), 0.3 * rng.normal(size=(1, HEADS))
        both = 1 + text + head + 0.1 * rng.normal(size=(windows, HEADS))
        noise = NOISE * rng.normal(size=(2, ROWS, windows, HEADS))
        size = np.array([1, 1 + change])[:, None, None, None] * both + noise
        size = np.arange(1, ROWS + 1)[:, None, None] * size
        places = [(row, window) for row in range(ROWS) for window in range(windows)]
        yield tuple([record(*place, run, size[run][place]) for place in places] for run in (0, 1))


def record(row, window, seed, values):
    return {
        "method": "any",
        "options": {},
        "target": "softmax",
        "n": 64,
        "d": 8 * (row + 1),
        "layer": 0,
        "heads": list(range(HEADS)),
        "window": window,
        "seed": seed,
        "draws_hash": f"{seed}",
        "status": "ok",
        "source": {},
        "metrics": {METRIC: values.tolist()},
    }


def judged(count, windows, change=0.0, seed=0):
    """The p-values and the verdicts of all rows, (pairs, rows) each, where the tolerance lets nothing pass."""
    actual = [compare_runs(a, b, tolerance=0.0).rows for a, b in pairs(count, windows, change, seed)]
    p = np.array([[row["p"] for row in rows] for rows in actual])
    return p, np.array([[row["verdict"] for row in rows] for rows in actual])


def band(count, share):
    """How often an event of this probability happens in so many draws, but for `SURE`."""
    return binom.ppf(SURE / 2, count, share), binom.ppf(1 - SURE / 2, count, share)


def hold_their_level(count, windows, seed=0):
    p, verdicts = judged(count, windows, seed=seed)
    flagged = np.isin(verdicts, ("worse", "better"))
    low, high = band(p.size, LEVEL)
    assert low <= (p <= LEVEL).sum() <= high  # each row by itself: not above the level, nor far below
    assert flagged.any(1).sum() <= band(count, LEVEL)[1]  # a table as a whole
    assert set(verdicts[~flagged]) == {"undecided"}


def find_a_change(count, windows, seed=1):
    """A change of 10 % where the noise of one head is 10 %, too: by Student's test with its own power."""
    p, verdicts = judged(count, windows, change=0.1, seed=seed)
    actual = (p <= LEVEL).sum()
    if windows == 1:
        assert actual / p.size >= 0.45  # 0.57 is what many pairs give
    else:
        # the windows' differences are 0.1 (1 + α_w + mean of β and γ), with the noise of 2 x 12 draws
        size, spread = 0.1, np.hypot(0.1 * np.hypot(0.3, 0.1 / HEADS**0.5), NOISE * (2 / HEADS) ** 0.5)
        reach, shift = t.ppf(1 - LEVEL / 2, windows - 1), size / (spread / windows**0.5)
        power = nct.sf(reach, windows - 1, shift)
        assert abs(actual / p.size - power) < 0.04
    assert (verdicts == "worse").sum() > 0 and (verdicts == "better").sum() <= 0.01 * p.size


@pytest.mark.parametrize("windows", [1, 3])
def test_runs_without_a_change_are_rarely_flagged(windows):
    hold_their_level(40, windows)


@pytest.mark.slow
@pytest.mark.parametrize("windows", [1, 2, 3, 4, 8])
def test_1500_pairs_without_a_change_keep_the_level(windows):
    hold_their_level(1500, windows, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("windows", [1, 2, 3, 4, 8])
def test_a_change_of_a_tenth_is_found_with_the_power_of_the_test(windows):
    find_a_change(300, windows)


def test_a_change_of_a_tenth_is_found_over_the_heads():
    find_a_change(25, 1)


def test_the_test_over_heads_is_that_of_scipy():
    from scipy.stats import permutation_test

    rng = np.random.default_rng(0)
    for heads, statistic in ((5, np.mean), (8, np.median), (12, np.mean)):
        x, y = rng.normal(size=(2, heads))
        expected = permutation_test(
            (x, y),
            lambda a, b, axis, of=statistic: of(b, axis=axis) - of(a, axis=axis),
            permutation_type="samples",
            n_resamples=2**heads,
        ).pvalue
        assert over_heads(x, y, statistic).p == pytest.approx(expected, rel=1e-12)
    x, y = rng.normal(size=(2, 40))  # beyond what can be counted
    assert over_heads(x, y + 2).p == 1e-4 and over_heads(x, x + 1e-3 * y).p > 0.05
    assert over_heads(x, y).p == over_heads(x, y).p


def test_students_test_of_windows_is_that_of_scipy():
    from scipy.stats import ttest_1samp

    differences = [0.3, -0.1, 0.4, 0.2]
    expected = ttest_1samp(differences, 0.0)
    actual = over_windows(differences)
    assert (actual.p, actual.freedom) == (pytest.approx(expected.pvalue, rel=1e-12), 3)


def test_holms_method_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []
