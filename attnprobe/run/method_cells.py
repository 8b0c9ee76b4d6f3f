"""Cells of methods at their budgets, which several commands measure each in its way, and how a method ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..approximation import Approximation
from ..files import Fields, JsonObject
from ..qkv import QKV
from .cells import Place, PlannedCells
from .plan import ErrorPlan, Group, MethodRequest, budgets_of, key_of, method_facts


@dataclass(frozen=True)
class MethodCell:
    """A method at a budget, on one layer of one window. Without a ``request`` it is the exact matrices."""

    key: str
    request: MethodRequest | None
    d: int | None

    @property
    def name(self) -> str:
        return "A, B, C" if self.request is None else self.request.label


def method_cells(
    command: str,
    methods: Sequence[MethodRequest | None],
    plan: ErrorPlan,
    group: Group,
    layer: int,
    facts: Fields,
    **determinants: object,
) -> Iterator[MethodCell]:
    """The cells of each method at every budget of a plan.

    Args:
        facts: those that identify the source. determinants: what else the numbers of a cell depend on.
    """
    for method in methods:
        for d in budgets_of(method, plan.d):
            settings = {"target": plan.target, "heads": plan.heads, "d": d, "seed": plan.seed}
            yield MethodCell(key_of(command, method, facts, group, layer, **settings, **determinants), method, d)


def head_of(cells: PlannedCells, place: Place, cell: MethodCell) -> JsonObject:
    """The fields of a cell's record that are known before it is measured, without its place."""
    plan = cells.plan_of(place)
    return {
        **method_facts(cell.request),
        "target": plan.target,
        "d": cell.d,
        "repeat": 0,
        "seed": plan.seed,
        "requested": cell.request is not None,
    }


NOT_FINITE = "exact attention itself is not finite: the scores overflow float64"


def ending(approx: Approximation, qkv: QKV) -> JsonObject:
    """The status and reason of a method that ran: ``diverged`` if an output is not finite."""
    # without a bad row there is no lost one, and the output need not be searched
    if not approx.diagnostics["bad_rows"].any():
        return {}
    broken = [str(head) for head, lost in zip(qkv.heads, approx.lost_rows().tolist(), strict=True) if lost]
    return {"status": "diverged", "reason": f"the output is not finite in head {', '.join(broken)}"} if broken else {}
