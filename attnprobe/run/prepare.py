"""What methods are measured on: the sources and plans of a request, refused where nothing can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError, unknown
from ..grammar.lists import parse_numbers
from ..reference import TARGETS
from ..timings import Timings
from .plan import ErrorPlan, MethodRequest, parse_methods, refuse_endless
from .request import MOST, RunRequest, parse_layers, sources_of
from .row_devices import row_devices

__all__ = ["ErrorRequest", "prepared"]


@dataclass(frozen=True)
class ErrorRequest(RunRequest):
    """What ``attnprobe error`` was asked for; see `RunRequest` for the rest.

    Args:
        methods: ``--method`` items (see `parse_methods`). repeats: seeds of random methods, from ``seed`` on.
        row_tolerance: of the rows of kernels, None is that of their dtype (see `kernel_errors`).
        split_rows: devices over which rows of the exact matrix are split (see `row_devices`); None splits none.
        matrix, tol: whether matrix errors are measured, and the width at which an interval is closed.
    """

    methods: tuple[str, ...] = ("skyformer",)
    repeats: int = 1
    split_rows: int | None = None
    matrix: bool = True
    tol: float = 1e-3
    row_tolerance: float | None = None


def prepared(
    request: ErrorRequest, notify: Callable[[str], None], timings: Timings, refuse: bool = True
) -> list[tuple[Any, ErrorPlan]]:
    """The sources of a request, each with its plan, once nothing in them is impossible.

    Args:
        refuse: whether it is impossible that none of the methods can run.
    """
    methods, n, d = _asked(request, refuse)
    parts = []
    for source in sources_of(request, notify, timings):
        plan = ErrorPlan(
            methods=methods,
            n=n or (source.default_n,),
            d=d,
            layers=parse_layers(request.layer, source),
            heads=None if request.head == "all" else tuple(parse_numbers(request.head, "head", source.head_numbers)),
            windows=request.windows,
            seed=request.seed,
            repeats=request.repeats,
            target=request.target,
            tol=request.tol if request.matrix else None,
            row_tolerance=request.row_tolerance,
        )
        refuse_endless(plan.count, notify)
        if refuse:
            _refuse_impossible(plan)
        for length in plan.n:
            source.check(length, plan.windows, plan.layers)
        parts.append((source, plan))
    return parts


def _asked(
    request: ErrorRequest, refuse: bool
) -> tuple[tuple[MethodRequest, ...], tuple[int, ...] | None, tuple[int, ...]]:
    """The methods, lengths and budgets of a request, refused before anything heavy where they cannot be."""
    if request.target not in TARGETS:
        raise unknown("target", request.target, TARGETS)
    for name, value in (("windows", request.windows), ("repeats", request.repeats)):
        if not 1 <= value <= MOST:
            raise UsageError(f"{name}={value}: choose a number from 1 to {MOST}")
    if not 0 < request.tol < 1:
        raise UsageError(f"tol={request.tol:g}: choose a relative width above 0 and below 1, such as 0.001")
    if request.row_tolerance is not None and not 0 < request.row_tolerance < 1:
        raise UsageError(f"row-tolerance={request.row_tolerance:g}: choose a relative error above 0 and below 1")
    row_devices(request)
    methods = tuple(parse_methods(request.methods, request.target))
    d = () if request.d is None else tuple(parse_numbers(request.d, "d"))
    if request.n is None:
        return methods, None, d
    n = tuple(parse_numbers(request.n, "n"))
    for length in n:
        if length < 2:
            raise UsageError(f"n={length}: attention needs at least 2 tokens")
    least = ErrorPlan(methods, n, d, (0,), None, request.windows, repeats=request.repeats, target=request.target)
    refuse_endless(least.count)
    if refuse:
        _refuse_impossible(least)
    return methods, n, d


def _refuse_impossible(plan: ErrorPlan) -> None:
    if (why := plan.refusal()) is not None:
        raise UsageError(why)
