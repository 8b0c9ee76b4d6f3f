"""What Q, K and V are like: each number against its dense twin, masks, memory, and what runs keep and show of it."""

import json
import math

import pytest
import torch
from inputs import make
from largest import Largest

from attnprobe import QKV, exact, input_statistics
from attnprobe.frame.inputs import inputs_frame
from attnprobe.frame.labels import source_labels
from attnprobe.frame.records.read import read_inputs
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.measure.spectrum import SpectrumRequest, measure_spectra
from attnprobe.metrics import INPUT_STATISTICS, ExactNorms, exact_norms
from attnprobe.show.page import open_run


def twin(qkv: QKV) -> dict[str, list[float]]:
    """Every statistic from dense float64 matrices, by loops over heads and the plain definitions."""
    keep = torch.ones(qkv.n_k, dtype=torch.bool) if qkv.mask is None else qkv.mask
    rows = keep if qkv.mask is not None else torch.ones(qkv.n_q, dtype=torch.bool)
    actual: dict[str, list[float]] = {name: [] for name in INPUT_STATISTICS}
    for head in range(qkv.h):
        q, k, v = qkv.q[head][rows].double(), qkv.k[head][keep].double(), qkv.v[head][keep].double()
        scores = qkv.scale * q @ k.T
        b = torch.softmax(scores, dim=1)
        entropy = float(torch.special.entr(b).sum(1).mean())
        mass = b.sum(0) / len(q)
        one = {
            "score_std": float(scores.std(correction=0)),
            "score_max": float(scores.abs().max()),
            "entropy": entropy,
            "entropy_share": entropy / math.log(len(k)) if len(k) > 1 else math.nan,
            "sink_first": float(mass[0]),
            "sink_most": float(mass.max()),
            "stable_rank": float((b * b).sum() / torch.linalg.svdvals(b)[0] ** 2),
        }
        for name, x in zip("qkv", (q, k, v), strict=True):
            norms = (x * x).sum(1).sqrt()
            values = torch.linalg.svdvals(x)
            one[f"{name}_norm_mean"], one[f"{name}_norm_max"] = float(norms.mean()), float(norms.max())
            one[f"{name}_norm_ratio"] = float(norms.max() / norms.quantile(0.5))
            one[f"{name}_stable_rank"] = float((values * values).sum() / values[0] ** 2)
        for name, value in one.items():
            actual[name].append(value)
    return actual


def compare(qkv: QKV, rel: float = 1e-11, rank: float = 1e-9) -> None:
    got, expected = input_statistics(qkv), twin(qkv)
    assert list(got) == list(INPUT_STATISTICS) == list(expected)
    for name, values in got.items():
        assert values.shape == (qkv.h,) and values.dtype == torch.float64
        band = rank if name == "stable_rank" else rel
        assert values.tolist() == pytest.approx(expected[name], rel=band, abs=1e-13, nan_ok=True), name


@pytest.mark.parametrize("score", [1.0, 6.0, 400.0])
def test_every_statistic_is_its_dense_twin(score):
    compare(make(h=3, n=150, score=score))
    compare(make(h=2, n=90, n_k=70, score=score))


def test_more_keys_than_a_block_of_rows_and_a_norm_from_passes():
    """Above 256 keys ‖B‖₂ is a Ritz value whose interval is 1 % wide."""
    compare(make(h=2, n=330), rank=1e-3)


def test_float32_and_half_precision_give_the_numbers_of_what_they_hold():
    for dtype in (torch.float32, torch.bfloat16):
        compare(make(h=2, n=60, dtype=dtype))


def test_a_large_mean_cancels_nothing():
    """Scores of 1e6 that differ by 1: a mean of squares less a squared mean would have no digit left in float32."""
    qkv = make(h=1, n=40)
    moved = QKV(qkv.q, qkv.k + 1e9 * torch.ones(1, 1, 8, dtype=torch.float64) / 8, qkv.v)
    expected = (moved.scale * moved.q[0] @ moved.k[0].T).std(correction=0)
    assert float(input_statistics(moved)["score_std"]) == pytest.approx(float(expected), rel=1e-6)
    shifted = QKV(qkv.q + 1e6, qkv.k, qkv.v)
    centred = qkv.k - qkv.k.mean(1, keepdim=True)
    parts = (qkv.q + 1e6) @ centred[0].T, qkv.q - qkv.q.mean(1, keepdim=True)
    inner = parts[0][0] + (parts[1] @ qkv.k.mean(1)[0])[0][:, None]
    assert float(input_statistics(shifted)["score_std"]) == pytest.approx(
        float(qkv.scale * inner.std(correction=0)), rel=1e-8
    )


