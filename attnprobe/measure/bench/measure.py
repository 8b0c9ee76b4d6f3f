"""The run of ``attnprobe bench``: the cost of every method and of exact attention, length by length."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import torch

from ...errors import Unsupported, UsageError
from ...frame.records.file import cell_key, identity_facts
from ...frame.rows import head_rows
from ...inputs import RandomSource
from ...machine.processor import clock_mhz
from ...machine.timings import Timings
from ...methods import Storage
from ...methods.fitting import CACHE_BITS
from ...metrics import ExactOutput, output_errors
from ...metrics.cost import counted_flops, interleaved, leading_products, peak_bytes
from ...qkv import QKV
from ...reference import exact_output, fused_output
from ...run.cells import Cells, Done, Place, Result, title
from ...run.costs import PROCESS, Cost, is_quadratic, work_of_method
from ...run.inputs import InputKeeper
from ...run.limits import attempt
from ...run.method_cells import ending
from ...run.plan import (
    ErrorPlan,
    Group,
    MethodRequest,
    budgets_of,
    method_entry,
    method_facts,
    method_identity,
    parse_methods,
    refuse_endless,
    refused,
)
from ...run.provenance import machine, versions
from ...run.sources import heads_of, layers_of, sources_of
from . import BenchRequest
from .calls import EXACT, Work, differentiated, load_call, save_inputs
from .record import SHAPE

LENGTHS = {"random": (512, 1024, 2048, 4096, 8192, 16384), "model": (512, 1024, 2048, 4096)}
ERRORS = ("output_spectral_relative", "output_frobenius_relative")
EXACT_COST = "2 n² p"


@dataclass(frozen=True)
class BenchCell:
    """One method at one budget, length and layer; without a ``request``, exact attention."""

    key: str
    request: MethodRequest | None
    n: int
    d: int | None
    work: Work

    @property
    def name(self) -> str:
        return EXACT if self.request is None else self.request.label


def bench_prepared(request: BenchRequest, notify: Callable[[str], None]) -> tuple[Any, ErrorPlan]:
    """The source and the plan, after every check of the request."""
    if request.quadratic_n < 2:
        raise UsageError(f"quadratic-n={request.quadratic_n}: attention needs at least 2 tokens")
    methods, d = tuple(parse_methods(request.methods, request.target)), request.d
    # random inputs have any length; a model or a file sets the length and the heads
    if request.inputs == "random":
        source = RandomSource(request.heads, request.p, request.source.device, request.source.dtype)
    else:
        [source] = sources_of(request, notify, Timings())
    n = tuple(sorted(request.n or ((source.default_n,) if request.qkv is not None else LENGTHS[request.inputs])))
    layers = layers_of(request.layer, source)
    for length in n:
        source.check(length, 1, layers)
    heads = None if request.head == "all" else heads_of(request.head, source)
    refuse_endless(len(methods) * len(n) * len(d) * len(layers))
    reasons = [
        unsupported_reason(request, method, length, budget)
        for method in methods
        for length in n
        for budget in budgets_of(method, d)
    ]
    if None not in reasons:
        raise UsageError(reasons[0])
    return source, ErrorPlan(methods, n, d, layers, heads)


def unsupported_reason(request: BenchRequest, method: MethodRequest, n: int, d: int | None) -> str | None:
    """The reason why a method is not called at n; None if it is called."""
    reason = refused(method, request.target, n, d)
    cost = method.entry.cost
    longest = request.quadratic_n // 4 if "n³" in cost else request.quadratic_n
    if reason is None and n > longest and is_quadratic(cost):
        return f"{method.label} costs {cost}: called up to n={longest}, n={n} needs a larger --quadratic-n"
    return reason


def bench_cells(request: BenchRequest, plan: ErrorPlan, source: Any) -> dict[Place, list[BenchCell]]:
    """The cells of every length and layer in their order: exact attention, V-Mean, then every method and budget."""
    facts, this_machine = identity_facts(source.facts), machine(str(source.device))
    methods: list[MethodRequest | None] = [None, *plan.methods]  # None is exact attention
    if not any(method.name == "vmean" for method in plan.methods):
        # the cheapest approximation, as a yardstick of all others
        methods.insert(1, MethodRequest("vmean", requested=False))

    def cell(method: MethodRequest | None, n: int, layer: int, d: int | None) -> BenchCell:
        work = Work(
            EXACT if method is None else method.name,
            d,
            dict(method.options) if method else {},
            request.target,
            request.seed,
            request.backward,
            method and method.sha256,
        )
        key = cell_key(
            command="bench",
            **({"method": EXACT, "options": {}} if method is None else method_identity(method)),
            target=work.target,
            source=facts,
            n=n,
            layer=layer,
            heads=plan.heads,
            d=d,
            seed=work.seed,
            backward=work.backward,
            rounds=request.rounds,
            memory=request.memory,
            errors=request.with_errors,
            quadratic_n=request.quadratic_n,
            machine=this_machine,  # times of another machine are other cells
        )
        return BenchCell(key, method, n, d, work)

    return {
        Place(0, Group(n, 0), layer): [
            cell(method, n, layer, d) for method in methods for d in budgets_of(method, plan.d)
        ]
        for n in plan.n
        for layer in plan.layers
    }


class BenchCells(Cells[BenchRequest, BenchCell, QKV]):
    """Calls. Those of one length and layer are timed in turn with each other and with exact attention."""

    command = "bench"
    shape = SHAPE
    exclusive: ClassVar[bool] = True
    blank = {"draws_hash": None, "gradient_of": None, "load": None, "clock_mhz": None}

    def __init__(self, request: BenchRequest, notify: Callable[[str], None], timings: Timings) -> None:
        source, self.planned = bench_prepared(request, notify)
        known = versions()
        self.machine = machine(str(source.device))
        self.versions = {name: known[name] for name in ("attnprobe", "python", "torch")}
        every = bench_cells(request, self.planned, source)
        super().__init__(request, [source], list(every), every.__getitem__)

    def plan(self) -> dict[str, Any]:
        plan = self.planned
        return {
            "methods": [method_entry(method) for method in plan.methods],
            **{name: getattr(plan, name) for name in ("n", "d", "layers", "heads")},
            "seed": self.request.seed,
        }

    def heads(self, place: Place) -> Sequence[int] | None:
        return self.planned.heads

    def head(self, place: Place, cell: BenchCell) -> dict[str, Any]:
        request = cell.request
        if request is None:
            head = {"method": EXACT, "options": {}, "family": "exact", "cost": EXACT_COST}
        else:
            head = {**method_facts(request), "family": request.entry.family, "cost": request.entry.cost}
        requested = request is not None and request.requested
        return {
            **head,
            "target": cell.work.target,
            "d": cell.d,
            "repeat": 0,
            "seed": cell.work.seed,
            "backward": cell.work.backward,
            "reference": not requested,
            "requested": requested,
            "rounds": self.request.rounds,
            **self.machine,
            **self.versions,
        }

    def source_name(self, place: Place) -> str:
        return str(self.sources[0].facts.get("weights") or self.request.inputs)

    def work_of_inputs(self, place: Place) -> float:
        return 0.0

    def work(self, place: Place, cell: BenchCell) -> Cost:
        """The calls of a cell: one for each round, and three before and after. Unsupported cells have no call."""
        n, method = place.group.n, cell.request
        if method is not None and unsupported_reason(self.request, method, n, cell.d) is not None:
            return 0.0, 0.0
        cost = "n²" if method is None else method.entry.cost
        once, size = work_of_method(n, cell.d, len(self.head_numbers(place)), cost)
        return PROCESS * self.request.memory + (self.request.rounds + 3) * once, size

    def inputs(self, places: Sequence[Place], keeper: InputKeeper) -> Iterator[tuple[Place, QKV, Result]]:
        """Q, K and V of one place at a time, so that no others take memory during timing."""
        for place in places:
            n, layer, heads = place.group.n, place.layer, self.heads(place)
            self.show(f"n={n} inputs")
            qkv = self.sources[0].qkv(n, [layer], 0)[layer]
            yield place, qkv if heads is None else qkv.select(heads), {}

    def measured(self, place: Place, inputs: QKV, done: Done) -> Iterator[tuple[BenchCell, Result]]:
        missing = [cell for cell in self.by_place[place] if cell.key not in done]
        results = _Bench(inputs, self, place).measure(missing)
        yield from ((cell, results[cell.key]) for cell in missing)


class _Once:
    """Wraps a call that may raise: the first error is stored, and later calls do nothing.

    So the calls of other cells, which take turns with it, are still timed.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call, self.error = call, None

    def __call__(self) -> None:
        if self.error is None:
            # no `attempt`: its own time would count in short calls
            try:
                self.call()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self.error = error

    def check(self) -> None:
        """Raise what the call raised."""
        if self.error is not None:
            raise self.error


