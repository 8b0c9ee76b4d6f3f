"""What the figures and tables of ``attnprobe theory`` show is what the records say: every line, point and number."""

import math

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D
from showing import view_of

from attnprobe.experiments.theory.curves import STYLES, theory_curves
from attnprobe.experiments.theory.figures import VERDICTS, _range, theory_figures
from attnprobe.experiments.theory.view import theory_rows, theory_summary
from attnprobe.figures import files
from attnprobe.figures.drawing import Drawing
from attnprobe.figures.looks import COLOURS

HEADS, SEEDS = [0, 1, 2], 4


def finding(at=None, d=None, bound=(2.0, 3.0, 4.0), measured=(1.0, 5.0, 2.0), sense="at most", verdict=None, **details):
    verdicts = verdict or ["holds" if m <= b else "violated" for b, m in zip(bound, measured, strict=True)]
    flat = {"bound": list(bound), "measured": list(measured), "lower": None, "upper": None, "slack": [1.0] * 3}
    return {
        "d": d,
        "at": at or {},
        "assumption": "a",
        "promise": "p",
        "sense": sense,
        "met": [True] * 3,
        "vacuous": [False] * 3,
        "rounding": [0.0] * 3,
        "verdict": verdicts,
        "details": details,
        **flat,
    }


def record(*findings, theorem="t", n=64, layer=0, window=0, method=None):
    return {
        "theorem": theorem,
        "paper": "Nobody 2026",
        "says": "s",
        "method": method,
        "options": {},
        "target": None,
        "layer": layer,
        "window": window,
        "n": n,
        "heads": HEADS,
        "source": {"weights": "pretrained"},
        "findings": list(findings),
        "refused": [],
        "status": "ok",
        "reason": None,
    }


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """``drawn(records)``: the figures that would be saved, by their stem."""

    def draw(records):
        kept = {}
        monkeypatch.setattr(files, "saved", lambda sheet, stem, drawing: [kept.setdefault(stem.name, sheet.figure)])
        theory_figures(theory_rows(records), Drawing(), tmp_path)
        return kept

    return draw


def shown(axis):
    """The lines of an axis with a label of the legend or markers: ``[(style, x, y)]``."""
    return [(line.get_linestyle(), *(np.asarray(x, dtype=float) for x in line.get_data())) for line in axis.get_lines()]


def quantile(values, share):
    return float(np.quantile(values, share))


def test_dimension_is_drawn_against_epsilon_over_the_heads_of_each_n(drawn):
    g = np.random.default_rng(0)
    values = {(n, e, w): g.uniform(1, 50, 3).tolist() for n in (64, 128) for e in (0.1, 0.5) for w in (0, 1)}
    sufficient = {key: [9 * x for x in some] for key, some in values.items()}
    records = [
        record(
            *(
                finding({"epsilon": e, "event": event}, 8, d_stat=values[n, e, w], sufficient=sufficient[n, e, w])
                for e in (0.1, 0.5)
                for event in ("a", "b")
            ),
            n=n,
            window=w,
        )
        for n in (64, 128)
        for w in (0, 1)
    ]
    figures = drawn(records)
    axis = figures["theory-dimension"].axes[0]
    lines = [line for line in shown(axis) if line[0] == "-"]
    for (_, x, y), n in zip(lines, (64, 128), strict=True):
        heads = [[*values[n, e, 0], *values[n, e, 1]] for e in (0.1, 0.5)]
        assert x.tolist() == [0.1, 0.5] and y == pytest.approx([quantile(some, 0.5) for some in heads])
    first = axis.collections[0].get_paths()[0].vertices
    expected = [quantile([*values[64, 0.1, 0], *values[64, 0.1, 1]], share) for share in (0.1, 0.9)]
    assert sorted({y for x, y in first.tolist() if x == 0.1}) == pytest.approx(expected)
    assert [y[0] for style, _, y in shown(axis) if style == ":"] == [128, 256]  # 2n
    axis = figures["theory-tokens"].axes[0]
    assert axis.get_xlabel() == "tokens n" and axis.get_xticks().tolist() == [64, 128]
    words = [text.get_text() for text in figures["theory-tokens"].legends[0].get_texts()]
    assert {r"$d_{\mathrm{stat}}$", "landmarks that Theorem 2 requires"} <= {*words}, "solid and dashed"
    assert "stat" in axis.get_ylabel()
    assert not len(axis.get_xticks(minor=True))  # a tick beside that of a length would look like another length

    def some(table, e):
        return [quantile([*table[n, e, 0], *table[n, e, 1]], 0.5) for n in (64, 128)]

    expected = [
        ("-", some(values, 0.1)),
        ("--", some(sufficient, 0.1)),
        ("-", some(values, 0.5)),
        ("--", some(sufficient, 0.5)),
        (":", [128, 256]),
    ]
    for (style, x, y), (known, numbers) in zip(shown(axis), expected, strict=True):
        assert style == known and x.tolist() == [64, 128] and y == pytest.approx(numbers)


