"""A small run of every command that measures, all that is shown of it, and the keys of its cells.

``runs/`` holds the folder that each command left: records, manifest, inputs, maps. ``shown/`` holds what `report` makes
of it in every format, ``readings/`` what further commands print of the runs, ``measured/`` what small runs of today
leave, and ``keys.json`` the keys of cells, by which older runs resume. ``tests/project/test_golden.py`` compares. After
a deliberate change of what is shown:

    python tests/golden/rewrite.py            # shown/ is written again; review the diff
    python tests/golden/rewrite.py condition  # of one command or reading alone
    python tests/golden/rewrite.py measured   # what is measured now, or NAME of it alone
    python tests/golden/rewrite.py runs       # the commands are measured again first: a change of records
    python tests/golden/rewrite.py keys       # keys of new cases; keys that were there do not change
    python tests/golden/rewrite.py options    # of every command; of those that measure only the help may change
"""

import dataclasses
import hashlib
import io
import json
import math
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["ATTNPROBE_CACHE_SIZE"] = "0"  # what is measured does not depend on earlier runs
HERE = Path(__file__).resolve().parent
INPUTS, RUNS, SHOWN, READ, NOW = (HERE / name for name in ("inputs", "runs", "shown", "readings", "measured"))
KEYS, OPTIONS = HERE / "keys.json", HERE / "options.jsonl"
MATPLOTLIB = HERE / "matplotlib.txt"  # the version that drew the figures
WIDTH = 100

