"""Reading a run's folder: its cells line by line, each checked against the type of its command, and its manifest.

Malformed lines and fields are named.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar

from ...errors import UsageError
from ...files import MIB, Fields, JsonObject, open_regular, parse_json, read_regular, reading
from ...grammar.arguments import checked
from ...grammar.foreign import printable_within
from .file import CELL, SCHEMA, inputs_path, parse_shard

if TYPE_CHECKING:
    from ..rows import RowTypes
    from .shapes import Manifest

LONGEST = 64 * MIB  # size of a line
TOO_LONG = "this line is longer than 64 MiB; repair or remove it"
TORN = "the file ends within this line"
NO_OBJECT = "this line is no JSON object; repair or remove it"
KEY = re.compile(rb'"key": ?"([0-9a-f]{24})"')  # finds the key in a line that is damaged elsewhere
TypesOf = Callable[[str], "RowTypes | None"]
R = TypeVar("R")
Line = tuple[Path, int, "JsonObject | Malformed"]


@dataclass(frozen=True)
class Malformed:
    """A malformed line of a file, or a malformed field of a manifest.

    Attributes:
        line: the line's number; None for a manifest. key: of the line's cell, None if it cannot be read.
        reason: what is wrong.
    """

    file: Path
    line: int | None
    key: str | None
    reason: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        cell = "" if self.key is None else f"cell {self.key}: "
        return f"{where}: {cell}{self.reason}"


@dataclass(frozen=True)
class ReadRecords(Generic[R]):
    """The cells of a run, one for each key, and the malformed lines whose key has no cell.

    ``left_out`` is the number of cells with other settings than the run's last command (see `of_last_command`).
    """

    records: list[R] = field(default_factory=list)
    malformed: list[Malformed] = field(default_factory=list)
    left_out: int = 0

    def required(self) -> list[R]:
        """The cells; an error if every line is malformed."""
        if self.malformed and not self.records:
            raise UsageError(f"{self.malformed[0]}; the run has no valid line")
        return self.records


def malformed_notes(malformed: Sequence[Malformed], consequence: str, most: int = 5) -> list[str]:
    """A note on each of the first ``most`` malformed lines, and a note with the number of the others.

    Args:
        consequence: what follows for the line, as ``is left out``.
    """
    rest = len(malformed) - most
    notes = [f"{line}; it {consequence}" for line in malformed[:most]]
    return [*notes, f"{rest} more lines are malformed"] if rest > 0 else notes


@checked()
def read_records(path: str | os.PathLike[str]) -> list[JsonObject]:
    """The cells of a file, or of a run's directory (every ``rows*.jsonl`` in it, by name), with their rows, unchecked.

    An incomplete last line is left out. Of cells with one key the last counts, but a cell that is not ok never
    replaces a cell that is ok. `read_typed` checks types too.

    Raises:
        UsageError: no such file, a malformed line (with ``file:line``), or a schema newer than this version's.
    """
    read = _merged(_records(_files(path)))
    for line in read.malformed:
        if line.reason != TORN:
            raise UsageError(str(line))
    return read.records


def read_typed(path: str | os.PathLike[str], types_of: TypesOf) -> ReadRecords[JsonObject]:
    """The cells as `read_records` has them, checked against the type of their command; malformed ones are named.

    Other fields than those of the type are left out. Cells of unknown commands stay as they are.

    Args:
        types_of: the types of a command's rows, None for a command that is not known.

    Raises:
        UsageError: no such file, or a file that cannot be read.
    """
    return _merged(_typed(_records(_files(path)), types_of))


def of_last_command(read: ReadRecords[JsonObject], manifest: Manifest) -> ReadRecords[JsonObject]:
    """The cells that tables and figures of a run's folder show: those of its last command, or all if it has none."""
    others = set(manifest.get("other_settings", ()))
    shown = [record for record in read.records if record["key"] not in others] or read.records
    return replace(read, records=shown, left_out=len(read.records) - len(shown))


def left_out_note(path: str | os.PathLike[str], count: int) -> list[str]:
    """A line on the cells of other settings in a run's folder, if there are some."""
    return [f"{path} has {count} cells of other settings, which are not shown"] if count else []


