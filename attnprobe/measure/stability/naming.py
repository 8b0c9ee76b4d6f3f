"""The tasks of the Long Range Arena with the papers' settings, and the grammar of ``--task``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError, nearest, unknown

KINDS = {"n": int, "batch": int, "rate": float, "data": str}  # of the options of a task


@dataclass(frozen=True)
class Setting:
    """The setting of a task in Skyformer's appendix: the longest sequence, the batch size and the learning rate."""

    n: int
    batch: int
    rate: float


TASKS = {
    "text": Setting(4000, 16, 1e-4),
    "listops": Setting(2000, 32, 1e-4),
    "retrieval": Setting(4000, 16, 2e-4),
    "pathfinder": Setting(1024, 128, 2e-4),
    "image": Setting(1024, 256, 1e-4),
}


def parse_tasks(texts: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
    """``NAME[:k=v,…]`` items, comma-separated and repeatable, with n, batch, rate and data as options.

    Raises:
        UsageError: an unknown task or option (the nearest is offered), a value of another kind, a task twice.

    >>> parse_tasks(["listops:n=512,batch=8,text"])
    [('listops', {'n': 512, 'batch': 8}), ('text', {})]
    """
    tasks: list[tuple[str, dict[str, Any]]] = []
    for item in (item.strip() for text in texts for item in text.split(",")):
        name, colon, rest = item.partition(":")
        if "=" in item and ("=" in name or not colon):
            if not tasks:
                raise UsageError(f"'{item}' is an option without a task before it; write NAME:{item}")
            rest = item
        else:
            if name not in TASKS:
                raise unknown("task", name, TASKS)
            if any(name == other for other, _ in tasks):
                raise UsageError(f"task {name} is named twice")
            tasks.append((name, {}))
        if rest or colon:
            _add(*tasks[-1], rest)
    if not tasks:
        raise UsageError(f"no task; choose from {', '.join(TASKS)}")
    return tasks


def _add(task: str, options: dict[str, Any], text: str) -> None:
    key, _, value = text.partition("=")
    if not value or key not in KINDS:
        raise UsageError(f"task {task}: '{text}' is not an option{nearest(key, KINDS)}")
    if key in options:
        raise UsageError(f"task {task}: {key} is given twice")
    try:
        options[key] = KINDS[key](value)
    except ValueError as error:
        raise UsageError(f"task {task}: {key}={value} is not a number") from error
