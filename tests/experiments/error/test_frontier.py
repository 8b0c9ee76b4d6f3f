"""The figure of error against cost, and its frontier."""

from __future__ import annotations

import math

import numpy as np
import pytest
from error_records import legend_of
from matplotlib.figure import Figure

from attnprobe.experiments.error import cost
from attnprobe.experiments.error.view import pooled
from attnprobe.figures.costs import RULE, STEPS
from attnprobe.figures.drawing import Drawing
from attnprobe.figures.files import fixed_settings

HEADS = [1.0, 2.0, 4.0, 8.0]  # the errors of heads; methods have multiples of them


def cells(method, visited, factor, d=8, layers=(0, 1), **fields):
    """Records of a method whose errors are those of `HEADS` times a factor, which differs a little between heads."""
    errors = [factor * error * (1 + 0.02 * place) for place, error in enumerate(HEADS)]
    metrics = {"output_spectral_relative": errors, "visited_fraction": [visited] * 4, **fields.pop("metrics", {})}
    place = {"options": {}, "target": "softmax", "n": 64, "window": 0, "repeat": 0, "heads": [0, 1, 2, 3]}
    state = {"status": "ok", "reason": None, "source": {}, "family": "x", "requested": True, "reference": False}
    record = {**place, **state, "method": method, "d": d, "metrics": metrics, **fields}
    return [{**record, "layer": layer} for layer in layers]


VMEAN = cells("vmean", 0.0, 1.0, None, requested=False, reference=True)
FIVE = [
    *cells("dear", 0.9, 0.1),
    *cells("cheap", 0.1, 0.5),
    *cells("beaten", 0.5, 0.7),
    *cells("worse", 0.05, 1.5),
    *cells("more", 1.0, 0.001),
]


def test_pooled_rows_are_over_all_layers():
    (row,) = pooled(cells("a", 0.5, 1.0, layers=(0, 3)))
    assert row["layer"] == "0, 3" and row["metrics"]["output_spectral_relative"]["count"] == 8
    assert math.isclose(row["metrics"]["output_spectral_relative"]["max"], 8.48)


def test_the_figure_names_the_methods_that_it_lacks(tmp_path):
    bare = cells("bare", 0.5, 0.3)
    for record in bare:
        record["metrics"].pop("visited_fraction", None)
    cost.cost_figure(pooled([*FIVE, *bare]), Drawing(), tmp_path, "output_spectral_relative")
    (words,) = (path.read_text() for path in tmp_path.glob("*.txt"))
    assert "Not drawn, as they state no cost: bare." in words and "keys and values read" not in words
    cost.cost_figure(pooled(FIVE), Drawing(), tmp_path, "output_spectral_relative")
    assert all("Not drawn" not in path.read_text() for path in tmp_path.glob("*.txt"))


