"""What views show of records that are possible, but in no golden run."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from error_records import legend_of
from golden.rewrite import COMMANDS
from matplotlib.figure import Figure
from paths import GOLDEN

from attnprobe.experiments import experiment, shape_of
from attnprobe.experiments.base import Recorded
from attnprobe.experiments.error.error_figure import BEYOND_EDGE
from attnprobe.experiments.error.papers import Reference, Value
from attnprobe.experiments.inject.view import _interval
from attnprobe.figures.drawing import Drawing
from attnprobe.tables.console import Header

LISTS = ("statements", "results", "findings", "matrices", "conditions")  # of what a cell measured
OF_RECORDS = [name for name in COMMANDS if experiment(name.partition("-")[0]).catalogue is None]
PARTS = ("profile", "lines", "singular_values")


def golden(run):
    lines = (GOLDEN / "runs" / run / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def shown(command, records, **recorded):
    """The view of records, the figures by their stem, and the axes of each figure."""
    records = [{**record, "key": f"{number}"} for number, record in enumerate(records)]  # copies are cells of their own
    problems = [shape_of(command).problem(record) for record in records]
    assert not any(problems), problems
    figures, axes = [], {}
    view = experiment(command).view(Recorded(records, Header(), Path(), drawing=Drawing(collected=figures), **recorded))
    for kind in view.figures.values():
        kind.draw("")
    for figure in figures:
        for _, rows in figure.panels:
            axes.setdefault(figure.stem, []).append(Figure().add_subplot())
            figure.draw(axes[figure.stem][-1], rows)
    return view, {figure.stem: figure for figure in figures}, axes


def with_metrics(record, **metrics):
    """The record with other metrics; None takes one away."""
    every = {**record["metrics"], **metrics}
    return {**record, "metrics": {name: value for name, value in every.items() if value is not None}}


@pytest.mark.parametrize("run", OF_RECORDS)
def test_a_run_of_which_every_cell_was_skipped_is_shown(run):
    records = []
    for record in golden(run):
        known = {name: value for name, value in record.items() if name not in PARTS}
        known |= {"steps": None} if run == "inject-decode" else {}
        empty = {name: [] for name in LISTS if name in record}
        records.append({**known, "status": "skipped", "reason": None, "metrics": {}, **empty})
    view, figures, _ = shown(run.partition("-")[0], records)
    assert "skipped" in view.text("table") and "nan" not in view.text("table")
    assert not figures


@pytest.mark.parametrize("run", OF_RECORDS)
def test_a_run_of_one_cell_is_shown(run):
    [*_, record] = [one for one in golden(run) if one["requested"] and one["status"] == "ok"]
    for name in LISTS:  # of one statement, too
        record |= {name: record[name][:1]} if record.get(name) else {}
    view, _, _ = shown(run.partition("-")[0], [record])
    assert (record.get("method") or record.get("of") or record["theorem"]) in view.text("table")


def test_curves_of_decoding_have_markers_side_by_side():
    records = []
    for record in golden("inject-decode"):
        long = {"steps": {name: 12 * values for name, values in record["steps"].items()}} if record.get("steps") else {}
        records.append({**record, **long})
    _, figures, axes = shown("inject", records)
    [stem] = [stem for stem in figures if stem.startswith("inject-steps")]
    for axis in axes[stem]:
        marked = []
        for line in axis.get_lines():
            (first, step), places = line.get_markevery(), range(len(line.get_xdata()))
            assert line.get_marker() != "None"
            marked.append(places[first::step])
        every = [place for places in marked for place in places]
        assert len(marked) > 1 and len(set(every)) == len(every) and min(map(len, marked)) >= 6


def test_stability_of_all_tasks_in_the_papers_setting():
    """A task from two texts has two tables; what failed has no figure, and a null has no point."""
    softmax, kernelized, skyformer = (
        [one for one in golden("stability") if one["method"] == name] for name in ("softmax", "kernelized", "skyformer")
    )
    half = {**kernelized[0], "metrics": {"tau": [1.0, None, 2.0]}}
    lost = {"status": "failed", "metrics": {}, "conditions": []}
    records = [*softmax, half, {**kernelized[1], **lost}]
    for task, source in (("text", "a0"), ("text", "f0"), ("retrieval", ""), ("pathfinder", ""), ("image", "")):
        place = {"task": task, "source": {"task": task, "text_sha256": source}}
        place |= {"paper_setting": {"n": 64, "batch": 2, "rate": 1e-4}} | (lost if task != "text" else {})
        records += [softmax[0] | place, skyformer[0] | {"status": "diverged"} | place]
    view, figures, axes = shown("stability", records)
    text = view.text("table")
    assert "tasks: listops, text, retrieval, pathfinder, image of the paper's five\n" in text
    assert "\ntext here: the batch, length and learning rate of the paper\n" in text
    row = next(row for row in view.rows if row["method"] == "kernelized")
    assert row["tau"] is None and row["ratio"] is None and row["loss_first"] is None
    first, *others = figures
    assert first == "stability-listops" and all(stem.startswith("stability-text-text") for stem in others)
    assert len(others) == 2
    curves = [[line for line in axis.get_lines() if line.get_alpha() is None] for axis in axes[first]]
    shown_steps = [[len(line.get_xdata()) for line in some] for some in curves]
    assert shown_steps[0] == [3, 2] and shown_steps[1:3] == [[3]] * 2


def test_condition_of_methods_with_a_matrix_of_one_name():
    """Of a user's method the cores may have any name, and be singular or unknown all over."""
    exact, skyformer, *_ = golden("condition")
    [core] = [one for one in skyformer["matrices"] if one["matrix"] == "N"]
    lost = {"cond": [None, None], "cond_eff": [None, None], "rank": [0, 0], "residuals": [[None, 1.0]] * 2}
    lost = {**core, "metrics": {**core["metrics"], **lost, "lemma3": ["violated", "holds"]}}
    user = {**core, "matrix": "K_1", "inverted": False}
    bare = {"status": "ok", "reason": "held to be decomposed", "matrices": [], "n": 99}
    bare |= {"metrics": {"sensitivity": {"B": [[None, 2.0], [4.0, None]]}}}
    records = [
        {**skyformer, "matrices": [lost, user]},
        {**skyformer, "method": "mine.py:core", "matrices": [lost, user]},
        {**skyformer, "d": 8, "matrices": [user]},
        {**skyformer, "source": {"qkv": "other.npz"}, "matrices": [core]},
        {**exact, **bare},
    ]
    view, figures, axes = shown("condition", records)
    text = view.text("table")
    assert "Lemma 3, N of mine.py:core, d = 4: holds in 1 of 2 heads, violated in 1; eigenvalues" in text
    assert "\nheld to be decomposed\n" in text and "B         3.00  [2.20 – 3.80]  4.00\n" in text
    of_file = "d4-qkv.safetensors"
    assert list(figures) == [
        *(f"condition-n24-{of_file}", f"condition-iterations-n24-{of_file}"),
        *("condition-n24-d8-qkv.safetensors", "condition-iterations-n24-d8-qkv.safetensors"),
        *("condition-n24-d4-other.npz", "condition-iterations-n24-d4-other.npz"),
    ]
    longer = {**core, "metrics": {**core["metrics"], "residuals": [[1.0] * 9] * 2}}
    view, _, _ = shown("condition", [{**skyformer, "matrices": [one]} for one in (core, longer)])
    [row] = (row for row in view.summary if "residuals" in row)
    assert {len(values) for values in row["residuals"].values()} == {7}  # of the shorter iteration
    [axis] = axes[f"condition-n24-{of_file}"]
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert [label.rpartition("  ")[2] for label in labels] == ["skyformer", "mine.py:core"] * 2
    assert labels[2].startswith("K\\_1  ")
    assert list(figures[f"condition-n24-{of_file}"].legend) == ["not inverted", "singular: on its range", "median"]
    crosses = [line for line in axis.get_lines() if line.get_marker() == "x"]
    assert not crosses  # a matrix without a range has none
    iterations = figures[f"condition-iterations-n24-{of_file}"]
    place = "qkv.safetensors, layer 0, n = 24, d = 4"
    assert [title for title, _ in iterations.panels] == [f"{place}\n{name}" for name in ("mine.py:core", "skyformer")]
    short, long, _ = axes[iterations.stem][0].get_lines()
    assert list(short.get_ydata()) == [1e6, 1.0] and len(long.get_ydata()) == 7
    assert axes[iterations.stem][0].get_xlim() == (0, 6)


