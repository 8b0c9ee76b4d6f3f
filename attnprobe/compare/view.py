"""Two runs side by side as tables of strings, for every format that people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..tables.numbers import method_label, short_hashes, significant

__all__ = ["comparison_legend", "comparison_line", "comparison_tables"]

Row = Mapping[str, Any]
HEADINGS = ["method", "verdict", "d", "A", "B", "B / A", "B − A ± s.e. (in s.e.)"]
MARKS = {"worse": "✗", "unclear": "!"}


def comparison_tables(rows: Sequence[Row]) -> list[tuple[str, list[str], list[list[str]], list[str]]]:
    """One table per metric, source, layer, n and target, then those of cells that one run alone has.

    Each is (caption, headings, lines, notes); the notes are the reasons behind verdicts.
    """
    compared: dict[str, list[Row]] = {}
    alone: dict[str, list[Row]] = {}
    for row in rows:
        group = alone if row["metric"] is None else compared
        group.setdefault(_caption(row), []).append(row)
    tables = []
    for caption, here in compared.items():
        notes = [f"{MARKS.get(row['verdict'], '–')} {_named(row)}: {row['reason']}" for row in here if row["reason"]]
        tables.append((caption, *_columns(HEADINGS, [_line(row) for row in here]), notes))
    for caption, here in alone.items():
        lines = [[*_line(row)[:3], str(row["cells"]), row["reason"]] for row in here]
        tables.append((caption, *_columns([*HEADINGS[:3], "cells", "which"], lines), []))
    return tables


def comparison_legend(rows: Sequence[Row]) -> str:
    """What the columns and verdicts mean, in one paragraph."""
    parts = ["A, B: means over heads, windows and seeds; worse, better: by more than the tolerance"]
    if any(row["se"] is not None for row in rows):
        parts[0] += " and more than 2 s.e.; unclear: beyond the tolerance, within 2 s.e."
        kinds = {row["paired"] for row in rows if row["se"] is not None}
        how = {
            "cells": "of the differences cell by cell, clustered by text window",
            "windows": "of the differences of windows' means, as seeds or repeats differ",
            None: "of both runs together, as they share no window",
        }
        parts.append("S.e.: " + "; ".join(text for kind, text in how.items() if kind in kinds) + ".")
    else:
        parts[0] += ". One text window has no standard error."
    return " ".join(parts)


def comparison_line(row: Row) -> str:
    """A row in words, for a log."""
    ends = f"{significant(row['a']) or 'no value'} became {significant(row['b']) or 'no value'}"
    why = f" ({row['reason']})" if row["reason"] else ""
    return f"{_named(row)} ({_caption(row)}): {ends}{why}"


def _named(row: Row) -> str:
    return method_label(row) + ("" if row["d"] is None else f" d={row['d']}")


def _place(row: Row) -> str:
    facts = (f" · {name} {short_hashes(str(fact))}" for name, fact in row["source"].items())
    return f"layer {row['layer']} · n = {row['n']} · target {row['target']}{''.join(facts)}"


def _caption(row: Row) -> str:
    return f"{row['metric'] or 'cells of one run alone'} · {_place(row)}"


def _line(row: Row) -> list[str]:
    label = "V-Mean (reference)" if row["reference"] and row["method"] == "vmean" else method_label(row)
    return [
        label,
        row["verdict"],
        "" if row["d"] is None else str(row["d"]),
        significant(row["a"]),
        significant(row["b"]),
        significant(row["ratio"]),
        _change(row),
    ]


def _change(row: Row) -> str:
    """The difference, with its standard error and how many of them it is, where there is one."""
    size = row["difference_in_se"]
    se = "" if row["se"] is None else f" ± {significant(row['se'], 2)}"
    return significant(row["difference"], 3) + se + ("" if size is None else f" ({significant(size, 2)})")


def _columns(headings: list[str], lines: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Only the columns that hold something."""
    kept = [i for i in range(len(headings)) if any(line[i] for line in lines)]
    return [headings[i] for i in kept], [[line[i] for i in kept] for line in lines]
