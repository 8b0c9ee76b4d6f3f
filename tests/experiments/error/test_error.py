"""Rows of errors: statistics worked by hand, gates that fail closed, formats read back, figures to the byte."""

import csv
import io
import json
import math
import re
import statistics
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
from error_records import a_run, cell
from matplotlib.collections import LineCollection
from showing import EACH, files_of

from attnprobe.errors import UsageError
from attnprobe.experiments.error import EXPERIMENT, columns
from attnprobe.experiments.error.error_figure import BEYOND_EDGE, MOST_LINES, error_figure
from attnprobe.experiments.error.view import error_legend, errors_view, summarise
from attnprobe.figures.drawing import Drawing
from attnprobe.figures.looks import symbol
from attnprobe.judge.gates import Gate, check
from attnprobe.judge.parse import parse_gate
from attnprobe.methods.registry import METHODS
from attnprobe.records.file import LOWER_BOUND
from attnprobe.show.writers import FORMATS
from attnprobe.tables.console import Header
from attnprobe.tables.numbers import significant
from attnprobe.tables.view import flat_lines, flat_view

HEADER = Header(
    {"model": "minilm", "text": "embedded"},
    ["model: minilm_l6 & 100%", "fallback: the hub is out of reach"],
    ["the hub is out of reach"],
)


# --- statistics


def test_statistics_worked_by_hand():
    """Two windows of two heads and two repeats; window means 2 and 5, so s.e. = sd(2, 5)/√2 = 1.5."""
    records = [
        cell(window=0, repeat=0, values=[1.0, 3.0]),
        cell(window=0, repeat=1, values=[1.0, 3.0]),
        cell(window=1, repeat=0, values=[2.0, 8.0], seconds=0.75),
        cell(window=1, repeat=1, values=[4.0, 6.0], seconds=0.75),
    ]
    (row,), bounds = summarise(records)
    actual = row["metrics"]["output_spectral"]
    assert actual["mean"] == 3.5
    assert actual["se"] == pytest.approx(statistics.stdev([2.0, 5.0]) / math.sqrt(2), rel=1e-15) == 1.5
    assert actual["median"] == 3.0  # of 1 1 2 3 3 4 6 8
    assert actual["p10"] == 1.0  # at position 0.7
    assert actual["p90"] == pytest.approx(6.6, rel=1e-15)  # at position 6.3
    assert (actual["max"], actual["count"]) == (8.0, 8)
    assert row["metrics"]["seconds"]["mean"] == 0.5
    assert row["metrics"]["seconds"]["count"] == 4
    assert row["metrics"]["seconds"]["se"] == 0.25
    assert [row[name] for name in ("heads", "windows", "repeats", "cells", "values")] == [2, 2, 2, 4, 8]
    assert bounds == []


def test_a_mean_over_two_windows_stands_beside_students_interval(monkeypatch):
    """Window means 2 and 5 have the standard error 1.5, and t of one degree of freedom is tan(0.475 π)."""
    monkeypatch.delenv("COLUMNS", raising=False)
    rows, bounds = summarise([cell(window=0, values=[1.0, 3.0]), cell(window=1, values=[2.0, 8.0])])
    half = math.tan(0.475 * math.pi) * 1.5
    assert f"3.500 ± {half:.0f} " in errors_view(rows, bounds, Header()).text("table")


def test_the_error_bar_does_not_shrink_with_heads_or_repeats():
    """Heads and repeats of a text that say the same thing add nothing: only windows count."""
    few = [cell(window=w, values=[x]) for w, x in enumerate((1.0, 2.0, 4.0))]
    many = [cell(window=w, values=[x] * 12, repeat=r) for w, x in enumerate((1.0, 2.0, 4.0)) for r in range(5)]
    ses = [summarise(records)[0][0]["metrics"]["output_spectral"]["se"] for records in (few, many)]
    assert ses[0] == pytest.approx(ses[1], rel=1e-14)
    assert ses[0] == pytest.approx(statistics.stdev([1.0, 2.0, 4.0]) / math.sqrt(3), rel=1e-14)
    assert summarise([cell(values=[1.0] * 12)])[0][0]["metrics"]["output_spectral"]["se"] is None


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_counted_out_and_said(missing):
    """Three values of four: the mean is of three, count says three, the row is diverged although its cells are ok."""
    rows, _ = summarise([cell(values=[1.0, 2.0]), cell(values=[missing, 6.0], window=1)])
    actual = rows[0]["metrics"]["output_spectral"]
    assert (actual["mean"], actual["max"], actual["count"], rows[0]["values"]) == (3.0, 6.0, 3, 4)
    assert rows[0]["status"] == "diverged"
    assert rows[0]["reason"] == "1 diverged of 2 cells: output_spectral is not finite in 1 of 2 heads"
    json.dumps(rows, allow_nan=False)