def test_condition_marks_heads_with_bad_rows_and_their_method():
    def bad(record):
        return with_metrics(record, bad_rows=[2, 0]) if record["method"] == "skyformer" else record

    for change, hollow in ((bad, 1), (dict, 0)):
        _, figures, axes = shown("condition", [change(one) for one in golden("condition") if one["d"] in (None, 4)])
        [figure] = [one for stem, one in figures.items() if stem.startswith("condition-error")]
        [axis] = axes[figure.stem]
        empty = [line for line in axis.lines if line.get_markerfacecolor() == "none"]
        assert sum(len(line.get_xdata()) for line in empty) == 2 * hollow
        assert len(figure.legend) == hollow and any("hollow" in line for line in figure.caption) == hollow
        own = figure.draw(Figure().subplots(), figure.panels[0][1])
        assert any("skyformer !" in label for label in own) == hollow


def theory(name, *findings, **fields):
    """A record of one theorem, with the findings of a golden one changed."""
    [record] = [one for one in golden("theory") if one["theorem"] == name]
    return {**record, "findings": [{**record["findings"][0], **one} for one in findings], **fields}


def test_error_of_another_metric_is_drawn_beside_the_relative_one():
    _, figures, _ = shown("error", golden("error"), metric="output_frobenius")
    assert list(figures) == ["error-output_spectral_relative", "error-output_frobenius", "cost-output_frobenius"]
    paper = Reference("p.csv", (Value("pretrained", 24, 4, "skyformer", 1.0, 0.0),))
    _, figures, _ = shown("error", golden("error"), metric="output_frobenius", references=[paper])
    assert "papers-output_frobenius" in figures and "papers-output_spectral" not in figures


