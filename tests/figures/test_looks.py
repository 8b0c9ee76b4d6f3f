"""One colour and marker for each method, everywhere, whatever else is in the figure; maps of layers x heads."""

import math
from itertools import combinations
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle

from attnprobe.figures.kit import EMPTY, Scale, heat_map
from attnprobe.figures.looks import COMPARED, LOOKS, looks_of
from attnprobe.figures.methods import MOST_OF_FAMILY, family_panels, styles_of, text_label
from attnprobe.methods import METHODS

# how colours look with normal sight, without red cones and without green ones, of linear RGB (Machado et al., 2009)
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour, sight):
    """A colour in CIE L*a*b*, as somebody sees it."""
    from matplotlib.colors import to_rgb

    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = XYZ @ np.clip(sight @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])

    def f(t):
        return np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116

    return np.array([116 * f(y) - 16, 500 * (f(x) - f(y)), 200 * (f(y) - f(z))])


def row(method: str, family: str = "", options: Any = None, d: int | None = 16, **more: Any) -> Any:
    return {"method": method, "options": options or {}, "family": family, "d": d, **more}


def pair(look):
    return look["color"], look["marker"]


def test_every_method_has_a_look_of_its_own():
    assert set(METHODS) <= set(LOOKS)
    assert len(set(LOOKS.values())) == len(LOOKS)


@pytest.mark.parametrize("sight", SIGHTS)
def test_methods_that_papers_compare_have_colours_that_differ(sight):
    """Two colours at a distance below about 10 are hard to tell apart on a thin line."""
    names = [name for name in COMPARED if name != "vmean"]  # V-Mean's line is dashed
    colours = {LOOKS[name][0] for name in names}
    assert len(colours) == len(names) == len(COMPARED) - 1
    seen = {colour: lab(colour, SIGHTS[sight]) for colour in colours}
    assert min(np.linalg.norm(seen[a] - seen[b]) for a, b in combinations(colours, 2)) > 10


def test_every_method_has_a_marker_and_a_reference_has_none():
    """Some figures have only points, so a method without a marker would be invisible in them."""
    styles = styles_of([row("svd"), row("vmean", d=None), row("linear", d=None)])
    assert all(marker for _, marker in LOOKS.values())
    assert all(style["marker"] in MarkerStyle.filled_markers for style in styles.values())
    (reference,) = styles_of([row("vmean", d=None, reference=True)]).values()
    assert reference["marker"] is None and reference["color"] == styles["vmean"]["color"]


def test_the_lines_of_yardsticks_differ_and_a_line_without_a_budget_is_broken():
    styles = styles_of([row("svd"), row("vmean", d=None), row("linear", d=None), row("skyformer")])
    lines = {label: style["linestyle"] for label, style in styles.items()}
    assert lines == {"svd": "-.", "vmean": "--", "linear": "-.", "skyformer": "-"}


def test_colours_differ_within_a_family():
    families = {}
    for name, method in METHODS.items():
        families.setdefault(method.family, []).append(LOOKS[name][0])
    for name, colours in families.items():
        assert len(set(colours)) == len(colours), name


def test_a_method_of_a_user_moves_no_other_and_keeps_its_look():
    names = ["skyformer", "mine.py:f", "mine.py:g", "linformer"]
    every = looks_of((name, name) for name in names)
    for name in names:
        assert looks_of([(name, name)])[name] == every[name]
    assert len({pair(look) for look in every.values()}) == len(names)
    assert not {pair(every[name]) for name in names[1:3]} & set(LOOKS.values())


def test_options_keep_the_colour_and_change_marker_and_line():
    labels = ["skyformer", "skyformer:guard=sampled", "skyformer:sampler=rls"]
    looks = looks_of(("skyformer", label) for label in labels)
    assert {look["color"] for look in looks.values()} == {LOOKS["skyformer"][0]}
    assert len({(look["marker"], str(look["linestyle"])) for look in looks.values()}) == len(labels)
    assert looks["skyformer"]["linestyle"] == "-" and looks[labels[1]]["linestyle"] != "-"


@pytest.mark.parametrize("first", range(12))
def test_two_choices_of_options_differ_by_their_dashes(first):
    """A marker is too small to tell them apart; with five choices, dashes come again."""
    labels = [f"skyformer:gamma=0.{first}{place}" for place in range(5)]
    looks = looks_of(("skyformer", label) for label in labels)
    dashes = [looks[label]["linestyle"] for label in sorted(labels)]
    assert all(one not in dashes[:place] for place, one in enumerate(dashes[:4]))
    assert len({tuple(look.values()) for look in looks.values()}) == 5
    assert looks_of([("skyformer", sorted(labels)[0])])[sorted(labels)[0]] == looks[sorted(labels)[0]]


def test_no_two_methods_of_a_figure_look_the_same_even_where_hashes_fall_together():
    labels = [f"mine{number}.py:f" for number in range(40)]
    looks = looks_of((label, label) for label in labels)
    assert len({tuple(look.values()) for look in looks.values()}) == len(labels)


def test_the_figure_of_some_methods_uses_what_the_figure_of_all_uses():
    rows = [row(name, method.family) for name, method in METHODS.items()]
    every = styles_of(rows)
    some = styles_of([rows[4], rows[2], rows[9]])
    assert some == {label: every[label] for label in some}
    assert list(styles_of(rows[::-1])) != list(every) and styles_of(rows[::-1]) == every


def test_a_panel_has_at_most_four_methods_of_one_family():
    rows = [row(name, method.family) for name, method in METHODS.items()]
    titles = family_panels(rows)
    assert set(titles) == {text_label(one) for one in rows}
    families = {text_label(one): one["family"] for one in rows}
    for title in set(titles.values()):
        members = [label for label, panel in titles.items() if panel == title]
        assert len(members) <= MOST_OF_FAMILY
        assert {families[label] for label in members} == {title.partition(",")[0]}
    many = family_panels([row("window", "sparse", {"width": width}) for width in range(13)])
    assert sorted(list(many.values()).count(title) for title in set(many.values())) == [3, 3, 3, 4]
    expected = {"nystromformer": "Nyström", "window": "sparse"}
    assert family_panels([row("nystromformer", "Nyström"), row("window", "sparse")]) == expected


def painted(values, layers, heads):
    axis = Figure().subplots()
    heat_map(axis, np.array(values), layers, heads, **Scale(1, 100, "").look)
    return axis, axis.collections[0]


def test_a_cell_has_the_colour_of_its_logarithm_and_none_where_nothing_was_measured():
    _, mesh = painted([[1.0, 10.0], [math.nan, 100.0]], [0, 1], [0, 1])
    mesh.update_scalarmappable()
    viridis = matplotlib.colormaps["viridis"]
    expected = [viridis(0.0), viridis(0.5), to_rgba(EMPTY), viridis(1.0)]
    assert mesh.get_facecolors().reshape(4, 4) == pytest.approx(np.array(expected), abs=0.01)


def test_layers_and_heads_are_named_about_eight_times():
    axis, _ = painted(np.ones((24, 12)), range(24), range(12))
    assert [label.get_text() for label in axis.get_yticklabels()] == [str(layer) for layer in range(0, 24, 3)]
    assert [label.get_text() for label in axis.get_xticklabels()] == [str(head) for head in range(0, 12, 2)]
    assert axis.get_ylim() == (24, 0)
