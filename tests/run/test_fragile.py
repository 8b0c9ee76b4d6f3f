"""Statistics that heads with rounded rows carry, and how tables, figures and gates show it."""

import csv
import io
import json
import math
import random

import pytest
import torch
from inputs import make
from safetensors.torch import save_file

from attnprobe.experiments.error.cost import cost_figure
from attnprobe.experiments.error.error_figure import error_figure
from attnprobe.experiments.error.papers import paper_figure
from attnprobe.experiments.error.view import errors_view, summarise
from attnprobe.figures import files
from attnprobe.figures.drawing import Drawing
from attnprobe.records.shapes import by_name
from attnprobe.tables.console import Header
from attnprobe.tables.long import DOUBTFUL, FRAGILE, STATISTICS, described

ALL = list(STATISTICS[:-1])
SOUND = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0]


def heads(values, rounded, metric="output_spectral", window=0, **metrics):
    """The long rows of the heads of one cell."""
    fields = {metric: values, "rounded_rows": rounded, **metrics}
    return [{"window": window, **by_name(fields, place)} for place in range(len(values))]


def with_rounded(value, doubtful=1):
    """Eleven heads between 1 and 2, and heads of one value whose rows are bad."""
    return heads([*SOUND, *[value] * doubtful], [0.0] * len(SOUND) + [90.0] * doubtful)


def fragile(rows, metric="output_spectral"):
    """The names of the fragile statistics."""
    return [name for name in described(rows, [metric])["fragile"].get(metric, {}) if name != DOUBTFUL]


@pytest.mark.parametrize("value", [90.0, 120.0])  # as one head gives on other machines
def test_a_head_with_rounded_rows_carries_the_mean_and_the_maximum_alone(value):
    assert fragile(with_rounded(value)) == ["mean", "max"]


@pytest.mark.parametrize("value", [1.0, 1.55, 2.0])
def test_a_head_with_rounded_rows_within_the_range_of_the_others_carries_nothing(value):
    assert fragile(with_rounded(value)) == []


def test_heads_without_bad_rows_carry_nothing_however_large():
    assert fragile(heads([*SOUND, 900.0], [0.0] * 12)) == []


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
    assert fragile(with_rounded(90.0, doubtful)) == expected


def test_the_standard_error_is_carried_by_a_window_with_rounded_rows():
    rows = heads(SOUND, [0.0] * 11) + heads([*SOUND[:-1], 90.0], [0.0] * 10 + [3.0], window=1)
    assert fragile(rows) == ["mean", "se", "max"]


def test_where_all_heads_have_rounded_rows_no_statistic_is_reproducible():
    first, second = (heads([1.0, 2.0], [1.0, 2.0], window=window) for window in range(2))
    assert fragile(first + second) == ALL
    assert fragile(first) == [name for name in ALL if name != "se"]


@pytest.mark.parametrize(("by", "expected"), [(0.99, []), (1.01, ["max"])])
def test_the_share_from_which_on_a_statistic_is_fragile(by, expected):
    assert fragile(with_rounded(2.0 / (1 - by * FRAGILE))) == expected


def test_a_smallest_cosine_is_carried_from_below():
    rows = heads([0.9] * 5 + [-0.6], [0] * 5 + [3], "output_cosine_min")
    assert fragile(rows, "output_cosine_min") == ["mean", "p10", "min"]


@pytest.mark.parametrize("metric", ["bad_rows", "inverse_residual", "visited_fraction", "delta", "kernel_spectral"])
def test_metrics_that_no_normaliser_divides_are_never_fragile(metric):
    assert fragile(heads([*SOUND, 900.0], [0.0] * 11 + [9.0], metric), metric) == []


def test_values_that_are_not_finite_and_absent_metrics_count_for_nothing():
    rows = heads([*SOUND, None, float("inf")], [0.0] * 11 + [9.0, 9.0])
    assert fragile(rows) == [] and fragile(rows, "matrix_spectral") == [] and fragile([]) == []


def test_a_fragile_statistic_differs_between_two_runs_and_the_others_agree():
    """The bad head's error moves by a fifth, as with another number of threads; nothing that is not named moves."""
    runs = [described(with_rounded(value), ["output_spectral"]) for value in (90.0, 108.0)]
    one, other = (run["metrics"]["output_spectral"] for run in runs)
    assert [name for name in ALL if one[name] != other[name]] == [*runs[0]["fragile"]["output_spectral"]][1:]


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


