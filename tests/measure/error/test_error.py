"""Lines of errors: statistics worked by hand, grouping, gates on certified intervals, formats read back."""

import csv
import io
import json
import math
import re
import statistics
from random import Random

import pytest
from error_records import a_run, cell
from error_rows import as_rows, judged, shown_of

from attnprobe.frame.records.file import LOWER_BOUND
from attnprobe.judge.gates import Gate, check
from attnprobe.judge.parse import parse_gate
from attnprobe.measure.error import EXPERIMENT

ERROR = "output_spectral"


def of_error(line):
    """The statistics of the error in a line that gates judge."""
    return {name.removeprefix(f"{ERROR}."): value for name, value in line.items() if name.startswith(f"{ERROR}.")}


def test_statistics_worked_by_hand():
    """Two windows of two heads and two repeats; window means 2 and 5, so s.e. = sd(2, 5)/√2 = 1.5."""
    records = [
        cell(window=0, repeat=0, values=[1.0, 3.0]),
        cell(window=0, repeat=1, values=[1.0, 3.0]),
        cell(window=1, repeat=0, values=[2.0, 8.0], seconds=0.75),
        cell(window=1, repeat=1, values=[4.0, 6.0], seconds=0.75),
    ]
    (row,) = judged(records)
    actual = of_error(row)
    assert actual["mean"] == 3.5
    assert actual["se"] == pytest.approx(statistics.stdev([2.0, 5.0]) / math.sqrt(2), rel=1e-15) == 1.5
    assert actual["median"] == 3.0  # of 1 1 2 3 3 4 6 8
    assert actual["p10"] == 1.0  # at position 0.7
    assert actual["p90"] == pytest.approx(6.6, rel=1e-15)  # at position 6.3
    assert (actual["max"], actual["count"]) == (8.0, 8)
    assert (row["seconds.mean"], row["seconds.se"]) == (0.5, 0.25)
    assert [row[name] for name in ("heads", "windows", "repeats", "cells", "values")] == [2, 2, 2, 4, 8]


def test_the_error_bar_does_not_shrink_with_heads_or_repeats():
    """Heads and repeats of a text that say the same thing add nothing: only windows count."""
    few = [cell(window=w, values=[x]) for w, x in enumerate((1.0, 2.0, 4.0))]
    many = [cell(window=w, values=[x] * 12, repeat=r) for w, x in enumerate((1.0, 2.0, 4.0)) for r in range(5)]
    ses = [of_error(judged(records)[0])["se"] for records in (few, many)]
    assert ses[0] == pytest.approx(ses[1], rel=1e-14)
    assert ses[0] == pytest.approx(statistics.stdev([1.0, 2.0, 4.0]) / math.sqrt(3), rel=1e-14)
    assert of_error(judged([cell(values=[1.0] * 12)])[0])["se"] is None


@pytest.mark.parametrize("missing", [None, math.nan])
def test_what_is_no_number_is_counted_out(missing):
    """Three values of four: the mean is of three, and count says three."""
    (row,) = judged([cell(values=[1.0, 2.0]), cell(values=[missing, 6.0], window=1)])
    actual = of_error(row)
    assert (actual["mean"], actual["max"], actual["count"], row["values"]) == (3.0, 6.0, 3, 4)


def test_a_row_has_the_worst_status_of_its_cells():
    order = ["ok", "skipped", "diverged", "failed"]
    for worst in range(4):
        cells = [cell(status=s, reason=f"why {s}", window=w) for w, s in enumerate(order[: worst + 1])]
        (row,) = judged(list(reversed(cells)))
        assert row["status"] == order[worst] and row["reason"] == (f"why {order[worst]}" if worst else None)
    (row,) = judged([cell(status="failed", reason="boom", metrics={}, seconds=None)])
    assert row["reason"] == "boom" and not of_error(row).get("count")


