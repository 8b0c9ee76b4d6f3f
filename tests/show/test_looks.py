"""Colours and markers of methods."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from attnprobe.errors import UsageError
from attnprobe.methods import METHODS
from attnprobe.show.looks import COLOURS, FIXED, looks_of
from attnprobe.show.styles import check_style

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


@pytest.mark.parametrize("count", [2, 8, 12, 40])
def test_no_two_of_many_methods_look_the_same(count):
    methods = [(name, name, "family") for name in [*METHODS][:count]]
    looks = looks_of(methods)
    assert len(set(map(str, looks.values()))) == count
    assert all(looks[name] == FIXED[name] for name in looks if name in FIXED)


@pytest.mark.parametrize("style", ["poster", "none.mplstyle"])
def test_an_unknown_style_is_refused(style):
    with pytest.raises(UsageError, match="unknown style|no such file|No such file"):
        check_style(style)


@pytest.mark.parametrize("line", ["lines.linewdth: 3", "font.size: big"])
def test_a_line_of_a_style_that_matplotlib_leaves_out_is_refused(tmp_path, line):
    (tmp_path / "bad.mplstyle").write_text(f"axes.grid: True\n{line}\n")
    with pytest.raises(UsageError, match=rf"bad.mplstyle: .*Bad .*line 2.*{line[:9]}"):
        check_style(str(tmp_path / "bad.mplstyle"))
