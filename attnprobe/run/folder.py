"""The folder of a run: created or resumed, locked, described by a manifest, complete however the run ends."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..files import JsonObject, path_of
from ..frame.records.append import RecordWriter
from ..frame.records.file import SCHEMA, Shard, cell_key, parse_shard, plain, run_directory, write_json
from ..frame.records.outputs import refuse_foreign
from ..frame.records.read import malformed_notes, read_typed
from .cells import Cells
from .option import KEYS, Option, options_of
from .provenance import device_name, git_commit, threads, versions

if TYPE_CHECKING:
    from ..files import JsonObject
    from .topics.running import RunRequest


@dataclass
class Outcome:
    """The result of a run.

    Attributes:
        records: of all cells, earlier records and new ones. done_before: the number of the earlier ones.
        measured: the number of the new ones.
        processes: the facts of the other processes that measured. deaths: the reasons why some of them died.
    """

    records: list[Any] = field(default_factory=list)
    done_before: int = 0
    measured: int = 0
    processes: list[JsonObject] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)


@dataclass
class RunFolder:
    """An open folder of a run.

    Attributes:
        path: the folder. writer: of its records. done: its earlier records that count, by key.
        changes: in words, the options that had other values in the folder's last run.
        outcome: the result of the run, set before the folder is closed.
    """

    path: Path
    writer: RecordWriter
    done: Mapping[str, Any]
    changes: str
    outcome: Outcome = field(default_factory=Outcome)


@contextmanager
def run_folder(request: RunRequest, cells: Cells, notify: Callable[[str], None]) -> Iterator[RunFolder]:
    """Open or resume a run's folder for a block. Success, an error and Ctrl-C all leave a complete manifest.

    A shard has its own ``rows-I-of-N.jsonl`` and ``manifest-I-of-N.json``: no two processes write to one file.

    Raises:
        UsageError: a shard without a folder, or a folder that cannot be a run's.
    """
    shard = parse_shard(request.shard)
    start = datetime.now(UTC)
    path, made = _folder(request, start, cells.command)
    done = {} if made else _earlier(path, cells, notify)
    earlier = done.keys()  # kept: the file holds these records also if they are measured again
    if request.force:
        done = {}
    elif request.retry_failed:
        done = {key: record for key, record in done.items() if record["status"] != "failed"}
    manifest = _manifest(request, cells, start)
    changes = "" if made else _changes(_file(path, "manifest.json", shard), manifest["config"], type(request))
    with _in_order(path, made, manifest, notify, shard):
        with RecordWriter(_file(path, "rows.jsonl", shard)) as writer:
            folder = RunFolder(path, writer, done, changes)
            yield folder
        outcome = folder.outcome
        for name in ("processes", "deaths"):
            if facts := getattr(outcome, name):
                manifest[name] = facts
        if not cells.may_be_empty and shard is None:
            _refuse_empty(outcome, path, made)
        others = earlier - {record["key"] for record in outcome.records}
        if others and shard is not None:  # records of the other shards are of the same settings
            others -= cells.all_keys()
        if others:  # named, so that a report can show the records of this run alone
            manifest["other_settings"] = sorted(others)
    if others:
        notify(f"tables and figures show this command's settings alone; {path} keeps {len(others)} cells of others")


@contextmanager
def _in_order(
    path: Path, made: bool, manifest: JsonObject, notify: Callable[[str], None], shard: Shard | None
) -> Iterator[None]:
    """Hold the run's folder for a block: locked, and with a manifest that says how the run ended.

    A folder that this run created and left without records is removed.
    """
    locks = _locked(path, shard)
    manifest_file = _file(path, "manifest.json", shard)
    try:
        write_json(manifest_file, manifest)
        yield
        manifest["status"] = "finished"
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        manifest["status"] = "interrupted" if interrupted else "failed"
        if made and not _has_records(path):
            _remove(path, shard)
        elif interrupted:
            notify(f"interrupted; finished cells are kept: run the same command with --out {path} to resume")
            error.args = ("announced",)
        raise
    finally:
        for lock in locks:
            os.close(lock)
        if path.is_dir():
            manifest["end"] = datetime.now(UTC).isoformat(timespec="seconds")
            try:
                write_json(manifest_file, manifest)
            except UsageError as error:  # a full disk: measured cells are still shown
                notify(f"{error}; the manifest does not tell how the run ended")


def held_already(request: RunRequest, cells: Cells) -> dict[str, JsonObject]:
    """The records of a request's folder by key; empty if there is no folder yet."""
    return {} if request.out is None else _earlier(path_of(request.out), cells)


def _refuse_empty(outcome: Outcome, path: Path, made: bool) -> None:
    """Refuse a run whose records vanished, or in which no requested cell could run."""
    if not (path / "rows.jsonl").is_file():
        raise UsageError(f"{path} vanished while the run was writing to it: its records are lost")
    requested = [record for record in outcome.records if record["requested"]]
    if requested and all(record["status"] == "skipped" for record in requested):
        if made:
            (path / "rows.jsonl").unlink()
        raise UsageError(requested[0]["reason"])