@pytest.mark.parametrize("epsilons", [(0.1, 0.5), (0.1, 0.2, 0.5)])
def test_bands_of_many_epsilons_are_left_out(drawn, epsilons):
    records = [record(*(finding({"epsilon": e}, 8, d_stat=[1.0, 2.0, 3.0]) for e in epsilons), n=n) for n in (64, 128)]
    figure = drawn(records)["theory-tokens"]
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("p10 – p90" in words) == bool(figure.axes[0].collections) == (len(epsilons) == 2)


def test_failure_is_the_share_of_seeds_above_epsilon_of_each_head_and_of_the_worst(drawn):
    g = np.random.default_rng(1)
    errors = g.uniform(0.01, 2, (3, SEEDS))
    listed = errors.tolist()
    listed[1][2] = "inf"
    errors[1, 2] = math.inf
    records = [
        record(
            *(
                finding({"method": "m", "epsilon": e, "delta": 0.2, "of": "matrix"}, 8, errors=listed)
                for e in (0.1, 0.5)
            ),
            theorem="ma-property",
            method="m",
        )
    ]
    axis = drawn(records)["theory-ma-matrix-n64"].axes[0]
    *heads, worst = [line for line in axis.get_lines() if len(line.get_xdata()) > 2]
    for line, own in zip(heads, errors, strict=True):
        assert [y for _, y in line.get_xydata()] == [(own > x).mean() for x in line.get_xdata()]
        assert line.get_color() == worst.get_color() and line.get_linewidth() < worst.get_linewidth() / 2
    assert [y for _, y in worst.get_xydata()] == [(errors > x).mean(1).max() for x in worst.get_xdata()]
    assert len(worst.get_xdata()) == 3 * SEEDS - 1 + 2 and worst.get_drawstyle() == "steps-post"
    assert [line.get_ydata()[0] for line in axis.get_lines() if len(line.get_xdata()) == 2] == [0.2]
    lost = finding({"of": "matrix", "epsilon": 0.1}, 8, errors=[[None] * SEEDS] * 3)  # nothing was measured
    nothing = drawn([record(lost, theorem="ma-property", method="m")])
    assert len(nothing["theory-ma-matrix-n64"].axes[0].get_lines()) == 0


def test_failures_of_many_methods_have_the_median_head_and_the_worst(drawn):
    """12 heads of each of 8 methods covered each other."""
    errors = np.random.default_rng(1).uniform(0.01, 2, (5, 3, SEEDS))
    records = [
        record(
            finding({"method": f"m{place}", "epsilon": 0.1, "delta": 0.2, "of": "matrix"}, 8, errors=own.tolist()),
            theorem="ma-property",
            method=f"m{place}",
        )
        for place, own in enumerate(errors)
    ]
    figure = drawn(records)["theory-ma-matrix-n64"]
    lines = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 2]
    for line, (own, take) in zip(lines, [(own, take) for own in errors for take in (np.median, np.max)], strict=True):
        assert [y for _, y in line.get_xydata()] == [take((own > x).mean(1)) for x in line.get_xdata()]
    assert "thin: the median head, strong: the worst" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_collapse_is_drawn_layer_by_layer(drawn):
    g = np.random.default_rng(2)
    rows = {
        layer: {name: g.uniform(0.1, 1, 3).tolist() for name in ("values", "relative", "measured", "bound")}
        for layer in (0, 1, 2)
    }
    records = [
        record(
            finding(bound=some["bound"], measured=some["measured"], values=some["values"], relative=some["relative"]),
            theorem="rank-collapse",
            layer=layer,
        )
        for layer, some in rows.items()
    ]
    axis = drawn(records)["theory-layers"].axes[0]
    names = ("values", "relative", "measured", "bound")
    for (_, x, y), name in zip(shown(axis), names, strict=True):
        assert x.tolist() == [0, 1, 2]
        assert y == pytest.approx([quantile(rows[layer][name], 0.5) for layer in rows])


def points(axis):
    """``{(marker, colour): {(x, y), …}}`` of an axis."""
    actual = {}
    for line in axis.get_lines():
        if line.get_linestyle() == "None":
            actual.setdefault((line.get_marker(), line.get_color()), set()).add(tuple(line.get_xydata()[0].tolist()))
    return actual


