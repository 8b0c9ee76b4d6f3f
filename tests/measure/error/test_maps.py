"""Maps of attention: block means against dense averages, what a run keeps of them, and what is drawn."""

import json

import numpy as np
import pytest
import torch
from every_setting import DEFAULTS, run
from folders import saved_layers
from inputs import DTYPES, eps, factor_of, magnitude, make
from pretend_device import AWAY, pretending
from safetensors.torch import save_file
from showing import EACH, files_of
from thinned import others_slow

from attnprobe.cli import main
from attnprobe.cli.factory import measuring_command
from attnprobe.cli.options import kinds_from
from attnprobe.errors import UsageError
from attnprobe.frame.records.file import exact_map_path, map_path, mapped
from attnprobe.frame.records.read import read_records
from attnprobe.inputs import load_qkv
from attnprobe.inputs.files import FileSource
from attnprobe.measure import experiment
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.methods import approximate
from attnprobe.metrics import MAP_BLOCKS, attention_maps
from attnprobe.operators import Dense, Identity, Padded, Sum
from attnprobe.qkv import QKV
from attnprobe.reference import TARGETS, exact
from attnprobe.show.page import open_run


def literal(matrix, blocks):
    """Block means of (h, n_q, n_k) by loops: the first ``n mod blocks`` blocks are one token longer."""
    h, n_q, n_k = matrix.shape
    edges = []
    for n in (n_q, n_k):
        count = min(blocks, n)
        edges.append([0])
        for block in range(count):
            edges[-1].append(edges[-1][-1] + n // count + (1 if block < n % count else 0))
        assert edges[-1][-1] == n
    out = torch.empty(h, len(edges[0]) - 1, len(edges[1]) - 1, dtype=torch.float64)
    for head in range(h):
        for s in range(out.shape[1]):
            for t in range(out.shape[2]):
                values = [
                    float(matrix[head, i, j])
                    for i in range(edges[0][s], edges[0][s + 1])
                    for j in range(edges[1][t], edges[1][t + 1])
                ]
                out[head, s, t] = sum(values) / len(values)
    return out


def rounding(operator, qkv, dtype, blocks):
    """How far a block mean may be off: the mean of what its entries may be, once for each of the two ways."""
    return 2 * literal(eps(dtype) * factor_of(qkv) * magnitude(operator), blocks) + torch.finfo(dtype).tiny


# one block is the mean of all entries, and 23 tokens in 7 blocks have blocks of both sizes
@pytest.mark.parametrize("blocks", others_slow([1, 4, 7, 64], lambda blocks: blocks[0] == 7))
@pytest.mark.parametrize("dtype", others_slow(DTYPES, lambda dtype: dtype[0] == DTYPES[0]))
@pytest.mark.parametrize("name, target", [case.values[:2] for case in DEFAULTS])
def test_maps_of_every_method_are_dense_block_means(name, target, dtype, blocks):
    qkv = make(n=23, score=2.0, dtype=dtype)
    operator = run(name, target, qkv, {}).operator
    got, expected = attention_maps(operator, blocks), literal(operator.dense().double(), blocks)
    assert got.dtype == torch.float64 and got.shape == (2, min(blocks, 23), min(blocks, 23))
    assert bool(((got - expected).abs() <= rounding(operator, qkv, operator.dtype, blocks)).all())


@pytest.mark.parametrize("n", [2, 3, 65])
@pytest.mark.parametrize("target", TARGETS)
def test_maps_of_exact_attention_at_any_length(n, target):
    qkv = make(n=n)
    operator = exact(qkv, target)
    got = attention_maps(operator)
    assert got.shape == (2, min(n, MAP_BLOCKS), min(n, MAP_BLOCKS))
    torch.testing.assert_close(got, literal(operator.dense(), MAP_BLOCKS), rtol=1e-13, atol=0)


def test_queries_and_keys_have_blocks_of_their_own():
    qkv = make(n=9, n_k=14)
    got = attention_maps(exact(qkv), 4)
    torch.testing.assert_close(got, literal(exact(qkv).dense(), 4), rtol=1e-13, atol=0)
    tall = attention_maps(exact(qkv), 12)
    assert tall.shape == (2, 9, 12)
    torch.testing.assert_close(tall, literal(exact(qkv).dense(), 12), rtol=1e-13, atol=0)


def test_padded_tokens_are_zeros_that_count():
    mask = torch.arange(11) % 4 != 1
    qkv = make(n=11)
    qkv = QKV(qkv.q, qkv.k, qkv.v, mask=mask)
    for operator in (exact(qkv), approximate("nystromformer", qkv, 3).operator):
        assert isinstance(operator, Padded)
        torch.testing.assert_close(attention_maps(operator, 4), literal(operator.dense(), 4), rtol=1e-11, atol=1e-14)
        whole = attention_maps(operator, 11)
        assert bool((whole[:, ~mask] == 0).all()) and bool((whole[:, :, ~mask] == 0).all())


def test_negative_means_stay_negative_and_a_broken_row_stays_in_its_blocks():
    matrix = torch.tensor([[[1.0, -3.0, 0, 0], [0, 0, 0, 0], [2, 2, 2, float("inf")], [1, 1, 1, 1]]])
    got = attention_maps(Dense(matrix), 2)
    assert float(got[0, 0, 0]) == -0.5 and float(got[0, 0, 1]) == 0
    assert not bool(torch.isfinite(got[0, 1, 1])) and bool(torch.isfinite(got[0, 0]).all())


def test_half_precision_is_summed_in_float32():
    matrix = torch.full((1, 4096, 4096), 20.0, dtype=torch.float16)  # a block's row sums to 81920, beyond float16
    assert attention_maps(Dense(matrix), 1).tolist() == [[[20.0]]]


def test_a_map_never_holds_the_matrix(monkeypatch):
    """No dense row of an operator is asked for, and what is multiplied has as many columns as there are blocks."""
    operator, widths = exact(make(n=40)), []
    apply = type(operator)._apply
    monkeypatch.setattr(type(operator), "_rows", lambda *args: pytest.fail("a dense block of rows"))
    monkeypatch.setattr(type(operator), "_apply", lambda self, x: widths.append(x.shape[2]) or apply(self, x))
    attention_maps(operator, 6)
    assert widths == [6]


def test_maps_stay_on_the_device_and_leave_the_default_device_alone():
    qkv = make(n=24)
    expected = attention_maps(approximate("skyformer", qkv, 10).operator, 7)
    with torch.device("meta"):
        assert torch.equal(attention_maps(approximate("skyformer", qkv, 10).operator, 7), expected)
    with pretending():
        away = QKV(qkv.q.to(AWAY), qkv.k.to(AWAY), qkv.v.to(AWAY))
        got = attention_maps(approximate("skyformer", away, 10).operator, 7)
        assert got.device == AWAY and (got.held - expected).abs().max() < 1e-10


def test_blocks_are_counted_from_one():
    with pytest.raises(UsageError, match="blocks=0"):
        attention_maps(exact(make(n=4)), 0)


def test_a_map_is_linear_in_its_operator():
    operator = exact(make(n=10))
    both = attention_maps(Sum([operator, Identity(torch.ones(2, dtype=torch.float64), 10)]), 3)
    alone = attention_maps(operator, 3)
    eye = literal(torch.eye(10, dtype=torch.float64).expand(2, -1, -1), 3)
    torch.testing.assert_close(both, alone + eye)


# --- what a run keeps


@pytest.fixture
def source(tmp_path):
    """Two layers and two windows of 3 heads, 70 tokens, p = 8."""
    return {"qkv": str(saved_layers(tmp_path, 70)), "device": "cpu"}


def measured(source, tmp_path, name="r", maps=True, **rest):
    rest = {"d": (8,), "methods": ("skyformer",), "matrix": False, **rest}
    return measure_errors(ErrorRequest(**source, out=str(tmp_path / name), **rest), maps=maps)


def files(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "maps").glob("*"))}


