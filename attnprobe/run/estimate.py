"""What a request would measure: its cells without measuring any, what is done already, and about what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from ..errors import Unsupported
from ..experiments.bench.plan import BenchRequest, bench_cells, bench_prepared
from ..experiments.budget.bisect import coarse_budgets
from ..experiments.budget.measure import BudgetRequest, budget_cells, question_of
from ..experiments.condition.measure import ConditionRequest, condition_cells
from ..experiments.inject.plan import InjectRequest, inject_batches, inject_prepared
from ..experiments.spectrum.measure import SpectrumCells, SpectrumRequest
from ..experiments.stability.plan import LAYERS, StabilityRequest, stability_cells, stability_prepared
from ..experiments.theory.measure import TheoryRequest, theory_cells
from ..records.file import LOWER_BOUND
from ..timings import Timings
from .folder import held_already
from .prepare import ErrorRequest, prepared

__all__ = ["Listed", "listed", "seconds_of"]

EXACT = "A, B, C"  # what the cell of exact matrices is called


@dataclass(frozen=True)
class Listed:
    """One cell that a request asks for.

    Attributes:
        place: weights (and a factor of the scores), n, window and layer (``all`` where several are one cell).
        name: of the method or the matrix. work: about how many float32 multiply-adds it takes, shared work included.
        bytes: about what it holds beside Q, K and V.
    """

    place: tuple[str, int, int, int | str]
    name: str
    d: int | None
    done: bool
    work: float
    bytes: float


def listed(request: Any, notify: Callable[[str], None] = lambda line: None) -> list[Listed]:
    """Every cell of a request in its order.

    Raises:
        UsageError, SourceError: as a run would.
    """
    kept = {} if request.force else held_already(request)
    done = {key for key, record in kept.items() if not (request.retry_failed and record["status"] == "failed")}
    kinds = {
        SpectrumRequest: _of_spectra,
        TheoryRequest: _of_theorems,
        BenchRequest: _of_bench,
        BudgetRequest: _of_budgets,
        InjectRequest: _of_drift,
        StabilityRequest: _of_stability,
    }
    cells = kinds.get(type(request), _of_errors)
    return list(cells(request, done, notify))


def _of_errors(request: ErrorRequest, done: set[str], notify: Callable[[str], None]) -> Iterator[Listed]:
    conditions = isinstance(request, ConditionRequest)
    for source, plan in prepared(request, notify, Timings()):
        h = len(source.head_numbers if plan.heads is None else plan.heads)
        every = condition_cells(request, plan, source) if conditions else plan.listed(source.facts)
        for (group, layer), cells in every.items():
            for cell in cells:
                name = EXACT if cell.request is None else cell.request.label
                work, size = _sizes(name, group.n, cell.d or 64, h, matrix=plan.tol is not None, dense=conditions)
                place = (_named(source), group.n, group.window, layer)
                yield Listed(place, name, cell.d, cell.key in done, work, size)


def _of_theorems(request: TheoryRequest, done: set[str], notify: Callable[[str], None]) -> Iterator[Listed]:
    """A theorem counts as decompositions of the kernels of every head, and one of each method as its repeated runs."""
    for source, plan in prepared(request, notify, Timings(), refuse=False):
        h = len(source.head_numbers if plan.heads is None else plan.heads)
        for (group, layer), cells in theory_cells(request, plan, source).items():
            for cell in cells:
                n, d, runs = group.n, max(plan.d), plan.repeats * len(plan.d)
                work, size = _sizes(EXACT, n, d, h, matrix=False, dense=True)
                if cell.request is not None:
                    once, beside = _sizes(cell.name, n, d, h, matrix=True, dense=False)
                    work, size = work + runs * once, size + beside
                place = (_named(source), n, group.window, layer)
                yield Listed(place, cell.name, None, cell.key in done, work, size)


def _of_budgets(request: BudgetRequest, done: set[str], notify: Callable[[str], None]) -> Iterator[Listed]:
    """A search counts as twice the runs of its coarse budgets with every seed: what heads need between comes on top."""
    question = question_of(request)
    for source, plan in prepared(request, notify, Timings(), refuse=False):
        h = len(source.head_numbers if plan.heads is None else plan.heads)
        for (group, layer), cells in budget_cells(request, plan, source).items():
            for cell in cells:
                try:
                    tried = coarse_budgets(*question.range_of(cell.request.name, group.n, group.n))
                except Unsupported:
                    tried = []
                matrix = question.metric.startswith("matrix_")
                sizes = [_sizes(cell.request.name, group.n, d, h, matrix, dense=False) for d in tried]
                work = 2 * len(question.seeds_of(cell.request.name)) * sum(work for work, _ in sizes)
                place = (_named(source), group.n, group.window, layer)
                size = max((size for _, size in sizes), default=0.0)
                yield Listed(place, cell.request.name, None, cell.key in done, work, size)


def _of_bench(request: BenchRequest, done: set[str], notify: Callable[[str], None]) -> Iterator[Listed]:
    """A cell is called once for each round, and thrice before and after them."""
    source, plan = bench_prepared(request, notify)
    h = len(source.head_numbers if plan.heads is None else plan.heads)
    for (n, layer), cells in bench_cells(request, plan, source).items():
        for cell in cells:
            work, size = _sizes(cell.label, n, cell.d or 64, h, matrix=False, dense=False)
            place = (str(source.facts.get("weights") or request.inputs), n, 0, layer)
            yield Listed(place, cell.label, cell.d, cell.key in done, (request.rounds + 3) * work, size)


def _of_drift(request: InjectRequest, done: set[str], notify: Callable[[str], None]) -> Iterator[Listed]:
    """A cell is the method in each of its layers; what the model itself takes is not counted."""
    for source, plan in inject_prepared(request, notify):
        weights = str(source.facts.get("weights"))
        for n, _, works in inject_batches(request, plan, source):
            for cell in (cell for cells in works for cell in cells):
                work, size = _sizes(cell.work.request.name, n, cell.work.d or 64, source.heads, False, False)
                place = (weights, n, cell.window, "all" if cell.work.layer is None else cell.work.layer)
                yield Listed(
                    place, cell.work.request.name, cell.work.d, cell.key in done, work * len(cell.work.layers), size
                )


def _of_stability(request: StabilityRequest, done: set[str], notify: Callable[[str], None]) -> Iterator[Listed]:
    """A training is four passes a step over every sequence of its batch, of a mean length, with heads half as wide."""
    tasks, plan = stability_prepared(request, notify)
    for task in tasks:
        for cell in stability_cells(request, plan, task):
            length = (task.shortest + task.n) // 2
            each, size = _sizes(cell.request.name, length, cell.d or length // 4, 2, matrix=False, dense=False)
            work = 2 * request.steps * task.batch * task.pairs * LAYERS * each
            yield Listed((task.name, task.n, 0, LAYERS), cell.name, cell.d, cell.key in done, work, size)


def _of_spectra(request: SpectrumRequest, done: set[str], notify: Callable[[str], None]) -> Iterator[Listed]:
    every = SpectrumCells(request, notify, Timings())
    for place, cells in every.listed.items():
        n, window = place.group.n, place.group.window
        for cell in cells:
            work, size = _sizes(EXACT, n, cell.d or 64, 1, matrix=False, dense=True)
            where = (_named(every.sources[place.source]), n, window, place.layer)
            yield Listed(where, cell.name, cell.d, cell.key in done, work / 3, size)


def _named(source: Any) -> str:
    """A source's weights, and the factor of its scores where it has one."""
    told, factor = str(source.facts.get("weights") or "file"), source.facts.get("scale_inputs")
    return told if factor is None else f"{told}, scores x {factor:g}"


