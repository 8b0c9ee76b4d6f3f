"""The plan of ``attnprobe bench``: its checked request and its cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError
from ...records.file import cell_key, identity_facts
from ...run.plan import MethodRequest, method_identity, parse_methods, refuse_endless, refused
from ...run.provenance import machine
from ...run.sources import heads_of, layers_of, sources_of
from ...sources import RandomSource
from ...timings import Timings
from .calls import EXACT, Work
from .request import BenchRequest

LENGTHS = {"random": (512, 1024, 2048, 4096, 8192, 16384), "model": (512, 1024, 2048, 4096)}


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
    """The parsed lists of a request."""

    methods: tuple[MethodRequest, ...]
    n: tuple[int, ...]
    d: tuple[int, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None


def bench_prepared(request: BenchRequest, notify: Callable[[str], None]) -> tuple[Any, BenchPlan]:
    """The source and the plan, after every check of the request."""
    if request.quadratic_n < 2:
        raise UsageError(f"quadratic_n={request.quadratic_n}: attention needs at least 2 tokens")
    methods, d = tuple(parse_methods(request.methods, request.target)), request.d
    if request.inputs == "random":
        source = RandomSource(request.heads, request.p, request.source.device, request.source.dtype)
    else:
        [source] = sources_of(request, notify, Timings())
    n = tuple(sorted(request.n or ((source.default_n,) if request.qkv is not None else LENGTHS[request.inputs])))
    layers = layers_of(request.layer, source)
    for length in n:
        source.check(length, 1, layers)
    heads = None if request.head == "all" else heads_of(request.head, source)
    plan = BenchPlan(methods, n, d, layers, heads)
    refuse_endless(len(methods) * len(n) * len(d) * len(layers))
    reasons = [
        unsupported_reason(request, one, length, budget)
        for one in methods
        for length in n
        for budget in (d if one.entry.budget is not None else (None,))
    ]
    if None not in reasons:
        raise UsageError(reasons[0])
    return source, plan


def unsupported_reason(request: BenchRequest, one: MethodRequest, n: int, d: int | None) -> str | None:
    """Why a method is not called at n; None if it is."""
    why = refused(one, request.target, n, d)
    cost = one.entry.cost
    longest = request.quadratic_n // 4 if "n³" in cost else request.quadratic_n
    if why is None and n > longest and ("n²" in cost or "n³" in cost):
        return f"{one.label} costs {cost}: called up to n={longest}, n={n} needs a larger --quadratic-n"
    return why


def bench_cells(request: BenchRequest, plan: BenchPlan, source: Any) -> dict[tuple[int, int], list[BenchCell]]:
    """The cells of every length and layer in their order: exact attention, V-Mean, then every method and budget."""
    facts, where = identity_facts(source.facts), machine(str(source.device))
    vmean = MethodRequest("vmean", requested=False)
    methods = [None, *(() if any(one.name == "vmean" for one in plan.methods) else (vmean,)), *plan.methods]

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
            **({"method": EXACT, "options": {}} if one is None else method_identity(one)),
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
            for one in methods
            for d in (plan.d if one is not None and one.entry.budget is not None else (None,))
        ]
        for n in plan.n
        for layer in plan.layers
    }
