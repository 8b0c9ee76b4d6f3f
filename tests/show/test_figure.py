"""Figures as data: what panels show of a frame, and what the one renderer draws of it."""

from __future__ import annotations

import math
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Drawn

from attnprobe.errors import UsageError
from attnprobe.frame.metric import METRICS
from attnprobe.show import figure as figure_module
from attnprobe.show.figure import EACH, FLAGS, INTERVAL, Figure, Guide, draw, save, sheets
from attnprobe.show.points import Data

pytest.importorskip("attnprobe.frame.summary", reason="the statistics of frames are not there yet")

ERROR = "output_spectral_relative"
ERRORS = Figure("errors", "Errors", x="d", y=ERROR, marks=("band p10 p90", "line", "point"), log=("d", ERROR))
RANKING = Figure("ranking", "Errors", x=ERROR, y="name", marks=("point",), shade="d", log=(ERROR,), best_first=True)


def heads(method, values, d, **columns):
    """Rows of heads: a value for each head at a budget."""
    count = len(values)
    rows = {
        **{"name": method, "method": method, "options": "", "family": "x", "reference": method == "vmean"},
        **{"source": "", "target": "softmax", "n": 64, "layer": 0, "window": 0, "repeat": 0, "head": np.arange(count)},
        **{"d": d, "status": "ok", "reason": pd.NA, "bad_rows": 0.0, "guarded_rows": math.nan, ERROR: values},
        **columns,
    }
    return pd.DataFrame(rows).astype({"d": "Int64", ERROR: "Float64", "reason": "string", "reference": "boolean"})


def frame(*parts):
    return pd.concat(parts, ignore_index=True)


def two_methods(**columns):
    budgets = (16, 32, 64)
    sky = [heads("skyformer", [0.4 * 16 / d, 0.6 * 16 / d], d, **columns) for d in budgets]
    other = [heads("linformer", [0.8, 0.9], d, **columns) for d in budgets]
    return frame(*sky, *other)


def lines_of(drawn, panel=0):
    return drawn.axes[panel].get_lines()


def titles(*drawn):
    return [axis.get_title().replace("\u00a0", " ") for sheet in drawn for axis in sheet.axes]


def texts(drawn):
    return [text.get_text() for legend in drawn.legends for text in legend.get_texts()]


# --- declared


@pytest.mark.parametrize(
    "facts, message",
    [
        ({"marks": ("lines",)}, "mark 'lines', which is none of line, point"),
        ({"marks": ("band p10",)}, "mark 'band p10'"),
        ({"marks": ("cell",)}, "cells without a value"),
        ({"note": "rho"}, "note='rho', which is none of correlation, exponent"),
        ({"center": "mode"}, "center='mode'"),
        ({"caption": "One. Two. Three."}, "caption of more than two sentences"),
    ],
)
def test_a_misspelt_figure_raises_when_it_is_made(facts, message):
    with pytest.raises(ValueError, match=message):
        Figure(**{"name": "f", "title": "", "x": "d", "y": ERROR, "marks": ("line",), **facts})


def test_a_guide_has_an_axis():
    with pytest.raises(ValueError, match="the axis 'z'"):
        Guide("z", "at six", 6.0)


# --- what is drawn


def test_a_line_is_the_median_of_each_budget():
    drawn = draw(two_methods(), ERRORS)
    line = next(line for line in lines_of(drawn) if line.get_linestyle() == "-")
    assert line.get_xdata().tolist() == [16, 32, 64]
    assert line.get_ydata() == pytest.approx([0.5, 0.25, 0.125])


def test_rows_without_a_budget_are_in_all_panels_and_a_line_from_end_to_end():
    rows = frame(two_methods(), two_methods(layer=1), heads("window", [0.3], None))
    drawn = draw(rows, ERRORS)
    assert titles(drawn) == ["layer 0", "layer 1"]
    flat = [line for line in lines_of(drawn) if set(line.get_ydata()) == {0.3}]
    assert flat and flat[0].get_xdata().tolist() == pytest.approx(list(drawn.axes[0].get_xlim()))
    by_budget = draw(rows, Figure("f", "", x="head", y=ERROR, marks=("line",), columns=("d",)))
    assert len(by_budget.axes) == 3
    assert all([0.3] in [list(line.get_ydata()) for line in axis.get_lines()] for axis in by_budget.axes)


