"""The plan of ``attnprobe stability``: its checked request and its cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import UsageError
from ...frame.records.file import cell_key, identity_facts
from ...run.plan import (
    Cell,
    MethodRequest,
    budgets_of,
    fitting,
    method_identity,
    parse_methods,
    refuse_endless,
    refused,
)
from . import OWN, StabilityRequest
from .naming import parse_tasks
from .tasks import TaskSource, check_setting, open_task

SELF_ATTENTION = "softmax"  # the denominator of ratios
LAYERS = 2


@dataclass(frozen=True)
class StabilityCell(Cell):
    """One training: a method at one budget, on one task with one seed."""

    target: str = SELF_ATTENTION


def own_target(one: MethodRequest) -> str:
    """The target of a method in its own model: the Gaussian kernel if it supports that target."""
    return "gaussian" if one.entry.kind == "method" and "gaussian" in one.entry.targets else SELF_ATTENTION


def check_condition_tokens(number: int) -> None:
    """Refuse a number of tokens that no condition number is of."""
    if number < 0 or number == 1:
        raise UsageError(f"condition-tokens={number}: choose 0, or at least 2 tokens")


def stability_prepared(
    request: StabilityRequest, notify: Callable[[str], None]
) -> tuple[list[TaskSource], tuple[MethodRequest, ...], tuple[int, ...]]:
    """The tasks, the methods with self-attention first, and the budgets, after every check of the request."""
    check_condition_tokens(request.condition_tokens)
    if request.dtype not in ("float32", "float64"):
        raise UsageError(f"dtype={request.dtype}: training runs in float32 or float64")
    tasks = parse_tasks(request.tasks)
    parsed = parse_methods(request.methods, "gaussian" if request.target == OWN else request.target)
    first = [one for one in parsed if (one.name, dict(one.options)) == (SELF_ATTENTION, {})]
    others = [one for one in parsed if one not in first]
    methods = (*(first or [MethodRequest(SELF_ATTENTION, requested=False)]), *others)
    shared = {"n": request.n, "batch": request.batch, "rate": request.rate}
    check_setting(**shared)  # of no task, if each has an option of its own
    refuse_endless(len(tasks) * len(methods) * len(request.d) * request.seeds)
    opened = [open_task(name, request.source, notify=notify, **{**shared, **options}) for name, options in tasks]
    places = [(one, target_of(request, one), task) for one in methods if one.requested for task in opened]

    def refusals(d: int) -> int:
        return sum(unsupported_reason(*place, d) is not None for place in places)

    budgets = fitting(request, min(task.shortest for task in opened), refusals, notify)
    reasons = [unsupported_reason(*place, d) for place in places for d in budgets_of(place[0], budgets)]
    if None not in reasons:
        raise UsageError(reasons[0])
    return opened, methods, budgets


def unsupported_reason(one: MethodRequest, target: str, task: TaskSource, d: int | None) -> str | None:
    """Why a method cannot train on a task's shortest and longest sequences; None if it can."""
    reasons = (refused(one, target, n, d) for n in (task.shortest, task.n))
    return next((f"{task.name}: {why}" for why in reasons if why is not None), None)


def target_of(request: StabilityRequest, one: MethodRequest) -> str:
    """The target of a method in a request. Self-attention always has the target softmax."""
    if not one.requested:
        return SELF_ATTENTION
    return own_target(one) if request.target == OWN else request.target


def stability_cells(
    request: StabilityRequest, methods: Sequence[MethodRequest], budgets: Sequence[int], task: TaskSource, repeat: int
) -> list[StabilityCell]:
    """The cells of a task with one seed: method by method, budget by budget."""
    facts, seed, cells = identity_facts(task.facts), request.seed + repeat, []
    for one in methods:
        target = target_of(request, one)
        for d in budgets_of(one, budgets):
            key = cell_key(
                command="stability",
                **method_identity(one),
                target=target,
                source=facts,
                n=task.n,
                batch=task.batch,
                rate=task.rate,
                eps=request.eps,
                steps=request.steps,
                d=d,
                seed=seed,
                condition_tokens=request.condition_tokens,
            )
            cells.append(StabilityCell(key, one, d, repeat, seed, target))
    return cells