def test_no_value_at_all_and_overflow():
    rows, _ = summarise([cell(values=[None, None]), cell("other", values=[1.7e308, 1.7e308])])
    expected = {**dict.fromkeys(("mean", "se", "min", "p10", "median", "p90", "max")), "count": 0}
    assert rows[0]["metrics"]["output_spectral"] == expected
    actual = rows[1]["metrics"]["output_spectral"]
    assert (actual["mean"], actual["max"], actual["count"]) == (None, 1.7e308, 2)


def test_a_row_has_the_worst_status_of_its_cells():
    order = ["ok", "skipped", "diverged", "failed"]
    for worst in range(4):
        cells = [cell(status=s, reason=f"why {s}", window=w) for w, s in enumerate(order[: worst + 1])]
        (row,), _ = summarise(reversed(cells))
        assert row["status"] == order[worst]
        if worst:
            assert f"1 {order[worst]}" in row["reason"]
            assert f"of {worst + 1} cells: why {order[worst]}" in row["reason"]
    (row,), _ = summarise([cell(status="failed", reason="boom", metrics={}, seconds=None)])
    assert (row["reason"], row["metrics"], row["over_vmean"]) == ("boom", {}, {})


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
    rows, _ = summarise(records)
    assert len(rows) == 32
    assert {row["cells"] for row in rows} == {3}
    assert [(row["layer"], row["n"]) for row in rows] == sorted((row["layer"], row["n"]) for row in rows)
    random.shuffle(records)
    again, _ = summarise(records)

    def by_place(row):
        return json.dumps([row[k] for k in ("layer", "n", "target", "options", "d")])

    assert sorted(again, key=by_place) == sorted(rows, key=by_place)  # to the last bit


def test_over_vmean_is_a_ratio_of_means_at_the_same_places():
    records = [
        cell(window=0, values=[1.0, 2.0]),
        cell(window=1, values=[3.0, 6.0]),
        cell("vmean", None, window=0, values=[2.0, 2.0]),
        cell("vmean", None, window=1, values=[8.0, 4.0]),
        cell("vmean", None, window=0, values=[100.0, 100.0], n=128),
    ]
    rows, _ = summarise(records)
    ratio = {(row["method"], row["n"]): row["over_vmean"]["output_spectral"] for row in rows}
    assert ratio == {("skyformer", 64): 12 / 16, ("vmean", 64): 1.0, ("vmean", 128): 1.0}
    assert rows[0]["over_vmean"]["output_frobenius"] == 12 / 16
    # where a head is lost, V-Mean is averaged over the heads that remain
    records[1] = cell(window=1, values=[None, 6.0])
    assert summarise(records)[0][0]["over_vmean"]["output_spectral"] == 9 / 8
    # and nothing is made up where V-Mean was not measured
    assert summarise(records[:3])[0][0]["over_vmean"]["output_spectral"] is None


def test_vmean_and_bounds_stand_apart():
    rows, bounds = summarise(a_run())
    assert {row["method"] for row in bounds} == {LOWER_BOUND}
    assert [row["d"] for row in bounds] == [16, 32, 128] * 2
    (vmean,) = [row for row in rows if row["method"] == "vmean" and row["n"] == 512]
    assert (vmean["d"], vmean["reference"], vmean["requested"]) == (None, True, False)
    contract = "method, options, target, n, d, realised_d, layer, heads, windows, status, reason, reference, metrics"
    assert set(contract.split(", ")) <= set(vmean)


def test_realised_d_is_a_mean():
    one = cell(values=[1.0, 1.0])
    one["metrics"]["realised_d"] = [20.0, 21.0]
    assert summarise([one])[0][0]["realised_d"] == 20.5
    assert summarise([cell()])[0][0]["realised_d"] is None


# --- formats


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def render(rows, bounds, header, format, run, command="error", width=None):
    """The rows of a command beneath a header."""
    view = errors_view(rows, bounds, header) if command == "error" else flat_view(command, rows, header)
    return replace(view, run=run).text(format, width)


@pytest.fixture(scope="module")
def run():
    records = a_run()
    records += [cell("performer", 4096, (), n=512, status="skipped", metrics={}, seconds=None, reason="d=4096 > n=512")]
    records += [cell("performer", 16, [0.5, None], n=512, status="diverged", reason="head 1 is not finite")]
    return summarise(records)


