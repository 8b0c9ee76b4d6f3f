"""What the tables and figures of ``attnprobe inject`` show of given cells."""

import pytest
from inject_rows import metrics, shown_of
from paths import GOLDEN
from scipy.stats import spearmanr

from attnprobe.frame.records.read import read_records
from attnprobe.show.drawing import prepared
from attnprobe.show.figure import draw
from attnprobe.show.looks import FIXED, PALE

MIB = 2**20


def golden(run="inject-decode", **place):
    """The cells of a golden run at a place, with pretrained weights."""
    cells = [cell for cell in read_records(GOLDEN / "runs" / run) if cell["source"]["weights"] == "pretrained"]
    return [cell for cell in cells if all(cell[name] == value for name, value in place.items())]


def copied(cell, key, rows=None, **fields):
    """The cell under another key, with other fields, and other rows."""
    rows = cell["rows"] if rows is None else rows
    return {
        **cell,
        "key": f"{key}{cell['key']}",
        **fields,
        "rows": [{**row, "key": f"{key}{cell['key']}"} for row in rows],
    }


def with_metrics(cell, **numbers):
    """The cell whose model has other numbers."""
    return copied(cell, "x", [{**row, **numbers} if row["kind"] == "head" else row for row in cell["rows"]])


def panels(cells, name):
    """The panels of a figure, and the frame of its rows."""
    shown = shown_of(cells)
    [figure] = [figure for figure in shown.catalogue.figures if figure.name == name]
    frame = shown.frame(figure.kind)
    return prepared(frame, figure, shown.frame("head"), None).panels, draw(frame, figure, methods=shown.frame("head"))


def series(panel):
    return {name: rows for name, rows in panel.points.groupby("name")}


def test_steps_are_the_means_so_far_of_all_layers_together():
    """Those of a layer alone, a KV head and exact attention have no line."""
    cells = golden()
    alone = [copied(cell, "a", layer=0, alone=True) for cell in cells]
    found, _ = panels([*cells, *alone], "inject-steps")
    drawn = {(name, dict(panel.column)["d"]): rows for panel in found for name, rows in series(panel).items()}
    assert drawn.keys() == {("topk", 3), ("topk", 6), ("window", 6)}
    for (name, d), rows in drawn.items():
        means = [metrics(cell)["kl"] for cell in cells if (cell["method"], cell["d"]) == (name, d)]
        assert rows["value"].iloc[-1] == pytest.approx(sum(means) / len(means))
        assert rows["along"].tolist() == [0, 1, 2, 3, 4, 5]


def test_policies_stand_at_the_bytes_that_a_step_reads():
    cells = golden()
    found, _ = panels(cells, "inject-bytes")
    assert [panel.measured for panel in found] == ["kl", "loss_change"]
    for panel in found:
        places = {(name, row["d"]): row for name, rows in series(panel).items() for _, row in rows.iterrows()}
        assert places.keys() == {("topk", 3), ("topk", 6), ("window", 6)}
        for (name, d), row in places.items():
            of = [metrics(cell) for cell in cells if (cell["method"], cell["d"]) == (name, d)]
            assert row["along"] == pytest.approx(sum(one["read_bytes"] for one in of) / len(of) / MIB)
            values = sorted(one[panel.measured] for one in of)
            assert row["value"] == pytest.approx(sum(values) / len(values))
            assert row["p10"] == pytest.approx(values[0] + 0.1 * (values[-1] - values[0]))


def test_a_policy_without_a_change_of_the_loss_has_no_point_of_it():
    cells = [with_metrics(cell, loss_change=None) if cell["method"] == "window" else cell for cell in golden()]
    kl, change = panels(cells, "inject-bytes")[0]
    assert series(kl).keys() == {"topk", "window"} and series(change).keys() == {"topk"}


