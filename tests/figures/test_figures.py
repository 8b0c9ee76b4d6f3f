"""What files of figures hold: no provenance above the panels, all of it in metadata and in the caption."""

import math
import re

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from attnprobe.errors import UsageError
from attnprobe.figures import costs
from attnprobe.figures import files as files_module
from attnprobe.figures.costs import Point, frontier
from attnprobe.figures.drawing import Drawing, check_style
from attnprobe.figures.ends import floor, lowest, outside, scale
from attnprobe.figures.kit import (
    canvas,
    folded,
    heat_map,
    legend_below,
    legend_columns,
    logarithmic,
    powers_of_two,
    title_lines,
    yielded,
)
from attnprobe.figures.methods import cross_out
from attnprobe.figures.panels import Panels
from attnprobe.figures.texts import Texts, _meet

pytestmark = pytest.mark.usefixtures("every_file")
FACTS = ("model: m, weights pretrained", "attnprobe 1.2.3", "attnprobe error --d 16,32")
TITLE = "Output error (spectral norm) against budget d: median, p10 – p90, maximum (layer 0, n = 512)"


def words_of(path):
    """What an SVG writes, which matplotlib keeps as comments."""
    return re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"))


def test_a_grid_of_a_users_style_leaves_maps_without_one(tmp_path):
    style = tmp_path / "own.mplstyle"
    style.write_text("axes.grid: True\nxtick.minor.visible: True\n")
    drawing = Drawing(style=str(style))
    with files_module.fixed_settings(drawing):
        figure = Figure()
        plot, map_ = figure.subplots(1, 2)
        heat_map(map_, [[1.0, 2.0]], [0], [0, 1])
        logarithmic(plot)
        yielded([plot, map_], [], drawing.theirs)
        assert [any(line.get_visible() for line in axis.get_xgridlines()) for axis in (plot, map_)] == [True, False]
        assert len(plot.get_xticks(minor=True)) > 0 and len(plot.get_yticks(minor=True)) == 0


@pytest.mark.parametrize(
    "style, methods, pages", [("slide", 2, [3, 3, 1]), ("slide", 9, [2, 2, 2, 1]), ("paper", 9, [7])]
)
def test_a_page_has_the_panels_that_its_legend_leaves_room_for(style, methods, pages):
    drawing = Drawing(style=style)
    panels = [(f"{place}", [f"a method {place}.{number}" for number in range(methods)]) for place in range(7)]
    looks = lambda page: dict.fromkeys([label for rows in page for label in rows], {})  # noqa: E731
    with files_module.fixed_settings(drawing):
        actual = Panels("s", "t", [], panels, lambda axis, rows: None, legend=looks).pages(drawing)
    assert [len(page) for page in actual] == pages


def test_rows_of_panels_have_names_and_columns_too():
    """What all panels say stands above them, and an x axis has its numbers once."""
    panels = [(f"{method}, {d}n = 8", 0) for method in ("topk", "lsh") for d in ("d = 4, ", "d = 8, ")]
    panels += [("V-Mean, n = 8", 0)] * 2
    figure = Panels("s", "t", [], panels, lambda axis, rows: None, "head", "layer", columns=2)
    sheet = figure.sheet(panels, Drawing())
    axes = sheet.figure.axes
    assert [axis.get_title() for axis in axes] == ["d = 4", "d = 8", "", "", "", ""]
    assert [axis.get_ylabel() for axis in axes[::2]] == ["topk\nlayer", "lsh\nlayer", "V-Mean\nlayer"]
    assert [axis.xaxis.get_tick_params()["labelbottom"] for axis in axes] == [False] * 4 + [True] * 2
    assert sheet.figure.get_suptitle().replace("\u00a0", " ") == "n = 8"


def test_pages_have_about_as_many_rows_each():
    panels = [(f"{place}", 0) for place in range(8)]
    figure = Panels("s", "t", [], panels, lambda axis, rows: None, width=6.0, height=1.0)
    with files_module.fixed_settings(Drawing(style="slide")):
        assert [len(page) for page in figure.pages(Drawing(style="slide"))] == [3, 3, 2]


