"""The sentence of result: what it says of a run, and that it is honest about ties, V-Mean and lost rows."""

from __future__ import annotations

from error_records import cell

from attnprobe.experiments.error.result import error_result
from attnprobe.experiments.error.rows import summarise


def records(methods, d=(16, 32), layers=(0,), vmean=1.0):
    """A record for each method, budget and layer, whose relative errors are the method's number over d / 16."""
    found = []
    for layer in layers:
        for name, size in methods.items():
            found += [relative(cell(name, one, layer=layer), size * 16 / one) for one in d]
        found.append(relative(cell("vmean", None, layer=layer), vmean))
    return found


def relative(record, value):
    heads = len(record["heads"])
    metrics = {**record["metrics"], "output_spectral_relative": [value] * heads}
    metrics = {name: values for name, values in metrics.items() if name not in ("rounded_rows", "bad_rows")}
    return {**record, "metrics": metrics}


def said(some):
    return error_result(summarise(some)[0])


def test_the_best_method_at_every_d_beside_v_mean():
    text = said(records({"skyformer": 0.5, "linformer": 3.0}))
    assert text.startswith("skyformer has the smallest median error at every d; at d = 32 it is 0.25 of ‖BV‖₂")
    assert "0.25 of V-Mean's median" in text and "Worse than V-Mean at d = 32: linformer." in text


def test_what_is_best_at_one_d_alone_is_not_said_of_every_d():
    some = records({"skyformer": 0.5, "linformer": 0.6})
    some[0] = relative(some[0], 0.9)
    assert said(some).startswith("skyformer has the smallest median error at d = 32: 0.25 of ‖BV‖₂")


def test_values_that_differ_by_less_than_five_per_cent_are_not_told_apart():
    text = said(records({"skyformer": 0.50, "linformer": 0.51}))
    assert text.startswith("skyformer and linformer have the smallest median errors at d = 32 and differ by less")
    assert "Worse" not in text


def test_one_method_is_best_of_none():
    assert said(records({"skyformer": 0.5})).startswith("skyformer: at d = 32 the median error is 0.25 of ‖BV‖₂")


def test_several_tables_are_counted_with_their_ties():
    some = records({"skyformer": 0.5, "linformer": 0.9}, layers=(0, 1)) + records({"a": 1.0, "b": 1.01}, layers=(2,))
    text = said(some)
    assert text == "skyformer has the smallest median error at the largest d in 2 of 3 tables, 1 is a tie."


def test_rows_without_a_number_are_said():
    some = [*records({"skyformer": 0.5}), cell("linformer", 16, status="failed", metrics={})]
    assert said(some).endswith("Failed or diverged: linformer d = 16.")
    assert said(some[-1:]) == "Failed or diverged: linformer d = 16."
