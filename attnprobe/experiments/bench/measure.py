"""The run of ``attnprobe bench``: what every method costs beside exact attention, length by length."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ...errors import Unsupported, UsageError
from ...grammar.foreign import message
from ...metrics import ExactOutput, output_errors
from ...metrics.cost import counted_flops, interleaved, leading_products, peak_bytes
from ...qkv import QKV
from ...records.file import SCHEMA, RecordWriter
from ...reference import exact_output
from ...run.folder import recorded
from ...run.limits import time_limit
from ...run.loop import Session
from ...run.plan import listed, told
from ...run.provenance import clock_mhz, machine, versions
from ..error.measure import Outcome, ending, said
from .calls import EXACT, Work, differentiated, load_call, save_inputs
from .plan import BenchCell, BenchRequest, bench_cells, bench_prepared, why_not

__all__ = ["BenchRequest", "measure_bench"]

ERRORS = ("output_spectral_relative", "output_frobenius_relative")
EXACT_COST = "2 n² p"


def measure_bench(
    request: BenchRequest,
    *,
    notify: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int, str], None] = lambda done, total, label: None,
) -> Session:
    """Measure every cell and leave ``manifest.json`` and ``records.jsonl`` in the run's folder.

    The calls of one length and layer are timed in interleaved rounds together with exact attention, and their records
    written when all of them are measured. A record's ``metrics`` hold ``seconds`` and ``exact_seconds`` (one for each
    round), ``flops`` and ``leading_flops`` (2 a multiply-add, all heads), ``visited`` (entries of n², per head),
    ``peak_bytes``, and with errors those of the output per head; ``machine``, ``versions``, ``load`` and ``clock_mhz``
    say under what conditions. A method that cannot take a setting, that costs n² beyond ``quadratic_n`` or that does
    not differentiate is ``skipped`` with its reason, one that raises ``failed``; the loop goes on.

    Raises:
        UsageError, SourceError: as the parts say; nothing is left behind.
    """
    source, plan = bench_prepared(request, notify)

    def measure(writer: RecordWriter, done: Mapping[str, dict[str, Any]], run: str) -> Outcome:
        outcome = Outcome()
        cells = bench_cells(request, plan, source)
        total = sum(map(len, cells.values()))
        for (n, layer), here in cells.items():
            missing = [cell for cell in here if cell.key not in done]
            found = {}
            if missing:
                show = lambda label, n=n: progress(len(outcome.records), total, f"n={n} {label}")
                show("inputs")
                qkv = source.qkv(n, [layer], 0)[layer]
                bench = _Bench(qkv if plan.heads is None else qkv.select(plan.heads), request, source, run, show)
                found = bench.measure(missing)
            for cell in here:
                if cell.key in done:
                    outcome.records.append(done[cell.key])
                    outcome.done_before += 1
                else:
                    outcome.keep(found[cell.key], writer)
        progress(total, total, "")
        return outcome

    planned = {
        "methods": [listed(m) for m in plan.methods],
        "n": plan.n,
        "d": plan.d,
        "layers": plan.layers,
        "heads": plan.heads,
        "seed": request.seed,
    }
    outcome, path = recorded(request, "bench", planned, [source], notify, measure)
    return Session(outcome, path, [source])


class _Once:
    """A call that, once it has raised, does nothing, and keeps what it raised: the rounds of the others go on."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call, self.error = call, None

    def __call__(self) -> None:
        if self.error is None:
            try:
                self.call()
            except Exception as error:  # whatever a method raises is its result
                self.error = error