def test_values_of_different_sources_are_never_in_one_panel():
    drawn = draw(frame(two_methods(), two_methods(n=128)), ERRORS)
    assert titles(drawn) == ["$n$ = 64", "$n$ = 128"]


def test_points_with_bad_rows_are_hollow_and_those_above_d_half_filled():
    rows = frame(
        heads("skyformer", [0.5], 16, bad_rows=3.0, realised_d=16.0), heads("skyformer", [0.4], 32, realised_d=40.0)
    )
    drawn = draw(rows, ERRORS)
    faces = [
        (line.get_markerfacecolor(), line.get_fillstyle()) for line in lines_of(drawn) if len(line.get_xdata()) == 1
    ]
    assert ("white", "full") in faces and any(style == "left" for _, style in faces)
    assert {"hollow: bad rows", "half filled: uses more than d"} <= set(texts(drawn))


def test_what_lies_outside_the_axis_is_counted_in_the_legend():
    rows = frame(two_methods(), heads("performer", [1e9], 16), heads("performer", [0.5], 32))
    drawn = draw(rows, ERRORS)
    assert drawn.axes[0].get_ylim()[1] < 10
    assert "performer (1 outside)" in texts(drawn)


def test_a_cell_that_failed_is_a_cross_at_the_end_of_the_axis():
    lost = heads("performer", [None], 16, status="failed")
    drawn = draw(frame(two_methods(), lost), ERRORS)
    cross = next(line for line in lines_of(drawn) if line.get_marker() == "x")
    assert cross.get_xdata() == [16] and cross.get_ydata() == [drawn.axes[0].get_ylim()[1]]
    assert "failed or diverged" in texts(drawn)


def test_a_ranking_has_the_best_method_first_and_counts_what_is_infinite():
    rows = frame(two_methods(), heads("performer", [math.inf, math.inf], 16), heads("performer", [0.2, 0.3], 32))
    drawn = draw(rows, RANKING)
    names = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert names == ["skyformer", "linformer", "performer"]
    assert [text.get_text() for text in drawn.axes[0].texts] == [r" 1 $\infty$"]
    assert "infinite" in texts(drawn)


def test_a_skipped_method_has_no_line_on_an_axis_of_words():
    skipped = heads("spectral-shift", [pd.NA], 16, status="skipped")
    lost = heads("mss", [pd.NA], 16, status="failed")
    assert Data(frame(two_methods(), skipped, lost), RANKING).words("name") == ["skyformer", "linformer", "mss"]


def test_yardsticks_are_dashed_lines_in_the_panels_of_their_layer():
    rows = frame(two_methods(), two_methods(layer=1), heads("vmean", [0.7], None), heads("vmean", [0.2], None, layer=1))
    figure = Figure("f", "", x="d", y=ERROR, marks=("line",), yardsticks="method == 'vmean'")
    drawn = draw(rows, figure)
    heights = [{*line.get_ydata()} for panel in (0, 1) for line in lines_of(drawn, panel) if line.is_dashed()]
    assert heights == [{0.7}, {0.2}] and "V-Mean" in texts(drawn)


def test_more_methods_than_colours_have_panels_with_the_others_thin():
    names = [f"method{number}" for number in range(12)]
    rows = frame(*(heads(name, [5.0 + number], d) for number, name in enumerate(names) for d in (8, 16)))
    drawn = draw(rows, ERRORS)
    assert len(drawn.axes) == 3
    for axis in drawn.axes:
        pale = [line for line in axis.get_lines() if line.get_color() == "#c8c8c8"]
        assert len(pale) == 8
    assert {*names, "other methods"} <= set(texts(drawn))