FILE = "--qkv qkv.safetensors"
MODEL = "--model tiny --text words.txt --n 16"
COMMANDS = {  # a further run of a command has a name of its own behind a hyphen
    "error": f"{FILE} --method vmean,skyformer,nystromformer:inverse=pinv,linformer,torch:sdpa-math --d 4,8,64 "
    "--windows 2 --repeats 2 --scale-inputs 1,4 --plot errors,maps",
    "error-rows": "--model decoder --text words.txt --n 16 --method topk,window,nystromformer --d 5,8 --layer 0,1 "
    "--windows 2 --rows --no-matrix --plot positions",
    "spectrum": f"{MODEL} --weights pretrained,initialized --of softmax,lifted-gaussian,skyformer --d 4 --plot",
    "condition": f"{FILE} --method skyformer,nystromformer,vmean --d 4,8 --windows 2 --sensitivity --iterations 6 "
    "--plot",
    "theory": f"{FILE} --theorem skyformer-theorem-2,skyformer-lemma-3,skeinformer-jl,rank-collapse,eckart-young "
    "--method skyformer --d 4,8 --epsilon 0.1,0.5 --repeats 3 --plot",
    "audit": f"{FILE} --method performer,skeinformer,bigbird --d 8,12 --epsilon 0.2,1 --delta 0.05,0.3 --repeats 60 "
    "--windows 2 --plot",
    "rounding-formats": f"{FILE} --method nystromformer,performer,topk --d 4,8 --formats bf16,fp16 --plan --windows 2 "
    "--plot all",
    "budget": f"{FILE} --method skyformer,linformer --epsilon 2,0.8,0.05 --d-min 2 --repeats 2 --windows 2 --plot "
    "--scale-inputs 1,2",
    "bench": "--method linear,skyformer --n 16,32,64 --d 4 --heads 2 --p 4 --rounds 2 --errors --plot",
    "inject": f"{MODEL} --method skyformer,linear --d 4 --windows 2 --per-layer "
    "--weights pretrained,initialized --plot",
    "inject-decode": "--model decoder --text words.txt --n 16 --phase decode --prefix 9 --greedy-steps 5 "
    "--method softmax,topk,window --d 3,6 --windows 2 --batch 2 --plot",
    "stability": "--task listops:n=64,batch=2 --method kernelized,skyformer --d 8 --steps 3 --seeds 2 "
    "--condition-tokens 16 --plot",
}
MEASURED = {  # small runs whose records, manifest and notes are compared, by a name of their own
    "methods": f"error {FILE} --method all --d 8 --rows",
    "methods-causal": "error --model decoder --text words.txt --n 16 --method all --d 6 --rows --layer 1 --no-matrix",
    "theorems": f"theory {FILE} --theorem all --method skyformer,nystromformer,linformer --d 4 --epsilon 0.1,0.5 "
    "--repeats 2",
    "condition-steps": f"condition {FILE} --method skyformer,nystromformer,vmean --d 4 --sensitivity --iterations 2 "
    "--head 0",
    "audit-few": f"audit {FILE} --method performer,skeinformer,bigbird --d 8,12 --epsilon 0.2,1 --delta 0.05,0.3 "
    "--repeats 9 --windows 2 --rows",
    "times": "bench --method linear,skyformer --n 16,32 --d 4 --heads 2 --p 4 --rounds 1 --errors --backward "
    "--no-memory",
    **{
        name: re.sub(r" --plot( [a-z,]+)?", "", f"{name.partition('-')[0]} {COMMANDS[name]}")
        for name in ("error", "spectrum", "budget", "inject", "inject-decode", "stability")
    },
}
OF_THE_DAY = (  # and of the machine: times, draws by weights that are almost equal, and what compares rounding
    "(.*_)?seconds|run|start|end|clock_mhz|load|machine|versions|git_commit|device|threads|cpu|cores|system|torch|python|attnprobe|"
    "peak_bytes|arguments|slack|draws_hash|key|ratio_to_framework.*|ratio_to_exact|rounded_rows"
)
CASES = {  # of keys alone, by command
    "error": [
        f"{FILE} --d 4",
        f"{FILE} --method skyformer:sampler=wor,window --d 3-4 --layer 2 --head 1 --seed 5 --repeats 2",
        f"{FILE} --no-matrix --target gaussian --method kernelized,skyformer --d 4",
        f"{FILE} --tol 0.01 --scale-inputs 0.5,1 --dtype float64 --d 4 --n 16",
        f"{FILE} --method torch:sdpa-math --row-tolerance 0.01 --d 4",
        f"{FILE} --d 4 --method linear --layer all --shard 1/2",
        "--qkv causal.safetensors --method linear,skyformer --d 4",
        f"{MODEL} --d 4 --weights pretrained,initialized,initialized-qkv --weights-seed 3",
        f"{MODEL.replace('16', '40')} --d 4 --positions wrap",
    ],
    "spectrum": [
        f"{FILE} --of softmax,unnormalised,gaussian,output,skyformer --d 4 --windows 2",
        f"{FILE} --of lifted-softmax --kind eigen --epsilon 0.3 --seed 2 --head 0",
        f"{FILE} --of softmax,skyformer --k 4 --scale-inputs 2 --target gaussian",
        "--qkv causal.safetensors --of softmax,linear --d 4",
    ],
    "condition": [
        f"{FILE} --d 4",
        f"{FILE} --d 4 --method skyformer:gamma=0.01 --target gaussian --seed 1 --layer 2 --head 0",
        f"{FILE} --d 4 --sensitivity --iterations 3 --scale-inputs 2",
    ],
    "theory": [
        f"{FILE} --d 4 --theorem skyformer-theorem-2,rank-collapse,eckart-young --repeats 2",
        f"{FILE} --d 4,8 --theorem skeinformer-jl,ma-property --method linformer --epsilon 0.3 --delta 0.2 "
        "--seed 3 --repeats 2 --target gaussian",
        f"{FILE} --d 4 --theorem shift-bound --quadrature --repeats 2 --scale-inputs 0.5",
    ],
    "audit": [
        f"{FILE} --d 4 --epsilon 0.05,0.1",
        f"{FILE} --d 4 --method bigbird,skeinformer --epsilon 0.2 --delta 0.1,0.3 --repeats 5 --confidence 0.9 --stop "
        "--rows --no-matrix --seed 3 --head 1",
    ],
    "rounding": [
        f"{FILE} --d 4",
        f"{FILE} --d 4 --method topk,linear --formats fp8-e4m3,tf32 --arithmetic autocast --goal 0.5 --no-estimate "
        "--seed 3 --head 1 --target softmax",
        f"{FILE} --d 4 --formats fp16 --plan --scale-inputs 2",
    ],
    "budget": [
        f"{FILE} --repeats 2",
        f"{FILE} --repeats 2 --epsilon 0.5 --metric matrix_spectral_relative --delta 0.5 --d-min 2 --d-max 6 "
        "--tol 0.1 --seed 4 --head 1",
        f"{FILE} --repeats 2 --scan --d-max 8 --resolution 1.5 --method linformer --scale-inputs 2 --layer 2",
    ],
    "inject": [
        f"{MODEL} --method window --d 6",
        f"{MODEL} --method skyformer --d 4,8 --layer 1 --per-layer --windows 3 --batch 2 --seed 2 --repeats 2",
        f"{MODEL} --method linear --lines --model-dtype float64",
        f"{MODEL} --budgets budgets.json",
        "--model decoder --text words.txt --n 16 --phase decode --method topk --d 4",
        "--model decoder --text words.txt --n 16 --phase decode --prefix 4 --greedy-steps 3 --method topk --d 4",
    ],
    "stability": [
        "--task listops:n=64,batch=2 --method skyformer --d 8 --steps 2 --seeds 1 --condition-tokens 0",
        "--task text:n=64,batch=2,rate=0.001 --text labelled.tsv --method linear --steps 2 --seeds 1 --seed 3 "
        "--eps 1e-7 --target softmax --condition-tokens 8",
    ],
}
# commands whose cells are rows; tests/show/test_shown.py shows odd runs of theirs
OF_ROWS = (
    *("audit", "rounding-formats", "bench", "budget", "condition", "error", "error-rows", "inject", "inject-decode"),
    *("spectrum", "stability", "theory"),
)
READINGS = {  # of the runs and of a later one, LATER, that `later` makes of each: what is printed, and the exit code
    "compare": ["compare error error/LATER --strict", "compare error/LATER error --format md"],
    "compare-draws": [
        f"compare error error/DRAWN --metric output_frobenius,bad_rows --format {one}"
        for one in ("table", "json", "csv")
    ],
    "compare-layers": [
        f"compare error-rows error-rows/LATER --level 0.2 --format {one}" for one in ("table", "github", "latex")
    ],
    "compare-requested": [
        *("compare error-rows/LESS error-rows --strict", "compare error-rows error-rows/LESS"),
        *(f"compare error-rows/LESS --pair {pair} --format md" for pair in ("topk=window", "window=topk")),
    ],
    "compare-pair": [
        "compare error --pair skyformer=linformer --tolerance 0.5",
        "compare error --pair linformer:d=8=skyformer --format jsonl",
        "compare error error/DRAWN --pair skyformer=linformer:d=4 --metric output_spectral_relative --format latex",
        "compare error-rows --pair topk=window --pair nystromformer=topk --columns verdict,A,B --format md",
        "compare error-rows error-rows/LATER --pair topk=topk --metric row_error_max,output_spectral",
    ],
    "compare-inject": [
        "compare inject inject/LATER",
        "compare inject --pair skyformer=linear --format md",
        "compare inject-decode inject-decode/LATER --metric kl,loss,top1_agreement",
        "compare inject-decode --pair topk=window --metric kl,loss_change",
    ],
    "compare-bench": [
        "compare bench bench/LATER",
        "compare bench bench/LATER --metric seconds,flops --format csv",
        "compare bench --pair linear=skyformer --metric seconds",
    ],
    "compare-refused": [
        "compare error error-rows",
        "compare error --pair skyformer=nothing",
        "compare error --pair skyformer",
        "compare error",
        "compare spectrum spectrum",
        "compare error error --metric seconds,output_spectrum",
    ],
    "report": [
        f"report {run} --plot none --format {one}"
        for run, one in (
            ("error", "github"),
            ("error", "table"),
            ("inject", "latex"),
            ("theory", "github"),
            ("stability", "latex"),
            ("bench", "md --columns seconds.median"),
            ("audit", "github"),
        )
    ],
    "odd-figures": [
        f"report {run}/ODD --plot all {how} --format csv --columns n"
        for how, some in (("--style paper", ("theory",)),)
        for run in some
    ],
    "columns": [  # of every table, the columns that identify its rows stay
        f"report {run} --plot none --columns {some}"
        for run, some in (
            ("audit", "rate.mean,worst.max"),
            ("bench", "peak_bytes.max,kv_read.mean"),
            ("budget", "found.median,error.max"),
            ("condition", "cond.median,sensitivity.max"),
            ("error", "output_spectral_relative.median,visited_fraction.mean"),
            ("error-rows", "mass.mean,kl.mean"),
            ("inject", "drift.mean,worst_drift"),
            ("inject-decode", "kl.mean,read_bytes"),
            ("spectrum", "rank_95.median,d_spectral.median"),
            ("stability", "loss_last.mean,cond.median"),
            ("theory", "bound.median,verdicts"),
        )
    ],
    "gates": [
        "error --fail-above output_spectral_relative=1 --fail-above bad_rows.max=0 --junit gates.xml",
        "error --fail-below output_cosine_min.p10=-0.7 --format github",
        "error-rows --fail-above residual_error.median=0.5 --fail-below mass.p10=0.6",
        "inject-decode --fail-above kl=0.1 --fail-above loss_change.se=0.4 --fail-below top1_agreement=0.2",
        "audit --fail-above rate.max=0.99 --fail-above violated=1",
        "budget --fail-above d.p90=4 --fail-above unreached=2 --format github",
        "theory --fail-above violated=0 --fail-below holds=2",
        "stability --fail-above ratio=2 --fail-below ratio.median=0.5",
    ],
}
READINGS["answers"] = []  # the file holds its own command lines: add one there, and write it again
READINGS["requests"] = []  # what commands and their options are declared to be
READINGS["records"] = []  # the page of the reference about records, and their JSON Schema
LATER = ("LATER", "DRAWN", "LESS", "ODD")  # numbers differ; so do draws; records are missing; `_odd`
FACTORS = (0.5, 0.97, 1.0, 1.02, 1.4)  # of the numbers of a later run
COSTS = ("peak_bytes", "flops", "leading_flops")  # numbers on the lines that end cells
LOST = ("skipped", "failed", "diverged")
LISTS = ("statements", "results", "findings", "conditions")  # of what a cell measured
PARTS = ("profile", "lines", "singular_values", "steps")
STRANGE = (float, float, lambda value: None, lambda value: 0.0, lambda value: value * 1e-9, lambda value: value * 1e6)
DETERMINING = ("command", "method", "options", "target", "n", "layer", "d", "seed", "backward")  # of a bench
BENCH = (  # keys hold the machine, so what else they hold is kept
    "--method linear,skyformer:sampler=wor --n 16,32 --d 4 --heads 2 --p 4 --rounds 1 --no-memory",
    "--method window --n 16 --d 6 --heads 1 --p 4 --rounds 1 --backward --errors --seed 2 --quadratic-n 64 --no-memory",
)