def test_a_run_keeps_the_maps_of_its_operators(source, tmp_path):
    asked = {"methods": ("skyformer,vmean",), "d": (4, 8), "layer": (0, 2), "n": (65, 70), "head": (2, 0)}
    session = measured(source, tmp_path, **asked, windows=2, repeats=2, seed=3)
    shown = mapped(session.outcome.records)
    assert len(shown) == 3 * 2 * 2 and all(one["window"] == 0 and one["seed"] == 3 for one in shown)
    assert {one["key"] for one in mapped(session.outcome.records[::-1])} == {one["key"] for one in shown}
    assert len(files(tmp_path / "r")) == len(shown) + 2 * 2 and session.unmapped == {}
    for record in shown:
        qkv = load_qkv(qkv=source["qkv"], n=record["n"], layer=record["layer"]).select([2, 0])
        operator = approximate(record["method"], qkv, record["d"], seed=3).operator
        expected = {map_path(session.path, record["key"]): operator, exact_map_path(session.path, record): exact(qkv)}
        for path, matrix in expected.items():
            actual = np.load(path, allow_pickle=False)
            assert actual.dtype == np.float32 and np.array_equal(actual, attention_maps(matrix).float().numpy())


def test_maps_change_no_record_and_cells_measured_before_get_theirs(source, tmp_path, monkeypatch):
    request = {"methods": ("skyformer,performer",), "repeats": 2}
    bare = measured(source, tmp_path, "a", maps=False, **request)
    assert not (tmp_path / "a/maps").exists()
    lines = (tmp_path / "a/rows.jsonl").read_bytes()
    whole = measured(source, tmp_path, "b", **request)

    def timeless(session):
        return [{**one, "seconds": 0, "run": ""} for one in session.outcome.records]

    assert timeless(bare) == timeless(whole)
    later = measured(source, tmp_path, "a", **request)  # the same folder, now with maps
    assert later.outcome.measured == 0 and (tmp_path / "a/rows.jsonl").read_bytes() == lines
    assert files(tmp_path / "a") == files(tmp_path / "b")
    for dropped in files(tmp_path / "a"):  # the exact matrix's, and each method's
        (tmp_path / "a/maps" / dropped).unlink()
        measured(source, tmp_path, "a", **request)
        assert files(tmp_path / "a") == files(tmp_path / "b")
    monkeypatch.setattr(FileSource, "qkv", lambda *args: pytest.fail("Q, K and V were read again"))
    measured(source, tmp_path, "a", **request)