def test_csv_reads_back_to_the_last_digit(run):
    actual = list(csv.DictReader(io.StringIO(render(*run, HEADER, "csv", None))))
    rows = [*run[0], *run[1]]
    assert len(actual) == len(rows)
    for line, row in zip(actual, rows, strict=True):
        assert json.loads(line["options"]) == row["options"]
        assert line["method"] == row["method"]
        for name, stats in row["metrics"].items():
            for stat, value in stats.items():
                assert line[f"{name}.{stat}"] == ("" if value is None else repr(value))


def test_infinity_is_the_same_text_in_every_json():
    row = {"method": "x", "cond": math.inf, "steps": [1.0, -math.inf, math.nan], "metrics": {"m": {"max": math.inf}}}
    view = replace(flat_view("anything", [row], HEADER), summary=[row], bounds=[row])
    actual = json.loads(view.text("json"))
    (one,) = actual["rows"]
    assert actual["summary"] == actual["bounds"] == [one] == [json.loads(view.text("jsonl").splitlines()[0])]
    assert one["cond"] == one["metrics"]["m"]["max"] == "inf" and one["steps"] == [1.0, "-inf", None]
    line, _ = csv.DictReader(io.StringIO(view.text("csv")))
    assert line["cond"] == line["m.max"] == "inf" and line["steps"] == '[1.0,"-inf",null]'


def test_a_terminal_is_not_exceeded_and_loses_no_digit(run, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for width in (90, 100, 120, 140):
        text = render(*run, HEADER, "table", None, width=width)
        assert "\x1b[" in text
        assert max(map(len, plain(text).splitlines())) <= width
        assert ("Left out: " in plain(text)) == (width < 140)
    narrow = plain(render(*run, HEADER, "table", None, width=20))  # lines may be too long, numbers never cut
    for row in [*run[0], *run[1]]:
        if "output_spectral_relative" in row["metrics"]:
            assert significant(row["metrics"]["output_spectral_relative"]["median"], 3) in narrow
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", render(*run, HEADER, "table", None, width=140))


FAMILIES = {
    "Nyström": ["skyformer", "nystromformer", "mss"],
    "features": ["performer", "linear"],
    "sparse": ["window", "bigbird", "topk", "longformer"],
}


def a_run_of_families(layers=(0,), d=(16, 32)):
    """Nine methods of three families, asked for in turn, one far below and one far above V-Mean."""
    arguments = [(name, family) for family, names in FAMILIES.items() for name in names]
    records = []
    for layer in layers:
        records.append(cell("vmean", None, [1.0, 1.1], layer=layer))
        for name, family in sorted(arguments):
            for budget in (None,) if name == "linear" else d:
                size = {"topk": 1e-6, "performer": 1e6}.get(name, 0.5)
                records.append(cell(name, budget, [size, 2 * size], family=family, layer=layer))
    return summarise(records)


def test_methods_stand_in_the_order_that_they_were_asked_for():
    rows, bounds = a_run_of_families()
    text = render(rows, bounds, HEADER, "table", None, width=200)
    first = [line.split()[0] for line in plain(text).splitlines() if line.strip()]
    names = sorted(sum(FAMILIES.values(), []))  # as asked, in spite of their families
    assert [word for word in first if word in names] == names
    piped = render(rows, bounds, HEADER, "md", None)
    names = [line.split(" | ")[:2] for line in piped.splitlines() if line.startswith("|")]
    assert names[0] == ["| method", "family"] and ["| topk", "sparse"] in names
    assert ["| V-Mean (ref.)", ""] in names
    one = [row for row in rows if row["family"] == "sparse"]
    assert "family" not in render(one, [], HEADER, "md", None)


def test_budgets_that_are_skipped_for_one_reason_share_a_line():
    skipped = [cell("mss", d, status="skipped", reason="no such target", metrics={}) for d in (8, 16)]
    other = cell("mss", 32, status="failed", reason="it broke", metrics={})
    for format in ("table", "md"):
        text = render(*summarise([cell(), *skipped, other]), HEADER, format, None)
        assert text.count("no such target") == 1 and "– mss d=8, 16: no such target" in text
        assert "✗ mss d=32: it broke" in text


def test_many_methods_have_dots_for_each_budget(tmp_path, pages):
    """A line for each method, by its median at the largest budget; the budgets of one stand below each other."""
    rows, bounds = a_run_of_families(layers=(0, 5))
    paths = error_figure(rows, bounds, Drawing(), tmp_path)
    assert [path.name for path in paths[::EACH]] == ["error-output_spectral.svg"]
    assert [axis.get_title() for axis in pages[0].axes] == ["layer 0", "layer 5"]
    (legend,) = pages[0].legends
    looks = {text.get_text(): line for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)}
    assert list(looks) == [
        "d = 16",
        "d = 32",
        "no d",
        "V-Mean",
        "p10 – p90",
        "maximum",
        BEYOND_EDGE + " (number: median)",
    ]
    labels = [label.get_text() for label in pages[0].axes[0].get_yticklabels()]
    assert " ".join(labels) == "topk bigbird longformer window linear mss nystromformer skyformer performer"
    for axis, layer in zip(pages[0].axes, (0, 5), strict=True):
        dots = [line for line in axis.lines if line.get_marker() == looks["d = 32"].get_marker()]
        assert len(dots) == len(labels) - 1, "linear has no budget"
        for row in (row for row in rows if row["layer"] == layer and not row.get("reference")):
            stats, place = row["metrics"]["output_spectral"], labels.index(row["method"])
            beside = {None: 0.0, 16: -0.2, 32: 0.2}[row["d"]]
            line = [one for one in axis.lines if list(one.get_ydata()) in ([place + beside], [place + beside] * 2)]
            drawn = {one.get_marker(): list(one.get_xdata()) for one in line}
            look = looks["no d" if row["d"] is None else f"d = {row['d']}"]
            assert {one.get_color() for one in line} == {look.get_color()}
            assert drawn["None"] == [stats["p10"], stats["p90"]]
            assert (drawn[look.get_marker()], drawn["|"]) == ([stats["median"]], [stats["max"]])
        assert 1.1 < axis.get_xlim()[1] < 1e4, "one that diverges does not stretch it"
        assert [text.get_text() for text in axis.texts] == ["1.5e-06"] * 2 + ["1.5e+06"] * 2


