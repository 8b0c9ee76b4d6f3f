"""What ``attnprobe stability`` is asked for, and the cells that come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError, nearest, unknown
from ...grammar.lists import parse_numbers
from ...records.file import cell_key, determining
from ...reference import TARGETS
from ...run.plan import MethodRequest, determines, parse_methods, refuse_endless, refused
from ...run.request import MOST, RunRequest
from ...sources import TASKS, TaskSource, open_task

__all__ = [
    "OWN",
    "SELF_ATTENTION",
    "StabilityCell",
    "StabilityPlan",
    "StabilityRequest",
    "own_target",
    "parse_tasks",
    "stability_cells",
    "stability_prepared",
]

SELF_ATTENTION = "softmax"  # the method that ratios are over
OWN = "own"
KINDS = {"n": int, "batch": int, "rate": float, "data": str}  # of what a task takes
MOST_STEPS = 10_000
LAYERS = 2


@dataclass(frozen=True)
class StabilityRequest(RunRequest):
    """What ``attnprobe stability`` was asked for; see `RunRequest` for the rest.

    Args:
        tasks: ``--task`` items (see `parse_tasks`). methods: ``--method`` items; self-attention stands beside them.
        target: what methods stand for: ``own`` is the Gaussian kernel of those that take it as a method of their own,
            and softmax attention of all others.
        steps, seeds: how many steps of training, and with how many seeds, from ``seed`` on.
        n: the most tokens of a sequence, one number. batch, rate: None is the paper's, task by task.
        source: names text, device and dtype. eps: Adam's.
        condition_tokens: of how many tokens attention matrices have their condition number taken; 0 is none.
    """

    tasks: tuple[str, ...] = ("listops,text",)
    methods: tuple[str, ...] = ("kernelized,skyformer,nystromformer,performer",)
    target: str = OWN
    steps: int = 20
    seeds: int = 3
    batch: int | None = None
    rate: float | None = None
    eps: float = 1e-6
    condition_tokens: int = 256


@dataclass(frozen=True)
class StabilityCell:
    """One training: a method at one budget, on one task with one seed."""

    key: str
    request: MethodRequest
    target: str
    d: int | None
    repeat: int
    seed: int

    @property
    def name(self) -> str:
        return self.request.label


@dataclass(frozen=True)
class StabilityPlan:
    """What is trained: the parsed lists of a request, self-attention first."""

    methods: tuple[MethodRequest, ...]
    d: tuple[int, ...]


def parse_tasks(texts: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
    """``NAME[:k=v,…]`` items, comma-separated and repeatable, with n, batch, rate and data as options.

    Raises:
        UsageError: an unknown task or option (the nearest is offered), a value of another kind, a task twice.

    >>> parse_tasks(["listops:n=512,batch=8,text"])
    [('listops', {'n': 512, 'batch': 8}), ('text', {})]
    """
    found: list[tuple[str, dict[str, Any]]] = []
    for item in (item.strip() for text in texts for item in text.split(",")):
        name, colon, rest = item.partition(":")
        if "=" in item and ("=" in name or not colon):
            if not found:
                raise UsageError(f"'{item}' is an option without a task before it; write NAME:{item}")
            rest = item
        else:
            if name not in TASKS:
                raise unknown("task", name, TASKS)
            if any(name == other for other, _ in found):
                raise UsageError(f"task {name} is named twice")
            found.append((name, {}))
        if rest or colon:
            _add(*found[-1], rest)
    if not found:
        raise UsageError(f"no task; choose from {', '.join(TASKS)}")
    return found


def _add(task: str, options: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not value or key not in KINDS:
        raise UsageError(f"task {task}: '{text}' is no option{nearest(key, KINDS)}")
    if key in options:
        raise UsageError(f"task {task}: {key} is given twice")
    try:
        options[key] = KINDS[key](value)
    except ValueError as error:
        raise UsageError(f"task {task}: {key}={value} is not a number") from error


def own_target(one: MethodRequest) -> str:
    """The target of a method in a model of its own: the Gaussian kernel where it approximates that one too."""
    return "gaussian" if one.entry.kind == "method" and "gaussian" in one.entry.targets else SELF_ATTENTION


def stability_prepared(
    request: StabilityRequest, notify: Callable[[str], None]
) -> tuple[list[TaskSource], StabilityPlan]:
    """The tasks and the plan, once nothing in them is impossible."""
    if request.target not in (OWN, *TARGETS):
        raise unknown("target", request.target, (OWN, *TARGETS))
    for name, value, most in (("steps", request.steps, MOST_STEPS), ("seeds", request.seeds, MOST)):
        if not 1 <= value <= most:
            raise UsageError(f"{name}={value}: choose a number from 1 to {most}")
    if not 0 < request.eps < 1:
        raise UsageError(f"eps={request.eps:g}: choose a number above 0 and below 1, such as 1e-6")
    if request.condition_tokens < 0 or request.condition_tokens == 1:
        raise UsageError(f"condition-tokens={request.condition_tokens}: choose 0, or at least 2 tokens")
    if request.source.dtype not in ("float32", "float64"):
        raise UsageError(f"dtype={request.source.dtype}: training runs in float32 or float64")
    tasks = parse_tasks(request.tasks)
    asked = parse_methods(request.methods, "gaussian" if request.target == OWN else request.target)
    first = [one for one in asked if (one.name, dict(one.options)) == (SELF_ATTENTION, {})]
    others = [one for one in asked if one not in first]
    methods = (*(first or [MethodRequest(SELF_ATTENTION, requested=False)]), *others)
    shared = {"n": _length(request.n), "batch": request.batch, "rate": request.rate}
    plan = StabilityPlan(methods, tuple(parse_numbers(request.d, "d")))
    refuse_endless(len(tasks) * len(methods) * len(plan.d) * request.seeds)
    opened = [open_task(name, request.source, notify=notify, **{**shared, **options}) for name, options in tasks]
    _refuse_impossible(request, plan, opened)
    return opened, plan


def _length(text: str | None) -> int | None:
    """One length for all tasks."""
    numbers = [None] if text is None else parse_numbers(str(text), "n")
    if len(numbers) > 1:
        raise UsageError(f"n={text}: one number for all tasks; a task has its own as --task listops:n={numbers[0]}")
    return numbers[0]


def _refuse_impossible(request: StabilityRequest, plan: StabilityPlan, tasks: list[TaskSource]) -> None:
    asked = [one for one in plan.methods if one.requested]
    reasons = [
        why_not(one, target_of(request, one), task, d) for one in asked for task in tasks for d in _budgets(plan, one)
    ]
    if asked and None not in reasons:
        raise UsageError(reasons[0])


def why_not(one: MethodRequest, target: str, task: TaskSource, d: int | None) -> str | None:
    """Why a method cannot train on a task's shortest and longest sequences; None where it can."""
    found = (refused(one, target, n, d) for n in (task.shortest, task.n))
    return next((f"{task.name}: {why}" for why in found if why is not None), None)


def target_of(request: StabilityRequest, one: MethodRequest) -> str:
    """What a method stands for in a request; self-attention is softmax attention whatever is asked of the others."""
    if not one.requested:
        return SELF_ATTENTION
    return own_target(one) if request.target == OWN else request.target


def stability_cells(request: StabilityRequest, plan: StabilityPlan, task: TaskSource) -> list[StabilityCell]:
    """The cells of a task in their order: method by method, budget by budget, seed by seed."""
    facts, found = determining(task.facts), []
    for one in plan.methods:
        target = target_of(request, one)
        for d in _budgets(plan, one):
            for repeat in range(request.seeds):
                seed = request.seed + repeat
                key = cell_key(
                    command="stability",
                    **determines(one),
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
                found.append(StabilityCell(key, one, target, d, repeat, seed))
    return found


def _budgets(plan: StabilityPlan, one: MethodRequest) -> tuple[int | None, ...]:
    return plan.d if one.entry.budget is not None else (None,)
