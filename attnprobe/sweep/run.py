"""The loop: groups of cells, each measured once and written as one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..approximation import Approximation
from ..errors import BadResult, Unsupported, UsageError
from ..linalg.norms import tail_singular_values
from ..methods import approximate, line_of, working_dtype
from ..metrics import (
    ROW_TOLERANCES,
    ExactOutput,
    KernelReference,
    MatrixErrors,
    kernel_errors,
    lower_bound,
    output_errors,
    repeated_rows,
    shared_matrix_errors,
)
from ..operators import Operator
from ..qkv import QKV
from ..records import LOWER_BOUND, SCHEMA, RecordWriter, plain
from ..reference import exact, exact_output
from ..timings import Timings
from .limits import time_limit, with_smaller_blocks
from .plan import Cell, ErrorPlan, MethodRequest, refused, told

__all__ = ["Outcome", "ending", "head_of", "result_of", "run_error", "said"]

RENAMED = {"matrix_spectral_passes": "matrix_passes"}  # in records
NOT_FINITE = "exact attention itself is not finite: the scores overflow float64"
DIAGNOSTICS = ("bad_rows", "guarded_rows", "inverse_residual", "delta", "realised_d")


@dataclass
class Outcome:
    """What a run gave: every record of its cells, those found done and those measured now."""

    records: list[dict[str, Any]] = field(default_factory=list)
    done_before: int = 0
    measured: int = 0

    def keep(self, record: Mapping[str, Any], writer: RecordWriter) -> None:
        """Write a record of a cell that was measured now; one that cannot be written counts as failed."""
        record = plain(record)
        try:
            writer.append(record)
        except UsageError as error:
            record |= {"status": "failed", "reason": f"measured, but not kept: {error}"}
        self.records.append(record)
        self.measured += 1

    def add(self, other: Outcome) -> None:
        """Take in what another part of the run gave."""
        self.records += other.records
        self.done_before += other.done_before
        self.measured += other.measured


def run_error(
    plan: ErrorPlan,
    source: Any,
    writer: RecordWriter,
    *,
    done: Mapping[str, dict[str, Any]] | None = None,
    run: str = "",
    timings: Timings | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, label: None,
    cell_timeout: float | None = None,
    keep_inputs: Callable[[Any, int, int, int, QKV], None] = lambda source, n, window, layer, qkv: None,
    warm_up: bool = True,
) -> Outcome:
    """Measure every cell of ``plan`` that is not ``done`` and append its record.

    Q, K and V are captured once per (n, window) and the exact output made once per layer of it; all methods, budgets
    and repeats share them, and the cells of a batch (`ErrorPlan.batches`) the passes over the exact matrix. A batch of
    which a cell is missing is measured whole, so that its numbers are those of a run without interruption, and what
    is missing is appended when it is done. A method that raises is a ``failed`` record, one whose output is not finite
    ``diverged``, one that cannot take a setting ``skipped``; the loop goes on.

    Args:
        source: a `attnprobe.sources.Source`.
        done: records of an earlier run by key; those cells are not measured again.
        progress: called before each cell, and each pass of matrix errors, with the number of cells done, the total
            and a label.
        cell_timeout: seconds that a method may take on one layer (see `time_limit`).
        keep_inputs: called with every layer that is read, before its cells (see `InputKeeper.keep`).
        warm_up: whether each method is run once before the first cell, which keeps a kernel's start out of times.
    """
    timings, done, outcome = timings or Timings(), done or {}, Outcome()
    listed = plan.listed(source.facts)
    total = sum(map(len, listed.values()))
    for group in plan.groups():
        layers = plan.layers_of(group)
        wanted = [layer for layer in layers if any(cell.key not in done for cell in listed[group, layer])]
        captured: dict[int, QKV] = {}
        if wanted:
            progress(len(outcome.records), total, f"reading n={group.n}, window {group.window}")
            captured = source.qkv(group.n, wanted, group.window)
        for layer in layers:
            cells = listed[group, layer]
            if layer not in wanted:
                outcome.records += [done[cell.key] for cell in cells]
                outcome.done_before += len(cells)
                continue
            qkv = captured.pop(layer)
            if warm_up and outcome.measured == 0:
                _warm_up(plan, qkv, cell_timeout)
            qkv = qkv if plan.heads is None else qkv.select(plan.heads)
            keep_inputs(source, group.n, group.window, layer, qkv)
            bench = None
            for batch in plan.batches(cells, qkv):
                missing = [cell for cell in batch if cell.key not in done]
                results = [None] * len(batch)
                if missing:
                    bench = bench or _Bench(qkv, plan, timings, cell_timeout)
                    results = bench.measure(batch, lambda label: progress(len(outcome.records), total, label))
                for cell, result in zip(batch, results, strict=True):
                    if cell.key in done:
                        outcome.records.append(done[cell.key])
                        outcome.done_before += 1
                        continue
                    head = head_of(cell, plan, source, run, list(qkv.heads), bench.duplicates)
                    outcome.keep({**head, **result}, writer)
    progress(total, total, "")
    return outcome


def _warm_up(plan: ErrorPlan, qkv: QKV, limit: float | None) -> None:
    """Run each method once on a few tokens, so that no cell's time holds the start of a kernel or a thread pool."""
    few = QKV(*(x[:1, :64].contiguous() for x in (qkv.q, qkv.k, qkv.v)), scale=qkv.scale, causal=qkv.causal)
    for request in (MethodRequest("vmean"), *plan.methods):
        with suppress(Exception), time_limit(limit):  # what a method raises is reported where it is measured
            approximate(request.entry, few, 8, target=plan.target, **request.options)


