"""The run of ``attnprobe condition``: condition numbers of exact matrices and of methods' cores, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...errors import Unsupported
from ...files import JsonObject
from ...frame.rows import head_rows
from ...machine.timings import Timings
from ...methods import approximate
from ...metrics import (
    Core,
    core_matrices,
    exact_matrices,
    inverse_gradient,
    iteration_gradient,
    lemma3_interval,
    output_errors,
    schulz_residuals,
    sensitivity,
)
from ...operators.linalg.condition import Condition, condition
from ...qkv import QKV
from ...reference import exact, exact_output
from ...rounding import Computation, format_named, measured
from ...run.cells import Place, PlannedCells, Result
from ...run.costs import Cost, work_of_decompositions, work_of_method
from ...run.method_cells import MethodCell, ending, head_of, method_cells
from ...run.plan import ErrorPlan, Group, MethodRequest, refused
from ...run.sources import draft_plan, prepared
from . import ConditionRequest
from .record import BAD_ROWS, ERROR, SHAPE

EMULATED = 12  # the time of a method and its amplification over that of the method
DENSE = 4096  # tokens: A, B and C of one head take 128 MiB each


class ConditionCells(PlannedCells[ConditionRequest, MethodCell, QKV]):
    """Condition numbers of the exact matrices and of methods' cores."""

    command, may_be_empty = "condition", True
    shape = SHAPE

    def __init__(self, request: ConditionRequest, notify: Callable[[str], None], timings: Timings) -> None:
        parts = prepared(request, replace(draft_plan(request), d=request.d), notify, timings)
        super().__init__(request, parts, partial(_cells, request))

    def head(self, place: Place, cell: MethodCell) -> dict[str, Any]:
        return head_of(self, place, cell) | {"reference": cell.request is None}

    def work(self, place: Place, cell: MethodCell) -> Cost:
        n, heads = place.group.n, len(self.head_numbers(place))
        if cell.request is None:
            return work_of_decompositions(n, heads)
        work, size = work_of_method(n, cell.d, heads, cell.request.entry.cost)
        return work * (1 if self.request.amplification is None else EMULATED), size

    def measure_cell(self, place: Place, cell: MethodCell, inputs: QKV, result: Result) -> None:
        plan = self.plan_of(place)
        if cell.request is None:
            result |= _exact(self.request, inputs, self.head_numbers(place))
            return
        if (why := refused(cell.request, plan.target, inputs.n_q, cell.d)) is not None:
            raise Unsupported(why)
        _cores(cell.request, cell.d, self.request, plan, inputs, self.head_numbers(place), result)


def _cells(
    request: ConditionRequest, plan: ErrorPlan, group: Group, layer: int, facts: Mapping[str, Any]
) -> Iterator[MethodCell]:
    """The exact matrices first, then every method at every budget."""
    options = {name: getattr(request, name) for name in ("iterations", "sensitivity")}
    options |= {} if request.amplification is None else {"amplification": request.amplification}
    return method_cells("condition", (None, *plan.methods), plan, group, layer, facts, **options)


def _exact(request: ConditionRequest, qkv: QKV, heads: Sequence[int]) -> Result:
    """Condition numbers of A, B and C, one head at a time, and the changes of B and C with Q and K."""
    changes = []
    if request.sensitivity:
        for name, target in (("B", "softmax"), ("C", "gaussian")):
            changes += _trials(name, heads, sensitivity(lambda x, t=target: exact(x, t), qkv, seed=request.seed))
    # the changes need products alone, and are measured at any length
    if max(qkv.n_q, qkv.n_k) > DENSE:
        why = f"A, B and C are held to be decomposed, up to n={DENSE}"
        if not changes:
            raise Unsupported(why)
        return {"reason": why, "rows": changes}
    rows = []
    for index, head in enumerate(heads):
        for name, matrix, repeated in exact_matrices(qkv, index):
            facts = {"head": head, "matrix": name, "inverted": False, "repeated": repeated}
            rows += _condition_rows(condition(matrix), facts)
    return {"rows": rows + changes}


