"""Cells and places. A cell becomes one record; the cells of a place share their inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch

from ..files import Fields, JsonObject
from ..frame.records.file import SCHEMA, cell_key, identity_facts, parse_shard
from ..frame.rows import CELL, RowTypes
from ..grammar.lists import options_text
from ..inputs import Source
from ..inputs.queries import Queries
from ..machine.timings import Timings
from ..metrics import repeated_rows
from .costs import OPENING, Cost, Work, work_of_forward, work_of_inputs
from .inputs import STATISTICS, InputKeeper
from .limits import Attempt, attempt, with_smaller_blocks
from .plan import ErrorPlan, Group
from .sources import left_out
from .topics.reading import SomeQueries, Statistics
from .topics.running import OnTensors, RunRequest
from .where.backends import Limit

Progress = Callable[[float, int, str], None]  # share of the work that is done, number of cells, current step
Send = Callable[[str, Any], None]
Result = JsonObject  # the measured fields of a record
Done = Mapping[str, str | None]  # keys of cells that are done, with the reasons of their records
R = TypeVar("R", bound=RunRequest)
T = TypeVar("T", bound=OnTensors)
C = TypeVar("C", bound="Cell")
I = TypeVar("I")  # the inputs that the cells of a place share


@dataclass(frozen=True)
class Place:
    """Where cells share their inputs.

    Attributes:
        source: its number among the sources of the request. group: n and window.
        layer: None where a cell has several layers together.
    """

    source: int
    group: Group
    layer: int | None


class Cell(Protocol):
    """One measurement, which becomes one record."""

    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str:
        """Its method, matrix or theorem."""
        ...

    @property
    def d(self) -> int | None: ...


class Cells(Generic[R, C, I]):
    """The cells of a request: its sources, and the cells of each place.

    A worker process builds them from the request with ``open(request, notify, timings)``, where ``open`` is the class
    of a command. Its cells must equal those of the main process.

    Attributes:
        command: its name. shape: the type of its records.
        blank: the fields of a record without a measurement.
        may_be_empty: whether a run is valid if no requested cell can run.
        gradients: whether cells are measured with torch's gradients.
        exclusive: whether one process at a time measures on a device, with all of its threads.
        places: those of the request, with the places of other shards.
        by_place: the cells of every place of the request's shard, in the order in which they are measured.
        send: takes messages to the process that writes the records (see `GroupWork`).
    """

    command: ClassVar[str]
    shape: ClassVar[RowTypes]
    blank: ClassVar[Fields] = {"draws_hash": None, "duplicates": None}
    may_be_empty: ClassVar[bool] = False
    gradients: ClassVar[bool] = False
    exclusive: ClassVar[bool] = False
    send: Send

    def __init__(
        self, request: R, sources: Sequence[Any], places: Sequence[Place], cells_at: Callable[[Place], Sequence[C]]
    ) -> None:
        self.request, self.sources, self.places, self.cells_at = request, sources, places, cells_at
        of_shard = _share_of(request, sources, places)
        self.by_place = {place: cells_at(place) for place in places if of_shard is None or place in of_shard}
        self.send = lambda kind, value: None

    def plan(self) -> JsonObject:
        """The plan as the manifest shows it."""
        raise NotImplementedError

    def keep(self, kinds: Sequence[str], records: Sequence[Fields], folder: Path, progress: Progress) -> dict[str, str]:
        """Store what these kinds of figures need beside the records.

        Returns the reason for each cell whose data is missing, by the cell's key.
        """
        return {}

    def ordered(self) -> Iterable[C]:
        """The cells of the request's shard in the order of the plan, which is the order of its tables."""
        return (cell for cells in self.by_place.values() for cell in cells)

    def all_keys(self) -> set[str]:
        """The keys of all cells of the request, with those of other shards."""
        return {cell.key for place in self.places for cell in self.cells_at(place)}

    def heads(self, place: Place) -> Sequence[int] | None:
        """The heads that are measured at a place; None is all."""
        raise NotImplementedError

    def head(self, place: Place, cell: C) -> JsonObject:
        """The fields of a cell's record that are known before it is measured, without its place."""
        raise NotImplementedError

    def inputs(self, places: Sequence[Place], keeper: InputKeeper) -> Iterator[tuple[Place, I, Result]]:
        """The inputs of each place, with the fields of records that describe them.

        The inputs are Q, K and V of the heads of the place; a command may read others.

        Args:
            places: of one source, n and window, so that they share a forward. keeper: writes input statistics.
        """
        group, source = places[0].group, self.sources[places[0].source]
        self.show(f"reading n={group.n}, window {group.window}")
        captured = source.qkv(group.n, [place.layer for place in places], group.window)
        for place in places:
            assert place.layer is not None  # a command of several layers together has inputs of its own
            # popped: a layer's tensors are free once its cells are measured
            qkv, heads = captured.pop(place.layer), self.heads(place)
            qkv = qkv if heads is None else qkv.select(heads)
            keeper.keep(source, group.n, group.window, place.layer, qkv)
            yield place, qkv, {"duplicates": repeated_rows(qkv)}

    def measured(self, place: Place, inputs: I, done: Done) -> Iterator[tuple[C, Result]]:
        """The unfinished cells of a place in their order, each with its result."""
        for cell in self.by_place[place]:
            if cell.key not in done:
                self.show(self.label(place, cell))
                result: Result = {}
                with torch.set_grad_enabled(self.gradients), self.attempt(cell.key) as tried:
                    with_smaller_blocks(self._anew, place, cell, inputs, result)
                # the state last: a cell that failed has failed, whatever it had measured before
                yield cell, result if tried.ok else result | tried.state

    def _anew(self, place: Place, cell: C, inputs: I, result: Result) -> None:
        """Measure a cell from the start: an attempt with larger blocks may have left numbers in ``result``."""
        result.clear()
        self.measure_cell(place, cell, inputs, result)

    def measure_cell(self, place: Place, cell: C, inputs: I, result: Result) -> None:
        """Measure a cell into ``result``. It may raise anything.

        A command whose cells share more than their inputs has a `measured` of its own instead. What stands in
        ``result`` when an error is raised stays in the record.
        """
        raise NotImplementedError

    @contextmanager
    def attempt(self, *keys: str) -> Iterator[Attempt]:
        """A block that measures the cells with these keys, under the request's time limit (see `attempt`)."""
        seconds = self.request.cell_timeout
        # the other process ends this one if the block does not end itself
        if seconds is not None:
            self.send("limit", Limit(keys, seconds))
        with attempt(seconds) as tried:
            yield tried
        if seconds is not None:
            self.send("limit", None)

    def show(self, label: str, begun: Mapping[str, float] | None = None) -> None:
        """Report the current step.

        Args:
            begun: the finished share of the work of cells whose records are not sent yet, by key.
        """
        if begun:
            self.send("begun", begun)
        self.send("show", label)

    def label(self, place: Place, cell: C) -> str:
        """A cell as progress shows it."""
        return f"n={place.group.n} layer {place.layer} {title(cell)}"

    def work(self, place: Place, cell: C) -> Cost:
        """The estimated cost of a cell."""
        raise NotImplementedError

    def works(self, place: Place, keys: Collection[str]) -> dict[str, Work]:
        """The estimated cost of each cell with one of these keys, if no other cell is measured at the place."""
        inputs = self.work_of_inputs(place) / len(keys) if keys else 0.0
        costs = {cell.key: self.work(place, cell) for cell in self.by_place[place] if cell.key in keys}
        return {key: Work(inputs, own, size) for key, (own, size) in costs.items()}

    def work_of_inputs(self, place: Place) -> float:
        """The estimated multiply-adds of a place's inputs.

        They are the exact output of the inputs, their statistics, and an equal share of the forward that reads the
        inputs of several layers.
        """
        n, source, layer = place.group.n, self.sources[place.source], place.layer
        assert layer is not None  # cells of places without a layer have a method of their own
        statistics = self.measures_statistics(place, layer)
        own = work_of_inputs(n, len(self.head_numbers(place)), statistics, self.queries(place))
        if not self.opens_model(place):
            return own
        layers = self._layers_together[place.source, place.group]
        # the forward stops behind the last layer that is read
        depth = 1 + max(layers)
        forward = work_of_forward(n, source.heads * source.facts["p"], depth, 0)
        return own + (forward + depth * work_of_inputs(n, source.heads, False)) / len(layers)

    def measures_statistics(self, place: Place, layer: int) -> bool:
        """Whether the statistics of a layer's inputs are requested, and not known from another run."""
        if not isinstance(self.request, Statistics) or not self.request.input_statistics:
            return False
        group, heads = place.group, self.head_numbers(place)
        return not self.sources[place.source].held(group.n, layer, group.window, heads, STATISTICS)

    def work_of_opening(self, places: Iterable[Place]) -> float:
        """The estimated multiply-adds of opening a model; 0 if none of these places opens one."""
        opened = "transformers.modeling_utils" in sys.modules  # the imports are most of that work
        return 0.0 if opened or not any(self.opens_model(place) for place in places) else OPENING

    def opens_model(self, place: Place) -> bool:
        """Whether the inputs of a place come from a forward of a model, and not from the cache."""
        assert place.layer is not None  # cells of places without a layer have a method of their own
        return not self.sources[place.source].held(place.group.n, place.layer, place.group.window)

    def queries(self, place: Place) -> int:
        """The number of queries that are measured at a place."""
        n = place.group.n
        return n if self._selection is None else len(self._selection.positions(n))

    @cached_property
    def _selection(self) -> Queries | None:
        chosen = self.request.queries if isinstance(self.request, SomeQueries) else None
        return None if chosen is None else Queries(chosen)

    @cached_property
    def _layers_together(self) -> dict[tuple[int, Group], list[int]]:
        """The layers that share a forward, by source and group."""
        layers: dict[tuple[int, Group], list[int]] = {}
        for place in self.by_place:
            layers.setdefault((place.source, place.group), []).append(place.layer or 0)
        return layers

    def source_name(self, place: Place) -> str:
        """A place's source in a plan: its weights, and the factor of its scores if there is one."""
        facts = self.sources[place.source].facts
        word, factor = str(facts.get("weights") or "file"), facts.get("scale_inputs")
        return word if factor is None else f"{word}, scores x {factor:g}"

    def head_numbers(self, place: Place) -> list[int]:
        """The numbers of the heads that are measured at a place."""
        heads = self.heads(place)
        return list(self.sources[place.source].head_numbers if heads is None else heads)


