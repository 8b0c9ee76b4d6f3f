"""Opens a user's files: regular files only, of a bounded size, with errors of one line."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .errors import AttnprobeError, SourceError, UsageError, cut, nearest
from .grammar.foreign import message
from .grammar.lists import TEXTS

if TYPE_CHECKING:
    from torch import Tensor

Fields = Mapping[str, Any]  # a JSON object that is only read
JsonObject = dict[str, Any]
MIB = 1 << 20
GIB = 1 << 30
DEEPEST = 64  # levels of nested JSON
# said of every file of methods that cannot be loaded, whatever the cause
NO_METHOD = ": no method can be loaded from it"  # behind the path of a file
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
        limit: its largest size in bytes; None sets no bound, for files that are read in parts.

    Raises:
        OSError: the file is absent, unreadable, not a regular file (a directory, a named pipe, a device, a socket), or
            larger than ``limit``. Its ``strerror`` names the fault.

    >>> open_regular("/", limit=MIB)
    Traceback (most recent call last):
        ...
    OSError: [Errno 22] it is a directory, not a regular file: '/'
    """
    _refuse(path, os.stat(path), limit)  # before it is opened: opening a device may act on it
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        _refuse(path, os.fstat(file.fileno()), limit)  # another file may have the name by now
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """The bytes of a file. At most ``limit`` bytes are read, for any size that the system states."""
    with open_regular(path, limit) as file:
        # one byte more tells a file that grew after its size was read
        data = file.read(limit + 1)
    if len(data) > limit:
        raise _too_large(path, limit)
    return data


def read_json(path: str | os.PathLike[str], limit: int) -> Any:
    """The value of a JSON file of at most ``limit`` bytes.

    Raises:
        OSError: see `open_regular`. ValueError: see `parse_json`.
    """
    return parse_json(read_regular(path, limit))


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    >>> parse_json("[" * 500 + "]" * 500)
    Traceback (most recent call last):
        ...
    ValueError: nested deeper than 64 levels
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from error
    level = [value]
    # level by level and not by recursion, which Python's own limit would end
    for _ in range(DEEPEST):
        held = [x.values() if isinstance(x, dict) else x for x in level if isinstance(x, (dict, list))]
        level = [x for container in held for x in container]
        if not level:
            return value
    raise ValueError(f"nested deeper than {DEEPEST} levels")


def path_of(name: str | os.PathLike[str], error: type[AttnprobeError] = UsageError) -> Path:
    """The path of a user's ``name``, with ``~`` expanded.

    Raises:
        AttnprobeError: ``error``, if the name cannot be a path: it is too long, or its ``~USER`` does not exist.
    """
    try:
        path = Path(name).expanduser()
        # asks the system, which alone knows whether a name is too long
        path.exists()
    except (OSError, RuntimeError, ValueError) as why:
        reason = getattr(why, "strerror", None) or message(why)
        raise error(f"'{cut(os.fspath(name))}' is not a valid path: {reason}") from why
    return path


FORMS = "q, k, v (and mask), or layer0.window0.q, .k, .v"  # the names of a file's tensors


def text_file(name: str) -> Path:
    """The path of a text file."""
    path = path_of(name, SourceError)
    if path.is_dir():
        raise SourceError(f"text {name} is a directory: name a text file")
    if not path.exists():
        raise SourceError(f"no such text file: {name}{nearest(name, TEXTS)}")
    if not path.is_file():
        raise SourceError(f"text {name} is not a regular file")
    return path


def qkv_file(name: str) -> Path:
    """The path of a file with Q, K and V."""
    path = path_of(name, SourceError)
    if not path.is_file():
        fault = "is a directory" if path.is_dir() else "does not exist"
        raise SourceError(f"--qkv {name} {fault}: name a safetensors file with {FORMS}")
    if path.suffix in (".pt", ".pth"):
        way_out = 'write them with safetensors.torch.save_file({"q": q, "k": k, "v": v}, "qkv.safetensors")'
        raise SourceError(f"--qkv {name} is a file of torch.save: load its tensors with torch.load, and {way_out}")
    return path


@contextmanager
def reading(
    name: str | os.PathLike[str], error: type[AttnprobeError] = UsageError, what: str = ": cannot be read"
) -> Iterator[None]:
    """A context that turns every exception into ``error`` with one line: the file's name, ``what`` and the reason.

    The package's own errors pass through unchanged, because their messages name the fault.

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
        text = getattr(why, "strerror", None) or message(why)
        if isinstance(why, UnicodeDecodeError):
            text = f"byte {why.start} is not UTF-8"
        elif isinstance(why, KeyError):
            text = f"{why} is missing or unknown"
        raise error(f"{cut(os.fspath(name), 200)}{what}: {cut(' '.join(text.split()), 300)}") from why


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to ``path``. At the end of the block, the file written there replaces ``path``.

    If the block fails, the temporary file is removed and ``path`` does not change.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, replacing(Path(folder) / "a") as temporary:
    ...     _ = temporary.write_text("complete")
    """
    # beside the target: os.replace is atomic within one file system only
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    # an interrupt too must leave no temporary file
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file. A new file gets the usual permissions, an old one keeps its own.

    `safetensors.torch.save_file` alone would set 0600.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # a file that exists keeps its mode; a new one gets that of the user's umask
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)


def writing(name: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """`reading` for a file or folder that is written: for an impossible name, or a full disk."""
    return reading(name, UsageError, ": cannot be written")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn the operating system's errors into one that names the path."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: cannot write: {error.strerror or error}") from error


def _refuse(path: str | os.PathLike[str], facts: os.stat_result, limit: int | None) -> None:
    if not stat.S_ISREG(facts.st_mode):
        kind = KINDS.get(stat.S_IFMT(facts.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))
    if limit is not None and facts.st_size > limit:
        raise _too_large(path, limit)


def _too_large(path: str | os.PathLike[str], limit: int) -> OSError:
    bound = f"{limit // MIB} MiB" if limit >= MIB else f"{limit} bytes"
    return OSError(errno.EFBIG, f"it is larger than {bound}, the most that is read", os.fspath(path))
