"""``attnprobe sweep``: precedence, resuming, what fails, what a dry run shows."""

import json
import shutil
from dataclasses import replace
from functools import wraps
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from paths import ROOT

from attnprobe.cli.sweep import settings_of
from attnprobe.errors import UsageError
from attnprobe.frame.records.append import RecordWriter
from attnprobe.frame.records.read import read_records
from attnprobe.measure import experiment
from attnprobe.measure.budget import BudgetRequest
from attnprobe.measure.budget.bisect import coarse_budgets
from attnprobe.measure.condition import ConditionRequest
from attnprobe.measure.error import ErrorRequest
from attnprobe.measure.theory import TheoryRequest
from attnprobe.methods import METHODS
from attnprobe.operators.blocks import BLOCK_MEMORY
from attnprobe.run.costs import EXACT, OVERHEAD
from attnprobe.run.estimate import estimate_cells
from attnprobe.run.sweeps.yaml_file import read_config

CONFIGS = ROOT / "configs"
CONFIG = """
qkv: qkv.safetensors
method: [nystromformer, performer]
n: [64, 96]
d: [8, 16]
"""
FEW = ("--n", "64", "--d", "8")  # of its cells, where a test needs no more


@pytest.fixture
def config(tmp_path, qkv):
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path / "c.yaml"


def records_of(folder):
    """By key, without what an uninterrupted run would have otherwise: times, and the name of its folder."""
    return {one["key"]: {**one, "seconds": None, "run": None} for one in read_records(folder)}


def with_function(monkeypatch, name, function):
    """Another function in a method's place, with the options of its signature."""
    monkeypatch.setitem(METHODS, name, replace(METHODS[name], function=wraps(METHODS[name].function)(function)))


def test_the_same_sweep_finds_its_folder_and_measures_nothing_again(run, config):
    code, out, err = run("sweep", config, "--n", "64")
    assert code == 0 and "nystromformer" in out, err
    [folder] = Path("outputs").iterdir()
    assert folder.name.startswith("c-")
    before = (folder / "rows.jsonl").read_bytes()
    assert run("sweep", config, "--n", "64")[0] == 0 and [folder] == list(Path("outputs").iterdir())
    assert (folder / "rows.jsonl").read_bytes() == before
    assert run("sweep", config, *FEW)[0] == 0 and len(list(Path("outputs").iterdir())) == 2


def test_command_line_beats_environment_beats_file_beats_default(run, config, monkeypatch):
    monkeypatch.setenv("ATTNPROBE_D", "4")
    monkeypatch.setenv("ATTNPROBE_N", "32")
    monkeypatch.setenv("ATTNPROBE_SEED", "7")
    code, _, err = run("sweep", config, "--n", "48", "--out", "r")
    assert code == 0, err
    actual = json.loads(Path("r/manifest.json").read_text())
    values = {name: (one["value"], one["origin"]) for name, one in actual["config"].items()}
    assert values["n"] == ([48], "command line") and values["d"] == ([4], "environment")
    assert values["seed"] == (7, "environment") and values["windows"] == (1, "default")
    assert values["methods"] == (["nystromformer", "performer"], "file")
    assert {one["n"] for one in read_records("r")} == {48} and {one["d"] for one in read_records("r")} == {4, None}


def test_a_dry_run_shows_the_cells_and_what_is_done(run, config):
    code, out, err = run("sweep", config, "--dry-run", "--out", "r")
    assert code == 0 and "14 cells, 0 done in r" in out and "about" in out and "MiB" in out, err
    assert not Path("r").exists()
    assert run("sweep", config, "--n", "64", "--out", "r")[0] == 0
    assert "14 cells, 7 done in r" in run("sweep", config, "--dry-run", "--out", "r")[1]
    assert "14 cells, 0 done in r" in run("sweep", config, "--dry-run", "--force", "--out", "r")[1]
    code, _, err = run("sweep", config, "--dry-run", "--out", ".")
    assert code == 2 and "--out . holds files but no run" in err
    code, _, err = run("sweep", config, "--dry-run", "--out", config)
    assert code == 2 and "is not a directory" in err