SWEEPS = {  # a sweep without --out finds its folder again by its settings
    "plain": "{method: [skyformer, nystromformer], d: [4, 8], qkv: qkv.safetensors}",
    "places": "{method: linear, d: 4-6, layer: [0, 2], head: all, windows: 2, qkv: qkv.safetensors, tol: 1.0e-2}",
    "later": "{scale-inputs: [1, 2], input-statistics: false, d: 4, qkv: qkv.safetensors, plot: true}",
    "defaults": "{scale-inputs: 1, d: 4, qkv: qkv.safetensors, format: json, jobs: 1}",
    "theory": "{command: theory, theorem: rank-collapse, epsilon: [0.1, 0.5], repeats: 2, qkv: qkv.safetensors}",
    "audit": "{command: audit, epsilon: [0.1, 1], delta: 0.05, repeats: 3, stop: true, qkv: qkv.safetensors}",
    "budget": "{command: budget, epsilon: 0.5, repeats: 2, scan: true, d-max: 12, qkv: qkv.safetensors}",
    "bench": "{command: bench, method: linear, n: [16, 32], p: 4, heads: 1, rounds: 1, memory: false}",
    "stability": "{command: stability, task: 'listops:n=64,batch=2', steps: 2, seeds: 1, method: linear}",
}


