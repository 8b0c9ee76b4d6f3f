"""The one door through which a user's file is opened: regular files only, of a bounded size, and one line of error."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from .errors import AttnprobeError, UsageError

__all__ = ["GIB", "MIB", "open_regular", "read_json", "read_regular", "reading"]

MIB = 1 << 20
GIB = 1 << 30
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | os.PathLike[str], limit: int | None) -> BinaryIO:
    """The file at ``path``, open for reading bytes; it never blocks.

    Args:
        limit: the most bytes that it may hold; None sets no bound, for files that are read in parts.

    Raises:
        OSError: absent, unreadable, no regular file (a directory, a named pipe, a device, a socket), or larger than
            ``limit``; its ``strerror`` says which.

    >>> open_regular("/", limit=MIB)
    Traceback (most recent call last):
        ...
    OSError: [Errno 22] it is a directory, not a regular file: '/'
    """
    _refuse(path, os.stat(path), limit)  # before it is opened: opening a device may act on it
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        _refuse(path, os.fstat(file.fileno()), limit)  # what was opened, should the name have changed hands
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """The bytes of a file, of which no more than ``limit`` are read, whatever size it claims.

    Raises:
        OSError: as `open_regular`.
    """
    with open_regular(path, limit) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise _too_large(path, limit)
    return data


def read_json(path: str | os.PathLike[str], limit: int) -> Any:
    """What a JSON file holds.

    Raises:
        OSError: as `open_regular`. ValueError: it is no JSON, or nested too deep.
    """
    data = read_regular(path, limit)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from error


@contextmanager
def reading(name: str | os.PathLike[str], error: type[AttnprobeError] = UsageError) -> Iterator[None]:
    """Turn whatever reading a foreign file raises into one line of ``error`` that begins with the file's name.

    Errors of the package pass: they name what is wrong already.

    >>> with reading("a.json"):
    ...     int("x")
    Traceback (most recent call last):
        ...
    attnprobe.errors.UsageError: a.json: cannot be read: invalid literal for int() with base 10: 'x'
    """
    try:
        yield
    except (AttnprobeError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as why:  # parsers of five libraries raise a dozen kinds, and one of Rust panics
        text = getattr(why, "strerror", None) or str(why) or type(why).__name__
        raise error(f"{os.fspath(name)}: cannot be read: {' '.join(text.split())}") from why


def _refuse(path: str | os.PathLike[str], found: os.stat_result, limit: int | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))
    if limit is not None and found.st_size > limit:
        raise _too_large(path, limit)


def _too_large(path: str | os.PathLike[str], limit: int) -> OSError:
    bound = f"{limit // MIB} MiB" if limit >= MIB else f"{limit} bytes"
    return OSError(errno.EFBIG, f"it is larger than {bound}, the most that is read", os.fspath(path))
