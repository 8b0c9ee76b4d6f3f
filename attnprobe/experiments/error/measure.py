"""What becomes of a cell: the record of an approximation's errors, or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ...approximation import Approximation
from ...errors import BadResult, Unsupported, UsageError
from ...grammar.foreign import first_line, message, reason
from ...linalg.norms import tail_singular_values
from ...methods import approximate, line_of, working_dtype
from ...metrics import (
    ROW_TOLERANCES,
    ExactOutput,
    KernelReference,
    MatrixErrors,
    kernel_errors,
    lower_bound,
    output_errors,
    shared_matrix_errors,
)
from ...operators import Operator
from ...qkv import QKV
from ...records.file import LOWER_BOUND, RecordWriter, plain
from ...reference import exact, exact_output
from ...run.limits import time_limit, with_smaller_blocks
from ...run.plan import Cell, ErrorPlan, MethodRequest, refused
from ...timings import Timings

__all__ = ["Bench", "Outcome", "ending", "result_of", "said", "warm_up"]

RENAMED = {"matrix_spectral_passes": "matrix_passes"}  # in records
NOT_FINITE = "exact attention itself is not finite: the scores overflow float64"
DIAGNOSTICS = ("bad_rows", "guarded_rows", "rounded_rows", "inverse_residual", "delta", "realised_d")


@dataclass
class Outcome:
    """What a run gave: every record of its cells, those found done and those measured now.

    ``processes`` are the others that measured, each as it tells of itself, and ``deaths`` why some of them ended.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    done_before: int = 0
    measured: int = 0
    processes: list[dict[str, Any]] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)

    def keep(self, record: Mapping[str, Any], writer: RecordWriter) -> dict[str, Any]:
        """Write a record of a cell that was measured now; one that cannot be written counts as failed."""
        record = plain(record)
        try:
            writer.append(record)
        except UsageError as error:
            record |= {"status": "failed", "reason": f"measured, but not kept: {message(error)}"}
        self.records.append(record)
        self.measured += 1
        return record


def warm_up(plan: ErrorPlan, qkv: QKV, limit: float | None) -> None:
    """Run each method once on a few tokens, so that no cell's time holds the start of a kernel or a thread pool."""
    few = QKV(*(x[:1, :64].contiguous() for x in (qkv.q, qkv.k, qkv.v)), scale=qkv.scale, causal=qkv.causal)
    for request in (MethodRequest("vmean"), *plan.methods):
        with suppress(Exception), time_limit(limit):  # what a method raises is reported where it is measured
            approximate(request.entry, few, 8, target=plan.target, **request.options)


def _label(cell: Cell) -> str:
    budget = "" if cell.d is None else f" d={cell.d}"
    return f"n={cell.n} layer {cell.layer} {cell.request.label}{budget}"


class Bench:
    """One layer's Q/K/V with its exact output, on which cells are measured."""

    def __init__(
        self,
        qkv: QKV,
        plan: ErrorPlan,
        timings: Timings,
        limit: float | None,
        devices: Sequence[torch.device] | None = None,
    ) -> None:
        self.qkv, self.target, self.tol, self.timings, self.limit = qkv, plan.target, plan.tol, timings, limit
        self.row_tolerance, self.devices = plan.row_tolerance, devices
        self.frameworks: dict[torch.dtype, KernelReference] = {}
        with timings("exact attention"):
            self.wanted = with_smaller_blocks(lambda: exact_output(qkv, plan.target, devices))
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
                    exact(self.qkv, self.target), operators, tol=self.tol, devices=self.devices, progress=show
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
                return result_of("skipped", message(error)), None, None
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
    return first_line(message(error)) if isinstance(error, BadResult) else f"{reason(error)}{line_of(error)}"
