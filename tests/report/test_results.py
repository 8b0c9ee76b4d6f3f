"""The sentence of result and bold cells: what a paired test says, and honesty about V-Mean and lost rows."""

import pytest
from error_records import cell

from attnprobe.compare.contest import Contest
from attnprobe.compare.runs import compare_runs
from attnprobe.experiments.error.result import error_result
from attnprobe.experiments.error.view import error_tables, summarise
from attnprobe.experiments.inject.view import DRIFTS
from attnprobe.methods import METHODS
from attnprobe.tables.methods import YARDSTICKS, rivals
from attnprobe.tables.results import UNTESTED, Value, best_of

HEADS = 12


def records(methods, d=(16, 32), layers=(0,), vmean=1.0):
    """A record for each method, budget and layer, whose relative errors are the method's number over d / 16."""
    actual = []
    for layer in layers:
        for name, size in methods.items():
            actual += [relative(cell(name, one, range(HEADS), layer=layer), size * 16 / one) for one in d]
        actual.append(relative(cell("vmean", None, range(HEADS), layer=layer), vmean))
    return actual


def relative(record, value):
    """The record with this relative error in every head, or with these errors."""
    errors = value if isinstance(value, list) else [value] * len(record["heads"])
    metrics = {**record["metrics"], "output_spectral_relative": errors}
    metrics = {name: values for name, values in metrics.items() if name not in ("rounded_rows", "bad_rows")}
    return {**record, "metrics": metrics, "source": {}}


def sentence(some):
    return error_result(summarise(some)[0], Contest(some, "error"))


def test_the_best_method_at_every_d_beside_v_mean():
    text = sentence(records({"skyformer": 0.5, "linformer": 3.0}))
    assert text.startswith("skyformer has the smallest mean error at every d; at d = 32 it is 0.25 of ‖BV‖₂")
    assert "0.25 of V-Mean's mean" in text and "Worse than V-Mean at d = 32: linformer." in text


def test_a_method_with_a_lost_head_is_not_worse_than_v_mean_but_diverged():
    some = records({"skyformer": 0.5, "linformer": 0.5, "mss": 0.6})
    some[3] = relative(some[3], [0.25] * 11 + [None])
    some[3]["metrics"]["output_spectral"] = [1.0] * 11 + [None]
    text = sentence(some)
    assert "Worse" not in text and text.endswith("Failed or diverged: linformer d = 32.")


def test_what_is_best_at_one_d_alone_is_not_said_of_every_d():
    some = records({"skyformer": 0.5, "linformer": 0.6})
    some[0] = relative(some[0], 0.9)
    best = "linformer has the smallest mean error at d = 16, skyformer at d = 32; at d = 32 skyformer has 0.25 of ‖BV‖₂"
    assert sentence(some).startswith(best)


def test_a_mean_that_the_paired_test_does_not_support_is_no_winner():
    """Twelve heads of which seven are better and five worse; then all are better."""
    some = records({"skyformer": 0.50, "linformer": 0.60}, d=(16,))
    some[0], some[1] = relative(some[0], [0.5] * 7 + [0.9] * 5), relative(some[1], [0.6] * 7 + [0.7] * 5)
    text = sentence(some)
    assert text.startswith("linformer has the smallest mean error at d = 16: 0.64 of ‖BV‖₂")
    assert "; skyformer is not shown to be over 5 % worse." in text
    some[1] = relative(some[1], [0.6] * 7 + [1.1] * 5)
    assert sentence(some).startswith("skyformer has the smallest mean error at d = 16")
    assert "distinguishable" not in sentence(some)


def test_two_heads_allow_no_test_and_nothing_is_bold():
    some = [relative(cell(name, 16), size) for name, size in (("skyformer", 0.5), ("linformer", 3.0))]
    assert bold(some) == [] and sentence(some).endswith(f"; {UNTESTED}.")
    assert sentence(some).startswith("skyformer has the smallest mean error at d = 16")
    assert compare_runs(some, some, pairs=["skyformer=linformer"]).rows[0]["verdict"] == "undecided"


