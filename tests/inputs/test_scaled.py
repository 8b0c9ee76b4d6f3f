"""`--scale-inputs`: scores times s, equal to Q and K scaled by hand, in hashes, rows, gates, tables and sweeps."""

import json

import pytest
import torch
from inputs import make
from safetensors.torch import save_file
from thinned import others_slow

from attnprobe import QKV, exact
from attnprobe.cli import main
from attnprobe.errors import UsageError
from attnprobe.inputs import SourceSpec, resolve, scaled, scaled_inputs
from attnprobe.judge.gates import check
from attnprobe.judge.parse import impossible_reason, parse_gates
from attnprobe.measure import experiment
from attnprobe.measure.condition import ConditionRequest, measure_conditions
from attnprobe.measure.error import EXPERIMENT, ErrorRequest, measure_errors
from attnprobe.measure.spectrum import SpectrumRequest, measure_spectra
from attnprobe.measure.theory import TheoryRequest, measure_theory
from attnprobe.run.estimate import estimate_cells
from attnprobe.show.page import open_run, views

KINDS = {
    "error": (ErrorRequest, measure_errors, {"methods": ("nystromformer,skyformer,linear",)}),
    "spectrum": (SpectrumRequest, measure_spectra, {"of": ("softmax,gaussian,skyformer",)}),
    "condition": (ConditionRequest, measure_conditions, {}),
    "theory": (TheoryRequest, measure_theory, {"theorems": ("skyformer-lemma-1", "eckart-young"), "repeats": 2}),
}


@pytest.fixture
def tensors():
    qkv = make(h=2, n=24, dtype=torch.float32)
    return {name: getattr(qkv, name).contiguous() for name in "qkv"}


@pytest.fixture
def file(tensors, tmp_path):
    save_file(tensors, tmp_path / "qkv.safetensors")
    return str(tmp_path / "qkv.safetensors")


def run_of(command, path, out, **given):
    kind, measure, extra = KINDS[command]
    return measure(kind(qkv=path, device="cpu", d=(4,), out=str(out), **extra, **given))


def measured(record):
    """A record without what names its source, its run and its time."""
    return {name: value for name, value in record.items() if name not in ("key", "run", "source", "seconds")}


