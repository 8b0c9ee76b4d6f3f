"""The results of ``attnprobe check`` as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

MARKS = {"ok": "✓", "failed": "✗", "skipped": "–"}
WIDTH = 110
UNCLAIMED = "not claimed"


def conformance_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each property, and one for those whose tags the method does not have; then each failure with its
    smallest case and the command that repeats it, once for all properties with the same reason.

    >>> print(conformance_table([{"property": "scale", "target": "softmax", "status": "ok", "cases": 4, "says": "s"}]))
    ✓ scale  4 cases  s
    <BLANKLINE>
    1 holds, 0 fail, 0 do not apply
    """
    several = len({row["target"] for row in rows}) > 1
    rows, unclaimed = ([row for row in rows if (row.get("reason") == UNCLAIMED) is claim] for claim in (False, True))
    names = [row["property"] + (f" ({row['target']})" if several else "") for row in rows]
    width, room = (max(map(len, texts), default=0) for texts in (names, [_tried(row) for row in rows]))
    lines = []
    for name, row in zip(names, rows, strict=True):
        head = f"{MARKS[row['status']]} {name:{width}}  {_tried(row):{room}}  "
        text = row["reason"] if row["status"] == "skipped" else row["says"]
        lines += textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    if unclaimed:
        properties = ", ".join(dict.fromkeys(row["property"] for row in unclaimed))
        lines += textwrap.wrap(f"– {UNCLAIMED}: {properties}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    same: dict[str, list[str]] = {}  # by reason: what fails for it
    for name, row in zip(names, rows, strict=True):
        if row["status"] == "failed":
            same.setdefault(row["reason"], []).append(name)
    for row in rows:
        if row["status"] == "failed" and (failing := same.pop(row["reason"], None)):
            case = " ".join(f"{key}={value}" for key, value in row["case"].items())
            lines += [
                "",
                *textwrap.wrap(
                    f"{', '.join(failing)}: {row['reason']}", WIDTH, initial_indent="✗ ", subsequent_indent="  "
                ),
                f"  smallest case: {case}",
            ]
            if row.get("replay"):
                lines.append(f"  again: {row['replay']}")
    counts = [sum(row["status"] == status for row in rows) for status in ("ok", "failed", "skipped")]
    words = (
        "holds" if counts[0] == 1 else "hold",
        "fails" if counts[1] == 1 else "fail",
        "does not apply" if counts[2] == 1 else "do not apply",
    )
    summary = ", ".join(f"{count} {word}" for count, word in zip(counts, words, strict=True))
    return "\n".join([*lines, "", summary])


def _tried(row: Mapping[str, Any]) -> str:
    return f"{row['cases']} case{'s' if row['cases'] != 1 else ''}" if row["status"] == "ok" else row["status"]
