"""Statistics of row metrics over the rows of a head, their profile over positions, and the overlap of selections."""

import math

import pytest
import torch
from inputs import make

from attnprobe import approximate
from attnprobe.errors import UsageError
from attnprobe.methods.selection.files import selected_keys
from attnprobe.metrics import neighbour_overlap, over_rows, position_profile, selection_overlap


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


def jaccard(a, b):
    a, b = set(a) - {-1}, set(b) - {-1}
    return len(a & b) / len(a | b) if a | b else 1.0


def test_it_is_the_jaccard_index_of_the_sets():
    qkv = make(n=30, h=3, score=3.0).replace(causal=True)
    first, second = (selected_keys(approximate(name, qkv, d)) for name, d in (("topk", 6), ("window", 9)))
    actual = selection_overlap(first, second)
    for head in range(3):
        for row in range(30):
            assert actual[head, row] == pytest.approx(jaccard(first[head, row].tolist(), second[head, row].tolist()))
    assert actual.shape == (3, 30) and 0 < actual.mean() < 1
    assert torch.equal(selection_overlap(first, first.flip(-1)), torch.ones(3, 30, dtype=torch.float64))


def test_neighbours_are_rows_that_follow_one_another():
    keys = torch.tensor([[[0, 1, 2], [2, 1, 5], [-1, -1, -1], [-1, -1, -1]]])
    actual = neighbour_overlap(keys)[0].tolist()
    assert actual[0] != actual[0] and actual[1:] == [0.5, 0.0, 1.0]


def test_sets_of_other_rows_are_refused():
    with pytest.raises(UsageError, match=r"sets are of \(1, 2\) heads and rows, the second of \(1, 3\)"):
        selection_overlap(torch.zeros(1, 2, 1), torch.zeros(1, 3, 1))