class OpenCells(Protocol):
    """The class of a command's cells, which builds them from a request."""

    @property
    def exclusive(self) -> bool: ...

    def __call__(self, request: RunRequest, notify: Callable[[str], None], timings: Timings) -> Cells: ...


class PlannedCells(Cells[T, C, I]):
    """Cells whose sources each have a plan.

    Args:
        parts: every source with its plan. cells: makes the cells of a plan, a group, a layer and a source's facts.
        more: entries of the manifest's plan besides methods, budgets and places.
    """

    def __init__(
        self,
        request: T,
        parts: Sequence[tuple[Any, ErrorPlan]],
        cells: Callable[[ErrorPlan, Group, int, Fields], Iterable[C]],
        more: Fields | None = None,
    ) -> None:
        self.parts, self._more = parts, more or {}
        facts = [identity_facts(source.facts) for source, _ in parts]
        omitted = [left_out(request.layer, source) for source, _ in parts]

        def cells_at(place: Place) -> list[C]:
            assert place.layer is not None  # places are made of layers below
            every = list(cells(self.plan_of(place), place.group, place.layer, facts[place.source]))
            return every if place.layer not in omitted[place.source] else _of_windows(every)

        places = [
            Place(number, group, layer)
            for number, (_, plan) in enumerate(parts)
            for group in plan.groups()
            for layer in plan.layers
        ]
        if any(omitted):  # a local layer without a method for it has no cell
            places = [place for place in places if cells_at(place)]
        super().__init__(request, [source for source, _ in parts], places, cells_at)

    def plan_of(self, place: Place) -> ErrorPlan:
        """The plan of a place's source."""
        return self.parts[place.source][1]

    def plan(self) -> JsonObject:
        return plan_of_sources(self.parts, self._more)

    def heads(self, place: Place) -> Sequence[int] | None:
        return self.plan_of(place).heads