def bars(axis):
    """The bars of an axis from below: ``{x: [(heads, verdict), …]}``."""
    words = {matplotlib.colors.to_hex(colour): word for word, colour in VERDICTS.items()}
    actual = {}
    for bar in axis.patches:
        if bar.get_height():
            below = actual.setdefault(round(bar.get_x() + bar.get_width() / 2, 6), [])
            assert bar.get_y() == sum(heads for heads, _ in below)
            below.append((bar.get_height(), words[matplotlib.colors.to_hex(bar.get_facecolor())]))
    return actual


@pytest.mark.parametrize("sense", ["at most", "at least"])
def test_every_head_is_a_point_of_bound_and_measured_in_the_colour_of_its_verdict(drawn, sense):
    verdicts = ["holds", "violated", "assumption not met"]
    some = [finding({}, d, (2.0 * d, 3.0, 4.0), (1.0, 5.0, 2.0 + i), sense, verdicts) for i, d in enumerate((8, 16))]
    axis = drawn([record(*({**one, "promise": "x_{d>1} ≤ y_F ≥ z"} for one in some))])["theory-bounds-n64"].axes[0]
    assert points(axis) == {
        ("o", VERDICTS["holds"]): {(16.0, 1.0)},
        ("s", VERDICTS["holds"]): {(32.0, 1.0)},
        ("o", VERDICTS["violated"]): {(3.0, 5.0)},
        ("s", VERDICTS["violated"]): {(3.0, 5.0)},
        ("o", VERDICTS["assumption not met"]): {(4.0, 2.0)},
        ("s", VERDICTS["assumption not met"]): {(4.0, 3.0)},
    }
    assert axis.get_xlim() == axis.get_ylim()
    (diagonal,) = [line for line in axis.get_lines() if line.get_linestyle() == "-"]
    assert [*diagonal.get_xdata()] == [*diagonal.get_ydata()] == pytest.approx(axis.get_xlim())
    measured, bound = {"at most": ("$x_{d>1}$", r"$y_F\geq z$"), "at least": (r"$x_{d>1}\leq y_F$", "z")}[sense]
    assert (axis.get_ylabel(), axis.get_xlabel()) == (measured, f"promised, {sense}\n{bound}")


def test_what_is_infinite_lies_on_the_frame_and_what_was_not_measured_is_left_out(drawn):
    one = finding({}, 8, ("inf", 3.0, 4.0), (1.0, "inf", None), verdict=["holds", "violated", "assumption not met"])
    axis = drawn([record(one)])["theory-bounds-n64"].axes[0]
    end = axis.get_xlim()[1]
    actual = sorted(point for some in points(axis).values() for point in some)
    assert actual == [pytest.approx((3.0, end)), pytest.approx((end, 1.0))] and 3.0 < end < 11
    assert not drawn([record(finding({}, 8, (1.0, 1.0, 1.0), (None,) * 3, verdict=["assumption not met"] * 3))])


def test_a_frame_says_what_stands_there_and_no_number_stands_beside_it(drawn):
    def ticks(axis):
        return [
            (text.get_text(), place) for text, place in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
        ]

    one = finding({}, 8, (-4.0, 0.02, "inf"), (1.0, 0.0, 3.0), verdict=["violated", "holds", "holds"])
    axis = drawn([record(one)])["theory-bounds-n64"].axes[0]
    assert {"≤ 0", "∞"} <= {text for text, _ in ticks(axis.xaxis)} and "0" in {text for text, _ in ticks(axis.yaxis)}
    two = finding({}, 8, (-4.0, 0.7, 100.0), (1.0, 1.0, 1.0), verdict=["violated", "holds", "holds"])
    near = drawn([record(two)])["theory-bounds-n64"].axes[0]
    for side in (axis.xaxis, axis.yaxis, near.xaxis):
        places = sorted(np.log(place) for _, place in ticks(side))
        span = np.diff(np.log(side.get_view_interval()))[0]
        assert np.diff(places).min() > (0.12 if side.axis_name == "x" else 0.06) * span


def test_statements_in_words_have_panels_of_their_own(drawn):
    both = [finding({"form": form, "epsilon": 0.1}, 8, verdict=["holds"] * 3) for form in ("as printed", "corrected")]
    figure = drawn([record(*both, theorem="shift-bound")])["theory-bounds-n64"]
    assert [axis.get_title().splitlines()[-1] for axis in figure.axes] == ["form as printed", "form corrected"]