def test_error_rows_that_say_the_same_twice_have_neither_tv_nor_kl():
    assert "½ Σ|B~ − B|" in shown("error", golden("error-rows"))[0].text("table")
    records = []
    for one in golden("error-rows"):
        mass = one["metrics"].get("mass")
        one = with_metrics(one, tv=[1 - value for value in mass]) if mass else one
        records.append({**one, "status": "failed", "metrics": {}} if one["method"] == "window" else one)
    text = shown("error", records)[0].text("table")
    assert " mass" in text and "½ Σ|B~ − B|" not in text and " KL " not in text


def test_error_maps_of_heads_without_budgets_and_of_errors_that_are_0_or_equal():
    base = next(one for one in golden("error") if one["method"] == "skyformer")

    def cells(values, **facts):
        metrics = {"output_spectral_relative": values}
        return [{**base, "options": {}, "layer": layer, "metrics": metrics, **facts} for layer in (0, 1)]

    records = cells([0.5, 0.5], d=None, n=16) + cells([0.0, 0.0], d=4, n=24) + cells([0.1, 0.2], d=4, n=32)
    _, figures, _ = shown("error", records)
    maps = {n: figures[f"heads-output_spectral_relative-n{n}"] for n in (16, 24, 32)}
    scales = {n: (one.scale.low, one.scale.high) for n, one in maps.items()}
    assert scales == {16: (0.5 / 1.5, 0.75), 24: (0.1, 1.0), 32: (0.1, 0.2)}
    assert [title for title, _ in maps[16].panels] == ["skyformer, n = 16"]
    assert [title for title, _ in maps[24].panels] == ["skyformer, d = 4, below: 0, n = 24"]