def test_several_weights_are_one_run(run, tiny_bert, text_file, tmp_path):
    (tmp_path / "c.yaml").write_text(
        f"model: {tiny_bert}\ntext: {text_file}\nweights: [pretrained, initialized]\nn: 32\nd: 8\nmethod: linear\n"
    )
    code, out, err = run("sweep", "c.yaml", "--out", "r", "--format", "json")
    assert code == 0, err
    assert {one["source"]["weights"] for one in read_records("r")} == {"pretrained", "initialized"}
    manifest = json.loads(Path("r/manifest.json").read_text())
    assert set(manifest["plan"]) == {"pretrained", "initialized"} and len(manifest["source"]) == 2
    assert manifest["config"]["weights"] == {"value": ["pretrained", "initialized"], "origin": "file"}
    arguments = ("--model", tiny_bert, "--text", text_file, "--n", "32", "--d", "8", "--method", "linear")
    for word in ("pretrained", "initialized"):
        assert run("error", *arguments, "--weights", word, "--out", word)[0] == 0
        assert json.loads(Path(word, "manifest.json").read_text())["config"]["weights"]["value"] == [word]
    assert records_of("r") == records_of("pretrained") | records_of("initialized")


def test_a_gate_judges_one_of_several_weights(run, tiny_bert, text_file, tmp_path):
    text = f"model: {tiny_bert}\ntext: {text_file}\nweights: [pretrained, initialized]\nn: 32\nd: [8, 16]\n"
    gate = "- {metric: output_spectral, max: 1000000, method: %s, weights: %s, d: 16}\n"
    text += "method: [performer, {name: performer, options: {eps: 0.001}}]\ngates:\n"
    text += gate % ("performer", "initialized") + gate % ("{name: performer, options: {eps: 1e-3}}", "pretrained")
    (tmp_path / "c.yaml").write_text(text)
    code, _, err = run("sweep", "c.yaml", "--out", "r", "--junit", "g.xml")
    names = [case.get("name") for case in ElementTree.parse("g.xml").iter("testcase")]
    assert code == 0 and len(names) == 3, err
    for word, name in zip(("initialized", "initialized", "pretrained"), names, strict=True):
        assert f"weights={word}: performer" in name and name.endswith(f"d=16 n=32 layer=0 weights {word}")
    assert "performer:eps=1e-3 d=16 weights=pretrained: performer:eps=0.001" in names[2]


BAD = """import time

import torch


def raising(q, k, v):
    raise ZeroDivisionError("no such luck")


def endless(q, k, v):
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass


def compiled(q, k, v):
    torch.linalg.svdvals(torch.ones(1500, 1500, dtype=torch.float64) + torch.eye(1500))
    return v


def broken(q, k, v):
    return v * float("nan")


def misshapen(q, k, v):
    return v[:, :3]
"""


@pytest.mark.slow
def test_bad_methods_among_good_ones_are_rows_and_the_sweep_goes_on(run, config, monkeypatch):
    """In the process that a time limit means, which is ended where a method goes on whatever is raised in it."""
    monkeypatch.setattr("attnprobe.run.where.backends.GRACE", 1.0)
    Path("bad.py").write_text(BAD)
    methods = ("raising", "endless", "compiled", "broken", "misshapen")
    named = ",".join((*(f"./bad.py:{name}" for name in methods), "performer"))
    code, out, err = run("sweep", config, f"--method {named} --n 64 --d 16 --cell-timeout 0.2 --out r")
    status = {one["method"].removeprefix("bad.py:"): (one["status"], one["reason"] or "") for one in read_records("r")}
    assert code == 4 and set(status) == {*methods, "performer", "vmean", "lower-bound"}, err
    assert {name for name, (how, _) in status.items() if how == "ok"} == {"performer", "vmean", "lower-bound"}
    assert status["raising"] == ("failed", "ZeroDivisionError: no such luck (bad.py, line 7)")
    overran = "timeout: took longer than --cell-timeout 0.2"
    assert status["compiled"] == ("failed", f"{overran} (bad.py, line 19)")
    assert status["endless"] == ("failed", f"{overran}, and its process was ended")
    assert status["broken"][0] == "diverged", status["broken"]
    assert status["misshapen"][0] == "failed" and "shape" in status["misshapen"][1]