def test_panels_of_a_row_of_one_theorem_have_its_name_each(drawn):
    """Beside the name of an axis, a name of the row took half of the width."""
    both = [finding({"form": form}, 8) for form in ("as printed", "corrected")]
    figure = drawn([{**record(*both, theorem=name), "paper": f"{name} 2026"} for name in "ab"])["theory-bounds-n64"]
    assert [axis.get_title().splitlines() for axis in figure.axes] == [
        [f"{name} 2026", f"form {form}"] for name in "ab" for form in ("as printed", "corrected")
    ]
    assert {axis.get_ylabel() for axis in figure.axes} == {"measured"}


def test_a_legend_has_the_verdicts_and_budgets_of_its_page(drawn):
    """15 theorems: nine on the first page, the last ones, of another budget and verdict, on the second."""
    some = [record(finding({}, 8, verdict=["holds"] * 3), theorem=f"t{place}") for place in range(9)]
    last = [record(finding({}, 16, verdict=["vacuous"] * 3), theorem=f"t{place}") for place in range(9, 15)]
    actual = drawn([*some, *last])
    for name, words in (("", ["holds", "d = 8"]), ("-2", ["vacuous", "d = 16"])):
        (legend,) = actual[f"theory-bounds-n64{name}"].legends
        assert [text.get_text() for text in legend.get_texts()] == [*words, "promise broken"]


@pytest.mark.parametrize(("sense", "broken"), [("at most", 1), ("at least", 0)])
def test_the_side_that_breaks_the_promise_is_shaded(drawn, sense, broken):
    axis = drawn([record(finding({}, 8, sense=sense))])["theory-bounds-n64"].axes[0]
    (shaded,) = axis.collections
    low, high = axis.get_xlim()
    assert {tuple(place) for place in shaded.get_paths()[0].vertices} >= {((low, high), (high, low))[1 - broken]}


@pytest.mark.parametrize(("errors", "words"), [(5, "5 seeds: steps of 0.2"), (1, "one run, no draws")])
def test_a_share_says_how_many_seeds_it_is_of(drawn, errors, words):
    at = {"epsilon": 0.1, "delta": 0.2, "of": "output"}
    one = finding(at, 8, (0.2,) * 3, (0.0, 0.0, 1.0), errors=[[0.1] * errors] * 3)
    actual = drawn([record(one, theorem="ma-property", method="m")])
    assert actual["theory-bounds-n64"].axes[0].get_xlabel() == f"ε; d = 8\np\nδ = 0.2, {words}"
    assert actual["theory-ma-output-n64"].legends[0].get_texts()[0].get_text() == f"m d = 8 ({words})"


def test_the_legend_of_the_dimension_has_the_band_over_heads():
    rows = theory_rows([record(finding({"epsilon": 0.1}, 8, d_stat=[3.0, 4.0, 5.0]))])
    for heads, band in ((HEADS, ["p10 – p90"]), (HEADS[:1], [])):
        (figure,) = theory_curves([row for row in rows if row["head"] in heads])
        assert [*figure.legend] == ["n = 64", *band, "2n"]
        assert {figure.legend[name]["color"] for name in ("n = 64", *band)} == {COLOURS[0]}


def test_theorems_are_named_by_their_papers_in_lines_that_fit_their_panels(drawn):
    from attnprobe.theorems import THEOREMS

    papers = [theorem.paper for theorem in THEOREMS.values()]
    assert len(set(papers)) == len(papers)
    records = [{**record(finding()), "theorem": name, "paper": one.paper} for name, one in THEOREMS.items()]
    titles = []
    for stem, figure in drawn(records).items():
        if stem.startswith("theory-bounds"):
            FigureCanvasAgg(figure).draw()
            for axis in figure.axes[:9]:
                titles.append(axis.get_title())
                assert axis.title.get_window_extent().width <= 1.05 * axis.get_window_extent().width, titles[-1]
    assert "Skyformer, Theorem 2:\nlandmarks" in titles and not any("-" in title.split("\n")[0] for title in titles[:5])


def test_heads_of_one_bound_are_counted_by_verdict_for_each_epsilon_and_budget(drawn):
    words = {(0.1, 8): "violated holds undecided", (0.5, 8): "holds holds vacuous", (0.1, 16): "holds holds holds"}
    some = [
        finding({"epsilon": e, "delta": 0.1}, d, (0.1,) * 3, (0.0, 2.0, 5.0), verdict=verdicts.split())
        for (e, d), verdicts in words.items()
    ]
    axis = drawn([record(*some)])["theory-bounds-n64"].axes[0]
    assert bars(axis) == {
        -0.2: [(1, "holds"), (1, "undecided"), (1, "violated")],
        0.2: [(3, "holds")],
        0.8: [(2, "holds"), (1, "vacuous")],
    }
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0.1", "0.5"] and not points(axis)
    assert axis.get_xlabel() == "ε; side by side: d = 8, 16\np\nδ = 0.1" and axis.get_ylabel() == "heads"