def test_error_of_many_methods_without_yardsticks():
    """Dots lie around the middle of all; a failed method has a cross; errors of 0 have no middle."""
    base, records = next(one for one in golden("error") if one["method"] == "skyformer"), []
    for n, value in ((16, 0.5), (24, 0.0)):
        for place in range(8):
            names = {"method": f"method{place}", "options": {}, "family": f"family {place % 3}", "n": n}
            metrics = {"output_spectral_relative": [value, value]}
            records += [{**base, **names, "d": d, "metrics": metrics} for d in (4, 8)]
    records[-1] |= {"status": "failed", "reason": "no", "metrics": {}}
    records.append({**records[-1], "d": None})
    view, figures, axes = shown("error", records)
    figure = figures["error-output_spectral_relative"]
    assert [title for title, _ in figure.panels] == ["layer 0, n = 16", "layer 0, n = 24"]
    edge = BEYOND_EDGE + " (number: median)"
    assert list(figure.legend) == ["d = 4", "d = 8", "no d", "p10 – p90", "maximum", edge, "diverged or failed"]
    assert view.result.startswith("No method alone has the smallest mean error in any of 4 cases (table, d).")
    assert view.result.endswith(" Failed or diverged: method7 d = 8.")
    assert [axis.get_xlim()[0] for axis in axes[figure.stem]] == [0, 0]


def test_error_positions_without_mass():
    """The first position is null, and only one query is at 16."""
    records = []
    for one in golden("error-rows"):
        profile = one.get("profile")
        if profile and one["layer"] == one["window"] == 0 and one["d"] == 5:
            profile = {name: value for name, value in profile.items() if name != "mass"}
            profile["row_error"] = [[None, *of_head[1:]] for of_head in profile["row_error"]]
            records += [{**one, "profile": profile, "d": None, "method": f"{one['method']}{i}"} for i in range(2)]
    _, figures, axes = shown("error", records)
    assert not any("mass" in line for line in figures["positions"].caption)
    middles = [math.sqrt(6), math.sqrt(28), math.sqrt(120)]  # of 2 and 3, 4 to 7, 8 to 15
    (axis,) = axes["positions"]
    drawn = [list(line.get_xdata()) for line in axis.lines]
    assert len(drawn) == 6 and all(one == pytest.approx(middles[-len(one) :]) for one in drawn)


def test_error_positions_end_at_n():
    _, _, axes = shown("error", [{**one, "n": 12} for one in golden("error-rows") if one["layer"] == 0])
    assert axes["positions"][0].get_lines()[0].get_xdata()[-2] == pytest.approx(math.sqrt(8 * 12))


def test_error_positions_of_a_method_that_is_far_off_do_not_squeeze_the_others():
    records = []
    for one in golden("error-rows"):
        if profile := one.get("profile"):
            errors = profile["row_error"]
            errors = [[1e5] * len(of_head) for of_head in errors] if one["method"] == "topk" else errors
            records.append({**one, "profile": {**profile, "row_error": errors}})
    _, figures, axes = shown("error", records)
    assert max(axis.get_ylim()[1] for axis in axes["positions"]) < 100
    assert "topk" in figures["positions"].legend
    (line,) = (line for line in figures["positions"].caption if line.startswith("Not on the axis"))
    assert "topk (above: ≥ 1e5)" in line
    errors = [axis for axis in axes["positions"] if axis.get_ylabel().startswith("relative error")]
    curves = [line.get_ydata() for axis in errors for line in axis.lines]
    assert "Errors of rounding are not drawn." in figures["positions"].caption  # lines fell to the edge
    assert curves and all(y > 1e-5 or math.isnan(y) for curve in curves for y in curve)


def test_error_heads_are_grey_where_a_cell_is_missing():
    def heads(records):
        figure = shown("error", records)[1]["heads-output_spectral_relative-n16"]
        return [values for _, (values, _) in figure.panels], legend_of(figure)

    every = [one for one in golden("error-rows") if one["method"] != "bound"]
    maps, legend = heads([one for one in every if (one["method"], one["d"]) != ("topk", 8)])
    assert [len(values) for values in maps] == [4] * 4, "V-Mean, which has no d, is in each"
    assert [np.isnan(values).all(axis=1).sum() for values in maps] == [0, 1] * 2
    assert [np.isnan(values).sum() for values in maps] == [0, maps[0].shape[1]] * 2
    assert "not measured, or not finite" in legend and "not measured, or not finite" not in heads(every)[1]