@pytest.mark.parametrize("layers", [(0,), (0, 5)])
def test_dots_of_many_methods_go_on_on_other_slides(tmp_path, pages, layers):
    names = [name for name in METHODS if name != "vmean"]
    records = [cell("vmean", None, [1.0, 1.1], layer=layer) for layer in layers]
    for place, name in enumerate(names):
        records += [cell(name, d, [0.2 * 1.01**place], layer=layer) for d in (16, 32) for layer in layers]
    error_figure(*summarise(records), Drawing(style="slide"), tmp_path)
    axes = [axis for page in pages for axis in page.axes if axis.get_visible()]
    assert len(pages) > 1 and all(len(page.axes) == 2 for page in pages), "columns of methods, or layers"
    labels = [[label.get_text() for label in axis.get_yticklabels()] for axis in axes]
    assert sum(labels[:: len(layers)], []) == names and max(map(len, labels)) <= 8
    assert len({axis.get_xlim() for axis in axes}) == 1
    dashed = [line.get_xdata()[0] for axis in axes for line in axis.lines if line.get_linestyle() == "--"]
    assert dashed == [1.05] * len(axes), "V-Mean stands beside all"


def test_slides_of_dots_without_a_method_far_off_have_one_axis_and_say_which_part_they_are(tmp_path, pages):
    records = [cell("vmean", None, [1.0, 1.1])]
    records += [cell(name, 16, [0.01 * 1.1**place]) for place, name in enumerate(METHODS) if name != "vmean"]
    error_figure(*summarise(records), Drawing(style="slide"), tmp_path)
    assert len(pages) > 1 and len({axis.get_xlim() for page in pages for axis in page.axes}) == 1
    for number, page in enumerate(pages, 1):
        assert f", part {number} of {len(pages)}" in " ".join(page.get_suptitle().split())


def test_few_methods_have_lines_and_bounds_of_dots_have_the_colours_of_their_budgets(tmp_path, pages):
    for count in (MOST_LINES, MOST_LINES + 1):
        names = [*METHODS][:count]
        error_figure(*summarise([cell(name, d) for name in names for d in (16, 32)]), Drawing(), tmp_path)
    assert [page.axes[0].get_xlabel() for page in pages] == ["budget d", symbol("output_spectral")]
    records = [cell(name, d) for name in [*names, LOWER_BOUND] for d in (16, 32)]
    error_figure(*summarise(records), Drawing(), tmp_path)
    dotted = [line for line in pages[-1].axes[0].lines if line.get_linestyle() == ":"]
    looks = [line.get_color() for line in pages[-1].legends[0].get_lines()]
    assert [line.get_color() for line in dotted] == looks[:2]
    assert "lower bound, rank d" in [text.get_text() for text in pages[-1].legends[0].get_texts()]


def test_what_all_panels_share_stands_once_above_them(tmp_path, pages):
    error_figure(*a_run_of_families(), Drawing(), tmp_path)
    alone = [cell("skyformer", 16), cell("vmean", None)]
    for style in ("paper", "slide"):
        error_figure(*summarise(alone), Drawing(style), tmp_path)
    assert [page.axes[0].get_title() for page in pages[1:]] == ["", ""]
    headings = [page.get_suptitle().replace("\u00a0", " ").replace("\n", " ") for page in pages]
    assert headings[:2] == ["layer 0, n = 64", "layer 0, n = 64, d = 16"]
    assert headings[2].endswith("(layer 0, n = 64, d = 16)")


