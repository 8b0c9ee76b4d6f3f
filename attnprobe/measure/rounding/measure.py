"""The run of ``attnprobe rounding``: each method in float64 and in each format, with its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import Unsupported, UsageError
from ...frame.rows import head_rows
from ...machine.timings import Timings
from ...qkv import QKV
from ...rounding import Computation, Estimate, Plan, RoundingErrors, arithmetic_named, estimate, measured, plan
from ...rounding.measured import EXACT
from ...rounding.predictors import predictors
from ...rounding.published import PUBLISHED, published_errors
from ...rounding.site import INPUTS
from ...run.cells import Place, PlannedCells, Result
from ...run.costs import Cost, work_of_method
from ...run.method_cells import NOT_FINITE, MethodCell, head_of, method_cells
from ...run.plan import ErrorPlan, Group, MethodRequest, parse_methods, refused
from ...run.sources import draft_plan, prepared
from . import RoundingRequest
from .record import SHAPE

PASSES = 12  # plain runs that a cell takes: in float64, emulated twice, with rounded inputs
OF_ESTIMATE, OF_PLAN = 8, 16  # plain runs more with an estimate, and with a plan


@dataclass(frozen=True)
class RoundingMethod(MethodCell):
    """A method at a budget in a format of ``--formats``. ``code`` names published code in its place, if any."""

    format: str
    code: str | None = None

    @property
    def name(self) -> str:
        return f"{self.code or super().name} {self.format}"


class RoundingCells(PlannedCells[RoundingRequest, RoundingMethod, QKV]):
    """What the arithmetic of formats adds to the errors of methods."""

    command = "rounding"
    shape = SHAPE

    def __init__(self, request: RoundingRequest, notify: Callable[[str], None], timings: Timings) -> None:
        if request.published and not _with_code(parse_methods(request.methods, request.target)):
            raise UsageError(f"published: no method has published code here; choose {', '.join(PUBLISHED)}")
        parts = prepared(request, replace(draft_plan(request), d=request.d), notify, timings)
        super().__init__(request, parts, partial(_cells, request), {"formats": [*request.formats]})
        self._last: tuple[QKV, tuple[object, ...], Computation] | None = None

    def head(self, place: Place, cell: RoundingMethod) -> dict[str, Any]:
        assert cell.request is not None
        code = {} if cell.code is None else {"method": cell.code, "options": {}}
        return head_of(self, place, cell) | {
            **code,
            "reference": False,
            "family": cell.request.entry.family,
            "format": cell.format,
            "bits": arithmetic_named(cell.format)[0].bits,
        }

    def work(self, place: Place, cell: RoundingMethod) -> Cost:
        n, heads = place.group.n, len(self.head_numbers(place))
        assert cell.request is not None
        work, size = work_of_method(n, cell.d, heads, cell.request.entry.cost)
        passes = PASSES + OF_ESTIMATE * self.request.estimate + OF_PLAN * self.request.plan
        return passes * work, 4 * size

    def measure_cell(self, place: Place, cell: RoundingMethod, inputs: QKV, result: Result) -> None:
        request, (to, model) = self.request, arithmetic_named(cell.format)
        assert cell.request is not None
        if (why := refused(cell.request, self.plan_of(place).target, inputs.n_k, cell.d)) is not None:
            raise Unsupported(why)
        computation = self._computation(place, cell, inputs)
        if not torch.isfinite(computation.exact).all():
            result |= {"status": "failed", "reason": NOT_FINITE}
            return
        if cell.code is not None:
            made = published_errors(computation, to, model, request.goal)
            result |= {"rows": head_rows(inputs.heads, columns_of_outputs(made))}
            return
        errors = measured(computation, to, model, goal=request.goal)
        columns = columns_of(errors) | {name: _numbers(values) for name, values in predictors(computation).items()}
        known = found = None
        if request.estimate or request.plan:
            known = estimate(computation, to, model)
            columns |= estimated(known, errors)
            result["steps"] = len(known.sites)
        # an exact method has no error of which rounding could be a part
        if request.plan and known is not None and (errors.approximation > EXACT).any():
            found = plan(computation, to, errors, known, arithmetic=model, goal=request.goal)
            columns["planned_error"] = _numbers(found.measured.held)
            columns["kept_steps"] = [float(len(found.keep))] * len(inputs.heads)
            result["plan"] = found.line()
        rows = head_rows(inputs.heads, columns)
        if known is not None:
            rows += step_rows(inputs.heads, known, found)
        result |= {"rows": rows, "operations": sum(errors.report.emulated.values())}
        result |= {"as_written": sum(errors.report.as_written.values())}
        self._judge(errors, result)

    def _judge(self, errors: RoundingErrors, result: Result) -> None:
        """The reason, and the status, of a cell in which not every operation was rounded."""
        report = errors.report
        if report.unrounded is not None:
            result |= {"reason": report.unrounded, **({} if report.emulated else {"status": "failed"})}

    def _computation(self, place: Place, cell: RoundingMethod, inputs: QKV) -> Computation:
        """The method on these inputs; that of the last cell if only the format differs."""
        assert cell.request is not None
        plan = self.plan_of(place)
        key = cell.request, cell.d, plan.seed, plan.target
        if self._last is None or self._last[0] is not inputs or self._last[1] != key:
            options = dict(cell.request.options)
            made = Computation(inputs.to(torch.float64), cell.request.entry, cell.d, plan.seed, plan.target, options)
            self._last = inputs, key, made  # it keeps its run in float64, which all formats share
        return self._last[2]


def columns_of(errors: RoundingErrors) -> dict[str, list[Any]]:
    """The columns of rows of heads."""
    return columns_of_outputs(vars(errors)) | {
        "rounding_held": _numbers(errors.held),
        "rounding_frobenius": _numbers(errors.held_frobenius),
        "input_floor": _numbers(errors.input_floor),
        "flips": [errors.flips] * len(errors.rounding),
        "first_failed": list(errors.first_failed),
    }


def columns_of_outputs(errors: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """The columns that follow from a method's outputs in float64 and in the format, see `rounding.measured.added`."""
    rounding, approximation = errors["rounding"], errors["approximation"]
    return {
        "output_spectral_relative": _numbers(approximation),
        "rounding_error": _numbers(rounding),
        "total_error": _numbers(errors["total"]),
        "amplification": _numbers(errors["amplification"]),
        "bits_needed": _numbers(errors["bits"]),
        "rounding_decides": _numbers((rounding > approximation).double()),
        "not_finite": _numbers((rounding == torch.inf).double()),
    }


