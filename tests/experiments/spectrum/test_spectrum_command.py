"""`attnprobe spectrum` as a user meets it: rows, files, figures, exit codes, and errors of one line."""

import json
from dataclasses import replace

import numpy as np
import pytest
from showing import EACH

from attnprobe import load_qkv, spectra
from attnprobe.errors import UsageError
from attnprobe.experiments.spectrum import shares
from attnprobe.experiments.spectrum.figures import MOST_BANDS, spectrum_figures
from attnprobe.experiments.spectrum.measure import parse_of
from attnprobe.experiments.spectrum.view import _rank, moduli, spectrum_rows, spectrum_tables
from attnprobe.figures import files
from attnprobe.figures.drawing import Drawing


@pytest.fixture
def run(run):
    """``attnprobe spectrum`` in this process: ``(code, stdout, stderr)``."""
    return lambda *args: run("spectrum", *args)


def refused(result):
    assert result[0] == 2, result
    lines = result[2].strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("attnprobe: "), result[2]
    return lines[0]


def test_the_rows_keep_the_contract_and_agree_with_python(run, qkv):
    code, out, err = run("--qkv", qkv, "--of", "softmax,unnormalised,skyformer", "--d", "4,8", "--format", "json")
    assert code == 0, err
    result = json.loads(out)
    assert set(result) == {"schema", "command", "source", "rows", "bounds", "inputs", "run"}
    assert (result["schema"], result["command"]) == (1, "spectrum") and result["source"]["qkv_sha256"]
    places = [(row["of"], row["d"], row["head"]) for row in result["rows"]]
    assert places == [
        (of, d, head)
        for of, d in (("softmax", None), ("unnormalised", None), ("skyformer", 4), ("skyformer", 8))
        for head in (0, 1)
    ]
    tensors = load_qkv(qkv=str(qkv), n=96)
    for row in result["rows"]:
        assert row["kind"] == "singular" and row["layer"] == row["window"] == 0 and row["n"] == row["size"] == 96
        assert row["status"] == "ok" and len(row["singular_values"]) == 96 and "eigenvalues" not in row
        assert {"stable_rank", "entropy_rank", "participation_ratio", "rank_90", "rank_95", "rank_99"} <= set(row)
        assert set(row["d_spectral"]) == set(row["d_frobenius"]) == {"0.1", "0.01"}
        if row["d"] is None:
            one = spectra(tensors, row["of"])[row["head"]]
            assert row["singular_values"] == one.values.tolist() and row["log_scale"] == one.log_scale
            assert row["stable_rank"] == one.stable_rank and row["rank_95"] == one.rank(95)
    assert result["rows"][2]["log_scale"] != 0 and result["rows"][4]["draws_hash"]


def test_eigenvalues_are_pairs_or_real_numbers(run, qkv):
    _, out, _ = run(
        "--qkv", qkv, "--of", "softmax,lifted-gaussian", "--kind", "eigen", "--head", "1", "--format", "json"
    )
    softmax, lifted = json.loads(out)["rows"]
    assert len(softmax["eigenvalues"]) == 96 and softmax["eigenvalues"][0] == pytest.approx([1, 0], abs=1e-12)
    assert softmax["stable_rank"] is None and softmax["head"] == 1
    assert len(lifted["eigenvalues"]) == 192 and all(isinstance(value, float) for value in lifted["eigenvalues"])
    assert lifted["stable_rank"] > 1


def test_the_table_says_medians_of_the_rows(run, qkv):
    _, out, _ = run("--qkv", qkv, "--format", "json")
    rows = json.loads(out)["rows"]
    ranks, leading = spectrum_tables(rows)
    ([line], [values]), places = (ranks.lines, leading.lines), leading.headings
    cells = dict(zip(ranks.headings, line, strict=True))
    middle = sum(row["stable_rank"] for row in rows) / 2
    assert cells["stable rank"].startswith(f"{middle:.2f} [") and not ranks.notes
    assert places == ["matrix", "layer", *(f"σ{2**i}" for i in range(7))]
    assert float(values[2]) == pytest.approx(sum(row["singular_values"][0] for row in rows) / 2, rel=5e-3)


def test_one_head_has_its_stable_rank_without_a_range(run, qkv):
    _, out, _ = run("--qkv", qkv, "--head", "0", "--format", "json")
    (row,) = json.loads(out)["rows"]
    (ranks, _) = spectrum_tables([row])
    (line,) = ranks.lines
    assert dict(zip(ranks.headings, line, strict=True))["stable rank"] == f"{row['stable_rank']:.2f}"