def read_inputs(run: str | os.PathLike[str]) -> ReadRecords[JsonObject]:
    """The cells of `inputs_path`, one for each layer that was read; empty without such a file.

    Raises:
        UsageError: a file that cannot be read.
    """
    from ..inputs import INPUT_ROWS

    path = inputs_path(run)
    files = sorted(path.parent.glob(f"{path.stem}*{path.suffix}"))
    return _merged(_typed(_records(files), lambda command: INPUT_ROWS))


def _files(path: str | os.PathLike[str]) -> list[Path]:
    """The files of rows that a path names: itself, or those in a run's directory."""
    path = Path(path)
    with reading(path):
        if path.is_dir():
            files = sorted(path.glob("rows*.jsonl"))
            if not files:
                raise UsageError(f"{path}: no rows*.jsonl in this directory; is it a run?")
            return files
        if not path.exists():
            raise UsageError(f"{path}: no such file or run directory")
        return [path]


def _merged(lines: Iterable[Line]) -> ReadRecords:
    """One cell for each key; a malformed line matters only if its key has no valid cell."""
    by_key: dict[object, JsonObject] = {}
    malformed: list[Malformed] = []
    for _, _, record in lines:
        if isinstance(record, Malformed):
            malformed.append(record)
            continue
        key = record.get("key", ("without a key", len(by_key)))
        # a cell that failed when it was measured again must not hide its good result
        if key in by_key and by_key[key].get("status") == "ok" != record.get("status"):
            continue
        by_key[key] = record
    return ReadRecords(list(by_key.values()), [line for line in malformed if line.key not in by_key])


def _typed(lines: Iterable[Line], types_of: TypesOf) -> Iterator[Line]:
    """The cells checked against the types of their commands."""
    for file, number, record in lines:
        if isinstance(record, Malformed):
            yield file, number, record
            continue
        command = record.get("command")
        key = record["key"] if isinstance(record.get("key"), str) else None
        types = types_of(command) if isinstance(command, str) else None
        if types is not None:
            problem = types.problem(record)
            known = types.known(record) if problem is None else record
        else:
            problem = None if isinstance(command, str) and key is not None else "field command: missing"
            known = record
        yield file, number, known if problem is None else Malformed(file, number, key, problem)


def _records(files: Iterable[Path]) -> Iterator[Line]:
    """The cells of files, each as an object of this format or as malformed. A cell has the rows before its line."""
    for path in files:
        rows: dict[object, list[JsonObject]] = {}  # of cells whose line has not come yet, by key
        for _, number, line in _lines(path):
            if isinstance(line, Malformed):
                yield path, number, line
            elif "schema" not in line:  # a row
                rows.setdefault(line.get("key"), []).append(line)
            elif line.get("kind") == CELL:
                yield path, number, {**line, "rows": _last(rows.pop(line.get("key"), []), line.get("lines"))}
            else:
                yield path, number, line


def _last(rows: list[JsonObject], count: object) -> list[JsonObject]:
    """The last ``count`` rows, which belong to a cell's line.

    Earlier rows of the same key are of a cell whose line was lost, and which was measured again.

    >>> _last([{"head": 0}, {"head": 0}], 1)
    [{'head': 0}]
    """
    return rows[-count:] if isinstance(count, int) and 0 < count < len(rows) else rows


def _lines(path: Path) -> Iterator[Line]:
    """The lines of a file, each as an object of this format or as malformed."""
    with reading(path), open_regular(path, None) as file:
        for number, line, torn in _bounded(file):
            record = _parsed(line)
            if record is None:
                yield path, number, Malformed(path, number, _key_in(line), _damage(line, torn))
                continue
            reason = _refusal(record)
            yield path, number, Malformed(path, number, None, reason) if reason else record


def _bounded(file: BinaryIO) -> Iterator[tuple[int, bytes | None, bool]]:
    """The lines that are not blank: number, bytes (None if too long), and whether the newline is missing."""
    number = 0
    while line := file.readline(LONGEST):
        number += 1
        end = line
        while len(end) == LONGEST and not end.endswith(b"\n"):  # a longer line: read on to its end
            end = file.readline(LONGEST)
        if line.strip():
            yield number, line if end is line else None, not end.endswith(b"\n")


