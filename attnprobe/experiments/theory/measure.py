"""The run of ``attnprobe theory``: what theorems assume, promise and reach, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import Unsupported
from ...grammar.foreign import message
from ...qkv import QKV
from ...records.file import cell_key, determining, spelt
from ...run.cells import Place, PlannedCells
from ...run.limits import time_limit, with_smaller_blocks
from ...run.loop import Session, measure_cells
from ...run.plan import ErrorPlan, Group, MethodRequest, determines, refused, told
from ...run.prepare import ErrorRequest, prepared
from ...theorems import Finding, Theorem
from ...timings import Timings
from ..error.measure import said
from .setting import Asked, asked_of, possible, setting_of

__all__ = ["TheoryRequest", "measure_theory", "theory_cells"]


@dataclass(frozen=True)
class TheoryRequest(ErrorRequest):
    """What ``attnprobe theory`` was asked for; see `ErrorRequest` for the rest.

    Args:
        theorems: ``--theorem`` items, names with commas, or ``all``.
        methods: what statements about any method are asked of. matrix: no matrix errors are measured here.
        repeats: seeds, from ``seed`` on, by which a probability is measured.
        epsilon: a list of relative errors. delta: the probability with which a statement may fail.
        quadrature: whether traces are estimated; None is beyond n = 4096.
    """

    theorems: tuple[str, ...] = ("all",)
    methods: tuple[str, ...] = ("skyformer,nystromformer",)
    matrix: bool = False
    repeats: int = 20
    epsilon: str = "0.05,0.1,0.2,0.5"
    delta: float = 0.1
    quadrature: bool | None = None


@dataclass(frozen=True)
class _Cell:
    """One theorem, of one method where it is about any (else ``request`` is None), on one layer of one window."""

    key: str
    theorem: Theorem
    request: MethodRequest | None
    group: Group
    layer: int

    @property
    def name(self) -> str:
        return self.theorem.name if self.request is None else f"{self.theorem.name} {self.request.label}"


def measure_theory(
    request: TheoryRequest,
    *,
    notify: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int, str], None] = lambda done, total, label: None,
) -> Session:
    """Evaluate every theorem on every layer and leave ``manifest.json`` and ``records.jsonl`` in the run's folder.

    A record is one theorem on one layer of one window, of one method where the theorem is about any. It holds
    ``findings``, a list of objects ``d, at, assumption, promise, sense, met, bound, measured, lower, upper, rounding,
    vacuous, slack, verdict, details`` with one entry for each head, and ``refused``, the budgets that its method cannot
    take with their reasons (null for one that it turned out not to take). Numbers are infinite as ``"inf"``; null is
    NaN, nothing measured. A theorem that raises is a ``failed`` record with the findings that it gave before, one that
    is NaN where its assumption is met is ``diverged`` and has no verdict there, one whose method takes no budget is
    ``skipped``; the loop goes on. That a theorem is violated is a result.

    Raises:
        UsageError, SourceError: as the parts say; nothing is left behind.
    """
    return measure_cells(TheoryCells, request, notify=notify, progress=progress)


class TheoryCells(PlannedCells):
    """Theorems, each of every method where it is about any."""

    command = "theory"

    def __init__(self, request: TheoryRequest, notify: Callable[[str], None], timings: Timings) -> None:
        self.asked = _asked(request)
        parts = prepared(request, notify, timings, refuse=all(one.per_method for one in self.asked.theorems))
        for _, plan in parts:
            possible(plan.d)
        told = _planned(self.asked)
        super().__init__(request, parts, lambda plan, source: theory_cells(request, plan, source), told)

    def head(self, place: Place, cell: _Cell) -> dict[str, Any]:
        plan, asked = self.plan_of(place), self.asked
        return {
            "theorem": cell.theorem.name,
            "paper": cell.theorem.paper,
            "says": cell.theorem.says,
            **told(cell.request),
            "target": cell.request and plan.target,
            "d": None,
            "budgets": plan.d,
            "epsilon": asked.epsilons,
            "delta": asked.delta,
            "repeat": 0,
            "seed": plan.seed,
            "seeds": plan.repeats,
            "requested": True,
            "metrics": {},
        }

    def one(self, place: Place, cell: _Cell, qkv: QKV, show: Callable[[str], None]) -> dict[str, Any]:
        return _measured(cell, self.asked, self.plan_of(place), qkv, self.request.cell_timeout)

    def failed(self, cell: _Cell, reason: str) -> dict[str, Any]:
        return _result("failed", reason, [], {})


def theory_cells(request: TheoryRequest, plan: ErrorPlan, source: Any) -> dict[tuple[Group, int], list[_Cell]]:
    """The cells of every group and layer in their order."""
    facts, asked = determining(source.facts), _asked(request)
    return {place: list(_cells(asked, plan, *place, facts)) for place in plan.places()}


def _cells(asked: Asked, plan: ErrorPlan, group: Group, layer: int, facts: Mapping) -> Iterator[_Cell]:
    """A theorem after the other, each of every method where it is about any."""
    for theorem in asked.theorems:
        for method in plan.methods if theorem.per_method else (None,):
            key = cell_key(
                command="theory",
                theorem=theorem.name,
                **determines(method),
                target=method and plan.target,
                source=dict(facts),
                n=group.n,
                window=group.window,
                layer=layer,
                heads=plan.heads,
                d=plan.d,
                epsilon=asked.epsilons,
                delta=asked.delta,
                seed=plan.seed,
                repeats=plan.repeats,
                quadrature=asked.quadrature,
            )
            yield _Cell(key, theorem, method, group, layer)


def _asked(request: TheoryRequest) -> Asked:
    return asked_of(request.theorems, request.epsilon, request.delta, request.quadrature)


def _planned(asked: Asked) -> dict[str, Any]:
    """What a manifest's plan says beside methods, budgets and places."""
    return {
        "theorems": [one.name for one in asked.theorems],
        "epsilons": asked.epsilons,
        "delta": asked.delta,
        "quadrature": asked.quadrature,
    }