def test_padded_tokens_do_not_count_whatever_they_hold():
    qkv = make(h=2, n=50)
    mask = torch.arange(50) % 3 != 0  # the first token is padding
    masked = QKV(qkv.q, qkv.k, qkv.v, mask=mask)
    compare(masked)
    wild = [torch.where(mask[:, None], x, 1e3) for x in (qkv.q, qkv.k, qkv.v)]
    for name, values in input_statistics(QKV(*wild, mask=mask)).items():
        assert torch.equal(values, input_statistics(masked)[name])


def test_edges_have_the_values_that_the_definitions_give():
    one = input_statistics(QKV(*torch.ones(3, 1, 1, 4)))
    assert math.isnan(one["entropy_share"]) and float(one["entropy"]) == 0 and float(one["sink_first"]) == 1
    zero = input_statistics(QKV(*torch.zeros(3, 1, 5, 4)))
    assert math.isnan(zero["q_norm_ratio"]) and math.isnan(zero["v_stable_rank"])
    assert float(zero["stable_rank"]) == pytest.approx(1) and float(zero["entropy_share"]) == pytest.approx(1)
    sharp = QKV(1e3 * torch.eye(6)[None], torch.eye(6)[None], torch.ones(1, 6, 2), scale=1.0)
    actual = input_statistics(sharp)
    assert float(actual["entropy"]) == pytest.approx(0, abs=1e-12) and float(actual["stable_rank"]) == pytest.approx(6)


def test_nothing_of_size_n_by_n_is_made():
    n = 4000
    with Largest() as largest:
        input_statistics(make(h=1, n=n, p=4, p_v=3))
    assert largest.numel <= 32 * 12 * n  # the Krylov basis of ‖B‖₂, of at most twelve passes


def test_a_dense_matrix_is_noticed():
    """The control."""
    with Largest() as largest:
        twin(make(h=1, n=400))
    assert largest.numel == 400 * 400


@pytest.fixture
def file(tmp_path):
    from safetensors.torch import save_file

    qkv = make(h=2, n=24, dtype=torch.float32)
    save_file({name: getattr(qkv, name).contiguous() for name in "qkv"}, tmp_path / "qkv.safetensors")
    return qkv, str(tmp_path / "qkv.safetensors")


def request_of(path, kind=ErrorRequest, **given):

    return kind(**{"qkv": str(path), "device": "cpu", "d": (4,), **given})


def test_a_run_keeps_one_record_a_layer_whatever_the_number_of_its_cells(file, tmp_path):
    qkv, path = file
    run = measure_errors(request_of(path, methods=("nystromformer", "skyformer"), repeats=3, out=str(tmp_path / "run")))
    [record] = read_inputs(run.path).records
    assert record["command"] == "inputs" and record["heads"] == [0, 1] and record["n"] == 24
    for name, values in input_statistics(qkv).items():
        assert [row[name] for row in record["rows"]] == values.tolist()
    assert all(one["command"] == "error" for one in run.outcome.records)


def test_what_is_there_is_not_made_again_and_force_makes_it_again(file, tmp_path, monkeypatch):
    from attnprobe.run import inputs

    _, path = file
    out = str(tmp_path / "run")
    calls = []
    monkeypatch.setattr(inputs, "input_statistics", lambda *of: calls.append(of[0].heads) or input_statistics(*of))
    measure_errors(request_of(path, methods=("vmean",), out=out))
    measure_errors(request_of(path, methods=("vmean", "nystromformer"), out=out))
    assert calls == [(0, 1)] and len((tmp_path / "run" / "inputs.jsonl").read_text().splitlines()) == 3
    measure_spectra(request_of(path, SpectrumRequest, out=out))
    assert len(calls) == 1  # another command of the same layer and heads
    measure_spectra(request_of(path, SpectrumRequest, out=out, head=(1,)))
    assert len(calls) == 1  # done already, so not read
    measure_errors(request_of(path, methods=("vmean",), out=out, force=True))
    assert len(calls) == 2 and len(read_inputs(out).records) == 1


