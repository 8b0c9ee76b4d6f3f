"""Matrix errors in a run: batches that share passes, records, and runs that go on."""

import dataclasses
import functools
import shutil

import pytest
import torch
from error_rows import in_lists, known, lines_of_cells
from safetensors.torch import load_file, save_file
from thinned import others_slow

from attnprobe import exact, matrix_errors
from attnprobe.errors import Unsupported
from attnprobe.frame.records.file import LOWER_BOUND, identity_facts
from attnprobe.inputs import SourceSpec
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.measure.error import measure as run_file
from attnprobe.methods import METHODS, approximate
from attnprobe.metrics import MATRIX_METRICS
from attnprobe.operators import Dense, Operator
from attnprobe.qkv import QKV
from attnprobe.run import plan as plan_file
from attnprobe.run.plan import ErrorPlan, parse_methods

N = 264  # more keys than are held dense: the passes are streamed


@pytest.fixture
def source(tmp_path):
    q, k, v = torch.randn(3, 2, N, 4, generator=torch.Generator().manual_seed(1))
    save_file({"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous()}, tmp_path / "qkv.safetensors")
    return {"qkv": str(tmp_path / "qkv.safetensors"), "device": "cpu"}


def measured(source, tmp_path, name="r", **rest):
    request = ErrorRequest(**source, out=str(tmp_path / name), **{"d": (8,), **rest})
    labels = []
    outcome = measure_errors(request, progress=lambda done, total, label: labels.append((done, total, label))).outcome
    return {cell["key"]: in_lists(cell) for cell in outcome.records}, outcome, labels


def of(records, method, d=8):
    (actual,) = [record for record in records.values() if record["method"] == method and record["d"] in (d, None)]
    return actual


def without_time(records):
    return known({key: {**record, "seconds": None} for key, record in records.items()})


def replaced(monkeypatch, name, change):
    """A method in place of ``name``, which gets its function first and keeps its signature."""
    function = METHODS[name].function
    other = functools.wraps(function)(lambda qkv, d, **rest: change(function, qkv, d, **rest))
    monkeypatch.setitem(METHODS, name, dataclasses.replace(METHODS[name], function=other))


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_records_hold_the_numbers_of_matrix_errors(source, tmp_path, dtype, target):
    spec = {**source, "dtype": dtype}
    records, _, _ = measured(spec, tmp_path, methods=("skyformer",), target=target)
    tensors = load_file(source["qkv"])
    qkv = QKV(*(tensors[name].to(getattr(torch, dtype)) for name in "qkv"))
    for name in ("skyformer", "vmean"):
        record = of(records, name)
        expected = matrix_errors(exact(qkv, target), approximate(name, qkv, 8, target=target, seed=0).operator)
        for metric, value in expected.items():
            metric = "matrix_passes" if metric == "matrix_spectral_passes" else metric
            assert record["metrics"][metric] == pytest.approx(value.tolist(), rel=1e-5), metric
        assert set(record["matrix_kind"]) <= {"A", "B", "apriori", "frobenius"} and len(record["matrix_kind"]) == 2
        assert record["matrix_tol"] == 1e-3 and record["matrix_open"] == [False, False]
    bound = next(record for record in records.values() if record["method"] == LOWER_BOUND)
    assert not any(name.startswith("matrix") for name in (*bound, *bound["metrics"]))


def test_a_half_precision_run_measures_b_of_its_own_q_and_k(source, tmp_path):
    """B of the rounded Q and K, made in float32: the identical matrix as operator has no error beyond float32's."""
    records, _, _ = measured({**source, "dtype": "bfloat16"}, tmp_path, methods=("softmax",))
    assert max(of(records, "softmax")["metrics"]["matrix_spectral_relative"]) < 1e-6


def test_no_matrix_leaves_the_other_numbers_and_the_lower_bound_as_they_are(source, tmp_path):
    with_, _, _ = measured(source, tmp_path, "a")
    without, _, labels = measured(source, tmp_path, "b", matrix=False)
    assert not any("matrix" in name for record in without.values() for name in (*record, *record["metrics"]))
    assert not any("matrix" in label for _, _, label in labels)
    for name in ("skyformer", "vmean"):
        one, other = of(with_, name), of(without, name)
        assert one["key"] != other["key"] and one["draws_hash"] == other["draws_hash"]
        assert {metric: one["metrics"][metric] for metric in other["metrics"]} == other["metrics"]
    assert of(with_, LOWER_BOUND) == of(without, LOWER_BOUND)
    assert (
        of(without, "skyformer")["key"]
        == ErrorPlan(tuple(parse_methods(["skyformer"], "softmax")), (N,), (8,), (0,), None)
        .cells(plan_file.Group(N, 0), 0, facts_of(source))[-1]
        .key
    )


def facts_of(source):
    from attnprobe.inputs import resolve

    return identity_facts(resolve(SourceSpec(**source)).facts)


def test_the_tolerance_is_part_of_what_a_cell_is(source, tmp_path):
    sharp, _, _ = measured(source, tmp_path, "a", tol=1e-6)
    rough, _, _ = measured(source, tmp_path, "b", tol=0.5)
    one, other = of(sharp, "skyformer"), of(rough, "skyformer")
    assert one["key"] != other["key"] and (one["matrix_tol"], other["matrix_tol"]) == (1e-6, 0.5)
    assert sum(one["metrics"]["matrix_passes"]) > sum(other["metrics"]["matrix_passes"])
    for record in (one, other):
        metrics, tol = record["metrics"], record["matrix_tol"]
        ends = zip(metrics["matrix_spectral_lower"], metrics["matrix_spectral_upper"], strict=True)
        assert [upper > (1 + tol) * lower for lower, upper in ends] == record["matrix_open"]
    assert any(one["matrix_open"]) and not any(other["matrix_open"])  # float32 resolves no 1e-6


MANY = {"methods": ("skyformer,nystromformer,performer,window",), "d": (8, 16), "repeats": 2}


@pytest.mark.parametrize("kept", others_slow([0, 1, 3, 4, 6, 9], lambda kept: kept[0] in (3, 4)))
def test_a_run_that_goes_on_has_the_numbers_of_one_without_interruption(source, tmp_path, monkeypatch, kept):
    """Killed after each of these records: at the end of a batch of four and in its midst."""
    monkeypatch.setattr(plan_file, "MOST_SHARED", 4)
    whole, _, _ = measured(source, tmp_path, "whole", **MANY)
    path = tmp_path / "r/rows.jsonl"
    path.parent.mkdir()
    lines = lines_of_cells(tmp_path / "whole/rows.jsonl")
    torn = lines[kept][:50] if kept < len(lines) else b""
    path.write_bytes(b"".join(lines[:kept]) + torn)
    shutil.copy(tmp_path / "whole/manifest.json", path.parent)  # without it the folder is not a run's
    again, outcome, _ = measured(source, tmp_path, **MANY)
    assert outcome.measured == len(lines) - kept and outcome.done_before == kept
    assert without_time(again) == without_time(whole)
    assert len(lines_of_cells(path)) == len(lines)


def test_an_interruption_keeps_the_batches_that_are_done(source, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_file, "MOST_SHARED", 4)
    whole, _, _ = measured(source, tmp_path, "whole", **MANY)
    calls, share = [], run_file.shared_matrix_errors

    def interrupted(*args, **rest):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return share(*args, **rest)

    monkeypatch.setattr(run_file, "shared_matrix_errors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(source, tmp_path, **MANY)
    assert len(lines_of_cells(tmp_path / "r/rows.jsonl")) == 2 + 2 * 4  # bounds, two batches
    again, outcome, _ = measured(source, tmp_path, **MANY)
    assert outcome.done_before == 10 and without_time(again) == without_time(whole)
    sizes = [len(args[1]) for args in calls]
    assert sizes == [4, 4, 4, 4, 1]  # the third one again; nothing of the first two


def test_batches_follow_from_the_plan_and_are_bounded(monkeypatch):
    plan = ErrorPlan(tuple(parse_methods(["skyformer,linear"], "softmax")), (100,), (10, 20), (0,), None, tol=1e-3)
    qkv = QKV(*torch.zeros(3, 2, 100, 5))
    cells = plan.cells(plan_file.Group(100, 0), 0, {})

    def shape():
        return [[(cell.request.name, cell.d) for cell in batch] for batch in plan.batches(cells, qkv)]

    bounds = [[(LOWER_BOUND, 10)], [(LOWER_BOUND, 20)]]
    vmean, ten, twenty, linear = ("vmean", None), ("skyformer", 10), ("skyformer", 20), ("linear", None)
    assert shape() == [*bounds, [vmean, ten, twenty, linear]]
    monkeypatch.setattr(plan_file, "MOST_SHARED", 3)
    assert shape() == [*bounds, [vmean, ten, twenty], [linear]]
    monkeypatch.setattr(plan_file, "HELD", 2 * 4 * (5 * 205 + 10 * 210))
    assert shape() == [*bounds, [vmean, ten], [twenty], [linear]]
    assert all(len(batch) == 1 for batch in dataclasses.replace(plan, tol=None).batches(cells, qkv))


class Raises(Operator):
    """An operator whose rows cannot be made."""

    def __init__(self, shape):
        self.shape, self.dtype, self.device = shape, torch.float32, torch.device("cpu")

    def heads(self, some):
        return Raises((len(range(self.shape[0])[some]), *self.shape[1:]))

    def to(self, dtype):
        return self

    def _rows(self, start, stop):
        raise MemoryError("no room")

    _apply = _apply_transpose = lambda self, x: self._rows(0, 1)


def test_what_goes_wrong_in_one_cell_harms_no_other(source, tmp_path, monkeypatch):
    methods = ("skyformer,performer,nystromformer,linear,window,efficient",)
    good, _, _ = measured(source, tmp_path, "good", methods=("skyformer,window",))

    def raising(function, qkv, d, **rest):
        raise RuntimeError("no such luck")

    def skipping(function, qkv, d, **rest):
        raise Unsupported("not today")

    def broken(function, qkv, d, **rest):
        actual = function(qkv, d, **rest)
        matrix = actual.operator.dense()
        matrix[1, 5, 5] = float("nan")
        return dataclasses.replace(actual, operator=Dense(matrix), output=matrix @ qkv.v)

    def unreadable(function, qkv, d, **rest):
        actual = function(qkv, d, **rest)
        return dataclasses.replace(actual, operator=Raises(tuple(actual.operator.shape)))

    replaced(monkeypatch, "performer", raising)
    replaced(monkeypatch, "linear", skipping)
    replaced(monkeypatch, "nystromformer", broken)
    records, _, _ = measured(source, tmp_path, "a", methods=methods)
    names = ("skyformer", "performer", "nystromformer", "linear", "window")
    assert [of(records, name)["status"] for name in names] == ["ok", "failed", "diverged", "skipped", "ok"]
    replaced(monkeypatch, "efficient", unreadable)
    worse, _, _ = measured(source, tmp_path, "b", methods=methods)
    assert of(worse, "efficient")["status"] == "failed"
    assert of(worse, "efficient")["reason"] == "matrix errors: MemoryError: no room"
    assert of(worse, "efficient")["metrics"].items() <= of(records, "efficient")["metrics"].items()
    for actual in (records, worse):
        for name in ("skyformer", "window", "vmean"):
            for metric in MATRIX_METRICS:
                expected = of(good, name)["metrics"][metric]
                assert of(actual, name)["metrics"][metric] == pytest.approx(expected, rel=1e-5), (name, metric)
        half = of(actual, "nystromformer")["metrics"]["matrix_spectral"]
        assert half[0] > 0 and half[1] is None
        for name in ("performer", "linear"):
            assert of(actual, name)["metrics"] == {} and "matrix_open" not in of(actual, name)


def test_an_approximation_without_an_operator_has_no_matrix_errors(source, tmp_path, monkeypatch):
    def bare(function, qkv, d, **rest):
        return dataclasses.replace(function(qkv, d, **rest), operator=None)

    replaced(monkeypatch, "linear", bare)
    records, _, _ = measured(source, tmp_path, methods=("linear,skyformer",))
    assert of(records, "linear")["status"] == "ok" and "output_spectral" in of(records, "linear")["metrics"]
    assert "matrix_spectral" not in of(records, "linear")["metrics"]
    assert "matrix_spectral" in of(records, "skyformer")["metrics"]


def test_padding_takes_no_part(source, tmp_path):
    tensors = load_file(source["qkv"])
    mask = torch.ones(N, dtype=torch.bool)
    mask[-4:] = False
    save_file({**tensors, "mask": mask}, tmp_path / "masked.safetensors")
    save_file({name: x[:, :-4].contiguous() for name, x in tensors.items()}, tmp_path / "short.safetensors")
    masked, short = (
        of(measured({"qkv": str(tmp_path / f"{name}.safetensors"), "device": "cpu"}, tmp_path, name)[0], "vmean")
        for name in ("masked", "short")
    )
    for metric in MATRIX_METRICS:
        assert masked["metrics"][metric] == pytest.approx(short["metrics"][metric], rel=1e-5), metric


def test_progress_shows_the_passes_and_never_runs_backwards(source, tmp_path):
    _, outcome, labels = measured(source, tmp_path)
    passes = [label for _, _, label in labels if "pass" in label]
    assert "n=264 layer 0 matrix errors of 2 cells, heads 0-1 of 2, pass 1" in passes
    assert any(label.endswith("pass 2") for label in passes)
    counts = [done for done, _, _ in labels]
    assert counts == sorted(counts) and counts[-1] == len(outcome.records) == labels[-1][1]
