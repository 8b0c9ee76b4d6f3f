"""Maps of layers x heads: what is painted, and what is named."""

import math

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from attnprobe.figures.kit import EMPTY, Scale, heat_map


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