def _cores(
    method: MethodRequest,
    d: int | None,
    request: ConditionRequest,
    plan: ErrorPlan,
    qkv: QKV,
    heads: Sequence[int],
    result: Result,
) -> None:
    options = dict(method.options)

    def run(x: QKV) -> Any:
        return approximate(method.entry, x, d, seed=plan.seed, target=plan.target, **options)

    approx = run(qkv)
    # beside the condition numbers, because a small one does not mean a small error
    errors: dict[str, Any] = {ERROR: output_errors(exact_output(qkv, plan.target), approx, qkv)[ERROR].tolist()}
    if "guarded_rows" not in approx.diagnostics:  # a guard replaces bad rows, and there are none to count
        errors[BAD_ROWS] = approx.diagnostics[BAD_ROWS].tolist()
    rows = result["rows"] = head_rows(heads, errors)
    changes = []
    if request.sensitivity and approx.operator is not None:
        changes = _trials("B~", heads, sensitivity(lambda x: run(x).operator, qkv, seed=request.seed))
    cores = core_matrices(qkv, approx, options)
    if not cores and not changes:
        if qkv.causal and "causal" in method.entry.tags:
            raise Unsupported(
                "no core to measure: a causal form inverts a core for each block of keys at most, and none for all keys"
            )
        raise Unsupported(f"{method.label} inverts no core")
    if request.amplification is not None and cores:
        computation = Computation(qkv.to(torch.float64), method.entry, d, plan.seed, plan.target, options)
        errors["amplification"] = _amplification(computation, request)
    for core in cores:
        rows += _core_rows(core, heads, errors, request)
    result |= {"rows": rows + changes, "draws_hash": approx.draws_hash(), **ending(approx, qkv)}


def _amplification(computation: Computation, request: ConditionRequest) -> list[float | None]:
    """The amplification of rounding of each head; infinite for an output that is not finite."""
    assert request.amplification is not None
    values = measured(computation, format_named(request.amplification)).amplification.tolist()
    return [None if math.isnan(value) else value for value in values]


def _core_rows(
    core: Core, heads: Sequence[int], errors: Mapping[str, Sequence[Any]], request: ConditionRequest
) -> list[JsonObject]:
    """The rows of one core of all heads."""
    further: dict[str, Sequence[Any]] = dict(errors)
    if core.scaled:
        low, high, verdicts = lemma3_interval(core.matrix)
        further |= {"eigen_min": low.tolist(), "eigen_max": high.tolist(), "lemma3": verdicts}
    if request.sensitivity:
        # the core is exp(-s) M: its inverse is exp(s) Z, and so is the change of either side
        factor = torch.exp(-2 * core.log_scale).cpu()
        gradients = iteration_gradient(core.matrix, core.start) * factor
        further["gradient_six"] = [*map(_unbounded, gradients.tolist())]
    name = {"matrix": core.name, "inverted": core.inverted}
    rows = []
    for index, head in enumerate(heads):
        conditioned = condition(core.matrix[index])
        facts = {"head": head, **name, "repeated": int(core.repeated[index])}
        facts |= {"gradient": _unbounded(inverse_gradient(conditioned, float(core.log_scale[index])))}
        facts |= {"start": core.start} if request.iterations else {}
        rows += _condition_rows(conditioned, facts | {metric: values[index] for metric, values in further.items()})
    if request.iterations:
        residuals = schulz_residuals(core.matrix, core.start, request.iterations).T.tolist()
        for iteration, of_heads in enumerate(residuals):
            columns = {"residual": [*map(_unbounded, of_heads)]}
            steps = head_rows(heads, columns, "iteration")
            rows += [{**row, **name, "iteration": iteration} for row in steps]
    return rows


def _condition_rows(measured: Condition, facts: JsonObject) -> list[JsonObject]:
    """The row of one matrix of one head, and its condition numbers up to powers of two and to half of its size."""
    size = len(measured.values)
    half = max(1, size // 2)
    numbers = {
        "size": size,
        "cond": _unbounded(measured.value),
        "flag": measured.flag,
        "rank": measured.rank,
        "cond_eff": _unbounded(measured.cond_eff),
        "cond_half": _unbounded(measured.cond_at(half)),
    }
    matrix = {"kind": "at", "head": facts["head"], "matrix": facts["matrix"]}
    ranks = sorted({2**power for power in range(size.bit_length())} | {half})
    at_ranks = [{**matrix, "k": rank, "cond_at": _unbounded(measured.cond_at(rank))} for rank in ranks]
    return [{"kind": "matrix", **facts, **numbers}, *at_ranks]


def _trials(matrix: str, heads: Sequence[int], changes: torch.Tensor) -> list[JsonObject]:
    """The rows of the changes of a matrix, (h, trials)."""
    return [
        {**row, "matrix": matrix, "trial": trial}
        for trial, of_heads in enumerate(changes.T.tolist())
        for row in head_rows(heads, {"sensitivity": of_heads}, "trial")
    ]


def _unbounded(value: float | None) -> float:
    """The number; infinite if rounding or an overflow leaves no number."""
    return math.inf if value is None or math.isnan(value) else value