def named_folder(out: str) -> Path:
    """The folder of ``--out``, which may not be there yet."""
    if not out.strip():
        raise UsageError("--out is empty; name a folder, or leave --out away for a new one under outputs/")
    path = path_of(out)
    if path.exists() and not path.is_dir():
        raise UsageError(f"--out {path} is not a directory")
    if path.exists():
        refuse_foreign(path)
    return path


def _folder(request: RunRequest, start: datetime, command: str) -> tuple[Path, bool]:
    """The run's folder, and whether this run created it."""
    if request.out is None and request.shard is not None:
        raise UsageError(f"shard {request.shard}: name the folder that the shards share; give --out DIR")
    if request.out is None:
        tag = cell_key(request=asdict(request))[:6]
        return run_directory(request.base, command, start.strftime("%Y%m%d-%H%M%S"), tag), True
    try:
        path = named_folder(request.out)
        made = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        # the name is random: a process on another machine may have the same process number
        probe = path / f".{secrets.token_hex(4)}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        if isinstance(error, FileNotFoundError):  # a parent that can hold no folders, such as /proc
            raise UsageError(f"--out {request.out[:80]}: no folder can be created there; choose another") from error
        raise UsageError(f"--out {request.out[:80]} cannot be written: {error.strerror or error}") from error
    return path, made


def _file(path: Path, name: str, shard: Shard | None) -> Path:
    return path / name if shard is None else shard.of(path / name)


def _locked(path: Path, shard: Shard | None) -> list[int]:
    """Descriptors of locked files, so that two runs never write to one file.

    A run has an exclusive lock on its folder. Shards share that lock, and each has its own lock too. On a file system
    without locks there is no lock.
    """
    try:
        import fcntl
    except ImportError:  # not POSIX
        return []
    held: list[int] = []

    def take(file: Path, flags: int, how: int, target: str) -> None:
        held.append(os.open(file, flags, 0o666))
        try:
            fcntl.flock(held[-1], how | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            for descriptor in held:
                os.close(descriptor)
            raise UsageError(f"--out {path}: another run is writing {target}") from error
        except OSError:  # a network file system may have no locks, or no locks of folders
            pass

    take(path, os.O_RDONLY, fcntl.LOCK_EX if shard is None else fcntl.LOCK_SH, "to this folder; choose another")
    if shard is not None:
        take(_file(path, ".lock", shard), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, fcntl.LOCK_EX, f"shard {shard} there")
    return held


def _has_records(path: Path) -> bool:
    return any(file.is_file() and file.stat().st_size for file in path.glob("rows*.jsonl"))


def _earlier(path: Path, cells: Cells, notify: Callable[[str], None] = lambda line: None) -> dict[str, JsonObject]:
    """The records that a folder already has, by key. ``notify`` gets a line for each malformed record."""
    if not _has_records(path):
        return {}
    earlier = read_typed(path, lambda command: cells.shape if command == cells.command else None)
    for line in malformed_notes(earlier.malformed, "counts as not measured"):
        notify(line)
    return {record["key"]: record for record in earlier.records}


def _changes(file: Path, config: JsonObject, request: type[RunRequest]) -> str:
    """The options of what is measured whose values differ from those of the last run, in words."""
    try:
        config_before = json.loads(file.read_text(encoding="utf-8"))["config"]
        values = {name: entry["value"] for name, entry in config_before.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # no manifest, or a damaged one
        return ""
    changes = []
    for option in options_of(request):
        now = plain(config[option.name]["value"])
        if option.role == KEYS and values.get(option.name, now) != now:
            changes.append(f"--{option.long} {_in_words(values[option.name])} → {_in_words(now)}")
    return ", ".join(changes)


def _in_words(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "not given" if value is None else str(value)


def _remove(path: Path, shard: Shard | None) -> None:
    """Remove a folder that this run created and left without a record."""
    with suppress(OSError):
        for name in ("manifest.json", "rows.jsonl", "inputs.jsonl", *([] if shard is None else [".lock"])):
            _file(path, name, shard).unlink(missing_ok=True)
        path.rmdir()


def _origin(request: RunRequest, option: Option) -> str:
    """The origin of an option's value. A request from Python has no origins: its values are defaults, or not."""
    if option.name in request.origin:
        return request.origin[option.name]
    return "default" if getattr(request, option.name) == option.default else "python"


def _manifest(request: RunRequest, cells: Cells, start: datetime) -> JsonObject:
    """The manifest of a run; ``source`` is a list if there are several."""
    config = {
        option.name: {"value": getattr(request, option.name), "origin": _origin(request, option)}
        for option in options_of(type(request))
    }
    facts = [source.facts for source in cells.sources]
    return {
        "schema": SCHEMA,
        "command": cells.command,
        "shard": request.shard,
        "arguments": sys.argv[1:],
        "config": config,
        "plan": cells.plan(),
        "source": facts[0] if len(facts) == 1 else facts,
        "described": [source.describe() for source in cells.sources],
        "versions": versions(),
        "git_commit": git_commit(),
        "device": device_name(str(cells.sources[0].device)),
        "threads": threads(),
        "dtype": request.source.dtype,
        "start": start.isoformat(timespec="seconds"),
        "status": "running",
    }