def test_leading_values_say_that_they_are(run, qkv):
    code, out, err = run("--qkv", qkv, "--k", "8", "--plot", "--out", "r")
    assert code == 0 and "no cumulative figure: only leading values are known" in err
    assert "Leading values only" in out and "entropy rank" not in out.split("Medians over")[0]
    _, out, _ = run("--qkv", qkv, "--k", "8", "--format", "json")
    for row in json.loads(out)["rows"]:
        assert not row["complete"] and row["closed"] and len(row["error"]) == len(row["upper"]) == 8
        assert row["entropy_rank"] is None and row["rank_99"] is None and row["stable_rank"] > 1


def test_two_weights_stand_side_by_side(run, tiny_bert, text_file, tmp_path):
    options = "--weights pretrained,initialized --n 14 --layer 0,2 --plot --format json --out r"
    args = ("--model", tiny_bert, "--text", text_file, options)
    code, out, err = run(*args)
    assert code == 0, err
    assert run(*args)[1] == out  # from the records: each weights' own
    result = json.loads(out)
    assert set(result["source"]) == {"pretrained", "initialized"}
    assert {(row["weights"], row["layer"]) for row in result["rows"]} == {
        (weights, layer) for weights in ("pretrained", "initialized") for layer in (0, 2)
    }
    assert len({str(row["singular_values"]) for row in result["rows"]}) == 16
    svg = (tmp_path / "r/figures/spectrum-decay.svg").read_text()
    assert "stroke-dasharray" in svg
    table = (tmp_path / "r/tables/spectrum.md").read_text()
    assert "weights pretrained" in table and "weights initialized" in table


def test_bad_input_is_one_line(run, qkv):
    for args, words in (
        (("--of", "sofmax"), "unknown matrix or method 'sofmax'; did you mean 'softmax'"),
        (("--of", "skyformer:nothing=1"), "nothing"),
        (("--kind", "values"), "unknown kind 'values'"),
        (("--of", "output", "--kind", "eigen", "--n", "96"), "--kind singular"),
        (("--of", "softmax", "--kind", "eigen", "--n", "5000"), "up to 4096"),
        (("--k", "0"), "k=0"),
        (("--epsilon", "2"), "epsilon: '2' is not a number between 0 and 1"),
        (("--layer", "3"), "layer 3"),
        (("--of", "svd", "--d", "200"), "d=200"),
        (("--of", "softmax,output", "--target", "gaussian"), "of=softmax,output names none; ask for --of gaussian"),
        (("--weights", "pretrained,initialized"), "drop --weights"),
    ):
        assert words in refused(run("--qkv", qkv, *args)), args
    assert "an empty word" in refused(run("--weights", "pretrained,"))
    assert not any(path.is_dir() for path in qkv.parent.glob("outputs/*"))


def test_a_matrix_that_is_not_finite_has_no_values(run, qkv, monkeypatch):
    def lost(*args, **options):
        return [replace(one, values=one.values * float("nan")) for one in spectra(*args, **options)]

    monkeypatch.setattr("attnprobe.experiments.spectrum.measure.spectra", lost)
    code, out, _ = run("--qkv", qkv, "--of", "softmax", "--head", "1", "--format", "json")
    [row] = json.loads(out)["rows"]
    assert code == 4 and row["status"] == "diverged" and row["reason"] == "the matrix is not finite"
    assert "singular_values" not in row


def test_lists_of_matrices_and_methods():
    actual = parse_of(["softmax,skyformer:sampler=iid,share_heads=true", "gaussian,softmax,vmean"])
    names = [one if isinstance(one, str) else one.name for one in actual]
    assert names == ["softmax", "skyformer", "gaussian", "vmean"]
    assert dict(actual[1].options) == {"sampler": "iid", "share_heads": True}
    assert shares("0.5,0.5,1e-3", "epsilon") == (0.5, 1e-3)
    with pytest.raises(UsageError, match="unknown matrix or method ''"):
        parse_of(["softmax,"])


@pytest.mark.parametrize(
    ("kind", "complete", "rank"),
    [("singular", True, None), ("singular", False, float("inf")), ("eigen", True, None), ("eigen", False, None)],
)
def test_an_unknown_rank_is_beyond_the_leading_singular_values(kind, complete, rank):
    assert _rank([{"kind": kind, "complete": complete}] * 2, [None, None]) == rank


