"""Appends finished cells to a file, one ``write`` for each cell with its rows."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ...errors import UsageError
from ...files import Fields, JsonObject, naming
from ..rows import lines_of
from .file import SCHEMA, STATUSES, encode_inf, strict_json

try:
    import fcntl
except ImportError:  # not POSIX: one writer per file, as the run arranges
    fcntl = None


class RecordWriter:
    """Appends records to one file, each with a single ``write`` to a descriptor in append mode.

    Before the first append, an incomplete last line is cut off; a complete record that lacks only its newline stays. An
    incomplete write, as on a full disk, is taken back. If the file is removed meanwhile, it is made again with the
    records of this writer. Appends and the repair hold an advisory lock where the file system has one, so
    processes that share the file do not harm each other. A file that does not begin with a record is left as it is.

    Raises:
        UsageError: a folder or a file that cannot be written, a symbolic link, a file of something else; the message
            names it.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    >>> with RecordWriter(path) as writer:
    ...     writer.append({"key": "k", "status": "ok", "metrics": {"output_spectral": [0.5, float("nan")]}})
    >>> path.read_text()
    '{"key":"k","metrics":{"output_spectral":[0.5,null]},"schema":1,"status":"ok"}\\n'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._open: int | None = None
        self._lines: list[bytes] = []  # written, should the file vanish

    def __enter__(self) -> RecordWriter:
        with naming(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
            self._open = os.open(self.path, flags, 0o666)
            try:
                with _locked(self._descriptor):
                    self._refuse_foreign()
                    self._repair()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._open is not None:
            os.close(self._open)
            self._open = None

    @property
    def _descriptor(self) -> int:
        if self._open is None:
            raise RuntimeError("RecordWriter is used outside its `with` block")
        return self._open

    def append(self, record: Fields) -> None:
        """Write one record as one line; ``schema`` is filled in."""
        if record.get("status", "ok") not in STATUSES:
            raise ValueError(f"status {record['status']!r} is not one of {', '.join(STATUSES)}")
        # all lines of a cell in one write, so that a kill between two lines cannot part them
        line = _lines(record)
        if os.fstat(self._descriptor).st_nlink == 0:  # removed while it was open: what is written would be lost
            self.__exit__()
            self.__enter__()
            self._write(b"".join(self._lines))
        self._write(line)
        self._lines.append(line)

    def _write(self, lines: bytes) -> None:
        with naming(self.path), _locked(self._descriptor):
            written = os.write(self._descriptor, lines)
            # a part of a cell would join the next cell
            if written != len(lines):
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
                raise OSError(f"only {written} of {len(lines)} bytes could be written; is the disk full?")

    def _refuse_foreign(self) -> None:
        """Refuse a file of another program: repairing it would cut its text."""
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise UsageError(f"{self.path}: not a regular file")
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            if not is_record(file.readline()):
                raise UsageError(f"{self.path}: its first line is not one of attnprobe; move the file away")

    def _repair(self) -> None:
        """End the file at the end of a cell: complete a last line that lacks only its newline, drop torn lines and rows
        whose cell was cut off.
        """
        size = os.fstat(self._descriptor).st_size
        line = self._line_before(size)
        if line and not line.endswith(b"\n") and ends_cell(line):
            os.write(self._descriptor, b"\n")
            return
        # rows without the line of their cell would count for a later cell of the same key
        end = size
        while line and not (line.endswith(b"\n") and ends_cell(line)):
            end -= len(line)
            line = self._line_before(end)
        if end < size:
            os.ftruncate(self._descriptor, end)

    def _line_before(self, end: int) -> bytes:
        """The last line before an offset, with its newline if it has one; empty at the beginning."""
        start, tail = end, b""
        while start > 0 and b"\n" not in tail[:-1]:
            # in steps from the end: a file may be large, and the last line is short
            step = min(start, 1 << 16)
            start -= step
            os.lseek(self._descriptor, start, os.SEEK_SET)
            tail = os.read(self._descriptor, step) + tail
        return tail[tail.rfind(b"\n", 0, len(tail) - 1) + 1 :]


def is_record(line: bytes) -> bool:
    """Whether the first line of a file is a record, empty, or the torn beginning of one.

    >>> [is_record(line) for line in (b"", b'{"key":"a","schema":1}\\n', b'{"ke', b"my notes", b'{"a":1}\\n')]
    [True, True, True, False, False]
    """
    value = _object(line)
    if value is None:
        return not line.endswith(b"\n") and b'{"'.startswith(line[:2])
    return isinstance(value.get("key"), str) and (
        type(value.get("schema")) is int or isinstance(value.get("kind"), str)
    )


def ends_cell(line: bytes) -> bool:
    """Whether a line is complete and the last of its cell. It has the schema; the rows before it do not.

    >>> [ends_cell(line) for line in (b'{"key":"a","schema":2}', b'{"key":"a","kind":"head"}', b'{"key":"a","sch')]
    [True, False, False]
    """
    return "schema" in (_object(line) or {})


def _lines(record: Fields) -> bytes:
    """A record as its lines."""
    whole = {"schema": SCHEMA, **record}
    lines = map(encode_inf, lines_of(whole)) if "rows" in record else [whole]
    return "".join(strict_json(line) + "\n" for line in lines).encode()


def _object(line: bytes) -> JsonObject | None:
    """The object of a line; None without one."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@contextlib.contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """An exclusive advisory lock. On file systems without locks, only one writer per file is safe."""
    if fcntl is None:
        yield
        return
    held = False
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        held = True
    try:
        yield
    finally:
        if held:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
