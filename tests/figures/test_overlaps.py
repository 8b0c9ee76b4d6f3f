"""Curves that coincide are all visible."""

import pytest
from matplotlib.figure import Figure

from attnprobe.figures.drawing import Drawing
from attnprobe.figures.files import PALE, fixed_settings, saved, show_overlaps
from attnprobe.figures.kit import canvas

D = [16, 32, 64, 128]
ERRORS = [0.4, 0.3, 0.2, 0.1]
OTHERS = [0.9, 0.8, 0.7, 0.6]


def panel():
    axis = Figure().subplots()
    axis.set_xscale("log")
    return axis


def looks(axis):
    show_overlaps(axis.figure)
    return [(line.get_linewidth(), line.get_markersize(), line.get_alpha()) for line in axis.lines]


def test_the_earlier_of_two_equal_curves_is_wider_and_paler():
    axis = panel()
    for _ in range(3):
        axis.plot(D, ERRORS, marker="o")
    first, second, last = looks(axis)
    assert first[:2] > second[:2] > last[:2]
    assert first[1] > second[1] > last[1]
    assert (first[2], second[2], last[2]) == (PALE, PALE, None)


def test_the_lower_of_two_equal_curves_is_wider_whichever_was_plotted_first():
    axis = panel()
    axis.plot(D, ERRORS, zorder=3)
    axis.plot(D, ERRORS, zorder=1)
    above, below = looks(axis)
    assert (above[2], below[2]) == (None, PALE)


@pytest.mark.parametrize("every, larger", [(None, True), ([2], True), ([1], False), ((0, 2), True), ((1, 2), False)])
def test_markers_grow_only_where_others_cover_them(every, larger):
    axis = panel()
    axis.plot(D, ERRORS, marker="o", markevery=[0, 2])
    axis.plot(D, ERRORS, marker="o", markevery=every)
    below, above = looks(axis)
    assert (below[1] > above[1]) == larger and below[0] > above[0]


@pytest.mark.parametrize(
    ("d", "errors", "overlaps"),
    [
        (D, OTHERS, False),
        (D, [0.4, 0.3, 0.9, 0.9], False),  # they part
        ([2 * d for d in D], ERRORS, False),
        ([16, 1024], [0.4, 0.3], False),  # one common budget says nothing
        (D[1:], ERRORS[1:], True),
        (D, [0.4, 0.3, float("nan"), 0.1], True),
    ],
    ids=["elsewhere", "a part", "shifted", "one budget", "fewer budgets", "a gap"],
)
def test_curves_overlap_if_all_their_common_points_do(d, errors, overlaps):
    axis = panel()
    axis.plot(D, ERRORS)
    axis.plot(d, errors)
    assert looks(axis)[0][2] == (PALE if overlaps else None)


def test_edges_of_bands_points_and_guides_are_no_curves():
    axis = panel()
    axis.plot(D, ERRORS)
    axis.plot(D, ERRORS, alpha=0.3)
    axis.plot(D, ERRORS, linestyle="", marker="_")
    axis.axhline(0.1)
    axis.axhline(0.1)
    assert [alpha for _, _, alpha in looks(axis)] == [None, 0.3, None, None, None]


def test_every_saved_figure_shows_its_overlaps(tmp_path):
    drawing = Drawing()
    with fixed_settings(drawing):
        sheet, (axis,) = canvas(drawing, "Title", "", (), (3.3, 2.0), (1, 1))
        for _ in range(2):
            axis.plot(D, ERRORS)
        saved(sheet, tmp_path / "figure", drawing)
    assert [line.get_alpha() for line in axis.lines] == [PALE, None]
