"""Results of gates: a table, Markdown, and test cases for CI."""

from __future__ import annotations

from collections.abc import Sequence

from ..grammar.foreign import one_line
from ..tables.console import Header
from ..tables.formats import escape
from ..tables.numbers import significant
from ..tables.table import Column, table_of
from ..tables.terminal import plain_tables
from .check import GateResult
from .junit import Case


def gates_table(results: Sequence[GateResult]) -> str:
    """A line for each gate and row: outcome, value and limit. Then the reasons of failures, and a count."""
    remarks = sorted((result for result in results if not result.passed), key=lambda result: result.undecided)
    notes = [f"{_sign(result)} {one_line(result.line)}" for result in remarks]
    failed, undecided = (sum(getattr(result, name) for result in results) for name in ("failed", "undecided"))
    count = f"{len(results)} checked, {failed} failed" + (f", {undecided} undecided" if undecided else "")
    if not results:
        return f"no gates\n\n{count}"
    return plain_tables([table_of("", results, COLUMNS, notes)], [count], Header(), marked=False).lstrip("\n")


def _gate(result: GateResult) -> str:
    return f"{result.gate.metric}.{result.gate.stat}{result.gate.selection}"


COLUMNS: tuple[Column, ...] = (
    Column("gate", lambda result: f"{_sign(result)} {_gate(result)}".lstrip()),
    Column("row", lambda result: result.where or "none"),
    Column("value", lambda result: significant(result.value)),
    Column("limit", lambda result: result.limit),
)


def gates_markdown(results: Sequence[GateResult]) -> list[str]:
    """The verdict as a heading in Markdown, then a line for each gate and row; empty without gates."""
    if not results:
        return []
    failed, undecided = (sum(getattr(result, name) for result in results) for name in ("failed", "undecided"))
    verdict = f"✗ {failed} of {len(results)} gates failed" if failed else f"✓ {len(results) - undecided} gates passed"
    lines = [f"### {verdict}" + (f", {undecided} undecided" if undecided else ""), ""]
    lines += ["| | gate | row | value | limit |", "| --- | --- | --- | ---: | --- |"]
    for result in results:
        cells = (_sign(result) or "✓", _gate(result), result.where or "none", significant(result.value), result.limit)
        lines.append(f"| {' | '.join(map(escape, cells))} |")
    remarks = [result for result in results if not result.passed]
    return [*lines, *([""] if remarks else []), *(f"- {escape(result.line)}" for result in remarks)]


def _sign(result: GateResult) -> str:
    """Empty if it passed, ``≈`` if it is undecided, ``✗`` if it failed."""
    return "" if result.passed else "≈" if result.undecided else "✗"


def gate_cases(results: Sequence[GateResult]) -> list[Case]:
    """A test case for each gate and row; an undecided one is skipped."""
    return [
        Case(one.gate.metric, one.name, one.message, "gate", skipped=one.undecided, seconds=one.seconds)
        for one in results
    ]
