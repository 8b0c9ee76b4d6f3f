"""A run of ``attnprobe error`` from start to end: what was asked for, its source, its plan, its records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import UsageError, unknown
from ..experiments.error.maps import keep_maps
from ..experiments.error.measure import Bench, Outcome, result_of, warm_up
from ..grammar.lists import parse_numbers
from ..qkv import QKV
from ..records.file import LOWER_BOUND, cell_key, determining
from ..records.shards import parse_shard
from ..reference import TARGETS
from ..timings import Timings
from .cells import Place, PlannedCells
from .loop import Session, measure_cells
from .plan import Cell, ErrorPlan, MethodRequest, parse_methods, refuse_endless, told
from .request import MOST, RunRequest, parse_layers, sources_of
from .row_devices import row_devices

__all__ = ["ErrorRequest", "measure_errors", "prepared", "share_of"]


@dataclass(frozen=True)
class ErrorRequest(RunRequest):
    """What ``attnprobe error`` was asked for; see `RunRequest` for the rest.

    Args:
        methods: ``--method`` items (see `parse_methods`). repeats: seeds of random methods, from ``seed`` on.
        row_tolerance: of the rows of kernels, None is that of their dtype (see `kernel_errors`).
        split_rows: devices over which rows of the exact matrix are split (see `row_devices`); None splits none.
        matrix, tol: whether matrix errors are measured, and the width at which an interval is closed.
    """

    methods: tuple[str, ...] = ("skyformer",)
    repeats: int = 1
    split_rows: int | None = None
    matrix: bool = True
    tol: float = 1e-3
    row_tolerance: float | None = None


def measure_errors(
    request: ErrorRequest,
    *,
    maps: bool = False,
    notify: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int, str], None] = lambda done, total, label: None,
    timings: Timings | None = None,
) -> Session:
    """Resolve the source, measure every cell, and leave ``manifest.json`` and ``records.jsonl`` in the run's folder.

    Q, K and V are captured once per (n, window) and the exact output made once per layer of it; all methods, budgets
    and repeats share them, and the cells of a batch (`ErrorPlan.batches`) the passes over the exact matrix. A batch of
    which a cell is missing is measured whole, so that its numbers are those of a run without interruption, and what
    is missing is appended when it is done. A method that raises is a ``failed`` record, one whose output is not finite
    ``diverged``, one that cannot take a setting ``skipped``; the loop goes on.

    With ``maps`` also the block averages of `keep_maps`, in ``maps/``; no record depends on them.

    A folder that was made for this run and holds no record when something goes wrong is removed again. After an
    interruption the manifest says so, and the same request with that folder as ``out`` goes on.

    Raises:
        UsageError, SourceError: as the parts say; nothing is left behind.
        KeyboardInterrupt: passed on once the folder is in order.
    """
    timings, unmapped = timings or Timings(), {}
    if row_devices(request) is not None:
        request = replace(request, jobs=1)  # which has all the devices

    def keep(cells: ErrorCells, outcome: Outcome, folder: Path) -> None:
        if maps and request.shard is None:
            for number, (source, plan) in enumerate(cells.parts):
                keys = {cell.key for place, some in cells.listed.items() if place.source == number for cell in some}
                records = [record for record in outcome.records if record["key"] in keys]
                unmapped.update(keep_maps(plan, source, records, folder, timings=timings, progress=progress))

    run = measure_cells(ErrorCells, request, notify=notify, progress=progress, timings=timings, after=keep)
    return replace(run, unmapped=unmapped)


class ErrorCells(PlannedCells):
    """Errors of approximations, in batches that share passes over the exact matrix."""

    command = "error"

    def __init__(self, request: ErrorRequest, notify: Callable[[str], None], timings: Timings) -> None:
        parts = prepared(request, notify, timings)
        super().__init__(request, parts, lambda plan, source: plan.listed(source.facts))
        self.timings, self.devices, self.warm = timings, row_devices(request), set()

    def head(self, place: Place, cell: Cell) -> dict[str, Any]:
        bound = cell.request.name == LOWER_BOUND
        return {
            **told(cell.request),
            "target": self.plan_of(place).target,
            "d": cell.d,
            "repeat": cell.repeat,
            "seed": cell.seed,
            "reference": bound or cell.request.name == "vmean",
            "requested": cell.request.requested,
            "family": "lower bound" if bound else cell.request.entry.family,
        }

    def measured(
        self, place: Place, qkv: QKV, done: Collection[str], show: Callable[[str], None]
    ) -> Iterator[tuple[Cell, dict[str, Any]]]:
        plan, limit = self.plan_of(place), self.request.cell_timeout
        if place.source not in self.warm:
            self.warm.add(place.source)
            warm_up(plan, qkv, limit)
        bench = Bench(qkv, plan, self.timings, limit, self.devices)
        for batch in plan.batches(self.listed[place], qkv):
            if any(cell.key not in done for cell in batch):
                for cell, found in zip(batch, bench.measure(batch, show), strict=True):
                    if cell.key not in done:
                        yield cell, found

    def failed(self, cell: Cell, reason: str) -> dict[str, Any]:
        return result_of("failed", reason)


def prepared(
    request: ErrorRequest, notify: Callable[[str], None], timings: Timings, refuse: bool = True
) -> list[tuple[Any, ErrorPlan]]:
    """The sources of a request, each with its plan, once nothing in them is impossible.

    Args:
        refuse: whether it is impossible that none of the methods can run.
    """
    methods, n, d = _asked(request, refuse)
    parts = []
    for source in sources_of(request, notify, timings):
        plan = ErrorPlan(
            methods=methods,
            n=n or (source.default_n,),
            d=d,
            layers=parse_layers(request.layer, source),
            heads=None if request.head == "all" else tuple(parse_numbers(request.head, "head", source.head_numbers)),
            windows=request.windows,
            seed=request.seed,
            repeats=request.repeats,
            target=request.target,
            tol=request.tol if request.matrix else None,
            row_tolerance=request.row_tolerance,
        )
        refuse_endless(plan.count, notify)
        if refuse:
            _refuse_impossible(plan)
        for length in plan.n:
            source.check(length, plan.windows, plan.layers)
        parts.append((source, plan))
    every = [Place(number, *where) for number, (_, plan) in enumerate(parts) for where in plan.places()]
    mine = share_of(request, [source for source, _ in parts], every)
    if mine is None:
        return parts
    return [
        (source, replace(plan, share=frozenset((one.group, one.layer) for one in mine if one.source == number)))
        for number, (source, plan) in enumerate(parts)
    ]


def share_of(request: RunRequest, sources: Sequence[Any], places: Iterable[Place]) -> set[Place] | None:
    """The places of a request's shard, None where it has none; dealt by a hash of what determines Q, K and V."""
    shard = parse_shard(request.shard)
    if shard is None:
        return None
    hashed = lambda place: cell_key(
        source=determining(sources[place.source].facts), n=place.group.n, window=place.group.window, layer=place.layer
    )
    return shard.dealt([(place.group.n, hashed(place), place) for place in places])