def test_an_interruption_keeps_what_is_done_and_says_once_how_to_go_on(run, config, monkeypatch):
    def interrupted(qkv, *args, **options):
        if qkv.h > 1:  # not in the warm-up
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        with_function(patch, "performer", interrupted)
        code, _, err = run("sweep", config, *FEW, "--out", "r")
    lines = [line for line in err.splitlines() if "interrupted" in line]
    assert code == 130 and len(lines) == 1 and "--out r to resume" in lines[0], err
    assert json.loads(Path("r/manifest.json").read_text())["status"] == "interrupted" and read_records("r")
    assert run("sweep", config, *FEW, "--out", "r")[0] == 0 == run("sweep", config, *FEW, "--out", "whole")[0]
    assert records_of("r") == records_of("whole")


def test_a_resumed_run_says_what_differs_and_what_is_used_again(run, qkv):
    def said(*options):
        _, _, err = run("error", "--qkv", qkv, "--no-matrix", "--out", "r", "--method", "linformer", *options)
        return [line for line in err.splitlines() if "there already" in line]

    assert said("--d", "4") == said("--d", "4") == []
    (line,) = said("--d", "4,8", "--repeats", "2")
    assert line.startswith("attnprobe: 3 of 7 cells are there already; the others are measured now; this command ")
    assert line.endswith("differs from the last one there: --repeats 1 → 2, --d 4 → 4,8")
    (line,) = said("--d", "4", "--seed", "1")
    assert line.startswith("attnprobe: 1 of 3 cells") and "--seed 0 → 1" in line
    (line,) = said("--d", "4")
    assert "3 of 3 cells are there already; nothing is measured; this command differs" in line and line.endswith(
        ": --seed 1 → 0"
    )


def test_what_failed_is_measured_again_when_asked_for(run, config, monkeypatch):
    with monkeypatch.context() as patch:
        with_function(patch, "performer", lambda *args, **options: 1 / 0)
        assert run("sweep", config, *FEW, "--out", "r")[0] == 4
    assert run("sweep", config, *FEW, "--out", "r")[0] == 4  # it is there already
    assert run("sweep", config, *FEW, "--out", "r", "--retry-failed")[0] == 0
    assert {one["status"] for one in read_records("r")} == {"ok"}
    assert run("sweep", config, *FEW, "--out", "whole")[0] == 0 and records_of("r") == records_of("whole")


def test_a_device_without_memory_gets_smaller_blocks_and_then_fails_the_cell(run, config, monkeypatch):
    good, left = METHODS["performer"].function, [3]

    def hungry(*args, **options):
        if left[0] and args[0].h > 1:  # not in the warm-up
            left[0] -= 1
            raise torch.OutOfMemoryError("the device is full")
        return good(*args, **options)

    with_function(monkeypatch, "performer", hungry)
    arguments = ("sweep", config, "--method", "performer", "--n", "64", "--d", "16")
    assert run(*arguments, "--out", "r")[0] == 0 and BLOCK_MEMORY.halvings == 3
    left[0] = 10**6
    code, _, _ = run(*arguments, "--out", "s")
    actual = {one["method"]: one for one in read_records("s")}
    assert code == 4 and actual["performer"]["status"] == "failed" and "full" in actual["performer"]["reason"]
    assert actual["vmean"]["status"] == "ok" and BLOCK_MEMORY.halvings == 7


def test_force_measures_everything_again(run, config):
    assert run("sweep", config, *FEW, "--out", "r")[0] == 0
    count, cells = len(Path("r/rows.jsonl").read_text().splitlines()), len(read_records("r"))
    assert run("sweep", config, *FEW, "--out", "r", "--force")[0] == 0
    assert len(Path("r/rows.jsonl").read_text().splitlines()) == 2 * count and len(read_records("r")) == cells


def test_a_folder_that_vanishes_is_made_anew_with_all_of_the_run(run, config, monkeypatch):
    good = METHODS["performer"].function

    def removing(*args, **options):
        shutil.rmtree("r", ignore_errors=True)
        return good(*args, **options)

    with monkeypatch.context() as patch:
        with_function(patch, "performer", removing)
        code, out, err = run("sweep", config, *FEW, "--out", "r")
    assert code == 0, err
    assert run("sweep", config, *FEW, "--out", "whole")[0] == 0 and records_of("r") == records_of("whole")


