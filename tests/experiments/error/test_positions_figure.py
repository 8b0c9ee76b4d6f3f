"""Errors and masses over the position of the query as drawn, against those of the records."""

from __future__ import annotations

import math

import numpy as np
import pytest
from error_records import cell, legend_of
from matplotlib.figure import Figure

from attnprobe.experiments.error.heat_maps import MISSING
from attnprobe.experiments.error.positions import positions_figure
from attnprobe.experiments.error.view import summarise
from attnprobe.figures.drawing import Drawing
from attnprobe.figures.files import fixed_settings

KEYS = [1, 2, 4, 8, 16, 32, 64]  # at n = 64 the last is a single query
HEADS = (1.0, 3.0)  # times the errors


def rows(method, errors, d=16, mass=1.0, bad=0.0, **fields):
    """Records of two heads, whose mean error at each position is twice these."""
    profile = {"keys": KEYS, "row_error": [[head * one for one in errors] for head in HEADS]}
    profile["mass"] = [[mass] * len(KEYS)] * 2
    one = cell(method, d, profile=profile, **fields)
    one["metrics"]["bad_rows"] = [bad, 0.0]
    return one


def errors_of(factor, exact=0):
    """Of each position, rounding at so many."""
    return [0.0] * exact + [factor * (1 + place / 10) for place in range(exact, len(KEYS))]


def figures_of(records, style="paper"):
    collected = []
    with fixed_settings(Drawing(style)):
        positions_figure(summarise(records)[0], Drawing(style, collected=collected), "")
    return collected


def drawn(figure, place):
    axis = Figure().subplots()
    figure.draw(axis, figure.panels[place][1])
    return axis


FEW = [
    record
    for layer in (0, 3)
    for d in (16, 32)
    for record in (
        rows("topk", errors_of(0.1, exact=2), d, mass=0.9, layer=layer),
        rows("window", errors_of(0.2, exact=3), d, mass=0.5, layer=layer, bad=2.0 * (d == 32)),
        rows("performer", errors_of(0.3, exact=2), d, layer=layer),
    )
] + [rows("vmean", errors_of(1.0), None, layer=layer) for layer in (0, 3)]


def test_few_methods_are_curves_with_a_column_for_each_budget_and_a_row_for_each_quantity():
    (figure,) = figures_of(FEW)
    names = [(title, name) for title, (name, _) in figure.panels]
    places = [f"layer {layer}, n = 64, d = {d}" for layer in (0, 3) for d in (16, 32)]
    assert names == [(place, "row_error") for place in places] + [("", "mass")] * 4 and figure.columns == 4
    middles = [math.sqrt(a * (2 * a - 1)) for a in KEYS[2:-1]]
    axis = drawn(figure, 1)
    topk, window, performer, vmean = axis.lines
    assert all(line.get_xdata() == pytest.approx(middles) for line in axis.lines), "from the first error on"
    assert topk.get_ydata() == pytest.approx([2 * one for one in errors_of(0.1)[2:-1]])
    assert vmean.get_ydata() == pytest.approx([2 * one for one in errors_of(1.0)[2:-1]])
    assert math.isnan(window.get_ydata()[0]), "rounding"
    assert "At positions below 4 it is rounding alone, and not drawn." in figure.caption
    masses = {tuple(line.get_ydata()) for line in drawn(figure, 5).lines}
    assert masses == {(0.9,) * 4, (0.5,) * 4, ()}, "performer uses all"


def test_curves_of_bad_rows_are_hollow_at_their_budget_alone():
    (figure,) = figures_of(FEW)
    for place, hollow in ((0, []), (1, [1])):
        lines = drawn(figure, place).lines
        assert [number for number, line in enumerate(lines) if line.get_markerfacecolor() == "none"] == hollow
    assert {"window !", "topk"} <= figure.legend.keys() and any("bad rows" in label for label in figure.legend)


def test_the_mass_of_one_method_among_several_has_no_panels():
    (figure,) = figures_of([one for one in FEW if one["method"] != "window"])
    assert [name for _, (name, _) in figure.panels] == ["row_error"] * 4
    (figure,) = figures_of([one for one in FEW if one["method"] == "topk" and one["d"] == 16 and one["layer"] == 0])
    assert [name for _, (name, _) in figure.panels] == ["row_error", "mass"] and figure.columns == 2


def test_panels_of_a_page_share_their_axes_and_say_each_word_once():
    (figure,) = figures_of(FEW)
    drawing = Drawing()
    with fixed_settings(drawing):
        (page,) = figure.pages(drawing)
        sheet = figure.sheet(page, drawing).figure
        sheet.draw_without_rendering()
    axes = sheet.axes
    assert len({axis.get_ylim() for axis in axes[:4]}) == 1 and len({axis.get_xlim() for axis in axes}) == 1
    assert [axis.get_ylabel() for axis in axes] == [
        *("relative error\nof a row, mean", "", "", ""),
        *("mass of the\nkeys used, mean", "", "", ""),
    ]
    titles = [f"layer {layer}, d = {d}" for layer in (0, 3) for d in (16, 32)]
    assert [axis.get_title() for axis in axes] == titles + [""] * 4


