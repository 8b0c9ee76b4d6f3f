"""Groups of cells: one layer of one window at one n, whose Q, K and V are captured where they are measured."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from ..metrics import repeated_rows
from ..qkv import QKV
from ..records.file import SCHEMA
from ..timings import Timings
from .inputs import InputKeeper, keeper_of
from .plan import ErrorPlan, Group
from .provenance import device_name, versions

__all__ = ["VERSIONS", "Cells", "GroupWork", "Place", "PlannedCells", "bundles", "head_of"]

Show = Callable[[str], None]
VERSIONS = ("torch", "transformers", "numpy")


@dataclass(frozen=True)
class Place:
    """Where a group of cells is: the number of its source, its n and window, its layer."""

    source: int
    group: Group
    layer: int


class Cell(Protocol):
    """What is one record."""

    key: str


class Cells:
    """What a command measures of a request: its sources, and the cells of every place.

    A process of its own makes them from the request, as ``open(request, notify, timings)``, where ``open`` is the
    class of a command. What they find there must be what they find here.

    Attributes:
        command: its name. listed: the cells of every place in the order in which they are measured.
        may_be_empty: whether a run counts in which no requested cell could run.
    """

    command: ClassVar[str]
    may_be_empty: ClassVar[bool] = False
    request: Any
    sources: Sequence[Any]
    listed: Mapping[Place, Sequence[Any]]

    def plan(self) -> dict[str, Any]:
        """What is measured, as a manifest shows it."""
        raise NotImplementedError

    def whole(self) -> set[str]:
        """The keys of all cells of the request, those of other shards included."""
        raise NotImplementedError

    def heads(self, place: Place) -> Sequence[int] | None:
        """The heads that are measured at a place; None is all."""
        raise NotImplementedError

    def head(self, place: Place, cell: Any) -> dict[str, Any]:
        """What a cell's record says beside its place before anything is measured."""
        raise NotImplementedError

    def measured(self, place: Place, qkv: QKV, done: Collection[str], show: Show) -> Iterator[tuple[Any, dict]]:
        """The cells of a place that are not done, in their order, each with what was measured.

        ``qkv`` is of the place's heads; ``show`` takes what is measured just now, in words.
        """
        raise NotImplementedError

    def failed(self, cell: Any, reason: str) -> dict[str, Any]:
        """What the record of a cell that could not be measured says in the place of what was."""
        raise NotImplementedError