@contextmanager
def inputs() -> Iterator[Path]:
    """Stand in a folder with a copy of the inputs, so that no record holds a path of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        place = shutil.copytree(INPUTS, Path(folder) / "here")
        with chdir(place):
            yield place


def attnprobe(arguments: list[str]) -> str:
    """What a command prints on a pipe.

    Raises:
        Exception: what it raised; that some cells failed is no error.
    """
    from click.testing import CliRunner

    from attnprobe.cli import cli

    result = CliRunner().invoke(cli, arguments)
    if result.exit_code not in (0, 4):
        raise result.exception or RuntimeError(result.output)
    return result.stdout


def on_terminal(arguments: list[str], width: int = WIDTH) -> str:
    """What a command prints on a terminal, without its colours."""
    from attnprobe.cli import cli

    ours, other = pty.openpty()
    parts: list[bytes] = []
    reader = threading.Thread(target=lambda: parts.extend(iter(lambda: _read(ours), b"")))
    reader.start()
    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), str(width)
    try:
        with open(other, "w", encoding="utf-8") as terminal, redirect_stdout(terminal):
            cli.main(arguments, standalone_mode=False)
    finally:
        reader.join()
        os.close(ours)
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return re.sub(r"\x1b\[[0-9;]*m", "", b"".join(parts).decode()).replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the other end is closed
        return b""


def measure(command: str, out: Path) -> None:
    """Measure the run of a command into a folder, in a process as a user starts it."""
    with inputs() as here:
        program = [Path(sys.executable).with_name("attnprobe"), command.partition("-")[0]]
        program += [*COMMANDS[command].split(), "--out", command]
        subprocess.run(program, check=False, stdout=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        shutil.rmtree(out / command, ignore_errors=True)
        for name in ("tables", "figures"):
            shutil.rmtree(here / command / name, ignore_errors=True)
        shutil.copytree(here / command, out / command)


def measured(name: str) -> dict[str, Any]:
    """What a small run leaves: records, manifest and other files of JSON, notes, and the names of what JSON says.

    What differs from day to day is left out, and numbers have six digits.
    """
    with inputs():
        text = said([*MEASURED[name].split(), "--device", "cpu", "--out", "here", "--format", "json"])
        answer, _, noted = text.partition("--- stderr\n")
        lines = [line for line in noted.splitlines() if " left; now " not in line]
        kept: dict[str, Any] = {"notes": lines, "answer": sorted(json.loads(answer))}
        for path in sorted(Path("here").rglob("*.json*")):
            if path.parent.name != "tables":
                text = path.read_text(encoding="utf-8")
                some = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
                kept[path.name] = some
        files = {f"{path}" for path in Path("here").rglob("*") if path.is_file()}
    return {**_lasting(kept), "files": sorted(files)}


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(one) for name, one in value.items() if not re.fullmatch(OF_THE_DAY, name)}
    if isinstance(value, list):
        return [_lasting(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def shown(command: str, out: Path) -> None:
    """Write all that `report` makes of a command's run into a folder; figures as the words and hash of each.

    ``columns.json`` has all columns that its tables may have, and all fields of its rows.
    """
    from attnprobe.experiments import experiment

    with chdir(RUNS), tempfile.TemporaryDirectory() as folder:
        place, name = out / command, command.partition("-")[0]
        place.mkdir(parents=True)
        if experiment(name).catalogue is not None:
            return _write(place / "tables.json", _json(tables_of(command)))
        report = ["report", command, "--out", folder, "--plot", "none"]
        _write(place / "terminal.txt", on_terminal(report))
        _write(place / "narrow.txt", on_terminal(report, 60))
        _write(place / "piped.txt", attnprobe([*report, "--format", "table"]))
        lines = attnprobe([*report, "--format", "jsonl"])
        _write(place / "first.jsonl", f"{lines.partition(chr(10))[0]}\nsha256 of all: {_sha256(lines)}")
        attnprobe([*report[:-1], "all"])
        for path in sorted((Path(folder) / "tables").iterdir()):
            shutil.copy(path, place / path.name)
        for path in Path(folder).glob("budgets-*.json"):
            shutil.copy(path, place / path.name)
        figures = {path.name: _drawn(path) for path in sorted((Path(folder) / "figures").glob("*.svg"))}
        _write(place / "figures.json", _json(figures))
        if command == name:
            known = experiment(name)
            columns = [_facts(column) for column in known.columns]
            fields = textwrap.wrap(" ".join(known.fields), 110)
            _write(place / "columns.json", _json({"columns": columns, "fields": fields}))
        page = (Path(folder) / "report.html").read_text(encoding="utf-8")
        for tag in ("svg", "style", "script"):
            page = re.sub(rf"(<{tag}\b).*?(</{tag}>)", r"\1 …\2", page, flags=re.S)
        _write(place / "report.html", page.replace("><", ">\n<"))


def tables_of(command: str) -> list[dict[str, Any]]:
    """The data of the tables of a command's run: captions, headings, typed cells, notes."""
    from attnprobe.report import open_run, views
    from attnprobe.show.notes import notes

    def plain(cell: Any) -> Any:
        facts = {name: value for name, value in dataclasses.asdict(cell).items() if value not in (None, "", False)}
        if cell.flag:
            facts["flag"] = cell.flag.sign
        return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in facts.items()}

    [shown] = views(open_run(command))
    return [
        {
            "caption": grid.caption,
            "sentence": grid.sentence,
            "columns": [column.title for column in grid.columns],
            "cells": [[plain(cell) for cell in line] for line in grid.cells],
            "notes": notes(grid),
        }
        for grid in shown.tables
    ]


