"""A run of ``attnprobe error`` from start to end: what was asked for, its source, its plan, its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import UsageError, unknown
from ..records import RecordWriter
from ..reference import TARGETS
from ..sources import SourceSpec, resolve
from ..timings import Timings
from .folder import recorded
from .maps import keep_maps
from .plan import ErrorPlan, MethodRequest, parse_methods, parse_numbers
from .run import Outcome, run_error

__all__ = ["ErrorRequest", "Session", "measure_errors", "parse_layers"]

MOST = 100_000  # windows, and repeats


@dataclass(frozen=True)
class ErrorRequest:
    """What ``attnprobe error`` was asked for, as the user wrote it. None is the default.

    Args:
        source: with the first of the ``weights``.
        weights: the words of ``--weights``, each measured beside the others; None is the source's alone.
        methods: ``--method`` items (see `parse_methods`).
        n, d: ``--n`` and ``--d``, lists such as ``"512,1024"``; n None is 512, or all tokens of a Q/K/V file.
        layer, head: lists, ranges or ``all``; layer None is 0, or a Q/K/V file's first.
        matrix, tol: whether matrix errors are measured, and the width at which an interval is closed.
        out: the run's folder; a folder that holds records already is gone on with.
        force: measure what is there already again. retry_failed: measure what failed there again.
        cell_timeout: seconds that a method may take on one layer; None is no limit.
        base: where new run folders are made.
        origin: where each value came from, for the manifest.
    """

    source: SourceSpec = field(default_factory=SourceSpec)
    weights: tuple[str, ...] | None = None
    methods: tuple[str, ...] = ("skyformer",)
    n: str | None = None
    d: str = "128"
    layer: str | None = None
    head: str = "all"
    windows: int = 1
    seed: int = 0
    repeats: int = 1
    target: str = "softmax"
    matrix: bool = True
    tol: float = 1e-3
    out: str | None = None
    force: bool = False
    retry_failed: bool = False
    cell_timeout: float | None = None
    base: str = "outputs"
    origin: Mapping[str, str] = field(default_factory=dict)


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

    def measure(writer: RecordWriter, done: Mapping[str, dict[str, Any]], run: str) -> Outcome:
        outcome, sizes = Outcome(), [plan.size(source.facts) for source, plan in parts]
        for place, (source, plan) in enumerate(parts):
            before, total = sum(sizes[:place]), sum(sizes)
            show = lambda at, _, label, before=before, total=total: progress(before + at, total, label)
            part = run_error(
                plan, source, writer, done=done, run=run, timings=timings, progress=show,
                cell_timeout=request.cell_timeout,
            )  # fmt: skip
            outcome.add(part)
            if maps:
                folder = writer.path.parent
                unmapped.update(
                    keep_maps(plan, source, part.records, folder, timings=timings, progress=progress)
                )
        return outcome

    plans = [planned(plan) for _, plan in parts]
    plan = plans[0] if len(plans) == 1 else {s.facts["weights"]: p for s, p in zip(sources, plans, strict=True)}
    outcome, path = recorded(request, "error", plan, sources, notify, measure)
    return Session(outcome, path, sources, unmapped)


def prepared(
    request: ErrorRequest, notify: Callable[[str], None], timings: Timings
) -> list[tuple[Any, ErrorPlan]]:
    """The sources of a request, each with its plan, once nothing in them is impossible."""
    methods, n, d = _asked(request)
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
        )
        _refuse_impossible(plan)
        for length in plan.n:
            source.check(length, plan.windows, plan.layers)
        parts.append((source, plan))
    return parts


def sources_of(request: Any, notify: Callable[[str], None], timings: Timings) -> list[Any]:
    """One source for each of a request's ``weights``; two that turn out to be the same count once."""
    words = request.weights or (request.source.weights,)
    if len(words) > 1 and request.source.qkv is not None:
        raise UsageError(f"--qkv {request.source.qkv} holds Q, K and V already: drop --weights")
    found: list[Any] = []
    lines: set[str] = set()

    def once(line: str) -> None:
        if line not in lines:
            lines.add(line)
            notify(line)

    for word in dict.fromkeys(words):
        source = resolve(replace(request.source, weights=word), notify=once, timings=timings)
        labels = [(other.facts.get("model"), other.facts.get("weights")) for other in found]
        if (source.facts.get("model"), source.facts.get("weights")) in labels:
            notify(f"weights {word} are {source.facts['weights']} here, which stand there already")
        else:
            found.append(source)
    return found


def _asked(request: ErrorRequest) -> tuple[tuple[MethodRequest, ...], tuple[int, ...] | None, tuple[int, ...]]:
    """The methods, lengths and budgets of a request, refused before anything heavy where they cannot be."""
    if request.target not in TARGETS:
        raise unknown("target", request.target, TARGETS)
    for name, value in (("windows", request.windows), ("repeats", request.repeats)):
        if not 1 <= value <= MOST:
            raise UsageError(f"{name}={value}: choose a number from 1 to {MOST}")
    if not 0 < request.tol < 1:
        raise UsageError(f"tol={request.tol:g}: choose a relative width above 0 and below 1, such as 0.001")
    methods = tuple(parse_methods(request.methods, request.target))
    d = tuple(parse_numbers(request.d, "d"))
    if request.n is None:
        return methods, None, d
    n = tuple(parse_numbers(request.n, "n"))
    for length in n:
        if length < 2:
            raise UsageError(f"n={length}: attention needs at least 2 tokens")
    _refuse_impossible(ErrorPlan(methods, n, d, (), None, target=request.target))
    return methods, n, d


def _refuse_impossible(plan: ErrorPlan) -> None:
    if (why := plan.refusal()) is not None:
        raise UsageError(why)


def parse_layers(text: str | None, source: Any) -> tuple[int, ...]:
    """The layers that a list names; None is layer 0, or the first that a Q/K/V file has."""
    if text is None:
        return (0,) if 0 in source.available else source.available[:1]
    return tuple(parse_numbers(text, "layer", source.available))


def planned(plan: ErrorPlan) -> dict[str, Any]:
    """The plan as a manifest shows it."""
    return {
        "methods": [{"name": m.name, "options": dict(m.options)} for m in plan.methods],
        "n": plan.n, "d": plan.d, "layers": plan.layers, "heads": plan.heads, "windows": plan.windows,
        "seed": plan.seed, "repeats": plan.repeats, "target": plan.target, "tol": plan.tol,
    }  # fmt: skip