def _label(cell: Cell) -> str:
    budget = "" if cell.d is None else f" d={cell.d}"
    return f"n={cell.n} layer {cell.layer} {cell.request.label}{budget}"


def head_of(
    cell: Cell, plan: ErrorPlan, source: Any, run: str, heads: list[int], duplicates: int | None
) -> dict[str, Any]:
    """What a record says before anything is measured."""
    bound = cell.request.name == LOWER_BOUND
    return {
        "schema": SCHEMA,
        "key": cell.key,
        "run": run,
        "command": "error",
        **told(cell.request),
        "target": plan.target,
        "source": source.facts,
        "window": cell.window,
        "layer": cell.layer,
        "heads": heads,
        "n": cell.n,
        "d": cell.d,
        "repeat": cell.repeat,
        "seed": cell.seed,
        "reference": bound or cell.request.name == "vmean",
        "requested": cell.request.requested,
        "family": "lower bound" if bound else cell.request.entry.family,
        "duplicates": duplicates,
    }


class _Bench:
    """One layer's Q/K/V with its exact output, on which cells are measured."""

    def __init__(self, qkv: QKV, plan: ErrorPlan, timings: Timings, limit: float | None) -> None:
        self.qkv, self.target, self.tol, self.timings, self.limit = qkv, plan.target, plan.tol, timings, limit
        self.row_tolerance = plan.row_tolerance
        self.frameworks: dict[torch.dtype, KernelReference] = {}
        self.duplicates = repeated_rows(qkv)
        with timings("exact attention"):
            self.wanted = with_smaller_blocks(lambda: exact_output(qkv, plan.target))
        self.finite = bool(torch.isfinite(self.wanted).all())
        self.values = tail_singular_values(self.wanted) if self.finite else None
        self.reference = ExactOutput.of(self.wanted) if self.finite else None

    def measure(self, batch: Sequence[Cell], show: Callable[[str], None]) -> list[dict[str, Any]]:
        """The measured parts of the cells' records: status, reason, metrics, draws_hash, seconds, and the matrix_ ones.

        Matrix errors are measured once all methods have run, of those that gave an operator.
        """
        results, operators = [], {}
        for place, cell in enumerate(batch):
            show(_label(cell))
            result, operator, without = self._measured(cell)
            if without is not None and self.tol is not None and cell.request.entry.kind != "kernel":
                result["matrix_skipped"] = without
            results.append(result)
            if operator is not None and self.tol is not None:
                operators[place] = operator
            del operator  # an operator that nobody needs is not held beside the next one
        if operators:
            where = f"n={batch[0].n} layer {batch[0].layer} matrix errors of {len(operators)} cells"
            found = self._matrix_errors(list(operators.values()), lambda label: show(f"{where}, {label}"))
            for place, errors in zip(operators, found, strict=True):
                if isinstance(errors, Exception):
                    results[place] |= {"status": "failed", "reason": f"matrix errors: {said(errors)}"}
                else:
                    results[place]["metrics"] |= _numbers(
                        {RENAMED.get(name, name): values for name, values in errors.metrics.items()}
                    )
                    results[place] |= {"matrix_tol": self.tol, "matrix_kind": errors.kind, "matrix_open": errors.open}
        return results

    def _matrix_errors(
        self, operators: Sequence[Operator], show: Callable[[str], None]
    ) -> list[MatrixErrors | Exception]:
        """The errors of all operators from shared passes; one that raises does not harm the others."""
        with self.timings("matrix errors"):
            try:
                found = lambda: shared_matrix_errors(
                    exact(self.qkv, self.target), operators, tol=self.tol, progress=show
                )
                return with_smaller_blocks(found)
            except Exception as error:
                if len(operators) == 1:
                    return [error]
        return [found for operator in operators for found in self._matrix_errors([operator], show)]

    def _measured(self, cell: Cell) -> tuple[dict[str, Any], Operator | None, str | None]:
        """What a cell gives but for its matrix errors, its operator, and why a method that ran has none."""
        if not self.finite:
            return result_of("failed", NOT_FINITE), None, None
        if cell.request.name == LOWER_BOUND:
            return result_of(metrics=lower_bound(self.wanted, cell.d, self.values)), None, None
        why = refused(cell.request, self.target, self.qkv.n_q, cell.d)
        if why is not None:
            return result_of("skipped", why), None, None
        options = {"seed": cell.seed, "target": self.target, **cell.request.options}
        with self.timings("methods"):
            begin = perf_counter()
            try:
                run = lambda: approximate(cell.request.entry, self.qkv, cell.d, **options)
                with time_limit(self.limit):
                    approx = with_smaller_blocks(run)
                if self.qkv.device.type == "cuda":
                    torch.cuda.synchronize(self.qkv.device)
            except Unsupported as error:
                return result_of("skipped", str(error)), None, None
            except UsageError:
                raise
            except Exception as error:  # whatever a method raises is its result, and the loop goes on
                return result_of("failed", said(error)), None, None
            seconds = perf_counter() - begin
        try:
            metrics = output_errors(self.reference, approx, self.qkv)
        except Exception as error:  # an output of another shape, or no tensor at all
            return result_of("failed", said(error), seconds=seconds), None, None
        for name in DIAGNOSTICS:
            if name in approx.diagnostics:
                metrics[name] = approx.diagnostics[name]
        if "visited" in approx.diagnostics:
            metrics["visited_fraction"] = approx.diagnostics["visited"] / (self.qkv.n_q * self.qkv.n_k)
        judged = {}
        if cell.request.entry.kind == "kernel":
            found, judged = self._judged(cell.request, approx)
            metrics |= found
        result = {**result_of(*ending(approx, self.qkv), metrics, approx.draws_hash(), seconds), **judged}
        return result, approx.operator, approx.no_operator if approx.operator is None else None

    def _judged(self, request: MethodRequest, approx: Approximation) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The errors of a kernel as such, and the dtype and tolerance that they are of."""
        dtype = working_dtype(request.entry, request.options, self.qkv)
        with self.timings("exact attention"):
            if dtype not in self.frameworks:
                self.frameworks[dtype] = with_smaller_blocks(lambda: KernelReference.of(self.qkv, dtype))
        tolerance = ROW_TOLERANCES[dtype] if self.row_tolerance is None else self.row_tolerance
        found = kernel_errors(approx, self.qkv, row_tolerance=tolerance, reference=self.frameworks[dtype])
        return found, {"kernel_dtype": str(dtype)[6:], "row_tolerance": tolerance}


def result_of(
    status: str = "ok",
    reason: str | None = None,
    metrics: Mapping[str, Tensor] | None = None,
    draws_hash: str | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """What a record says of what was measured."""
    numbers = _numbers(metrics or {})
    return {"status": status, "reason": reason, "metrics": numbers, "draws_hash": draws_hash, "seconds": seconds}


def _numbers(metrics: Mapping[str, Tensor]) -> dict[str, list[float]]:
    return {name: tensor.detach().double().cpu().tolist() for name, tensor in metrics.items()}


def ending(approx: Approximation, qkv: QKV) -> tuple[str, str | None]:
    """The status of a method that ran, and its reason: ``diverged`` where an output is not finite."""
    if not approx.diagnostics["bad_rows"].any():  # which counts the rows that are lost
        return "ok", None
    broken = [str(head) for head, lost in zip(qkv.heads, approx.lost_rows().tolist(), strict=True) if lost]
    return ("diverged", f"the output is not finite in head {', '.join(broken)}") if broken else ("ok", None)


def said(error: Exception) -> str:
    """What a cell's record says of an error that a method raised, and in which line of a user's file."""
    first = str(error).splitlines()[0] if str(error) else ""
    if isinstance(error, BadResult):
        return first
    return f"{type(error).__name__}: {first}{line_of(error)}"