def test_a_bound_is_never_the_best():
    """topk reads the largest keys, and svd is the best matrix of its rank: they stand in the table, not in bold."""
    some = records({"topk": 0.1, "svd": 0.2, "skyformer": 0.5, "linformer": 3.0}, d=(16,))
    assert bold(some) == ["skyformer"]
    assert sentence(some).startswith("skyformer has the smallest mean error at d = 16")
    assert {name for name, one in METHODS.items() if "diagnostic" in one.tags} == YARDSTICKS


def marked(record, **metrics):
    """The record with these counts of rows in every head."""
    heads = len(record["heads"])
    return {**record, "metrics": {**record["metrics"], **{name: [count] * heads for name, count in metrics.items()}}}


def test_a_row_with_a_mark_is_not_the_best():
    """Bad rows that no guard replaced are marked !, and the table does not make the row's cells bold."""
    some = records({"skyformer": 0.5, "linformer": 0.51, "mss": 3.0}, d=(16,))
    assert sentence(some).startswith("skyformer has the smallest mean error at d = 16")
    bad = [marked(some[0], bad_rows=3), *some[1:]]
    row = next(row for row in summarise(bad)[0] if row["method"] == "skyformer")
    assert rivals(row) is None
    text = sentence(bad)
    assert text.startswith("linformer has the smallest mean error at d = 16: 0.51 of ‖BV‖₂")
    assert text.endswith("Worse than V-Mean at d = 16: mss. Not ranked where they have bad rows: skyformer.")
    assert sentence([marked(some[0], bad_rows=3, guarded_rows=3), *some[1:]]) == sentence(some)
    rounded = [marked(some[0], rounded_rows=1), *some[1:]]  # a mean that rounding decides
    assert sentence(rounded).startswith("linformer has the smallest mean error at d = 16")
    every = [marked(one, bad_rows=3) for one in some[:3]]
    assert sentence([*every, some[3]]).startswith("No method has a sound mean error at d = 16: see the notes.")
    assert sentence([bad[0], some[3]]).startswith("skyformer at d = 16: the mean error is 0.50 of ‖BV‖₂")
    tables = bad + records({"skyformer": 0.5, "linformer": 0.9}, d=(16,), layers=(1,))
    assert sentence(tables) == (
        "linformer alone has the smallest mean error in 1 of 2 tables, skyformer in 1. "
        "Not ranked where they have bad rows: skyformer."
    )
    lost = [*every, some[3]] + records({"skyformer": 0.5, "linformer": 0.9}, d=(16,), layers=(1,))
    assert sentence(lost) == (
        "skyformer alone has the smallest mean error in 1 of 1 tables. "
        "Not ranked where they have bad rows: skyformer, linformer and mss."
    )
    assert "Not ranked" not in sentence([bad[0], some[3]])


def test_single_values_tie_within_five_per_cent():
    values = {"a": Value(1.0), "b": Value(1.04), "c": Value(1.06)}
    assert best_of(values) == ["a", "b"]
    assert best_of({name: Value(one.value, 0.0) for name, one in values.items()}) == ["a"]


def bold(some):
    """The methods whose mean is bold in the table of errors; no other column of it is judged."""
    (table,) = error_tables(summarise(some)[0], [], tested=Contest(some, "error"))
    names = {table.columns[column].name for _, column in table.best}
    assert names <= {"mean", "‖E‖₂"}, names
    return [table.lines[line][0] for line, column in sorted(table.best) if table.columns[column].name == "mean"]