def test_a_record_that_cannot_be_written_is_a_failed_row(run, config, monkeypatch):
    append = RecordWriter._write
    full = []

    def failing(self, lines):
        if b'"performer"' in lines:
            full.append(lines)
            raise UsageError("rows.jsonl: cannot write: No space left on device")
        append(self, lines)

    monkeypatch.setattr(RecordWriter, "_write", failing)
    code, out, err = run("sweep", config, *FEW, "--out", "r", "--format", "json")
    assert code == 4 and full, err
    rows = {row["method"]: row for row in json.loads(out)["rows"]}
    assert rows["performer"]["status"] == "failed" and "No space left" in rows["performer"]["reason"]
    assert rows["nystromformer"]["status"] == "ok"
    assert {one["method"] for one in read_records("r")} == {"lower-bound", "vmean", "nystromformer"}


@pytest.mark.parametrize("command", ["error", "spectrum", "condition"])
def test_a_full_disk_costs_tables_and_the_end_of_the_manifest_and_not_the_answer(run, config, monkeypatch, command):
    from attnprobe.frame.records import outputs
    from attnprobe.run import folder

    def full(path, *rest):
        raise UsageError(f"{path}: cannot write: No space left on device")

    def filling(path, manifest):
        if manifest["status"] == "finished":
            full(path)
        path.write_text(json.dumps(manifest))

    arguments = ("--qkv", "qkv.safetensors", "--d", "8", "--n", "64", "--out", "r", "--format", "json")
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "write_text", full)
        patch.setattr(folder, "write_json", filling)
        code, out, err = run(command, *arguments)
    assert code == 4 and json.loads(out)["rows"] and "No space left" in err, err
    assert "attnprobe report r" in err and "does not tell how the run ended" in err
    assert run("report", "r", "--plot", "none")[0] == 0


GATES = """gates:
- {metric: output_spectral_relative, stat: median, max: %s}
- {metric: bad_rows, stat: max, max: 1000}
"""


def test_gates_of_the_file_are_a_table_an_exit_code_and_junit_xml(run, config):
    config.write_text(CONFIG + GATES % "1000")
    code, _, err = run("sweep", config, "--n", "64", "--out", "r", "--junit", "g.xml")
    assert code == 0 and "gates passed" in err and "output_spectral_relative.median" in err, err
    suite = ElementTree.parse("g.xml").getroot()
    assert suite.get("failures") == "0" and int(suite.get("tests")) >= 8
    config.write_text(CONFIG + GATES % "0.00001")
    code, _, err = run("sweep", config, "--n", "64", "--out", "r", "--junit", "g.xml")
    assert code == 1 and int(ElementTree.parse("g.xml").getroot().get("failures")) == 4, err


@pytest.mark.parametrize(
    "gates, message",
    [
        ("[{metric: output_spectral_relative}]", ":6: "),
        ("[{metric: output_spectral_relativ, max: 1}]", "output_spectral_relative"),
        ("[3]", ":6: "),
    ],
)
def test_gates_that_do_not_hold_together_are_refused_before_the_run(run, config, gates, message):
    config.write_text(CONFIG + f"gates: {gates}\n")
    code, _, err = run("sweep", config, "--out", "r")
    assert code == 2 and message in err and not Path("r").exists(), err


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_the_files_that_are_shipped_hold_together(path):
    assert read_config(path, settings_of).values


def test_the_smoke_sweep_needs_no_hub(run, no_hub):
    code, _, err = run("sweep", CONFIGS / "smoke.yaml", "--out", "r")
    assert code == 0 and {one["status"] for one in read_records("r")} == {"ok"}, err
    assert Path("r/figures/errors.svg").exists()


@pytest.mark.parametrize("dry", [True, False], ids=["dry", "run"])
@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("error", "windows: 2000\nrepeats: 100000"),
        ("condition", "windows: 100000"),
        ("theory", "windows: 100000\nrepeats: 100000"),
        ("spectrum", "of: [softmax, skyformer]\nwindows: 100000"),
        ("bench", "source: random"),
    ],
)
def test_more_cells_than_can_be_listed_are_counted_and_refused(command, more, dry, run, qkv):
    """Where they were listed first, the answer would come after hours."""
    source = "" if command == "bench" else f"qkv: {qkv}\n"
    methods = "" if command == "spectrum" else "methods: [linformer, performer]\n"
    Path("c.yaml").write_text(f"command: {command}\n{source}{methods}d: 2-6000\nn: 2-999\n{more}\nout: r\n")
    code, out, err = run("sweep", "c.yaml", *(["--dry-run"] if dry else []))
    assert (code, out) == (2, "") and "cells are more than 10,000,000" in err and not Path("r").exists(), err


