"""`benchmarks/gpu.py`: it runs on a CPU as on a GPU, and a row or a section that breaks costs no other."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """A module of the folder of benchmarks."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module


@pytest.fixture
def measure(module, tmp_path):
    actual = module("guarded").Measure(torch.device("cpu"), tmp_path / "rows.jsonl")
    actual.begin("some", monotonic() + 60)
    return actual


def run(out: Path, *arguments: str) -> dict:
    """The JSON of a run on the CPU that met its goals."""
    command = [sys.executable, str(FOLDER / "gpu.py"), "--device", "cpu", "--small", "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.with_suffix(".json").read_text())


@pytest.mark.slow
def test_it_writes_floors_agreement_and_reasons(tmp_path):
    actual = run(tmp_path / "gpu.md", "--only", "reference,peaks,spectra")
    rows = {(row["section"], row["name"], row["dtype"], row["n"], row["heads"]): row for row in actual["rows"]}
    double = rows["reference", "attnprobe", "float64", 512, 1]
    peak = rows["peaks", "plain product", "float64", 512, 1]
    assert double["flops"] == 4 * 512**2 * 16
    assert double["floor"] == pytest.approx(double["flops"] * peak["seconds"] / peak["flops"])
    assert 0 <= double["facts"]["difference from a CPU's float64"] < 1e-14
    assert rows["reference", "attnprobe", "float32", 512, 1]["facts"]["difference from a CPU's float64"] > 1e-9
    assert "flex attention" in {row["name"] for row in actual["rows"] if row["absent"]}
    spectrum = rows["spectra", "leading 16 singular values", "float64", 320, 1]
    assert spectrum["flops"] == spectrum["facts"]["passes"] * 320**2 * (2 * 16 + 4 * 16)
    assert actual["conditions"]["device"] == "cpu" and "torch" in actual["conditions"] and actual["broken"] == {}
    page = (tmp_path / "gpu.md").read_text()
    assert "| difference of float64 rows, n=512, 1 heads |" in page and "| met |" in page
    assert page.index("## Peaks") < page.index("## Reference") < page.index("## Spectra")


@pytest.mark.slow
def test_all_sections_run_in_a_minute(module, tmp_path):
    begin = monotonic()
    actual = run(tmp_path / "gpu.md")
    assert monotonic() - begin < 60
    assert {row["section"] for row in actual["rows"]} == set(module("gpu").SHARES) == set(module("gpu").SECTIONS)
    failed = {row["name"]: row["absent"] for row in actual["rows"] if row["absent"]}
    # tri-shape keeps 100 last rows of each text, for which 16 keys are too few
    assert set(failed) == {"SDPA, memory-efficient", "flex attention", "pykeops", "tri-shape d=16"}, failed


def test_a_row_that_fails_says_why_and_the_next_is_measured(module, measure):
    def broken():
        raise ValueError("no such thing")

    def full():
        raise torch.OutOfMemoryError("CUDA out of memory")

    subject = module("guarded").Subject("a", 8)
    assert measure.row(subject, lambda: broken).absent == "ValueError: no such thing"
    assert measure.row(subject, broken).absent == "ValueError: no such thing"
    assert measure.row(subject, lambda: full).absent == "out of memory"
    row = measure.row(subject, lambda: lambda: 3, lambda result: {"result": result})
    assert row.seconds and row.calls == 3 and row.facts == {"result": 3}
    assert [one.absent is None for one in module("guarded").read_rows(measure.path)] == [False, False, False, True]


def test_a_row_that_would_take_too_long_is_not_begun(module, measure):
    subject, begun = module("guarded").Subject, []
    measure.row(subject("a", 8), lambda: lambda: sleep(0.05))

    def once():
        return lambda: begun.append(1)

    far = measure.row(subject("a", 8000), once)  # a million times as long
    assert far.seconds is None and "are left of the section" in far.absent and not begun
    assert measure.row(subject("a", 8000, growth=0.0), once).seconds and begun
    assert measure.row(subject("b", 8000), once).seconds
    measure.begin("some", monotonic())
    assert measure.row(subject("c", 8), once).seconds is None


@pytest.mark.slow
def test_a_first_call_that_compiles_does_not_count(module, measure, monkeypatch):
    guarded, calls = module("guarded"), []
    monkeypatch.setattr(guarded, "ONCE", 0.05)

    def compiles_once(seconds):
        sleep(0.4 if not calls else seconds)
        calls.append(seconds)

    for n, growth in ((8, 2.0), (16, 0.0)):  # of one that is new, and of one that is compiled anew
        calls.clear()
        assert measure.row(guarded.Subject("a", n, growth=growth), lambda: lambda: compiles_once(0.06)).seconds < 0.3
        assert len(calls) == 2
    calls.clear()
    assert measure.row(guarded.Subject("a", 32), lambda: lambda: compiles_once(0.06)).seconds > 0.3  # as expected
    assert len(calls) == 1


def test_a_device_that_takes_no_more_work_ends_the_process(module, measure):
    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(SystemExit) as ended:
        measure.row(module("guarded").Subject("a", 8), lambda: lost)
    assert ended.value.code == module("guarded").BROKEN
    assert "illegal memory access" in module("guarded").read_rows(measure.path)[0].absent


SCRIPT = """
import sys, time, torch
from pathlib import Path
sys.path.insert(0, {folder!r})
from guarded import Measure, Subject, mark
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
measure = Measure(torch.device("cpu"), Path(arguments["--rows"]))
for name in arguments["--sections"].split(","):
    deadline = time.monotonic() + (1 if name == "hang" else 60)
    mark(measure.path, name, deadline)
    measure.begin(name, deadline)
    measure.row(Subject(name, 8), lambda: lambda: None)
    if name == "crash":
        sys.exit(3)
    if name == "hang":
        time.sleep(600)
"""


@pytest.mark.slow
def test_a_section_that_breaks_or_hangs_costs_no_other(module, monkeypatch, tmp_path):
    guarded, script = module("guarded"), tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(FOLDER)))
    monkeypatch.setattr(guarded, "GRACE", 1.0)
    path, shown = tmp_path / "rows.jsonl", []
    broken = guarded.run_sections([str(script)], ["a", "crash", "b", "hang", "c"], path, shown.append)
    assert broken == {"crash": "its process ended with 3", "hang": "took too long and was ended"}
    assert [row.section for row in guarded.read_rows(path)] == ["a", "crash", "b", "hang", "c"]
    assert len(shown) > 1 and len(shown[0]) < 5


def test_rows_that_were_cut_are_left_out(module, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"section": "a", "name": "b", "n": 1, "heads": 1, "p": 1, "dtype": "float64"}\n{"section": "c"')
    assert [row.name for row in module("guarded").read_rows(path)] == ["b"]


def test_goals_of_a_gpu_that_were_not_measured_are_missed(module):
    gpu, row = module("gpu"), module("guarded").Row
    fast = row("reference", "attnprobe", 131072, 1, 128, "float64", seconds=0.3)
    one = row("pass", "EᵀE pass", 131072, 1, 128, "float64", seconds=2.0, facts={"forward": 1.0})
    missed = {goal.name: goal.missed for goal in gpu.goals([fast, one], "cuda")}
    assert not missed["seconds of B V in float64, n=131072"] and missed["seconds of B V in float64, n=1048576"]
    assert not missed["forwards of an EᵀE pass in float64, n=131072"]
    assert missed["forwards of an EᵀE pass in float32, n=131072"]
    assert gpu.goals([fast, one], "cpu") == []