def test_no_line_joins_the_points_of_rows_in_the_background():
    rows = frame(*(heads(f"method{number}", [5.0 + number, 3.0, 4.0], 8) for number in range(12)))
    scattered = Figure("f", "", x=ERROR, y="matrix_frobenius", marks=("point",), points=(EACH,))
    drawn = draw(rows.assign(matrix_frobenius=rows[ERROR] ** 2), scattered)
    for axis in drawn.axes:
        pale = [line for line in axis.get_lines() if line.get_color() == "#c8c8c8"]
        assert len(pale) == 24 and all(line.get_linestyle() == "None" and line.get_marker() == "o" for line in pale)


def test_a_method_keeps_its_colour_whatever_it_is_called_and_is_drawn_with():
    def colour(drawn, name):
        (legend,) = drawn.legends
        at = [text.get_text() for text in legend.get_texts()].index(name)
        return legend.legend_handles[at].get_color()

    rows = two_methods()
    renamed = rows.assign(name=rows["name"].replace({"linformer": "Ours"}))
    alone = rows[rows["method"] == "skyformer"]
    assert {colour(draw(rows, ERRORS), "skyformer"), colour(draw(alone, ERRORS), "skyformer")} == {"#0072B2"}
    assert colour(draw(renamed, ERRORS), "Ours") == colour(draw(rows, ERRORS), "linformer") == "#009E73"
    assert colour(draw(alone.assign(method="mine.py:f"), ERRORS, methods=rows), "skyformer") == "#0072B2"


def test_values_of_papers_are_drawn_where_they_match_and_counted():
    places = {"method": ["skyformer", "skyformer", "nosuch"], "n": [64, 512, 64], "d": [16, 16, 16]}
    paper = pd.DataFrame({**places, ERROR: [0.77, 0.5, 0.5]})
    drawn = draw(two_methods(), ERRORS, overlay=paper)
    assert [0.77] in [list(line.get_ydata()) for line in lines_of(drawn)]
    assert "paper (1 of 3 values)" in texts(drawn)


def test_values_of_papers_stand_in_the_panels_of_their_weights():
    weights = ("initialized", "pretrained")
    rows = frame(*(two_methods().assign(source=word, weights=word) for word in weights))
    paper = pd.DataFrame({"weights": weights, "name": "skyformer", "n": 64, "d": 16, ERROR: [0.77, 0.33]})
    drawn = draw(rows, ERRORS, overlay=paper)
    values = [[list(line.get_ydata()) for line in axis.get_lines()] for axis in drawn.axes]
    assert [([0.77] in of_panel, [0.33] in of_panel) for of_panel in values] == [(True, False), (False, True)]
    assert "paper (2 of 2 values)" in texts(drawn)


def test_several_measured_columns_have_panels_with_their_own_scale():
    rows = two_methods().assign(kl=5.0)
    drawn = draw(rows, Figure("f", "", x="d", y=(ERROR, "kl"), marks=("line",)))
    assert titles(drawn) == ["relative output error", "KL divergence"]
    assert drawn.axes[1].get_ylim()[0] > 4


# --- the sheet


@pytest.mark.parametrize("style, size", [("paper", (3.3, None)), ("slide", (6.4, 3.6))])
def test_a_figure_has_the_size_of_its_style(style, size):
    for rows in (two_methods(), frame(two_methods(), two_methods(layer=1))):
        (drawn,) = sheets(rows, ERRORS, style)
        assert all(of is None or actual == of for actual, of in zip(drawn.get_size_inches(), size, strict=True))


def test_a_style_file_sets_size_and_fonts(tmp_path):
    path = tmp_path / "mine.mplstyle"
    path.write_text("figure.figsize: 5.0, 2.2\nfont.size: 6.5\naxes.labelsize: medium\n")
    (drawn,) = sheets(frame(two_methods(), two_methods(layer=1)), ERRORS, str(path))
    assert drawn.get_size_inches().tolist() == [5.0, 2.2]
    assert {text.get_fontsize() for text in drawn.texts if text.get_text()} == {6.5}