def test_figures_draw_what_rows_hold(tmp_path):
    place = {"of": "softmax", "kind": "eigen", "layer": 0, "window": 0, "head": 0, "n": 4, "d": None}
    state = {"status": "ok", "weights": None, "options": {}, "complete": True}
    row = {**place, **state, "eigenvalues": [[1.0, 0.0], [0.3, 0.4]]}
    assert moduli(row) == [1.0, 0.5]
    assert len(spectrum_figures([row], Drawing(), tmp_path)) == 2 * EACH
    assert spectrum_figures([{**row, "status": "failed", "eigenvalues": None}], Drawing(), tmp_path) == []
    assert spectrum_figures([{**row, "eigenvalues": [[0.0, 0.0]]}], Drawing(), tmp_path) == []
    many = [{**row, "layer": layer} for layer in range(14)]
    names = {path.name for path in spectrum_figures(many, Drawing(), tmp_path)}
    assert {"spectrum-decay.png", "spectrum-decay-2.png", "spectrum-cumulative-2.svg"} <= names


def drawn(values, monkeypatch, tmp_path, heads=1):
    """The axis and the legend of the decay of matrices, and the caption: ``{name: singular values of layer 0, …}``."""
    sheets = {}
    monkeypatch.setattr(files, "saved", lambda sheet, stem, drawing: [sheets.setdefault(stem.name, sheet)])
    place = {"kind": "singular", "window": 0, "n": 128, "status": "ok", "weights": None, "complete": True}
    rows = [
        {**place, "of": of, "options": {}, "layer": layer, "d": None, "singular_values": list(one), "head": head}
        for head in range(heads)
        for of, layers in values.items()
        for layer, one in enumerate(layers)
    ]
    spectrum_figures(rows, Drawing(), tmp_path)
    sheet = sheets["spectrum-decay"]
    words = [text.get_text() for text in sheet.figure.legends[0].get_texts()]
    return sheet.figure.axes[0], words, " ".join(sheet.caption)


def test_a_matrix_of_low_rank_does_not_squeeze_the_others(monkeypatch, tmp_path):
    """One falls to 1e-17 at rank 100 in a layer, at 102 in the other; the others span three decades."""
    full = np.geomspace(2.0, 2e-3, 128)
    low = [np.where(np.arange(1, 129) < rank, full, 2e-17) for rank in (100, 102)]
    axis, words, caption = drawn({"softmax": [full, full], "skyformer": low}, monkeypatch, tmp_path)
    assert 5e-4 < axis.get_ylim()[0] < 1e-3 and 1.0 < axis.get_ylim()[1] < 2.0
    assert words == ["softmax $B$", "skyformer (some i ≥ 100 below: ≤ 1e-17)"]
    assert "The axis leaves out values below 1e-05." in caption and "float64's rounding alone" in caption
    axis, words, caption = drawn({"softmax": [full], "skyformer": [full]}, monkeypatch, tmp_path)
    assert words == ["softmax $B$", "skyformer"] and "leaves out" not in caption and "float64" not in caption


def test_equal_spectra_are_all_visible(monkeypatch, tmp_path):
    """Of nine equal ones each has markers of its own beyond rank 5, and all but the last are wide and pale."""
    of = ["softmax", *(f"method{place}" for place in range(8))]
    axis, _, _ = drawn(dict.fromkeys(of, [np.geomspace(1.0, 1e-3, 128)]), monkeypatch, tmp_path)
    marked = [set(line.get_markevery()[2:]) for line in axis.lines]
    assert all(marked) and sum(map(len, marked)) == len(set().union(*marked))
    files.show_overlaps(axis.figure)
    assert [line.get_alpha() for line in axis.lines] == [*[files.PALE] * 8, None]


@pytest.mark.parametrize("matrices, words", [(2, ["p10 – p90"]), (MOST_BANDS + 1, [])])
def test_the_legend_has_bands_over_heads_where_these_are_drawn(matrices, words, monkeypatch, tmp_path):
    values = {f"m{place}": [np.geomspace(1.0, 1e-3, 128)] for place in range(matrices)}
    for heads, expected in ((1, []), (2, words)):
        _, actual, _ = drawn(values, monkeypatch, tmp_path, heads)
        assert actual == [*values, *expected]


def test_rows_of_records_keep_no_key():
    record = {"of": "softmax", "kind": "singular", "key": "k", "singular_values": [1.0], "metrics": {}, "method": None}
    assert not {"key", "metrics", "target"} & set(spectrum_rows([record])[0])


def test_cells_are_lengths_times_windows_layers_and_heads(run, tiny_bert, text_file, monkeypatch):
    asked = ("--model", tiny_bert, "--text", text_file, "--n 4,6,8 --windows 2 --layer 0,1 --head 0,1")
    for most, code in ((24, 0), (23, 2)):
        monkeypatch.setattr("attnprobe.run.plan.MOST_CELLS", most)
        result = run(*asked, "--of", "softmax", "--dry-run")
        assert result[0] == code, result
    assert "24 cells are more than 23" in refused(result)
