"""The run of ``attnprobe budget``: the smallest budget of every head, a search for each method on each layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...errors import Unsupported, UsageError
from ...files import JsonObject
from ...frame.rows import HEAD
from ...machine.timings import Timings
from ...qkv import QKV
from ...run.cells import Place, PlannedCells, Result
from ...run.costs import Cost, work_of_method
from ...run.plan import Cell, ErrorPlan, Group, MethodRequest, key_of, method_facts, parse_methods
from ...run.sources import draft_plan, prepared
from . import BudgetRequest
from .bisect import HeadBudget, coarse_budgets
from .record import SHAPE
from .search import RESIDUAL, BudgetSearch, Question, search_budgets


class BudgetCells(PlannedCells[BudgetRequest, Cell, QKV]):
    """Searches for the least budget, one of each method."""

    command = "budget"
    shape = SHAPE
    blank = {**PlannedCells.blank, "least": None, "most": None, "needed": None}

    def __init__(self, request: BudgetRequest, notify: Callable[[str], None], timings: Timings) -> None:
        names = ("metric", "delta", "d_min", "d_max", "resolution", "scan", "target", "tol")
        settings = {name: getattr(request, name) for name in names}
        seeds = range(request.seed, request.seed + request.repeats)
        self.question = question = Question(epsilons=request.epsilon, seeds=seeds, **settings)
        if request.n is not None:  # before a model is opened
            _refuse_impossible(question, parse_methods(request.methods, request.target), request.n)
        plan = replace(draft_plan(request), repeats=request.repeats)
        parts = prepared(request, plan, notify, timings, refuse=False)
        for source, _ in parts:
            if request.metric == RESIDUAL and "model" not in source.facts:
                raise UsageError(
                    "metric=residual_error: Q, K and V without their model have no residual stream; choose another"
                )
        _refuse_impossible(question, parts[0][1].methods, parts[0][1].n)
        names = ("epsilons", "metric", "delta", "d_min", "d_max", "resolution", "scan")
        searched = {name: getattr(question, name) for name in names}
        super().__init__(request, parts, partial(_cells, question), searched)

    def head(self, place: Place, cell: Cell) -> dict[str, Any]:
        question = self.question
        seeds = question.seeds_of(cell.request.entry)
        return {
            **method_facts(cell.request),
            "target": self.plan_of(place).target,
            "d": None,
            "metric": question.metric,
            "delta": question.delta,
            "resolution": question.resolution,
            "scan": question.scan,
            "repeat": 0,
            "seed": seeds.start,
            "seeds": len(seeds),
            "requested": True,
        }

    def work(self, place: Place, cell: Cell) -> Cost:
        """The runs of the coarse budgets, and half as much for the budgets between them, of fewer heads."""
        heads = len(self.head_numbers(place))
        works = [self._run(place, cell, d, heads) for d in self._coarse(place, cell)]
        return 1.5 * sum(work for work, _ in works), max((size for _, size in works), default=0.0)

    def _run(self, place: Place, cell: Cell, d: int, heads: int) -> Cost:
        """A budget of some heads with every seed."""
        question, entry = self.question, cell.request.entry
        matrix, queries = question.metric.startswith("matrix_"), self.queries(place)
        work, size = work_of_method(place.group.n, d, heads, entry.cost, matrix, queries=queries)
        # Seeds run one after another, so they add up in time and not in memory.
        return len(question.seeds_of(entry)) * work, size

    def _coarse(self, place: Place, cell: Cell) -> list[int]:
        """The budgets that a search begins with; none if the method has no budget."""
        try:
            return coarse_budgets(*self.question.range_of(cell.request.entry, place.group.n, place.group.n))
        except Unsupported:
            return []

    def measure_cell(self, place: Place, cell: Cell, inputs: QKV, result: Result) -> None:
        current, done = "", 0.0  # the budget that is tried, and the work of those before it
        expected = self.work(place, cell)[0]

        def show(d: int, heads: int) -> None:
            nonlocal current, done
            current = f"d={d} of {heads} {'head' if heads == 1 else 'heads'}"
            self.show(f"{self.label(place, cell)} {current}", {cell.key: min(done / max(expected, 1.0), 1.0)})
            done += self._run(place, cell, d, heads)[0]

        try:
            result |= _record(search_budgets(self.question, cell.request, inputs, show), inputs)
        except BaseException as error:
            if current:
                # a search takes many runs; without the note nobody knows which of them failed
                error.add_note(f"at {current}")
            raise


def _refuse_impossible(question: Question, methods: Sequence[MethodRequest], lengths: Sequence[int]) -> None:
    """Raise the first reason if no method of a request can be searched at any length."""
    reasons: list[Unsupported] = []
    for request in methods:
        for n in lengths:
            try:
                question.range_of(request.entry, n, n)
                return
            except Unsupported as error:
                reasons.append(error)
    raise reasons[0]


def _cells(question: Question, plan: ErrorPlan, group: Group, layer: int, facts: Mapping[str, Any]) -> Iterator[Cell]:
    for method in plan.methods:
        seeds = question.seeds_of(method.entry)
        matrix = {"matrix_tol": question.tol} if question.metric.startswith("matrix_") else {}
        key = key_of(
            "budget",
            method,
            facts,
            group,
            layer,
            target=plan.target,
            heads=plan.heads,
            metric=question.metric,
            epsilon=question.epsilons,
            delta=question.delta,
            seed=seeds.start,
            repeats=len(seeds),
            **{name: getattr(question, name) for name in ("d_min", "d_max", "resolution", "scan")},
            **matrix,
        )
        yield Cell(key, method)


def _record(search: BudgetSearch, qkv: QKV) -> Result:
    """The measured fields of a cell: the budgets of heads, and all trials."""
    rows = [row for head in search.heads for row in _of_head(search, head)]
    rows += [row for d, errors in search.tried.items() for row in _trials(d, errors, search.needed)]
    rows += [{"kind": "trial", "head": None, "d": d, "refused": why} for d, why in sorted(search.refused.items())]
    result = {"least": search.least, "most": search.most, "needed": search.needed, "rows": rows}
    lost = [
        str(head)
        for head in qkv.heads
        if not any(math.isfinite(errors[head][search.needed - 1]) for errors in search.tried.values() if head in errors)
    ]
    if lost:
        reason = f"the error is not finite at any budget in head {', '.join(lost)}"
        result |= {"status": "diverged", "reason": reason}
    return result


def _of_head(search: BudgetSearch, found: HeadBudget) -> Iterator[JsonObject]:
    """The row of a head and ε, and one for each larger budget that fails."""
    low, high = found.interval or (None, None)
    goal = {"head": found.head, "epsilon": found.epsilon}
    d = math.inf if found.d is None else found.d
    known = {name: getattr(found, name) for name in ("below", "error", "held", "holds_from")}
    yield {"kind": HEAD, **goal, "found": d, "fails": len(found.fails_at), **known, "lower": low, "upper": high}
    for fails in found.fails_at:
        error = search.tried[fails][found.head][search.needed - 1]
        above = {"d": fails, "error": error, "found": d, "holds_from": found.holds_from}
        yield {"kind": "counterexample", **goal, **above}


def _trials(d: int, errors: Mapping[int, tuple[float, ...]], needed: int) -> list[JsonObject]:
    """A row for each head that was run at a budget, with its seeds' errors in rising order."""
    return [
        {"kind": "trial", "head": head, "d": d, "error": seeds[needed - 1], "median": float(np.median(seeds))}
        for head, seeds in errors.items()
    ]
