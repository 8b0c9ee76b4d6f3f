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

    A head has the largest d over windows, or null if one window has no d. If a run has several files of a method, their
    names also contain the facts that differ: ε, n, target, metric, source.
    """
    labels = source_labels(cells)
    # each row with the fields of its cell, so that a file needs no cells
    heads = [
        {**cell, **head, "facts": cell["source"], "source": labels[identity(cell["source"])]}
        for cell in cells
        for head in cell["rows"]
        if head["kind"] == "head"
    ]
    varying = [name for name in TAGS if len({head[name] for head in heads}) > 1]
    files = {}
    for group in _groups(heads, "method", "options", *TAGS):
        tags = "".join(file_tag(TAGS[name](group[0][name])) for name in varying)
        files[f"budgets{file_tag(method_label(group[0]))}{tags}.json"] = _file(group)
    return files


def _groups(heads: Sequence[Fields], *names: str) -> list[list[Fields]]:
    """The rows with the same values of these fields, in the order of their first appearance."""
    groups: dict[tuple[Any, ...], list[Fields]] = {}
    for head in heads:
        groups.setdefault(tuple(head.get(name) for name in names), []).append(head)
    return [*groups.values()]


def _file(group: Sequence[Fields]) -> dict[str, Any]:
    """The contents of one file, from the rows of its heads in all windows."""
    first = group[0]
    budgets = []
    for windows in sorted(_groups(group, "layer", "head"), key=lambda rows: (rows[0]["layer"], rows[0]["head"])):
        # one budget must do for every text, so the hardest window decides
        d = max(float(window["found"]) for window in windows)
        is_found = math.isfinite(d)  # infinite if no budget up to the largest is enough in some window
        sure = not any(window["fails"] for window in windows) if is_found else None
        head = {name: windows[0][name] for name in ("layer", "head")}
        budgets.append({**head, "d": int(d) if is_found else None, "no_counterexample": sure})
    contents = {
        "schema": SCHEMA,
        "method": first["method"],
        "options": options_of(first["options"]),
        **{name: first[name] for name in ("metric", "epsilon", "n")},
        **{name: first["facts"].get(name) for name in ("model", "weights")},
        "target": first["target"],
        "scale_inputs": scale_of(first["facts"]),
        **{name: first[name] for name in ("delta", "seeds", "needed")},
        "windows": len({head["window"] for head in group}),
        "resolution": first["resolution"],
        "d_max": first["most"],
        "budgets": budgets,
    }
    file = first.get("method_file")
    return contents | ({"method_sha256": file["sha256"]} if file else {})
