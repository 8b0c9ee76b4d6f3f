"""Statistics of row metrics over the rows of a head, and their profile over positions."""

import math

import pytest
import torch

from attnprobe.metrics import over_rows, position_profile


def test_a_profile_is_a_mean_over_the_queries_of_a_bucket():
    actual = {"mass": torch.tensor([[0.0, 1.0, 2.0, 3.0, math.nan, 7.0]], dtype=torch.float64)}
    keys, profile = position_profile(actual, torch.tensor([0, 1, 2, 3, 6, 100]))
    assert keys == [1, 2, 4, 64] and profile == {"mass": [[0.0, 1.5, 3.0, 7.0]]}


def test_values_over_rows_leave_out_what_is_not_finite():
    rows = torch.tensor([[1.0, 3.0, math.inf, math.nan], [math.nan] * 4], dtype=torch.float64)
    values = over_rows({"log_normaliser_error": rows, "row_error": rows})
    assert values["log_normaliser_error"][0] == 2 and values["log_normaliser_error_sd"][0] == 1
    assert values["row_error_p90"][0] == pytest.approx(2.8) and values["row_error_max"][0] == 3
    assert all(value[1].isnan() for value in values.values())


@pytest.mark.parametrize("missing, expected", [(1.0, 2.0), (math.nan, math.nan), (math.inf, math.inf)])
@pytest.mark.parametrize("metric", ["kl", "js"])
def test_a_divergence_is_over_every_row_of_a_head(metric, missing, expected):
    rows = torch.tensor([[math.nan, 3.0, 2.0, missing], [math.nan, 1.0, 1.0, 1.0]], dtype=torch.float64)
    support = torch.tensor([[math.nan, 1.0, 1.0, 1.0]] * 2, dtype=torch.float64)  # the first row is padding
    values = over_rows({metric: rows, "support": support})
    assert values[metric].tolist() == pytest.approx([expected, 1.0], nan_ok=True)
    assert values["support"].tolist() == [1.0, 1.0]