@pytest.mark.parametrize("shown", [True, False])
def test_gridlines_of_an_axis_of_the_caller_stay_as_they_are(shown):
    axis = Figure().subplots()
    axis.grid(shown, axis="x")
    Panels("s", "t", [], [], lambda axis, rows: axis.grid(axis="both") or axis.plot(rows) and None).on(
        axis, "a", [1, 2], True
    )
    assert [line.get_visible() for line in (axis.get_xgridlines()[0], axis.get_ygridlines()[0])] == [shown, False]


@pytest.mark.parametrize("style", ["poster", "none.mplstyle"])
def test_an_unknown_style_is_refused(style):
    with pytest.raises(UsageError, match="unknown style|no such file"):
        check_style(style)


@pytest.mark.parametrize("line", ["lines.linewdth: 3", "font.size: big"])
def test_a_line_of_a_style_that_matplotlib_leaves_out_is_refused(tmp_path, line):
    (tmp_path / "bad.mplstyle").write_text(f"axes.grid: True\n{line}\n")
    with pytest.raises(UsageError, match=rf"bad.mplstyle: no style of matplotlib: Bad .*line 2.*{line[:9]}"):
        check_style(str(tmp_path / "bad.mplstyle"))


@pytest.mark.parametrize("tall", [1.3, 3.0])
def test_a_panels_legend_is_below_the_label_of_its_axis(tall):
    sheet, (axis,) = canvas(Drawing(), "T", "", (), (3.3, tall), (1, 1))
    (line,) = axis.plot([1, 2], [1, 2])
    axis.set_xlabel("budget d")
    legend_below(axis, {"one": line}, 3.0, 7)
    sheet.figure.draw_without_rendering()
    assert axis.get_legend().get_window_extent().y1 <= axis.xaxis.label.get_window_extent().y0


@pytest.mark.parametrize("second, below", [("bc", ["b"]), ("cd", []), ("ab", ["a", "b"]), ("aB", [])])
def test_what_legends_of_panels_share_stands_once_below_all(second, below):
    """The rest stands below its own panel. Where a line has other words in another panel, legends stay whole."""

    def draw(axis, labels):
        return {label: axis.plot([1, 2], color=f"C{ord(label.lower()) - ord('a')}")[0] for label in labels}

    sheet = Panels("stem", "T", (), [("1", "ab"), ("2", second)], draw).sheet([("1", "ab"), ("2", second)], Drawing())
    assert [[text.get_text() for text in one.get_texts()] for one in sheet.figure.legends] == [below] * bool(below)
    for axis, labels in zip(sheet.figure.axes, ("ab", second), strict=True):
        own = axis.get_legend().get_texts() if axis.get_legend() else []
        assert [text.get_text() for text in own] == [label for label in labels if label not in below]


def test_an_axis_of_the_caller_has_the_legend_of_the_figure_and_of_the_panel():
    axis = Figure().subplots()
    looks = {"a bound": {"color": "#ff0000", "linestyle": "--"}}
    figure = Panels("stem", "T", (), (), lambda axis, rows: {"a line": axis.plot(rows)[0]}, legend=looks)
    figure.on(axis, "layer 0", [1, 2], with_legend=True)
    lines = dict(
        zip([text.get_text() for text in axis.get_legend().get_texts()], axis.get_legend().get_lines(), strict=True)
    )
    assert [*lines] == ["a bound", "a line"] and lines["a bound"].get_color() == "#ff0000"
    axis.figure.draw_without_rendering()
    legend, (low, high) = axis.get_legend().get_window_extent(), axis.figure.bbox.intervaly
    assert low <= legend.y0 and legend.y1 <= axis.get_window_extent().y0 < high


@pytest.mark.parametrize("dots", [False, True])
def test_a_cell_without_a_value_has_a_cross_at_the_edge(dots):
    axis = Figure().subplots()
    cross_out(axis, 3.0, None, "red", dots)
    (line,) = axis.get_lines()
    assert line.get_marker() == "x" and line.get_color() == "red"
    across, along = (axis.get_yaxis_transform(), (0.98, 3.0)) if dots else (axis.get_xaxis_transform(), (3.0, 0.97))
    assert tuple(line.get_xydata()[0]) == along and line.get_transform() == across


