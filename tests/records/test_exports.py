"""Plans of budgets in the formats of other software, read as their code reads them."""

import io

import numpy as np
import pytest

from attnprobe.errors import UsageError
from attnprobe.records.budgets import Budgets, duo_attention_heads, kvpress_ratios, minference_pattern

KEYS = {(0, 0): 10, (0, 1): 10, (0, 2): 40, (0, 3): 40, (1, 0): 5, (1, 1): 5, (1, 2): 1, (1, 3): 1}
PLAN = Budgets("h2o", {}, KEYS, {"prompt": 50, "kv_heads": 2})


def test_kvpress_drops_a_share_of_each_kv_head():
    assert np.allclose(kvpress_ratios(PLAN), [[0.8, 0.2], [0.9, 0.98]])


def test_duo_attention_reads_a_line_for_each_layer():
    read = np.clip(np.loadtxt(io.StringIO(duo_attention_heads(PLAN)), dtype=float, delimiter="\t"), 0, 1)
    assert np.allclose(read, [[0.2, 0.8], [0.1, 0.02]])


def test_minference_reads_columns_and_diagonals_of_each_query_head():
    pattern = minference_pattern(PLAN)
    assert [list(layer) for layer in pattern] == [["0", "1", "2", "3"]] * 2
    assert pattern[0]["2"] == ["vertical_and_slash", 20, 20, 1.0] and pattern[1]["0"][1:3] == [2, 3]
    assert pattern[1]["3"][1:3] == [1, 1]


@pytest.mark.parametrize("about", [{}, {"prompt": 50}, {"kv_heads": 2}])
def test_budgets_of_no_plan_are_refused(about):
    with pytest.raises(UsageError, match="the budgets are of no plan"):
        kvpress_ratios(Budgets("h2o", {}, KEYS, about))


def test_a_plan_of_some_layers_is_refused():
    some = {place: d for place, d in KEYS.items() if place != (0, 3)}
    with pytest.raises(UsageError, match="lacks layer 0, head 3"):
        minference_pattern(Budgets("h2o", {}, some, PLAN.about))