def test_rows_are_grouped_by_what_the_contract_says():
    random = Random(0)
    records = [
        cell(d=d, n=n, layer=layer, target=target, options=options, window=w, values=[random.random() for _ in "12"])
        for d in (16, 32)
        for n in (64, 128)
        for layer in (0, 5)
        for target in ("softmax", "gaussian")
        for options in ({}, {"ridge": 0.1})
        for w in range(3)
    ]
    rows = judged(records)
    assert len(rows) == 32 and {row["cells"] for row in rows} == {3}
    random.shuffle(records)

    def by_place(row):
        return json.dumps([row[k] for k in ("layer", "n", "target", "options", "d")])

    for one, again in zip(sorted(rows, key=by_place), sorted(judged(records), key=by_place), strict=True):
        assert by_place(one) == by_place(again)
        assert of_error(one) == pytest.approx(of_error(again), rel=1e-15)


def test_a_table_over_all_layers_has_the_heads_of_all_and_layers_on_request():
    records = [cell(layer=layer, values=[1.0 + layer, 3.0]) for layer in (0, 5)]
    (grid,) = shown_of(records).tables
    assert "layers 0, 5" in grid.caption and len(grid.cells) == 1
    apart = shown_of(records, apart=("layer",)).tables
    assert [grid.place["layer"] for grid in apart] == [0, 5]
    assert [row["layer"] for row in judged(records)] == [0, 5], "gates judge each layer"


def test_the_median_is_over_that_of_v_mean_at_the_same_place():
    """Where attention is uniform V-Mean's error is rounding, and a ratio to it would be too."""
    for relative, ratio in ((3e-8, None), (0.5, 2.0)):
        vmean = cell("vmean", None, [4 * relative])
        other = cell("vmean", None, [400.0], n=128)
        lines = shown_of([vmean, cell("linear", None, [8 * relative]), other]).rows
        assert next(line for line in lines if line["method"] == "linear")["median_over_vmean"] == ratio
    gaussian = [cell("vmean", None, [1.0], target="gaussian"), cell("linear", None, [2.0], target="gaussian")]
    assert all(line["median_over_vmean"] is None for line in shown_of(gaussian).rows)


def test_vmean_and_bounds_stand_apart():
    rows = judged(a_run())
    bounds = [row for row in rows if row["method"] == LOWER_BOUND]
    assert not any(row["requested"] for row in bounds) and {row["d"] for row in bounds} <= {16, 32, 128}
    (vmean,) = [row for row in rows if row["method"] == "vmean" and row["n"] == 512]
    assert (vmean["d"], vmean["reference"], vmean["requested"]) == (None, True, False)
    for grid in shown_of(a_run()).tables:
        names = [line[0].value for line in grid.cells]
        assert names[-1] == "V-Mean (mean of V)" or "lower bound (rank d)" in names[-3:], "references stand last"


def test_csv_reads_back_to_the_last_digit():
    records = a_run()
    records += [cell("performer", 4096, (), n=512, status="skipped", metrics={}, seconds=None, reason="d=4096 > n=512")]
    records += [cell("performer", 16, [0.5, None], n=512, status="diverged", reason="head 1 is not finite")]
    shown = shown_of(records)
    lines = [row for row in shown.rows if row["table"] == "error"]
    actual = list(csv.DictReader(io.StringIO(shown.text("csv"))))
    assert len(actual) == len(lines)
    for line, row in zip(actual, lines, strict=True):
        for name, value in row.items():
            if isinstance(value, float):
                assert float(line[name]) == value, name


def test_budgets_that_are_skipped_for_one_reason_share_a_line():
    skipped = [cell("mss", d, status="skipped", reason="no such target", metrics={}) for d in (8, 16)]
    other = cell("mss", 32, status="failed", reason="it broke", metrics={})
    (grid,) = shown_of([cell(), *skipped, other]).tables
    assert grid.reasons == ("– mss, d = 8, 16: no such target", "✗ mss, d = 32: it broke")


def test_the_default_table_has_eight_columns_and_three_lines_of_notes():
    records = [with_matrix(cell(d=128, n=4096)), cell("vmean", None, n=4096)]
    records[0]["metrics"] |= {"bad_rows": [3.0, 0.0], "rounded_rows": [3.0, 0.0]}
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown_of(records).text("table", 100))
    lines = text.splitlines()
    (grid,) = shown_of(records).tables
    assert len(grid.columns) == 8 and max(map(len, lines)) <= 100
    last = next(number for number, line in enumerate(lines) if "V-Mean (mean of V)" in line)
    assert len(lines[last + 1 :]) <= 3, text