class _Bench:
    """Q, K and V of one length and layer, on which cells are measured."""

    def __init__(self, qkv: QKV, request: BenchRequest, source: Any, run: str, show: Callable[[str], None]) -> None:
        self.qkv, self.request, self.source, self.name, self.show = qkv, request, source, run, show
        self.reference = None
        self.machine, known = machine(str(qkv.device)), versions()
        self.versions = {name: known[name] for name in ("attnprobe", "python", "torch")}
        if request.with_errors:
            show("exact output")
            self.reference = ExactOutput.of(exact_output(qkv, request.target))

    def measure(self, cells: list[BenchCell]) -> dict[str, dict[str, Any]]:
        """The records of the cells, by key."""
        records = {cell.key: {**self._head(cell), **self._tried(cell)} for cell in cells}
        called = [cell for cell in cells if records[cell.key]["status"] in ("ok", "diverged")]
        if not called:
            return records
        timed = {cell.key: _Once(cell.work.call(self.qkv)) for cell in called}
        exact = _Once(Work(EXACT, backward=self.request.backward).call(self.qkv))
        names = {cell.key: cell.name for cell in called} | {"exact": EXACT}
        total = len(names) * (self.request.rounds + 1)
        seconds = interleaved(
            {"exact": exact, **timed},
            self.request.rounds,
            self.qkv.device,
            lambda at, key: self.show(f"{names[key]}, call {at + 1} of {total}"),
        )
        with tempfile.TemporaryDirectory() as folder:
            if self.request.memory:
                save_inputs(Path(folder) / "qkv.pt", self.qkv)
            for cell in called:
                record = records[cell.key]
                if timed[cell.key].error is not None:
                    record |= {"status": "failed", "reason": said(timed[cell.key].error)}
                    continue
                record["metrics"] |= {"seconds": seconds[cell.key], "exact_seconds": seconds["exact"]}
                if self.request.memory:
                    record["metrics"] |= self._peak(cell, str(Path(folder) / "qkv.pt"), record)
        return records

    def _peak(self, cell: BenchCell, path: str, record: dict[str, Any]) -> dict[str, list[int | None]]:
        self.show(f"memory of {cell.name}")
        device = str(self.qkv.device)
        try:
            return {"peak_bytes": [peak_bytes(load_call, path, cell.work, device, device=device)]}
        except Exception as error:  # the system may have ended the process: times stand
            record["reason"] = f"no peak memory: {said(error)}"
            return {"peak_bytes": [None]}

    def _tried(self, cell: BenchCell) -> dict[str, Any]:
        """What one call of a cell gives: status, reason, products, entries, errors."""
        result = {"status": "ok", "reason": None, "metrics": {}, "draws_hash": None, "gradient": None}
        why = cell.request and why_not(self.request, cell.request, cell.n, cell.d)
        if why is not None:
            return result | {"status": "skipped", "reason": why}
        self.show(f"first call of {cell.name}")
        found: list[Any] = []
        try:
            with time_limit(self.request.cell_timeout):
                with torch.no_grad():
                    flops = counted_flops(lambda: found.append(cell.work.run(self.qkv)))
                if cell.work.backward:
                    result["gradient"] = differentiated(cell.work, self.qkv)
                    flops = counted_flops(cell.work.call(self.qkv))
        except Unsupported as error:
            return result | {"status": "skipped", "reason": message(error)}
        except UsageError:
            raise
        except Exception as error:  # whatever a method raises is its result, and the loop goes on
            return result | {"status": "failed", "reason": said(error)}
        approx = found[0]
        result["metrics"] = {"flops": [flops], "leading_flops": [self._leading(cell)], **self._numbers(cell, approx)}
        if cell.request is not None:
            result["draws_hash"] = approx.draws_hash()
            result["status"], result["reason"] = ending(approx, self.qkv)
        return result

    def _leading(self, cell: BenchCell) -> float | None:
        """Two operations for each multiply-add of the registry's leading cost, all heads; None with a gradient."""
        cost = EXACT_COST if cell.request is None else cell.request.entry.cost
        found = None if cell.work.backward else leading_products(cost, cell.n, cell.d, self.qkv.p)
        return None if found is None else 2 * self.qkv.h * found

    def _numbers(self, cell: BenchCell, approx: Any) -> dict[str, list[float]]:
        if cell.request is None:
            n = self.qkv.n_q
            return {"visited": [n * (n + 1) // 2 if self.qkv.causal else n * self.qkv.n_k] * self.qkv.h}
        metrics = {
            name: approx.diagnostics[name]
            for name in ("visited", "bad_rows", "rounded_rows")
            if name in approx.diagnostics
        }
        if self.reference is not None:
            errors = output_errors(self.reference, approx, self.qkv)
            metrics |= {name: errors[name] for name in ERRORS}
        return {name: values.detach().double().cpu().tolist() for name, values in metrics.items()}

    def _head(self, cell: BenchCell) -> dict[str, Any]:
        """What a record says before anything is measured."""
        return {
            "schema": SCHEMA,
            "key": cell.key,
            "run": self.name,
            "command": "bench",
            **({"method": EXACT, "options": {}} if cell.request is None else told(cell.request)),
            "family": "exact" if cell.request is None else cell.request.entry.family,
            "cost": EXACT_COST if cell.request is None else cell.request.entry.cost,
            "target": cell.work.target,
            "source": self.source.facts,
            "window": 0,
            "layer": cell.layer,
            "heads": list(self.qkv.heads),
            "n": cell.n,
            "d": cell.d,
            "repeat": 0,
            "seed": cell.work.seed,
            "backward": cell.work.backward,
            "reference": cell.request is None or not cell.request.requested,
            "requested": cell.request is not None and cell.request.requested,
            "machine": self.machine,
            "versions": self.versions,
            "load": round(os.getloadavg()[0], 2),
            "clock_mhz": clock_mhz(),
        }