def test_the_table_and_compare_state_one_number():
    """The median and the mean disagree here: compare judges the mean, which the table shows and makes bold."""
    some = [
        relative(cell("a", 16, range(HEADS)), [0.3] * 7 + [1.5] * 5),
        relative(cell("b", 16, range(HEADS)), [0.31] * 7 + [0.41] * 5),
        relative(cell("c", 16, range(HEADS)), [2.0] * HEADS),
    ]
    (table,) = error_tables(summarise(some)[0], [], tested=Contest(some, "error"))
    place = table.headings.index("mean")
    means = dict(zip((line[0] for line in table.lines), (line[place] for line in table.lines), strict=True))
    (row,) = compare_runs(some, some, pairs=["a=b"]).rows
    assert [means["a"], means["b"]] == [f"{row['a']:.3f}", f"{row['b']:.3f}"] == ["0.800", "0.352"]
    assert bold(some) == ["a", "b"] and row["verdict"] == "undecided"


@pytest.mark.parametrize(
    ("errors", "winners"),
    [
        ({"a": [0.50] * HEADS, "b": [0.51] * HEADS, "c": [0.9] * HEADS}, ["a", "b"]),  # within the tolerance
        ({"a": [0.50] * HEADS, "b": [0.53] * HEADS, "c": [0.9] * HEADS}, ["a"]),
        ({"a": [0.5, 0.9] * 6, "b": [0.8, 0.7] * 6, "c": [1.3, 1.7] * 6}, ["a", "b"]),  # six heads against six
    ],
)
def test_bold_cells_and_the_sentence_say_what_compare_says(errors, winners):
    some = [relative(cell(name, 16, range(HEADS)), values) for name, values in errors.items()]
    assert bold(some) == winners
    best, *alike = sorted(winners, key=lambda name: sum(errors[name]))
    assert sentence(some).startswith(f"{best} has the smallest mean error at d = 16")
    assert all(f"; {name} is not shown to be over 5 % worse." in sentence(some) for name in alike)
    others = [name for name in errors if name != best]
    rows = compare_runs(some, some, pairs=[f"{best}={name}" for name in others]).rows
    assert [row["method"][-1] for row in rows if row["verdict"] != "worse"] == alike
    some[0] = marked(some[0], bad_rows=3)
    assert bold(some) == ["b"] and sentence(some).startswith("b has the smallest mean error at d = 16")


def test_a_cosine_ties_by_its_distance_from_one():
    column = next(column for column in DRIFTS if column.title == "cosine")
    rows = [{"metrics": {"embedding_cosine": {"mean": one, "se": None}}} for one in (0.9900, 0.9896, 0.98)]
    (leaders,) = column.best.leaders(rows, lambda row: 0)
    assert leaders.places == [0, 1]


def test_one_method_is_best_of_none():
    assert sentence(records({"skyformer": 0.5})).startswith("skyformer at d = 32: the mean error is 0.25 of ‖BV‖₂")


def test_several_tables_are_counted_with_their_ties():
    some = records({"skyformer": 0.5, "linformer": 0.9}, layers=(0, 1)) + records({"a": 1.0, "b": 1.0}, layers=(2,))
    text = sentence(some)
    assert text == "skyformer alone has the smallest mean error in 4 of 6 cases (table, d); in 2 no method is alone."


def test_methods_without_a_budget_are_not_counted_as_a_d():
    """They compete with one another alone, so one was the best "at d = None"."""
    some = records({"skyformer": 0.5, "linformer": 0.9}) + [relative(cell("linear", None, range(HEADS)), 0.1)]
    assert sentence(some).startswith("skyformer has the smallest mean error at every d;")
    several = some + [{**one, "layer": 3} for one in some]
    assert sentence(several).startswith("skyformer alone has the smallest mean error in 4 of 4 cases (table, d).")


def test_rows_without_a_number_are_sentence():
    some = [*records({"skyformer": 0.5}), cell("linformer", 16, status="failed", metrics={})]
    assert sentence(some).endswith("Failed or diverged: linformer.")
    assert sentence(some[-1:]) == "Failed or diverged: linformer."
