"""inject, stability and bench in several processes and in shards: the records of one process."""

import json

import pytest
from cells import bits
from sources_helpers import text_of

from attnprobe.errors import UsageError
from attnprobe.frame.records.read import read_inputs, read_records
from attnprobe.measure.bench import BenchRequest, measure_bench
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.measure.inject import InjectRequest, measure_drift
from attnprobe.measure.stability import StabilityRequest, measure_stability
from attnprobe.run.where.sites import site_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def measured(tiny_bert, tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "words.txt"
    text.write_text(text_of(300))
    model = {"model": tiny_bert, "text": str(text), "device": "cpu"}
    given = {
        "inject": model | {"n": (12,), "d": (4,), "per_layer": True, "layer": (0, 1), "windows": 3, "batch": 2},
        "stability": {"text": str(text), "device": "cpu", "tasks": ("listops:n=48,batch=2",), "steps": 2, "seeds": 2}
        | {"methods": ("skyformer,performer",), "d": (8,), "condition_tokens": 16},
    }
    run = {"inject": (measure_drift, InjectRequest), "stability": (measure_stability, StabilityRequest)}

    def call(command, out, notify=lambda line: None, **rest):
        measure, request = run[command]
        return measure(request(out=str(out), **given[command], **rest), notify=notify)

    return call


@pytest.fixture(scope="module")
def alone(measured, tmp_path_factory):
    """What one process makes of each command, and what it says."""
    actual = {}

    def made(command):
        if command not in actual:
            lines = []
            actual[command] = measured(command, tmp_path_factory.mktemp(command) / "r", lines.append), lines
        return actual[command]

    return made


@pytest.mark.parametrize(
    "command", [pytest.param("inject", marks=pytest.mark.slow), pytest.param("stability", marks=pytest.mark.slow)]
)
def test_processes_make_the_records_of_one(command, measured, alone, tmp_path):
    lines = []
    run, (expected, notes) = measured(command, tmp_path / "r", lines.append, jobs=2), alone(command)
    assert [one["key"] for one in run.outcome.records] == [one["key"] for one in expected.outcome.records]
    assert bits(read_records(run.path)) == bits(read_records(expected.path)) == bits(run.outcome.records)
    assert bits(read_inputs(run.path).records) == bits(read_inputs(expected.path).records)
    assert lines == notes  # the notes of processes are printed once
    assert json.loads((run.path / "manifest.json").read_text())["processes"]


@pytest.mark.parametrize("command", ["inject", "stability"])
def test_shards_make_the_records_of_one_run(command, measured, alone, tmp_path):
    parts = [measured(command, tmp_path / "r", shard=shard).outcome.records for shard in ("1/2", "2/2")]
    assert all(parts) and not bits(parts[0]).keys() & bits(parts[1]).keys()
    assert bits(read_records(tmp_path / "r")) == bits(alone(command)[0].outcome.records)
    assert bits(read_inputs(tmp_path / "r").records) == bits(read_inputs(alone(command)[0].path).records)


@pytest.mark.slow
def test_a_bench_has_one_process_on_a_device(tmp_path):
    calls = tmp_path / "calls"
    (tmp_path / "mine.py").write_text(f"""import os, time


def mine(q, k, v):
    with open({str(calls)!r}, "a") as file:
        file.write(f"{{os.getpid()}} {{time.monotonic()}} ")
        time.sleep(0.001)
        file.write(f"{{time.monotonic()}}\\n")
    return v
""")
    lines, methods = [], (f"{tmp_path}/mine.py:mine",)
    given = {"device": "cpu", "n": (32, 64), "methods": methods, "rounds": 2, "memory": False}
    run = measure_bench(BenchRequest(out=str(tmp_path / "r"), jobs=3, **given), notify=lines.append)
    assert lines == ["jobs=3: one process at a time measures on each device, 1 in all"]
    assert {record["status"] for record in run.outcome.records} == {"ok"}
    assert len({line.split()[0] for line in calls.read_text().splitlines()}) == 1
    [process] = json.loads((run.path / "manifest.json").read_text())["processes"]
    threads = run.outcome.records[0]["threads"]
    assert process["threads"] == threads  # all of them, as in one process
    again = measure_bench(BenchRequest(out=str(tmp_path / "r"), **given))
    assert again.outcome.measured == 0  # the same cells


@pytest.mark.slow
def test_peak_memory_is_measured_in_a_process_of_its_own_there_too(tmp_path):
    given = {"device": "cpu", "n": (32,), "d": (4,), "methods": ("linear",), "rounds": 1}
    run = measure_bench(BenchRequest(out=str(tmp_path / "r"), jobs=2, **given))
    assert [record["reason"] for record in run.outcome.records] == [None] * len(run.outcome.records)


def test_a_bench_of_several_devices_has_a_process_for_each_where_it_is_asked_to(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)

    def site(**rest):
        with site_of(BenchRequest(device="cuda", **rest), print, exclusive=True) as actual:
            return actual

    assert site().alone and site(jobs=1).alone
    assert [site(jobs=jobs).backend.size for jobs in (2, 8)] == [2, 3]
    assert (site(jobs=2).devices, site(jobs=8).threads) == (("cuda:0", "cuda:1", "cuda:2"), 8)
    with pytest.raises(UsageError, match="times belong to one machine"):
        site(backend="ray:local")


def test_shards_of_a_bench_are_its_lengths(tmp_path):
    given = {"device": "cpu", "n": (16, 32), "d": (4,), "methods": ("linear",), "memory": False}
    parts = [
        measure_bench(BenchRequest(out=str(tmp_path / "r"), rounds=1, shard=shard, **given)).outcome.records
        for shard in ("1/2", "2/2")
    ]
    assert [{record["n"] for record in part} for part in parts] == [{32}, {16}]
    whole = measure_bench(BenchRequest(out=str(tmp_path / "r"), rounds=1, **given))
    assert whole.outcome.measured == 0 and len(whole.outcome.records) == sum(map(len, parts))


@pytest.fixture
def deaf(tmp_path):
    path = tmp_path / "deaf.py"
    path.write_text("""import time


def deaf(q, k, v):
    while True:
        try:
            time.sleep(0.05)
        except BaseException:
            pass
""")
    return f"{path}:deaf"


@pytest.mark.slow
def test_a_method_that_nothing_ends_fails_in_its_process_and_the_others_go_on(deaf, two_layers, tmp_path):
    given = {"qkv": str(two_layers), "device": "cpu", "n": (40,), "d": (4,), "layer": (0, 2)}
    request = ErrorRequest(out=str(tmp_path / "r"), methods=(deaf, "skyformer"), cell_timeout=1.0, jobs=2, **given)
    run = measure_errors(request)
    reasons = {record["method"]: record["reason"] for record in run.outcome.records if record["status"] == "failed"}
    assert reasons == {"deaf.py:deaf": "timeout: took longer than --cell-timeout 1, and its process was ended"}
    others = measure_errors(ErrorRequest(out=str(tmp_path / "s"), methods=("skyformer",), **given)).outcome.records
    assert bits(others).items() <= bits(run.outcome.records).items()
