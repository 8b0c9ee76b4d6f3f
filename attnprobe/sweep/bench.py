"""The run of ``attnprobe bench``: what every method costs beside exact attention, length by length."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import Unsupported, UsageError, unknown
from ..installation import clock_mhz, machine, versions
from ..lists import parse_numbers, parse_positive
from ..methods import get
from ..metrics import ExactOutput, output_errors
from ..metrics.cost import counted_flops, interleaved, leading_products, peak_bytes
from ..qkv import QKV
from ..records import SCHEMA, RecordWriter, cell_key, determining
from ..reference import TARGETS, exact_output
from ..sources import RandomSource
from ..timings import Timings
from .calls import EXACT, Work, differentiated, load_call, save_inputs
from .folder import recorded
from .limits import time_limit
from .plan import MethodRequest, parse_methods, refused
from .request import RunRequest, parse_layers, sources_of
from .run import Outcome, ending, said
from .session import Session

__all__ = ["SOURCES", "BenchRequest", "bench_cells", "measure_bench"]

SOURCES = ("random", "model")
LENGTHS = {"random": "512,1024,2048,4096,8192,16384", "model": "512,1024,2048,4096"}
MOST_ROUNDS = 10_000
ERRORS = ("output_spectral_relative", "output_frobenius_relative")


@dataclass(frozen=True)
class BenchRequest(RunRequest):
    """What ``attnprobe bench`` was asked for; see `RunRequest` for the rest.

    Args:
        methods: ``--method`` items (see `parse_methods`).
        inputs: ``random``, independent normal numbers of ``heads`` heads of ``p``, or ``model``, the request's source.
        rounds: how often each call is timed. backward: whether the gradient is part of a call.
        memory, errors: whether peak memory and output errors are measured; errors None is those of a model alone.
        quadratic_n: the longest n of methods that cost n²; those that cost n³ go to a quarter of it.
        epsilon, under_ms: lists of errors and of milliseconds that the tables of choices are about.
    """

    methods: tuple[str, ...] = ("all",)
    inputs: str = "random"
    heads: int = 2
    p: int = 64
    rounds: int = 5
    backward: bool = False
    memory: bool = True
    errors: bool | None = None
    quadratic_n: int = 4096
    epsilon: str = "0.05,0.1,0.2,0.5"
    under_ms: str = "1,10,100"

    @property
    def with_errors(self) -> bool:
        return self.inputs == "model" if self.errors is None else self.errors


@dataclass(frozen=True)
class _Cell:
    """One method, or exact attention (``request`` None), at one budget, length and layer."""

    key: str
    request: MethodRequest | None
    n: int
    layer: int
    d: int | None
    work: Work

    @property
    def name(self) -> str:
        return self.work.name + ("" if self.d is None else f" d={self.d}")


@dataclass(frozen=True)
class _Plan:
    """What is measured: the parsed lists of a request."""

    methods: tuple[MethodRequest, ...]
    n: tuple[int, ...]
    d: tuple[int, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None


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

    planned = {"methods": [{"name": m.name, "options": dict(m.options)} for m in plan.methods], "n": plan.n,
               "d": plan.d, "layers": plan.layers, "heads": plan.heads, "seed": request.seed}  # fmt: skip
    outcome, path = recorded(request, "bench", planned, [source], notify, measure)
    return Session(outcome, path, [source])


def bench_prepared(request: BenchRequest, notify: Callable[[str], None]) -> tuple[Any, _Plan]:
    """The source and the plan, once nothing in them is impossible."""
    if request.inputs not in SOURCES:
        raise unknown("source", request.inputs, SOURCES)
    if request.target not in TARGETS:
        raise unknown("target", request.target, TARGETS)
    if not 1 <= request.rounds <= MOST_ROUNDS:
        raise UsageError(f"rounds={request.rounds}: choose a number from 1 to {MOST_ROUNDS}")
    if request.quadratic_n < 2:
        raise UsageError(f"quadratic_n={request.quadratic_n}: attention needs at least 2 tokens")
    for name in ("epsilon", "under_ms"):
        parse_positive(getattr(request, name), name.replace("_", "-"))
    methods, d = tuple(parse_methods(request.methods, request.target)), tuple(parse_numbers(request.d, "d"))
    if request.inputs == "random":
        source = RandomSource(request.heads, request.p, request.source.device, request.source.dtype)
    else:
        [source] = sources_of(request, notify, Timings())
    text = request.n or (str(source.default_n) if request.source.qkv is not None else LENGTHS[request.inputs])
    n = tuple(sorted(parse_numbers(text, "n")))
    layers = parse_layers(request.layer, source)
    for length in n:
        source.check(length, 1, layers)
    heads = None if request.head == "all" else tuple(parse_numbers(request.head, "head", source.head_numbers))
    plan = _Plan(methods, n, d, layers, heads)
    reasons = [why_not(request, one, length, budget) for one in methods for length in n
               for budget in (d if one.entry.budget is not None else (None,))]  # fmt: skip
    if None not in reasons:
        raise UsageError(reasons[0])
    return source, plan


def why_not(request: BenchRequest, one: MethodRequest, n: int, d: int | None) -> str | None:
    """Why a method is not called at n; None where it is."""
    why = refused(one, request.target, n, d)
    cost = one.entry.cost
    longest = request.quadratic_n // 4 if "n³" in cost else request.quadratic_n
    if why is None and n > longest and ("n²" in cost or "n³" in cost):
        return f"{one.name} costs {cost}: called up to n={longest}, n={n} needs a larger --quadratic-n"
    return why


def bench_cells(request: BenchRequest, plan: _Plan, source: Any) -> dict[tuple[int, int], list[_Cell]]:
    """The cells of every length and layer in their order: exact attention, V-Mean, then every method and budget."""
    facts, where = determining(source.facts), machine(str(source.device))
    vmean = MethodRequest("vmean", requested=False)
    asked = [None, *(() if any(one.name == "vmean" for one in plan.methods) else (vmean,)), *plan.methods]

    def cell(one: MethodRequest | None, n: int, layer: int, d: int | None) -> _Cell:
        work = Work(EXACT if one is None else one.name, d, dict(one.options) if one else {}, request.target,
                    request.seed, request.backward)  # fmt: skip
        key = cell_key(
            command="bench", method=work.name, options=work.options, target=work.target, source=facts, n=n,
            layer=layer, heads=plan.heads, d=d, seed=work.seed, backward=work.backward, rounds=request.rounds,
            memory=request.memory, errors=request.with_errors, quadratic_n=request.quadratic_n, machine=where,
        )  # fmt: skip
        return _Cell(key, one, n, layer, d, work)

    return {
        (n, layer): [
            cell(one, n, layer, d)
            for one in asked
            for d in (plan.d if one is not None and one.entry.budget is not None else (None,))
        ]
        for n in plan.n
        for layer in plan.layers
    }


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
        if request.with_errors:
            show("exact output")
            self.reference = ExactOutput.of(exact_output(qkv, request.target))

    def measure(self, cells: list[_Cell]) -> dict[str, dict[str, Any]]:
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
            {"exact": exact, **timed}, self.request.rounds, self.qkv.device,
            lambda at, key: self.show(f"{names[key]}, call {at + 1} of {total}"),
        )  # fmt: skip
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

    def _peak(self, cell: _Cell, path: str, record: dict[str, Any]) -> dict[str, list[int | None]]:
        self.show(f"memory of {cell.name}")
        device = str(self.qkv.device)
        try:
            return {"peak_bytes": [peak_bytes(load_call, path, cell.work, device, device=device)]}
        except Exception as error:  # the system may have ended the process: times stand
            record["reason"] = f"no peak memory: {said(error)}"
            return {"peak_bytes": [None]}

    def _tried(self, cell: _Cell) -> dict[str, Any]:
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
            return result | {"status": "skipped", "reason": str(error)}
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

    def _leading(self, cell: _Cell) -> float | None:
        """Two operations for each multiply-add of the registry's leading cost, all heads; None with a gradient."""
        cost = "2 n² p" if cell.request is None else cell.request.entry.cost
        found = None if cell.work.backward else leading_products(cost, cell.n, cell.d, self.qkv.p)
        return None if found is None else 2 * self.qkv.h * found

    def _numbers(self, cell: _Cell, approx: Any) -> dict[str, list[float]]:
        n = self.qkv.n_q * self.qkv.n_k
        if cell.request is None:
            return {"visited": [n] * self.qkv.h}
        metrics = {name: approx.diagnostics[name] for name in ("visited", "bad_rows") if name in approx.diagnostics}
        if self.reference is not None:
            errors = output_errors(self.reference, approx, self.qkv)
            metrics |= {name: errors[name] for name in ERRORS}
        return {name: values.detach().double().cpu().tolist() for name, values in metrics.items()}

    def _head(self, cell: _Cell) -> dict[str, Any]:
        """What a record says before anything is measured."""
        known = versions()
        return {
            "schema": SCHEMA,
            "key": cell.key,
            "run": self.name,
            "command": "bench",
            "method": cell.work.name,
            "options": dict(cell.work.options),
            "family": "exact" if cell.request is None else cell.request.entry.family,
            "cost": "2 n² p" if cell.request is None else get(cell.work.name).cost,
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
            "machine": machine(str(self.qkv.device)),
            "versions": {name: known[name] for name in ("attnprobe", "python", "torch")},
            "load": round(os.getloadavg()[0], 2),
            "clock_mhz": clock_mhz(),
        }
