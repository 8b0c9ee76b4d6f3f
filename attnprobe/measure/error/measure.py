"""The run of ``attnprobe error``: batches of methods that share passes over the exact matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ...approximation import Approximation
from ...errors import Unsupported
from ...frame.records.file import LOWER_BOUND
from ...frame.rows import head_rows
from ...machine.timings import Timings
from ...methods import approximate, working_dtype
from ...metrics import (
    ROW_TOLERANCES,
    ExactNorms,
    ExactOutput,
    ExactRows,
    KernelReference,
    MatrixErrors,
    kernel_errors,
    lower_bound,
    output_errors,
    over_rows,
    position_profile,
    row_metrics,
    shared_matrix_errors,
)
from ...metrics.residual import why_no_block
from ...operators import Operator
from ...operators.linalg.norms import tail_singular_values
from ...qkv import QKV
from ...reference import exact, exact_output
from ...run.cells import Done, Place, PlannedCells, Progress, Result
from ...run.costs import Cost, work_of_method
from ...run.inputs import exact_norms_of
from ...run.limits import TIMEOUT, Attempt, attempt, with_smaller_blocks
from ...run.method_cells import NOT_FINITE, ending
from ...run.plan import Cell, ErrorPlan, MethodRequest, method_facts, method_identity, refused
from ...run.sources import draft_plan, prepared
from . import ErrorRequest
from .maps import keep_maps
from .record import SHAPE

RENAMED = {"matrix_spectral_passes": "matrix_passes"}  # as rows name a metric
JUDGED = ("output_spectral", "output_frobenius", "matrix_spectral")  # a cell whose value is not finite has diverged
Columns = dict[str, list[Any]]  # a value for each head, by name
DIAGNOSTICS = (
    "bad_rows",
    "guarded_rows",
    "rounded_rows",
    "inverse_residual",
    "delta",
    "realised_d",
    "realised_d_p10",
    "realised_d_p90",
    "scored",
    "kv_read",
)


class ErrorCells(PlannedCells[ErrorRequest, Cell, QKV]):
    """Errors of approximations.

    Q, K and V are captured once for each (n, window), and the exact output is computed once for each layer. The cells
    of a batch (`ErrorPlan.batches`) share the passes over the exact matrix. If a cell of a batch is missing, the full
    batch is measured again, so that its numbers equal those of a run without interruption; only the missing cells are
    appended.
    """

    command = "error"
    shape = SHAPE
    blank = {**PlannedCells.blank, "seconds": None}

    def __init__(self, request: ErrorRequest, notify: Callable[[str], None], timings: Timings) -> None:
        plan = replace(
            draft_plan(request),
            d=request.d,
            repeats=request.repeats,
            tol=request.tol if request.matrix else None,
            row_tolerance=request.row_tolerance,
            rows=request.rows,
        )
        super().__init__(request, prepared(request, plan, notify, timings), ErrorPlan.cells)
        self.timings, self.notify = timings, notify
        self.warm: set[str] = set()  # methods that ran in this process

    def keep(
        self, kinds: Sequence[str], records: Sequence[Mapping[str, Any]], folder: Path, progress: Progress
    ) -> dict[str, str]:
        """Write the block averages of `keep_maps` to ``maps/``; no row depends on them."""
        missing: dict[str, str] = {}
        # a shard would draw maps of its cells alone; the run that joins the shards draws them all
        if "maps" in kinds and self.request.shard is None:
            for number, (source, plan) in enumerate(self.parts):
                keys = {cell.key for place, cells in self.by_place.items() if place.source == number for cell in cells}
                of_source = [record for record in records if record["key"] in keys]
                missing |= keep_maps(plan, source, of_source, folder, timings=self.timings, progress=progress)
        return missing

    def head(self, place: Place, cell: Cell) -> dict[str, Any]:
        is_bound = cell.request.name == LOWER_BOUND
        return {
            **method_facts(cell.request),
            "target": self.plan_of(place).target,
            "d": cell.d,
            "repeat": cell.repeat,
            "seed": cell.seed,
            "reference": is_bound or cell.request.name == "vmean",
            "requested": cell.request.requested,
            "family": "lower bound" if is_bound else cell.request.entry.family,
        }

    def measures_statistics(self, place: Place, layer: int) -> bool:
        # matrix errors need the norms of the exact matrix, which are most of the work of the statistics
        return super().measures_statistics(place, layer) or (self.request.matrix and not self.request.input_statistics)

    def work(self, place: Place, cell: Cell) -> Cost:
        if cell.request.name == LOWER_BOUND:  # known from the exact output
            return 0.0, 0.0
        plan, heads = self.plan_of(place), len(self.head_numbers(place))
        cost, matrix = cell.request.entry.cost, plan.tol is not None
        return work_of_method(place.group.n, cell.d, heads, cost, matrix, plan.rows, self.queries(place))

    def measured(self, place: Place, inputs: QKV, done: Done) -> Iterator[tuple[Cell, Result]]:
        plan = self.plan_of(place)
        self._warm_up(place, inputs, done)
        bench = _Bench(inputs, plan, self, place)
        for batch in plan.batches(self.by_place[place], inputs):
            if all(cell.key in done for cell in batch):
                continue
            # a cell that ran out of time would do so again
            batch = [cell for cell in batch if not (done.get(cell.key) or "").startswith(TIMEOUT)]
            for cell, result in zip(batch, bench.measure(batch, place), strict=True):
                if cell.key not in done:
                    yield cell, result

    def exact_output(self, place: Place, qkv: QKV) -> Tensor:
        """The exact output of a place, which the source remembers."""
        target, source, group = self.plan_of(place).target, self.sources[place.source], place.group

        def make() -> dict[str, Tensor]:
            return {"output": with_smaller_blocks(exact_output, qkv, target)}

        assert place.layer is not None  # places of plans have a layer
        name = f"exact output, {target}"
        return source.remembered(name, group.n, place.layer, group.window, qkv.heads, make)["output"]

    def exact_norms(self, place: Place, qkv: QKV, show: Callable[[str, float], None]) -> ExactNorms:
        """The norms of the exact matrix of a place, to the tolerance of the matrix errors."""
        plan, source, group = self.plan_of(place), self.sources[place.source], place.group
        assert place.layer is not None and plan.tol is not None
        return exact_norms_of(source, group.n, place.layer, group.window, qkv, plan.target, plan.tol, show)

    def _warm_up(self, place: Place, qkv: QKV, done: Done) -> None:
        """Run each method once on a few tokens, so that no cell's time includes the start of kernels or threads."""
        target, few_tokens = self.plan_of(place).target, qkv.first(64)
        missing: dict[str, list[Cell]] = {}  # cells by their method
        for cell in self.by_place[place]:
            if cell.key not in done and cell.request.name != LOWER_BOUND:
                missing.setdefault(repr(method_identity(cell.request)), []).append(cell)
        for method, cells in missing.items():
            if method not in self.warm:
                self.warm.add(method)
                request = cells[0].request
                # an error is not told here: the method raises it again where it is measured
                with self.attempt(*(cell.key for cell in cells)):
                    approximate(request.entry, few_tokens, 8, target=target, **request.options)


