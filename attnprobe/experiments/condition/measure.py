"""The run of ``attnprobe condition``: condition numbers of exact matrices and of methods' cores, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...errors import Unsupported
from ...linalg.condition import Condition, condition
from ...methods import approximate
from ...metrics import (
    EXACT,
    core_matrices,
    exact_matrices,
    inverse_gradient,
    iteration_gradient,
    lemma3_interval,
    output_errors,
    schulz_residuals,
    sensitivity,
)
from ...qkv import QKV
from ...reference import exact, exact_output
from ...run.cells import Place, PlannedCells, Result
from ...run.costs import Cost, work_of_decompositions, work_of_method
from ...run.method_cells import MethodCell, ending, head_of, method_cells
from ...run.plan import ErrorPlan, Group, MethodRequest, refused
from ...run.sources import draft_plan, prepared
from ...timings import Timings
from . import ConditionRequest
from .record import BAD_ROWS, ERROR, SHAPE

DENSE = 4096  # tokens: A, B and C of one head take 128 MiB each


class ConditionCells(PlannedCells[ConditionRequest, MethodCell, QKV]):
    """Condition numbers of the exact matrices and of methods' cores."""

    command, may_be_empty = "condition", True
    shape = SHAPE
    blank = {**PlannedCells.blank, "matrices": []}

    def __init__(self, request: ConditionRequest, notify: Callable[[str], None], timings: Timings) -> None:
        parts = prepared(request, replace(draft_plan(request), d=request.d), notify, timings)
        super().__init__(request, parts, partial(_cells, request))

    def head(self, place: Place, cell: MethodCell) -> dict[str, Any]:
        return head_of(self, place, cell) | {"reference": cell.request is None}

    def work(self, place: Place, cell: MethodCell) -> Cost:
        n, heads = place.group.n, len(self.head_numbers(place))
        if cell.request is None:
            return work_of_decompositions(n, heads)
        return work_of_method(n, cell.d, heads, cell.request.entry.cost)

    def one(self, place: Place, cell: MethodCell, inputs: QKV, result: Result) -> None:
        plan = self.plan_of(place)
        if cell.request is None:
            result |= _exact(self.request, inputs)
            return
        if (why := refused(cell.request, plan.target, inputs.n_q, cell.d)) is not None:
            raise Unsupported(why)
        _cores(cell.request, cell.d, self.request, plan, inputs, result)


def _cells(
    request: ConditionRequest, plan: ErrorPlan, group: Group, layer: int, facts: Mapping[str, Any]
) -> Iterator[MethodCell]:
    """The exact matrices first, then every method at every budget."""
    options = {name: getattr(request, name) for name in ("iterations", "sensitivity")}
    return method_cells("condition", (None, *plan.methods), plan, group, layer, facts, **options)


def _exact(request: ConditionRequest, qkv: QKV) -> Result:
    """Condition numbers of A, B and C, one head at a time, and the changes of B and C with Q and K."""
    changes = {}
    if request.sensitivity:
        for name, target in (("B", "softmax"), ("C", "gaussian")):
            changes[name] = sensitivity(lambda x, t=target: exact(x, t), qkv, seed=request.seed).tolist()
    if max(qkv.n_q, qkv.n_k) > DENSE:
        why = f"A, B and C are held to be decomposed, up to n={DENSE}"
        if not changes:
            raise Unsupported(why)
        return {"reason": why, "metrics": {"sensitivity": changes}}
    per_head: dict[str, list[dict[str, Any]]] = {name: [] for name in EXACT}
    for row in range(qkv.h):
        for name, matrix, repeated in exact_matrices(qkv, row):
            per_head[name].append({**_numbers(matrix)[1], "duplicates": repeated})
    inner = qkv.compressed()
    size = min(inner.n_q, inner.n_k)
    matrices = [_matrix(name, False, size, each) for name, each in per_head.items()]
    return {"metrics": {"sensitivity": changes} if changes else {}, "matrices": matrices}


def _cores(
    method: MethodRequest, d: int | None, request: ConditionRequest, plan: ErrorPlan, qkv: QKV, result: Result
) -> None:
    options = dict(method.options)

    def run(x: QKV) -> Any:
        return approximate(method.entry, x, d, seed=plan.seed, target=plan.target, **options)

    approx = run(qkv)
    metrics: dict[str, Any] = {ERROR: output_errors(exact_output(qkv, plan.target), approx, qkv)[ERROR].tolist()}
    if "guarded_rows" not in approx.diagnostics:  # a guard replaces these rows
        metrics[BAD_ROWS] = approx.diagnostics[BAD_ROWS].tolist()
    if request.sensitivity and approx.operator is not None:
        metrics["sensitivity"] = {"B~": sensitivity(lambda x: run(x).operator, qkv, seed=request.seed).tolist()}
    matrices = []
    for core in core_matrices(qkv, approx, options):
        each = []
        for row, matrix in enumerate(core.matrix):
            measured_core, numbers = _numbers(matrix)
            gradient = inverse_gradient(measured_core, float(core.log_scale[row]))
            each.append({**numbers, "duplicates": int(core.repeated[row]), "gradient": gradient})
        measured = _matrix(core.name, core.inverted, core.matrix.shape[-1], each)
        if core.scaled:
            low, high, verdicts = lemma3_interval(core.matrix)
            measured["metrics"] |= {"eigen_min": low.tolist(), "eigen_max": high.tolist(), "lemma3": verdicts}
        if request.sensitivity:
            factor = torch.exp(-2 * core.log_scale).cpu()  # Z of exp(-s) M is exp(s) Z, and so is each side's change
            measured["metrics"]["gradient_six"] = (iteration_gradient(core.matrix, core.start) * factor).tolist()
        if request.iterations:
            measured["metrics"]["residuals"] = schulz_residuals(core.matrix, core.start, request.iterations).tolist()
            measured["start"] = core.start
        matrices.append(measured)
    result["metrics"] = metrics
    if not matrices and "sensitivity" not in metrics:
        if qkv.causal and "causal" in method.entry.tags:
            raise Unsupported(
                "no core to measure: a causal form inverts a core for each block of keys, if any, and none for all"
            )
        raise Unsupported(f"{method.label} inverts no core")
    result |= {"matrices": matrices, "draws_hash": approx.draws_hash(), **ending(approx, qkv)}


def _numbers(matrix: torch.Tensor) -> tuple[Condition, dict[str, Any]]:
    """The condition number of one matrix of one head, and its entries of the record."""
    measured = condition(matrix)
    size = len(measured.values)
    places = sorted({2**i for i in range(size.bit_length())} | {size // 2} - {0})
    numbers = {
        "cond": measured.value,
        "flag": measured.flag,
        "rank": measured.rank,
        "cond_eff": measured.cond_eff,
        "cond_at": {str(k): measured.cond_at(k) for k in places},
    }
    return measured, numbers


def _matrix(name: str, inverted: bool, size: int, heads: list[dict[str, Any]]) -> dict[str, Any]:
    metrics = {key: [numbers[key] for numbers in heads] for key in heads[0]}
    return {"matrix": name, "inverted": inverted, "size": size, "metrics": metrics}
