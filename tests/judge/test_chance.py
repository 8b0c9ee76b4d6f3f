"""How often `compare` flags runs without a change, and how often it finds a planted one.

`benchmarks/chance.py` simulates the runs and states its model; here are few of its pairs, with bands that follow from
their number.

    pytest -m slow tests/compare/test_compare_calibration.py     # 400 pairs of runs for every noise
"""

import sys
from importlib import import_module

import numpy as np
import pytest
from frames import compared as compare_runs
from paths import ROOT
from scipy.stats import binom

from attnprobe.judge.chance import EXACT, LEVEL, RESAMPLES, holm
from attnprobe.judge.chance import of_heads as over_pairs
from attnprobe.judge.chance import of_windows as over_windows

METRIC = "output_spectral_relative"
SURE = 1e-4  # the probability that a right level falls out of its band
NOISES = (
    "draws, 2 %",
    "draws, 10 %",
    "skewed draws, 2 %",
    "draws that heads share (`share_heads`), 2 %",
    "other windows",
)


@pytest.fixture
def chance(monkeypatch):
    """The benchmark."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "chance", raising=False)
    return import_module("chance")


def records(errors, run, noise):
    """A run's records of errors (rows, windows, heads)."""
    return [
        {
            "method": "any",
            "options": {"share_heads": True} if noise.declared else {},
            "target": "softmax",
            "n": 64,
            "d": row + 1,
            "layer": 0,
            "heads": list(range(errors.shape[2])),
            "window": window + (1000 * run if noise.apart else 0),
            "seed": run,
            "draws_hash": f"{run}",
            "status": "ok",
            "source": {},
            "metrics": {METRIC: errors[row, window].tolist()},
        }
        for row in range(errors.shape[0])
        for window in range(errors.shape[1])
    ]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("windows", [1, 2, 3])
def test_compare_takes_the_tests_that_are_simulated(chance, noise, windows):
    noise = chance.NOISES[noise]
    a, b = chance.drawn(noise, windows, 0.03, np.random.default_rng(0))
    rows = compare_runs(records(a, 0, noise), records(b, 1, noise), tolerance=0.0).rows
    simulated = [chance.evidence(noise, *row).p for row in zip(a, b, strict=True)]
    assert len(rows) == chance.MOST_ROWS
    if None in simulated:
        assert {row["p"] for row in rows} == {None} and windows == 1 and (noise.declared or noise.apart)
        assert {row["verdict"] for row in rows} == {"undecided"}
        return
    assert [row["p"] for row in rows] == pytest.approx(simulated, rel=1e-9)
    assert [row["p_adjusted"] for row in rows] == pytest.approx(holm(simulated), rel=1e-9)
    for row in rows:
        expected = "worse" if row["b"] > row["a"] else "better"
        assert row["verdict"] == (expected if row["p_adjusted"] <= LEVEL else "undecided")


@pytest.mark.parametrize("windows", [1, 2])
def test_runs_without_a_change_are_rarely_flagged(chance, windows):
    """Of 25 pairs of runs 275 rows, and 25 tables of 11 rows: within the binomial bands of the level."""
    pairs, rng = 25, np.random.default_rng([2, windows])
    noise = chance.NOISES["skewed draws, 2 %"]
    p = np.array([chance.tested(noise, windows, 0.0, rng)[0] for _ in range(pairs)])
    low, high = binom.ppf([SURE / 2, 1 - SURE / 2], p.size, LEVEL)
    assert low <= (p <= LEVEL).sum() <= high
    tables = [min(holm(row)) <= LEVEL for row in p]
    assert sum(tables) <= binom.ppf(1 - SURE, pairs, LEVEL)


def test_a_change_is_found_more_often_with_two_windows(chance):
    """A change as large as the noise of a draw, within four standard errors of what 1000 pairs of runs give."""
    noise, found = chance.NOISES["draws, 10 %"], []
    for windows, expected in ((1, 0.63), (2, 0.90)):
        rng = np.random.default_rng([1, windows])
        of_pairs = [np.mean(chance.tested(noise, windows, 0.1, rng)[0] <= LEVEL) for _ in range(15)]
        found.append(np.mean(of_pairs))
        assert abs(found[-1] - expected) <= 4 * np.std(of_pairs, ddof=1) / len(of_pairs) ** 0.5
    assert found[0] < found[1]


def test_a_change_beyond_the_noise_is_found_in_every_table(chance):
    for windows in (1, 2, 3):
        assert [found for _, _, found in chance.shares(chance.NOISES["draws, 2 %"], windows, 3)] == [100.0] * 3


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_400_pairs_of_runs_reach_the_goals_of_the_benchmark(chance, noise):
    of_windows = {
        windows: {rows: rest for rows, *rest in chance.shares(chance.NOISES[noise], windows, 400, seed=1)}
        for windows in (1, 2, 3, 4, 8)
    }
    goals = chance.goals_of(noise, chance.NOISES[noise], of_windows, 400)
    assert goals and not any(goal.missed for goal in goals)


def test_the_test_of_pairs_is_that_of_scipy():
    from scipy.stats import permutation_test

    rng = np.random.default_rng(0)
    for pairs, statistic in ((5, np.mean), (8, np.median), (12, np.mean)):
        x, y = rng.normal(size=(2, pairs))
        expected = permutation_test(
            (x, y),
            lambda a, b, axis, of=statistic: of(b, axis=axis) - of(a, axis=axis),
            permutation_type="samples",
            n_resamples=2**pairs,
        ).pvalue
        assert over_pairs(x, y, statistic).p == pytest.approx(expected, rel=1e-12)


def test_the_exchange_of_all_pairs_changes_as_much_whatever_the_rounding():
    rng = np.random.default_rng(0)
    for pairs in (3, 7, 12):
        for x in rng.normal(size=(20, pairs)):
            assert over_pairs(x, x + 1 + rng.random(pairs)).p == 2 / 2**pairs


def test_of_many_pairs_some_exchanges_are_tried():
    """Of 18 pairs 2¹⁸ exchanges can still be counted: the estimate is within four of its standard errors."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, EXACT + 2))
    y += 0.5
    signs = 1 - 2 * (np.arange(2 ** len(x))[:, None] >> np.arange(len(x)) & 1)
    exact = np.mean(np.abs(signs @ (y - x)) >= abs((y - x).sum()) * (1 - 1e-12))
    assert 0.01 < exact < 0.5
    for statistic in (np.mean, lambda values, axis: np.mean(values, axis=axis)):  # the short way and the long one
        assert abs(over_pairs(x, y, statistic).p - exact) < 4 * np.sqrt(exact * (1 - exact) / RESAMPLES)
    x, y = rng.normal(size=(2, 40))
    assert over_pairs(x, y + 3).p == over_pairs(x, y + 3).least == 1e-4
    assert over_pairs(x, y).p == over_pairs(y, x).p > 0.05


def test_students_test_of_windows_is_that_of_scipy():
    from scipy.stats import ttest_1samp

    differences = [0.3, -0.1, 0.4, 0.2]
    expected = ttest_1samp(differences, 0.0)
    actual = over_windows(differences)
    assert (actual.p, actual.freedom) == (pytest.approx(expected.pvalue, rel=1e-12), 3)


def test_holms_method_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []
