"""The run of ``attnprobe audit``: a method with many seeds beside one exact reference, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...errors import Unsupported, UsageError
from ...methods import approximate
from ...metrics.guarantees import GuaranteeReference
from ...qkv import QKV
from ...run.cells import Place, PlannedCells, Result
from ...run.costs import Cost, work_of_decompositions, work_of_method
from ...run.method_cells import NOT_FINITE, MethodCell, head_of, method_cells
from ...run.plan import ErrorPlan, Group, refused
from ...run.sources import draft_plan, prepared
from ...timings import Timings
from . import AuditRequest
from .record import SHAPE
from .tally import Tally

LOOK = 20  # repeats between two looks of a test that stops by itself
SHOWN = 50  # repeats between two words on the progress


class AuditCells(PlannedCells):
    """How often methods exceed a promised error."""

    command = "audit"
    shape = SHAPE
    blank = {**PlannedCells.blank, "statements": [], "trials": 0}

    def __init__(self, request: AuditRequest, notify: Callable[[str], None], timings: Timings) -> None:
        parts = prepared(request, replace(draft_plan(request), d=request.d), notify, timings)
        if all("deterministic" in method.entry.tags for method in parts[0][1].methods):
            names = ", ".join(method.label for method in parts[0][1].methods)
            raise UsageError(f"{names}: nothing is random, so there is no probability to test; see attnprobe error")
        super().__init__(request, parts, partial(_cells, request))
        self._reference: tuple[QKV, GuaranteeReference] | None = None

    def head(self, place: Place, cell: MethodCell) -> dict[str, Any]:
        assert cell.request is not None
        return head_of(self, place, cell) | {
            "reference": False,
            "family": cell.request.entry.family,
            "repeats": self.request.repeats,
            "confidence": self.request.confidence,
            "anytime": self.request.stop,
        }

    def work(self, place: Place, cell: MethodCell) -> Cost:
        n, heads = place.group.n, len(self.head_numbers(place))
        work, size = work_of_method(n, cell.d, heads)
        work += self.request.matrix * work_of_decompositions(n, heads, 1)[0] / 12  # a bound of the norm of a difference
        return self.request.repeats * work, size + 8.0 * heads * n * n * self.request.matrix

    def one(self, place: Place, cell: MethodCell, inputs: QKV, result: Result) -> None:
        plan, request = self.plan_of(place), self.request
        assert cell.request is not None
        if (why := refused(cell.request, plan.target, inputs.n_k, cell.d)) is not None:
            raise Unsupported(why)
        if "deterministic" in cell.request.entry.tags:
            raise Unsupported(f"{cell.name} draws nothing: its errors are in `attnprobe error`")
        reference = self._exact(inputs, plan.target)
        if not torch.isfinite(reference.output).all():
            result |= {"status": "failed", "reason": NOT_FINITE}
            return
        tally = Tally(
            reference, request.epsilon, request.delta, request.confidence, rows=request.rows, anytime=request.stop
        )
        options = dict(cell.request.options)
        for repeat in range(request.repeats):
            approx = approximate(
                cell.request.entry, reference.qkv, cell.d, seed=plan.seed + repeat, target=plan.target, **options
            )
            tally.add(approx)
            if repeat == 0:
                result["draws_hash"] = approx.draws_hash()
            if tally.trials % SHOWN == 0:
                self.show(
                    f"{self.label(place, cell)} repeat {tally.trials}", {cell.key: tally.trials / request.repeats}
                )
            if request.stop and tally.trials % LOOK == 0:
                tally.look()
                if tally.decided:
                    break
        result |= {"trials": tally.trials, "statements": tally.statements(), "metrics": tally.metrics()}
        if tally.lost.any():
            heads = zip(inputs.heads, tally.lost.tolist(), strict=True)
            counts = ", ".join(f"{count} of head {head}" for head, count in heads if count)
            result |= {"status": "diverged", "reason": f"not finite in {tally.trials} repeats: {counts}"}

    def _exact(self, inputs: QKV, target: str) -> GuaranteeReference:
        """The exact side of a place, which its cells share."""
        if self._reference is None or self._reference[0] is not inputs:
            self._reference = inputs, GuaranteeReference(inputs.compressed(), target, self.request.matrix)
        return self._reference[1]


def _cells(
    request: AuditRequest, plan: ErrorPlan, group: Group, layer: int, facts: Mapping[str, Any]
) -> Iterator[MethodCell]:
    """Every method at every budget."""
    names = ("repeats", "epsilon", "delta", "confidence", "stop", "rows", "matrix")
    options = {name: getattr(request, name) for name in names}
    return method_cells("audit", plan.methods, plan, group, layer, facts, **options)
