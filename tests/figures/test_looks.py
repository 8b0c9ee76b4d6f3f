"""Methods of a figure differ by colour, or by marker and dashes where colours are used up; maps of layers x heads."""

import math
from itertools import combinations
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle

from attnprobe.figures.kit import EMPTY, Scale, heat_map
from attnprobe.figures.looks import COLOURS, DASHES, HOME, YARDSTICKS, looks_of
from attnprobe.figures.methods import MOST_IN_PANEL, MOST_OF_FAMILY, family_panels, parts, styles_of, text_label
from attnprobe.methods import METHODS

# how colours look with normal sight, and without red, green or blue cones, of linear RGB (Machado et al., 2009)
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# what the report's page does to a figure in dark mode, of sRGB: invert(0.9), then hue-rotate(180deg)
TURNED = np.array([[-0.574, 1.43, 0.144], [0.426, 0.43, 0.144], [0.426, 1.43, -0.856]])
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour, sight):
    """A colour in CIE L*a*b*, as somebody sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = XYZ @ np.clip(sight @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])

    def f(t):
        return np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116

    return np.array([116 * f(y) - 16, 500 * (f(x) - f(y)), 200 * (f(y) - f(z))])


def row(method: str, family: str = "", options: Any = None, d: int | None = 16, **more: Any) -> Any:
    return {"method": method, "options": options or {}, "family": family, "d": d, **more}


def colours(*names):
    return {
        label: look["color"] for label, look in looks_of([(name.partition(":")[0], name) for name in names]).items()
    }


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("dark", [False, True])
def test_colours_differ_for_every_reader_on_white_and_in_dark_mode(sight, dark):
    """Two colours at a distance below about 10 are hard to tell apart on a thin line."""

    def shown(colour):
        return np.clip(TURNED @ (0.9 - 0.8 * np.array(to_rgb(colour))), 0, 1) if dark else colour

    seen = [lab(shown(colour), SIGHTS[sight]) for colour in COLOURS]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 10
    page = lab(shown("white"), SIGHTS["normal"])[0]
    assert min(abs(lab(shown(colour), SIGHTS["normal"])[0] - page) for colour in COLOURS) > 28


def test_in_the_panels_of_all_methods_each_has_its_home():
    """So do those of fewer methods, unless two of one panel have the same."""
    looks = styles_of(every_row())
    assert {name: (looks[name]["color"], looks[name]["marker"]) for name in HOME} == HOME


def test_methods_of_a_run_look_the_same_in_each_of_its_figures():
    """Skyformer and vattention have one home; nine methods are more than there are colours."""
    run = [row(name) for name in ("skyformer", "vattention", "tova")]
    more = ("nystromformer", "linformer", "informer", "bigbird", "skeinformer", "longformer")
    for rows in (run, [*run, *map(row, more)]):
        every = styles_of(rows)
        assert styles_of(rows, rows[1:2]) == {"vattention": every["vattention"]}
        assert every["vattention"]["color"] != HOME["vattention"][0]


@pytest.mark.parametrize("count", [9, 11, 16, 32])
def test_methods_that_share_a_colour_are_few_and_have_other_markers_and_dashes(count):
    """Eight colours; in a figure that has all methods in one panel, two of one colour still differ twice."""
    styles = styles_of([row(name, METHODS[name].family) for name in [*METHODS][-count:]])
    looks = [style for label, style in styles.items() if label not in YARDSTICKS]
    for colour in COLOURS:
        same = [style for style in looks if style["color"] == colour]
        assert len(same) <= math.ceil(len(looks) / len(COLOURS))
        assert len({style["marker"] for style in same}) == len(same)
        assert len({str(style["linestyle"]) for style in same}) == len(same)


def test_up_to_eight_methods_have_different_markers():
    """In grey print only markers tell them apart. Yardsticks are grey, and have some of the markers."""
    for names in (["window", "tova"], ["window", "skeinformer"], [*HOME][:8], [*HOME][-8:]):
        seen = looks_of([(name, name) for name in [*names, *YARDSTICKS]])
        assert len({seen[name]["marker"] for name in names}) == len(names), names
    seen = looks_of([(name, name) for name in ("nsa", "snapkv", "random", "svd")]).values()
    assert len({look["marker"] for look in seen}) == len(seen)


def test_methods_of_one_panel_of_a_large_run_have_different_markers():
    rows = every_row()
    styles = styles_of(rows)
    for _, panel in family_panels(rows):
        assert len({styles[text_label(row)]["marker"] for row in panel}) == len(panel)


def test_a_method_that_moves_keeps_its_marker():
    seen = looks_of([("skyformer", "skyformer"), ("vattention", "vattention")])
    assert seen["vattention"]["marker"] == HOME["vattention"][1]


def test_any_two_methods_have_different_colours_and_one_its_usual_one():
    for pair in combinations(METHODS, 2):
        seen = colours(*pair)
        assert len(set(seen.values())) == 2, pair
        named = [name for name in pair if name in HOME]
        assert not named or any(seen[name] == HOME[name][0] for name in named), pair
    assert all(colours(name) == {name: HOME[name][0]} for name in HOME)


@pytest.mark.parametrize("labels", [["mine.py:f", "mine.py:g"], ["skyformer:gamma=1", "skyformer:gamma=2"]])
def test_methods_of_the_user_and_with_options_take_free_colours(labels):
    papers = ["skyformer", "nystromformer", "performer", "linformer", "informer", "bigbird"]
    seen = colours(*papers, *labels)
    assert len(set(seen.values())) == 8
    assert {name: seen[name] for name in papers} == {name: HOME[name][0] for name in papers}
    assert colours("skyformer:gamma=1") == {"skyformer:gamma=1": HOME["skyformer"][0]}


@pytest.mark.parametrize("late", [["knorm", "hyper"], ["vattention", "efficient"]])
def test_who_comes_too_late_for_its_colour_takes_none_that_another_wants(late):
    usual = {name: HOME[name][0] for name in ("longformer", "performer", "skyformer", "nystromformer", "linformer")}
    assert usual.items() <= colours(*late, *usual).items()


def test_the_order_of_methods_does_not_matter():
    labels = [(name, name) for name in METHODS]
    assert looks_of(labels[::-1]) == looks_of(labels)


@pytest.mark.parametrize("count", [9, 16, 40, 100])
def test_no_two_of_many_methods_look_the_same(count):
    looks = looks_of([(f"mine{number}.py:f", f"mine{number}.py:f") for number in range(count)]).values()
    assert len({(look["color"], look["marker"], str(look["linestyle"])) for look in looks}) == count
    assert len({(look["color"], look["marker"]) for look in looks}) == min(count, 64)
    lines = {(look["color"], str(look["linestyle"])) for look in looks}  # what lines without markers show
    assert len(lines) == min(count, 32)


def test_every_method_has_a_marker_and_a_reference_has_none():
    """Some figures have only points, so a method without a marker would be invisible in them."""
    styles = styles_of([row("svd"), row("vmean", d=None), row("linear", d=None)])
    assert all(style["marker"] in MarkerStyle.filled_markers for style in styles.values())
    (reference,) = styles_of([row("vmean", d=None, reference=True)]).values()
    assert reference["marker"] is None and reference["color"] == styles["vmean"]["color"]


def test_the_lines_of_yardsticks_differ_and_a_line_without_a_budget_is_broken():
    styles = styles_of([row("svd"), row("vmean", d=None), row("linear", d=None), row("skyformer")])
    lines = {label: style["linestyle"] for label, style in styles.items()}
    assert lines == {"svd": "-.", "vmean": "--", "linear": DASHES[2], "skyformer": "-"}


def every_row(*more):
    return [*(row(name, method.family) for name, method in METHODS.items() if name != "vmean"), *more]


def test_methods_of_one_panel_have_different_colours_and_no_two_look_the_same():
    panels = family_panels(every_row(row("mine.py:f", "user")))
    styles = styles_of(every_row(row("mine.py:f", "user")))
    for _, panel in panels:
        labels = {text_label(one) for one in panel} - set(YARDSTICKS)
        assert len({styles[label]["color"] for label in labels}) == len(labels)
    assert len({(style["color"], style["marker"]) for style in styles.values()}) == len(styles)


def test_a_panel_has_at_most_four_methods_of_families_beside_the_users():
    rows = every_row()
    own, reference = row("mine.py:f", "user"), row("vmean", d=None, reference=True)
    panels = family_panels([*rows, own, reference])
    for title, panel in panels:
        *others, first, second = panel
        assert first is own and second is reference
        assert len(others) <= MOST_OF_FAMILY
        families = {one["family"] for one in others}
        assert families == set(title.partition(" (")[0].split(", "))
    drawn = [one for _, panel in panels for one in panel[:-2]]
    assert sorted(map(text_label, drawn)) == sorted(map(text_label, rows))


def test_small_families_share_a_panel():
    names = ["skyformer", "mss", "performer", "linformer", "informer", "longformer", "knorm"]
    panels = family_panels([row(name, METHODS[name].family) for name in names])
    assert [title for title, _ in panels] == ["Nyström, features, sketch", "sampling, sparse, selection"]


def test_few_methods_have_one_panel_and_only_own_ones_have_it_too():
    rows = [row("window", "sparse", {"width": width}) for width in range(MOST_IN_PANEL)]
    assert family_panels(rows) == [("", rows)]
    assert family_panels([*rows, row("mine.py:f", "user")])[0][0] == ""
    own = [row(f"mine.py:{name}", "user") for name in "abcdefg"]
    assert [(title, len(panel)) for title, panel in family_panels(own)] == [("user (1 of 2)", 4), ("user (2 of 2)", 3)]
    assert parts([row("vmean", d=None, reference=True)], 4) == []


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


def test_yardsticks_are_lines_that_differ():
    lines = [Line2D([], [], **look) for look in YARDSTICKS.values()]
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == len(
        {line.get_color() for line in lines}
    )
