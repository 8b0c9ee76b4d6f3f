"""One run of a command from start to end: its source, its plan, its folder and its manifest."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import UsageError, unknown
from ..installation import device_name, git_commit, threads, versions
from ..records import SCHEMA, STATUSES, RecordWriter, cell_key, read_records, run_directory, write_json
from ..reference import TARGETS
from ..sources import SourceSpec, resolve
from ..timings import Timings
from .maps import keep_maps
from .plan import ErrorPlan, MethodRequest, parse_methods, parse_numbers
from .run import Outcome, run_error

__all__ = ["ErrorRequest", "Session", "measure_errors", "parse_layers"]

MOST = 100_000  # windows, and repeats


@dataclass(frozen=True)
class ErrorRequest:
    """What ``attnprobe error`` was asked for, as the user wrote it. None is the default.

    Args:
        methods: ``--method`` items (see `parse_methods`).
        n, d: ``--n`` and ``--d``, lists such as ``"512,1024"``; n None is 512, or all tokens of a Q/K/V file.
        layer, head: lists, ranges or ``all``; layer None is 0, or a Q/K/V file's first.
        matrix, tol: whether matrix errors are measured, and the width at which an interval is closed.
        out: the run's folder; a folder that holds records already is gone on with.
        base: where new run folders are made.
        origin: where each value came from, for the manifest.
    """

    source: SourceSpec = field(default_factory=SourceSpec)
    methods: tuple[str, ...] = ("skyformer",)
    n: str | None = None
    d: str = "128"
    layer: str | None = None
    head: str = "all"
    windows: int = 1
    seed: int = 0
    repeats: int = 1
    target: str = "softmax"
    matrix: bool = True
    tol: float = 1e-3
    out: str | None = None
    base: str = "outputs"
    origin: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Session:
    """A finished run: its records, folder, source and plan, and why maps that were asked for are missing, by key."""

    outcome: Outcome
    path: Path
    source: Any
    plan: ErrorPlan
    unmapped: Mapping[str, str] = field(default_factory=dict)


def measure_errors(
    request: ErrorRequest,
    *,
    maps: bool = False,
    notify: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int, str], None] = lambda done, total, label: None,
    timings: Timings | None = None,
) -> Session:
    """Resolve the source, measure every cell, and leave ``manifest.json`` and ``records.jsonl`` in the run's folder.

    With ``maps`` also the block averages of `keep_maps`, in ``maps/``; no record depends on them.

    A folder that was made for this run and holds no record when something goes wrong is removed again. After an
    interruption the manifest says so, and the same request with that folder as ``out`` goes on.

    Raises:
        UsageError, SourceError: as the parts say; nothing is left behind.
        KeyboardInterrupt: passed on once the folder is in order.
    """
    timings = timings or Timings()
    source, plan = prepared(request, notify, timings)

    def measure(writer: RecordWriter, done: Mapping[str, dict[str, Any]], run: str) -> Outcome:
        outcome = run_error(plan, source, writer, done=done, run=run, timings=timings, progress=progress)
        if maps:
            unmapped.update(
                keep_maps(plan, source, outcome.records, writer.path.parent, timings=timings, progress=progress)
            )
        return outcome

    unmapped: dict[str, str] = {}
    outcome, path = recorded(request, "error", planned(plan), [source], notify, measure)
    return Session(outcome, path, source, plan, unmapped)


def prepared(request: ErrorRequest, notify: Callable[[str], None], timings: Timings) -> tuple[Any, ErrorPlan]:
    """The source of a request and its plan, once nothing in them is impossible."""
    methods, n, d = _asked(request)
    source = resolve(request.source, notify=notify, timings=timings)
    plan = ErrorPlan(
        methods=methods,
        n=n or (source.default_n,),
        d=d,
        layers=parse_layers(request.layer, source),
        heads=None if request.head == "all" else tuple(parse_numbers(request.head, "head", source.head_numbers)),
        windows=request.windows,
        seed=request.seed,
        repeats=request.repeats,
        target=request.target,
        tol=request.tol if request.matrix else None,
    )
    _refuse_impossible(plan)
    for length in plan.n:
        source.check(length, plan.windows, plan.layers)
    return source, plan


def recorded(
    request: Any,
    command: str,
    plan: Mapping[str, Any],
    sources: Sequence[Any],
    notify: Callable[[str], None],
    measure: Callable[[RecordWriter, Mapping[str, dict[str, Any]], str], Outcome],
    may_be_empty: bool = False,
) -> tuple[Outcome, Path]:
    """Let ``measure(writer, done, run)`` fill the run's folder, and leave that in order however it ends.

    Args:
        plan, sources: for the manifest. may_be_empty: whether a run counts in which no requested cell could run.
    """
    start = datetime.now(UTC)
    path, made = _folder(request, start, command)
    done = {} if made else _earlier(path)
    with _in_order(path, made, _manifest(request, plan, sources, start, command), notify):
        with RecordWriter(path / "records.jsonl") as writer:
            outcome = measure(writer, done, path.name)
        if not may_be_empty:
            _refuse_empty(outcome, path, made)
    others = len(done.keys() - {record["key"] for record in outcome.records})
    if others:
        notify(f"{path} holds {others} records of other settings too; tables and figures show this run's alone")
    return outcome, path


def _asked(request: ErrorRequest) -> tuple[tuple[MethodRequest, ...], tuple[int, ...] | None, tuple[int, ...]]:
    """The methods, lengths and budgets of a request, refused before anything heavy where they cannot be."""
    if request.target not in TARGETS:
        raise unknown("target", request.target, TARGETS)
    for name, value in (("windows", request.windows), ("repeats", request.repeats)):
        if not 1 <= value <= MOST:
            raise UsageError(f"{name}={value}: choose a number from 1 to {MOST}")
    if not 0 < request.tol < 1:
        raise UsageError(f"tol={request.tol:g}: choose a relative width above 0 and below 1, such as 0.001")
    methods = tuple(parse_methods(request.methods, request.target))
    d = tuple(parse_numbers(request.d, "d"))
    if request.n is None:
        return methods, None, d
    n = tuple(parse_numbers(request.n, "n"))
    for length in n:
        if length < 2:
            raise UsageError(f"n={length}: attention needs at least 2 tokens")
    _refuse_impossible(ErrorPlan(methods, n, d, (), None, target=request.target))
    return methods, n, d


@contextmanager
def _in_order(
    path: Path, made: bool, manifest: dict[str, Any], notify: Callable[[str], None]
) -> Iterator[None]:
    """Hold the run's folder for a block: locked, with a manifest that tells how it ended, or gone if it is empty."""
    lock = _locked(path)
    try:
        write_json(path / "manifest.json", manifest)
        yield
        manifest["status"] = "finished"
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        manifest["status"] = "interrupted" if interrupted else "failed"
        if made and not _has_records(path):
            _remove(path)
        elif interrupted:
            notify(f"interrupted; the finished cells are kept: run the same command with --out {path} to go on")
            error.args = ("told",)
        raise
    finally:
        os.close(lock)
        if path.is_dir():
            manifest["end"] = datetime.now(UTC).isoformat(timespec="seconds")
            write_json(path / "manifest.json", manifest)