@pytest.mark.parametrize("tol, times", [(1e-3, 1), (1e-2, 2)])
def test_the_norms_of_the_exact_matrix_are_found_once_for_the_statistics_and_all_cells(
    tmp_path, monkeypatch, tol, times
):
    from safetensors.torch import save_file

    from attnprobe.run import inputs

    qkv = make(n=300, dtype=torch.float32)
    save_file({name: getattr(qkv, name).contiguous() for name in "qkv"}, tmp_path / "long.safetensors")
    calls = []

    def doubled(op, **of):
        calls.append(of["tol"])
        return ExactNorms(**{name: 2 * value for name, value in vars(exact_norms(op, **of)).items()})

    monkeypatch.setattr(inputs, "exact_norms", doubled)
    given = {"methods": ("nystromformer",), "repeats": 2, "d": (16, 32), "tol": tol, "out": str(tmp_path / "run")}
    run = measure_errors(request_of(tmp_path / "long.safetensors", **given))
    assert calls == ([1e-3] if times == 1 else [1e-3, tol])
    [record] = read_inputs(run.path).records
    norms = exact_norms(exact(qkv))
    stable_ranks = [row["stable_rank"] for row in record["rows"]]
    assert stable_ranks == ((norms.frobenius / norms.value) ** 2).tolist()
    heads = open_run(run.path).frame().dropna(subset="matrix_spectral")
    expected = heads["matrix_spectral"] / (2 * norms.value.numpy()[heads["head"].astype(int)])
    assert len(heads) and heads["matrix_spectral_relative"].tolist() == pytest.approx(expected.tolist(), rel=2 * tol)


def test_none_are_kept_where_none_are_wanted_and_a_run_does_not_depend_on_them(file, tmp_path, monkeypatch):
    from attnprobe.run import inputs

    _, path = file
    plain = measure_errors(request_of(path, methods=("vmean",), out=str(tmp_path / "no"), input_statistics=False))
    assert read_inputs(plain.path).records == [] and not (plain.path / "inputs.jsonl").exists()

    def broken(*of):
        raise ArithmeticError("no statistics today")

    monkeypatch.setattr(inputs, "input_statistics", broken)
    run = measure_errors(request_of(path, methods=("vmean",), out=str(tmp_path / "run")))
    [record] = read_inputs(run.path).records
    assert record["status"] == "failed" and "no statistics today" in record["reason"]

    def strip(records):
        return [{k: v for k, v in one.items() if k not in ("seconds", "run")} for one in records]

    assert strip(run.outcome.records) == strip(plain.outcome.records)
    assert open_run(run.path).frame("inputs").empty


def test_rows_are_the_heads_of_the_cells(file, tmp_path):
    qkv, path = file
    run = measure_errors(request_of(path, methods=("vmean",), out=str(tmp_path / "run")))
    rows = open_run(run.path).frame("inputs")
    values = input_statistics(qkv)["score_std"].tolist()
    assert rows["head"].tolist() == [0, 1] and rows["score_std"].tolist() == values
    assert {*INPUT_STATISTICS} <= {*rows}
    cells = [cell | {"heads": [1]} for cell in run.outcome.records]
    of_one = inputs_frame(read_inputs(run.path).records, cells, source_labels(cells))
    assert of_one["head"].tolist() == [1]


def test_the_command_shows_them_and_the_report_makes_them_again_to_the_byte(file, tmp_path, capsys):
    from attnprobe.cli import main

    _, path = file
    out = tmp_path / "run"
    with pytest.raises(SystemExit):
        main(["error", "--qkv", path, "--device", "cpu", "--method", "vmean", "--out", str(out), "--format", "json"])
    capsys.readouterr()
    before = {file.name: file.read_bytes() for file in (out / "tables").iterdir()}
    assert {"error-inputs.md", "error-inputs.csv", "error-inputs.json"} <= before.keys()
    with pytest.raises(SystemExit):
        main(["report", str(out)])
    [row] = json.loads((out / "tables/error-inputs.json").read_text())["rows"]
    assert row["heads"] == 2 and row["entropy.median"] > 0
    assert {name: (out / "tables" / name).read_bytes() for name in before} == before
    assert "stable rank" in (out / "tables" / "error-inputs.tex").read_text()
    assert "Q, K and V before any method" in (out / "report.html").read_text()
    (out / "inputs.jsonl").unlink()  # a run of an older version
    with pytest.raises(SystemExit):
        main(["report", str(out)])
    assert "inputs:" not in capsys.readouterr().out
    (out / "inputs.jsonl").write_text('{"schema": 1, "kind": "cell", "lines": 0, "key": "x", "command": "inputs"}\n')
    with pytest.raises(SystemExit) as stop:
        main(["report", str(out)])
    shown = capsys.readouterr()
    assert stop.value.code == 4 and "inputs.jsonl:1: cell x: field status: missing" in shown.err
    assert "inputs:" not in shown.out and "vmean" in (out / "report.html").read_text()
