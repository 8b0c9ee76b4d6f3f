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

SELF_ATTENTION = "softmax"  # the method in the denominator of ratios
LAYERS = 2


@dataclass(frozen=True)
class StabilityCell(Cell):
    """One training: a method at one budget, on one task with one seed."""

    target: str = SELF_ATTENTION


def own_target(method: MethodRequest) -> str:
    """The target of a method in its own model: the Gaussian kernel if the method supports it."""
    return "gaussian" if method.entry.kind == "method" and "gaussian" in method.entry.targets else SELF_ATTENTION


def check_condition_tokens(number: int) -> None:
    """Refuse a number of tokens for which there is no condition number."""
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
    first = [method for method in parsed if method.name == SELF_ATTENTION and not method.options]
    others = [method for method in parsed if method not in first]
    methods = (*(first or [MethodRequest(SELF_ATTENTION, requested=False)]), *others)
    shared = {"n": request.n, "batch": request.batch, "rate": request.rate}
    check_setting(**shared)  # by itself: no task uses an option for which each task has a value of its own
    refuse_endless(len(tasks) * len(methods) * len(request.d) * request.seeds)
    opened = [open_task(name, request.source, notify=notify, **{**shared, **options}) for name, options in tasks]
    trainings = [
        (method, target_of(request, method), task) for method in methods if method.requested for task in opened
    ]

    def refusals(d: int) -> int:
        return sum(unsupported_reason(*training, d) is not None for training in trainings)

    budgets = fitting(request, min(task.shortest for task in opened), refusals, notify)
    reasons = [unsupported_reason(*training, d) for training in trainings for d in budgets_of(training[0], budgets)]
    if None not in reasons:
        raise UsageError(reasons[0])
    return opened, methods, budgets


def unsupported_reason(method: MethodRequest, target: str, task: TaskSource, d: int | None) -> str | None:
    """The reason why a method cannot train on a task's shortest or longest sequences; None if it can."""
    reasons = (refused(method, target, n, d) for n in (task.shortest, task.n))
    return next((f"{task.name}: {reason}" for reason in reasons if reason is not None), None)


def target_of(request: StabilityRequest, method: MethodRequest) -> str:
    """The target of a method in a request. Self-attention that attnprobe adds has the target softmax."""
    if not method.requested:
        return SELF_ATTENTION
    return own_target(method) if request.target == OWN else request.target


def stability_cells(
    request: StabilityRequest, methods: Sequence[MethodRequest], budgets: Sequence[int], task: TaskSource, repeat: int
) -> list[StabilityCell]:
    """The cells of a task with one seed: method by method, budget by budget."""
    facts, seed, cells = identity_facts(task.facts), request.seed + repeat, []
    for method in methods:
        target = target_of(request, method)
        for d in budgets_of(method, budgets):
            key = cell_key(
                command="stability",
                **method_identity(method),
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
            cells.append(StabilityCell(key, method, d, repeat, seed, target))
    return cells
