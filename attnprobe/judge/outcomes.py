"""Results of gates and of comparisons: tables, Markdown, and test cases for CI."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..grammar.foreign import one_line
from ..show import notes
from ..show.grid import Cell, Grid
from ..show.table import KEY, Column, Table
from ..show.writers import markdown, terminal
from ..show.writers.text import number
from .gates import ROUNDING, GateResult
from .junit import Case

COLUMNS = (
    Column("gate", "gate", priority=KEY),
    Column("line", "where", priority=KEY),
    Column("value", "value", digits=4, priority=KEY),
    Column("limit", "limit", priority=KEY),
)
TABLE = Table("gates", "Gates", columns=COLUMNS)


def gates_table(results: Sequence[GateResult]) -> str:
    """A line for each gate and line: outcome, value and limit. Then the reasons of failures, and a count."""
    count = f"{len(results)} checked, {_outcomes(results) or '0 failed'}"
    if not results:
        return f"no gates\n\n{count}"
    return terminal([_grid(results)], shutil.get_terminal_size((100, 24)).columns) + count


def gates_markdown(results: Sequence[GateResult]) -> list[str]:
    """The verdict as a heading in Markdown, then the table; empty without gates."""
    if not results:
        return []
    outcomes = _outcomes(results)
    heading = f"### ✗ {len(results)} gates: {outcomes}" if outcomes else f"### ✓ {len(results)} gates passed"
    return [heading, "", *markdown([_grid(results)]).splitlines()]


def gate_cases(results: Sequence[GateResult]) -> list[Case]:
    """A test case for each gate and line."""
    return [
        Case(
            result.gate.metric,
            result.name,
            result.message,
            "undecided" if result.undecided else "gate",
            seconds=result.seconds,
        )
        for result in results
    ]


def _grid(results: Sequence[GateResult]) -> Grid:
    remarks = sorted((result for result in results if not result.passed), key=lambda result: result.undecided)
    reasons = tuple(f"{_sign(result)} {one_line(result.line)}" for result in remarks)
    cells = [
        [
            Cell(f"{_sign(result)} {result.gate.metric}.{result.gate.stat}{result.gate.selection}"),
            Cell(result.where or "none"),
            Cell(result.value, flag=notes.ROUNDING if result.undecided else None),
            Cell(result.limit),
        ]
        for result in results
    ]
    return Grid(TABLE, COLUMNS, cells, [{} for _ in results], reasons=reasons)


def _sign(result: GateResult) -> str:
    """``✓`` if the gate passed, ``≈`` if it is undecided, ``✗`` if it failed."""
    if result.passed:
        return "✓"
    return ROUNDING if result.undecided else "✗"


def _outcomes(results: Sequence[GateResult]) -> str:
    """How many failed and how many are undecided; empty if all passed."""
    counts = {name: sum(getattr(result, name) for result in results) for name in ("failed", "undecided")}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def comparison_line(row: Mapping[str, Any]) -> str:
    """A row of a comparison as a line of a log."""
    return f"{_named(row)}: {_change(row)}"


def comparison_cases(rows: Iterable[Mapping[str, Any]], strict: bool = False) -> list[Case]:
    """A test case for each compared or missing row. A worse row failed; undecided and missing rows are skipped.

    Args:
        strict: whether undecided and missing rows failed instead.
    """
    cases = []
    for row in rows:
        verdict, subject = row["verdict"], row["metric"] or "missing"
        if verdict in ("same", "better"):
            cases.append(Case(subject, _named(row)))
        elif row["metric"] or verdict == "missing":
            why = _change(row) if row["metric"] else row["reason"]
            cases.append(Case(subject, _named(row), why, verdict, skipped=verdict != "worse" and not strict))
    return cases


def _named(row: Mapping[str, Any]) -> str:
    """The method and the place of a row, in words."""
    names = ("d", "n", "layer", "layers_together", "layers", "kv_head", "prefix")
    places = [f"{name}={row[name]}" for name in names if row.get(name) is not None]
    target = [f"target={row['target']}"] if row.get("target") else []
    return " ".join(filter(None, [row["name"], *places, *target, row.get("source")]))


def _change(row: Mapping[str, Any]) -> str:
    """The values of a row in A and in B, with the reason of its verdict."""
    a, b = ("no value" if row[side] is None else number(row[side], 4) for side in ("a", "b"))
    why = f" ({row['reason']})" if row["reason"] else ""
    return f"{row['metric']} is {a} in A, {b} in B{why}"
