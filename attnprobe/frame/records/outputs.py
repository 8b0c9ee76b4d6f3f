"""The files that a run and a report write to a folder, all with known names. `write_output` writes a file.

A run's folder is known by its manifest. A file is written under another name and then renamed, so that it is complete
or not there. Nothing is ever removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ...errors import UsageError
from ...files import MIB, read_json
from .file import write_bytes, write_text

LARGEST = 64 * MIB  # of a manifest
PAGE = "report.html"
OUTPUTS = re.compile(r"report\.html|budgets-[\w.-]+\.json|(tables|figures)/\w[\w.-]*", re.ASCII)
MANIFEST = re.compile(r"manifest(-\d+-of-\d+)?\.json")
# files of a run that was killed before it wrote its manifest
BEFORE = re.compile(r"\.[0-9a-f]{8}\.probe|\..+\.[0-9a-f]{8}\.tmp|\.lock-\d+-of-\d+")


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder that has files, but not the manifest of a run. Nothing is written.

    Raises:
        UsageError: a folder that is refused, or that cannot be read.
    """
    try:
        names = [name for name in os.listdir(folder) if not BEFORE.fullmatch(name)]
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be read: {error.strerror}") from error
    if names and not any(MANIFEST.fullmatch(name) and _is_manifest(folder / name) for name in names):
        raise UsageError(f"--out {folder} holds files but no run: choose a new or empty folder")


def write_output(folder: Path, name: str, data: str | bytes) -> Path:
    """Write a table, figure or page to ``name`` in ``folder``; it replaces an earlier file.

    Raises:
        UsageError: a subfolder that is a link to another place, or a full disk.
    """
    if not OUTPUTS.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of `OUTPUTS`")
    path = folder / name
    # a subfolder that is a link would let a report write outside of its folder
    target = os.path.realpath(path.parent)
    if not Path(target).is_relative_to(os.path.realpath(folder)):
        raise UsageError(f"{path.parent} is a link to {target}, outside of the folder; remove the link")
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
        directory = TemporaryDirectory(prefix=".scratch-", dir=folder)
    except OSError as error:
        raise UsageError(f"{folder}: cannot write: {error.strerror}") from error
    with directory as name:
        yield Path(name)


def _is_manifest(path: Path) -> bool:
    """Whether a file is the manifest of a run."""
    try:
        fields = read_json(path, LARGEST)
    except (OSError, ValueError):
        return False
    kinds = {"schema": int, "command": str, "start": str, "config": dict, "plan": dict}
    return isinstance(fields, dict) and all(isinstance(fields.get(name), kind) for name, kind in kinds.items())
