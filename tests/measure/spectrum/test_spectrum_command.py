"""`attnprobe spectrum` as a user meets it: rows, files, figures, exit codes, and errors of one line."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from attnprobe import load_qkv, open_run, spectra
from attnprobe.errors import UsageError
from attnprobe.measure.spectrum import shares
from attnprobe.measure.spectrum.measure import parse_of
from attnprobe.metrics.spectrum import Spectrum
from attnprobe.show.catalogue.spectrum import FIGURES, RANKS, VALUES
from attnprobe.show.figure import sheets
from attnprobe.show.grid import Selection, grids

DECAY, CUMULATIVE = FIGURES


@pytest.fixture
def run(run):
    """``attnprobe spectrum`` in this process: ``(code, stdout, stderr)``."""
    return lambda *args: run("spectrum", *args)


@pytest.fixture
def measured(run, tmp_path):
    """The run that ``attnprobe spectrum`` leaves."""

    def of(*args, code=0):
        actual, _, err = run(*args, "--out", "r")
        assert actual == code, err
        return open_run(tmp_path / "r")

    return of


def refused(result):
    assert result[0] == 2, result
    lines = result[2].strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("attnprobe: "), result[2]
    return lines[0]


def test_the_rows_keep_the_contract_and_agree_with_python(measured, qkv):
    run = measured("--qkv", qkv, "--of", "softmax,unnormalised,skyformer:sampler=iid", "--d", "4,8")
    heads, ranks, values = (run.frame(kind) for kind in ("head", "rank", "singular"))
    places = [(row["of"], None if pd.isna(row["d"]) else row["d"], row["head"]) for _, row in heads.iterrows()]
    sky = "skyformer:sampler=iid"
    matrices = (("softmax", None), ("unnormalised", None), (sky, 4), (sky, 8))
    assert places == [(of, d, head) for of, d in matrices for head in (0, 1)]
    assert (heads["spectrum"] == "singular").all() and (heads["size"] == 96).all() and (heads["known"] == 96).all()
    assert heads["target"].isna().tolist() == [True] * 4 + [False] * 4  # only methods approximate one
    tensors = load_qkv(qkv=str(qkv), n=96)
    for _, row in heads.iterrows():
        own, within = (frame[frame["key"] == row["key"]] for frame in (values, ranks))
        assert own["index"].tolist() == list(range(1, 97)) and within["epsilon"].tolist() == [0.1, 0.01]
        assert own["decay"].tolist() == (own["value"] / own["value"].iloc[0]).tolist()
        shares_of = (own["value"] ** 2).cumsum() / (own["value"] ** 2).sum()
        assert own["cumulative"].tolist() == pytest.approx(shares_of.tolist(), rel=1e-12)
        assert (own["cumulative"] < 0.95).sum() + 1 == row["rank_95"]
        if pd.isna(row["d"]):
            one = spectra(tensors, row["of"])[row["head"]]
            assert own["value"].tolist() == one.values.tolist() and row["log_scale"] == one.log_scale
            assert row["stable_rank"] == one.stable_rank and row["rank_95"] == one.rank(95)
            assert within["d_spectral"].tolist() == [one.rank_within(epsilon) for epsilon in (0.1, 0.01)]
    assert heads["log_scale"].iloc[2] != 0 and run.records["spectrum"][4]["draws_hash"]


def test_eigenvalues_have_real_and_imaginary_parts(measured, qkv):
    run = measured("--qkv", qkv, "--of", "softmax,lifted-gaussian", "--kind", "eigen", "--head", "1")
    values, heads = run.frame("singular"), run.frame()
    softmax, lifted = (values[values["of"] == name] for name in ("softmax", "lifted-gaussian"))
    assert len(softmax) == 96 and (softmax["head"] == 1).all()
    assert [softmax["real"].iloc[0], softmax["imaginary"].iloc[0]] == pytest.approx([1, 0], abs=1e-12)
    moduli = np.hypot(softmax["real"].astype(float), softmax["imaginary"].astype(float))
    assert softmax["value"].tolist() == pytest.approx(moduli.tolist())
    assert softmax["cumulative"].iloc[0] == pytest.approx(1 / moduli.sum())
    assert len(lifted) == 192 and lifted["imaginary"].isna().all() and lifted["real"].notna().all()
    assert pd.isna(heads["stable_rank"].iloc[0]) and heads["stable_rank"].iloc[1] > 1


def test_the_table_says_medians_of_the_rows(measured, qkv):
    run = measured("--qkv", qkv)
    heads, values = run.frame(), run.frame("singular")
    [ranks], [leading] = (grids(Selection.of(*of)) for of in ((heads, RANKS), (values, VALUES)))
    cells = dict(zip([column.name for column in ranks.columns], ranks.cells[0], strict=True))
    assert cells["stable_rank.median"].value == pytest.approx(heads["stable_rank"].mean())
    assert [column.title for column in leading.columns] == ["matrix", "i = 1", "i = 4", "i = 16", "i = 64"]
    expected = [values.loc[values["index"] == index, "value"].mean() for index in (1, 4, 16, 64)]
    assert [cell.value for cell in leading.cells[0][1:]] == pytest.approx(expected)
    middle = heads["rank_95"].median()
    assert ranks.sentence == f"softmax: {middle:g} of 96 values hold 95 % of Σσ² in a median head."


def test_leading_values_say_that_they_are(measured, qkv):
    """Shares are of the norm of the whole matrix, and ranks beyond the known values are infinite."""
    run = measured("--qkv", qkv, "--k", "8", "--epsilon", "0.9,1e-3")
    heads, ranks, values = (run.frame(kind) for kind in ("head", "rank", "singular"))
    assert (heads["known"] == 8).all() and (heads["size"] == 96).all() and heads["closed"].all()
    assert values["index"].tolist() == [*range(1, 9)] * 2 and values[["error", "upper"]].notna().all().all()
    whole = spectra(load_qkv(qkv=str(qkv), n=96))
    for one, (_, row) in zip(whole, heads.iterrows(), strict=True):
        own = values[values["key"] == row["key"]]
        assert own["cumulative"].tolist() == pytest.approx(one.cumulative[:8].tolist(), rel=1e-3)
        assert row["stable_rank"] == pytest.approx(one.stable_rank, rel=1e-3) and row["stable_rank"] > 1
    assert heads["entropy_rank"].isna().all() and np.isinf(heads["rank_99"].astype(float)).all()
    within = ranks.groupby("epsilon")["d_spectral"].max()
    assert within[0.9] <= 8 and np.isinf(within[1e-3])
    [grid] = grids(Selection.of(heads, RANKS))
    assert grid.cells[0][-1].text == "> 8" and "only leading values are known" in " ".join(grid.reasons)
    assert "more than 8 of 96 values" in grid.sentence or heads["rank_95"].median() <= 8


@pytest.mark.parametrize(
    ("kind", "complete", "rank"),
    [("singular", True, 2), ("singular", False, float("inf")), ("eigen", True, 2), ("eigen", False, None)],
)
def test_an_unknown_rank_is_beyond_the_leading_singular_values(kind, complete, rank):
    """Of eigenvalues alone nothing says how much the others hold."""
    one = Spectrum(kind, torch.tensor([1.0, 1.0]), size=2 if complete else 9, complete=complete, frobenius=3.0)
    assert one.rank(95) == rank
    zero = replace(one, values=torch.zeros(2), frobenius=0.0)
    assert zero.rank(95) is None and zero.rank_within(0.1) is None and zero.decay is None and zero.cumulative is None


def test_two_weights_stand_side_by_side(run, measured, tiny_bert, text_file):
    args = ("--model", tiny_bert, "--text", text_file, "--weights pretrained,initialized --n 14 --layer 0,2")
    frame = measured(*args).frame("singular")
    code, out, err = run(*args, "--out", "r", "--format", "json")  # from the records: each weights' own
    assert code == 0 and "pretrained" in out and "initialized" in out, err
    places = {*frame[["weights", "layer"]].itertuples(index=False, name=None)}
    assert places == {(weights, layer) for weights in ("pretrained", "initialized") for layer in (0, 2)}
    assert len({str(some["value"].tolist()) for _, some in frame.groupby("key")}) == 16
    [sheet] = sheets(frame, DECAY)
    titles = [axis.get_title().replace("\u00a0", " ") for axis in sheet.axes]
    assert titles == [f"layer {layer}, {weights}" for layer in (0, 2) for weights in ("pretrained", "initialized")]


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


def test_a_matrix_that_is_not_finite_has_no_values(measured, qkv, monkeypatch):
    def lost(*args, **options):
        return [replace(one, values=one.values * float("nan")) for one in spectra(*args, **options)]

    monkeypatch.setattr("attnprobe.measure.spectrum.measure.spectra", lost)
    [cell] = measured("--qkv", qkv, "--of", "softmax", "--head", "1", code=4).records["spectrum"]
    assert cell["status"] == "diverged" and cell["reason"] == "the matrix is not finite" and cell["rows"] == []


def test_lists_of_matrices_and_methods():
    actual = parse_of(["softmax,skyformer:sampler=iid,share_heads=true", "gaussian,softmax,vmean"])
    names = [one if isinstance(one, str) else one.name for one in actual]
    assert names == ["softmax", "skyformer", "gaussian", "vmean"]
    assert dict(actual[1].options) == {"sampler": "iid", "share_heads": True}
    assert shares("0.5,0.5,1e-3", "epsilon") == (0.5, 1e-3)
    with pytest.raises(UsageError, match="unknown matrix or method ''"):
        parse_of(["softmax,"])


def singular(values, head=0, of="softmax", layer=0, **columns):
    """The rows of the values of one matrix of one head."""
    values = np.asarray(values, dtype=float)
    place = {"source": "", "target": pd.NA, "n": len(values), "window": 0, "repeat": 0, "status": "ok", "reason": pd.NA}
    facts = {"method": pd.NA, "name": pd.NA, "options": "", "family": pd.NA, "reference": False, "d": pd.NA}
    rows = pd.DataFrame({"index": np.arange(1, len(values) + 1), "decay": values / max(values[0], 1e-300)})
    rows["cumulative"] = (values**2).cumsum() / max((values**2).sum(), 1e-300)
    facts = {**place, **facts, "of": of, "layer": layer, "head": head, "size": len(values), "key": f"{of}{head}{layer}"}
    rows = rows.assign(**{**facts, **columns})
    words = dict.fromkeys(("method", "name", "options", "family", "target", "reason", "of", "status"), "string")
    return rows.astype({**words, "d": "Int64", "decay": "Float64", "cumulative": "Float64"})


def drawn(figure, *parts):
    return sheets(pd.concat(parts, ignore_index=True), figure)


def test_figures_draw_what_rows_hold():
    [sheet] = drawn(DECAY, singular([4.0, 2.0, 1.0], head=0), singular([4.0, 4.0, 1.0], head=1))
    [line] = [line for line in sheet.axes[0].get_lines() if len(line.get_xdata()) == 3]
    assert line.get_ydata().tolist() == [1.0, 0.75, 0.25]
    [sheet] = drawn(CUMULATIVE, singular([2.0, 1.0]))
    assert [1.0 - 0.2, 1.0] in [line.get_ydata().tolist() for line in sheet.axes[0].get_lines()]
    lost = {"status": "failed", "decay": pd.NA, "cumulative": pd.NA}
    assert drawn(DECAY, singular([1.0], **lost)) == drawn(CUMULATIVE, singular([1.0], **lost)) == []
    many = drawn(DECAY, *(singular([1.0, 0.5], layer=layer) for layer in range(14)))
    assert sum(len(sheet.axes) for sheet in many) == 14


def test_a_matrix_of_low_rank_does_not_squeeze_the_others():
    """One falls to 1e-17 at rank 100; the others span three decades. Rounding counts as 0, below any axis."""
    full = np.geomspace(2.0, 2e-3, 128)
    low = np.where(np.arange(1, 129) < 100, full, 2e-17)
    [sheet] = drawn(DECAY, *(singular(full, head, "softmax") for head in (0, 1)), singular(low, 0, "skyformer"))
    bottom, top = sheet.axes[0].get_ylim()
    assert 1e-4 < bottom <= 1e-3 and 1.0 < top < 10.0
    assert min(line.get_ydata()[99] for line in sheet.axes[0].get_lines() if len(line.get_xdata()) == 128) == 0.0


def test_equal_spectra_have_markers_of_their_own():
    """Each of eight equal lines begins with its markers at another share of the axis."""
    of = ["softmax", *(f"method{place}" for place in range(7))]
    [sheet] = drawn(DECAY, *(singular(np.geomspace(1.0, 1e-3, 128), of=name) for name in of))
    marked = [line.get_markevery() for line in sheet.axes[0].get_lines() if line.get_markevery() is not None]
    assert len(marked) == len({begin for begin, _ in marked}) == 8 and len({share for _, share in marked}) == 1


def test_cells_are_lengths_times_windows_layers_and_heads(run, tiny_bert, text_file, monkeypatch):
    asked = ("--model", tiny_bert, "--text", text_file, "--n 4,6,8 --windows 2 --layer 0,1 --head 0,1")
    for most, code in ((24, 0), (23, 2)):
        monkeypatch.setattr("attnprobe.run.plan.MOST_CELLS", most)
        result = run(*asked, "--of", "softmax", "--dry-run")
        assert result[0] == code, result
    assert "24 cells are more than 23" in refused(result)