def _facts(column: Any) -> dict[str, Any]:
    """What a column is, but for functions."""
    facts = {name: value for name, value in vars(column).items() if value and not callable(value)}
    return {**facts, "best": column.best.metric} if column.best else facts


def read(name: str, out: Path) -> None:
    """Write what each command of a reading prints, the streams apart, and its exit code."""
    if name == "answers":
        return answers(out)
    if name == "requests":
        return _write(out / "requests.txt", requests())
    if name == "records":
        from record_pages import records_page, records_schema

        return _write(out / "records.txt", f"{records_page()}\n{records_schema()}")
    with tempfile.TemporaryDirectory() as folder:
        here = shutil.copytree(RUNS, Path(folder) / "here")
        with chdir(here):
            for place in sorted({path.rpartition("/") for line in READINGS[name] for path in line.split()}):
                if place[2] in LATER:
                    later(place[0], place[2])
            texts = [_gated(line) if name == "gates" else said(_placed(line)) + _result() for line in READINGS[name]]
    texts = [f"$ attnprobe {line}\n{text}" for line, text in zip(READINGS[name], texts, strict=True)]
    _write(out / f"{name}.txt", "\n".join(texts))


def _any_time(text: str) -> str:
    """The text without times that are estimated."""
    text = re.sub(r"^about .*? before the first cell", "about TIME", text, flags=re.M)
    return re.sub(r"^attnprobe: about .*\n", "", text, flags=re.M)