def deeper(layers, budgets=(4,)):
    """Cells of one method in so many layers by themselves, and in all together."""
    [base, *_] = [cell for cell in golden("inject", method="skyformer", alone=True)]
    cells = []
    for d in budgets:
        for layer in range(layers):
            numbers = {"drift": 0.1 * (1 + (layer * d) % 7), "local_error": 0.1 + layer}
            rows = [{**base["rows"][0], **numbers}]
            cells.append(copied(base, f"{d}l{layer}", rows, layer=layer, layers=f"{layer}", d=d))
        together = {"layer": None, "alone": False, "layers": f"0-{layers - 1}", "d": d}
        cells.append(copied(base, f"{d}all", [{**base["rows"][0], "drift": 2.0}], **together))
    return cells


def test_all_layers_together_stand_behind_the_layers():
    [panel], drawn = panels(deeper(6), "inject-layers")
    points = panel.points.sort_values("along")
    assert points["value"].tolist() == pytest.approx([0.1 * (1 + (layer * 4) % 7) for layer in range(6)] + [2.0])
    assert drawn.axes[0].get_xticklabels()[-1].get_text() == "all"


@pytest.mark.parametrize(("layers", "there"), [(5, False), (6, True)])
def test_a_rank_correlation_of_few_layers_is_not_shown(layers, there):
    cells = deeper(layers)
    _, drawn = panels(cells, "inject-local")
    [words] = [text.get_text() for text in drawn.legends[0].get_texts() if "skyformer" in text.get_text()]
    assert ("ρ" in words) == there
    if there:
        points = [(metrics(cell)["local_error"], metrics(cell)["drift"]) for cell in cells if cell["alone"]]
        assert f"{spearmanr(*zip(*points, strict=True)).statistic:+.2f}".replace("-", "−") in words


def test_single_kv_heads_are_in_no_figure_and_in_no_table_of_layers():
    cells = [copied(cell, f"h{head}", kv_head=head) for cell in deeper(6) if cell["alone"] for head in (0, 1)]
    shown = shown_of(cells)
    assert {row["table"] for row in shown.rows} == {"predictors"}
    [line] = shown.rows
    assert line["places"] == "KV heads" and line["points"] == 12
    assert not [path for figure in shown.figures.values() for path in figure.draw(GOLDEN / "nowhere")]


def test_a_drift_that_is_null_is_not_the_smallest():
    cells = golden("inject", window=0)
    lost = [with_metrics(cell, drift=None) if cell["method"] == "linear" else cell for cell in cells]
    [grid, *_] = shown_of(lost).tables
    [drift] = [number for number, column in enumerate(grid.columns) if column.name == "drift.mean"]
    named = {line[0].value: line[drift] for line in grid.cells}
    assert named["linear"].empty and named["skyformer"].value == pytest.approx(
        next(metrics(cell)["drift"] for cell in cells if cell["method"] == "skyformer" and not cell["alone"])
    )


def test_layers_that_are_replaced_are_named_and_a_model_with_windows_says_which_are_global():
    [grid, *_] = shown_of(golden("inject")).tables
    assert "layers 0-1 replaced" in grid.reasons
    facts = {"layers": "1", "model_layers": 2, "global_layers": "1"}
    cells = [copied(cell, "g", **facts) for cell in golden("inject", alone=False)]
    [grid, *_] = shown_of(cells).tables
    assert "layer 1 is global and replaced; the other 1 keeps exact attention to its window" in grid.reasons


def test_vmean_has_points_among_others_and_no_line_joins_methods_in_the_background():
    """It is a requested method here, and no yardstick: its points were not drawn, others were joined."""
    of = {f"m{number}": deeper(6) for number in range(10)} | {"vmean": deeper(6)}
    cells = [copied(cell, name, method=name, family=name) for name, some in of.items() for cell in some]
    found, drawn = panels(cells, "inject-local")
    assert len(found) > 1
    for axis in drawn.axes:
        assert all(
            line.get_linestyle() == "None" and line.get_marker() == "o"
            for line in axis.get_lines()
            if line.get_color() == PALE
        )
    assert any("V-Mean" in text.get_text() for text in drawn.legends[0].get_texts())
    of_vmean = [
        line
        for axis in drawn.axes
        for line in axis.get_lines()
        if line.get_marker() not in ("None", "") and line.get_color() == FIXED["vmean"].colour
    ]
    assert sum(len(line.get_xdata()) for line in of_vmean) == 6
