"""The sentence above a table: the best mean at each d, and what the test says of the next one."""

import pytest
from error_records import cell
from error_rows import as_rows, shown_of

from attnprobe.compare.runs import compare_runs
from attnprobe.frame.rows import YARDSTICKS
from attnprobe.methods import METHODS

HEADS = 12


def relative(record, errors):
    """The record with these relative errors."""
    return {**record, "metrics": {**record["metrics"], "output_spectral_relative": errors}, "draws_hash": None}


def records(methods, d=(16, 32), layers=(0,)):
    """Cells whose relative errors are the method's number, or its numbers, over d / 16."""
    return [
        relative(
            cell(name, one, range(HEADS), layer=layer),
            [value * 16 / one for value in (size if isinstance(size, list) else [size] * HEADS)],
        )
        for layer in layers
        for name, size in methods.items()
        for one in d
    ]


def best(some):
    return [(duel["d"], duel["method"], duel["next"]["method"], duel["verdict"]) for duel in shown_of(some).duels]


def test_each_budget_has_its_best_and_the_sentence_says_so():
    some = records({"skyformer": 0.5, "linformer": 3.0})
    assert best(some) == [(16, "skyformer", "linformer", "better"), (32, "skyformer", "linformer", "better")]
    (grid,) = shown_of(some).tables
    assert grid.sentence.startswith("Smallest mean error: skyformer at d = 16 (better than linformer, p = ")


def test_a_mean_that_the_test_does_not_support_is_not_called_better():
    some = records({"skyformer": [0.5] * 7 + [0.9] * 5, "linformer": [0.6] * 7 + [0.7] * 5}, d=(16,))
    assert best(some) == [(16, "linformer", "skyformer", "undecided")]
    (grid,) = shown_of(some).tables
    assert "not told apart from skyformer" in grid.sentence
    cells = as_rows(some)
    (row,) = compare_runs(cells, cells, pairs=["linformer=skyformer"]).rows
    (duel,) = shown_of(some).duels
    assert (duel["value"], duel["next"]["value"], duel["p"]) == (row["a"], row["b"], row["p"])


def test_a_bound_is_never_the_best():
    """topk reads the largest keys, and svd is the best matrix of its rank."""
    some = records({"topk": 0.1, "svd": 0.2, "skyformer": 0.5, "linformer": 3.0}, d=(16,))
    assert best(some) == [(16, "skyformer", "linformer", "better")]
    (grid,) = shown_of(some).tables
    assert [line[0].value for line in grid.cells if any(one.bold for one in line)] == ["skyformer"]
    assert {name for name, one in METHODS.items() if "diagnostic" in one.tags} == YARDSTICKS


@pytest.mark.parametrize(
    ("rows", "leads"),
    [
        ({"bad_rows": 3}, "linformer"),
        ({"bad_rows": 3, "guarded_rows": 3}, "skyformer"),
        ({"rounded_rows": 1}, "linformer"),  # a mean that rounding decides
        ({"realised_d": 16.5}, "skyformer"),
        ({"realised_d": 17}, "linformer"),
    ],
)
def test_a_line_with_a_sign_is_not_the_best(rows, leads):
    some = records({"skyformer": 0.5, "linformer": 0.51, "mss": 3.0}, d=(16,))
    some[0]["metrics"] |= {name: [count] * HEADS for name, count in rows.items()}
    assert best(some)[0][1] == leads


def test_of_several_layers_all_together_stand_first():
    shown = shown_of(records({"skyformer": 0.5, "linformer": 3.0}, d=(16,), layers=(0, 5)))
    assert [duel["layer"] for duel in shown.duels] == [None, 0, 5]
    (grid,) = shown.tables
    assert grid.sentence.count("skyformer at d = 16") == 1