def estimated(known: Estimate, errors: RoundingErrors) -> dict[str, list[Any]]:
    """The columns of the estimate."""
    return {
        "rounding_estimate": _numbers(known.error),
        "estimate_ratio": _numbers(known.error / errors.held_frobenius),
    }


def step_rows(heads: tuple[int, ...], known: Estimate, found: Plan | None) -> list[dict[str, Any]]:
    """A row for each step and head, the largest mean share first."""
    shares, rows = known.shares(), []
    kept = set() if found is None else set(found.keep)
    for order, site in enumerate((INPUTS, *known.sites)):
        columns: dict[str, list[Any]] = {"share": [_number(share.get(site, 0.0)) for share in shares]}
        columns |= {"site": [str(site)] * len(heads), "order": [order] * len(heads)}
        if found is not None:
            columns["kept"] = [float(site in kept)] * len(heads)
        rows += head_rows(heads, columns, "step")
    return rows


def _numbers(values: Tensor) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    """A number of a row: null for NaN."""
    return None if math.isnan(value) else value


def _with_code(methods: Iterable[MethodRequest]) -> list[str]:
    """The names of the methods with published code."""
    return list(dict.fromkeys(method.name for method in methods if method.name in PUBLISHED))


def _cells(
    request: RoundingRequest, of: ErrorPlan, group: Group, layer: int, facts: Mapping[str, Any]
) -> Iterator[RoundingMethod]:
    options = {name: getattr(request, name) for name in ("goal", "estimate")}
    options["planned"] = request.plan
    # Yardsticks that attnprobe adds have no rounding that anyone asked for, and cost as much as methods.
    asked = [method for method in of.methods if method.requested]
    published = [MethodRequest(name) for name in _with_code(asked)] if request.published else []
    for format in request.formats:
        for cell in method_cells("rounding", asked, of, group, layer, facts, format=format, **options):
            yield RoundingMethod(cell.key, cell.request, cell.d, format)
        for cell in method_cells("rounding", published, of, group, layer, facts, format=format, published=True):
            assert cell.request is not None
            yield RoundingMethod(cell.key, cell.request, cell.d, format, PUBLISHED[cell.request.name].name)
