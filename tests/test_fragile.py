"""Statistics that heads with rounded rows carry, and how tables, figures and gates show it."""

from __future__ import annotations

import pytest

from attnprobe.tables.statistics import FRAGILE, STATISTICS, describe, doubtful_heads, fragile_statistics

ALL = list(STATISTICS[:-1])
SOUND = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0]


def cell(values, bad, metric="output_spectral", window=0, **metrics):
    return {
        "heads": list(range(len(values))),
        "window": window,
        "metrics": {metric: values, "rounded_rows": bad} | metrics,
    }


def with_rounded(value, doubtful=1):
    """Eleven heads between 1 and 2, and heads of one value whose rows are bad."""
    return cell([*SOUND, *[value] * doubtful], [0.0] * len(SOUND) + [90.0] * doubtful)


@pytest.mark.parametrize("value", [90.0, 120.0])  # as one head gives on other machines
def test_a_head_with_rounded_rows_carries_the_mean_and_the_maximum_alone(value):
    assert fragile_statistics([with_rounded(value)], "output_spectral") == ["mean", "max"]


@pytest.mark.parametrize("value", [1.0, 1.55, 2.0])
def test_a_head_with_rounded_rows_within_the_range_of_the_others_carries_nothing(value):
    assert fragile_statistics([with_rounded(value)], "output_spectral") == []


def test_heads_without_bad_rows_carry_nothing_however_large():
    assert fragile_statistics([cell([*SOUND, 900.0], [0.0] * 12)], "output_spectral") == []


@pytest.mark.parametrize(
    ("doubtful", "expected"),
    [
        (1, ["mean", "max"]),
        (2, ["mean", "p90", "max"]),
        (10, ["mean", "p90", "max"]),
        (11, ["mean", "median", "p90", "max"]),
        (12, ["mean", "median", "p90", "max"]),
    ],
)
def test_quantiles_are_carried_once_enough_heads_have_rounded_rows(doubtful, expected):
    assert fragile_statistics([with_rounded(90.0, doubtful)], "output_spectral") == expected


def test_the_standard_error_is_carried_by_a_window_with_rounded_rows():
    cells = [cell(SOUND, [0.0] * 11), cell([*SOUND[:-1], 90.0], [0.0] * 10 + [3.0], window=1)]
    assert fragile_statistics(cells, "output_spectral") == ["mean", "se", "max"]


def test_where_all_heads_have_rounded_rows_no_statistic_is_reproducible():
    cells = [cell([1.0, 2.0], [1.0, 2.0], window=window) for window in range(2)]
    assert fragile_statistics(cells, "output_spectral") == ALL
    assert fragile_statistics(cells[:1], "output_spectral") == [name for name in ALL if name != "se"]


@pytest.mark.parametrize(("by", "expected"), [(0.99, []), (1.01, ["max"])])
def test_the_share_from_which_on_a_statistic_is_fragile(by, expected):
    top = 2.0 / (1 - by * FRAGILE)
    assert fragile_statistics([with_rounded(top)], "output_spectral") == expected


def test_a_smallest_cosine_is_carried_from_below():
    values = [0.9] * 5 + [-0.6]
    assert fragile_statistics([cell(values, [0] * 5 + [3], "output_cosine_min")], "output_cosine_min") == [
        "mean",
        "p10",
    ]


@pytest.mark.parametrize("metric", ["bad_rows", "inverse_residual", "visited_fraction", "delta", "kernel_spectral"])
def test_metrics_that_no_normaliser_divides_are_never_fragile(metric):
    assert fragile_statistics([cell([*SOUND, 900.0], [0.0] * 11 + [9.0], metric)], metric) == []


def test_values_that_are_not_finite_and_absent_metrics_count_for_nothing():
    one = cell([*SOUND, None, float("inf")], [0.0] * 11 + [9.0, 9.0])
    assert fragile_statistics([one], "output_spectral") == []
    assert fragile_statistics([one], "matrix_spectral") == []
    assert fragile_statistics([{"metrics": None}], "output_spectral") == []
    assert fragile_statistics([], "output_spectral") == []


def test_a_fragile_statistic_differs_between_two_runs_and_the_others_agree():
    """The bad head's error moves by a fifth, as with another number of threads; nothing that is not named moves."""
    runs = [[with_rounded(value)] for value in (90.0, 108.0)]
    named = fragile_statistics(runs[0], "output_spectral")
    one, other = (describe(run[0]["metrics"]["output_spectral"], [0] * 12) for run in runs)
    assert [name for name in ALL if one[name] != other[name]] == named


def test_bad_rows_alone_make_no_head_doubtful():
    one = cell([*SOUND, 90.0], [0.0] * 12, bad_rows=[0.0] * 11 + [90.0])
    assert fragile_statistics([one], "output_spectral") == []


def test_doubtful_heads():
    assert doubtful_heads(cell([1.0, 1.0, 1.0], [0.0, 2.0, None])) == [False, True, False]
    assert doubtful_heads({"metrics": {"output_spectral": [1.0], "bad_rows": [3.0]}}) == []