class _Bench:
    """Q, K and V of one length and layer, on which cells are measured."""

    def __init__(self, qkv: QKV, cells: BenchCells, place: Place) -> None:
        self.qkv, self.cells, self.place, self.request = qkv, cells, place, cells.request
        self.reference = None
        if self.request.with_errors:
            self.show("exact output")
            self.reference = ExactOutput.of(exact_output(qkv, self.request.target))

    def show(self, label: str, begun: Mapping[str, float] | None = None) -> None:
        self.cells.show(f"n={self.qkv.n_q} {label}", begun)

    def measure(self, cells: list[BenchCell]) -> dict[str, Result]:
        """The results of the cells, by key: a first call of each, then rounds in which they take turns, then memory."""
        conditions = {"load": round(os.getloadavg()[0], 2), "clock_mhz": clock_mhz()}
        results = {cell.key: {**conditions, **self._tried(cell)} for cell in cells}
        called = [cell for cell in cells if results[cell.key].get("status") not in ("skipped", "failed")]
        if not called:
            return results
        timed = {cell.key: _Once(cell.work.call(self.qkv)) for cell in called}
        # called in every round, also if its own cell is finished already: ratios need it
        exact = _Once(Work(EXACT, backward=self.request.backward).call(self.qkv))
        names = {cell.key: title(cell) for cell in called} | {"exact": EXACT}
        total = len(names) * (self.request.rounds + 1)
        memory = PROCESS * self.request.memory
        # the share of the calls in the work of a cell; the rest is the measurement of its memory
        shares = {cell.key: 1 - memory / self.cells.work(self.place, cell)[0] for cell in called}

        def show(number: int, key: str) -> None:
            begun = {name: number / total * share for name, share in shares.items()}
            self.show(f"{names[key]}, call {number + 1} of {total}", begun)

        # in turn, so that a machine that slows down slows all of them alike
        seconds = interleaved({"exact": exact, **timed}, self.request.rounds, self.qkv.device, show)
        with attempt() as tried:
            exact.check()
        exact_seconds = seconds["exact"] if tried.ok else [None] * self.request.rounds
        finished: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as folder:
            if self.request.memory:
                save_inputs(Path(folder) / "qkv.pt", self.qkv)
            for cell in called:
                result = results[cell.key]
                with attempt() as tried:
                    timed[cell.key].check()
                if not tried.ok:
                    result |= tried.state
                    continue
                rounds = _rounds(cell, seconds[cell.key], exact_seconds)
                result |= {"seconds": median(row["seconds"] for row in rounds), "rows": [*rounds, *result["rows"]]}
                if self.request.memory:
                    self.show(f"memory of {title(cell)}", finished)
                    self._peak(cell, str(Path(folder) / "qkv.pt"), result)
                    finished[cell.key] = 1.0
        return results

    def _peak(self, cell: BenchCell, path: str, result: Result) -> None:
        """Measure the peak memory of a call in a process of its own."""
        device = str(self.qkv.device)
        # the system may kill that process; then the times stay without a peak
        with attempt() as tried:
            result["peak_bytes"] = peak_bytes(load_call, path, cell.work, device, device=device)
        if not tried.ok:
            result["reason"] = f"no peak memory: {tried.reason}"

    def _tried(self, cell: BenchCell) -> Result:
        """The result of one call of a cell: status, reason, products, entries, errors."""
        result: Result = {}
        self.show(f"first call of {title(cell)}")
        with self.cells.attempt(cell.key) as tried:
            if cell.request is not None:
                reason = unsupported_reason(self.request, cell.request, cell.n, cell.d)
                if reason is not None:
                    raise Unsupported(reason)
            results: list[Any] = []
            with torch.no_grad():
                flops = counted_flops(lambda: results.append(cell.work.run(self.qkv)))
                if cell.request is None:
                    result["kernel"] = "own" if fused_output(self.qkv.compressed()) is None else "fused"
            # products of the gradient are counted with those of the output
            if cell.work.backward:
                result["gradient_of"] = differentiated(cell.work, self.qkv)
                flops = counted_flops(cell.work.call(self.qkv))
            approx = results[0]
            rows = head_rows(self.qkv.heads, self._numbers(cell, approx))
            result |= {"flops": flops, "leading_flops": self._leading(cell), "rows": rows}
            if cell.request is not None:
                result |= {"draws_hash": approx.draws_hash(), **ending(approx, self.qkv)}
        return result if tried.ok else result | tried.state

    def _leading(self, cell: BenchCell) -> float | None:
        """Two operations for each multiply-add of the registry's leading cost, all heads; None with a gradient."""
        cost = EXACT_COST if cell.request is None else cell.request.entry.cost
        products = None if cell.work.backward else leading_products(cost, cell.n, cell.d, self.qkv.p)
        return None if products is None else 2 * self.qkv.h * products

    def _stored_bits(self, cell: BenchCell) -> float | None:
        """The mean bits of a number in the cache, over all tokens; None for a method that is no cache."""
        tokens, k, v = self.qkv.n_k, self.qkv.p_k, self.qkv.p_v
        stored = Storage()
        if cell.request is not None:
            entry = cell.request.entry
            if entry.format is None and entry.compress is None and entry.storage is None:
                return None
            stored = entry.stored(cell.d, cell.request.options)
        kept = min(tokens, cell.d) if stored.evicts and cell.d is not None else tokens
        return stored.bits(kept, k=k, v=v, own=CACHE_BITS) / (tokens * (k + v))

    def _numbers(self, cell: BenchCell, approx: Any) -> dict[str, list[float]]:
        """The numbers of each head besides times: entries, diagnostics, errors, stored bits."""
        bits = self._stored_bits(cell)
        stored = {} if bits is None else {"stored_bits": [bits] * self.qkv.h}
        if cell.request is None:
            return {"visited": [self.qkv.entries] * self.qkv.h, **stored}
        metrics = {
            name: approx.diagnostics[name]
            for name in ("visited", "scored", "kv_read", "bad_rows", "rounded_rows")
            if name in approx.diagnostics
        }
        if self.reference is not None:
            errors = output_errors(self.reference, approx, self.qkv)
            metrics |= {name: errors[name] for name in ERRORS}
        return {name: values.detach().double().cpu().tolist() for name, values in metrics.items()} | stored


def _rounds(cell: BenchCell, seconds: Sequence[float], exact: Sequence[float | None]) -> list[Result]:
    """A row for each round: the cell's time, the time of exact attention, and their ratio.

    Args:
        seconds: of the calls of the cell. exact: of the calls of exact attention in the same rounds; None if it failed.
    """
    rows: list[Result] = []
    for number, (own, of_exact) in enumerate(zip(seconds, exact, strict=True)):
        repeated = {}
        if cell.request is None and of_exact is not None:
            # the cell of exact attention is a second call in each round: it has the first call's time, and how far the
            # second differs is the noise of the machine
            own, repeated = of_exact, {"repeated_seconds": own}
        ratio = own / of_exact if of_exact else None
        times = {"seconds": own, "exact_seconds": of_exact, "ratio_to_exact": ratio, **repeated}
        rows.append({"kind": "time", "round": number, **times})
    return rows
