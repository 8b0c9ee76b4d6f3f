"""The files that this program wrote to a folder. Only these are replaced or removed, never through a symbolic link.

A run's folder is known by its manifest. The tables, figures and pages in it, or in another folder that a report goes
to, are listed in ``produced.json`` by their paths relative to the folder; a file that is not listed is the user's. A
list may come from elsewhere: one with any other name than those of `OURS` is refused as a whole.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from reprlib import repr as shown
from tempfile import TemporaryDirectory

from ..errors import UsageError
from ..files import MIB, JsonObject, open_regular, read_json, reading
from .append import is_record
from .file import write_bytes, write_json, write_text

SCHEMA = 1
LIST = "produced.json"
LARGEST = 64 * MIB  # of a manifest or a list
FILES = re.compile(r"(records|inputs).*\.jsonl|manifest.*\.json|produced\.json")
PAGE = "report.html"
REPORTED = ("tables", "figures")
# the names of what is written, and of what an older version may have written: in the folder, never above it
OURS = re.compile(r"report\.html|budgets-[\w.-]+\.json|(tables|figures)/\w[\w.-]*", re.ASCII)
OLDER = re.compile(r"(?:(?:tables|figures)/)?(?!\.\.?$)[^/\\\0]+", re.DOTALL)
FOLDERS = re.compile("tables|figures|maps")
MANIFEST = re.compile(r"manifest(-\d+-of-\d+)?\.json")
# what a run that was killed before it wrote its manifest may leave
BEFORE = re.compile(r"\.[0-9a-f]{8}\.probe|\..+\.[0-9a-f]{8}\.tmp|\.lock-\d+-of-\d+")


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder with other files: not a run's folder, or a folder with records of another program.

    Nothing is written. A symbolic link in the place of a file or folder of the run is refused too; the folder itself
    may be one.

    Raises:
        UsageError: a folder that is refused, or that cannot be read.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if not BEFORE.fullmatch(name))
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be read: {error.strerror}") from error
    if not names:
        return
    manifests = [name for name in names if MANIFEST.fullmatch(name)]
    if not any(_is_manifest(folder / name) for name in manifests):
        if manifests:
            raise UsageError(f"{folder / manifests[0]}: not the manifest of a run; repair it, or choose another --out")
        raise UsageError(f"--out {folder} holds files but no run: choose a new or empty folder")
    for name in names:
        if FILES.fullmatch(name) or FOLDERS.fullmatch(name):
            _refuse_other(folder / name, stat.S_ISDIR if FOLDERS.fullmatch(name) else stat.S_ISREG)
        if name.endswith(".jsonl") and FILES.fullmatch(name) and not _begins_with_record(folder / name):
            raise UsageError(f"{folder / name}: its first line is not a record of attnprobe; choose another --out")
    _listed_files(folder)


def write_output(folder: Path, name: str, data: str | bytes) -> Path:
    """Write a table, figure or page to ``name`` in ``folder``, and list it as this program's.

    Raises:
        UsageError: a file that this program did not write, a symbolic link, a foreign list, or a full disk.
    """
    if not OURS.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of `OURS`")
    path = folder / name
    for parent in reversed(Path(name).parents[:-1]):
        _refuse_other(folder / parent, stat.S_ISDIR)
    _refuse_other(path, stat.S_ISREG)
    ours, older = _listed_files(folder)
    if name not in ours and name not in older and os.path.lexists(path):
        raise UsageError(f"{path} is not a file that attnprobe wrote; move it away, or choose another folder")
    if name not in ours:
        write_json(folder / LIST, {"schema": SCHEMA, "files": sorted(ours | {name}), "older": sorted(older - {name})})
    if isinstance(data, str):
        write_text(path, data)
    else:
        write_bytes(path, data)
    return path


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A new empty folder in ``folder`` for the length of a block."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = TemporaryDirectory(prefix=".scratch-", dir=folder)
    except OSError as error:
        raise UsageError(f"{folder}: cannot write: {error.strerror}") from error
    with place as name:
        yield Path(name)


def produced(folder: Path) -> list[str]:
    """The existing files of a folder that this program wrote, or an older version may have written.

    What an older version wrote is not known from what a user put beside it: `remove_output` leaves it.

    Raises:
        UsageError: a foreign list.
    """
    ours, older = _listed_files(folder)
    return sorted(name for name in ours | older if (folder / name).is_file())


def remove_output(folder: Path, name: str) -> bool:
    """Remove a file that this program wrote, and return whether it did."""
    path = folder / name
    try:
        for parent in Path(name).parents[:-1]:
            _refuse_other(folder / parent, stat.S_ISDIR)
        _refuse_other(path, stat.S_ISREG)
        if name not in _listed_files(folder)[0]:
            return False
        path.unlink()
    except (OSError, UsageError):
        return False
    return True


def remove_report_folder(folder: Path) -> bool:
    """Remove a report's files of one run from its folder, and return whether it was such a folder.

    A run's folder is not such a folder, nor is the folder of a report with a page. A user's file stays, with its
    folder.

    Raises:
        UsageError: a foreign list; nothing is removed.
    """
    if folder.is_symlink() or not (folder / LIST).is_file() or _is_run(folder):
        return False
    names = produced(folder)
    if PAGE in names:
        return False
    for name in names:
        remove_output(folder, name)
    with suppress(OSError):
        (folder / LIST).unlink()
        for place in (*(folder / name for name in REPORTED), folder):
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
    return True


def _listed_files(folder: Path) -> tuple[set[str], set[str]]:
    """The files that a folder lists as this program's, and those that an older version without a list may have
    written.
    """
    path = folder / LIST
    _refuse_other(path, stat.S_ISREG)
    if path.exists():
        with reading(path, UsageError, ": not a list of attnprobe's files; delete it, or choose another --out"):
            contents = read_json(path, LARGEST)
            if not isinstance(contents, dict) or contents.get("schema") != SCHEMA:
                raise ValueError(f"expected an object with schema {SCHEMA}")
            return _names(contents.get("files"), OURS), _names(contents.get("older"), OLDER)
    if not _is_run(folder):
        return set(), set()
    places = [folder, *(folder / name for name in REPORTED)]
    files = [file for place in places if not place.is_symlink() for file in place.glob("*") if file.is_file()]
    return set(), {file.relative_to(folder).as_posix() for file in files if not FILES.fullmatch(file.name)}


def _names(value: object, form: re.Pattern[str]) -> set[str]:
    """The names of a list, each of which has a form, so that it is in the folder."""
    if not isinstance(value, list):
        raise ValueError(f"expected lists of names, got {shown(value)}")
    for name in value:
        if not isinstance(name, str) or not form.fullmatch(name) or FILES.fullmatch(name):
            raise ValueError(f"{shown(name)} is not the name of a table, figure or page")
    return set(value)


def _is_run(folder: Path) -> bool:
    """Whether a folder holds a manifest or records of this program."""
    manifests = (path for path in folder.glob("manifest*.json") if MANIFEST.fullmatch(path.name))
    return any(map(_is_manifest, manifests)) or any(map(_begins_with_record, folder.glob("records*.jsonl")))


def _is_manifest(path: Path) -> bool:
    fields = _object(path) or {}
    return (
        type(fields.get("schema")) is int
        and isinstance(fields.get("command"), str)
        and all(isinstance(fields.get(name), kind) for name, kind in (("start", str), ("config", dict), ("plan", dict)))
    )


def _object(path: Path) -> JsonObject | None:
    """The JSON object in a regular file; None without one."""
    try:
        value = read_json(path, LARGEST)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _begins_with_record(path: Path) -> bool:
    """Whether a file is empty or begins with a record, complete or torn."""
    try:
        with open_regular(path, None) as file:
            return is_record(file.readline(LARGEST))
    except OSError:
        return False


def _refuse_other(path: Path, kind: Callable[[int], bool]) -> None:
    """Refuse a path that exists but is not of the expected kind; a symbolic link always."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if stat.S_ISLNK(mode):
        raise UsageError(f"{path} is a symbolic link, which is not followed; remove it, or choose another folder")
    if not kind(mode):
        what = "directory" if kind is stat.S_ISDIR else "regular file"
        raise UsageError(f"{path} is not a {what}; remove it, or choose another folder")