def test_a_style_that_is_none_is_refused(tmp_path):
    with pytest.raises(UsageError, match="unknown style 'papre'"):
        draw(two_methods(), ERRORS, "papre")
    path = tmp_path / "bad.mplstyle"
    path.write_text("figure.figsise: 3, 2\n")
    with pytest.raises(UsageError, match="figsise"):
        draw(two_methods(), ERRORS, str(path))


def test_more_panels_than_a_slide_has_room_for_are_further_sheets():
    rows = frame(*(two_methods(layer=layer) for layer in range(7)))
    drawn = sheets(rows, ERRORS, "slide")
    assert len(drawn) > 1
    assert titles(*drawn) == [f"layer {layer}" for layer in range(7)]


def test_an_axis_gets_one_panel_and_keeps_its_figure():
    axis = Drawn(figsize=(3.3, 2.2)).subplots()
    drawn = draw(two_methods(), ERRORS, ax=axis)
    assert drawn is axis.figure and drawn.get_size_inches().tolist() == [3.3, 2.2]
    assert axis.get_legend() is not None and axis.get_xlabel() == "budget d"
    with pytest.raises(UsageError, match="room for one panel, and this figure has 2: layer 0; layer 1"):
        draw(frame(two_methods(), two_methods(layer=1)), ERRORS, ax=axis)


def test_nothing_to_draw_is_said():
    with pytest.raises(UsageError, match="errors: nothing to draw"):
        draw(two_methods().drop(columns=ERROR), ERRORS)
    assert sheets(two_methods().iloc[:0], ERRORS) == []


def test_other_tests_draw_svg_alone(tmp_path):
    sizes = {path.suffix: path.stat().st_size for path in save(draw(two_methods(), ERRORS), tmp_path / "errors")}
    assert sizes == {".svg": sizes[".svg"], ".pdf": 0, ".png": 0} and sizes[".svg"] > 5000