def _asked(
    request: ErrorRequest, refuse: bool
) -> tuple[tuple[MethodRequest, ...], tuple[int, ...] | None, tuple[int, ...]]:
    """The methods, lengths and budgets of a request, refused before anything heavy where they cannot be."""
    if request.target not in TARGETS:
        raise unknown("target", request.target, TARGETS)
    for name, value in (("windows", request.windows), ("repeats", request.repeats)):
        if not 1 <= value <= MOST:
            raise UsageError(f"{name}={value}: choose a number from 1 to {MOST}")
    if not 0 < request.tol < 1:
        raise UsageError(f"tol={request.tol:g}: choose a relative width above 0 and below 1, such as 0.001")
    if request.row_tolerance is not None and not 0 < request.row_tolerance < 1:
        raise UsageError(f"row-tolerance={request.row_tolerance:g}: choose a relative error above 0 and below 1")
    row_devices(request)
    methods = tuple(parse_methods(request.methods, request.target))
    d = () if request.d is None else tuple(parse_numbers(request.d, "d"))
    if request.n is None:
        return methods, None, d
    n = tuple(parse_numbers(request.n, "n"))
    for length in n:
        if length < 2:
            raise UsageError(f"n={length}: attention needs at least 2 tokens")
    least = ErrorPlan(methods, n, d, (0,), None, request.windows, repeats=request.repeats, target=request.target)
    refuse_endless(least.count)
    if refuse:
        _refuse_impossible(least)
    return methods, n, d


def _refuse_impossible(plan: ErrorPlan) -> None:
    if (why := plan.refusal()) is not None:
        raise UsageError(why)
