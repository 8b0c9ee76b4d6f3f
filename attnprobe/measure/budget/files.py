"""The files of budgets that ``attnprobe budget`` leaves beside its records: `files_of`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...files import Fields
from ...frame.labels import file_tag, identity, scale_of, source_labels
from ...frame.records.file import SCHEMA
from ...grammar.lists import method_label, options_of

TAGS: dict[str, Callable[[Any], str]] = {  # the parts of file names
    "source": str,
    "target": str,
    "metric": str,
    "n": lambda n: f"n{n}",
    "epsilon": lambda epsilon: f"epsilon{epsilon:g}",
}


def files_of(cells: Sequence[Fields]) -> dict[str, dict[str, Any]]:
    """The contents of each ``budgets-METHOD.json``, by name: the d of every layer and head for one method and ε.

    A head has the largest d over windows, or null if one window has none. If a run has several files of a method, their
    names also contain what they differ in: ε, n, target, metric, source.
    """
    labels = source_labels(cells)
    rows = [
        {**cell, **row, "facts": cell["source"], "source": labels[identity(cell["source"])]}
        for cell in cells
        for row in cell["rows"]
        if row["kind"] == "head"
    ]
    varying = [name for name in TAGS if len({row[name] for row in rows}) > 1]
    files = {}
    for group in _groups(rows, "method", "options", *TAGS):
        tags = "".join(file_tag(TAGS[name](group[0][name])) for name in varying)
        files[f"budgets{file_tag(method_label(group[0]))}{tags}.json"] = _file(group)
    return files


def _groups(rows: Sequence[Fields], *names: str) -> list[list[Fields]]:
    """The rows with the same values of these fields, in the order of their first appearance."""
    groups: dict[tuple[Any, ...], list[Fields]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in names), []).append(row)
    return [*groups.values()]


def _file(group: Sequence[Fields]) -> dict[str, Any]:
    first = group[0]
    heads = []
    for rows in sorted(_groups(group, "layer", "head"), key=lambda rows: (rows[0]["layer"], rows[0]["head"])):
        d = max(float(row["found"]) for row in rows)
        known = math.isfinite(d)
        sure = not any(row["fails"] for row in rows) if known else None
        place = {name: rows[0][name] for name in ("layer", "head")}
        heads.append({**place, "d": int(d) if known else None, "no_counterexample": sure})
    contents = {
        "schema": SCHEMA,
        "method": first["method"],
        "options": options_of(first["options"]),
        **{name: first[name] for name in ("metric", "epsilon", "n")},
        **{name: first["facts"].get(name) for name in ("model", "weights")},
        "target": first["target"],
        "scale_inputs": scale_of(first["facts"]),
        **{name: first[name] for name in ("delta", "seeds", "needed")},
        "windows": len({row["window"] for row in group}),
        "resolution": first["resolution"],
        "d_max": first["most"],
        "budgets": heads,
    }
    file = first.get("method_file")
    return contents | ({"method_sha256": file["sha256"]} if file else {})
