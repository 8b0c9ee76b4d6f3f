"""Values of papers: files that are read or refused, and their places in a run."""

import pytest
from error_records import cell
from error_rows import shown_of

from attnprobe.errors import UsageError
from attnprobe.frame.papers import beside_papers, overlay_of, read_reference

HEADER = "init,n,d,method,value,digitisation_uncertainty\n"
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


RUN = [
    *(cell("skyformer", d, [1.0, 3.0], source={"weights": "pretrained"}) for d in (16, 32)),
    cell("skyformer", 16, [1.0, 3.0], layer=2, source={"weights": "pretrained"}),
    cell("skyformer", 16, [1.0, 3.0], target="gaussian", source={"weights": "pretrained"}),
    cell("vmean", None, [4.0, 4.0], source={"weights": "pretrained"}),
]


def overlay(tmp_path, text):
    (tmp_path / "p.csv").write_text(HEADER + text)
    frame = shown_of(RUN).frame("head")
    return frame, overlay_of([read_reference(tmp_path / "p.csv")], frame)


def test_values_stand_at_layer_0_and_target_softmax_beside_their_methods_alone(tmp_path):
    frame, values = overlay(
        tmp_path, "pretrained,64,16,Skyformer,1.6,0.1\npretrained,64,16,V-Mean,5,0\npretrained,128,16,Skyformer,9,0\n"
    )
    rows = beside_papers(frame, values)
    assert {*rows["layer"]} == {0} and {*rows["target"]} == {"softmax"}
    means = rows.groupby(["method", "d", "paper"])["output_spectral"].mean()
    assert means.to_dict() == {("skyformer", 16, 1.6): 2.0, ("vmean", 16, 5.0): 4.0}


def test_initialized_projections_take_the_place_of_initialized_weights(tmp_path):
    _, values = overlay(tmp_path, "initialized,64,16,Nystr\u00f6mformer,1,0\n")
    assert values[["init", "weights", "name"]].values.tolist() == [["initialized", "initialized", "Nystr\u00f6mformer"]]


def test_the_figure_of_papers_counts_the_values_that_it_draws(tmp_path):
    from attnprobe.show.figure import draw

    frame, values = overlay(
        tmp_path,
        "pretrained,64,16,Skyformer,1.6,0.1\npretrained,64,128,Skyformer,1.2,0\npretrained,8,16,Skyformer,9,0\n",
    )
    shown = shown_of(RUN, overlay=values)
    figure = next(one for one in shown.catalogue.figures if one.name == "papers")
    drawn = draw(frame, figure, overlay=values)
    texts = [text.get_text() for legend in drawn.legends for text in legend.get_texts()]
    assert "paper (2 of 3 values)" in texts
    assert shown.figures["papers"].draw(tmp_path) and shown_of(RUN).figures["papers"].draw(tmp_path) == []
