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

VERSIONS = ("torch", "transformers", "numpy")  # of packages that can change a number


@dataclass(frozen=True)
class GroupWork:
    """The work of one process: it builds the cells and their inputs, and measures bundles of places.

    The messages that it sends, by kind:

    - ``show``: the label of the current cell. ``note``: a line for a person.
    - ``begun``: the finished share of the work of cells without a record, by key.
    - ``limit``: the `Limit` under which cells are measured from now on, or None.
    - ``record``: the record of a cell. ``inputs``: a record of input statistics.
    - ``timings``: seconds by stage.

    Args:
        open: makes the `Cells` of the request; a class of a module, so that it can be pickled.
        run: the run's name. folder: the run's folder, which is only read.
        threads: of torch in a worker process; None leaves torch's own number.
        devices: dealt to the processes in turn; without any, a process takes the device of the request.
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
        """For pickle: the cells hold open models, so that each process builds its own."""
        return {**vars(self), "made": None}

    def start(self, number: int, send: Send) -> tuple[JsonObject, Callable[..., None]]:
        """Build the cells in this process. Returns the facts of the process, and what measures a bundle.

        Args:
            number: of the process, which chooses its device. send: takes the messages.
        """
        cells, timings = self.made or self._opened(number, send)
        cells.send = send
        inputs = InputKeeper(self.request, self.folder, self.run, timings)
        # one process writes all files; this one sends it the records
        inputs.write = lambda record: send("inputs", record)

        def do(bundle: Sequence[Place], done: Done) -> None:
            _measure(cells, bundle, done, self.run, inputs)
            if self.made is None:  # else the timings are those of the main process already
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
            # an exclusive command has the device's name in the keys of its cells, so that the request keeps it
            if not self.open.exclusive:
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
        # the inputs are read: that part of the cells' work is done
        cells.send("begun", {cell.key: 0.0 for cell in cells.by_place[place]})
        for cell, result in cells.measured(place, inputs, done):
            cells.send("record", record_of(cells, place, cell, run, {**facts, **result}))
