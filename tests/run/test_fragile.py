"""Statistics that heads with rounded rows carry, and how tables, figures and gates show it."""

import csv
import io
import json
import math

import pandas as pd
import pytest
import torch
from error_rows import judged as lines_of
from error_rows import shown_of
from inputs import make
from safetensors.torch import save_file

from attnprobe.frame.summary import FRAGILE, STATISTICS, summary

ALL = list(STATISTICS[:-1])
SOUND = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0]


def heads(values, rounded, metric="output_spectral", window=0, **metrics):
    """The rows of the heads of one cell."""
    columns = {"method": "x", "window": window, metric: values, "rounded_rows": rounded, **metrics}
    return pd.DataFrame(columns).convert_dtypes()


def with_rounded(value, doubtful=1):
    """Eleven heads between 1 and 2, and heads of one value whose rows are bad."""
    return heads([*SOUND, *[value] * doubtful], [0.0] * len(SOUND) + [90.0] * doubtful)


def described(rows, metric="output_spectral"):
    """The statistics of the heads, and the names of the fragile ones."""
    [line] = summary(rows, ["method"], [metric]).to_dict("records")
    flags = [name for name in ALL if line.get(f"{metric}.{name}.fragile")]
    return {name: line[f"{metric}.{name}"] for name in ALL}, flags


def fragile(rows, metric="output_spectral"):
    return described(rows, metric)[1]


@pytest.mark.parametrize("value", [90.0, 120.0])  # as one head gives on other machines
def test_a_head_with_rounded_rows_carries_the_mean_and_the_maximum_alone(value):
    assert fragile(with_rounded(value)) == ["mean", "max", "sum"]


@pytest.mark.parametrize("value", [1.0, 1.55, 2.0])
def test_a_head_with_rounded_rows_within_the_range_of_the_others_carries_nothing(value):
    assert fragile(with_rounded(value)) == []


def test_heads_without_bad_rows_carry_nothing_however_large():
    assert fragile(heads([*SOUND, 900.0], [0.0] * 12)) == []


@pytest.mark.parametrize(
    ("doubtful", "expected"),
    [
        (1, ["mean", "max", "sum"]),
        (2, ["mean", "p90", "max", "sum"]),
        (10, ["mean", "p90", "max", "sum"]),
        (11, ["mean", "median", "p90", "max", "sum"]),
        (12, ["mean", "median", "p90", "max", "sum"]),
    ],
)
def test_quantiles_are_carried_once_enough_heads_have_rounded_rows(doubtful, expected):
    assert fragile(with_rounded(90.0, doubtful)) == expected


def test_the_standard_error_is_carried_by_a_window_with_rounded_rows():
    sound, rounded = heads(SOUND, [0.0] * 11), heads([*SOUND[:-1], 90.0], [0.0] * 10 + [3.0], window=1)
    assert fragile(pd.concat([sound, rounded])) == ["mean", "se", "max", "sum"]


def test_where_all_heads_have_rounded_rows_no_statistic_is_reproducible():
    first, second = (heads([1.0, 2.0], [1.0, 2.0], window=window) for window in range(2))
    assert fragile(pd.concat([first, second])) == ALL
    assert fragile(first) == [name for name in ALL if name != "se"]


@pytest.mark.parametrize(("by", "expected"), [(0.99, []), (1.01, ["max"])])
def test_the_share_from_which_on_a_statistic_is_fragile(by, expected):
    assert fragile(with_rounded(2.0 / (1 - by * FRAGILE))) == expected


def test_a_smallest_cosine_is_carried_from_below():
    rows = heads([0.9] * 5 + [-0.6], [0] * 5 + [3], "output_cosine_min")
    assert fragile(rows, "output_cosine_min") == ["mean", "p10", "min", "sum"]


@pytest.mark.parametrize("metric", ["bad_rows", "inverse_residual", "visited_fraction", "delta", "kernel_spectral"])
def test_metrics_that_no_normaliser_divides_are_never_fragile(metric):
    assert fragile(heads([*SOUND, 900.0], [0.0] * 11 + [9.0], metric), metric) == []


def test_missing_values_and_absent_metrics_count_for_nothing():
    rows = heads([*SOUND, None], [0.0] * 11 + [9.0])
    assert fragile(rows) == [] and fragile(rows.assign(matrix_spectral=math.nan), "matrix_spectral") == []


