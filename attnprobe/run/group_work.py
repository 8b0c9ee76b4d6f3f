"""Work on groups of cells in one process, and the facts of that process."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..files import JsonObject
from ..machine.timings import Timings
from .cells import Cells, Done, OpenCells, Place, Send, record_of
from .inputs import InputKeeper
from .provenance import device_name, versions
from .topics.running import RunRequest

VERSIONS = ("torch", "transformers", "numpy")


@dataclass(frozen=True)
class GroupWork:
    """Measures bundles of places in its process, which builds the cells and their inputs.

    It gets the keys of the finished cells of a bundle. It sends ``show`` with the current cell, ``note`` with a line
    for a person, ``inputs`` with records of input statistics, ``record``, and ``timings`` with seconds by stage.

    Args:
        open: makes the `Cells` of the request; a class of a module, as it is pickled.
        run: the run's name. folder: the run's, which is only read.
        threads: of torch in a worker process; None does not set them.
        devices: dealt to the processes in turn; empty is the device of the request.
        made: cells that exist already, with their timings, for this process only.
    """

    open: OpenCells
    request: RunRequest
    run: str
    folder: Path
    threads: int | None = None
    devices: tuple[str, ...] = ()
    made: tuple[Cells, Timings] | None = None

    def __getstate__(self) -> JsonObject:
        return {**vars(self), "made": None}

    def start(self, number: int, send: Send) -> tuple[JsonObject, Callable[..., None]]:
        cells, timings = self.made or self._opened(number, send)
        cells.send = send
        inputs = InputKeeper(self.request, self.folder, self.run, timings)
        inputs.write = lambda record: send("inputs", record)

        def do(bundle: Sequence[Place], done: Done) -> None:
            _measure(cells, bundle, done, self.run, inputs)
            if self.made is None:
                send("timings", dict(timings.seconds))
                timings.seconds.clear()

        return {} if self.made else _facts_of(cells), do

    def _opened(self, number: int, send: Send) -> tuple[Cells, Timings]:
        """The cells of the request on the device of this process."""
        request, timings = self.request, Timings()
        torch.set_num_threads(self.threads or torch.get_num_threads())
        if self.devices:
            device = self.devices[number % len(self.devices)]
            if device.startswith("cuda"):
                torch.cuda.set_device(device)
            if not self.open.exclusive:  # else the device has the name that the run's keys contain
                request = replace(request, device=device)
        return self.open(request, lambda line: send("note", line), timings), timings


def _facts_of(cells: Cells) -> JsonObject:
    """The facts of a process: machine, device, threads, and versions of packages that can change a number."""
    device, installed = device_name(str(cells.sources[0].device)), versions()
    return {
        "host": platform.node(),
        "device": device,
        "threads": torch.get_num_threads(),
        **{name: installed.get(name) for name in VERSIONS},
    }


def _measure(cells: Cells, bundle: Sequence[Place], done: Done, run: str, keeper: InputKeeper) -> None:
    """Measure the unfinished cells of a bundle; their inputs are read once for the bundle."""
    places = [place for place in bundle if any(cell.key not in done for cell in cells.by_place[place])]
    if not places:
        return
    for place, inputs, facts in cells.inputs(places, keeper):
        cells.send("begun", {cell.key: 0.0 for cell in cells.by_place[place]})
        for cell, result in cells.measured(place, inputs, done):
            cells.send("record", record_of(cells, place, cell, run, {**facts, **result}))