def test_a_point_with_bad_rows_is_on_no_frontier():
    bad, good, dearer = Point("a", 8, 1.0, 0.1, bad=True), Point("b", 8, 1.0, 0.6), Point("c", 8, 2.0, 0.5)
    assert frontier([bad, good, dearer]) == [good, dearer]


def test_a_legend_has_as_many_columns_as_fit_side_by_side():
    labels = ["skyformer !", "skyformer:guard=sampled", "nystromformer", "V-Mean", "maximum", "lower bound, rank d"]
    assert [legend_columns(labels, inches, 7) for inches in (1.0, 3.3, 9.0)] == [1, 2, 6]
    assert legend_columns(["a" * 40, "b", "c"], 3.5, 7) == 2


def test_long_words_of_legends_and_titles_break_where_they_can_be_read():
    assert folded("skyformer:inverse=schulz,sampler=wor", 1.5, 7) == "skyformer:\ninverse=schulz,\nsampler=wor"
    assert folded("skyformer", 0.3, 7) == "skyformer"
    for inches in (1.0, 1.4, 1.8, 2.2):
        assert not any(line.endswith("n") or line.startswith("=") for line in title_lines("a b c n = 12 d", inches, 9))


def test_a_title_is_broken_where_it_has_joints():
    assert title_lines(TITLE, 4, 9) == [
        "Output error (spectral norm) against budget d:",
        "median, p10\u00a0–\u00a0p90, maximum (layer 0, n\u00a0=\u00a0512)",
    ]
    assert title_lines("a b: c (d)", 4, 9) == ["a b: c (d)"]
    assert title_lines("skyformer:guard=sampled,d=4", 1, 7) == ["skyformer:", "guard=sampled, d=4"]
    assert title_lines(" ".join(["word"] * 20), 4, 9) == [" ".join(["word"] * 12), " ".join(["word"] * 8)]


@pytest.mark.parametrize("values, expected", [([], 0.0), ([2e6, 1.0], 1e-5), ([0.2, 1e-7], 1e-5), ([3e-3], 3e-7)])
def test_the_floor_is_rounding_or_less_where_all_values_are_small(values, expected):
    assert floor(values) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("least, reached", [(2e-5, True), (2e-6, False)])
def test_an_axis_reaches_what_is_more_than_rounding(least, reached):
    """One value is far above the others, and others at 1e-7 are those of exact methods."""
    values = [2e6, 1.0, 0.3, least, 1e-7, None]
    panel = Figure().subplots()
    scale(panel, values)
    assert (1e-7 < panel.get_ylim()[0] < least) == reached and panel.get_yscale() == "log"
    assert (least < lowest(values)) != reached


def out_of_axis(*rows):
    """The note of a method with these budgets and errors, of an axis from 1e-5 to 100."""
    rows = [{"method": "m", "options": {}, "d": d, "error": error} for d, error in rows]
    return outside(rows, lambda row: [row["error"]], 1e-5, 100.0)["m"]


@pytest.mark.parametrize(
    "rows, note",
    [
        ([(16, 0.1), (32, None)], ""),
        ([(16, 2e-6), (32, 1e-7)], " (below: ≤ 2e-6)"),
        ([(16, 0.1), (32, 2e-6), (64, 1e-7)], " (d ≥ 32 below: ≤ 2e-6)"),
        ([(16, 2e-6), (32, 1e-7), (64, 0.1)], " (d ≤ 32 below: ≤ 2e-6)"),
        ([(16, 0.1), (32, 0.1), (64, 0.0)], " (d = 64 below: 0)"),
        ([(16, 2e6), (32, 0.1), (64, 4e5)], " (d = 16, 64 above: ≥ 4e5)"),
        ([(16, 2e6), (32, 0.1), (64, 2e-7)], " (d = 64 below: ≤ 2e-7; d = 16 above: ≥ 2e6)"),
        ([(16, 0.1), (16, 2e-7), (32, 0.1)], " (some d = 16 below: ≤ 2e-7)"),
        ([(None, 0.1), (None, 2e-7)], " (some below: ≤ 2e-7)"),
    ],
)
def test_a_legend_says_which_points_lie_outside_the_axis(rows, note):
    assert out_of_axis(*rows) == note