def test_the_exact_map_is_that_of_its_target_source_and_heads(source, tmp_path):
    paths = set()
    for change in ({}, {"target": "gaussian"}, {"head": (1,)}, {"layer": (2,)}, {"n": (69,)}):
        session = measured(source, tmp_path, **change)
        (record,) = mapped(session.outcome.records)
        paths.add(exact_map_path(session.path, record))
        paths.add(exact_map_path(session.path, {**record, "source": {**record["source"], "qkv_sha256": "other"}}))
        assert exact_map_path(session.path, {**record, "source": {**record["source"], "qkv": "moved"}}) in paths
    assert len(paths) == 10
    gaussian = measured(source, tmp_path, target="gaussian")
    (record,), qkv = mapped(gaussian.outcome.records), load_qkv(qkv=source["qkv"], n=70)
    approx = approximate("skyformer", qkv, 8, target="gaussian")
    expected = {
        exact_map_path(gaussian.path, record): exact(qkv, "gaussian"),
        map_path(gaussian.path, record["key"]): approx.operator,
    }
    for path, operator in expected.items():
        assert np.array_equal(np.load(path), attention_maps(operator).float().numpy())


def test_a_shard_keeps_no_maps(source, tmp_path):
    session = measured(source, tmp_path, methods=("skyformer,linear",), shard="1/2")
    assert session.outcome.records and not (session.path / "maps").exists()


# --- what is drawn


def panels_of(figure):
    """The panels of a page, without the colour scale."""
    return [axis for axis in figure.axes if axis.get_visible() and axis.get_label() != "<colorbar>"]


def inside(axis):
    return [text.get_text() for text in axis.texts]


def heading_of(figure):
    return figure.get_suptitle().replace("\xa0", " ")


def titles_of(figure):
    return [panel.get_title().replace("\xa0", " ") for panel in panels_of(figure)]


def kept(tmp_path, maps, exact_maps=None, **fields):
    """A run's folder that holds one cell with these maps, (h, b, b)."""
    place = {"window": 0, "layer": 0, "n": 8, "d": 4, "repeat": 0, "seed": 0, "heads": list(range(len(maps)))}
    state = {"requested": True, "status": "ok", "reason": None, "metrics": {"realised_d": [3.5, 3.5]}}
    method = {"key": "k", "method": "skyformer", "options": {}, "target": "softmax", "source": {}}
    record = {**place, **state, **method, **fields}
    (tmp_path / "maps").mkdir(parents=True, exist_ok=True)
    np.save(map_path(tmp_path, record["key"]), maps.astype(np.float32))
    np.save(exact_map_path(tmp_path, record), (maps if exact_maps is None else exact_maps).astype(np.float32))
    return record


# --- the command


@pytest.fixture
def command(capsys, monkeypatch, tmp_path, source):
    """Run ``attnprobe error`` on the file in this process, in an empty folder: ``(code, stdout, stderr)``."""
    monkeypatch.chdir(tmp_path)

    def call(*args):
        with pytest.raises(SystemExit) as stop:
            head = () if "--head" in args else ("--head", "2")  # one panel shows what is asked
            main(["error", "--qkv", source["qkv"], "--d", "8", *head, "--no-matrix", "--out", "r", *args])
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return call


def names(tmp_path):
    return {path.name for path in (tmp_path / "r/figures").glob("*")}


ERRORS = {*files_of("errors")}
MAPS = {*files_of("maps")}


