"""The run of ``attnprobe theory``: assumptions, bounds and measured values of theorems, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import BadResult, Unsupported
from ...files import JsonObject
from ...frame.records.file import encode_inf
from ...frame.rows import HEAD, head_rows
from ...grammar.foreign import message
from ...grammar.lists import options_text
from ...machine.timings import Timings
from ...operators.precision import full_precision
from ...qkv import QKV
from ...run.cells import Place, PlannedCells, Result
from ...run.costs import OVERHEAD, Cost, work_of_decompositions, work_of_method
from ...run.plan import ErrorPlan, Group, MethodRequest, budgets_of, key_of, method_facts, refused
from ...run.sources import draft_plan, prepared
from ...theorems import Finding, Theorem
from . import TheoryRequest
from .record import LOST, SHAPE
from .setting import Question, checked_budgets, question_of, setting_of

RANGE = 1e-75, 1e75  # within it, no fourth power of an entry under- or overflows


@dataclass(frozen=True)
class _Cell:
    """One theorem on one layer of one window. A theorem about any method has a cell for each ``request``."""

    key: str
    theorem: Theorem
    request: MethodRequest | None
    d: None = None

    @property
    def name(self) -> str:
        return self.theorem.name if self.request is None else f"{self.theorem.name} {self.request.label}"


class TheoryCells(PlannedCells[TheoryRequest, _Cell, QKV]):
    """Theorems; those about any method are evaluated for every method."""

    command = "theory"
    shape = SHAPE

    def __init__(self, request: TheoryRequest, notify: Callable[[str], None], timings: Timings) -> None:
        self.question = question_of(request.theorems, request.epsilon, request.delta, request.quadrature)
        about_methods = all(theorem.per_method for theorem in self.question.theorems)
        draft = replace(draft_plan(request), d=request.d, repeats=request.repeats)
        # a theorem without a method can be checked, whatever the methods refuse
        parts = prepared(request, draft, notify, timings, refuse=about_methods)
        for _, plan in parts:
            checked_budgets(plan.d)
        planned = {name: getattr(self.question, name) for name in ("epsilons", "delta", "quadrature")}
        planned = {"theorems": [theorem.name for theorem in self.question.theorems], **planned}
        super().__init__(request, parts, partial(_cells, self.question), planned)

    def head(self, place: Place, cell: _Cell) -> dict[str, Any]:
        plan = self.plan_of(place)
        return {
            "theorem": cell.theorem.name,
            "paper": cell.theorem.paper,
            "says": cell.theorem.says,
            **method_facts(cell.request),
            "target": cell.request and plan.target,
            "d": None,
            "repeat": 0,
            "seed": plan.seed,
            "seeds": plan.repeats,
            "requested": True,
        }

    def work(self, place: Place, cell: _Cell) -> Cost:
        """The check of the theorem, and the repeated runs of a method."""
        plan, n, heads = self.plan_of(place), place.group.n, len(self.head_numbers(place))
        draws = cell.theorem.draws(len(plan.d), plan.repeats)
        work, size = work_of_decompositions(n, heads, cell.theorem.decompositions)
        work = draws * (work + heads * OVERHEAD)
        if cell.request is None:
            return work, size
        once, more_bytes = work_of_method(n, max(plan.d), heads, cell.request.entry.cost, matrix=True)
        return work + plan.repeats * len(plan.d) * once, size + more_bytes

    def measure_cell(self, place: Place, cell: _Cell, inputs: QKV, result: Result) -> None:
        _check(self.question, cell.theorem, cell.request, self.plan_of(place), inputs, result)


def _cells(question: Question, plan: ErrorPlan, group: Group, layer: int, facts: Mapping) -> Iterator[_Cell]:
    """The cells, theorem by theorem, with one cell for each method if the theorem is about any method."""
    for theorem in question.theorems:
        for method in plan.methods if theorem.per_method else (None,):
            key = key_of(
                "theory",
                method,
                facts,
                group,
                layer,
                theorem=theorem.name,
                target=method and plan.target,
                heads=plan.heads,
                d=plan.d,
                epsilon=question.epsilons,
                delta=question.delta,
                seed=plan.seed,
                repeats=plan.repeats,
                quadrature=question.quadrature,
            )
            yield _Cell(key, theorem, method)


def _check(
    question: Question, theorem: Theorem, method: MethodRequest | None, plan: ErrorPlan, qkv: QKV, result: Result
) -> None:
    """Store the findings of a theorem, and the budgets that its method does not support.

    If the check raises an error, the findings before it are stored.
    """
    inner, findings, reasons = qkv.compressed(), [], {}
    _refuse_inputs(theorem, qkv, inner)
    if method is not None:
        tried = {d: refused(method, plan.target, inner.n_q, d) for d in budgets_of(method, plan.d)}
        reasons = {d: why for d, why in tried.items() if why is not None}
        if len(reasons) == len(tried):
            raise Unsupported(next(iter(reasons.values())))
    budgets = tuple(d for d in plan.d if d not in reasons)
    seeds = range(plan.seed, plan.seed + plan.repeats)
    setting = setting_of(question, method, budgets, seeds, plan.target, inner)

    try:
        with full_precision():
            findings.extend(theorem.check(inner, setting))
    except Unsupported as error:
        # None is the check as a whole, behind the budgets that the method refuses
        reasons[None] = message(error)
        if not findings:
            raise
    finally:
        # also after an error: the findings before it hold
        if findings:
            # a refused budget is a row without a statement, so that a table counts it
            nothing = {
                "kind": HEAD,
                **dict.fromkeys(("head", "epsilon", "delta", "sense", "assumption", "promise", "verdict")),
                "at": "",
            }
            refusals = [{**nothing, "d": d, "status": "skipped", "reason": why} for d, why in reasons.items()]
            result["rows"] = [row for finding in findings for row in _rows(finding, inner.heads)] + refusals
    if not findings:
        raise BadResult("the theorem gave no finding")
    if None not in reasons and (lost := sum(None in finding.verdicts() for finding in findings)):
        result |= {"status": "diverged", "reason": f"{lost} of {len(findings)} findings are NaN in some head"}


def _refuse_inputs(theorem: Theorem, qkv: QKV, inner: QKV) -> None:
    """Refuse attention that the theorem is not about, and entries whose powers leave float64.

    Args:
        inner: Q, K and V in their compressed form, which the theorem is checked on.
    """
    if qkv.visible is not None and not theorem.causal:
        form = "is causal" if qkv.sliding_window is None else "has a sliding window"
        raise Unsupported(f"attention {form}, but the theorem is about attention to all tokens")
    if qkv.terms is not None:
        raise Unsupported(f"scores have {qkv.terms}, but the theorem is about the softmax of scale · Q Kᵀ")
    # a sink takes a part of each row
    if qkv.sink_logits is not None:
        raise Unsupported("heads have their own sinks, but the theorem is about rows that sum to 1")
    # the theorems square and multiply entries in float64
    for name in "qkv":
        largest = float(inner.parts()[name].abs().max())
        if largest and not RANGE[0] < largest < RANGE[1]:
            raise Unsupported(
                f"the largest entry of {name} is {largest:.2g}, and bounds are computed from squares: scale it into "
                f"{RANGE[0]:g}..{RANGE[1]:g}"
            )


def _rows(finding: Finding, heads: Sequence[int]) -> list[JsonObject]:
    """The rows of a finding: a verdict for each head, then its details."""
    at = dict(finding.at)
    at.pop("method", None)  # the cell names it
    epsilon, delta = at.pop("epsilon", None), at.pop("delta", None)
    statement = {"d": finding.d, "epsilon": epsilon, "delta": delta, "at": options_text(at), "sense": finding.sense}
    verdicts = finding.verdicts()
    columns = {
        "status": ["ok" if verdict else "diverged" for verdict in verdicts],
        "reason": [None if verdict else LOST for verdict in verdicts],
        "verdict": verdicts,
        "met": finding.met.tolist(),
        "vacuous": finding.vacuous.tolist(),
        "rounding": _list(torch.as_tensor(finding.rounding).expand_as(finding.measured)),
    }
    for name in ("bound", "measured", "lower", "upper", "slack"):
        numbers = getattr(finding, name)
        columns[name] = [None] * len(heads) if numbers is None else _list(numbers)
    words = {"assumption": finding.assumption, "promise": finding.promise}
    rows = [{**row, **statement, **words} for row in head_rows(heads, columns)]
    for name, numbers in finding.details.items():
        # a detail is one number of a head, or a list
        for head, value in zip(heads, _list(numbers), strict=True):
            numbered = enumerate(value) if isinstance(value, list) else [(None, value)]
            detail = {"kind": "detail", "head": head, **statement, "detail": name}
            rows += [{**detail, "index": index, "value": number} for index, number in numbered]
    return rows


def _list(numbers: Tensor) -> list[Any]:
    """Numbers as JSON has them: infinity is a text, NaN is null."""
    numbers_or_texts: Any = encode_inf(numbers.detach().double().cpu().tolist())
    return numbers_or_texts
