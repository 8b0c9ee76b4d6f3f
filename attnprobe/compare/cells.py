"""The cells of a run of `error` by identity, and whether two runs have the same sources."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UsageError
from ..records.file import LOWER_BOUND, NAMES, STATUSES, strict_json
from ..tables.numbers import short_hashes
from ..tables.rows import AnyRow

Key = tuple[Any, ...]


def cells_of(records: Iterable[AnyRow], name: str) -> dict[Key, AnyRow]:
    """The cells of a run by identity. Of equal ones, the best status wins, then the closest tolerance."""
    cells: dict[Key, AnyRow] = {}
    commands: set[str] = set()
    for record in records:
        command = record.get("command", "error")
        commands.add(str(command))
        if command != "error" or record.get("method") == LOWER_BOUND:
            continue
        key = (_source_of(record), *_row_key(record), *_cell_key(record))
        if key not in cells or _quality(record) <= _quality(cells[key]):
            cells[key] = record
    if not cells:
        others = ", ".join(f"`{command}`" for command in sorted(commands - {"error"}))
        holds = f"it holds records of {others}" if others else "it holds no record of a method"
        raise UsageError(f"{name}: {holds}; compare takes runs of `attnprobe error`")
    return cells


def _source_of(record: AnyRow) -> str:
    return strict_json({name: fact for name, fact in record["source"].items() if name not in NAMES})


def _row_key(record: AnyRow) -> Key:
    options = "" if "pair" in record else json.dumps(record.get("options") or {}, sort_keys=True)
    method = record.get("pair", record["method"])
    return (method, options, *(record.get(name) for name in ("target", "n", "d", "layer")))


def _cell_key(record: AnyRow) -> Key:
    return record.get("window"), record.get("seed"), tuple(record["heads"])


def _quality(record: AnyRow) -> tuple[int, float]:
    """The order of records: the status, then the tolerance of matrix errors; smaller is better."""
    tol = record.get("matrix_tol")
    return STATUSES.index(record["status"]), math.inf if tol is None else tol


def shared_sources(a: Mapping[Key, AnyRow], b: Mapping[Key, AnyRow]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The facts of the sources in both runs, and the names of the facts that differ between these sources.

    Raises:
        UsageError: each run has a source that the other lacks; the message names the facts that differ.
    """
    ours, others = ({key[0]: record["source"] for key, record in run.items()} for run in (a, b))
    lost = [json.loads(key) for key in ours if key not in others]
    new = [json.loads(key) for key in others if key not in ours]
    if lost and new:
        pair = min(((_differing(x, y), x, y) for x in lost for y in new), key=lambda differing: len(differing[0]))
        names = [ours[strict_json(pair[1])], others[strict_json(pair[2])]]
        facts = "; ".join(f"{name} {_fact(names[0], name)} in A, {_fact(names[1], name)} in B" for name in pair[0])
        raise UsageError(f"A and B measure different sources: {facts}")
    every = [json.loads(key) for key in {**ours, **others}]
    varying = sorted({name for x in every for y in every for name in _differing(x, y)})
    return [ours[key] for key in ours if key in others], varying


def _differing(x: Mapping[str, Any], y: Mapping[str, Any]) -> list[str]:
    return [name for name in sorted({**x, **y}) if name not in x or name not in y or x[name] != y[name]]


def _fact(source: Mapping[str, Any], name: str) -> str:
    """A fact in words; a hash with the name of the hashed file."""
    if name not in source:
        return "absent"
    text = short_hashes(json.dumps(source[name], ensure_ascii=False)).strip('"')
    called = source.get(name.removesuffix("_sha256")) if name.endswith("_sha256") else None
    return f"{text} ({called})" if called else text


def grouped(cells: Mapping[Key, AnyRow]) -> dict[Key, dict[Key, AnyRow]]:
    """The cells of each row, by window, seed and heads."""
    rows: dict[Key, dict[Key, AnyRow]] = {}
    for key, record in cells.items():
        rows.setdefault(key[:-3], {})[key[-3:]] = record
    return rows
