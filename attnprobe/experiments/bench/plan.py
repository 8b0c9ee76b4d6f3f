"""What ``attnprobe bench`` is asked for, and the cells that come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError, unknown
from ...grammar.lists import parse_numbers, parse_positive
from ...records.file import cell_key, determining
from ...reference import TARGETS
from ...run.plan import MethodRequest, determines, parse_methods, refuse_endless, refused
from ...run.provenance import machine
from ...run.request import RunRequest, parse_layers, sources_of
from ...sources import RandomSource
from ...timings import Timings
from .calls import EXACT, Work

__all__ = ["BenchCell", "BenchPlan", "BenchRequest", "bench_cells", "bench_prepared", "why_not"]

SOURCES = ("random", "model")
LENGTHS = {"random": "512,1024,2048,4096,8192,16384", "model": "512,1024,2048,4096"}
MOST_ROUNDS = 10_000


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
class BenchCell:
    """One method, or exact attention (``request`` None), at one budget, length and layer."""

    key: str
    request: MethodRequest | None
    n: int
    layer: int
    d: int | None
    work: Work

    @property
    def name(self) -> str:
        return EXACT if self.request is None else self.request.label


@dataclass(frozen=True)
class BenchPlan:
    """What is measured: the parsed lists of a request."""

    methods: tuple[MethodRequest, ...]
    n: tuple[int, ...]
    d: tuple[int, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None


def bench_prepared(request: BenchRequest, notify: Callable[[str], None]) -> tuple[Any, BenchPlan]:
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
    plan = BenchPlan(methods, n, d, layers, heads)
    refuse_endless(len(methods) * len(n) * len(d) * len(layers))
    reasons = [
        why_not(request, one, length, budget)
        for one in methods
        for length in n
        for budget in (d if one.entry.budget is not None else (None,))
    ]
    if None not in reasons:
        raise UsageError(reasons[0])
    return source, plan


def why_not(request: BenchRequest, one: MethodRequest, n: int, d: int | None) -> str | None:
    """Why a method is not called at n; None where it is."""
    why = refused(one, request.target, n, d)
    cost = one.entry.cost
    longest = request.quadratic_n // 4 if "n³" in cost else request.quadratic_n
    if why is None and n > longest and ("n²" in cost or "n³" in cost):
        return f"{one.label} costs {cost}: called up to n={longest}, n={n} needs a larger --quadratic-n"
    return why


def bench_cells(request: BenchRequest, plan: BenchPlan, source: Any) -> dict[tuple[int, int], list[BenchCell]]:
    """The cells of every length and layer in their order: exact attention, V-Mean, then every method and budget."""
    facts, where = determining(source.facts), machine(str(source.device))
    vmean = MethodRequest("vmean", requested=False)
    asked = [None, *(() if any(one.name == "vmean" for one in plan.methods) else (vmean,)), *plan.methods]

    def cell(one: MethodRequest | None, n: int, layer: int, d: int | None) -> BenchCell:
        work = Work(
            EXACT if one is None else one.name,
            d,
            dict(one.options) if one else {},
            request.target,
            request.seed,
            request.backward,
            one and one.sha256,
        )
        key = cell_key(
            command="bench",
            **({"method": EXACT, "options": {}} if one is None else determines(one)),
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
            machine=where,
        )
        return BenchCell(key, one, n, layer, d, work)

    return {
        (n, layer): [
            cell(one, n, layer, d)
            for one in asked
            for d in (plan.d if one is not None and one.entry.budget is not None else (None,))
        ]
        for n in plan.n
        for layer in plan.layers
    }