def test_error_heads_have_signs_where_rows_are_bad_or_values_beyond_the_scale():
    def signs(**metrics):
        records = [with_metrics(one, **metrics) if one["method"] == "topk" else one for one in every]
        records = [one for one in records if (one["method"], one["d"]) in (("topk", 5), ("window", 5))]
        _, figures, axes = shown("error", records)
        figure = figures["heads-output_spectral_relative-n16"]
        return [text.get_text() for text in axes[figure.stem][0].texts], [*legend_of(figure, 0)], figure.scale.extend

    every = golden("error-rows")
    heads = len(every[0]["heads"])
    steady = {"output_spectral_relative": [0.4] * heads}
    assert signs(**steady, bad_rows=[0.0] * (heads - 1) + [2.0])[:2] == (
        ["!"] * 2,
        ["! bad rows (normaliser ≤ 0 or lost)"],
    )
    assert signs(**steady, bad_rows=[2.0] * heads, guarded_rows=[2.0] * heads)[:2] == ([], []), (
        "the method replaced them"
    )
    wide = {"output_spectral_relative": [1e9, 1e-9, *[0.4] * (heads - 3), 1e-4]}
    below = ["− below the scale", "· at most 1e-5"]
    assert signs(**wide) == (["+", "·", "−"] * 2, ["+ above the scale", *below], "both")
    assert signs(output_spectral_relative=[1e9, *[0.4] * (heads - 1)])[2] == "max"


def test_error_positions_of_rows_without_an_error():
    records = []
    for one in golden("error-rows"):
        if profile := dict(one.get("profile") or {}):
            profile["row_error"] = [[None] * len(profile["keys"]) for _ in one["heads"]]
        records.append({**one, "profile": profile} if profile else one)
    assert "positions" not in shown("error", records)[1]


def test_error_of_a_kernel_whose_cosines_and_rows_are_unknown():
    records = []
    for one in golden("error"):
        known = "cosine" in one["metrics"]
        records.append(with_metrics(one, cosine=[None] * 2, rows_within=[None] * 2) if known else one)
    text = shown("error", records)[0].text("table")
    assert "max |E|" in text and "1 − cosine" not in text and "rows within" not in text
    assert "1 − cosine" in shown("error", golden("error"))[0].text("table")


def test_error_cost_beside_exact_attention():
    records = golden("error")
    softmax = {"method": "softmax", "family": "exact", "reference": False, "requested": True}
    nothing = {"visited_fraction": [1.0, 1.0], "output_spectral": [0.0, 0.0], "output_spectral_relative": [0.0, 0.0]}
    records += [with_metrics(one, **nothing) | softmax for one in records if one["method"] == "vmean"]
    _, figures, axes = shown("error", records)
    legend = legend_of(figures["cost-output_spectral_relative"])
    assert "softmax" not in legend and "exact attention" in legend


def test_error_profiles_are_lists_for_each_head():
    [*_, one] = (one for one in golden("error-rows") if "profile" in one)
    broken = {**one, "profile": {**one["profile"], "mass": [1] * len(one["heads"])}}
    assert shape_of("error").problem(broken) == "field profile.mass: expected a list of 5 numbers for each head"
    short = {**one, "profile": {**one["profile"], "mass": [[1.0] * 4 for _ in one["heads"]]}}
    assert shape_of("error").problem(short) == shape_of("error").problem(broken)
    means = {name: value for name, value in one["profile"].items() if name != "keys"}
    for keys in ({}, {"keys": [[1.0], [2.0]]}):
        problem = shape_of("error").problem({**one, "profile": {**means, **keys}})
        assert problem == "field profile.keys: expected the whole numbers 2^a"