def test_without_epsilon_heads_of_one_bound_are_counted_by_layer(drawn):
    layers = {layer: finding({}, 8, (3.0,) * 3, (1.0 + layer, 2.0, 2.5)) for layer in (2, 5)}
    axis = drawn([record(one, layer=layer, window=window) for layer, one in layers.items() for window in (0, 1)])[
        "theory-bounds-n64"
    ].axes[0]
    assert bars(axis) == {0: [(6, "holds")], 1: [(4, "holds"), (2, "violated")]}
    assert [text.get_text() for text in axis.get_xticklabels()] == ["2", "5"]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("layer; d = 8\np", "heads × layers × windows")


def test_each_epsilon_has_a_marker_where_bounds_differ(drawn):
    some = [finding({"epsilon": e, "delta": 0.1}, None, (3.0, 30.0, 300.0), (e, 2.0, 5.0)) for e in (0.1, 0.5)]
    figure = drawn([record(*some)])["theory-bounds-n64"]
    assert {(marker, min(y for _, y in here)) for (marker, _), here in points(figure.axes[0]).items()} == {
        ("o", 0.1),
        ("s", 0.5),
    }
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        *("holds", "ε = 0.1", "ε = 0.5"),
        "promise broken",
    ]


def test_figures_of_matrix_and_output_say_which_and_where(drawn):
    for of in ("matrix", "output"):
        one = finding({"epsilon": 0.1, "delta": 0.2, "of": of}, 8, errors=[[0.1, 0.2]] * 3)
        figure = drawn([record(one, theorem="ma-property", method="m")])[f"theory-ma-{of}-n64"]
        assert figure.axes[0].get_ylabel() == f"share of {of} errors above ε"
        assert figure.get_suptitle().replace("\u00a0", " ") == "layer 0, n = 64"


def test_a_table_counts_heads_and_windows_and_shows_their_quantiles():
    g = np.random.default_rng(3)
    bound, measured = g.uniform(1, 2, (2, 2, 3))
    records = [record(finding({"epsilon": 0.5}, 8, bound[w].tolist(), measured[w].tolist()), window=w) for w in (0, 1)]
    (one,) = theory_summary(theory_rows(records))
    for name, values in (("bound", bound), ("measured", measured)):
        expected = {stat: quantile(values, share) for stat, share in (("p10", 0.1), ("median", 0.5), ("p90", 0.9))}
        assert one["quantiles"][name] == pytest.approx(expected)
    assert one["verdicts"] == {
        word: n
        for word, n in (("holds", int((measured <= bound).sum())), ("violated", int((measured > bound).sum())))
        if n
    }
    text = view_of("theory", records).text("csv").splitlines()
    names = text[0].split(",")
    for row, line in zip([(w, head) for w in (0, 1) for head in HEADS], text[1:], strict=True):
        cells = dict(zip(names, line.split(","), strict=True))
        assert (int(cells["window"]), int(cells["head"])) == row
        assert float(cells["bound"]) == bound[row] and float(cells["measured"]) == measured[row]


def test_budgets_of_a_method_have_lines_of_their_own_and_methods_begin_anew(drawn):
    points = [
        finding({"method": method, "epsilon": 0.1, "delta": 0.2, "of": "matrix"}, d, errors=[[0.1, 0.2]] * 3)
        for method, d in (("a", 4), ("a", 8), ("b", 4), ("a", 16))
    ]
    figure = drawn([record(*points, theorem="ma-property", method="m")])["theory-ma-matrix-n64"]
    lines = [line for line in figure.axes[0].get_lines() if line.get_drawstyle() == "steps-post"]
    styles = [STYLES[place] for place in (0, 1, 0, 2)]
    worst = lines[1::2]  # beside the median head
    assert [line.get_linestyle() for line in worst] == [Line2D([], [], linestyle=one).get_linestyle() for one in styles]


def test_an_axis_has_a_margin_of_a_twelfth_of_its_powers():
    assert _range([1e-6, 0.0, math.inf, 1e6]) == pytest.approx((10**-6.96, 10**6.96))
    assert _range([0.5, 50.0]) == pytest.approx((0.5 / 1.6, 80.0))
