"""Results of gates: a table, Markdown, and JUnit XML for CI."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from math import ceil

from ..errors import UsageError
from ..files import open_regular, writing
from ..grammar.foreign import one_line
from ..records.file import write_bytes
from ..tables.console import Header
from ..tables.formats import escape
from ..tables.numbers import significant
from ..tables.table import Column, table_of
from ..tables.terminal import plain_tables
from .check import GateResult

HEAD = b"<?xml version='1.0' encoding='utf-8'?>\n<testsuites name=\"attnprobe\""  # of a report


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


def check_report(path: str) -> None:
    """Refuse to replace a file other than a report of `junit_xml` or an empty one.

    Raises:
        UsageError: no file name, a symbolic link, or a file of something else.
    """
    if not path.strip() or os.path.isdir(path):
        raise UsageError(f"--junit '{path}' is not a file name; write one such as gates.xml")
    if not os.path.lexists(path):
        return
    with writing(path):
        if os.path.islink(path):
            raise UsageError(f"--junit {path} is a symbolic link, which is not followed; choose another name")
        with open_regular(path, None) as file:
            start = file.read(len(HEAD))
        if start not in (b"", HEAD):
            raise UsageError(f"--junit {path} is not a report of gates; choose a new name, or remove the file")


def junit_xml(results: Sequence[GateResult], path: str | os.PathLike[str]) -> None:
    """Write the results as JUnit XML: one test case for each gate and row, ``failure`` or ``skipped`` (undecided).

    Valid against Jenkins' ``junit-10.xsd``. A case's ``time`` is what the cells of its row took, in seconds (0 where
    it is not known), and the suite's the sum. Equal results give equal bytes but for the times: no date is written.

    Raises:
        UsageError: a path that cannot be written.
    """
    failures, skipped = (str(sum(getattr(result, name) for result in results)) for name in ("failed", "undecided"))
    times = [ceil(1e3 * (result.seconds or 0.0)) / 1e3 for result in results]  # milliseconds: the schema has no more
    counts = {"tests": str(len(results)), "failures": failures, "errors": "0"}
    root = ET.Element("testsuites", {"name": "attnprobe", **counts, "time": f"{sum(times):.3f}"})
    suite = ET.SubElement(
        root, "testsuite", {"name": "attnprobe gates", **counts, "skipped": skipped, "time": f"{sum(times):.3f}"}
    )
    for result, seconds in zip(results, times, strict=True):
        names = {"classname": f"attnprobe.{one_line(result.gate.metric)}", "name": one_line(result.name)}
        case = ET.SubElement(suite, "testcase", {**names, "time": f"{seconds:.3f}"})
        if result.undecided:
            ET.SubElement(case, "skipped", {"message": one_line(result.message)})
        elif not result.passed:
            text = one_line(result.message)
            failure = ET.SubElement(case, "failure", {"message": text, "type": "gate"})
            failure.text = one_line(result.line)
    ET.indent(root)
    write_bytes(path, ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")