def _measured(cell: _Cell, asked: Asked, plan: ErrorPlan, qkv: QKV, limit: float | None) -> dict[str, Any]:
    """The measured part of a record: status, reason, findings, refused."""
    if qkv.causal:
        return _result("skipped", "attention is causal, and the theorem is about attention to all tokens", [], {})
    inner, found, reasons = qkv.compressed(), [], {}
    if cell.request is not None:
        has_budget = cell.request.entry.budget is not None
        tried = {d: refused(cell.request, plan.target, inner.n_q, d) for d in (plan.d if has_budget else (None,))}
        reasons = {d: why for d, why in tried.items() if why is not None}
        if len(reasons) == len(tried):
            return _result("skipped", next(iter(reasons.values())), [], {})
    budgets = [d for d in plan.d if d not in reasons]
    seeds = range(plan.seed, plan.seed + plan.repeats)
    setting = setting_of(asked, cell.request, tuple(budgets), seeds, plan.target, inner)

    def check() -> None:
        found.clear()
        found.extend(cell.theorem.check(inner, setting))

    status, reason = "ok", None
    try:
        with time_limit(limit):
            with_smaller_blocks(check)
        if not found:
            status, reason = "failed", "it gave no finding"
        elif lost := sum(None in finding.verdicts() for finding in found):
            status, reason = "diverged", f"{lost} of {len(found)} findings are NaN in some head"
    except Unsupported as error:  # what was found before stands
        status, reason = ("ok", None) if found else ("skipped", message(error))
        reasons = {**reasons, None: message(error)}
    except Exception as error:  # whatever a check or a method raises is the cell's result
        status, reason = "failed", said(error)
    return _result(status, reason, [_as_record(finding) for finding in found], reasons)


def _as_record(finding: Finding) -> dict[str, Any]:
    """A finding as a record holds it: a list for each number, with one entry for each head; infinity is ``"inf"``."""
    listed = lambda x: spelt(x.detach().double().cpu().tolist()) if isinstance(x, Tensor) else x
    rounding = (
        finding.rounding
        if isinstance(finding.rounding, Tensor)
        else torch.full_like(finding.measured, finding.rounding)
    )
    return {
        "d": finding.d,
        "at": dict(finding.at),
        "assumption": finding.assumption,
        "promise": finding.promise,
        "sense": finding.sense,
        "met": finding.met.tolist(),
        "vacuous": finding.vacuous.tolist(),
        "verdict": finding.verdicts(),
        **{name: listed(getattr(finding, name)) for name in ("bound", "measured", "lower", "upper", "slack")},
        "rounding": listed(rounding),
        "details": {name: listed(value) for name, value in finding.details.items()},
    }


def _result(status: str, reason: str | None, found: list[dict[str, Any]], reasons: Mapping) -> dict[str, Any]:
    told = [{"d": d, "reason": why} for d, why in reasons.items()] if found else []
    return {"status": status, "reason": reason, "findings": found, "refused": told, "draws_hash": None}