def test_positions_stand_below_each_row_of_places():
    """Of five places, three are in a row; below the third of them is nothing."""
    (figure,) = figures_of([one for one in FEW if one["d"]] + [rows("topk", errors_of(0.1), 64, mass=0.9)])
    drawing = Drawing()
    with fixed_settings(drawing):
        (page,) = figure.pages(drawing)
        sheet = figure.sheet(page, drawing).figure
        sheet.draw_without_rendering()
    named = [axis.get_visible() and any(text.get_text() for text in axis.get_xticklabels()) for axis in sheet.axes]
    assert named == [False] * 3 + [True] * 3 + [False] * 3 + [True, True, False]
    assert [bool(axis.get_xlabel()) for axis in sheet.axes[:6]] == [False] * 3 + [True] * 3


MANY = [
    record
    for d in (16, 32)
    for record in [
        *(rows(f"m{number}", errors_of(0.1 * number, exact=number % 3), d) for number in (3, 9, 1, 5, 7, 2, 8)),
        rows("mine.py:mine", errors_of(0.4), d, family="user", bad=float(d == 32)),
    ]
] + [rows("vmean", errors_of(0.45), None)]
RANKED = ["m1", "m2", "m3", "mine.py:mine !", "V-Mean", "m5", "m7", "m8", "m9"]


def test_many_methods_are_lines_of_a_map_ranked_by_their_last_errors():
    (figure,) = figures_of(MANY)
    assert [title for title, _ in figure.panels] == ["layer 0, n = 64, d = 16", "layer 0, n = 64, d = 32"]
    axis = drawn(figure, 1)
    assert [text.get_text() for text in axis.get_yticklabels()] == RANKED
    assert [text.get_text() for text in axis.get_yticklabels() if text.get_fontweight() == "bold"] == RANKED[3:5]
    assert [text.get_text() for text in axis.texts] == ["·"] * 8, "errors of rounding, and no ! at a position"
    (cells,) = axis.collections
    values = np.asarray(cells.get_array()).reshape(len(RANKED), -1)
    low = figure.scale.low
    for line, (factor, exact) in enumerate(
        [(0.1, 1), (0.2, 2), (0.3, 0), (0.4, 0), (0.45, 0), (0.5, 2), (0.7, 1), (0.8, 2), (0.9, 0)]
    ):
        expected = [low] * exact + [2 * one for one in errors_of(factor)[exact:-1]]
        assert values[line].tolist() == pytest.approx(expected)
    assert [*legend_of(figure)] == ["! bad rows (normaliser ≤ 0 or lost)", "· at most 1e-5"]


@pytest.mark.parametrize("count, pages", [(30, 2), (45, 3)])
def test_a_slide_has_as_many_methods_as_can_be_read(count, pages):
    records = [
        rows(f"m{number}", errors_of(0.01 * number), layer=layer) for number in range(1, count) for layer in (0, 1)
    ]
    records += [rows("vmean", errors_of(0.2), None, layer=layer) for layer in (0, 1)]
    figures, slide = figures_of(records, "slide"), Drawing("slide")
    assert len(figures) == pages and len(figures_of(records)) == 1
    with fixed_settings(slide):
        sheets = [figure.sheet(page, slide) for figure in figures for page in figure.pages(slide)]
    assert [len(sheet.figure.axes) for sheet in sheets] == [3] * pages, "two layers and a scale"
    for figure in figures:
        names = [text.get_text() for text in drawn(figure, 0).get_yticklabels()]
        assert "V-Mean" in names and len(names) <= 16


def test_a_method_that_is_missing_at_one_place_is_grey_there():
    (figure,) = figures_of([one for one in MANY if (one["method"], one["d"]) != ("m5", 32)])
    (cells,) = drawn(figure, 1).collections
    values = np.ma.asarray(cells.get_array()).reshape(len(RANKED), -1)
    assert values.mask.sum() == 6 and values.mask[5].all() and MISSING in legend_of(figure)


def test_errors_beyond_the_scale_have_the_colour_of_its_end_and_a_sign():
    far = [rows(name, errors_of(size), d) for name, size in (("small", 1e-4), ("large", 1e4)) for d in (16, 32)]
    (figure,) = figures_of([*MANY, *far])
    axis = drawn(figure, 0)
    low, high = figure.scale.low, figure.scale.high
    assert figure.scale.extend == "both" and low > 1e-3 and high < 1e3
    (cells,) = axis.collections
    assert np.asarray(cells.get_array()).reshape(len(RANKED) + 2, -1)[0].tolist() == [low] * 6
    signs = {(int(text.get_position()[1]), text.get_text()) for text in axis.texts}
    assert {(0, "−"), (len(RANKED) + 1, "+")} <= signs
    assert {"− below the scale", "+ above the scale"} <= {*legend_of(figure)}


def test_a_method_that_used_more_than_d_is_the_last_line():
    more = [rows("moba", errors_of(1e-3), d) for d in (16, 32)]
    for one in more:
        one["metrics"]["realised_d"] = [64, 64]
    (figure,) = figures_of([*MANY, *more])
    assert [text.get_text() for text in drawn(figure, 0).get_yticklabels()] == [*RANKED, "moba (used 64)"]
    assert "Methods stand by rising errors at the last positions at the largest d; last are those that used more" in (
        " ".join(figure.caption)
    )