def answers(out: Path) -> None:
    """Write again what each command line of the transcript prints, the streams apart, and its exit code.

    A line ``# NAME: TEXT`` of it writes a file. A folder of its own holds the inputs, and the runs in ``runs``.
    """
    texts = []
    with inputs() as here:
        shutil.copytree(RUNS, "runs")
        for line in (READ / "answers.txt").read_text(encoding="utf-8").splitlines():
            if line.startswith("# "):
                name, _, text = line[2:].partition(": ")
                Path(name).write_text(text.replace("\\n", "\n"), encoding="utf-8")
                texts.append(line)
            elif line.startswith("$ "):
                text = said(shlex.split(line)[2:]).replace(f"{here}", "HERE")
                texts.append(f"{line}\n{_any_time(text)}")
    _write(out / "answers.txt", "\n".join(texts))


def _result() -> str:
    """The result in words of what was reported just now, on its page, and the hash of each figure."""
    here = Path("again")
    pages = [page.read_text(encoding="utf-8") for page in here.glob("report.html")]
    results = [result for page in pages for result in re.findall('<p class="result">.*</p>', page)]
    figures = [f"{path.name}: {_drawn(path)['sha256']}" for path in sorted(here.glob("figures/*.svg"))]
    shutil.rmtree(here, ignore_errors=True)
    return "".join(f"{line}\n" for line in [*results, *figures])


def _placed(line: str) -> list[str]:
    words = line.split()
    return [*words, "--out", "again"] if words[0] == "report" else words


def _gated(line: str) -> str:
    """What the command of a finished run says of its gates, and its file of test cases."""
    run, *gates = line.split()
    asked = re.sub(r" --plot( [a-z,]+)?", "", COMMANDS[run]).split()
    with inputs() as here:
        shutil.copytree(RUNS / run, here / run)
        text = said([run.partition("-")[0], *asked, "--out", run, *gates])
        if "github" not in gates:
            text = text[text.index("--- stderr") :]  # the answer is that without gates
        return text + "".join(path.read_text(encoding="utf-8") for path in here.glob("*.xml"))


def said(words: list[str]) -> str:
    """What a command line prints, and its exit code."""
    from attnprobe.cli import main

    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    code: Any = None
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        try:
            main(words)
        except SystemExit as stop:
            code = stop.code or 0
    stdout, stderr = (stream.buffer.getvalue().decode() for stream in streams)
    return f"{stdout}--- stderr\n{stderr}--- exit {code}\n"


def later(command: str, kind: str) -> None:
    """Write a run like a command's with other numbers, other draws or fewer records; a record's key decides which."""
    shutil.copytree(RUNS / command, Path(command) / kind)
    path = Path(command) / kind / "records.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if any("schema" not in record for record in records):
        records = _changed_rows(records)
    elif kind == "LESS":
        records = [record for record in records if int(record["key"][0], 16) % 4]
    elif kind == "ODD":
        records = [odd for record in records for odd in _odd(record)]
        _odd_inputs(Path(command) / kind / "inputs.jsonl")
    else:
        records = [_changed(record, kind == "DRAWN") for record in records]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


def _changed(record: dict[str, Any], drawn: bool) -> dict[str, Any]:
    number = int(record["key"][:4], 16)
    factor = FACTORS[number % len(FACTORS)]
    changed = {**record, "metrics": {name: _scaled(value, factor) for name, value in record["metrics"].items()}}
    if drawn and record.get("draws_hash"):
        changed |= {"draws_hash": record["draws_hash"][::-1], "seed": record["seed"] + 10}
    if record["requested"] and number % 13 == 0:
        changed |= {"status": "failed", "reason": "out of memory", "metrics": {}}
    return changed


