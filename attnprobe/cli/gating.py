"""The gates of a command: read before its run, judged after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from .streams import echo, note

if TYPE_CHECKING:
    from ..files import Fields
    from ..gates.check import GateResult


def gates_of(command: str, above: Sequence[str], below: Sequence[str], junit: str | None) -> list[Any]:
    """The gates of a sweep's file, of ``--fail-above`` and of ``--fail-below``; none for a command without gates.

    Raises:
        UsageError: as `parse_gate`; or an invalid file name for ``--junit``.
    """
    from ..experiments import experiment
    from ..gates.parse import parse_gate, parse_gates
    from ..gates.results import check_report

    config = click.get_current_context().obj  # of a sweep
    gated = experiment(command).gated
    if gated is None:
        return []
    declared = [] if config is None else parse_gates(config.gates, gated)
    requested = [*declared, *(parse_gate(text, gated) for text in above)]
    requested += [parse_gate(text, gated, least=True) for text in below]
    if junit is not None:
        check_report(junit)
    return requested


def judged(rows: Sequence[Fields], gates: Sequence[Any]) -> list[GateResult]:
    """The results of gates at the rows. A shard has only part of the rows, so its gates are not judged.

    With ``--strict`` an undecided gate is a failed one.
    """
    from ..gates.check import check
    from .output import shard_of_command

    if shard_of_command():
        return []
    results = check(rows, gates)
    if click.get_current_context().params.get("strict"):
        results = [replace(result, undecided=False) for result in results]
    return results


def judge_gates(results: Sequence[GateResult], gates: Sequence[Any], junit: str | None) -> bool:
    """Whether a gate failed. The results go to stderr, for a sweep's gates as a table, and to JUnit XML.

    Args:
        results: as `judged` gives them.
    """
    from ..errors import UsageError
    from ..gates.results import gates_table, junit_xml
    from .output import shard_of_command

    if shard := shard_of_command():
        if gates:
            note(f"shard {shard}: gates are not judged for a part; run this command without --shard after all shards")
        return False
    for result in results:
        if not result.passed:
            note(f"gate {'undecided' if result.undecided else 'failed'}: {result.line}")
    failed = any(result.failed for result in results)
    if gates and all(result.passed for result in results):
        note(f"gates passed: {', '.join(map(str, gates))}")
    config = click.get_current_context().obj
    if config is not None and config.gates:
        echo(gates_table(results), err=True, styled=True)
    if junit is not None:
        try:
            junit_xml(results, junit)
            note(f"gates: {junit}")
        except UsageError as error:
            if not failed:
                raise
            note(str(error))  # the exit code is the gate's
    return failed