def test_the_figure_names_methods_that_state_one_of_two_costs(monkeypatch, tmp_path):
    """Exact attention is a line, and states no keys that it reads."""
    reads = [one for name in ("reads", "also") for one in cells(name, 0.3, 0.45, metrics={"kv_read": [8.0] * 4})]
    records = [*cells("cheap", 0.1, 0.5), *cells("softmax", 1.0, 0.001, None), *VMEAN]
    alone = figure_of([*reads[: len(reads) // 2], *records], monkeypatch, tmp_path)
    assert [panel[0] for _, panel in alone.panels] == ["visited_fraction"]
    assert "No panel of keys and values read: only reads states their number." in alone.caption
    assert not any("Not drawn" in line for line in alone.caption)
    figure = figure_of([*reads, *records], monkeypatch, tmp_path)
    assert "Not drawn, as they state no number of keys and values read: cheap." in figure.caption
    assert not any("number of entries visited" in line for line in figure.caption)
    visited, read = legend_of(figure, 0), legend_of(figure, 1)
    assert cost.EXACT_LABEL in visited and cost.EXACT_LABEL not in read
    assert names_of(figure) == ["reads", "also", "cheap"] and names_of(figure, 1) == ["reads", "also"]


def names_of(figure, place=0):
    """The names of methods in a panel."""
    axis = Figure(figsize=(9, 6)).subplots()
    figure.on(axis, *figure.panels[place], with_legend=False)
    return [text.get_text() for text in axis.texts]


def edges_of(figure):
    """The edges of the points in colour, method by method."""
    axis = Figure().subplots()
    figure.draw(axis, figure.panels[0][1])
    return [line.get_markeredgecolor() for line in axis.lines if line.get_markersize() == 5.5]


def figure_of(records, monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(cost, "draw_figures", lambda drawn, *_: figures.extend(drawn))
    cost.cost_figure(pooled(records), Drawing(), tmp_path, cost.OUTPUT)
    return figures[0]


@pytest.mark.parametrize("more", [0, 8])
def test_the_steps_are_those_of_medians_below_v_mean_and_left_of_exact_attention(more, monkeypatch, tmp_path):
    """A test of heads chose them from 5 methods on: points lay under the steps, and of one head there were none."""
    spoiled = cells("spoiled", 0.05, 0.001, metrics={"bad_rows": [1.0] * 4})
    others = [one for number in range(more) for one in cells(f"m{number}", 0.9, 0.9)]
    records = [*FIVE, *cells("near", 0.25, 0.49), *spoiled, *others, *VMEAN]
    figure = figure_of(records, monkeypatch, tmp_path)
    (_, (_, _, _, steps)) = figure.panels[0]
    assert [(point.label, point.cost) for point in steps] == [("cheap", 10.0), ("near", 25.0), ("dear", 90.0)]
    medians = [np.median(HEADS * np.array([1, 1.02, 1.04, 1.06])) * factor for factor in (0.5, 0.49, 0.1)]
    assert [point.error for point in steps] == pytest.approx(medians)
    assert legend_of(figure).keys() >= STEPS.keys() and RULE in figure.caption
    axis = Figure().subplots()
    figure.draw(axis, figure.panels[0][1])
    (line,) = (line for line in axis.lines if line.get_drawstyle() == "steps-post")
    assert line.get_ydata()[0] == pytest.approx(np.median(HEADS * np.array([1, 1.02, 1.04, 1.06]))), "V-Mean's"
    hollow = [line for line in axis.lines if line.get_markerfacecolor() == "none" and len(line.get_xdata())]
    assert [line.get_xydata().tolist() for line in hollow] == [[[5.0, pytest.approx(0.0031)]]]


def test_no_panel_has_a_frontier_above_v_mean(monkeypatch, tmp_path):
    """V-Mean states no keys that it reads; there a method of a larger error was the frontier."""
    reads = [*cells("reads", 0.3, 1.5, metrics={"kv_read": [8.0] * 4})]
    reads += cells("reads", 0.6, 0.5, d=16, metrics={"kv_read": [16.0] * 4})
    reads += cells("also", 0.3, 1.6, metrics={"kv_read": [8.0] * 4})
    figure = figure_of([*reads, *VMEAN], monkeypatch, tmp_path)
    assert [[point.d for point in panel[3]] for _, panel in figure.panels] == [[16], [16]]


def test_of_many_methods_those_of_the_frontier_and_the_users_own_have_colours(monkeypatch, tmp_path):
    many = [one for number in range(8) for one in cells(f"worse {number}", 0.9, 0.9)]
    own = cells("mine.py:mine", 0.8, 0.95, family="user")
    figure = figure_of([*FIVE, *many, *own, *VMEAN], monkeypatch, tmp_path)
    legend = legend_of(figure)
    assert {*names_of(figure)} == {"cheap", "dear", "mine.py:mine"} and "11 other methods" in legend
    assert any(line.startswith("Grey: methods without a point") and "worse 7" in line for line in figure.caption)
    assert sorted(edges_of(figure)) == ["black", "white", "white"]
    assert "Black edges: the user's own methods." in figure.caption
    few = figure_of([*own, *FIVE[:4], *VMEAN], monkeypatch, tmp_path)
    assert {*edges_of(few)} == {"white"}


def test_grey_methods_far_above_v_mean_are_named_in_the_caption_and_do_not_stretch_the_axis(monkeypatch, tmp_path):
    many = [one for number in range(8) for one in cells(f"worse {number}", 0.9, 2.0)]
    figure = figure_of([*FIVE, *many, *cells("far", 0.2, 500.0), *VMEAN], monkeypatch, tmp_path)
    axis = Figure().subplots()
    figure.draw(axis, figure.panels[0][1])
    assert axis.get_ylim()[1] < 100 and "Not on the axis: far (above: ≥ 1000)." in figure.caption
    assert "11 other methods" in legend_of(figure) and "far" in names_of(figure), "an arrow has its name"


def test_without_steps_no_legend_or_caption_has_a_frontier(monkeypatch, tmp_path):
    """All have larger errors than V-Mean."""
    records = [one for number in range(1, 10) for one in cells(f"m{number}", 0.05 * number, 1 + 0.1 * number)]
    figure = figure_of([*records, *VMEAN], monkeypatch, tmp_path)
    words = " ".join([*figure.caption, *legend_of(figure)])
    assert "frontier" not in words and "Grey: methods of larger errors, with names where there is room." in words
    assert names_of(figure) == [f"m{number}" for number in range(1, 10)], "the last three are grey"


def test_half_of_a_slide_is_its_panels(monkeypatch, tmp_path):
    """A legend in one column left them 30 %."""
    figures = []
    monkeypatch.setattr(cost, "draw_figures", lambda drawn, *_: figures.extend(drawn))
    grey = [one for number in range(9) for one in cells(f"grey {number}", 0.95, 0.9)]
    reads = cells("reads", 0.3, 0.4, metrics={"kv_read": [8.0] * 4})
    spoiled = cells("spoiled", 0.05, 0.001, metrics={"bad_rows": [1.0] * 4})
    records = [*FIVE, *grey, *reads, *spoiled, *VMEAN]
    slide = Drawing("slide")
    cost.cost_figure(pooled(records), slide, tmp_path, cost.OUTPUT)
    with fixed_settings(slide):
        (page,) = figures[0].pages(slide)
        drawn = figures[0].sheet(page, slide).figure
        drawn.draw_without_rendering()
    assert len(drawn.legends[0].get_texts()) == 5
    assert all(axis.get_position().height > 0.5 for axis in drawn.axes)


def test_a_panel_of_a_cost_that_no_method_of_the_place_states_has_no_upright_line(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(cost, "draw_figures", lambda drawn, *_: figures.extend(drawn))
    softmax = cells("softmax", 0.8, 1e-7, None)
    reads = cells("reads", 0.3, 0.4, n=32, metrics={"kv_read": [8.0] * 4})
    del reads[0]["metrics"]["visited_fraction"]  # which its layers share
    records = [*FIVE, *softmax, *reads, *cells("softmax", 0.8, 1e-7, None, n=32)]
    records += cells("vmean", 0.0, 1.0, None, n=16, requested=False, reference=True)  # alone, which is no panel
    cost.cost_figure(pooled(records), Drawing(), tmp_path, cost.OUTPUT)
    uprights = {}
    for title, panel in figures[0].panels:
        axis = Figure().subplots()
        figures[0].draw(axis, panel)
        uprights[title, panel[0]] = [line.get_xdata()[0] for line in axis.lines if line.get_color() == "black"]
        assert axis.get_visible() == bool(panel[2])  # a logarithmic axis of no point has no ticks
    assert uprights == {
        ("layers 0-1, n = 64, d = 8", "visited_fraction"): [80.0],
        ("layers 0-1, n = 64, d = 8", "kv_read"): [],
        ("layers 0-1, n = 32, d = 8", "visited_fraction"): [],
        ("layers 0-1, n = 32, d = 8", "kv_read"): [],
    }


def test_exact_attention_among_the_methods_is_a_line_that_does_not_stretch_the_axis(monkeypatch, tmp_path):
    figures, limits = [], []
    monkeypatch.setattr(cost, "draw_figures", lambda drawn, *_: figures.extend(drawn))
    for records in (FIVE, [*FIVE, *cells("softmax", 0.8, 1e-7, None)]):
        cost.cost_figure(pooled(records), Drawing(), tmp_path, cost.OUTPUT)
        axis = Figure().subplots()
        figures[-1].draw(axis, figures[-1].panels[0][1])
        limits.append(axis.get_ylim())
        uprights = [line.get_xdata()[0] for line in axis.lines if line.get_color() == "black"]
    assert limits[0] == limits[1] and uprights == [80.0]  # where its row says what it costs
    assert "softmax" not in legend_of(figures[-1]) and cost.EXACT_LABEL in legend_of(figures[-1])


def test_the_caption_of_costs_names_the_points_that_are_left_out_as_rounding(monkeypatch, tmp_path):
    line = [*cells("line", 0.2, 0.002, 8), *cells("line", 0.4, 1e-8, 16)]
    records = [*FIVE, *line, *cells("exact", 0.3, 1e-7, None), *cells("zero", 0.3, 0.0, None)]
    figure = figure_of([*records, *cells("huge", 0.3, 1e302, None)], monkeypatch, tmp_path)
    words = "Not on the axis: line (d = 16 below: ≤ 4e-8), exact (below: ≤ 4e-7), zero (below: 0)."
    assert words in figure.caption and not any("below" in label for label in legend_of(figure))
    assert {*names_of(figure)} >= {"line", "exact", "zero"} and "huge" not in names_of(figure)
