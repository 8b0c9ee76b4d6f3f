"""Run folders of others: each case is a golden run with one hostile file, field, name, link or pipe.

``python tests/hostile/hostile_runs.py FIRST END`` tries these cases and lists those that break a promise.
"""

import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
RUNS, INPUTS = GOLDEN / "runs", GOLDEN / "inputs"
COMMANDS = ("error", "bench", "budget", "condition", "spectrum", "audit", "theory", "inject", "stability")
RESUMED = ("error", "condition")  # fast ones
CODES = (0, 2, 3, 4)
SECONDS = 60
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 0.5, 1.5, 1e308, 2**53, 2**70, 10**400, "", "x", "nan", "inf", "../../victim.txt"),
    *([], {}, [None], [1.5], ["x"], [[]], [{}], {"x": []}, {"value": [1.5]}, "\x1b[31m", "\ud800", "9" * 5000),
)
#: fields that golden records lack
MORE = (
    ("position", -1),
    ("mass", "nan"),
    ("rows", [{"kind": "head", "head": "x"}]),
    ("lines", 10**9),
    ("method_file", {"sha256": []}),
    ("matrix_open", ["x"]),
    ("row_tolerance", "nan"),
)
PLACES = ("rows.jsonl", "manifest.json", "inputs.jsonl", "report.html", "tables", "tables/error.md")
PLACES += (
    "figures",
    "figures/errors.svg",
    "maps",
    "maps/missing.json",
    "manifest-1-of-2.json",
    "rows-1-of-2.jsonl",
)
JUNK = (b"", b"\0" * 100, b"{", b"[]", b"[" * 9999, b"my notes\n", b"\xff\xfe", b'{"schema":1}\n', b"NaN", b"null\n")


