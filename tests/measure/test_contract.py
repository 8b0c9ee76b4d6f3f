"""What every command promises: a folder that a report rebuilds, resuming, formats, failures, sweeps, refusals."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from functools import wraps
from pathlib import Path
from time import perf_counter

import pytest
from asked import measured
from golden.small_runs import COMMANDS, INPUTS
from thinned import others_slow

from attnprobe.measure import EXPERIMENTS
from attnprobe.methods import METHODS

FORMATS = ("table", "jsonl")
#: by command: options of a small run of two methods, and the methods. The first one is made to fail where one must
METHODS_OF = {
    "error": ("--qkv qkv.safetensors --d 4", "--method", "linear,skyformer"),
    "spectrum": ("--qkv qkv.safetensors --d 4", "--of", "linear,skyformer"),
    "condition": ("--qkv qkv.safetensors --d 4", "--method", "nystromformer,skyformer"),
    "theory": ("--qkv qkv.safetensors --theorem ma-property --d 4 --repeats 2", "--method", "linformer,skyformer"),
    "audit": ("--qkv qkv.safetensors --no-matrix --d 8 --repeats 3", "--method", "performer,skyformer"),
    "rounding": ("--qkv qkv.safetensors --d 4 --formats bf16", "--method", "linear,skyformer"),
    "budget": ("--qkv qkv.safetensors --epsilon 0.5 --repeats 2", "--method", "linformer,skyformer"),
    "bench": ("--n 16,32 --d 4 --p 4 --heads 1 --rounds 1 --no-memory", "--method", "linear,skyformer"),
    "inject": ("--model tiny --text words.txt --n 16 --d 4 --per-layer", "--method", "linear,skyformer"),
    "stability": (
        "--task listops:n=64,batch=2 --d 8 --steps 1 --seeds 1 --condition-tokens 0",
        "--method",
        "linear,skyformer",
    ),
}
REFUSED = {  # of every command that has the option
    "--format": ("xml", "unknown format 'xml'"),
    "--method": ("skyfromer", "did you mean 'skyformer'"),
    "--n": ("1", "2 tokens"),
    "--d": ("x", "'x'"),
    "--rounds": ("0", "rounds=0"),
    "--windows": ("0", "windows=0"),
    "--target": ("x", "target"),
    "--dtype": ("int8", "dtype 'int8'"),
    "--device": ("abacus", "abacus"),
    "--head": ("7", "head"),
    "--repeats": ("0", "repeats=0"),
    "--epsilon": ("0", "epsilon: '0' is not a number"),
    "--steps": ("0", "steps=0"),
    "--seeds": ("0", "seeds=0"),
    "--iterations": ("-1", "iterations=-1"),
    "--resolution": ("0.9", "resolution=0.9"),
    "--fail-above": ("sceonds=1", "sceonds"),
}


@pytest.fixture
def ask(run):
    """A small run of a command in a folder with inputs: ``(code, stdout, stderr)``."""
    shutil.copytree(INPUTS, ".", dirs_exist_ok=True)

    def call(name, *more):
        options, word, methods = METHODS_OF[name]
        return run(name, *options.split(), word, methods, "--device", "cpu", *more)

    return call


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """By command: the folder of its small run with figures, what the command answered, and how many seconds it took."""
    return {}, tmp_path_factory.mktemp("runs")


@pytest.fixture
def whole(ask, kept):
    """A copy of the small run of a command, which is measured once: its answer and seconds."""
    made, folder = kept

    def copied(name, to, *left_out, figures=False):
        if (name, figures) not in made:
            begin = perf_counter()
            code, out, err = ask(name, *(("--plot",) * figures), "--out", "r", "--format", "json")
            assert code == 0, err
            made[name, figures] = out, perf_counter() - begin
            shutil.move("r", folder / f"{name}-{figures}")
        shutil.copytree(folder / f"{name}-{figures}", to, ignore=shutil.ignore_patterns(*left_out))
        return made[name, figures]

    return copied


def records(folder):
    """The lines that end cells."""
    lines = [json.loads(line) for line in Path(folder, "rows.jsonl").read_text().splitlines()]
    return [line for line in lines if "schema" in line]


def repeatable(record):
    """What of a record is the same in every run: all but the run and its times."""
    if record["command"] == "bench":
        return record["key"]
    return {name: value for name, value in record.items() if name != "run" and "seconds" not in name}


def files(folder):
    return {path: path.read_bytes() for kind in ("tables", "figures") for path in sorted(Path(folder, kind).glob("*"))}


#: figures are drawn twice, so not those of every command
FIGURES = [(name, figures) for name in EXPERIMENTS for figures in (False, True)]
KEPT = (("error", True), *((name, False) for name in ("audit", "condition", "inject", "stability", "theory")))


@pytest.mark.parametrize("name, figures", others_slow(FIGURES, lambda case: case in KEPT))
def test_a_run_leaves_what_a_report_rebuilds_and_is_not_measured_again(ask, run, whole, name, figures):
    actual = json.loads(whole(name, "r", figures=figures)[0])
    assert {"schema", "command", "source", "rows", "run"} <= set(actual) and actual["command"] == name
    manifest = json.loads(Path("r/manifest.json").read_text())
    assert manifest["status"] == "finished" and manifest["config"]["device"]["origin"] == "command line"
    first, left = Path("r/rows.jsonl").read_bytes(), files("r")
    assert {path.suffix for path in left} >= {".md", ".csv", ".json", ".tex", *((".svg", ".png", ".pdf") * figures)}

    shutil.rmtree("r/tables")
    shutil.rmtree("r/figures", ignore_errors=True)
    code, _, err = run("report", "r", "--plot", "all" if figures else "none")
    assert code == 0 and left.items() <= files("r").items(), err
    if name != "error":  # whose figures are drawn again, as those of every command
        shutil.rmtree("r/figures", ignore_errors=True)
    code, out, err = ask(name, "--out", "r")
    assert code == 0 and "skyformer" in out, err
    tables = {path: text for path, text in left.items() if name == "error" or path.parent.name == "tables"}
    assert Path("r/rows.jsonl").read_bytes() == first and tables.items() <= files("r").items()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_run_that_was_cut_off_is_gone_on_with(whole, name):
    """Where its last record was torn: what is there stays, and the rest is measured as in a whole run."""
    _, elapsed = whole(name, "r", "tables")
    path, before = Path("r/rows.jsonl"), records("r")
    assert all(0 < seconds < elapsed for record in before if (seconds := record.get("seconds")))
    *kept, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(kept) + last[: len(last) // 2])
    while kept and "schema" not in json.loads(kept[-1]):  # rows of the cell that was cut off
        kept.pop()
    options, word, methods = METHODS_OF[name]
    measured(name, *options.split(), word, methods, "--device", "cpu", "--out", "r")
    assert path.read_text().startswith("".join(kept))
    assert list(map(repeatable, records("r"))) == list(map(repeatable, before))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_method_that_fails_is_a_row_beside_the_others(ask, monkeypatch, name):
    """A row is shown as those of every command, and the exit code is that of its status."""
    failing = METHODS_OF[name][2].partition(",")[0]

    @wraps(METHODS[failing].function)
    def bad_day(*_, **__):
        raise RuntimeError("a bad day\nmore")

    monkeypatch.setitem(METHODS, failing, replace(METHODS[failing], function=bad_day))
    if name == "error":
        code, out, _ = ask(name, "--out", "r")
        assert code == 4 and "a bad day" in out
    else:
        options, word, methods = METHODS_OF[name]
        measured(name, *options.split(), word, methods, "--device", "cpu", "--out", "r")
    states = {(one.get("method"), one["status"]) for one in records("r")}
    assert (failing, "failed") in states and any(state == "ok" for _, state in states)


@pytest.mark.parametrize("name", others_slow(EXPERIMENTS, lambda name: name[0] == "theory"))
def test_a_sweep_is_the_command_and_tells_its_plan(ask, run, whole, name):
    whole(name, "s")
    options, word, methods = METHODS_OF[name]
    words = shlex.split(options)
    lines = [f"command: {name}", f"{word[2:]}: [{methods}]", "device: cpu"]
    for place, one in enumerate(words):
        if one.startswith("--no-"):
            lines.append(f"{one[5:]}: false")
        elif one.startswith("--"):
            value = [*words, "--"][place + 1]
            several = json.dumps(value.split(",")) if "," in value and "=" not in value else value
            lines.append(f"{one[2:]}: {'true' if value.startswith('--') else several}")
    Path("c.yaml").write_text("\n".join(lines) + "\n")
    code, out, err = run("sweep", "c.yaml", "--dry-run", "--out", "r")
    assert code == 0 and ", 0 done in r" in out and not Path("r").exists(), err
    code, out, err = ask(name, "--dry-run")
    assert code == 0 and re.search(r"^\d+ cells$", out, re.M) and re.search(r"about .* MiB", out), err
    assert not Path("outputs").exists()
    assert run("sweep", "c.yaml", "--out", "r")[0] == 0
    before = records("r")
    assert f"{len(before)} cells, {len(before)} done in r" in run("sweep", "c.yaml", "--dry-run", "--out", "r")[1]
    assert run("sweep", "c.yaml", "--out", "r")[0] == 0 and records("r") == before
    assert list(map(repeatable, records("s"))) == list(map(repeatable, before))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_impossible_request_is_one_line_and_leaves_nothing(ask, run, name):
    known = run(name, "--help")[1]
    asked = [(option, value, words) for option, (value, words) in REFUSED.items() if f"\n  {option} " in known]
    assert len(asked) >= 3
    for option, value, words in asked:
        code, out, err = ask(name, "--out", "r", option, value)
        assert code == 2 and words in err and not out and not Path("r").exists(), (option, err)
        assert len(err.strip().splitlines()) == 1, err
    code, out, err = ask(name, "--out", "r", "--force", "--retry-failed")
    assert code == 2 and "exclude each other" in err and not out and not Path("r").exists()


@pytest.mark.parametrize("name", [name for name, line in COMMANDS.items() if "--qkv" in line or "--model" in line])
def test_an_absent_source_is_exit_3(run, name):
    options = shlex.split(COMMANDS[name].replace("qkv.safetensors", "absent.safetensors").replace("tiny", "./absent"))
    code, out, err = run(name.partition("-")[0], *[one.replace("decoder", "./absent") for one in options])
    assert code == 3 and len(err.strip().splitlines()) == 1 and not out, err
