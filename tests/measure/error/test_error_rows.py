"""Row metrics at the command line: records, rows, the table, the profile over positions, figures and floors."""

import functools
import json
import math
import textwrap
from dataclasses import replace

import pytest
import torch
from error_rows import in_lists, records_in
from paths import SHARED
from safetensors.torch import save_file
from sources_helpers import bert_config, save, seeded
from thinned import others_slow

from attnprobe import QKV, approximate, exact, load_qkv, row_metrics
from attnprobe.frame.metric import METRICS
from attnprobe.frame.records.append import RecordWriter
from attnprobe.inputs import packaged_weights
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.methods import METHODS
from attnprobe.metrics import OVER_ROWS, PROFILED, over_rows, position_profile
from attnprobe.show.page import open_run

N = 48


@pytest.fixture(scope="module")
def qkv(tmp_path_factory):
    """A file of causal Q, K, V of two heads, and the tensors."""
    tensors = torch.randn(3, 2, N, 8, generator=torch.Generator().manual_seed(0))
    path = tmp_path_factory.mktemp("rows") / "qkv.safetensors"
    save_file(dict(zip("qkv", tensors, strict=True)), path, metadata={"causal": "true"})
    return path, tensors


@pytest.fixture
def measured(run, qkv, tmp_path):
    """The answer of a command with row metrics, and the record of each method."""

    def measure(*arguments):
        options = ("--method", "window,topk,performer", "--d", 8, "--no-matrix", "--format", "json", "--out", "r")
        code, out, err = run("error", "--qkv", qkv[0], "--rows", *options, *arguments)
        return code, json.loads(out), {record["method"]: record for record in records_in(tmp_path / "r")}, err

    return measure


def test_every_metric_over_rows_has_a_direction():
    assert set(OVER_ROWS) <= set(METRICS)
    assert {metric for metric, _ in OVER_ROWS.values()} >= set(PROFILED)


