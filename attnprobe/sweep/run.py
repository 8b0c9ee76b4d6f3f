"""The loop: groups of cells, each measured once and written as one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..errors import Unsupported, UsageError
from ..linalg.norms import tail_singular_values
from ..methods import approximate
from ..metrics import lower_bound, output_errors, repeated_rows
from ..qkv import QKV
from ..records import LOWER_BOUND, SCHEMA, RecordWriter, plain
from ..reference import exact_output
from ..timings import Timings
from .plan import Cell, ErrorPlan, MethodRequest, refused

__all__ = ["Outcome", "run_error"]

# facts that only name what others hash, or follow from them: they determine no result
NAMES = ("model", "revision", "text", "split", "tokenizer", "unk_fraction", "qkv", "origin", "fallback", "stored_n")
DIAGNOSTICS = ("bad_rows", "guarded_rows", "inverse_residual", "delta", "realised_d")


@dataclass
class Outcome:
    """What a run gave: every record of its cells, those found done and those measured now."""

    records: list[dict[str, Any]] = field(default_factory=list)
    done_before: int = 0
    measured: int = 0


def run_error(
    plan: ErrorPlan,
    source: Any,
    writer: RecordWriter,
    *,
    done: Mapping[str, dict[str, Any]] | None = None,
    run: str = "",
    timings: Timings | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, label: None,
) -> Outcome:
    """Measure every cell of ``plan`` that is not ``done`` and append its record.

    Q, K and V are captured once per (n, window) and the exact output made once per layer of it; all methods, budgets
    and repeats share them. A method that raises is a ``failed`` record, one whose output is not finite ``diverged``,
    one that cannot take a setting ``skipped``; the loop goes on.

    Args:
        source: a `attnprobe.sources.Source`.
        done: records of an earlier run by key; those cells are not measured again.
        progress: called before each cell with the number done, the total and a label.
    """
    timings, done, outcome = timings or Timings(), done or {}, Outcome()
    facts = {name: fact for name, fact in source.facts.items() if name not in NAMES}
    listed = {
        (group, layer): plan.cells(group, layer, facts) for group in plan.groups() for layer in plan.layers
    }  # fmt: skip
    total, position = sum(map(len, listed.values())), 0
    for group in plan.groups():
        wanted = [layer for layer in plan.layers if any(cell.key not in done for cell in listed[group, layer])]
        captured: dict[int, QKV] = {}
        if wanted:
            progress(position, total, f"reading n={group.n}, window {group.window}")
            captured = source.qkv(group.n, wanted, group.window)
        for layer in plan.layers:
            bench = None
            for cell in listed[group, layer]:
                progress(position, total, _label(cell))
                position += 1
                if cell.key in done:
                    outcome.records.append(done[cell.key])
                    outcome.done_before += 1
                    continue
                if bench is None:
                    qkv = captured.pop(layer)
                    if outcome.measured == 0:
                        _warm_up(plan, qkv)
                    bench = _Bench(qkv if plan.heads is None else qkv.select(plan.heads), plan.target, timings)
                record = plain({**_head(cell, plan, source, run, bench), **bench.measure(cell)})
                writer.append(record)
                outcome.records.append(record)
                outcome.measured += 1
    progress(total, total, "")
    return outcome


def _warm_up(plan: ErrorPlan, qkv: QKV) -> None:
    """Run each method once on a few tokens, so that no cell's time holds the start of a kernel or a thread pool."""
    few = QKV(*(x[:1, :64].contiguous() for x in (qkv.q, qkv.k, qkv.v)), scale=qkv.scale)
    for request in (MethodRequest("vmean"), *plan.methods):
        with suppress(Exception):  # what a method raises is reported where it is measured
            approximate(request.name, few, 8, target=plan.target, **request.options)


def _label(cell: Cell) -> str:
    budget = "" if cell.d is None else f" d={cell.d}"
    return f"n={cell.n} layer {cell.layer} {cell.request.name}{budget}"


def _head(cell: Cell, plan: ErrorPlan, source: Any, run: str, bench: _Bench) -> dict[str, Any]:
    """What a record says before anything is measured."""
    bound = cell.request.name == LOWER_BOUND
    return {
        "schema": SCHEMA,
        "key": cell.key,
        "run": run,
        "command": "error",
        "method": cell.request.name,
        "options": dict(cell.request.options),
        "target": plan.target,
        "source": source.facts,
        "window": cell.window,
        "layer": cell.layer,
        "heads": list(bench.qkv.heads),
        "n": cell.n,
        "d": cell.d,
        "repeat": cell.repeat,
        "seed": cell.seed,
        "reference": bound or cell.request.name == "vmean",
        "requested": cell.request.requested,
        "family": "lower bound" if bound else cell.request.entry.family,
        "duplicates": bench.duplicates,
    }


class _Bench:
    """One layer's Q/K/V with its exact output, on which cells are measured."""

    def __init__(self, qkv: QKV, target: str, timings: Timings) -> None:
        self.qkv, self.target, self.timings = qkv, target, timings
        self.duplicates = repeated_rows(qkv)
        with timings("exact attention"):
            self.wanted = exact_output(qkv, target)
        self.finite = bool(torch.isfinite(self.wanted).all())
        self.values = tail_singular_values(self.wanted) if self.finite else None

    def measure(self, cell: Cell) -> dict[str, Any]:
        """The measured part of a cell's record: status, reason, metrics, draws_hash, seconds."""
        if not self.finite:
            return _result("failed", "exact attention itself is not finite: the scores overflow float64")
        if cell.request.name == LOWER_BOUND:
            return _result(metrics=lower_bound(self.wanted, cell.d, self.values))
        why = refused(cell.request, self.target, self.qkv.n_q, cell.d)
        if why is not None:
            return _result("skipped", why)
        options = {"seed": cell.seed, "target": self.target, **cell.request.options}
        with self.timings("methods"):
            begin = perf_counter()
            try:
                approx = approximate(cell.request.name, self.qkv, cell.d, **options)
                if self.qkv.device.type == "cuda":
                    torch.cuda.synchronize(self.qkv.device)
            except Unsupported as error:
                return _result("skipped", str(error))
            except UsageError:
                raise
            except Exception as error:  # whatever a method raises is its result, and the loop goes on
                return _result("failed", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            seconds = perf_counter() - begin
        metrics = output_errors(self.wanted, approx, self.qkv)
        for name in DIAGNOSTICS:
            if name in approx.diagnostics:
                metrics[name] = approx.diagnostics[name]
        if "visited" in approx.diagnostics:
            metrics["visited_fraction"] = approx.diagnostics["visited"] / (self.qkv.n_q * self.qkv.n_k)
        broken = [
            head
            for head, output in zip(self.qkv.heads, approx.output, strict=True)
            if not torch.isfinite(output).all()
        ]  # fmt: skip
        status = "diverged" if broken else "ok"
        reason = f"the output is not finite in head {', '.join(map(str, broken))}" if broken else None
        return _result(status, reason, metrics, approx.draws_hash(), seconds)


def _result(
    status: str = "ok",
    reason: str | None = None,
    metrics: Mapping[str, Tensor] | None = None,
    draws_hash: str | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    numbers = {name: tensor.detach().double().cpu().tolist() for name, tensor in (metrics or {}).items()}
    return {"status": status, "reason": reason, "metrics": numbers, "draws_hash": draws_hash, "seconds": seconds}
