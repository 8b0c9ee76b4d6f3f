"""The papers' panels: what stands in which, whose values are hollow, and reference files that are none."""

import math

import pytest
from error_records import a_run, cell
from matplotlib.figure import Figure
from showing import EACH, files_of

from attnprobe.errors import UsageError
from attnprobe.experiments.error.papers import (
    paper_figure,
    paper_values,
    read_reference,
    reference_notes,
    reference_rows,
)
from attnprobe.experiments.error.view import summarise
from attnprobe.figures.drawing import Drawing

HEADER = "init,n,d,method,value,digitisation_uncertainty\n"


def of(weights, record, **facts):
    return {**record, "source": {"weights": weights, **facts}}


def a_sweep(weights=("pretrained", "initialized-qkv"), **shape):
    """Records of one run over several weights, the first of which lie 10 times as high as the next."""
    records = []
    for place, word in enumerate(weights):
        for one in a_run(**shape):
            values = [value / 10**place for value in one["metrics"]["output_spectral"]]
            records.append(of(word, {**one, "metrics": {**one["metrics"], "output_spectral": values}}))
    return records


def csv_file(path, *lines, header=HEADER):
    path.write_text(header + "\n".join(lines) + "\n")
    return path


def panels(figure):
    """The panels by the name of their row, which stands left of the first, and of their column, above the first."""
    first = figure.axes[0].get_gridspec().ncols
    shown = {}
    for place, axis in enumerate(figure.axes):
        row = figure.axes[place // first * first].get_ylabel().split("\n")[0]
        shown[f"{row}\n{figure.axes[place % first].get_title()}"] = axis
    return shown


def hollow(axis):
    """The hollow lines of a panel, as (colour, points)."""
    lines = [line for line in axis.lines if line.get_markerfacecolor() == "white"]
    return [(line.get_color(), list(zip(*line.get_data(), strict=True))) for line in lines]


def test_a_panel_for_each_weights_and_n_with_the_means(tmp_path, pages):
    rows, _ = summarise(a_sweep())
    paths = paper_figure(rows, Drawing(), tmp_path)
    assert [path.name for path in paths] == files_of("papers-output_spectral")
    actual = panels(pages[0])
    assert list(actual) == [
        f"weights {word}\nn = {n}" for word in ("pretrained", "initialized-qkv") for n in (512, 1024)
    ]
    for row in rows:
        axis = actual[f"weights {row['weights']}\nn = {row['n']}"]
        mean = row["metrics"]["output_spectral"]["mean"]
        if row["d"] is None:
            assert any(list(line.get_ydata()) == [mean, mean] for line in axis.lines)
        else:
            points = [point for line in axis.lines for point in zip(*line.get_data(), strict=True)]
            assert (row["d"], mean) in points
    legend = [text.get_text() for text in pages[0].legends[0].get_texts()]
    assert legend == [
        "skyformer !",
        "nystromformer",
        r"mine_%\$&.py:fn",
        "V-Mean",
        "95 % interval",
        "bad rows (normaliser ≤ 0 or lost)",
    ]


def test_bars_are_what_tables_have_after_the_sign(tmp_path, pages):
    """Window means 2 and 5 have the standard error 1.5, and t of one degree of freedom is tan(0.475 π)."""
    records = [
        of("pretrained", cell(d=d, n=512, window=window, values=values))
        for d in (16, 32)
        for window, values in enumerate(([1.0, 3.0], [2.0, 8.0]))
    ]
    rows, _ = summarise(records)
    paper_figure(rows, Drawing(), tmp_path)
    (axis,) = panels(pages[0]).values()
    (bars,) = axis.containers
    half = math.tan(0.475 * math.pi) * 1.5
    for (_, low), (_, high) in bars[2][0].get_segments():
        assert [low, high] == pytest.approx([3.5 - half, 3.5 + half], rel=1e-12)
    caption = (tmp_path / "papers-output_spectral.txt").read_text(encoding="utf-8")
    assert "Bars: 95 % by Student's test of windows." in caption


def test_the_papers_values_are_hollow_in_the_look_of_their_method(tmp_path, pages):
    """The method is found whatever its case, accents and hyphens; "initialized" is initialized-qkv."""
    rows, _ = summarise(a_sweep())
    file = csv_file(
        tmp_path / "paper.csv",
        "initialized,512,16,SkyFormer,0.5,0.01",
        "initialized,512,32,SkyFormer,0.25,0.01",
        "pretrained,1024,16,Nyströmformer,0.75,0.01",
        "pretrained,1024,64,V-Mean,0.125,",
    )
    paper_figure(rows, Drawing(), tmp_path, references=[read_reference(file)])
    actual = panels(pages[0])
    colours = {
        text.get_text().removesuffix(" !"): line.get_color()
        for text, line in zip(pages[0].legends[0].get_texts(), pages[0].legends[0].get_lines(), strict=True)
    }
    expected = {
        "weights initialized-qkv\nn = 512": [(colours["skyformer"], [(16, 0.5), (32, 0.25)])],
        "weights pretrained\nn = 1024": [
            (colours["nystromformer"], [(16, 0.75)]),
            (colours["V-Mean"], [(64, 0.125)]),
        ],
    }
    assert {title: hollow(axis) for title, axis in actual.items()} == {
        title: expected.get(title, []) for title in actual
    }
    assert "hollow: paper" in colours
    caption = (tmp_path / "papers-output_spectral.txt").read_text(encoding="utf-8")
    assert "its 'initialized' is weights initialized-qkv" in caption


def test_without_initialized_qkv_its_place_is_taken_and_said(tmp_path):
    rows, _ = summarise([of("initialized", one) for one in a_run()])
    reference = read_reference(csv_file(tmp_path / "p.csv", "Initialized,512,16,skyformer,0.5,0"))
    assert len(paper_values(rows[0], [reference], rows)) == 1
    assert paper_values({**rows[0], "scale_inputs": 2}, [reference], rows) == []
    assert "its 'Initialized' is weights initialized" in reference_notes(rows, [reference])[0]
    both, _ = summarise(a_sweep(("initialized", "initialized-qkv")))
    shown = {row["weights"] for row in both if paper_values(row, [reference], both)}
    assert shown == {"initialized-qkv"}


def test_what_the_run_lacks_is_listed(tmp_path):
    rows, _ = summarise([of("pretrained", one) for one in a_run()])
    lines = ("initialized,512,16,Skyformer,1,0", "pretrained,2048,16,Linformer,1,0")
    reference = read_reference(csv_file(tmp_path / "p.csv", *lines))
    assert reference_notes(rows, [reference]) == [
        "hollow: p.csv, layer 0; not in this run: weights initialized; Linformer; n = 2048"
    ]


def test_the_papers_values_stand_at_layer_0_and_target_softmax_alone(tmp_path):
    records = [
        of("pretrained", cell(d=16, n=512, layer=layer, target=target))
        for layer in (0, 3)
        for target in ("softmax", "gaussian")
    ]
    rows, _ = summarise(records)
    reference = read_reference(csv_file(tmp_path / "p.csv", "pretrained,512,16,skyformer,1,0"))
    shown = [(row["layer"], row["target"]) for row in rows if paper_values(row, [reference], rows)]
    assert shown == [(0, "softmax")]


def test_another_metric_has_no_papers_values(tmp_path, pages):
    rows, _ = summarise(a_sweep())
    reference = read_reference(csv_file(tmp_path / "p.csv", "pretrained,512,16,skyformer,1,0"))
    paths = paper_figure(rows, Drawing(), tmp_path, "output_frobenius", [reference])
    assert paths[0].name == "papers-output_frobenius.svg"
    assert not any(hollow(axis) for axis in panels(pages[0]).values())


def test_ratios_stand_in_a_table(tmp_path):
    rows, _ = summarise([of("pretrained", cell(d=d, n=512, values=[1.0, 2.0])) for d in (32, 16)])
    lines = ("pretrained,512,16,Skyformer,3,0.01", "pretrained,512,64,Skyformer,1,0")
    reference = read_reference(csv_file(tmp_path / "p.csv", *lines))
    (row,) = reference_rows(rows, [reference])
    assert (row["d"], row["method"], row["error"], row["paper"], row["ratio"]) == (16, "skyformer", 1.5, 3.0, 0.5)


def test_a_grid_of_weights_and_lengths_has_empty_panels_and_a_paper_may_say_0(tmp_path):
    records = [
        *(of("pretrained", cell(d=d)) for d in (16, 32)),
        of("pretrained", cell("skyformer", 16, options={"gamma": 1.0})),
        of("pretrained", cell("lost", None, values=[None, None], status="diverged")),
        of("pretrained", cell("failed", 16, status="failed", metrics={})),
        of("pretrained", cell("skipped", 16, status="skipped", metrics={})),
        of("pretrained", cell("huge", 16, values=[1e301, 1e301])),
        of("initialized", cell(d=16, n=128, target="gaussian")),
        *(of("bare", cell("linear", None, n=n)) for n in (256, 512, 1024)),
    ]
    rows = summarise(records)[0]
    paper = read_reference(
        csv_file(
            tmp_path / "p.csv",
            "pretrained,64,16,skyformer,0,0",
            *(f"pretrained,64,16,{name},1,0" for name in ("failed", "lost")),
        )
    )
    figures = []
    paper_figure(rows, Drawing(collected=figures), tmp_path, references=[paper])
    titles = [[title for title, _ in figure.panels] for figure in figures]
    assert [title.replace("\n", ", ") for title in titles[0] if title] == [
        "weights pretrained, layer 0, n = 64",
        "weights initialized, layer 0, n = 128, gaussian",
        "weights bare, layer 0, n = 256",
        "weights bare, layer 0, n = 512",
    ]
    assert len(titles[0]) == 12 and titles[1] == ["weights bare\nlayer 0, n = 1024"]
    for figure in figures:
        for _, group in figure.panels:
            axis = Figure().add_subplot()
            figure.draw(axis, group)
            assert axis.get_visible() == bool(group)
            assert not any(value > 1e300 for line in axis.lines for value in line.get_ydata() if value is not None)
    assert "skipped" not in figures[0].legend
    entries = [(row["method"], row["paper"], row["ratio"]) for row in reference_rows(rows, [paper])]
    assert entries == [("skyformer", 0.0, None), ("skyformer:gamma=1.0", 0.0, None)]
    assert not paper_figure([row for row in rows if row["d"] is None], Drawing(), tmp_path)


def test_one_budget_without_a_paper_is_no_panel(tmp_path):
    rows, _ = summarise([of("pretrained", cell(d=16)), of("pretrained", cell("vmean", None))])
    assert paper_figure(rows, Drawing(), tmp_path) == []
    reference = read_reference(csv_file(tmp_path / "p.csv", "pretrained,64,16,skyformer,1,0"))
    assert len(paper_figure(rows, Drawing(), tmp_path, references=[reference])) == EACH


@pytest.mark.filterwarnings("error")
@pytest.mark.slow
def test_panels_of_what_went_wrong_and_of_many(tmp_path):
    records = [
        *(of("pretrained", cell(d=d, values=[0.0, 100.0])) for d in (16, 32)),
        of("pretrained", cell("failed", 32, status="failed", metrics={})),
        of("pretrained", cell("broken", 16, values=[None, None], status="diverged")),
        of("pretrained", cell("huge", 16, [1.7e308, 1.7e308])),
        of("initialized", cell("$_x$", 16, [1.0, 2.0], n=128)),
        of(None, cell("linear", None, [1.0, 2.0], n=256), qkv="a $b$.safetensors"),
    ]
    assert len(paper_figure(summarise(records)[0], Drawing(), tmp_path)) == EACH
    many = [
        of(word, cell(d=d, n=n, layer=layer))
        for word in ("pretrained", "initialized")
        for d in (2, 4)
        for n in (8, 16, 32, 64, 128)
        for layer in range(3)
    ]
    assert len(paper_figure(summarise(many)[0], Drawing(), tmp_path)) == EACH * 2 * 2


BAD = {
    "no such file": (None, "cannot be read"),
    "not text": (b"\xff\xfe\x00", "cannot be read"),
    "empty": (b"", "has no column 'init'"),
    "a column is missing": (b"init,n,d,methd,value\n", "has no column 'method'; did you mean 'methd'?"),
    "no values": (HEADER.encode(), "it holds no values"),
    "no number": ((HEADER + "a,512,16,x,high,0\n").encode(), "bad.csv:2: value is 'high', not a number"),
    "not finite": ((HEADER + "a,512,16,x,nan,0\n").encode(), "bad.csv:2: value is nan, not a finite"),
    "negative": ((HEADER + "a,512,16,x,-1,0\n").encode(), "bad.csv:2: value is -1"),
    "a short line": ((HEADER + "a,512,16,x,1,0\na,512\n").encode(), "bad.csv:3: d is '', not a number"),
    "no method": ((HEADER + "a,512,16,,1,0\n").encode(), "bad.csv:2: init or method is empty"),
}


@pytest.mark.parametrize(("data", "says"), BAD.values(), ids=BAD)
def test_a_reference_that_is_none_names_file_and_line(tmp_path, data, says):
    if data is not None:
        (tmp_path / "bad.csv").write_bytes(data)
    with pytest.raises(UsageError) as actual:
        read_reference(tmp_path / "bad.csv")
    assert says in str(actual.value) and "bad.csv" in str(actual.value)


def test_a_reference_may_have_a_mark_spaces_and_no_uncertainty(tmp_path):
    file = tmp_path / "p.csv"
    file.write_bytes("\ufeffinit, n,d,method,value\npretrained, 512 ,16, V-Mean ,1.5\n".encode())
    (value,) = read_reference(file).values
    assert (value.n, value.d, value.method, value.value, value.uncertainty) == (512, 16, "V-Mean", 1.5, 0.0)
    assert not math.isnan(value.value)