def test_an_axis_of_lines_reaches_every_median_and_names_the_others(tmp_path, pages):
    errors = {"topk": [2e-4, 2e-7, 1e-7], "performer": [0.5, 9.0, 3.0]}
    records = [
        cell(name, d, [error] * 2) for name, line in errors.items() for d, error in zip((16, 32, 64), line, strict=True)
    ]
    error_figure(*summarise([*records, cell("vmean", None)]), Drawing(), tmp_path)
    assert 1e-5 < pages[0].axes[0].get_ylim()[0] < 2e-4
    names = [text.get_text() for legend in pages[0].legends for text in legend.get_texts()]
    assert names == ["topk (d ≥ 32 below: ≤ 2e-7)", "performer", "V-Mean", "p10 – p90", "maximum"]


def test_methods_without_a_family_stand_beside_those_of_families(tmp_path):
    records = [cell("mine.py:fn", d) for d in (16, 32)] + [cell("skyformer", d, family="Nyström") for d in (16, 32)]
    assert len(error_figure(*summarise([*records, cell("vmean", None)]), Drawing(), tmp_path)) == EACH


def test_the_dots_of_many_methods_stand_by_rising_medians(tmp_path, pages):
    """Equal ones stand by family. An error of rounding is an arrow at the edge, with its number."""
    error_figure(*a_run_of_families(d=(16,)), Drawing(), tmp_path)
    (axis,) = pages[0].axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert " ".join(labels) == "topk bigbird longformer window linear mss nystromformer skyformer performer"
    assert "1.5e-06" in [text.get_text() for text in axis.texts]


def test_a_method_that_used_more_than_d_says_so_and_is_ranked_last(tmp_path, pages):
    """At the largest d, as in tables; one that did at another d is ranked, and its name has that d."""
    records = [cell("vmean", None, [0.7, 0.7])]
    used = {"moba": (64, 64), "nsa": (20.26, 32), "window": (16, 33), "topk": (16, 32)}
    for place, (name, budgets) in enumerate(used.items(), 1):
        for d, number in zip((16, 32), budgets, strict=True):
            records.append(cell(name, d, [place / 10, place / 10]))
            records[-1]["metrics"]["realised_d"] = [number] * 2
    error_figure(*summarise(records), Drawing(), tmp_path)
    labels = [label.get_text() for label in pages[0].axes[0].get_yticklabels()]
    assert labels == ["nsa (used 20.3 at d = 16)", "window", "topk", "moba (used 64)"]
    few = [one for one in records if one["method"] in ("vmean", "moba", "topk")]
    error_figure(*summarise(few), Drawing(), tmp_path)
    assert "moba (used 64)" in [text.get_text() for text in pages[1].legends[0].get_texts()], "of lines"


def test_bars_of_dots_end_at_p10_and_p90(tmp_path, pages):
    """A projecting end would reach half the line's width beyond them."""
    error_figure(*summarise([cell("skyformer", 16, [0.2, 0.3]), cell("vmean", None, [0.7, 0.7])]), Drawing(), tmp_path)
    (bar,) = (line for line in pages[0].axes[0].lines if line.get_alpha() == 0.5)
    assert bar.get_solid_capstyle() == "butt"


@pytest.mark.parametrize("d", [(16,), (16, 32)])
def test_a_method_that_diverges_does_not_squeeze_the_others(tmp_path, pages, d):
    """In dots an arrow has its median beside it, in lines the legend has it; others set the axis."""
    methods = {"skyformer": [0.2, 0.3], "performer": [0.8, 0.9], "linformer": [1e6, 3e6]}
    records = [cell("vmean", None, [0.7, 0.7])]
    records += [cell(name, budget, values) for name, values in methods.items() for budget in d]
    error_figure(*summarise(records), Drawing(), tmp_path)
    (axis,) = pages[0].axes
    high = (axis.get_xlim if len(d) == 1 else axis.get_ylim)()[1]
    assert 0.9 < high < 2
    arrows = [line.get_ydata().tolist() for line in axis.lines if line.get_marker() == ">"]
    words = [text.get_text() for text in (axis.texts if len(d) == 1 else pages[0].legends[0].get_texts())]
    assert arrows == ([[2]] if len(d) == 1 else [])
    assert ("2.0e+06" if len(d) == 1 else "linformer (above: ≥ 2e6)") in words