def deeper(records):
    """The records of a model of six layers: those of the two single layers stand three times."""
    alone = [one for one in records if one["layer"] is not None]

    def moved(one, by):
        local = {str(int(layer) + by): errors for layer, errors in one["local"].items()}
        return {**one, "layer": one["layer"] + by, "layers": [one["layer"] + by], "local": local}

    return [*records, *(moved(one, by) for by in (2, 4) for one in alone)]


def test_inject_of_numbers_that_are_null_or_missing():
    def lost(record):
        local = {layer: [None] * len(errors) for layer, errors in record["local"].items()}
        return with_metrics(record, local_error=[None], kl=[]) | {"residual": None, "local": local}

    text = shown("inject", map(lost, deeper(golden("inject"))))[0].text("table")
    assert "local error  " not in text and " KL " not in text and "row error       12 layers" in text
    _, figures, _ = shown("inject", map(lost, golden("inject")))
    assert list(figures) == ["inject-layers-n16-pretrained", "inject-layers-n16-initialized"]  # none of local errors


def test_inject_of_many_methods_without_budgets():
    """Each family has a panel; a method in all layers alone, and one far below the others, have no line of layers."""
    base = {one["layer"]: one for one in golden("inject") if one["method"] == "linear" and one["window"] == 0}
    records = []
    for number in range(9):
        for layer in (None, *range(6)):
            one = base[min(layer, 1)] if layer is not None else base[None]
            size = 1e-9 if number == 8 else (number + 1) * 2.0 ** max(0, (layer or 0) - 1)
            names = {"method": f"method{number}", "family": f"family {number % 3}", "layer": layer}
            scaled = {name: [size * one["metrics"][name][0]] for name in ("drift", "local_error")}
            records += [with_metrics(one, **scaled) | names] if number != 7 or layer is None else []
    _, figures, _ = shown("inject", records)
    for stem, rho in (("inject-layers-n16", ""), ("inject-local-n16", ", Spearman's ρ = +1.00")):
        figure = figures[stem]
        assert [title for title, _ in figure.panels] == [f"family {number}, n = 16, 1 window" for number in range(3)]
        last = figure.draw(Figure().add_subplot(), figure.panels[2][1])
        assert list(last) == [f"method2{rho}", f"method5{rho}", f"method8{rho} (below: ≤ 2e-10)"]
    middle = figures["inject-local-n16"].panels[1][1]
    assert {row["method"] for row in middle} == {"method1", "method4"}


def test_inject_of_a_drift_that_is_null_of_equal_errors_and_without_losses():
    """A method without a drift has not the smallest one, and equal numbers have no order."""

    def same(record):
        drift = [None] if record["method"] == "linear" and record["layer"] is None else record["metrics"]["drift"]
        lost = dict.fromkeys(("loss", "loss_own", "loss_change", "kl"))
        return with_metrics(record, drift=drift, local_error=[0.5], **lost)

    view, figures, _ = shown("inject", map(same, deeper(golden("inject"))))
    assert "95 % of" not in view.text("table")
    local = next(figure for stem, figure in figures.items() if stem.startswith("inject-local"))
    assert not any("ρ" in line or "Over all" in line for line in local.caption)
    assert not any("ρ" in name for name in local.draw(Figure().add_subplot(), local.panels[0][1]))


def test_inject_decode_draws_the_steps_of_all_layers_together():
    records = golden("inject-decode")
    alone = [{**one, "layer": 0, "layers": [0]} for one in records]
    _, figures, _ = shown("inject", [*records, *alone])
    _, plain, _ = shown("inject", records)
    for stem in ("inject-steps-n16", "inject-bytes-n16"):
        if stem in plain:
            assert [len(rows) for _, rows in figures[stem].panels] == [len(rows) for _, rows in plain[stem].panels]
    assert "inject-steps-n16" in plain