def with_matrix(one, relative=(0.25, 0.5), open_=(False, False)):
    one["metrics"] |= {
        "matrix_spectral": [2 * x for x in relative],
        "matrix_spectral_relative": list(relative),
        "matrix_spectral_upper": [3 * x for x in relative],
    }
    return {**one, "matrix_open": list(open_), "matrix_kind": ["A", "B"], "matrix_tol": 1e-3}


def matrix_cells(records):
    (grid,) = shown_of(records).tables
    at = [column.name for column in grid.columns].index("matrix_spectral_relative.median")
    return {line[0].value: (line[at].value, line[at].flag and line[at].flag.sign) for line in grid.cells}


def test_an_interval_that_did_not_close_is_marked():
    closed = [with_matrix(cell("skyformer")), with_matrix(cell("mss"), (0.125, 0.125)), cell("other")]
    assert matrix_cells(closed) == {"skyformer": (0.375, None), "mss": (0.125, None), "other": (None, None)}
    opened = [closed[0], with_matrix(cell("mss"), (0.125, 0.125), (False, True)), closed[2]]
    assert matrix_cells(opened) == {"skyformer": (0.375, None), "mss": (0.125, "≈"), "other": (None, None)}


def test_a_shift_can_be_gated():
    shifted = cell("mss", values=[0.5, 1.0])
    shifted["metrics"]["delta"] = [0.0123, 0.0251]
    (row,) = judged([shifted])
    assert row["delta.max"] == 0.0251
    assert parse_gate("delta.max=0.1", EXPERIMENT.gated) == Gate("delta", "max", max=0.1)


def test_a_gate_compares_the_upper_end_of_an_interval():
    gate = [Gate("matrix_spectral", "max", max=1.0)]
    for open_ in ((False, False), (True, False)):
        (result,) = check(judged([with_matrix(cell(), open_=open_)]), gate)
        assert "1.5, the upper end" in result.message and "is above 1" in result.message and result.value == 1.5
    # the lower end stands above a min, and where none was recorded there is nothing to compare
    one = with_matrix(cell(), open_=(True, False))
    (result,) = check(judged([one]), [Gate("matrix_spectral", "max", min=0.1)])
    assert "matrix_spectral_lower was not measured" in result.message
    one["metrics"]["matrix_spectral_lower"] = [0.25, 0.5]
    rows = judged([one])
    assert [check(rows, [Gate("matrix_spectral", "max", min=low)])[0].passed for low in (0.5, 0.75)] == [True, False]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["errors", "ranking"])
def test_figures_of_what_went_wrong(tmp_path, name):
    """Failed cells with and without values, zeros on a logarithmic axis, a method without a budget, hidden names."""
    records = [
        *(cell(d=d, values=[0.0, 100.0]) for d in (16, 32)),
        *(cell("_hidden", d, [1e-9, 0.5], status="diverged", reason="lost") for d in (16, 32)),
        cell("failed", 32, status="failed", reason="lost", metrics={}),
        cell("kernelized", None, [0.1, 0.2]),
        cell("huge", 16, [1.7e308, 1.7e308]),
        cell("vmean", None, [0.3, 0.4]),
    ]
    chosen = records if name == "errors" else [one for one in records if one["d"] != 32]
    assert shown_of(chosen).figures[name].draw(tmp_path)


def test_no_figure_without_a_method_or_a_value(tmp_path):
    for records in ([cell("vmean", None)], [cell(status="failed", reason="lost", metrics={})]):
        assert shown_of(records).figures["errors"].draw(tmp_path) == []


def test_cells_of_the_tests_are_cells_of_the_command():
    shape = EXPERIMENT.shape
    assert [shape.problem(one) for one in as_rows([cell(), with_matrix(cell())])] == [None, None]