@pytest.mark.parametrize("format", ["table", "md"])
def test_a_shift_has_a_column_and_a_line_where_a_row_has_one(format):
    name = "δ"
    plain = [cell("skyformer", values=[0.5, 1.0]), cell("vmean", None)]
    assert name not in render(*summarise(plain), HEADER, format, None)
    shifted = cell("mss", values=[0.5, 1.0])
    shifted["metrics"]["delta"] = [0.0123, 0.0251]
    text = render(*summarise([*plain, shifted]), HEADER, format, None)
    assert text.count(name) == 2  # a heading and a line of the legend
    assert f"{name}: the spectral shift of a head" in " ".join(text.split())
    (line,) = [line for line in text.splitlines() if "mss" in line]
    assert "0.019 (0.025)" in line
    assert all("(0.025)" not in line for line in text.splitlines() if "skyformer" in line)
    assert parse_gate("delta.max=0.1", EXPERIMENT.gated) == Gate("delta", "max", max=0.1)


def with_matrix(one, relative=(0.25, 0.5), open_=(False, False)):
    one["metrics"] |= {
        "matrix_spectral": [2 * x for x in relative],
        "matrix_spectral_relative": list(relative),
        "matrix_spectral_upper": [3 * x for x in relative],
    }
    return {**one, "matrix_open": list(open_), "matrix_kind": ["A", "B"], "matrix_tol": 1e-3}


@pytest.mark.parametrize("format", ["table", "md"])
def test_an_interval_that_did_not_close_is_marked_and_explained(format):
    sign = "≈"
    closed = [with_matrix(cell("skyformer")), with_matrix(cell("mss"), (0.125, 0.125)), cell("other")]
    text = render(*summarise(closed), HEADER, format, None)
    assert sign not in text and "0.375" in text and "0.125" in text
    opened = [closed[0], with_matrix(cell("mss"), (0.125, 0.125), (False, True)), closed[2]]
    text = render(*summarise(opened), HEADER, format, None)
    assert f"{sign}0.125" in text and f"{sign}0.375" not in text
    assert f"{sign}: rounding decides it, so that it differs between machines, or its interval is wide." in " ".join(
        text.split()
    )


def test_rows_count_the_intervals_that_did_not_close(tmp_path):
    records = [
        with_matrix(cell(window=0), open_=(True, False)),
        with_matrix(cell(window=1), open_=(True, True)),
        cell("other"),
        with_matrix(cell("mss")),
    ]
    rows, _ = summarise(records)
    assert {row["method"]: row["matrix_open"] for row in rows} == {"skyformer": 3, "other": None, "mss": 0}
    csv_rows = list(csv.DictReader(io.StringIO(render(rows, [], HEADER, "csv", None))))
    assert [line["matrix_open"] for line in csv_rows] == ["3", "", "0"]
    assert json.loads(render(rows, [], HEADER, "json", None))["rows"][0]["matrix_open"] == 3


@pytest.mark.parametrize(
    ("family", "states", "said"), [("user", True, True), ("user", False, False), ("x", True, False)]
)
def test_costs_that_a_users_function_states_are_said_to_be_unchecked(family, states, said):
    one = cell("mine.py:fn", 8, [0], family=family)
    one["metrics"] |= {"visited_fraction": [0.01]} if states else {}
    assert any("unchecked" in line for line in error_legend(*summarise([one]))) == said


def test_a_matrix_error_that_is_null_is_no_quiet_gap():
    (row,), _ = summarise([with_matrix(cell(), (math.nan, 0.5))])
    assert row["status"] == "diverged" and "matrix_spectral is not finite in 1 of 2 heads" in row["reason"]


def test_a_matrix_error_is_marked_once_and_where_it_was_measured():
    """It is open, not reproducible, both, or there is none."""
    name = "matrix_spectral_relative"
    row = {"metrics": {name: {"median": 0.5}}, "matrix_open": None, "matrix_skipped": None}
    fragile = {"fragile": {name: ["median"]}}
    for more, text, opened in (
        ({}, "0.500", False),
        ({"matrix_open": 2}, "≈0.500", True),
        (fragile, "≈0.500", False),
        ({"matrix_open": 2, **fragile}, "≈0.500", True),
        ({"matrix_open": 2, "matrix_skipped": "no matrix"}, "–", False),
        ({"matrix_open": 2, "metrics": {}}, "", False),
    ):
        assert (columns._matrix({**row, **more}), columns.is_open({**row, **more})) == (text, opened)


def test_a_total_variation_without_a_mass_says_nothing_new():
    def shown(*rows):
        rows = [{"metrics": {name: {"mean": value} for name, value in row.items()}} for row in rows]
        return {"TV", "KL"} <= {column.name for column in columns.row_columns(rows)}

    assert not shown({"tv": 0.25}, {"mass": 0.5}, {"tv": 0.25, "mass": 0.75})
    assert shown({"tv": 0.25, "mass": 0.75}, {"tv": 0.25, "mass": 0.8})


