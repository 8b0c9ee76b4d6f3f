"""The files of budgets that ``attnprobe inject --plan`` leaves beside its rows: `files_of`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...files import Fields
from ...frame.labels import file_tag
from ...frame.records.file import SCHEMA
from ...grammar.lists import method_label, options_of
from . import LAVA, SHUFFLED


def files_of(cells: Sequence[Fields]) -> dict[str, dict[str, Any]]:
    """The contents of each ``budgets-METHOD-nN-dD.json``: the planned keys of every head at a prompt of N tokens."""
    files: dict[str, dict[str, Any]] = {}
    for cell in cells:
        planned: dict[int, list[int]] = {}
        for row in cell["rows"]:
            if row["kind"] == "plan":
                planned.setdefault(row["layer"], []).append(row["planned"])
        options, d = options_of(cell["options"]), cell["d"]
        by = options.pop("plan", None)
        if not planned or by in (SHUFFLED, LAVA):
            continue
        heads, source = len(cell["heads"]), cell["source"]
        budgets = [
            {"layer": layer, "head": head, "d": of_layer[head * len(of_layer) // heads]}
            for layer, of_layer in planned.items()
            for head in range(heads)
        ]
        label = method_label({"method": cell["method"], "options": options})
        files[f"budgets{file_tag(label)}-n{cell['n']}-d{d}.json"] = {
            "schema": SCHEMA,
            **{"method": cell["method"], "options": options, "by": by, "n": cell["n"]},
            **{"prompt": cell["prefix"], "mean": d, "target": cell["target"]},
            "kv_heads": len(next(iter(planned.values()))),
            **{name: source.get(name) for name in ("model", "weights")},
            "budgets": budgets,
        }
    return files