def _of_windows(cells: Sequence[Any]) -> list[Any]:
    """The cells of a local layer: without the requested methods that have no form for sliding windows.

    If no requested method has one, there is no cell at all: references alone say nothing.
    """
    requested = [cell for cell in cells if cell.request is None or cell.request.requested]
    unfit = [cell for cell in requested if cell.request is not None and not cell.request.entry.takes_windows]
    return [] if len(unfit) == len(requested) else [cell for cell in cells if cell not in unfit]


def title(cell: Cell) -> str:
    """A cell's name, with its budget if it has one."""
    return cell.name + ("" if cell.d is None else f" d={cell.d}")


def plan_of_sources(parts: Iterable[tuple[Any, Any]], more: Fields | None = None) -> JsonObject:
    """A manifest's plan: one plan, or a plan for each of several weights."""
    # sources of the same weights differ in the scale of their scores, and share a plan
    plans = {source.facts.get("weights"): {**plan.facts(), **(more or {})} for source, plan in parts}
    return next(iter(plans.values())) if len(plans) == 1 else plans


def _share_of(request: RunRequest, sources: Sequence[Source], places: Iterable[Place]) -> set[Place] | None:
    """The places of the request's shard; None without a shard."""
    shard = parse_shard(request.shard)
    if shard is None:
        return None

    # places are dealt by a hash of their inputs, so that all machines deal alike, in whatever order they list places
    def hashed(place: Place) -> str:
        return cell_key(
            source=identity_facts(sources[place.source].facts),
            n=place.group.n,
            window=place.group.window,
            layer=place.layer,
        )

    return shard.dealt([(place.group.n, hashed(place), place) for place in places])


def record_of(cells: Cells, place: Place, cell: Cell, run: str, result: Fields) -> JsonObject:
    """The record of a cell with the measured fields ``result``."""
    record = {
        "schema": SCHEMA,
        "key": cell.key,
        "run": run,
        "command": cells.command,
        "source": cells.sources[place.source].facts,
        "window": place.group.window,
        "layer": place.layer,
        "heads": cells.head_numbers(place),
        "n": place.group.n,
        **cells.head(place, cell),
        "status": "ok",
        "reason": None,
        **cells.blank,
        **result,
    }
    return {"rows": [], **record, "kind": CELL, "options": options_text(record.get("options"))}


def bundles(places: Iterable[Place], most: int) -> list[tuple[Place, ...]]:
    """Consecutive places that share a forward of the model, in bundles of at most ``most`` places."""
    made = []
    for _, shared in groupby(places, key=lambda place: (place.source, place.group)):
        shared = list(shared)
        made += [tuple(shared[start : start + most]) for start in range(0, len(shared), most)]
    return made