def _sizes(name: str, n: int, d: int, h: int, matrix: bool, dense: bool) -> tuple[float, float]:
    """Multiply-adds and bytes of a cell, counted as the documented costs of its parts."""
    if name == LOWER_BOUND:
        return 0.0, 0.0
    if name == EXACT:  # three decompositions in float64
        return 3 * h * 24.0 * n**3, 32.0 * n * n
    work = h * (8.0 * n * d * 64 + 40.0 * d**3)
    size = 8.0 * h * n * (2 * d + 192)
    if matrix:  # about four passes, of which the methods of a batch share the scores
        work += h * float(n) ** 2 * (4 * 64 + d)
        size += 2.0**26
    return work, size


def seconds_of(cells: list[Listed]) -> float:
    """About how long the cells that are not done take here, from the speed of a matrix product measured now.

    A guess to plan by: loading, draws and metrics come on top, and a method's own cost is taken for that of a low rank.
    """
    x = torch.randn(1024, 1024)
    x @ x
    begin = perf_counter()
    for _ in range(3):
        x @ x
    speed = 3 * 1024.0**3 / (perf_counter() - begin)
    exact = {}
    for cell in cells:
        if not cell.done:
            exact[cell.place] = 24 * 128.0 * cell.place[1] ** 2  # exact attention of twelve heads in float64
    return (sum(cell.work for cell in cells if not cell.done) * 2 + sum(exact.values())) / speed