class Case:
    """A hostile folder: what it is in words, its command, and a function that makes it of a golden run."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.number = number
        self.command = self.random.choice(COMMANDS)
        self.words = ""

    def make(self, run: Path) -> None:
        shutil.copytree(RUNS / self.command, run)
        kinds = (self.records, self.records, self.manifest, self.inputs, self.place, self.maps)
        self.random.choice(kinds)(run)

    def records(self, run: Path, file: str = "rows.jsonl") -> None:
        """The same change in one record, or in all."""
        path = run / file
        if not path.exists():
            return self.manifest(run)
        records = [json.loads(line) for line in path.read_text().splitlines()]
        place, value = self.change(self.random.choice(records))
        only = self.random.choice((None, self.random.randrange(len(records))))
        for number, record in enumerate(records):
            if only in (None, number):
                put(record, place, value)
        self.words = f"{file}: {place} = {value!r:.60} in {'all' if only is None else only}"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))

    def inputs(self, run: Path) -> None:
        self.records(run, "inputs.jsonl")

    def manifest(self, run: Path) -> None:
        manifest = json.loads((run / "manifest.json").read_text())
        place, value = self.change(manifest)
        put(manifest, place, value)
        self.words = f"manifest.json: {place} = {value!r:.60}"
        (run / "manifest.json").write_text(json.dumps(manifest))

    def change(self, record: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """A place in a record, and its new value; `del` where it goes."""
        if "kind" in record and self.random.random() < 0.15:
            name, value = self.random.choice(MORE)
            return (name,), value
        place = self.random.choice(list(places(record)))
        return place, self.random.choice((*VALUES, del_, del_, del_))

    def place(self, run: Path) -> None:
        """Something else in the place of a file or folder."""
        name, kind = self.random.choice(PLACES), self.random.choice(("link", "loop", "pipe", "folder", "junk", "junk"))
        self.words = f"{name}: {kind}"
        self.put(run / name, kind)

    def put(self, path: Path, kind: str) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        if kind == "link":
            path.symlink_to(path.parents[1] / "victim.txt")
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.write_bytes(self.random.choice(JUNK))

    def maps(self, run: Path) -> None:
        """A map that lies."""
        self.command = "error"
        shutil.rmtree(run)
        shutil.copytree(RUNS / "error", run)
        path = self.random.choice(sorted((run / "maps").glob("*.npy")))
        kind = self.random.choice(("pipe", "link", "loop", "folder", "junk", "shape", "dtype", "cut", "nan"))
        self.words = f"maps/KEY.npy: {kind}"
        if kind == "shape":
            lie = self.random.choice((10**9, 10**15, -1, 10**30))
            np.lib.format.write_array_header_1_0(file := io.BytesIO(), head("<f4", (2, lie, lie)))
            path.write_bytes(file.getvalue())
        elif kind == "dtype":
            np.save(path, np.zeros((2, 8, 8), self.random.choice(("i4", "c8", "S3", "f2"))))
        elif kind == "cut":
            path.write_bytes(path.read_bytes()[:-7])
        elif kind == "nan":
            np.save(path, np.full((2, self.random.choice((0, 1, 8)), 8), np.nan, "f4"))
        else:
            self.put(path, kind)

    def attempts(self, run: Path) -> Iterator[tuple[str, Callable[[], int]]]:
        """Ways to read the folder, by name; slow ones for some of the cases."""
        of_maps = self.words.startswith("maps")
        plot = "maps" if of_maps else "all" if self.random.random() < 0.05 else "none"
        elsewhere = ["--out", str(run.parent / "out")] if self.random.random() < 0.3 else []
        yield f"report --plot {plot}", lambda: main(["report", str(run), "--plot", plot, *elsewhere])
        yield "open_run", lambda: opened(run)
        if self.command in ("error", "bench"):
            yield "compare", lambda: main(["compare", str(RUNS / self.command), str(run)])
        if self.command in RESUMED and self.random.random() < 0.3:
            given = json.loads((RUNS / self.command / "manifest.json").read_text())["arguments"]
            plotless = [word for word in given[:-2] if word not in ("--plot", "errors,maps")]
            yield "resume", lambda: main([*plotless, "--out", str(run)])


def del_() -> None:
    """A field that goes."""


def head(descr: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"descr": descr, "fortran_order": False, "shape": shape}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*at, key))


def put(record: Any, place: tuple[Any, ...], value: Any) -> None:
    """Change a record where it has the place."""
    try:
        for key in place[:-1]:
            record = record[key]
        if value is del_:
            del record[place[-1]]
        else:
            record[place[-1]] = value
    except (KeyError, IndexError, TypeError):
        pass


def main(arguments: list[str]) -> int:
    from attnprobe.cli import main

    try:
        main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def opened(run: Path) -> int:
    """Open a run in Python, with its views and its frame."""
    from attnprobe.errors import AttnprobeError
    from attnprobe.show.page import open_run, views

    try:
        actual = open_run(run)
        for view in views(actual):
            view.text("md")
        actual.frame()
    except AttnprobeError as error:
        assert "\n" not in str(error), "a message of several lines"
        return error.exit_code
    return 0


def tree(folder: Path, but: Path) -> dict[str, Any]:
    """What a folder holds, but for what is below another."""
    held = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(place, name) != but]
        for name in files:
            path = Path(place, name)
            regular = path.is_file() and not path.is_symlink()
            held[str(path)] = path.read_bytes() if regular else path.lstat().st_mode
    return held


def broken(case: Case, place: Path) -> list[str]:
    """The promises that a case breaks: in each way to read the folder, a code and one line, and nothing outside."""
    faults = []
    for name in ("victim.txt", "victim.svg"):
        (place / name).write_text("mine")
    inner = place / "inner"
    inner.mkdir()
    (inner / "victim.txt").write_text("mine")
    (inner / "victim.svg").write_text("mine")
    case.make(inner / "template")
    for way, attempt in case.attempts(inner / "run"):
        shutil.rmtree(inner / "run", ignore_errors=True)
        copied(inner / "template", inner / "run")
        shutil.rmtree(inner / "out", ignore_errors=True)
        before = tree(place, inner / "run")
        fault = tried(attempt, (*CODES, 1) if way == "compare" else CODES)
        shutil.rmtree(inner / "out", ignore_errors=True)
        if not fault and tree(place, inner / "run") != before:
            fault = "changed outside the folder"
        if fault:
            faults.append(f"{case.number} {case.command} {way}: {case.words}: {fault}")
    return faults


def copied(source: Path, target: Path) -> None:
    """A copy with links and pipes as they are."""
    target.mkdir()
    for entry in os.scandir(source):
        if entry.is_symlink():
            (target / entry.name).symlink_to(os.readlink(entry))
        elif entry.is_dir():
            copied(Path(entry), target / entry.name)
        elif entry.is_file():
            shutil.copy(entry, target)
        else:
            os.mkfifo(target / entry.name)


def tried(attempt: Callable[[], int], codes: tuple[int, ...]) -> str:
    """What is wrong with an attempt; empty if nothing is."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError

    err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        with chdir(INPUTS), redirect_stderr(err), redirect_stdout(out):
            code = attempt()
            sys.stderr.flush()
            sys.stdout.flush()
    except TimeoutError:
        return f"still running after {SECONDS} s"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    finally:
        signal.alarm(0)
    text = err.buffer.getvalue().decode() if isinstance(err.buffer, io.BytesIO) else ""
    if code not in codes:
        return f"code {code}: {text.strip()[-200:]}"
    return "a traceback" if "Traceback" in text else ""


def all_broken(numbers: range) -> list[str]:
    faults = []
    for number in numbers:
        with tempfile.TemporaryDirectory() as place:
            faults += broken(Case(number), Path(place).resolve())
    return faults


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "ATTNPROBE_CACHE_SIZE": "0"}
    lines = 0
    for number in range(*map(int, sys.argv[1:])):
        faults = all_broken(range(number, number + 1))
        lines += len(faults)
        print(*faults, f"{number}: {lines}", sep="\n", flush=True)