PLOTS = [
    ((), ()),
    (("--plot",), ("errors",)),
    (("--plot", "--n", "70"), ("errors",)),
    (("--plot", "errors"), ("errors",)),
    (("--plot=maps",), ("maps",)),
    (("--plot", "maps", "--head", "1"), ("maps",)),
    (("--plot", "errors,maps"), ("errors", "maps")),
    (("--plot", "maps", "--plot"), ("errors", "maps")),
    (("--plot", "--plot", "maps"), ("errors", "maps")),
]


@pytest.mark.parametrize(("args", "expected"), PLOTS, ids=" ".join)
def test_plot_names_kinds(args, expected):
    """Without a name it is the kind that is drawn by default, whatever follows and whatever is named beside it."""
    one = experiment("error")
    words = measuring_command(one).make_context("error", list(args)).params["plots"]
    assert set(kinds_from(words, one.plots)) == set(expected)


@pytest.mark.parametrize(
    ("args", "kinds"),
    others_slow(PLOTS, lambda case: case[0] == () or "--head" in case[0]),
    ids=" ".join,
)
def test_plot_draws_what_it_names(command, tmp_path, args, kinds):
    expected = {name for kind in kinds for name in files_of(kind)}
    code, _, err = command(*args)
    assert code == 0 and names(tmp_path) == expected
    drawn = {line.rpartition("/")[2] for line in err.splitlines() if "figure:" in line}
    assert drawn == {f"{name}, and .png, .pdf, .txt" for name in expected if name.endswith(".svg")}


@pytest.mark.parametrize(
    ("kind", "says"), [("map", "did you mean 'maps'?"), ("errors,", "choose from errors, ranking, cost, read, maps")]
)
def test_an_unknown_plot_is_one_line_with_a_way_out(command, tmp_path, kind, says):
    code, out, err = command("--plot", kind)
    assert code == 2 and not out and says in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_older_pictures_never_contradict_the_table(command, tmp_path):
    command("--plot", "errors,maps")
    before = {name: (tmp_path / "r/figures" / name).read_bytes() for name in names(tmp_path)}
    command()
    assert {name: (tmp_path / "r/figures" / name).read_bytes() for name in names(tmp_path)} == before
    code, _, err = command("--method", "performer,vmean")  # another table in the folder: both kinds are drawn again
    assert code == 0 and names(tmp_path) == ERRORS | MAPS
    drawn = {name: old for name, old in before.items() if name.endswith(".svg")}
    assert all((tmp_path / "r/figures" / name).read_bytes() != old for name, old in drawn.items())
    command("--layer", "2")  # maps of another layer are panels of the same figure
    assert names(tmp_path) == ERRORS | MAPS


def test_a_kind_that_was_not_drawn_is_not_drawn_for_the_other(command, tmp_path):
    command("--plot", "maps")
    command("--method", "performer")
    assert names(tmp_path) == MAPS
    command("--method", "performer", "--plot")
    assert names(tmp_path) == ERRORS | MAPS


def test_maps_come_with_the_timings_and_leave_stdout_alone(command):
    code, out, err = command("--format", "json", "--plot", "maps", "--timings")
    assert code == 0 and "maps" in [line.split()[0] for line in err.splitlines()]
    plain = command("--format", "json")[1]
    assert json.loads(out) == json.loads(plain)


def test_a_mask_and_a_diverged_cell_are_drawn_too(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    q, k, v = torch.randn(3, 1, 96, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(96) < 90
    save_file({"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous(), "mask": mask}, tmp_path / "m.safetensors")
    methods = "nystromformer,skyformer:inverse=cholesky,gamma=0,sampler=iid"  # 180 landmarks are too many for the first
    words = f"error --qkv m.safetensors --method {methods} --d 8,180 --no-matrix --plot maps --out r"
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 4 and len(list((tmp_path / "r/figures").iterdir())) == EACH
    diverged = {}
    for record in mapped(read_records(tmp_path / "r")):
        if record["status"] == "skipped":
            continue
        diverged[record["method"], record["d"]] = bool(np.isnan(np.load(map_path(tmp_path / "r", record["key"]))).any())
        assert (np.load(exact_map_path(tmp_path / "r", record))[0, :, -3:] == 0).all()  # padded keys
    assert diverged == {("nystromformer", 8): False, ("skyformer", 8): False, ("skyformer", 180): True}
    given = {"target": "gaussian", "scale_inputs": (1, 2), "methods": ("skyformer",), "d": (8,), "matrix": False}
    request = ErrorRequest(qkv="m.safetensors", device="cpu", **given, out=str(tmp_path / "both"))
    measure_errors(request, maps=True)
    frame = open_run(tmp_path / "both").frame("map")
    assert set(frame["scale_inputs"]) == {1, 2} and set(frame["target"]) == {"gaussian"}
    capsys.readouterr()
