"""The manifest of a run's folder: that of its last run, or of its shards together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..files import MIB, parse_json, read_regular, reading
from .file import parse_shard
from .read import Malformed

if TYPE_CHECKING:
    from .shapes import Manifest

LARGEST = 64 * MIB


def read_manifest(folder: Path) -> tuple[Manifest, list[Malformed]]:
    """The manifest of a folder, empty if there is none, and the fields of a wrong type, which are left out.

    Each shard has its own manifest with the same plan and sources. Together they are one run, which is finished once
    every shard is. A later run without shards takes their place.

    Raises:
        UsageError: a file that is no manifest at all.
    """
    files = [folder / "manifest.json", *sorted(folder.glob("manifest-*-of-*.json"))]
    malformed: list[Malformed] = []
    read = [(_read(path, malformed), path.stat().st_mtime_ns) for path in files if path.exists()]
    if not read:
        return {}, []
    last, _ = max(read, key=lambda one: (one[0].get("start", ""), one[1]))  # the start is in whole seconds
    count = _count(last)
    same = [one for one, _ in read if _count(one) == count]
    return (last if count is None else _together(same, last, count)), malformed


def _together(shards: Sequence[Manifest], last: Manifest, count: int) -> Manifest:
    """One manifest of the shards of a run: the last one's, with the status of all."""
    finished = {one.get("shard") for one in shards if one.get("status") == "finished"}
    status = "finished" if len(finished) == count else f"finished in {len(finished)} of {count} shards"
    others = {key for one in shards for key in one.get("other_settings") or ()}
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

    way_out = "correct it, or delete it to show the records alone"
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