def _refuse_empty(outcome: Outcome, path: Path, made: bool) -> None:
    """A run whose records vanished, or in which no requested cell could run at all, is none."""
    if not (path / "records.jsonl").is_file():
        raise UsageError(f"{path} vanished while the run was writing to it: its records are lost")
    asked = [record for record in outcome.records if record["requested"]]
    if asked and all(record["status"] == "skipped" for record in asked):
        if made:
            (path / "records.jsonl").unlink()
        raise UsageError(asked[0]["reason"])


def _refuse_impossible(plan: ErrorPlan) -> None:
    if (why := plan.refusal()) is not None:
        raise UsageError(why)


def parse_layers(text: str | None, source: Any) -> tuple[int, ...]:
    """The layers that a list names; None is layer 0, or the first that a Q/K/V file has."""
    if text is None:
        return (0,) if 0 in source.available else source.available[:1]
    return tuple(parse_numbers(text, "layer", source.available))


def _folder(request: Any, start: datetime, command: str) -> tuple[Path, bool]:
    """The run's folder, and whether it was made now."""
    if request.out is not None and not request.out.strip():
        raise UsageError("--out has no name; leave it out for a new folder under outputs/")
    if request.out is None:
        tag = cell_key(request=asdict(request))[:6]
        return run_directory(request.base, command, start.strftime("%Y%m%d-%H%M%S"), tag), True
    try:
        path = Path(request.out).expanduser()
        if path.exists() and not path.is_dir():
            raise UsageError(f"--out {path} is not a directory")
        made = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except (OSError, RuntimeError) as error:
        raise UsageError(f"--out {request.out[:80]} cannot be written: {getattr(error, 'strerror', error)}") from error
    return path, made


def _locked(path: Path) -> int:
    """A descriptor of the folder under an exclusive lock, so that two runs never write to one folder.

    Raises:
        UsageError: another run holds it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass
    except OSError as error:
        os.close(descriptor)
        raise UsageError(f"--out {path}: another run is writing to this folder; choose another") from error
    return descriptor


def _has_records(path: Path) -> bool:
    return any(file.is_file() and file.stat().st_size for file in path.glob("records*.jsonl"))


def _earlier(path: Path) -> dict[str, dict[str, Any]]:
    """The records that a folder holds already, by key."""
    if not _has_records(path):
        return {}
    found = {}
    for record in read_records(path):
        whole = isinstance(record.get("key"), str) and record.get("status") in STATUSES
        if not whole or not isinstance(record.get("metrics"), dict) or "heads" not in record:
            raise UsageError(f"{path}: its records are not of this program; choose another --out")
        found[record["key"]] = record
    return found


def _remove(path: Path) -> None:
    """Take back a folder that this run made and left without a record."""
    with suppress(OSError):
        for name in ("manifest.json", "records.jsonl"):
            (path / name).unlink(missing_ok=True)
        path.rmdir()


def planned(plan: ErrorPlan) -> dict[str, Any]:
    """The plan as a manifest shows it."""
    return {
        "methods": [{"name": m.name, "options": dict(m.options)} for m in plan.methods],
        "n": plan.n, "d": plan.d, "layers": plan.layers, "heads": plan.heads, "windows": plan.windows,
        "seed": plan.seed, "repeats": plan.repeats, "target": plan.target, "tol": plan.tol,
    }  # fmt: skip


def _manifest(
    request: Any, plan: Mapping[str, Any], sources: Sequence[Any], start: datetime, command: str
) -> dict[str, Any]:
    """What a run's folder says of itself; ``source`` is a list where there are several."""
    values = {**{key: value for key, value in asdict(request).items() if key not in ("source", "origin")}}
    values.update(asdict(request.source))
    config = {name: {"value": value, "origin": request.origin.get(name, "default")} for name, value in values.items()}
    facts = [source.facts for source in sources]
    return {
        "schema": SCHEMA,
        "command": command,
        "arguments": sys.argv[1:],
        "config": config,
        "plan": plan,
        "source": facts[0] if len(facts) == 1 else facts,
        "versions": versions(),
        "git_commit": git_commit(),
        "device": device_name(str(sources[0].device)),
        "threads": threads(),
        "dtype": request.source.dtype,
        "start": start.isoformat(timespec="seconds"),
        "status": "running",
    }
