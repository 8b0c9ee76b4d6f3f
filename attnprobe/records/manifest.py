"""What a run's folder says of itself: the manifest of its last run, or those of the shards that it was done in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .shards import parse_shard

__all__ = ["read_manifest"]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder; empty where there is none.

    Shards have a manifest each, which agree on plan and sources. They count as one run, which is finished once every
    shard is; a later run without shards is told of instead.

    Raises:
        UsageError: a file that is no manifest.
    """
    files = [folder / "manifest.json", *sorted(folder.glob("manifest-*-of-*.json"))]
    found = [(_read(path), path.stat().st_mtime_ns) for path in files if path.exists()]
    if not found:
        return {}
    last, _ = max(found, key=lambda one: (str(one[0].get("start")), one[1]))  # the start is of a whole second
    count = _count(last)
    return last if count is None else _together([one for one, _ in found if _count(one) == count], last, count)


def _together(shards: Sequence[Mapping[str, Any]], last: Mapping[str, Any], count: int) -> dict[str, Any]:
    """One manifest of the shards of a run, with what the last of them says but for how it ended."""
    ended = {one["shard"] for one in shards if one.get("status") == "finished"}
    status = "finished" if len(ended) == count else f"finished in {len(ended)} of {count} shards"
    others = {key for one in shards for key in one.get("other_settings") or ()}
    return {**last, "status": status, **({"other_settings": sorted(others)} if others else {})}


def _count(manifest: Mapping[str, Any]) -> int | None:
    """How many shards a manifest's run has; None where it has none."""
    text = manifest.get("shard")
    shard = parse_shard(text) if isinstance(text, str) else None
    return None if shard is None else shard.count


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: this is no JSON; remove it, and the records alone are shown") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: this is no manifest; remove it, and the records alone are shown")
    return found
