"""The sources and plans of a request. Requests in which nothing can run are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..errors import UsageError
from ..timings import Timings
from .plan import ErrorPlan, fitting, parse_methods, refuse_endless, refused
from .sources import heads_of, layers_of, sources_of, tell_left_out


def draft_plan(request: Any) -> ErrorPlan:
    """The plan of a request before its sources are known: layer 0, all heads, and no n unless the request names it.

    Args:
        request: has ``methods``, ``target`` and ``seed``, and the fields of `OnTensors` that name sources and places.
    """
    return ErrorPlan(
        methods=tuple(parse_methods(request.methods, request.target)),
        n=request.n or (),
        d=(),
        layers=(0,),
        heads=None,
        windows=request.windows,
        seed=request.seed,
        target=request.target,
    )


def prepared(
    request: Any,
    draft: ErrorPlan,
    notify: Callable[[str], None],
    timings: Timings,
    *,
    refuse: bool = True,
    whole_model: bool = False,
) -> list[tuple[Any, ErrorPlan]]:
    """The sources of a request, each with its plan, after both have been checked.

    Args:
        draft: the plan of `draft_plan` with the command's own fields.
        refuse: whether it is an error that none of the methods can run.
        whole_model: whether a request that names no layers means those of the model, as in `layers_of`.
    """
    if request.n is not None:  # before anything heavy
        refuse_endless(draft.count)
        _refuse_impossible(_fitted(request, draft), refuse)
    parts = []
    for source in sources_of(request, notify, timings):
        heads = None if request.head == "all" else heads_of(request.head, source)
        n = request.n or (source.default_n,)
        layers = layers_of(request.layer, source, whole_model=whole_model)
        plan = _fitted(request, replace(draft, n=n, layers=layers, heads=heads), notify, source.facts.get("p"))
        refuse_endless(plan.count, notify)
        _refuse_impossible(plan, refuse)
        for length in plan.n:
            source.check(length, plan.windows, plan.layers)
        tell_left_out(request.layer, source, plan.methods, notify)
        _tell_cautions(plan, notify)
        parts.append((source, plan))
    return parts


def _tell_cautions(plan: ErrorPlan, notify: Callable[[str], None]) -> None:
    """Say once of each method that a budget means little with its options."""
    for one in plan.methods:
        reasons = [one.entry.warning(d, one.options) for d in plan.d] if one.entry.budget is not None else []
        if why := next(filter(None, reasons), None):
            notify(f"{one.label}: {why}")


def _refuse_impossible(plan: ErrorPlan, refuse: bool) -> None:
    if refuse and (why := plan.refusal()) is not None:
        raise UsageError(why)


def _fitted(
    request: Any, plan: ErrorPlan, notify: Callable[[str], None] = lambda line: None, p: int | None = None
) -> ErrorPlan:
    """The plan with budgets that its methods take at its longest n, if the request names none."""
    if not plan.d:
        return plan
    n = max(plan.n)

    def refusals(d: int) -> int:
        return sum(refused(one, plan.target, n, d) is not None for one in plan.methods)

    return replace(plan, d=fitting(request, n, refusals, notify, p))
