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
from attnprobe.figures.drawing import Drawing
from attnprobe.tables.console import Header

LISTS = ("statements", "results", "findings", "conditions")  # of what a cell measured
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


def theory(name, *findings, **fields):
    """A record of one theorem, with the findings of a golden one changed."""
    [record] = [one for one in golden("theory") if one["theorem"] == name]
    return {**record, "findings": [{**record["findings"][0], **one} for one in findings], **fields}


def test_theory_of_measures_that_are_infinite_or_one():
    """Values are on the frame, or heads are counted; a theorem without findings has a line below.

    One whose assumption no head meets had a panel of white bars.
    """
    unmet = {"bound": [2.0, 2.0], "measured": [1.0, 1.0], "verdict": ["assumption not met"] * 2}
    broken = {"verdict": ["violated"] * 2}
    wide = theory("rank-collapse", {"bound": [1e-3] * 2, "measured": [1e-3, 1e3], **broken})
    single = {name: value[:1] if isinstance(value, list) else value for name, value in wide["findings"][0].items()}
    single["details"] = {name: value[:1] for name, value in single["details"].items()}
    records = [
        theory("rank-collapse", {"bound": [2.0, 2.0], "measured": ["inf", "inf"], **broken}, says=""),
        {**theory("rank-collapse", unmet), "theorem": "unmet"},
        theory("skyformer-lemma-3", {"bound": [1.0, 1.0], "measured": [0.0, 0.0], "d": None}),
        theory("skeinformer-jl", {"bound": [0.0, "inf"], "measured": ["inf", 0.0]}),
        theory("eckart-young", {"bound": [-1e-20] * 2, "measured": [-1e-20] * 2}),
        {**wide, "theorem": "wide"},
        {**wide, "theorem": "single", "heads": [0], "findings": [single]},
        theory("skyformer-theorem-2", status="skipped", reason=None),
    ]
    view, figures, axes = shown("theory", records)
    text = view.text("table")
    assert text.count("says: ") == 6 and "\n– skipped, : skyformer-theorem-2\n" in text
    panels = {
        rows[0]["theorem"]: axis
        for (_, rows), axis in zip(figures["theory-bounds-n24"].panels, axes["theory-bounds-n24"], strict=True)
    }
    assert "unmet" not in panels and any("no head meets" in line for line in figures["theory-bounds-n24"].caption)
    for name in ("rank-collapse", "skyformer-lemma-3", "eckart-young", "wide"):  # heads of one bound
        assert sum(bar.get_height() for bar in panels[name].patches) == 2 and panels[name].get_ylabel() == "heads"
    for name, expected in (("skeinformer-jl", [[0.0625, 1.6], [1.6, 0.0625]]), ("single", [[1e-3, 1e-3]])):
        axis = panels[name]
        points = [line.get_xydata()[0] for line in axis.get_lines() if line.get_linestyle() == "None"]
        assert np.array(points) == pytest.approx(np.array(expected)) and axis.get_yscale() == "log"


def test_rank_collapse_has_ticks_at_the_layers_that_were_measured():
    _, _, axes = shown("theory", [{**theory("rank-collapse", {}), "layer": layer} for layer in (1, 4, 5)])
    assert list(axes["theory-layers"][0].get_xticks()) == [1, 4, 5]


def test_theory_curves_of_two_sources_without_what_a_method_did_not_say():
    at = [{"epsilon": number / 10, "delta": 0.1} for number in range(1, 8)]
    details = {"d_stat": [0.0, "inf"]}
    zero = theory("skyformer-theorem-2", *({"at": one, "details": details} for one in at))
    errors = {"theorem": "ma-property", "at": {"epsilon": 0.1, "delta": 0.1}, "details": {"errors": [[0.5], [0.7]]}}
    records = [zero, {**zero, "n": 48}, {**zero, "source": {"qkv": "other.npz"}}]
    records.append(theory("eckart-young", errors, theorem="ma-property"))
    _, figures, axes = shown("theory", records)
    assert axes["theory-ma-None-n24"][0].get_ylim() == (-0.02, 1.02)
    dimension, tokens, other = (figures[f"theory-{name}"] for name in ("dimension", "tokens", "ma-None-n24"))
    assert dimension.columns == tokens.columns == 2 and other.columns is None
    assert all(list(line.get_xdata()) == [0, 1] for line in axes[dimension.stem][0].get_lines())  # no curve, but 2n
    assert len(axes[dimension.stem][0].get_xticks()) != 7
    assert other.title == "Share of seeds whose error exceeds ε, head by head"


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
