"""A small run of every command that measures, and what commands print of it.

``runs/`` holds the folder that each command left: rows, manifest, inputs, maps. Tests of tables, figures, pages and of
damage read them. After a change of what a command writes, here for the runs ``error`` and ``error-rows``:

    cd tests; python -m golden.small_runs error error-rows
"""

import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

os.environ["ATTNPROBE_CACHE_SIZE"] = "0"  # what is measured does not depend on earlier runs
HERE = Path(__file__).resolve().parent
INPUTS, RUNS = HERE / "inputs", HERE / "runs"
WIDTH = 100

FILE = "--qkv qkv.safetensors"
MODEL = "--model tiny --text words.txt --n 16"
COMMANDS = {  # a further run of a command has a name of its own behind a hyphen
    "error": f"{FILE} --method vmean,skyformer,nystromformer:inverse=pinv,linformer,torch:sdpa-math --d 4,8,64 "
    "--windows 2 --repeats 2 --scale-inputs 1,4 --plot errors,maps",
    "error-rows": "--model decoder --text words.txt --n 16 --method topk,window,nystromformer --d 5 --layer 0,1 "
    "--head 0,2 --windows 2 --rows --no-matrix --plot positions",
    "spectrum": f"{MODEL} --weights pretrained,initialized --of softmax,lifted-gaussian,skyformer --d 4 --plot",
    "condition": f"{FILE} --method skyformer,nystromformer,vmean --d 4,8 --sensitivity --iterations 4 --plot",
    "theory": f"{FILE} --theorem skyformer-theorem-2,skyformer-lemma-3,skeinformer-jl,rank-collapse,eckart-young "
    "--method skyformer --d 4 --epsilon 0.1,0.5 --repeats 3 --plot",
    "audit": f"{FILE} --method performer,skeinformer,bigbird --d 8 --epsilon 0.2,1 --delta 0.05,0.3 --repeats 60 "
    "--plot",
    "rounding-formats": f"{FILE} --method nystromformer,performer,topk --d 4,8 --formats bf16,fp16 --plan --plot all",
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
MEASURED = {  # further small runs, whose numbers are compared
    "methods": f"error {FILE} --method all --d 8 --rows",
    "methods-causal": "error --model decoder --text words.txt --n 16 --method all --d 6 --rows --layer 1 --head 0,2 "
    "--no-matrix",
    "theorems": f"theory {FILE} --theorem all --method skyformer,nystromformer,linformer --d 4 --epsilon 0.1,0.5 "
    "--repeats 2",
    "condition-steps": f"condition {FILE} --method skyformer,nystromformer,vmean --d 4 --sensitivity --iterations 2 "
    "--head 0",
    "audit-few": f"audit {FILE} --method performer,skeinformer,bigbird --d 8,12 --epsilon 0.2,1 --delta 0.05,0.3 "
    "--repeats 9 --rows",
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


if __name__ == "__main__":
    for command in sys.argv[1:] or COMMANDS:
        measure(command, RUNS)
