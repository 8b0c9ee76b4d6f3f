"""The sources and plans of a request. Requests in which nothing can run are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UsageError
from ..timings import Timings
from .plan import ErrorPlan, parse_methods, refuse_endless
from .sources import heads_of, layers_of, sources_of

__all__ = ["prepared"]


def prepared(
    request: Any,
    notify: Callable[[str], None],
    timings: Timings,
    *,
    d: tuple[int, ...] = (),
    repeats: int = 1,
    tol: float | None = None,
    row_tolerance: float | None = None,
    rows: bool = False,
    refuse: bool = True,
) -> list[tuple[Any, ErrorPlan]]:
    """The sources of a request, each with its plan, after both have been checked.

    Args:
        request: has ``methods``, ``target`` and ``seed``, and the fields of `OnTensors` that name sources and places.
        d, repeats, tol, row_tolerance, rows: of the plans.
        refuse: whether it is impossible that none of the methods can run.
    """
    methods = tuple(parse_methods(request.methods, request.target))

    def plan_at(n: tuple[int, ...], layers: tuple[int, ...], heads: tuple[int, ...] | None) -> ErrorPlan:
        return ErrorPlan(
            methods=methods,
            n=n,
            d=d,
            layers=layers,
            heads=heads,
            windows=request.windows,
            seed=request.seed,
            repeats=repeats,
            target=request.target,
            tol=tol,
            row_tolerance=row_tolerance,
            rows=rows,
        )

    if request.n is not None:  # before anything heavy
        least = plan_at(request.n, (0,), None)
        refuse_endless(least.count)
        _refuse_impossible(least, refuse)
    parts = []
    for source in sources_of(request, notify, timings):
        heads = None if request.head == "all" else heads_of(request.head, source)
        plan = plan_at(request.n or (source.default_n,), layers_of(request.layer, source), heads)
        refuse_endless(plan.count, notify)
        _refuse_impossible(plan, refuse)
        for length in plan.n:
            source.check(length, plan.windows, plan.layers)
        parts.append((source, plan))
    return parts


def _refuse_impossible(plan: ErrorPlan, refuse: bool) -> None:
    if refuse and (why := plan.refusal()) is not None:
        raise UsageError(why)
