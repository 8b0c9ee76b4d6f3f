"""The run of a command whose cells are measured one by one: condition, theory, budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from ..metrics import repeated_rows
from ..qkv import QKV
from ..records import SCHEMA, RecordWriter
from .folder import recorded
from .plan import ErrorPlan, Group
from .run import Outcome
from .session import ErrorRequest, Session, keeper, planned, shared_plan, whole_of

__all__ = ["measure_cells"]


class Cell(Protocol):
    """What is one record: its key, its place, and what it is called while it is measured."""

    key: str
    group: Group
    layer: int

    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Cell)


def measure_cells(
    request: ErrorRequest,
    command: str,
    parts: Sequence[tuple[Any, ErrorPlan]],
    cells: Callable[[ErrorPlan, Any], Mapping[tuple[Group, int], Sequence[C]]],
    measured: Callable[[C, ErrorPlan, QKV, Callable[[str], None]], dict[str, Any]],
    *,
    notify: Callable[[str], None],
    progress: Callable[[int, int, str], None],
    more: Mapping[str, Any] | None = None,
    may_be_empty: bool = False,
) -> Session:
    """Measure every cell that the folder does not hold; Q, K and V are captured once per (source, n, window).

    Args:
        parts: sources, each with its plan. cells: of a plan and its source, in their order.
        measured: what the record of a cell says beside its place; it may tell how far it is.
        more: what the manifest's plan says beside methods, budgets and places.
        may_be_empty: whether a run counts in which no cell could run.
    """
    sources = [source for source, _ in parts]
    listed = [(source, plan, [cell for some in cells(plan, source).values() for cell in some])
              for source, plan in parts]  # fmt: skip
    total = sum(len(some) for _, _, some in listed)

    def measure(writer: RecordWriter, done: Mapping[str, dict[str, Any]], run: str) -> Outcome:
        outcome, inputs = Outcome(), keeper(request, writer, run)
        show = lambda label: progress(len(outcome.records), total, label)
        for source, plan, some in listed:
            captured: dict[int, QKV] = {}
            place = None
            for cell in some:
                name = f"n={cell.group.n} layer {cell.layer} {cell.name}"
                show(name)
                if cell.key in done:
                    outcome.records.append(done[cell.key])
                    outcome.done_before += 1
                    continue
                if place != cell.group:
                    captured = source.qkv(cell.group.n, plan.layers_of(cell.group), cell.group.window)
                    place = cell.group
                qkv = captured[cell.layer] if plan.heads is None else captured[cell.layer].select(plan.heads)
                inputs.keep(source, cell.group.n, cell.group.window, cell.layer, qkv)
                head = _head(command, cell, source, run, qkv)
                with torch.no_grad():
                    found = measured(cell, plan, qkv, lambda label, name=name: show(f"{name} {label}"))
                outcome.keep({**head, **found}, writer)
        progress(total, total, "")
        return outcome

    plan = shared_plan(sources, [planned(plan) | (more or {}) for _, plan in parts])
    whole = whole_of(parts, cells)
    outcome, path = recorded(request, command, plan, sources, notify, measure, whole=whole, may_be_empty=may_be_empty)
    return Session(outcome, path, sources)


def _head(command: str, cell: Cell, source: Any, run: str, qkv: QKV) -> dict[str, Any]:
    """What every record says before anything is measured."""
    return {
        "schema": SCHEMA,
        "key": cell.key,
        "run": run,
        "command": command,
        "source": source.facts,
        "window": cell.group.window,
        "layer": cell.layer,
        "heads": list(qkv.heads),
        "n": cell.group.n,
        "duplicates": repeated_rows(qkv),
    }
