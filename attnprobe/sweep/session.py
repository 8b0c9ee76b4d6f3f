"""A run of ``attnprobe error`` from start to end: what was asked for, its source, its plan, its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError, unknown
from ..lists import parse_numbers
from ..records import RecordWriter, cell_key, determining
from ..reference import TARGETS
from ..shards import parse_shard
from ..timings import Timings
from .folder import recorded
from .inputs import InputKeeper
from .jobs import ErrorWork, jobs_of, run_jobs
from .maps import keep_maps
from .plan import ErrorPlan, MethodRequest, listed, parse_methods
from .request import MOST, RunRequest, parse_layers, sources_of
from .run import Outcome, run_error

__all__ = ["ErrorRequest", "Session", "measure_errors"]


@dataclass(frozen=True)
class ErrorRequest(RunRequest):
    """What ``attnprobe error`` was asked for; see `RunRequest` for the rest.

    Args:
        methods: ``--method`` items (see `parse_methods`). repeats: seeds of random methods, from ``seed`` on.
        row_tolerance: of the rows of kernels, None is that of their dtype (see `kernel_errors`).
        jobs: processes that measure side by side; None is one per visible GPU, and 1 on a CPU (see `run_jobs`).
        matrix, tol: whether matrix errors are measured, and the width at which an interval is closed.
    """

    methods: tuple[str, ...] = ("skyformer",)
    repeats: int = 1
    jobs: int | None = None
    matrix: bool = True
    tol: float = 1e-3
    row_tolerance: float | None = None


@dataclass
class Session:
    """A finished run: its records, folder and sources, and why maps that were asked for are missing, by key."""

    outcome: Outcome
    path: Path
    sources: Sequence[Any]
    unmapped: Mapping[str, str] = field(default_factory=dict)


def measure_errors(
    request: ErrorRequest,
    *,
    maps: bool = False,
    notify: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int, str], None] = lambda done, total, label: None,
    timings: Timings | None = None,
) -> Session:
    """Resolve the source, measure every cell, and leave ``manifest.json`` and ``records.jsonl`` in the run's folder.

    With ``maps`` also the block averages of `keep_maps`, in ``maps/``; no record depends on them.

    A folder that was made for this run and holds no record when something goes wrong is removed again. After an
    interruption the manifest says so, and the same request with that folder as ``out`` goes on.

    Raises:
        UsageError, SourceError: as the parts say; nothing is left behind.
        KeyboardInterrupt: passed on once the folder is in order.
    """
    timings = timings or Timings()
    parts = prepared(request, notify, timings)
    sources = [source for source, _ in parts]
    unmapped: dict[str, str] = {}
    jobs = jobs_of(request.jobs, sources[0])

    def measure(writer: RecordWriter, done: Mapping[str, dict[str, Any]], run: str) -> Outcome:
        outcome, sizes = Outcome(), [plan.size(source.facts) for source, plan in parts]
        inputs = keeper(request, writer, run, timings)
        if jobs > 1:
            work = work_of(request, sources, jobs, writer.path.parent)
            found = run_jobs(work, jobs, parts, writer, inputs, done=done, timings=timings, progress=progress)
        for place, (source, plan) in enumerate(parts):
            before, total = sum(sizes[:place]), sum(sizes)
            show = lambda at, _, label, before=before, total=total: progress(before + at, total, label)
            part = found[place] if jobs > 1 else run_error(
                plan, source, writer, done=done, run=run, timings=timings, progress=show,
                cell_timeout=request.cell_timeout, keep_inputs=inputs.keep,
            )  # fmt: skip
            outcome.add(part)
            if maps and request.shard is None:
                folder = writer.path.parent
                unmapped.update(keep_maps(plan, source, part.records, folder, timings=timings, progress=progress))
        return outcome

    plan = shared_plan(sources, [planned(plan) for _, plan in parts])
    whole = whole_of(parts, lambda plan, source: plan.listed(source.facts))
    outcome, path = recorded(request, "error", plan, sources, notify, measure, whole=whole)
    return Session(outcome, path, sources, unmapped)


def prepared(
    request: ErrorRequest, notify: Callable[[str], None], timings: Timings, refuse: bool = True
) -> list[tuple[Any, ErrorPlan]]:
    """The sources of a request, each with its plan, once nothing in them is impossible.

    Args:
        refuse: whether it is impossible that none of the methods can run.
    """
    methods, n, d = _asked(request, refuse)
    shard, parts = parse_shard(request.shard), []
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
        if refuse:
            _refuse_impossible(plan)
        for length in plan.n:
            source.check(length, plan.windows, plan.layers)
        parts.append((source, plan))
    if shard is None:
        return parts
    places = [place_of(source, group.n, group.window, layer, (number, (group, layer)))
              for number, (source, plan) in enumerate(parts) for group, layer in plan.places()]  # fmt: skip
    mine = shard.dealt(places)
    return [(source, replace(plan, share=frozenset(place for at, place in mine if at == number)))
            for number, (source, plan) in enumerate(parts)]  # fmt: skip


def place_of(source: Any, n: int, window: int, layer: int, place: Any) -> tuple[int, str, Any]:
    """A group of cells as `Shard.dealt` takes it: its hash is of what determines its Q, K and V."""
    return n, cell_key(source=determining(source.facts), n=n, window=window, layer=layer), place


def whole_of(
    parts: Sequence[tuple[Any, ErrorPlan]], cells: Callable[[ErrorPlan, Any], Mapping[Any, Sequence[Any]]]
) -> Callable[[], set[str]]:
    """What gives the keys of all cells of a request, those of other shards included."""
    every = lambda: (cells(replace(plan, share=None), source) for source, plan in parts)
    return lambda: {cell.key for listed in every() for some in listed.values() for cell in some}


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
    methods = tuple(parse_methods(request.methods, request.target))
    d = () if request.d is None else tuple(parse_numbers(request.d, "d"))
    if request.n is None:
        return methods, None, d
    n = tuple(parse_numbers(request.n, "n"))
    for length in n:
        if length < 2:
            raise UsageError(f"n={length}: attention needs at least 2 tokens")
    if refuse:
        _refuse_impossible(ErrorPlan(methods, n, d, (), None, target=request.target))
    return methods, n, d


def _refuse_impossible(plan: ErrorPlan) -> None:
    if (why := plan.refusal()) is not None:
        raise UsageError(why)


def keeper(request: RunRequest, writer: RecordWriter, run: str, timings: Timings | None = None) -> InputKeeper:
    """What keeps the input statistics of a run that writes with ``writer``."""
    shard = parse_shard(request.shard)
    return InputKeeper(writer.path.parent, run, request.input_statistics, request.force, timings, shard)


def work_of(request: ErrorRequest, sources: Sequence[Any], jobs: int, folder: Path) -> ErrorWork:
    """What each of several processes does: its share of torch's threads, and of the GPUs where none is named."""
    device = torch.device(sources[0].device)
    several = device.type == "cuda" and device.index is None
    devices = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count())) if several else ()
    threads = max(1, torch.get_num_threads() // jobs)
    return ErrorWork(request, folder.name, threads, devices, prepared, keeper, folder)


def shared_plan(sources: Sequence[Any], plans: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The plan of a manifest: that of all sources, or by the word of their weights; factors of scores share theirs."""
    by_weights = {source.facts.get("weights"): plan for source, plan in zip(sources, plans, strict=True)}
    return plans[0] if len(by_weights) == 1 else by_weights


def planned(plan: ErrorPlan) -> dict[str, Any]:
    """The plan as a manifest shows it."""
    return {
        "methods": [listed(m) for m in plan.methods],
        "n": plan.n, "d": plan.d, "layers": plan.layers, "heads": plan.heads, "windows": plan.windows,
        "seed": plan.seed, "repeats": plan.repeats, "target": plan.target, "tol": plan.tol,
        "row_tolerance": plan.row_tolerance,
    }  # fmt: skip