def test_a_figure_is_the_same_byte_for_byte(tmp_path, every_file):
    written = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        written.append(save(draw(two_methods(), ERRORS), tmp_path / folder / "errors"))
    assert [path.name for path in written[0]] == ["errors.svg", "errors.pdf", "errors.png"]
    for first, second in zip(*written, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.suffix


def test_files_have_the_room_for_names_that_the_sharpest_of_them_needs(tmp_path):
    """At few dots an inch, names are measured as shorter: one beside the axis lost its first letters in PNG."""
    figure = Figure("f", "", x=ERROR, y="name", marks=("point",))
    rows = heads("_inverted:105 > truncated_pinv:75 linalg_pinv", [0.1, 0.2, 0.4], 8)
    (drawn,), (sharp,) = sheets(rows, figure), sheets(rows, figure)
    save(drawn, tmp_path / "f", formats=("svg",))
    sharp.set_dpi(300)
    sharp.draw_without_rendering()
    assert drawn.axes[0].get_position().bounds == pytest.approx(sharp.axes[0].get_position().bounds, abs=1e-3)


def test_no_texts_of_a_sheet_overlap():
    rows = frame(*(two_methods(layer=layer) for layer in range(2)))
    for style in ("paper", "slide"):
        (drawn,) = sheets(rows, ERRORS, style)
        drawn.canvas.draw()
        boxes = [text.get_window_extent() for text in drawn.texts if text.get_text()]
        boxes += [legend.get_window_extent() for legend in drawn.legends] + [
            axis.get_tightbbox() for axis in drawn.axes
        ]
        assert not any(a.overlaps(b) for place, a in enumerate(boxes) for b in boxes[place + 1 :])


# --- the catalogue


COMMANDS = sorted(path.stem for path in (Path(figure_module.__file__).parent / "catalogue").glob("[!_]*.py"))
FIGURES = [
    (command, figure)
    for command in COMMANDS
    for figure in getattr(import_module(f"attnprobe.show.catalogue.{command}"), "FIGURES", ())
]
WORDS = {  # of columns that are no numbers
    **{"matrix": ("A", "SCS"), "statement": ("a", "b"), "of": ("softmax", "skyformer"), "task": ("listops",)},
    **{"metric": ("kl", "drift"), "at": ("d = 8", "d = 16")},
    **{"verdict": ("holds", "violated"), "quantity": ("output", "matrix"), "theorem": ("rank-collapse",)},
    **{"inverted": (True,), "fails": (False, True), "weights": ("pretrained",), "requested": (True,)},
    "site": ("_inverted:106 > razavi:26 mul", "product:176 bmm"),
}


def everything(figure):
    """Rows that a figure shows: two methods and budgets, and all columns that it names.

    Layers and lengths, which mostly have a panel each, are two where the figure names them.
    """
    names = ("skyformer", "linformer")
    told = (figure.x, figure.y, *figure.lines[:1], *figure.points)
    places = product(names, (16, 32), (0, 1) if "layer" in told else (0,), (64, 128) if "n" in told else (64,))
    rows = frame(*(heads(name, [0.3, 0.5, 0.4], d, layer=layer, n=n) for name, d, layer, n in places))
    rows = frame(rows, rows.assign(layer=pd.NA)).astype({"layer": "Int64"})
    rows = rows.assign(alone=rows["layer"].notna(), kv_head=pd.array([pd.NA] * len(rows), "Int64"))
    named = {
        figure.x,
        *figure.measured,
        figure.value,
        figure.colour,
        figure.shade,
        figure.size,
        "inverted",
        "requested",
        "order",
    }
    named |= {*figure.columns, *figure.lines, *figure.points, *figure.flags, *figure.of_marks("bar"), "theorem"}
    named |= {guide.at for guide in figure.guides if isinstance(guide.at, str)}
    for place, name in enumerate(sorted(named - {*rows, "", EACH, "values", *INTERVAL, *FLAGS})):
        if name in WORDS:
            values = pd.Series([WORDS[name][number % len(WORDS[name])] for number in range(len(rows))])
            rows[name] = values.astype("boolean" if isinstance(WORDS[name][0], bool) else "string")
        elif name in METRICS or name in ("row", "column", "lower", "low", "high", "difference"):
            facet = name in (*figure.columns, *figure.lines)
            rows[name] = 0.1 if facet else 0.1 + (np.arange(len(rows)) * (place + 3) % 7) / 10
    if figure.kind == "detail":
        parts = (("d_stat", ""), ("sufficient", ""), ("errors", "of=output"))
        rows = rows.drop(columns=[*figure.measured], errors="ignore")
        details = [rows.assign(detail=name, at=at, index=0, value=rows.index + 1.0, window=0) for name, at in parts]
        rows = pd.concat(details, ignore_index=True).astype({"detail": "string", "at": "string"})
        rows = rows.assign(epsilon=rows.index % 3 / 10 + 0.1)
    words = {
        "at": "",
        "size": 64,
        "format": pd.NA,
        "kernel_dtype": pd.NA,
        "matrix": "B",
        "task": "listops",
        "key": rows["name"],
    }
    return rows.assign(**{name: word for name, word in words.items() if name not in rows})


@pytest.mark.parametrize("command, figure", FIGURES, ids=lambda one: getattr(one, "name", one))
def test_a_figure_of_the_catalogue_draws_and_names_its_axes(command, figure):
    drawn = sheets(everything(figure), figure)
    assert drawn
    texts_of = [text.get_text() for text in drawn[0].texts]
    assert figure.square or all("_" not in text.replace("$", " ").split(" ")[0] for text in texts_of)
    assert figure.caption and figure.title


def test_an_entry_of_the_catalogue_is_short():
    folder = Path(figure_module.__file__).parent / "catalogue"
    for path in folder.glob("*.py"):
        entries = path.read_text().split("\n    Figure(\n")[1:]
        assert all(entry.split("\n    )")[0].count("\n") <= 15 for entry in entries), path