class _Bench:
    """One layer's Q, K and V with its exact output. It measures the cells of the layer."""

    def __init__(self, qkv: QKV, plan: ErrorPlan, cells: ErrorCells, place: Place) -> None:
        self.qkv, self.target, self.tol, self.row_tolerance = qkv, plan.target, plan.tol, plan.row_tolerance
        self.cells, self.place, self.timings = cells, place, cells.timings
        self.rows, self.exact_rows = plan.rows, ExactRows(qkv)
        self.frameworks: dict[torch.dtype, KernelReference] = {}
        if plan.rows and plan.target == "softmax" and (why := why_no_block(qkv)) is not None:
            cells.notify(f"no residual error: {why}")
        with self.timings("exact attention"):
            self.exact_output = cells.exact_output(place, qkv)
        # computed once for all cells: the norms of the exact output, and its singular values for lower bounds
        self.finite = bool(torch.isfinite(self.exact_output).all())
        self.values = tail_singular_values(self.exact_output) if self.finite else None
        self.reference = ExactOutput.of(self.exact_output) if self.finite else None

    def measure(self, batch: Sequence[Cell], place: Place) -> list[Result]:
        """The results of the cells of a batch: first every method runs, then their operators share passes over B."""
        results: list[Result] = []
        columns: list[Columns] = []
        operators: dict[int, Operator] = {}  # by the number of the cell in the batch
        for number, cell in enumerate(batch):
            self.cells.show(self.cells.label(place, cell))
            result: Result = {}
            of_heads: Columns = {}
            operator = self._measured(cell, result, of_heads)
            results.append(result)
            columns.append(of_heads)
            self.cells.show(self.cells.label(place, cell), {cell.key: self._share_of_method(cell)})
            if operator is not None and self.tol is not None:
                operators[number] = operator
            del operator  # frees an unused operator before the next one is made
        if operators:
            self._add_matrix_errors(batch, operators, results, columns, place)
        for result, of_heads in zip(results, columns, strict=True):
            if "status" not in result and (why := _not_finite(of_heads)) is not None:
                result |= {"status": "diverged", "reason": why}
            result["rows"] = [*(head_rows(self.qkv.heads, of_heads) if of_heads else ()), *result.get("rows", ())]
        return results

    def _add_matrix_errors(
        self,
        batch: Sequence[Cell],
        operators: Mapping[int, Operator],
        results: Sequence[Result],
        columns: Sequence[Columns],
        place: Place,
    ) -> None:
        """Add the ``matrix_`` errors of a batch to the results and columns of its cells."""
        text = f"n={place.group.n} layer {place.layer} matrix errors of {len(operators)} cells"
        of_methods = {batch[number].key: self._share_of_method(batch[number]) for number in operators}

        def show(label: str, share: float) -> None:
            # each method has run; the rest of its cell's work is done in step with the others
            begun = {key: of_method + share * (1 - of_method) for key, of_method in of_methods.items()}
            self.cells.show(f"{text}, {label}", begun)

        errors_of_cells = self._matrix_errors(list(operators.values()), show)
        for number, errors in zip(operators, errors_of_cells, strict=True):
            if isinstance(errors, Attempt):
                results[number].update(status="failed", reason=f"matrix errors: {errors.reason}")
            else:
                measured = {RENAMED.get(name, name): values for name, values in errors.metrics.items()}
                columns[number].update(_listed(measured), matrix_kind=errors.kind, matrix_open=errors.open)
                results[number]["matrix_tol"] = self.tol

    def _share_of_method(self, cell: Cell) -> float:
        """The method's share of the work of a cell; the rest is that of its matrix errors."""
        if self.tol is None or cell.request.name == LOWER_BOUND:
            return 1.0
        n, heads = self.qkv.n_q, self.qkv.h
        cost, rows = cell.request.entry.cost, self.rows
        alone, both = (work_of_method(n, cell.d, heads, cost, matrix, rows)[0] for matrix in (False, True))
        return alone / both

    def _matrix_errors(
        self, operators: Sequence[Operator], show: Callable[[str, float], None]
    ) -> Sequence[MatrixErrors | Attempt]:
        """The errors of all operators from shared passes; an operator that raises does not affect the others."""
        tol = self.tol
        assert tol is not None  # without tol no operator reaches this
        with self.timings("matrix errors"), attempt() as tried:
            norms = self.cells.exact_norms(self.place, self.qkv, lambda label, share: show(f"norms of B, {label}", 0.0))
            matrix = exact(self.qkv, self.target)
            return with_smaller_blocks(shared_matrix_errors, matrix, operators, tol=tol, norms=norms, progress=show)
        if len(operators) == 1:
            return [tried]
        # an error does not tell which operator raised it, so each gets passes of its own
        return [errors for operator in operators for errors in self._matrix_errors([operator], show)]

    def _measured(self, cell: Cell, result: Result, columns: Columns) -> Operator | None:
        """Measure a cell except for its matrix errors. Return the operator, which the matrix errors need."""
        if not self.finite:
            result |= {"status": "failed", "reason": NOT_FINITE}
            return None
        if cell.request.name == LOWER_BOUND and cell.d is not None:
            columns |= _listed(lower_bound(self.exact_output, cell.d, self.values))
            return None
        with self.timings("methods"), self.cells.attempt(cell.key) as tried:
            if (why := refused(cell.request, self.target, self.qkv.n_k, cell.d)) is not None:
                raise Unsupported(why)
            cell.request.check_claims()
            begin = perf_counter()
            options = {"seed": cell.seed, "target": self.target, **cell.request.options}
            approx = with_smaller_blocks(approximate, cell.request.entry, self.qkv, cell.d, **options)
            if self.qkv.device.type == "cuda":  # a call returns before its kernels end
                torch.cuda.synchronize(self.qkv.device)
            result["seconds"] = perf_counter() - begin
        if tried.ok:
            # without the time limit, which is the method's
            with attempt() as tried:
                self._judge(cell.request, approx, result, columns)
        if not tried.ok:
            result |= tried.state
            return None
        if approx.operator is None and self.tol is not None and cell.request.entry.kind != "kernel":
            result["matrix_skipped"] = approx.no_operator
        return approx.operator

    def _judge(self, request: MethodRequest, approx: Approximation, result: Result, columns: Columns) -> None:
        """Compare a method's output with the exact one: fill the columns of heads, and the result of the cell."""
        assert self.reference is not None  # outputs are compared only with a finite reference
        metrics = output_errors(self.reference, approx, self.qkv)
        for name in DIAGNOSTICS:
            if name in approx.diagnostics:
                metrics[name] = approx.diagnostics[name]
        if "visited" in approx.diagnostics:
            metrics["visited_fraction"] = approx.diagnostics["visited"] / (self.qkv.n_q * self.qkv.n_k)
        further = {}
        if request.entry.kind == "kernel":
            errors, further = self._kernel(request, approx)
            metrics |= errors
        elif self.rows and self.target == "softmax":
            errors, further = self._rows(approx)
            metrics |= errors
        columns |= _listed(metrics)
        result |= {"draws_hash": approx.draws_hash(), **ending(approx, self.qkv), **further}

    def _rows(self, approx: Approximation) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The row metrics of each head over its rows, and their means by position."""
        needle = self.qkv.label.get("needle")
        keys = None if needle is None else torch.as_tensor(needle, device=self.qkv.device)
        with self.timings("row metrics"):
            values = row_metrics(self.exact_rows, approx, self.qkv, needle=keys)
        positions, means = position_profile(values, self.qkv.query_positions)
        rows = []
        for number, position in enumerate(positions):
            of_heads = {name: [of_head[number] for of_head in lists] for name, lists in means.items()}
            rows += [{**row, "position": position} for row in head_rows(self.qkv.heads, of_heads, "position")]
        return over_rows(values), {"rows": rows}

    def _kernel(self, request: MethodRequest, approx: Approximation) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The kernel metrics, and the dtype and tolerance that they belong to."""
        dtype = working_dtype(request.entry, request.options, self.qkv)
        with self.timings("exact attention"):
            if dtype not in self.frameworks:
                self.frameworks[dtype] = with_smaller_blocks(KernelReference.of, self.qkv, dtype)
        tolerance = ROW_TOLERANCES[dtype] if self.row_tolerance is None else self.row_tolerance
        errors = kernel_errors(approx, self.qkv, row_tolerance=tolerance, reference=self.frameworks[dtype])
        return errors, {"kernel_dtype": str(dtype).removeprefix("torch."), "row_tolerance": tolerance}


def _listed(metrics: Mapping[str, Tensor]) -> Columns:
    """Tensors with a value for each head as lists of float64."""
    return {name: tensor.detach().double().cpu().tolist() for name, tensor in metrics.items()}


def _not_finite(columns: Columns) -> str | None:
    """The reason why a cell has diverged: the first of `JUDGED` that is not finite in some head; None if none is."""
    for name in JUDGED:
        values = columns.get(name, ())
        if broken := sum(not math.isfinite(value) for value in values):
            return f"{name} is not finite in {broken} of {len(values)} heads"
    return None