def _changed_rows(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of a run whose cells are rows, with other numbers; some cells failed."""
    failed = {line["key"] for line in lines if line.get("requested") and int(line["key"][:4], 16) % 13 == 0}
    changed = []
    for line in lines:
        if "schema" in line and line["key"] in failed:
            changed.append({**line, "lines": 0, "status": "failed", "reason": "out of memory"})
        elif line["key"] not in failed:
            factor = FACTORS[int(line["key"][:4], 16) % len(FACTORS)]
            known = COSTS if "schema" in line else line.keys() - {"ratio_to_exact"}  # of two times that are scaled
            numbers = {name: _scaled(line[name], factor) for name in known if name in line}
            changed.append({**line, **numbers})
    return changed


def _odd(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The record with numbers that are null, zero, tiny or huge, or with none; copies of another source and target."""
    number = int(record["key"][:4], 16)
    metrics = {name: _strange(value, number + len(name)) for name, value in record["metrics"].items()}
    lost = {"status": LOST[number // 4 % 3], "reason": "out of memory", "metrics": {}}
    lost |= {name: [] for name in LISTS if name in record}
    known = {name: value for name, value in record.items() if name not in PARTS}
    yield {**known, **lost} if number % 4 == 0 else {**record, "metrics": metrics}
    facts = {"scale_inputs": 0.5, "causal": True, "sliding_window": 8, "queries": "last 8 of 16"}
    yield {**record, "key": f"{record['key']}-scaled", "source": {**record["source"], **facts}}
    yield {**record, "key": f"{record['key']}-gaussian", "target": "gaussian"}


def _odd_inputs(path: Path) -> None:
    """Statistics of inputs of which some are null in every head."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for place, line in enumerate(lines):
        record = json.loads(line)
        metrics = {name: [_strange(x, len(name) + 1) for x in values] for name, values in record["metrics"].items()}
        lines[place] = json.dumps({**record, "metrics": metrics})
    if lines:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _strange(value: Any, number: int) -> Any:
    if isinstance(value, list):
        return [_strange(one, number + place) for place, one in enumerate(value)]
    return STRANGE[number % len(STRANGE)](value) if isinstance(value, float) else value


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [_scaled(one, factor) for one in value]
    return value * factor if isinstance(value, float) else value


def _drawn(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    return {"words": re.findall(r"<!-- (.*?) -->", text), "sha256": _sha256(_on_any_cpu(text))}


def _on_any_cpu(svg: str) -> str:
    """An SVG whose ids are numbers, and whose decimals are whole thousandths.

    matplotlib hashes unrounded floats for ids, and these differ between CPUs. So do decimals that lie in the middle of
    two that it writes: the limit between thousandths is at none of the simple fractions that a layout has.
    """
    ids = {name: str(number) for number, name in enumerate(dict.fromkeys(re.findall(r'id="(p[0-9a-f]{10})"', svg)))}
    svg = re.sub(r"\bp[0-9a-f]{10}\b", lambda found: ids.get(found[0], found[0]), svg)
    return re.sub(r"-?\d+\.\d+", lambda found: str(math.floor(1000 * float(found[0]) + 0.3137)), svg)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def keys_of(command: str, arguments: str) -> list[str]:
    """The keys of the cells that a command measures, in their order."""
    return [record["key"] for record in _records(command, arguments) if "schema" in record]  # rows have none


def bench_cells(arguments: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Of each cell of a bench what determines it but for the machine, and its record."""
    from attnprobe.records.file import identity_facts

    actual = []
    for record in (line for line in _records("bench", arguments) if "schema" in line):
        named = {name: record[name] for name in DETERMINING}
        named["options"] = dict(pair.split("=") for pair in record["options"].split(",") if pair)
        actual.append(
            ({**named, "heads": None, "source": identity_facts(record["source"]), **_asked(arguments)}, record)
        )
    return actual


def _asked(arguments: str) -> dict[str, Any]:
    """What keys of a bench hold of its request alone."""
    words = arguments.split()

    def after(name, default):
        return int(words[words.index(name) + 1]) if name in words else default

    return {
        "rounds": after("--rounds", 5),
        "memory": "--no-memory" not in words,
        "errors": "--errors" in words,
        "quadratic_n": after("--quadratic-n", 4096),
    }


def _records(command: str, arguments: str) -> list[dict[str, Any]]:
    with inputs() as here:
        attnprobe([command, *arguments.split(), "--out", "run"])
        lines = sorted(here.glob("run/records*.jsonl"))[0].read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def folder_of(name: str) -> str:
    """The folder of a sweep without ``--out``."""
    with inputs() as here:
        (here / f"{name}.yaml").write_text(SWEEPS[name], encoding="utf-8")
        printed = attnprobe(["sweep", f"{name}.yaml", "--dry-run"])
    return re.findall(r"done in (\S+)", printed)[0]


def options() -> str:
    """What every command takes, a line of JSON for each option: names, kind, default, help."""
    import click

    from attnprobe.cli import cli
    from attnprobe.experiments import EXPERIMENTS

    commands: dict[str, list[str]] = {}
    others = sorted({*cli.list_commands(click.Context(cli))} - {*EXPERIMENTS})
    for name in [*EXPERIMENTS, *others]:
        for option in (one for one in cli.get_command(None, name).params if isinstance(one, click.Option)):
            commands.setdefault(json.dumps(_option(option), ensure_ascii=False), []).append(name)
    lines = [{**json.loads(text), "of": some} for text, some in commands.items()]
    lines.sort(key=lambda one: (one["options"], one["of"]))
    return "\n".join(json.dumps(one, ensure_ascii=False) for one in lines) + "\n"


def requests() -> str:
    """What every command that measures is declared to be, and a line for each option of its request and output."""
    from attnprobe.experiments import EXPERIMENTS, experiment
    from attnprobe.run.option import options_of

    parts: dict[str, list[str]] = {}
    lines = []
    for name in EXPERIMENTS:
        known = experiment(name)
        lines.append(f"{name}: {_declared(known)}")
        for option in (*options_of(known.request), *options_of(known.output)):
            parts.setdefault(_declared(option), []).append(name)
    return "\n".join([*lines, *(f"{text} of {', '.join(some)}" for text, some in sorted(parts.items()))])


def _declared(one: Any) -> str:
    """The fields of a dataclass that are not empty; of functions and classes the names."""
    facts = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
    named = {name: getattr(value, "__name__", value) for name, value in facts.items() if value not in (None, (), {})}
    return re.sub(r"<function (\S+) at \w+>", r"\1", f"{named}")


def _option(option: Any) -> dict[str, Any]:
    facts = {"options": [*option.opts, *option.secondary_opts], "type": repr(option.type), "envvar": option.envvar}
    facts |= {name: getattr(option, name) for name in ("name", "multiple", "is_flag", "metavar", "nargs", "required")}
    default = option.default
    known = default is None or isinstance(default, (bool, int, float, str, tuple, list))
    return facts | {"default": default if known else None, "help": option.help}


def keys() -> dict[str, Any]:
    """The keys of every case."""
    actual: dict[str, Any] = {name: {one: keys_of(name, one) for one in some} for name, some in CASES.items()}
    actual["folders"] = {name: folder_of(name) for name in SWEEPS}
    actual["bench"] = {one: [determinants for determinants, _ in bench_cells(one)] for one in BENCH}
    return actual


def _write(path: Path, text: str) -> None:
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)


def _json_lines(values: dict[str, Any]) -> str:
    """An object with a line for each value, and for each item of one that is a list."""
    parts = []
    for name, value in values.items():
        lines = [
            json.dumps(one, ensure_ascii=False, sort_keys=True)
            for one in (value if isinstance(value, list) else [value])
        ]
        text = ",\n".join(lines)
        parts.append(f"{json.dumps(name)}: [\n{text}\n]" if isinstance(value, list) else f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}"


if __name__ == "__main__":
    sys.path.append(f"{HERE.parents[1] / 'docs' / '_extensions'}")
    asked = set(sys.argv[1:])
    if not asked or "measured" in asked:
        for name in [name for name in MEASURED if name in asked or asked <= {"measured"}]:
            _write(NOW / f"{name}.json", _json_lines(measured(name)))
    if "measured" in asked:
        sys.exit()
    some = asked & {*COMMANDS, *READINGS}
    names, readings = ([name for name in every if name in some or not some] for every in (COMMANDS, READINGS))
    if "runs" in asked:
        for name in names:
            measure(name, RUNS)
    if "options" in asked:
        _write(OPTIONS, options())
    if "keys" in asked:
        _write(KEYS, _json(keys()))
    _write(MATPLOTLIB, version("matplotlib"))
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            shown(name, Path(folder))
            shutil.rmtree(SHOWN / name, ignore_errors=True)
            shutil.copytree(Path(folder) / name, SHOWN / name)
    for name in readings:
        read(name, READ)