def test_the_legend_of_a_given_axis_leaves_room_for_it():
    """Of two axes of a column's height, with names that are wide."""
    looks = {f"method-{number}:option=value": {"marker": "o"} for number in range(9)}
    panels = Panels("errors", "", [], [], lambda axis, rows: None, "budget d", "an error", looks)
    figure = Figure(figsize=(6.9, 2.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis in axes:
        panels.on(axis, "a panel", None, True)
    FigureCanvasAgg(figure).draw()
    assert axes[0].get_window_extent().height > 0.3 * figure.bbox.height


def middle_of_a_panel():
    """An axis 300 points wide, with a point in its middle."""
    axis = Figure(figsize=(400 / 72, 400 / 72), dpi=72).add_axes((0.1, 0.1, 0.75, 0.75))
    axis.set(xscale="log", yscale="log", xlim=(1, 1e3), ylim=(1, 1e3))
    return axis, Point("a", 8, 31.0, 31.0)


def numbered(*others):
    """The place of a number of the point in the middle of a panel, from there; None without one."""
    (axis, point), style = middle_of_a_panel(), {"color": "black", "linestyle": "-", "marker": "o"}
    beside = [Point("b", None, 31.0 * 10 ** (x / 100), 31.0 * 10 ** (y / 100)) for x, y in others]
    costs.cloud(axis, [point, *beside], {"a": style}, [])
    Texts(axis).write("d = 8", [(point.cost, point.error)], "black")
    return next((one.get_position() for one in axis.texts), None)


def test_a_number_stands_beside_its_point_and_covers_no_other_point():
    """A neighbour to the right leaves the other sides; with one on each side there is no number."""
    x, y = numbered()
    assert 0 < x < 20 and abs(y) < 5, "close to the point"
    assert numbered((x, y))[1] > 0 > y
    around = [(x * right, y * above) for right in (-1, 0, 1) for above in (-2, 0, 2) if (right, above) != (0, 0)]
    assert numbered(*around) is None


def test_a_number_stands_on_no_line_of_the_panel():
    """Through its place go a yardstick and then a guide from top to bottom."""
    axis, point = middle_of_a_panel()
    costs.cloud(axis, [point], {"a": {"color": "black", "linestyle": "-", "marker": "o"}}, [])
    axis.axhline(31.0 * 10 ** (5 / 100))
    axis.axvline(31.0 * 10 ** (12 / 100))
    assert Texts(axis).write("d = 8", [(point.cost, point.error)], "black")
    (x, y), (name,) = axis.texts[0].get_position(), axis.texts
    assert name.get_text() == "d = 8" and x < 0 and y < 0


def test_a_name_without_room_stands_away_at_the_end_of_a_line():
    """A number stands nowhere there."""
    axis, point = middle_of_a_panel()
    crowd = [Point("b", None, 31.0 * 10 ** (x / 100), 31.0 * 10 ** (y / 100)) for x in (-12, 0, 12) for y in (-8, 0, 8)]
    costs.cloud(axis, [point, *crowd], {"a": {"color": "black", "linestyle": "-", "marker": "o"}}, [])
    texts, at = Texts(axis), [(point.cost, point.error)]
    assert not texts.write("d = 8", at, "black") and texts.write("a name", at, "black", far=True)
    (name,) = axis.texts
    assert math.hypot(*name.get_position()) > 8 and name.arrow_patch is not None


def test_points_beyond_an_axis_are_arrows_at_its_edge_and_have_names():
    """One of a method whose name stands at its line has none."""
    axis, point = middle_of_a_panel()
    out = [Point("above", 8, 10.0, 1e9), Point("below", 8, 50.0, 0.0), Point("a", 16, 90.0, 1e-3)]
    costs.beyond(axis, out, {})
    arrows = [(line.get_marker(), *line.get_xydata()[0]) for line in axis.lines]
    assert arrows == [("^", 10.0, 1e3), ("v", 50.0, 1.0), ("v", 90.0, 1.0)] and axis.get_ylim() == (1, 1e3)
    costs.names(axis, [point], {"a": {"color": "black"}}, False, out)
    assert sorted(text.get_text() for text in axis.texts) == ["a", "above", "below"]


def test_one_of_the_lines_of_equal_budgets_has_them():
    axis, _ = middle_of_a_panel()
    budgets = {"a": (8, 16, 32), "b": (8, 16, 32), "c": (8, 16), "d": (None,)}
    points = [
        Point(label, d, 3.0 * (1 + place), 10.0 * 3**row)
        for row, (label, ds) in enumerate(budgets.items())
        for place, d in enumerate(ds)
    ]
    styles = {label: {"color": "black", "marker": "o", "linestyle": "-"} for label in budgets}
    costs.cloud(axis, points, styles, [])
    costs.names(axis, points, styles)
    assert [text.get_text() for text in axis.texts] == [*budgets, "d = 8", "32", "d = 8", "16"]


def test_of_many_methods_those_on_a_frontier_have_colours():
    """Nine methods: three are on the frontier of a panel, the others are grey, hollow with bad rows."""
    beaten = [Point(f"beaten {number}", 8, 10.0, 1.0) for number in range(costs.MOST_COLOURED - 3)]
    beaten.append(Point("spoiled", 8, 3.0, 0.01, bad=True))
    best = [Point("a", 8, 1.0, 0.9), Point("b", 8, 2.0, 0.89), Point("b", 16, 4.0, 0.3), Point("c", 8, 8.0, 0.1)]
    few = [*best, *beaten[1:]]
    steps = costs.frontier(few, (20.0, 2.0))
    assert steps == best, "the one with bad rows takes no part"
    assert len(costs.prominent([(few, steps)])) == costs.MOST_COLOURED
    beaten.append(Point("ninth", 8, 12.0, 1.0))
    assert costs.prominent([([*best, *beaten], steps)]) == {"a", "b", "c", "spoiled"}, "no sound one beats it"
    beaten[-2] = Point("spoiled", 8, 3.0, 0.9, bad=True)
    assert costs.prominent([([*best, *beaten], steps)]) == {"a", "b", "c"}
    beaten[-2] = Point("spoiled", 8, 3.0, 0.01, bad=True)
    named = costs.prominent([([*best, *beaten], steps)], {"ninth", "not measured"})
    assert named == {"a", "b", "c", "spoiled", "ninth"}, "the user's own is named"
    axis = Figure().subplots()
    styles = {label: {"color": "black", "marker": "o", "linestyle": "-"} for label in "abc"}
    costs.cloud(axis, [*best, *beaten], styles, steps, 2.0)
    grey, hollow = (line for line in axis.lines if line.get_zorder() == costs.OTHERS["zorder"])
    assert len(grey.get_xydata()) == len(beaten) - 1 and grey.get_markerfacecolor() != "none"
    assert hollow.get_xydata().tolist() == [[3.0, 0.01]] and hollow.get_markerfacecolor() == "none"
    thin = [line for line in axis.lines if line.get_linewidth() == 0.7]
    assert len(thin) == len(beaten), "a line through the points of a grey method"
    many = Figure().subplots()
    costs.cloud(many, [Point(f"m{place}", 8, 1.0, 1.0) for place in range(costs.MOST_GREY + 1)], {}, [])
    assert not any(line.get_linewidth() == 0.7 for line in many.lines), "of many methods none"
    (_, vmean), *corners = axis.lines[-1].get_xydata().tolist()
    assert vmean == 2.0 and corners == [[point.cost, point.error] for point in best], "it begins at V-Mean"
    costs.cloud(axis, [], styles, [])


def test_hollow_points_have_the_edge_of_their_method():
    axis = Figure().subplots()
    style = {"color": "red", "marker": "s", "linestyle": "-", "markeredgecolor": "black"}
    costs.cloud(axis, [Point("a", 8, 1.0, 1.0), Point("a", 16, 2.0, 0.5, bad=True)], {"a": style}, [])
    good, bad = (line for line in axis.lines if len(line.get_xdata()) == 1)
    assert (good.get_markeredgecolor(), bad.get_markeredgecolor()) == ("black", "red")
    assert (good.get_markerfacecolor(), bad.get_markerfacecolor()) == ("red", "none")


def test_without_a_frontier_the_methods_of_the_least_errors_have_colours():
    points = [Point(f"method {number}", 8, 10.0 - number, 0.1 * number) for number in range(1, 10)]
    assert costs.prominent([(points, []), ([], [])]) == {f"method {number}" for number in range(1, 7)}


def test_an_axis_without_a_value_begins_at_0():
    panel = Figure().subplots()
    scale(panel, [None, math.nan])
    assert panel.get_ylim() == pytest.approx((0, 1.06)) and panel.get_yscale() == "linear"
    scale(panel, [0.5, 2.0], high=4.0)
    assert panel.get_ylim() == pytest.approx((0, 2.2))


def test_lengths_without_room_have_no_names():
    for inches, named in ((6.0, 6), (2.0, 3)):
        axis = Figure(figsize=(inches, 2.0)).subplots()
        powers_of_two(axis, [512 * 2**power for power in range(6)])
        names = [text.get_text() for text in axis.get_xticklabels()]
        assert sum(map(bool, names)) == named and names[-1] == "16384"


@pytest.mark.parametrize("several", [True, False])
def test_texts_cover_no_marker_and_no_text_and_name_some_of_a_crowd(several):
    """Haloes of names erased the frontier, 64 cut its circle, and grey methods had no names."""
    axis = Figure(figsize=(400 / 72, 400 / 72), dpi=72).add_axes((0.1, 0.1, 0.75, 0.75))
    axis.set(xscale="log", yscale="log", xlim=(1, 1e3), ylim=(1, 1e3))
    styles = {label: {"color": "black", "linestyle": "-", "marker": "o"} for label in "abcd"}
    named = [
        Point(label, d, 20.0 * 1.6**place * d / 8, 300.0 / d / 1.2**place, bad=label == "b")
        for place, label in enumerate(styles)
        for d in (8, 16, 32)
    ]
    crowd = [Point(f"grey {x} {y}", 8, 30.0 * 1.05**x, 30.0 * 1.05**y) for x in range(3) for y in range(3)]
    costs.cloud(axis, [*named, *crowd], styles, costs.frontier(named))
    costs.names(axis, [*named, *crowd], styles, several)
    axis.figure.canvas.draw()
    texts = [text.get_text() for text in axis.texts]
    coloured = ["a", "b !", "c", "d", *(["d = 8", "32"] if several else [])]
    assert sorted(texts[: len(coloured)]) == sorted(coloured)
    grey = [next(one for one in crowd if one.label == name).error for name in texts[len(coloured) :]]
    assert 0 < len(grey) < len(crowd) and grey == sorted(grey)
    assert all(text.get_bbox_patch() is None for text in axis.texts), "nothing below a text is hidden"
    boxes = []  # of ink, from the baseline on
    for text in axis.texts:
        extent, tall = text.get_window_extent(), 0.73 * text.get_fontsize()
        low = axis.transData.transform(text.xy)[1] + text.get_position()[1] + 0.2 * text.get_fontsize()
        boxes.append((extent.x0, low, extent.x1, low + tall))
    marks = [
        (*place, line.get_markersize() / 2)
        for line in axis.lines
        if line.get_linestyle() == "None"
        for place in axis.transData.transform(line.get_xydata())
    ]
    for left, low, right, high in boxes:
        assert all(
            math.hypot(max(left - x, 0, x - right), max(low - y, 0, y - high)) > 0.9 * reach for x, y, reach in marks
        )
    assert not any(_meet(one, other) for place, one in enumerate(boxes) for other in boxes[:place])