def _damage(line: bytes | None, torn: bool) -> str:
    """The reason why a line is malformed."""
    if torn:
        return TORN
    return TOO_LONG if line is None else NO_OBJECT


def _key_in(line: bytes | None) -> str | None:
    """The key in a damaged line; None if it cannot be read.

    >>> _key_in(b'{"d":4,"key":"0123456789abcdef01234567","lay')
    '0123456789abcdef01234567'
    """
    match = None if line is None else KEY.search(line)
    return None if match is None else match[1].decode()


def _parsed(line: bytes | None) -> JsonObject | None:
    """A line as an object; None if it is malformed."""
    try:
        value = None if line is None else json.loads(line)
        # a text of another program may control a terminal; plain ASCII cannot, and need not be searched
        if line is not None and (b"\\" in line or not line.isascii()):
            value = printable_within(value)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refusal(record: Fields) -> str:
    """The reason why an object is not of this format; empty if it is of it."""
    if "schema" not in record and isinstance(record.get("kind"), str):  # a row; its cell has the schema
        return "" if isinstance(record.get("key"), str) else "this is not a row: its key is not a string"
    schema = record.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        return f"this is not a line of attnprobe: its schema is {json.dumps(schema)[:40]}"
    if not isinstance(record.get("key", ""), str):
        return "this is not a line of attnprobe: its key is not a string"
    return f"schema {schema} is newer than {SCHEMA}, which this version reads; upgrade" if schema > SCHEMA else ""


LARGEST = 64 * MIB  # size of a manifest


def read_manifest(folder: Path) -> tuple[Manifest, list[Malformed]]:
    """The manifest of a folder, empty if there is none, and its fields of a wrong type, which are left out.

    Each shard has its own manifest with the same plan and sources. Together the shards are one run, which is finished
    once every shard is finished. A later run without shards replaces them.

    Raises:
        UsageError: a file that is no manifest at all.
    """
    files = [folder / "manifest.json", *sorted(folder.glob("manifest-*-of-*.json"))]
    malformed: list[Malformed] = []
    read = [(_read(path, malformed), path.stat().st_mtime_ns) for path in files if path.exists()]
    if not read:
        return {}, []
    # the start is in whole seconds; of equal starts the file that was written last is the last
    last, _ = max(read, key=lambda manifest_and_time: (manifest_and_time[0].get("start", ""), manifest_and_time[1]))
    count = _count(last)
    same_run = [manifest for manifest, _ in read if _count(manifest) == count]
    return (last if count is None else _together(same_run, last, count)), malformed


def _together(shards: Sequence[Manifest], last: Manifest, count: int) -> Manifest:
    """One manifest of the shards of a run: the last shard's, with the status of all shards."""
    finished = {shard.get("shard") for shard in shards if shard.get("status") == "finished"}
    status = "finished" if len(finished) == count else f"finished in {len(finished)} of {count} shards"
    others = {key for shard in shards for key in shard.get("other_settings") or ()}
    manifest: Manifest = {**last, "status": status}
    if others:
        manifest["other_settings"] = sorted(others)
    return manifest


def _count(manifest: Manifest) -> int | None:
    """The number of shards of a manifest's run; None without shards."""
    shard = parse_shard(manifest.get("shard"))
    return None if shard is None else shard.count


def _read(path: Path, malformed: list[Malformed]) -> Manifest:
    """One manifest without fields of a wrong type, which are added to ``malformed``."""
    from .shapes import MANIFEST

    way_out = "correct it, or delete it to show the rows alone"
    with reading(path):
        data = read_regular(path, LARGEST)
    try:
        contents = parse_json(data)
    except ValueError as error:
        raise UsageError(f"{path}: not a manifest: {error}; {way_out}") from error
    if not isinstance(contents, dict):
        raise UsageError(f"{path}: not a manifest: expected an object; {way_out}")
    problems = MANIFEST.by_field(contents)
    malformed += [Malformed(path, None, None, problem) for problem in problems.values()]
    return MANIFEST.known({name: value for name, value in contents.items() if name not in problems})