def command_line(*words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_scores_and_both_exact_matrices_are_their_powers(factor):
    qkv = make(h=2, n=12)
    other = scaled(qkv, factor)
    assert other.scale == qkv.scale and torch.equal(other.v, qkv.v) and other.label["scale_inputs"] == factor
    scores = qkv.scale * qkv.q @ qkv.k.mT
    assert torch.allclose(other.scale * other.q @ other.k.mT, factor * scores, rtol=1e-13, atol=1e-14)
    assert torch.allclose(exact(other).dense(), torch.softmax(factor * scores, -1), rtol=1e-12)
    c = exact(qkv, "gaussian").dense()
    assert torch.allclose(exact(other, "gaussian").dense(), c**factor, rtol=1e-11)


def test_a_mask_and_head_numbers_stay():
    qkv = QKV(*torch.ones(3, 2, 5, 4), mask=torch.arange(5) < 3, heads=(4, 7))
    other = scaled(qkv, 2.0)
    assert torch.equal(other.mask, qkv.mask) and other.heads == (4, 7)


@pytest.mark.parametrize("factor", [0, -1.0, float("inf"), float("nan")])
def test_a_factor_that_is_none_is_refused(factor):
    with pytest.raises(UsageError, match="scale-inputs|factor=nan"):
        scaled(QKV(*torch.ones(3, 1, 2, 4)), factor)


def test_an_overflow_of_the_dtype_is_named():
    with pytest.raises(UsageError, match="scale-inputs=1e\\+12: q: the value at head 0"):
        scaled(QKV(*torch.ones(3, 1, 2, 4, dtype=torch.float16)), 1e12)


def test_what_a_source_refuses_it_refuses_with_a_factor_too(file):
    [other] = scaled_inputs(resolve(SourceSpec(qkv=str(file), device="cpu")), [4.0])
    for n, windows, layers in ((10**6, 1, [0]), (8, 10**6, [0]), (8, 1, [99])):
        with pytest.raises(UsageError):
            other.check(n, windows, layers)


def test_the_factor_one_is_the_source_itself(file):
    source = resolve(SourceSpec(qkv=file, device="cpu"))
    one, two = scaled_inputs(source, [1.0, 2.0])
    assert one is source and two.facts == {**source.facts, "scale_inputs": 2.0}
    *shared, last = two.describe()
    assert shared == source.describe() and last == "scores x 2: Q and K each times 1.41421 (--scale-inputs)"
    assert (two.available, two.head_numbers, two.default_n) == (source.available, source.head_numbers, source.default_n)


@pytest.mark.parametrize("command", KINDS)
def test_a_command_measures_what_it_measures_of_tensors_scaled_by_hand(command, tensors, file, tmp_path):
    by_hand = {name: x if name == "v" else x * 3.0**0.5 for name, x in tensors.items()}
    save_file(by_hand, tmp_path / "by-hand.safetensors")
    ours = run_of(command, file, tmp_path / "a", scale_inputs=(1, 3))
    other = run_of(command, str(tmp_path / "by-hand.safetensors"), tmp_path / "b")
    scaled_records = [one for one in ours.outcome.records if one["source"].get("scale_inputs") == 3]
    assert len(scaled_records) * 2 == len(ours.outcome.records) and scaled_records
    assert list(map(measured, scaled_records)) == list(map(measured, other.outcome.records))
    plain = [one for one in ours.outcome.records if "scale_inputs" not in one["source"]]
    assert list(map(measured, plain)) != list(map(measured, scaled_records))


@pytest.mark.parametrize("command", KINDS)
def test_the_default_changes_no_key_and_old_runs_go_on(command, file, tmp_path):
    alone = run_of(command, file, tmp_path / "run")
    both = run_of(command, file, tmp_path / "run", scale_inputs=(0.5, 1))
    assert both.outcome.done_before == len(alone.outcome.records) == both.outcome.measured
    keys = [one["key"] for one in both.outcome.records]
    assert len(set(keys)) == len(keys) and {one["key"] for one in alone.outcome.records} < set(keys)
    assert all("scale_inputs" not in one["source"] for one in alone.outcome.records)
    again = run_of(command, file, tmp_path / "run", scale_inputs=(0.5, 1))
    assert again.outcome.measured == 0
    inputs = open_run(tmp_path / "run").inputs
    assert len(inputs) == 2 and {one["source"].get("scale_inputs") for one in inputs} == {None, 0.5}


def test_factors_are_never_averaged_together(file, tmp_path):
    run = run_of("error", file, tmp_path / "run", scale_inputs=(4, 1, 0.5, 4))
    [view] = views(open_run(run.path))
    mine = [row for row in view.gate_lines if row["method"] == "nystromformer"]
    assert [row["scale_inputs"] for row in mine] == [0.5, 1, 4] and {row["windows"] for row in mine} == {1}
    assert [row["values"] for row in mine] == [2, 2, 2]
    assert len({row["source"] for row in mine}) == 3 and mine[1]["source"].endswith("scores x 1")
    run_of("spectrum", file, tmp_path / "spectrum", scale_inputs=(1, 4))
    [shown] = views(open_run(tmp_path / "spectrum"))
    ranks = [grid for grid in shown.tables if grid.table.name == "ranks"]
    assert [grid.place["scale_inputs"] for grid in ranks] == [1.0, 4.0]


def test_one_factor_alone_is_named(file, tmp_path, capsys):
    words = ("error", "--qkv", file, "--device", "cpu", "--d", "4", "--method", "nystromformer", "--format", "md")
    assert command_line(*words, "--scale-inputs", "2", "--out", tmp_path / "two") == 0
    assert "scale_inputs 2" in capsys.readouterr().out.replace("\\", "")
    assert command_line(*words, "--out", tmp_path / "one") == 0
    assert "scale_inputs" not in capsys.readouterr().out.replace("\\", "")


def test_a_failure_under_a_large_factor_is_that_cells_alone(file, tmp_path, monkeypatch):
    """Scores that no exponential holds: a method that raises there fails there, and the others stand."""
    from attnprobe.measure.error import measure as loop

    original = loop.approximate

    def breaks(name, qkv, *rest, **options):
        if name.name == "linear" and float(qkv.q.abs().max()) > 1e3:
            raise ArithmeticError("too large")
        return original(name, qkv, *rest, **options)

    monkeypatch.setattr(loop, "approximate", breaks)
    run = run_of("error", file, tmp_path / "run", scale_inputs=(1, 1e8))
    status = {(one["method"], one["source"].get("scale_inputs")): one["status"] for one in run.outcome.records}
    assert status["linear", 1e8] == "failed" and status["linear", None] == "ok"
    assert status["nystromformer", None] == status["vmean", 1e8] == "ok"


def test_gates_narrow_by_factor():
    rows = [
        {
            "method": "x",
            "status": "ok",
            "values": 1,
            "scale_inputs": s,
            "requested": True,
            "reference": False,
            "bad_rows.max": v,
            "bad_rows.count": 1,
        }
        for s, v in ((1, 0.0), (4.0, 7.0))
    ]
    gates = parse_gates(
        [{"metric": "bad_rows", "stat": "max", "max": 0, "scale_inputs": s} for s in (1, [1, 4], 2)], EXPERIMENT.gated
    )
    actual = check(rows, gates)
    expected = [((1,), True), ((1, 4), True), ((1, 4), False), ((2,), False)]
    assert [(one.gate.scale_inputs, one.passed) for one in actual] == expected
    assert "no row with scale_inputs=2; the rows have 1,4" in actual[-1].message
    assert (
        impossible_reason(gates[2], {"scale_inputs": (1.0, 4.0)}, {})
        == "scale_inputs=2 is not measured; scale_inputs is 1,4"
    )
    assert impossible_reason(gates[1], {"scale_inputs": (1.0, 4.0)}, {}) is None
    with pytest.raises(UsageError, match="expected a number or a list"):
        parse_gates([{"metric": "bad_rows", "max": 0, "scale_inputs": "four"}], EXPERIMENT.gated)


@pytest.mark.parametrize("key", others_slow(["scale-inputs", "scale_inputs"], lambda key: key[0] == "scale-inputs"))
def test_a_sweeps_file_has_them_as_an_axis(key, file, tmp_path, capsys):
    config = tmp_path / "s.yaml"
    config.write_text(f"qkv: {file}\ndevice: cpu\nmethod: nystromformer\nd: 4\n{key}: [1, 4]\nformat: json\n")
    assert command_line("sweep", config, "--dry-run", "--out", tmp_path / "run") == 0
    assert "file, scores x 4" in capsys.readouterr().out
    assert command_line("sweep", config, "--out", tmp_path / "run") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["scale_inputs"] for row in rows if row["method"] == "nystromformer"] == [1, 4]
    config.write_text(config.read_text().replace("[1, 4]", "[1, zero]"))
    assert command_line("sweep", config) == 2
    assert f"s.yaml:5: {key}: 'zero' is not a number above 0" in capsys.readouterr().err


def test_a_dry_run_lists_what_is_measured(file, tmp_path):
    request = ErrorRequest(qkv=file, device="cpu", d=(4,), scale_inputs=(1, 2))
    expected = {"file", "file, scores x 2"}
    assert {cell.place[0] for cell in estimate_cells(experiment("error").cells, request)} == expected


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1,,2", "inf"])
def test_a_list_that_is_none_is_refused_by_name(text, file, capsys):
    assert command_line("error", "--qkv", file, "--scale-inputs", text) == 2
    assert "scale-inputs: '" in capsys.readouterr().err