def test_rows_say_which_of_their_statistics_are_fragile():
    (fragile, sound, vmean), _ = summarise(records_of())
    largest = dict.fromkeys(("mean", "median", "p10", "p90", "max"), math.inf)
    for name, sound_head in (("output_spectral", 1.0), ("output_spectral_relative", 0.5)):
        ends = fragile["fragile"][name]
        assert ends.pop(DOUBTFUL) == 1 and {stat: high for stat, (_, high) in ends.items()} == largest
        assert [low for low, _ in ends.values()] == [x * sound_head for x in (0.5, 0.5, 0.1, 0.9, 1.0)]
    assert len(fragile["fragile"]) == 2
    assert sound["fragile"] == vmean["fragile"] == {}


@pytest.mark.parametrize("format_", ["table", "md", "latex"])
def test_tables_mark_what_is_fragile_and_say_why_in_a_line(format_):
    sign = r"$\approx$" if format_ == "latex" else "≈"
    text = errors_view(*summarise(records_of()), Header()).text(format_, 300)
    (fragile,) = [line for line in text.splitlines() if "skyformer" in line and "44.5" in line and sign in line]
    numbers = ("45.50", "22.5", "4.9", "40", "22.5", "44.5")  # ‖E‖₂, median, p10, p90, mean, max
    assert all(f"{sign}{number}" in fragile for number in numbers) and fragile.count(sign) == len(numbers)
    assert "V-Mean" in text
    (note,) = [line for line in text.splitlines() if "rounding decides the sum" in line]
    assert ("skyformer $d=8$:" if format_ == "latex" else "skyformer d=8:") in note and "guard=sampled" in note
    sound = errors_view(*summarise(records_of(rounded=(0.0, 0.0))), Header()).text(format_, 300)
    assert sign not in sound and "rounding decides" not in sound


def test_data_formats_hold_the_names_and_the_plain_numbers():
    rows = summarise(records_of())
    (row, *_) = json.loads(errors_view(*rows, Header()).text("json"))["rows"]
    assert row["fragile"]["output_spectral"]["max"] == [1.0, "inf"] and row["fragile"]["output_spectral"][DOUBTFUL] == 1
    (line, *_) = csv.DictReader(io.StringIO(errors_view(*rows, Header()).text("csv")))
    assert json.loads(line["fragile"]) == row["fragile"] and line["output_spectral.mean"] == "45.5"


@pytest.mark.parametrize("metric, least, most", [("output_spectral", 0.0, math.inf), ("output_cosine_min", -1.0, 1.0)])
@pytest.mark.parametrize("seed", range(20))
def test_no_value_of_a_doubtful_head_leaves_the_ends_and_the_extreme_ones_attain_them(metric, least, most, seed):
    """1e150 stands for infinity: with it, a statistic that depends on the largest values is nearly as large."""
    draw = random.Random(seed)
    doubtful = [True, *(draw.random() < 0.4 for _ in range(draw.randint(1, 11)))]
    windows = [draw.randrange(2) for _ in doubtful]
    values = [draw.uniform(-1.0, 1.0) if least else 2.0 ** draw.randint(-9, 9) for _ in doubtful]

    def described_with(value):
        """What the heads are described as if the doubtful ones have values of ``value``."""
        heads_of = zip(values, doubtful, windows, strict=True)
        rows = [{"window": w, metric: value(x) if bad else x, "rounded_rows": float(bad)} for x, bad, w in heads_of]
        return described(rows, [metric])

    ends = described_with(lambda x: x)["fragile"].get(metric, {})
    assert not ends or ends.pop(DOUBTFUL) == sum(doubtful)
    largest = min(most, 1e150)
    low, high = (described_with(lambda _, end=end: end)["metrics"][metric] for end in (least, largest))
    for name in set(ends) - {"se"}:
        assert low[name] == ends[name][0]
        assert high[name] == ends[name][1] or (math.isinf(ends[name][1]) and high[name] > 1e147)
    for _ in range(30):
        one = described_with(lambda _: draw.choice([least, largest, draw.uniform(least, min(most, 9.0))]))
        for name, (below, above) in ends.items():
            assert below <= one["metrics"][metric][name] <= above, name


def sheet_of(monkeypatch, draw):
    """The figure that a function would have written."""
    drawn = []
    monkeypatch.setattr(files, "saved", lambda sheet, *_: drawn.append(sheet) or [])
    draw()
    (sheet,) = drawn
    return sheet


def texts_of(sheet):
    (legend,) = sheet.figure.legends
    return [text.get_text() for text in legend.get_texts()], sheet.title, " ".join(sheet.caption)


