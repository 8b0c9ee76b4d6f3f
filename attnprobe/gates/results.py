"""Results of gates: a table, Markdown, and test cases for CI."""

from __future__ import annotations

from collections.abc import Sequence

from ..grammar.foreign import one_line
from ..tables.console import Header
from ..tables.formats import escape
from ..tables.numbers import OPEN, significant
from ..tables.table import Column, table_of
from ..tables.terminal import plain_tables
from .check import GateResult
from .junit import Case


def gates_table(results: Sequence[GateResult]) -> str:
    """A line for each gate and row: outcome, value and limit. Then the reasons of failures, and a count."""
    remarks = sorted((result for result in results if not result.passed), key=lambda result: result.undecided)
    notes = [f"{_sign(result)} {one_line(result.line)}" for result in remarks]
    count = f"{len(results)} checked, {_outcomes(results) or '0 failed'}"
    if not results:
        return f"no gates\n\n{count}"
    return plain_tables([table_of("", results, COLUMNS, notes)], [count], Header(), marked=False).lstrip("\n")


def _outcomes(results: Sequence[GateResult]) -> str:
    """How many failed and how many are undecided; empty if all passed."""
    counts = {name: sum(getattr(result, name) for result in results) for name in ("failed", "undecided")}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _gate(result: GateResult) -> str:
    return f"{result.gate.metric}.{result.gate.stat}{result.gate.selection}"


COLUMNS: tuple[Column, ...] = (
    Column("gate", lambda result: f"{_sign(result)} {_gate(result)}".lstrip()),
    Column("row", lambda result: result.where or "none"),
    Column("value", lambda result: _value(result)),
    Column("limit", lambda result: result.limit),
)


def gates_markdown(results: Sequence[GateResult]) -> list[str]:
    """The verdict as a heading in Markdown, then a line for each gate and row; empty without gates."""
    if not results:
        return []
    outcomes = _outcomes(results)
    lines = [f"### ✗ {len(results)} gates: {outcomes}" if outcomes else f"### ✓ {len(results)} gates passed", ""]
    lines += ["| | gate | row | value | limit |", "| --- | --- | --- | ---: | --- |"]
    for result in results:
        cells = (_sign(result) or "✓", _gate(result), result.where or "none", _value(result), result.limit)
        lines.append(f"| {' | '.join(map(escape, cells))} |")
    remarks = [result for result in results if not result.passed]
    return [*lines, *([""] if remarks else []), *(f"- {escape(result.line)}" for result in remarks)]


def _sign(result: GateResult) -> str:
    """Empty if it passed, ``≈`` if it is undecided, ``✗`` if it failed."""
    return "" if result.passed else OPEN if result.undecided else "✗"


def _value(result: GateResult) -> str:
    return f"{OPEN * result.fragile}{significant(result.value)}"


def gate_cases(results: Sequence[GateResult]) -> list[Case]:
    """A test case for each gate and row."""
    return [
        Case(one.gate.metric, one.name, one.message, "undecided" if one.undecided else "gate", seconds=one.seconds)
        for one in results
    ]