def test_records_hold_the_metrics_of_each_head_over_its_rows(measured, qkv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, answer, records, err = measured()
    assert err.count("no residual error: Q, K and V without their model have no residual stream") == 1
    assert records["topk"]["metrics"]["residual_error"] == [None, None]
    assert code == 0 and "profile" not in records["lower-bound"]
    inputs = QKV(*qkv[1], causal=True)
    for name in ("window", "topk", "vmean"):
        actual = row_metrics(exact(inputs), approximate(name, inputs, None if name == "vmean" else 8), inputs)
        for metric, values in over_rows(actual).items():
            got = records[name]["metrics"][metric]
            for one, value in zip(got, values.tolist(), strict=True):
                assert (one is None and math.isnan(value)) or one == pytest.approx(value, rel=1e-9), (name, metric)
        keys, profile = position_profile(actual, torch.arange(N))
        assert records[name]["profile"]["keys"] == keys == [1, 2, 4, 8, 16, 32]
        assert records[name]["profile"]["mass"] == profile["mass"]
        rows = {row["method"]: row for row in answer["rows"]}
        assert rows[name]["tv.mean"] == pytest.approx(float(actual["tv"].mean()), rel=1e-9)


def test_a_run_with_row_metrics_does_not_take_cells_without_them(run, qkv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    same = ("--qkv", qkv[0], "--method", "window", "--d", 8, "--no-matrix", "--out", "r")
    run("error", *same)
    code, _, _ = run("error", *same, "--rows")
    records = records_in(tmp_path / "r")
    assert code == 0 and [("profile" in one) for one in records if one["method"] == "window"] == [False, True]


def test_the_table_of_rows_and_the_figure_stand_beside_those_of_errors(run, qkv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--method", "window,topk", "--d", 8, "--no-matrix", "--rows", "--plot", "positions", "--out", "r")
    code, out, _ = run("error", "--qkv", qkv[0], *options)
    table = out[out.index("Rows of attention") :]
    assert code == 0 and all(word in table for word in ("mass", "row error", "window", "topk"))
    assert (tmp_path / "r" / "figures" / "positions.svg").exists()


def test_a_divergence_of_some_heads_shows_of_how_many(run, qkv, tmp_path, monkeypatch):
    """Head 0 has no negative weight; head 1 has them in some rows, and so no divergence."""
    monkeypatch.chdir(tmp_path)
    signed = """
        from attnprobe import exact
        from attnprobe.operators import Dense

        def signed(qkv):
            weights = exact(qkv).dense().clone()
            weights[1, 1:] *= -1
            return Dense(weights)
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(signed))
    save_file(dict(zip("qkv", qkv[1], strict=True)), tmp_path / "all.safetensors")  # not causal
    options = ("--method", "mine.py:signed,topk", "--d", 8, "--no-matrix", "--rows", "--out", "r", "--format", "json")
    code, out, _ = run("error", "--qkv", "all.safetensors", *options)
    rows = {row["method"]: row for row in json.loads(out)["rows"]}
    assert code == 0 and (rows["mine.py:signed"]["kl.count"], rows["topk"]["kl.count"]) == (1, 2)


def test_no_figure_over_positions_without_row_metrics(run, qkv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--method", "window", "--d", 8, "--no-matrix", "--plot", "positions", "--out", "r")
    _, _, err = run("error", "--qkv", qkv[0], *options)
    assert "measure them with --rows" in err


ASKED = ("--method", "window", "--d", 8, "--no-matrix", "--rows", "--out", "r")


@pytest.mark.parametrize(
    "gate", [("below", "tv=0.5"), ("above", "mass=0.5"), ("below", "mass.least=0.5"), ("below", "mass")]
)
def test_gates_on_the_wrong_side_of_a_metric_are_refused(run, qkv, gate):
    assert run("error", "--qkv", qkv[0], *ASKED, f"--fail-{gate[0]}", gate[1])[0] == 2


def test_floors_are_gates_of_metrics_of_which_more_is_better(run, qkv):
    kept = ("--fail-below", "mass=0.05", "--fail-above", "tv=0.99")
    code, _, err = run("error", "--qkv", qkv[0], *ASKED, *kept, "--fail-below", "mass.p10=0.99999")
    assert code == 1 and err.count("gate failed: ") == 1 and "gate failed: mass.p10" in err, err
    assert run("error", "--qkv", qkv[0], *ASKED, *kept)[0] == 0


@pytest.mark.parametrize(
    "queries, rows",
    others_slow(
        [("last:5", range(43, 48)), ("every:12", [11, 23, 35, 47]), ("3,40-41", [3, 40, 41])],
        lambda case: case[0] == "3,40-41",
    ),
)
def test_the_rows_of_some_queries_are_those_of_all(run, qkv, tmp_path, queries, rows):
    options = ("--method", "window,topk", "--d", 8, "--no-matrix", "--rows", "--queries", queries, "--out", "r")
    code, out, _ = run("error", "--qkv", qkv[0], *options)
    assert code == 0 and f"queries {queries}" in " ".join(out.split())
    records = records_in(tmp_path / "r")
    window = next(record for record in records if record["method"] == "window")
    inputs = QKV(*qkv[1], causal=True)
    actual = row_metrics(exact(inputs), approximate("window", inputs, 8), inputs)
    assert window["metrics"]["mass"] == pytest.approx(actual["mass"][:, list(rows)].mean(1).tolist(), rel=1e-6)
    assert window["source"]["queries"] == queries


def test_a_budget_is_one_of_keys_where_queries_are_few(run, qkv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--method", "topk", "--d", 20, "--no-matrix", "--rows", "--queries", "last:3", "--format", "json")
    code, out, _ = run("error", "--qkv", qkv[0], *options, "--out", "r")
    [row] = [row for row in json.loads(out)["rows"] if (row["table"], row["method"]) == ("rows", "topk")]
    assert code == 0 and row["status"] == "ok" and row["keys.mean"] == 20


def test_queries_that_are_none_are_refused(run, qkv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("error", "--qkv", qkv[0], "--d", 8, "--queries", "last:99", "--out", "r")
    assert code == 2 and "n=48 is too short" in err


@pytest.fixture
def shared(tmp_path):
    """A file of causal Q, K, V in which two query heads share a KV head, and its inputs."""
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(h, N, 8, generator=draw) for h in (2, 1, 1))
    path = tmp_path / "shared.safetensors"
    save_file({"q": q, "k": k, "v": v}, path, metadata={"causal": "true"})
    return path, QKV(q, k, v, causal=True)


def test_what_a_selection_reads_and_scores_is_in_records_rows_and_columns(run, shared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, inputs = shared
    options = ("--method", "quest:page=4,topk,window", "--d", 8, "--no-matrix", "--out", "r")
    code, out, _ = run("error", "--qkv", path, *options, "--format", "json")
    rows = {row["method"]: row for row in json.loads(out)["rows"]}
    names = ("realised_d", "realised_d_p10", "realised_d_p90", "scored", "kv_read")
    keys = approximate("quest", inputs, 8, page=4).matrix().dense() != 0
    of_row = keys.sum(-1).double()
    union = keys.any(0).sum(-1).double().mean()
    pages = 2 * (torch.arange(N) // 4 + 1).double().mean()
    expected = (of_row.mean(), of_row.quantile(0.1, 1).mean(), of_row.quantile(0.9, 1).mean(), pages, union)
    for name, value in zip(names, expected, strict=True):
        assert rows["quest"][f"{name}.mean"] == pytest.approx(float(value)), name
    assert rows["quest"]["kv_read.mean"] > rows["quest"]["realised_d.mean"]  # sets of heads differ
    assert rows["window"]["kv_read.mean"] == rows["window"]["realised_d.mean"]  # and windows do not
    assert rows["topk"]["scored.mean"] == (N + 1) / 2 and rows["window"]["scored.mean"] == 0
    assert rows["vmean"]["kv_read.count"] == 0
    _, table, _ = run("error", "--qkv", path, *options, "--columns", "name,scored.mean,kv_read.mean")
    line = next(line for line in table.splitlines() if line.startswith("quest"))
    assert [float(cell) for cell in line.split()[-2:]] == pytest.approx([float(pages), float(union)], rel=0.01)


def test_what_a_selection_reads_can_be_limited(run, shared):
    options = ("--method", "quest:page=4", "--d", 8, "--no-matrix", "--out", "r")
    gates = [word for limit in ("kv_read=7", "kv_read=16", "scored=1") for word in ("--fail-above", limit)]
    code, _, err = run("error", "--qkv", shared[0], *options, *gates)
    failed = [line.partition("gate failed: ")[2].split(":")[0] for line in err.splitlines() if "gate failed" in line]
    assert code == 1 and failed == ["kv_read.mean <= 7", "scored.mean <= 1"], err


TEXT, VOCABULARY = SHARED / "wikitext-2-test.txt", SHARED / "bert-base-cased-vocab.txt"
here = pytest.mark.skipif(not TEXT.exists(), reason="Wikitext-2 is not beside the checkout")


@pytest.fixture(scope="module")
def levels(tmp_path_factory):
    """Error / V-Mean by (method, n, d): layer 0, four windows, every weight random."""
    folder = tmp_path_factory.mktemp("bert-base")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 28996}))
    (folder / "vocab.txt").write_text(VOCABULARY.read_text())
    spec = {"model": str(folder), "weights": ("initialized",), "text": str(TEXT), "device": "cpu"}
    actual = {}
    for n, d in (((512,), (16, 256)), ((1024,), (16,))):
        request = ErrorRequest(
            **spec, methods=("nystromformer,skyformer",), n=n, d=d, windows=4, out=str(folder / f"{n}")
        )
        frame = open_run(measure_errors(request).path).frame()
        vmean = frame.query("method == 'vmean'")["output_spectral"].mean()  # over the same windows and heads
        means = frame.groupby(["method", "n", "d"])["output_spectral"].mean()
        actual |= {place: mean / vmean for place, mean in means.items()}
    return actual


@here
@pytest.mark.parametrize(
    ("method", "n", "d", "low", "high"),
    [
        ("nystromformer", 512, 16, 0.53, 0.69),
        ("skyformer", 512, 16, 0.54, 0.70),
        ("skyformer", 512, 256, 0.05, 0.15),
        ("nystromformer", 1024, 16, 0.54, 0.70),
        ("skyformer", 1024, 16, 0.55, 0.71),
    ],
)
@pytest.mark.slow
def test_error_over_vmean_has_the_known_level(levels, method, n, d, low, high):
    assert low < levels[method, n, d] < high


@pytest.mark.skipif(not packaged_weights()["sha256_ok"], reason="the packaged MiniLM weights are not installed")
def test_bad_rows_of_pretrained_heads_are_counted_in_each_layer(tmp_path):
    layers = (0, 5)
    given = {"model": "minilm", "text": "embedded", "device": "cpu", "n": (256,), "d": (128,), "layer": layers}
    methods = ("nystromformer,skyformer",)
    request = ErrorRequest(**given, methods=methods, matrix=False, input_statistics=False, out=str(tmp_path / "r"))
    records = list(map(in_lists, measure_errors(request).outcome.records))
    measured = [record for record in records if record["requested"]]
    assert {(r["method"], r["layer"]) for r in measured} == {
        (method, layer) for method in ("nystromformer", "skyformer") for layer in layers
    }
    assert all(record["status"] == "ok" and len(record["metrics"]["bad_rows"]) == 12 for record in measured)
    assert sum(sum(r["metrics"]["bad_rows"]) for r in measured if r["method"] == "skyformer") > 0


def test_rows_of_a_needle_have_the_mass_of_its_keys(tmp_path):
    from transformers import BertModel

    config = bert_config(max_position_embeddings=128)
    asked = {"model": str(save(seeded(lambda: BertModel(config)), tmp_path / "m")), "text": "needle:pairs=1"}
    asked |= {"device": "cpu"}
    request = ErrorRequest(
        **asked, n=(128,), methods=("topk",), d=(8,), rows=True, matrix=False, out=str(tmp_path / "r")
    )
    records = {record["method"]: record for record in map(in_lists, measure_errors(request).outcome.records)}
    inputs = load_qkv(**asked, n=128)
    keys = torch.tensor(inputs.label["needle"])
    for name, d in (("topk", 8), ("vmean", None)):
        values = over_rows(row_metrics(exact(inputs), approximate(name, inputs, d), inputs, needle=keys))
        for metric in ("needle_mass_kept", "mass"):
            assert records[name]["metrics"][metric] == pytest.approx(values[metric].tolist(), rel=1e-4)
    assert min(records["vmean"]["metrics"]["needle_mass_kept"]) > 0


def test_rows_are_of_the_softmax_matrix_alone(measured, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, records, err = measured("--target", "gaussian", "--method", "skyformer")
    assert code == 0 and "no residual error" not in err and not any("profile" in one for one in records.values())
    assert "mass" not in records["skyformer"]["metrics"]


def test_a_cell_that_ran_out_of_time_does_not_run_again_beside_others(qkv, tmp_path, monkeypatch):
    """Methods of a place share passes over its matrix; one that is done runs again only if its operator is needed."""
    asked = {"qkv": str(qkv[0]), "methods": ("window,topk",), "d": (8,), "out": str(tmp_path / "r"), "device": "cpu"}
    first = {record["method"]: record for record in measure_errors(ErrorRequest(**asked)).outcome.records}
    for reason, runs in (("timeout: took longer", 0), ("it broke", 1)):
        kept = [first["lower-bound"], first["vmean"], {**first["window"], "status": "failed", "reason": reason}]
        (tmp_path / "r" / "rows.jsonl").unlink()
        with RecordWriter(tmp_path / "r" / "rows.jsonl") as writer:
            for cell in kept:
                writer.append(cell)
        calls, entry = [], METHODS["window"]

        @functools.wraps(entry.function)
        def counted(*given, calls=calls, entry=entry, **options):
            calls.append(1)
            return entry.function(*given, **options)

        with monkeypatch.context() as patched:
            patched.setitem(METHODS, "window", replace(entry, function=counted))
            records = {record["method"]: record for record in measure_errors(ErrorRequest(**asked)).outcome.records}
        assert len(calls) == runs and records["window"]["reason"] == reason
        assert records["topk"]["rows"] == first["topk"]["rows"]
