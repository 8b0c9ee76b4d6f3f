"""What the figures of ``attnprobe inject`` draw of given rows."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from attnprobe.experiments.inject.figures import DOT, LEAST_WINDOWS, inject_figures
from attnprobe.figures.drawing import Drawing
from attnprobe.figures.methods import MOST_IN_PANEL
from attnprobe.methods import METHODS
from attnprobe.tables.long import LEAST_RANKED


def metric(value):
    """A metric of several windows, with a 95 % interval."""
    return {"mean": value, "se": 0.1 * value, "windows": 2, "count": 2}


def row(method, d, layer=None, steps=None, windows=2, **metrics):
    """A row; in its windows a metric is 1, 2, … times the mean, over ``windows - 1``."""
    fields = dict.fromkeys(("source", "weights", "budgets", "kv_head"))
    fields |= {"n": 64, "prefix": 32 if steps else None, "target": "softmax", "family": "sparse", "status": "ok"}
    fields |= {"method": method, "options": {}, "d": d, "layer": layer, "steps": steps, "reference": False}
    cells = [
        {"window": place, **{name: value * (1 + place) / (windows - 1) for name, value in metrics.items()}}
        for place in range(windows)
    ]
    fields |= {"windows": windows, "repeats": 1, "of_windows": cells}
    return {**fields, "metrics": {name: metric(value) for name, value in metrics.items()}}


def figures(rows):
    """The figures of the rows by their stems."""
    drawing = Drawing(collected=[])
    inject_figures(rows, drawing, "nowhere")
    return {figure.stem: figure for figure in drawing.collected}


@pytest.mark.parametrize("windows", [2, LEAST_WINDOWS])
@pytest.mark.parametrize("count", [2, 8])
def test_points_and_their_spread_stand_at_their_bytes(count, windows):
    """Those of methods that read as many bytes too, and of budgets that are near each other."""
    methods = ("window", "h2o", "tova", "knorm", "snapkv", "expected", "keydiff", "topk")[:count]
    budgets = (1.0, 1.02, 2.0)
    rows = [
        row(
            method,
            place,
            steps={"kl": [0.1]},
            windows=windows,
            read_bytes=mib * 2**20,
            kl=0.2 / (1 + place),
            loss_change=0.1,
        )
        for method in methods
        for place, mib in enumerate(budgets)
    ]
    figure = figures(rows)["inject-bytes-n64"]
    assert ("each window" in figure.legend) == (windows < LEAST_WINDOWS)
    for title, panel in figure.panels:
        axis = Figure().subplots()
        assert figure.draw(axis, panel) is None
        entries = [line for line in axis.lines if line.get_linestyle() != "None"]
        assert title.startswith("n = 64\n") and 0 < len(entries) <= MOST_IN_PANEL
        for line in entries:
            assert line.get_xdata().tolist() == pytest.approx(budgets)
        shown = [line for line in axis.lines if line.get_alpha() == DOT["alpha"]] + [*axis.collections]
        assert all(axis.transData in (one.get_transform(), one.get_transform()._a) for one in shown), "at their bytes"
        dots = [tuple(place) for line in axis.lines if line.get_alpha() == DOT["alpha"] for place in line.get_xydata()]
        known = {(mib, (0.2 / (1 + place) if "KL" in title else 0.1)) for place, mib in enumerate(budgets)}
        of_windows = [(mib, mean * part) for mib, mean in known for part in (1.0, 2.0)] * len(entries)
        few = np.array(sorted(of_windows) if windows < LEAST_WINDOWS else [])
        assert np.array(sorted(dots)) == pytest.approx(few)
        bars = [x for lines in axis.collections for (x, _), _ in lines.get_segments()]
        assert sorted(bars) == pytest.approx([] if windows < LEAST_WINDOWS else sorted(budgets * len(entries)))
        bottom, top = axis.get_ylim()
        assert all(bottom < y < top for y in (y for line in entries for y in line.get_ydata()))


def test_an_interval_does_not_set_the_axis():
    """That of a divergence, which is at least 0, leaves an axis of its points."""
    rows = [row("window", d, steps={"kl": [0.1]}, windows=5, read_bytes=d * 2**20, kl=1 / d) for d in (4, 16)]
    for one in rows:
        one["metrics"]["kl"]["se"] = 30.0
    figure, axis = figures(rows)["inject-bytes-n64"], Figure().subplots()
    figure.draw(axis, figure.panels[0][1])
    low, high = axis.get_ylim()
    assert 0 <= low < 1 / 16 and 1 / 4 < high < 1


def test_names_and_budgets_stand_at_lines_of_bytes():
    """One window has no spread."""
    for windows in (1, LEAST_WINDOWS):
        rows = [
            {
                **row(method, d, steps={"kl": [0.1]}, read_bytes=d * 2**20, kl=0.2 / d, loss_change=0.1 / d),
                "windows": windows,
            }
            for method in ("window", "h2o")
            for d in (4, 16)
        ]
        figure = figures(rows)["inject-bytes-n64"]
        axis = Figure().subplots()
        figure.draw(axis, figure.panels[0][1])
        figure.finish(axis, figure.panels[0][1])
        assert sorted(text.get_text() for text in axis.texts) == ["16", "d = 4", "h2o", "window"]
        assert len(axis.collections) == (0 if windows == 1 else 2) and bool(figure.legend) == (windows > 1)


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


def test_points_with_bad_rows_have_rings_and_their_methods_one_mark_in_all_panels():
    """Panels whose names differed by the mark alone had a legend each."""
    rows = [row("window", 4, layer, drift=0.1, local_error=0.1) for layer in (0, 1)]
    rows += [row("skyformer", d, layer, drift=0.2, local_error=0.2) for layer in (0, 1) for d in (4, 8)]
    rows[-1]["metrics"]["bad_rows"] = {"max": 3.0}
    for stem, figure in figures(rows).items():
        own = [figure.draw(Figure().subplots(), panel) for _, panel in figure.panels]
        assert [[*entries] for entries in own] == [["window", "skyformer !"], ["skyformer !"]], stem
        axis = Figure().subplots()
        figure.draw(axis, figure.panels[-1][1])
        rings = [line for line in axis.lines if line.get_markerfacecolor() == "none"]
        assert len(rings) == 1 and "hollow, !: bad rows (normaliser ≤ 0 or lost)" in figure.legend, stem


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