@pytest.mark.parametrize("command", ["error", "spectrum"])
def test_cells_of_all_inputs_are_counted(command, run, qkv, monkeypatch):
    monkeypatch.setattr("attnprobe.run.plan.MOST_CELLS", 20)
    asked = (command, "--qkv", qkv, "--scale-inputs", ",".join(map(str, range(1, 30))), "--head", "0", "--dry-run")
    code, _, err = run(*asked)
    assert code == 2 and " cells are more than 20;" in err, err


def test_the_estimate_counts_the_draws_of_each_theorem(qkv):
    """A check that draws for each seed and budget takes as many times the work; one that draws nothing the same."""
    names = ("skyformer-theorem-2", "skyformer-theorem-2-budget", "rank-collapse")

    def works(d, repeats):
        request = TheoryRequest(qkv=str(qkv), theorems=names, d=d, repeats=repeats, input_statistics=False)
        inputs = 2 * 96**2 * EXACT / 3
        return [cell.work - inputs for cell in estimate_cells(experiment("theory").cells, request)]

    once = works((4,), 1)
    assert [x / y for x, y in zip(works((4,), 5), once, strict=True)] == pytest.approx([5, 5, 1])
    assert [x / y for x, y in zip(works((4, 8, 16), 1), once, strict=True)] == pytest.approx([3, 1, 1])
    assert once[2] == pytest.approx(2 * (16 * 96**3 + OVERHEAD))  # small operations are most of it at a small n


def test_what_a_dry_run_estimates_is_the_documented_cost(qkv, tmp_path, run):
    """Two heads: 20 n d 64 + 30 d³ multiply-adds a head, matrices 1500 + d and row metrics 1200 an entry.

    A call takes 2.5e7 besides for each head, and for four more. The statistics have the norms that matrices need.
    What is left of a place shares its inputs: they are read again as a whole.
    """
    setting = {"qkv": str(qkv), "n": (96,), "methods": ("nystromformer",), "out": str(tmp_path / "r")}

    def work(cells):
        return {(cell.name, cell.d): cell.work for cell in cells}

    def method(d):
        return 6 * 2.5e7 + 2 * (20 * 96 * d * 64 + 30 * d**3)

    inputs = 2 * 96**2 * (450 + 2_000)
    plain = work(estimate_cells(experiment("error").cells, ErrorRequest(d=(8, 16), matrix=False, **setting)))
    assert len(plain) == 5 and plain["lower-bound", 8] == inputs / 5
    assert plain["nystromformer", 8] == pytest.approx(method(8) + inputs / 5)
    assert plain["nystromformer", 16] == pytest.approx(method(16) + inputs / 5)
    whole = work(estimate_cells(experiment("error").cells, ErrorRequest(d=(8,), input_statistics=False, **setting)))
    assert whole["nystromformer", 8] == pytest.approx(
        method(8) + 2 * 96**2 * (1500 + 8) + 2 * 96**2 * (450 + 2_000) / 3
    )
    more = work(estimate_cells(experiment("error").cells, ErrorRequest(d=(8, 16), matrix=False, rows=True, **setting)))
    assert more["nystromformer", 8] - plain["nystromformer", 8] == pytest.approx(2 * 96**2 * 1200)
    measured = ("--n", "96", "--d", "8", "--method", "nystromformer", "--no-matrix", "--out", tmp_path / "r")
    assert run("error", "--qkv", qkv, *measured)[0] == 0
    rest = work(estimate_cells(experiment("error").cells, ErrorRequest(d=(8, 16), matrix=False, **setting)))
    assert sum(rest.values()) == pytest.approx(sum(plain[one] for one in rest if one[1] == 16) + inputs * 3 / 5)
    [exact, *_] = estimate_cells(experiment("condition").cells, ConditionRequest(d=(8,), **setting))
    assert exact.work == pytest.approx(3 * 2 * 16 * 96**3 + inputs / 2) and exact.bytes == 32 * 96**2
    [budget] = estimate_cells(experiment("budget").cells, BudgetRequest(d_max=32, repeats=1, **setting))
    assert budget.work == pytest.approx(1.5 * sum(method(d) for d in coarse_budgets(8, 32)) + inputs)