def test_inject_decode_draws_bytes_of_policies_that_diverge():
    """A divergence of 0 has no logarithm; a method that states no change of the loss has no point of it."""

    def changed(record):
        given = {"topk": {}, "window": {"loss_change": None}, "softmax": {"kl": [0.0]}}[record["method"]]
        return with_metrics(record, **given) if record["status"] == "ok" else record

    _, figures, _ = shown("inject", map(changed, golden("inject-decode")))
    figure = figures["inject-bytes-n16"]
    axes = [Figure().subplots() for _ in figure.panels]
    for axis, (_, rows) in zip(axes, figure.panels, strict=True):
        figure.draw(axis, rows)
    assert [len({line.get_color() for line in axis.lines}) for axis in axes] == [2, 1]
    drawn = {name: {(row["method"], row["d"]) for row in rows} for name, rows in figure.panels}
    assert drawn == {
        "n = 16\nKL divergence": {("topk", 3), ("topk", 6), ("window", 6)},
        "n = 16\nchange of the loss": {("topk", 3), ("topk", 6)},
    }
    assert _interval({"mean": 1.0, "se": None}, 3) == ""


def test_bars_of_bytes_are_what_the_table_has_after_the_sign():
    """Of six windows Student's t is 2.5706; of two, each has a dot; a single one has no spread."""
    six = [{**one, "window": one["window"] + more} for one in golden("inject-decode") for more in (0, 2, 4)]
    _, figures, axes = shown("inject", six)
    assert "Bars: 95 % by Student's test of windows." in figures["inject-bytes-n16"].caption
    bars = {}
    for axis, metric in zip(axes["inject-bytes-n16"], ("kl", "loss_change"), strict=True):
        lines = [line for container in axis.containers for line in container[2][0].get_segments()]
        bars[metric] = sorted((high - low) / 2 for (_, low), (_, high) in lines)
    drawn = {metric: rows for (_, rows), metric in zip(figures["inject-bytes-n16"].panels, bars, strict=True)}
    for metric, halves in bars.items():
        ses = sorted(row["metrics"][metric]["se"] for row in drawn[metric])
        assert halves == pytest.approx([2.5705818366 * se for se in ses], rel=1e-9)
    axis, least = axes["inject-bytes-n16"][0], min(row["metrics"]["kl"]["mean"] for row in drawn["kl"] if row["d"])
    assert axis.get_yscale() == "log" and least / 20 < axis.get_ylim()[0] < least  # intervals may reach 0
    _, two, axes = shown("inject", golden("inject-decode"))
    for axis, (_, rows), metric in zip(axes["inject-bytes-n16"], two["inject-bytes-n16"].panels, bars, strict=True):
        dots = [y for line in axis.get_lines() if line.get_alpha() for y in line.get_ydata()]
        values = [
            record["metrics"][metric][0]
            for record in golden("inject-decode")
            for row in rows
            if (record["method"], record["d"]) == (row["method"], row["d"])
        ]
        assert sorted(dots) == pytest.approx(sorted(values)) and len(dots) == 2 * len(rows)
    _, one, _ = shown("inject", [record for record in golden("inject-decode") if record["window"] == 0])
    assert not any("Student" in line for line in one["inject-bytes-n16"].caption)


def test_inject_of_single_heads_has_no_drift_of_layers():
    alone = [one for one in deeper(golden("inject")) if one["layer"] in (0, 2)]
    records = [{**one, "kv_head": head} for one in alone for head in (0, 1)]
    records[1] |= {"status": "failed", "reason": "no", "metrics": {}, "local": {}}
    view, figures, _ = shown("inject", records)
    text = view.text("table")
    assert "✗ skyformer d = 4 layer 0 KV head 1: failed, 1 failed of 2 cells: no" in text
    assert "local error     8 KV heads      +1.00" in text and " cosine " not in text
    assert not figures


def test_inject_decode_of_steps_that_are_null():
    records = []
    for record in golden("inject-decode"):
        known = {name: [None, *values[1:]] for name, values in (record.get("steps") or {}).items()}
        records.append(with_metrics(record, read_bytes=[None]) | {"steps": known or None, "prefix": None})
    _, figures, axes = shown("inject", records)
    assert list(figures) == ["inject-steps-n16"]
    for line in axes["inject-steps-n16"][0].get_lines()[:1]:
        assert list(line.get_xdata()) == [*range(len(line.get_ydata()))]