def test_the_error_figure_shows_maxima_and_which_points_have_bad_rows(monkeypatch, tmp_path):
    rows, bounds = summarise(records_of())
    sheet = sheet_of(monkeypatch, lambda: error_figure(rows, bounds, Drawing(), tmp_path))
    (axis,) = sheet.figure.axes
    ticks = [line for line in axis.lines if line.get_marker() == "_"]
    assert [list(line.get_ydata()) for line in ticks] == [[90.0, 90.0]]
    hollow = [line for line in axis.lines if line.get_markerfacecolor() == "none"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in hollow] == [([8], [45.5])]
    (line,) = [line for line in axis.lines if line.get_marker() == "o" and len(line.get_xdata()) == 2]
    assert line.get_markevery() == [1]  # the other is filled
    low, high = axis.get_ylim()
    assert low < 1.0 and high > 90.0
    entries, title, caption = texts_of(sheet)
    assert entries == ["skyformer !", "V-Mean", "p10 – p90", "maximum", "hollow, !: bad rows (normaliser ≤ 0 or lost)"]
    assert "median, p10 – p90, maximum" in title and "Points are hollow, and methods have !" in caption
    rows, bounds = summarise(records_of(rounded=(0.0, 0.0)))
    sheet = sheet_of(monkeypatch, lambda: error_figure(rows, bounds, Drawing(), tmp_path))
    entries, _, caption = texts_of(sheet)
    assert entries == ["skyformer", "V-Mean", "p10 – p90", "maximum"] and "!" not in caption


def test_the_dots_of_one_budget_show_them_too(monkeypatch, tmp_path):
    rows, bounds = summarise(records_of()[:1])
    sheet = sheet_of(monkeypatch, lambda: error_figure(rows, bounds, Drawing(), tmp_path))
    (axis,) = sheet.figure.axes
    assert [text.get_text() for text in axis.get_yticklabels()] == ["skyformer !"]
    assert any(line.get_markerfacecolor() == "none" and line.get_xdata() == [45.5] for line in axis.lines)


@pytest.mark.parametrize("draw, name, statistic", [(paper_figure, "papers", "mean"), (cost_figure, "cost", "median")])
def test_other_figures_of_errors_name_their_statistic_and_mark_bad_rows(monkeypatch, tmp_path, draw, name, statistic):
    costs = {"visited_fraction": [0.25, 0.25]}
    rows, _ = summarise([{**one, "metrics": {**one["metrics"], **costs}} for one in records_of()])
    sheet = sheet_of(monkeypatch, lambda: draw(rows, Drawing(), tmp_path, metric="output_spectral"))
    entries, title, caption = texts_of(sheet)
    for finish in sheet.finish:
        finish()
    names = entries + [text.get_text() for axis in sheet.figure.axes for text in axis.texts]
    assert "skyformer !" in names and "have !" in caption and statistic in title


def test_the_command_marks_rounded_rows_and_fails_an_undecided_gate(run, tmp_path):
    """At full budget, with scores of 20 in one head of two: there B~ is nothing but rounding."""
    qkv = make(h=2, n=32, p=8, score=20.0)
    q = qkv.q * torch.tensor([0.05, 1.0], dtype=qkv.dtype)[:, None, None]
    save_file({"q": q, "k": qkv.k, "v": qkv.v}, tmp_path / "qkv.safetensors")
    base = ("error", "--qkv", "qkv.safetensors", "--d", "64", "--no-matrix", "--fail-above")
    for strict in ((), ("--strict",)):
        code, out, err = run(*base, "output_spectral.max=1e9", "--method", "skyformer", "--junit", "g.xml", *strict)
        assert code == 1 and "≈" in out and "rounding decides" in out
        assert "gate undecided: output_spectral.max <= 1e+09: skyformer d=64" in err
        assert 'type="undecided"' in (tmp_path / "g.xml").read_text()
    code, out, _ = run(*base, "output_spectral.max=1e-9", "--method", "skyformer:guard=sampled", "--seed", "1")
    assert code == 1 and "≈" not in out


def test_exact_weights_of_the_keys_used_are_the_same_on_every_machine():
    of_rows = {name: [1.0, 1.0] for name in ("mass", "recall_k", "residual_error", "tv")}
    rows = [{name: of[place] for name, of in of_rows.items()} | {"rounded_rows": 3.0} for place in (0, 1)]
    assert described(rows, of_rows)["fragile"].keys() == {"residual_error", "tv"}
