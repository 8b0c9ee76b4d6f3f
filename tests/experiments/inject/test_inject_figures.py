"""What the figures of ``attnprobe inject`` draw of given rows."""

import pytest
from matplotlib.figure import Figure

from attnprobe.experiments.inject.figures import BELOW, CUT, inject_figures
from attnprobe.figures.drawing import Drawing
from attnprobe.figures.methods import MOST_IN_PANEL
from attnprobe.methods import METHODS
from attnprobe.tables.long import LEAST_RANKED


def metric(value):
    """A metric of two windows, with a 95 % interval."""
    return {"mean": value, "se": 0.1 * value, "windows": 2, "count": 2}


def row(method, d, layer=None, steps=None, **metrics):
    fields = dict.fromkeys(("source", "weights", "budgets", "kv_head"))
    fields |= {"n": 64, "prefix": 32 if steps else None, "target": "softmax", "family": "sparse", "status": "ok"}
    fields |= {"method": method, "options": {}, "d": d, "layer": layer, "steps": steps, "reference": False}
    return {**fields, "windows": 2, "repeats": 1, "metrics": {name: metric(value) for name, value in metrics.items()}}


def figures(rows):
    """The figures of the rows by their stems."""
    drawing = Drawing(collected=[])
    inject_figures(rows, drawing, "nowhere")
    return {figure.stem: figure for figure in drawing.collected}


@pytest.mark.parametrize("count", [2, 8])
def test_points_and_bars_stand_at_their_bytes(count):
    """Those of methods that read as many bytes too, and of budgets that are near each other."""
    methods = ("window", "h2o", "tova", "knorm", "snapkv", "expected", "keydiff", "topk")[:count]
    budgets = (1.0, 1.02, 2.0)
    rows = [
        row(method, place, steps={"kl": [0.1]}, read_bytes=mib * 2**20, kl=0.2 / (1 + place), loss_change=0.1)
        for method in methods
        for place, mib in enumerate(budgets)
    ]
    figure = figures(rows)["inject-bytes-n64"]
    for title, panel in figure.panels:
        axis = Figure().subplots()
        entries = dict(figure.draw(axis, panel))
        assert title.startswith("n = 64\n") and (entries.pop(BELOW, None) is not None) == ("KL" in title)
        assert 0 < len(entries) <= MOST_IN_PANEL
        for line in entries.values():
            assert line.get_xdata().tolist() == pytest.approx(budgets)
        bars = [x for lines in axis.collections for (x, _), _ in lines.get_segments()]
        assert sorted(bars) == pytest.approx(sorted(budgets * len(entries)))
        ends = [y for lines in axis.collections for segment in lines.get_segments() for _, y in segment]
        cut = [x for line in axis.lines if line.get_marker() == CUT["marker"] for x in line.get_xdata()]
        bottom, top = axis.get_ylim()
        assert max(ends) <= top and len([y for y in ends if y < bottom]) == len(cut), "a bar that leaves has a triangle"


def test_budgets_stand_at_points_of_bytes_and_bars_beside_each_other():
    """Without an interval there is no bar."""
    rows = [
        row(method, d, steps={"kl": [0.1]}, read_bytes=d * 2**20, kl=0.2 / d, loss_change=0.1 / d)
        for method in ("window", "h2o")
        for d in (4, 16)
    ]
    for se in (0.01, None):
        for one in rows:
            one["metrics"] = {name: {**values, "se": se} for name, values in one["metrics"].items()}
        figure = figures(rows)["inject-bytes-n64"]
        axis = Figure().subplots()
        figure.draw(axis, figure.panels[0][1])
        figure.finish(axis, figure.panels[0][1])
        assert sorted(text.get_text() for text in axis.texts) == ["16", "16", "4", "d = 4"]
        places = {round(lines.get_transform().transform((4, 1))[0], 3) for lines in axis.collections}
        assert len(places) == (0 if se is None else 2)