def test_a_fragile_statistic_differs_between_two_runs_and_the_others_agree():
    """The bad head's error moves by a fifth, as with another number of threads; nothing that is not named moves."""
    (one, flags), (other, _) = (described(with_rounded(value)) for value in (90.0, 108.0))
    assert [name for name in ALL if name != "se" and one[name] != other[name]] == flags


def test_bad_rows_alone_make_no_head_doubtful():
    assert fragile(heads([*SOUND, 90.0], [0.0] * 11 + [None], bad_rows=[0.0] * 11 + [90.0])) == []


# --- what is shown of it


def records_of(rounded=(0.0, 7.0), method="skyformer", **metrics):
    """The records of one row of two heads beside others without rounded rows; V-Mean errs by 1 in each."""
    shared = {"options": {}, "target": "softmax", "n": 64, "layer": 0, "window": 0, "heads": [0, 1], "status": "ok"}
    errors = {"output_spectral": [1.0, 90.0], "output_spectral_relative": [0.5, 44.5], "bad_rows": list(rounded)}
    one = {**shared, "method": method, "d": 8, "requested": True}
    return [
        {**one, "metrics": {**errors, "rounded_rows": list(rounded), **metrics}},
        {**one, "d": 16, "metrics": {**errors, "bad_rows": [0.0, 0.0], "rounded_rows": [0.0, 0.0]}},
        {**shared, "method": "vmean", "d": None, "reference": True, "metrics": {"output_spectral": [1.0, 1.0]}},
    ]


def test_lines_say_which_of_their_statistics_are_fragile():
    fragile, sound, vmean = lines_of(records_of())
    for name in ("output_spectral", "output_spectral_relative"):
        flagged = {
            stat for stat in ("mean", "se", "median", "p10", "p90", "min", "max", "sum") if flag(fragile, name, stat)
        }
        assert flagged == {"mean", "median", "p10", "p90", "max", "sum"}
    assert not any(
        value is True for line in (sound, vmean) for name, value in line.items() if name.endswith(".fragile")
    )


def flag(line, metric, statistic):
    return line.get(f"{metric}.{statistic}.fragile")


def test_tables_mark_what_is_fragile():
    [grid] = shown_of(records_of()).tables
    fragile = next(line for line in grid.cells if (line[0].value, line[1].value) == ("skyformer", 8))
    signs = {column.title: cell.flag and cell.flag.sign for column, cell in zip(grid.columns, fragile, strict=True)}
    assert {name for name, sign in signs.items() if sign == "≈"} == {"median [p10 – p90]", "mean", "max"}
    [sound] = shown_of(records_of(rounded=(0.0, 0.0))).tables
    assert not any(cell.flag for line in sound.cells for cell in line)


def test_data_formats_hold_the_flags_and_the_plain_numbers():
    shown = shown_of(records_of())
    row = json.loads(shown.text("json"))["rows"][0]
    assert flag(row, "output_spectral", "max") and row["output_spectral.mean"] == 45.5
    line = next(csv.DictReader(io.StringIO(shown.text("csv"))))
    assert flag(line, "output_spectral", "max") == "True" and line["output_spectral.mean"] == "45.5"


def test_the_command_marks_rounded_rows_and_fails_an_undecided_gate(run, tmp_path):
    """At full budget, with scores of 20 in one head of two: there B~ is nothing but rounding."""
    qkv = make(h=2, n=32, p=8, score=20.0)
    q = qkv.q * torch.tensor([0.05, 1.0], dtype=qkv.dtype)[:, None, None]
    save_file({"q": q, "k": qkv.k, "v": qkv.v}, tmp_path / "qkv.safetensors")
    base = ("error", "--qkv", "qkv.safetensors", "--d", "64", "--no-matrix", "--fail-above")
    for strict in ((), ("--strict",)):
        code, out, err = run(*base, "output_spectral.max=1e9", "--method", "skyformer", "--junit", "g.xml", *strict)
        assert code == 1 and "≈" in out and "decided by rounding" in out
        assert "gate undecided: output_spectral.max <= 1e+09: skyformer d=64" in err
        assert 'type="undecided"' in (tmp_path / "g.xml").read_text()
    code, out, _ = run(*base, "output_spectral.max=1e-9", "--method", "skyformer:guard=sampled", "--seed", "1")
    assert code == 1 and "≈" not in out


def test_exact_weights_of_the_keys_used_are_the_same_on_every_machine():
    names = ("mass", "recall_k", "residual_error", "tv")
    rows = heads([1.0, 1.0], [3.0, 3.0], **dict.fromkeys(names, [1.0, 1.0]))
    assert [name for name in names if fragile(rows, name)] == ["residual_error", "tv"]