class PlannedCells(Cells):
    """Cells of sources that have a plan each.

    Args:
        parts: every source with its plan. cells: of a plan and its source, by group and layer.
        more: what a manifest's plan says beside methods, budgets and places.
    """

    def __init__(
        self,
        request: Any,
        parts: Sequence[tuple[Any, ErrorPlan]],
        cells: Callable[[ErrorPlan, Any], Mapping[tuple[Group, int], Sequence[Any]]],
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.request, self.parts, self._cells, self._more = request, parts, cells, more or {}
        self.sources = [source for source, _ in parts]
        self.listed = {
            Place(number, *where): some
            for number, (source, plan) in enumerate(parts)
            for where, some in cells(plan, source).items()
        }

    def plan_of(self, place: Place) -> ErrorPlan:
        """The plan of a place's source."""
        return self.parts[place.source][1]

    def plan(self) -> dict[str, Any]:
        """That of all sources, or by the word of their weights; factors of scores share theirs."""
        told = {source.facts.get("weights"): {**plan.told(), **self._more} for source, plan in self.parts}
        return next(iter(told.values())) if len(told) == 1 else told

    def whole(self) -> set[str]:
        every = (self._cells(replace(plan, share=None), source) for source, plan in self.parts)
        return {cell.key for listed in every for some in listed.values() for cell in some}

    def heads(self, place: Place) -> Sequence[int] | None:
        return self.plan_of(place).heads

    def measured(self, place: Place, qkv: QKV, done: Collection[str], show: Show) -> Iterator[tuple[Any, dict]]:
        """One cell after the other."""
        for cell in self.listed[place]:
            if cell.key not in done:
                name = f"n={place.group.n} layer {place.layer} {cell.name}"
                show(name)
                with torch.no_grad():
                    found = self.one(place, cell, qkv, lambda label, name=name: show(f"{name} {label}"))
                yield cell, found

    def one(self, place: Place, cell: Any, qkv: QKV, show: Show) -> dict[str, Any]:
        """What was measured of one cell, where cells share nothing but Q, K and V."""
        raise NotImplementedError


def head_of(
    cells: Cells, place: Place, cell: Any, run: str, heads: Sequence[int], duplicates: int | None
) -> dict[str, Any]:
    """What a record says before anything is measured."""
    return {
        "schema": SCHEMA,
        "key": cell.key,
        "run": run,
        "command": cells.command,
        "source": cells.sources[place.source].facts,
        "window": place.group.window,
        "layer": place.layer,
        "heads": list(heads),
        "n": place.group.n,
        "duplicates": duplicates,
        **cells.head(place, cell),
    }


def bundles(places: Iterable[Place], most: int) -> list[tuple[Place, ...]]:
    """Consecutive places that share a forward of the model, at most ``most`` together."""
    found = []
    for _, some in groupby(places, key=lambda place: (place.source, place.group)):
        some = list(some)
        found += [tuple(some[at : at + most]) for at in range(0, len(some), most)]
    return found


@dataclass(frozen=True)
class GroupWork:
    """Measures bundles of places in the process that it is started in, which makes Q, K, V and exact outputs itself.

    What it is told of a bundle are the keys of the cells that are done. It sends ``show`` with what is measured,
    ``inputs`` with records of input statistics, ``record``, and ``timings`` with seconds by stage.

    Args:
        open: makes the `Cells` of the request; a class of a module, as it is pickled.
        run: the run's name. folder: the run's, which is read alone.
        threads: of torch in a process of its own; None leaves them.
        devices: processes take turns with them; empty leaves them the request's.
        here: cells that were made already with their timings, for this process alone.
    """

    open: Callable[[Any, Callable[[str], None], Timings], Cells]
    request: Any
    run: str
    folder: Path
    threads: int | None = None
    devices: tuple[str, ...] = ()
    here: tuple[Cells, Timings] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "here": None}

    def start(self, number: int, send: Callable[[str, Any], None]) -> tuple[dict[str, Any], Callable[..., None]]:
        cells, timings = self.here or self._opened(number)
        inputs = keeper_of(self.request, self.folder, self.run, timings)
        inputs.write = lambda record: send("inputs", record)

        def do(bundle: Sequence[Place], done: Collection[str]) -> None:
            measure(cells, bundle, done, self.run, inputs, send)
            if self.here is None:
                send("timings", dict(timings.seconds))
                timings.seconds.clear()

        return {} if self.here else facts_of(cells), do

    def _opened(self, number: int) -> tuple[Cells, Timings]:
        """The cells of the request, on the device that is this process's."""
        request, timings = self.request, Timings()
        torch.set_num_threads(self.threads or torch.get_num_threads())
        if self.devices:
            device = self.devices[number % len(self.devices)]
            if device.startswith("cuda"):
                torch.cuda.set_device(device)
            request = replace(request, source=replace(request.source, device=device))
        return self.open(request, lambda line: None, timings), timings


def facts_of(cells: Cells) -> dict[str, Any]:
    """What a process says of itself: its machine, device and threads, and the versions that may change a number."""
    device, found = device_name(str(cells.sources[0].device)), versions()
    return {
        "host": platform.node(),
        "device": device,
        "threads": torch.get_num_threads(),
        **{name: found.get(name) for name in VERSIONS},
    }


def measure(
    cells: Cells,
    bundle: Sequence[Place],
    done: Collection[str],
    run: str,
    inputs: InputKeeper,
    send: Callable[[str, Any], None],
) -> None:
    """Measure the cells of a bundle that are not done: Q, K and V are captured once for all of it."""
    group = bundle[0].group
    source = cells.sources[bundle[0].source]
    wanted = [place for place in bundle if any(cell.key not in done for cell in cells.listed[place])]
    if not wanted:
        return
    send("show", f"reading n={group.n}, window {group.window}")
    captured = source.qkv(group.n, [place.layer for place in wanted], group.window)
    for place in wanted:
        qkv, heads = captured.pop(place.layer), cells.heads(place)
        qkv = qkv if heads is None else qkv.select(heads)
        inputs.keep(source, group.n, group.window, place.layer, qkv)
        duplicates = repeated_rows(qkv)
        for cell, found in cells.measured(place, qkv, done, lambda label: send("show", label)):
            send("record", {**head_of(cells, place, cell, run, qkv.heads, duplicates), **found})