@pytest.mark.parametrize("layers", [LEAST_RANKED - 1, LEAST_RANKED])
def test_a_rank_correlation_of_few_layers_is_not_shown(layers):
    """Not in the legend, the title nor the caption."""
    rows = [row("window", 8, layer, drift=1 + layer, local_error=2 + layer) for layer in range(layers)]
    figure = figures(rows)["inject-local-n64"]
    (legend,) = figure.draw(Figure().subplots(), figure.panels[0][1])
    shown = [any("ρ" in word for word in words) for words in ([legend], [figure.title], figure.caption)]
    assert shown == [layers == LEAST_RANKED] * 3
    assert any("rank correlation of all" in line for line in figure.caption) == (layers == LEAST_RANKED)


def test_a_rank_correlation_stands_below_its_budget():
    """A method without a budget is in both panels. Legends are whole, as one method has another ρ in each."""
    layers = range(LEAST_RANKED)
    rows = [
        row("window", d, layer, drift=1 + (layer * d) % 9, local_error=2 + layer) for layer in layers for d in (2, 8)
    ]
    rows += [row("linear", None, layer, drift=1 + layer, local_error=2 + layer) for layer in layers]
    figure = figures(rows)["inject-local-n64"]
    sheet = figure.sheet(figure.panels, Drawing())
    owns = [[text.get_text() for text in axis.get_legend().get_texts()] for axis in sheet.figure.axes]
    assert len(owns) == 2 and not sheet.figure.legends
    for window, linear in owns:
        assert window.startswith("window, Spearman's ρ = ") and linear == "linear, Spearman's ρ = +1.00"


def test_a_method_has_its_mark_in_the_panels_where_it_has_bad_rows():
    """It had the mark at a d without any too."""
    rows = [row("window", 4, layer, drift=0.1, local_error=0.1) for layer in (0, 1)]
    rows += [row("skyformer", d, layer, drift=0.2, local_error=0.2) for layer in (0, 1) for d in (4, 8)]
    rows[-1]["metrics"]["bad_rows"] = {"max": 3.0}
    for stem, figure in figures(rows).items():
        own = [figure.draw(Figure().subplots(), panel) for _, panel in figure.panels]
        assert [[*entries] for entries in own] == [
            ["window", "skyformer"],
            ["skyformer !", "bad rows (normaliser ≤ 0 or lost)"],
        ], stem


@pytest.mark.parametrize("style, budgets, across", [("paper", 2, 2), ("paper", 3, 3), ("paper", 4, 2), ("slide", 2, 2)])
def test_a_row_of_panels_has_the_budgets_of_a_family(style, budgets, across):
    """Of 7 methods in panels of families; of four budgets, half."""
    methods = ("skyformer", "nystromformer", "linformer", "performer", "topk", "window", "bigbird")
    rows = [
        {**row(method, 2**d, layer, drift=0.1, local_error=0.1), "family": METHODS[method].family}
        for method in methods
        for d in range(budgets)
        for layer in (0, 1)
    ]
    for figure in figures(rows).values():
        assert figure._across(Drawing(style)) == across and len(figure.panels) % budgets == 0


@pytest.mark.parametrize("count, shown", [(6, 6), (30, 10)])
def test_an_axis_of_layers_names_about_ten(count, shown):
    rows = [row("window", 8, layer, drift=0.1, local_error=0.1) for layer in [*range(count), None]]
    figure, axis = figures(rows)["inject-layers-n64"], Figure().subplots()
    figure.draw(axis, figure.panels[0][1])
    assert [text.get_text() for text in axis.get_xticklabels()] == [*map(str, range(0, count, count // shown)), "all"]


def test_a_panel_of_steps_has_at_most_six_methods():
    rows = [row(f"m{place}", 8, steps={"kl": [0.1, 0.2]}, kl=0.1) for place in range(10)]
    figure = figures(rows)["inject-steps-n64"]
    legends = [figure.draw(Figure().subplots(), panel) for _, panel in figure.panels]
    assert sum(map(len, legends)) == 10 and max(map(len, legends)) <= MOST_IN_PANEL