def test_a_gate_compares_the_upper_end_of_an_interval():
    gate = [Gate("matrix_spectral", "max", max=1.0)]
    for open_ in ((False, False), (True, False)):
        (result,) = check(flat_lines(summarise([with_matrix(cell(), open_=open_)])[0]), gate)
        assert "1.5, the upper end" in result.message and "is above 1" in result.message and result.value == 1.5
    # the lower end stands above a min, and where none was recorded there is nothing to compare
    one = with_matrix(cell(), open_=(True, False))
    (result,) = check(flat_lines(summarise([one])[0]), [Gate("matrix_spectral", "max", min=0.1)])
    assert "matrix_spectral_lower was not measured" in result.message
    one["metrics"]["matrix_spectral_lower"] = [0.25, 0.5]
    rows, _ = summarise([one])
    assert [check(flat_lines(rows), [Gate("matrix_spectral", "max", min=low)])[0].passed for low in (0.5, 0.75)] == [
        True,
        False,
    ]


def test_the_matrix_column_goes_before_those_that_matter_more(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    rows, bounds = summarise([with_matrix(cell()), cell("vmean", None)])
    for width in range(60, 140, 4):
        text = render(rows, bounds, HEADER, "table", None, width=width).split("\n\nd: ")[0]
        assert "0.188" in text and "[0." in text and "V-Mean" in text
        if "B − B~" in text:
            assert "max" in text


def test_every_format_takes_no_rows_and_rows_of_other_commands():
    rows = [{"of": "B", "layer": 0, "singular_values": [1.0, 0.5] * 40, "stable_rank": 1.5, "flag": None}]
    for format in FORMATS:
        assert isinstance(render([], [], Header(), format, None), str)
        assert "singular" in render(rows, [], HEADER, format, "outputs/x", command="something else")
    assert json.loads(render(rows, [], HEADER, "json", None, command="something else"))["rows"] == rows
    with pytest.raises(UsageError, match="did you mean 'json'"):
        render([], [], Header(), "jason", None)


def test_a_narrow_terminal_breaks_no_word_and_no_number(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [{"name": "x", "tags": ["exact_at_full_budget@gaussian", "nonnegative"], "cost": 1234.5, "n": 123456789012}]
    text = render(rows, [], Header(), "table", None, command="methods", width=30)
    for word in ("exact_at_full_budget@gaussian", "nonnegative", "1234", "123456789012"):
        assert word in text


# --- figures

DRAW = """
import json, sys
from attnprobe.figures.drawing import Drawing
from attnprobe.experiments.error.error_figure import error_figure
rows, bounds = json.load(open(sys.argv[1]))
error_figure(rows, bounds, Drawing(), sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.usefixtures("every_file")
def test_figures_are_the_same_to_the_byte(run, tmp_path, monkeypatch):
    """Drawn twice, and in a fresh process under a matplotlibrc that asks for another backend and texts in SVG."""
    first = error_figure(*run, Drawing(), tmp_path / "a")
    assert [path.name for path in first] == files_of("error-output_spectral")
    error_figure(*run, Drawing(), tmp_path / "b")
    (tmp_path / "rows.json").write_text(json.dumps(run))
    (tmp_path / "matplotlibrc").write_text("backend: svg\nsvg.fonttype: none\n")
    monkeypatch.setenv("MATPLOTLIBRC", str(tmp_path / "matplotlibrc"))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    subprocess.run([sys.executable, "-c", DRAW, tmp_path / "rows.json", tmp_path / "c"], check=True)
    for path in first:
        for other in "bc":
            assert (tmp_path / other / path.name).read_bytes() == path.read_bytes(), path.name
    assert first[1].read_bytes().startswith(b"\x89PNG")
    assert b"Software" not in first[1].read_bytes()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "shape",
    [
        {"budgets": (16,), "lengths": (512,)},
        {"budgets": (16,), "lengths": (512, 1024), "layers": (0, 5)},
        pytest.param({"budgets": (100, 101)}, marks=pytest.mark.slow),
        {"lengths": (512,), "layers": tuple(range(10)), "windows": 1, "heads": 6},
        pytest.param({"windows": 1}, marks=pytest.mark.slow),
    ],
    ids=["one budget", "one budget, four panels", "close budgets", "many layers", "one window"],
)
def test_figures_of_every_shape(tmp_path, shape):
    rows, bounds = summarise(a_run(**shape))
    paths = error_figure(rows, bounds, Drawing(), tmp_path, "output_spectral_relative")
    pages = -(-len({(row["layer"], row["n"]) for row in rows}) // 9)
    assert len(paths) == len(set(paths)) == EACH * pages
    assert all(path.stat().st_size > 5000 for path in paths if path.suffix == ".svg")
    assert paths[0].name == "error-output_spectral_relative.svg"


@pytest.mark.filterwarnings("error")
def test_figures_of_what_went_wrong(tmp_path):
    """Failed rows with and without values, zeros on a logarithmic axis, a method without a budget, hidden names."""
    records = [
        *(cell(d=d, values=[0.0, 100.0]) for d in (16, 32)),
        *(cell("_hidden", d, [1e-9, 0.5], status="diverged") for d in (16, 32)),
        cell("failed", 32, status="failed", metrics={}),
        cell("kernelized", None, [0.1, 0.2]),
        cell("kernelized", None, [0.1, 0.2], n=128),
        cell("huge", 16, [1.7e308, 1.7e308]),
        cell("vmean", None, [0.3, 0.4]),
    ]
    for chosen in (records, [one for one in records if one["d"] != 32]):
        rows, bounds = summarise(chosen)
        assert len(error_figure(rows, bounds, Drawing(), tmp_path)) == EACH


def test_bounds_bars_and_references_are_drawn_where_they_were_measured(tmp_path, pages):
    """A bound at a budget that every method skipped, one that failed, a method at one of two budgets, a lost V-Mean."""
    records = [
        *(cell(d=d, values=[0.5, 1.0]) for d in (16, 32)),
        cell("once", 16, [0.4, 0.6]),
        cell("vmean", None, [None, None]),
        *(cell(LOWER_BOUND, d, [0.4, 0.5]) for d in (16, 32, 64)),
        cell(LOWER_BOUND, 128, status="failed", metrics={}),
    ]
    for chosen, bars in ((records, [1]), ([one for one in records if one["d"] != 32], [])):
        error_figure(*summarise(chosen), Drawing(), tmp_path)
        axis = pages[-1].axes[0]
        segments = [len(one.get_segments()) for one in axis.collections if isinstance(one, LineCollection)]
        assert segments == bars
        assert not any(line.get_linestyle() == "--" for line in axis.lines)
        legend = [text.get_text() for legend in pages[-1].legends for text in legend.get_texts()]
        assert bars or "V-Mean" not in legend
        dotted = [list(line.get_xdata()) for line in axis.lines if line.get_linestyle() == ":"]
        assert dotted == ([[16, 32]] if bars else [[0.45, 0.45], [0.45, 0.45]])


def test_no_figure_without_a_method_or_a_value(tmp_path):
    for records in ([], [cell("vmean", None)], [cell(status="failed", metrics={})], [cell(status="skipped")]):
        rows, bounds = summarise(records)
        if records and records[0]["status"] == "skipped":
            rows[0]["metrics"] = {}
        assert error_figure(rows, bounds, Drawing(), tmp_path) == []
    assert not any(tmp_path.iterdir())


def test_an_exact_v_mean_is_no_measure_of_others():
    """Where attention is uniform V-Mean's error is rounding, and a ratio to it would be too."""
    for relative, ratio in ((3e-8, None), (0.5, 2.0)):
        rows, _ = summarise([cell("vmean", None, [4 * relative]), cell("linear", None, [8 * relative])])
        assert next(row for row in rows if row["method"] == "linear")["over_vmean"]["output_spectral"] == ratio


def test_a_pipe_has_the_width_that_columns_says(monkeypatch):
    """Without COLUMNS a pipe loses nothing; with it, the columns that an answer needs stand, others are left out."""
    records = [cell("skyformer", d, [0.5, 0.25]) for d in (16, 32)] + [cell("vmean", None, [1.0, 2.0])]
    rows, bounds = summarise(records)
    view = errors_view(rows, bounds, Header())
    monkeypatch.delenv("COLUMNS", raising=False)
    whole = view.text("table")
    monkeypatch.setenv("COLUMNS", "68")
    narrow = view.text("table")
    table = [line for line in narrow.splitlines() if "skyformer" in line or "V-Mean" in line or "median" in line]
    assert re.search("‖E‖₂ +‖E‖₂ / ‖BV‖₂", whole) and not re.search("‖E‖₂ +‖E‖₂ / ‖BV‖₂", narrow)
    assert "±" not in whole  # one window has no interval
    assert "Left out: ‖E‖₂ (--columns" in " ".join(narrow.split())
    assert table and all(len(line) <= 68 for line in table)
    for heading in ("method", "median [p10 – p90]", "mean", "max", "V-Mean"):
        assert heading in narrow
    for unknown in ("wide", "0", ""):
        monkeypatch.setenv("COLUMNS", unknown)
        assert view.text("table") == whole
