"""The cells of a request without measuring any: which are finished, and an estimate for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter

import torch

from ..timings import Timings
from .cells import Cells
from .costs import Work
from .folder import held_already, named_folder
from .topics.running import RunRequest

SAMPLE = 0.25  # seconds in which the speed of the machine is measured
BUSY = 1.4  # times the best product: a mean beyond it is the work of other programs
NOTHING = Work(0.0, 0.0, 0.0)  # of a cell that is done


@dataclass(frozen=True)
class CellEstimate:
    """One cell of a request.

    Attributes:
        place: weights (and a factor of the scores), n, window and layer (``all`` if several layers are one cell).
        name: of the method or the matrix.
        work: the estimated float32 multiply-adds, with a share of the inputs of its place, and for the first cell what
            opens the model; 0 for a finished cell.
        bytes: the estimated memory besides Q, K and V; 0 for a finished cell.
    """

    place: tuple[str, int, int, int | str]
    name: str
    d: int | None
    done: bool
    work: float
    bytes: float


def estimate_cells(
    open_cells: Callable[..., Cells],
    request: RunRequest,
    notify: Callable[[str], None] = lambda line: None,
    progress: Callable[[float, int, str], None] = lambda done, total, label: None,
) -> list[CellEstimate]:
    """The cells of a request in their order. ``progress`` gets the cells done, their number and a place.

    Raises:
        UsageError, SourceError: as a run would.
    """
    if request.out is not None:
        named_folder(request.out)
    cells = open_cells(request, notify, Timings())
    earlier = {} if request.force else held_already(request, cells)
    done = {key for key, record in earlier.items() if not (request.retry_failed and record["status"] == "failed")}
    estimates: list[CellEstimate] = []
    missing = [place for place, cells_here in cells.by_place.items() if {cell.key for cell in cells_here} - done]
    opening = cells.work_of_opening(missing)
    total = sum(map(len, cells.by_place.values()))
    for place, cells_here in cells.by_place.items():
        progress(len(estimates), total, f"estimating n={place.group.n} layer {place.layer}")
        works = cells.works(place, {cell.key for cell in cells_here} - done)
        for cell in cells_here:
            head = {"window": place.group.window, "layer": place.layer, **cells.head(place, cell)}
            layer = "all" if head["layer"] is None else head["layer"]
            where = (cells.source_name(place), place.group.n, head["window"], layer)
            work = works.get(cell.key, NOTHING)
            first = opening if work is not NOTHING else 0.0
            opening -= first
            estimates.append(CellEstimate(where, cell.name, cell.d, cell.key in done, work.total + first, work.bytes))
    return estimates


@dataclass(frozen=True)
class Speed:
    """How fast this machine is now, beside the other programs that run on it.

    Attributes:
        products: float32 multiply-adds per second. busy: whether other programs take a good part of it.
    """

    products: float
    busy: bool

    @property
    def in_words(self) -> str:
        """The state of the machine.

        >>> Speed(1e10, busy=True).in_words
        'busy machine'
        """
        return "busy machine" if self.busy else "idle machine"


def speed() -> Speed:
    """The speed of float32 products of 512 x 512 matrices, by the clock: other programs on the machine count."""
    x = torch.randn(512, 512)
    torch.mm(x, x)  # starts the threads
    times: list[float] = []
    while sum(times) < SAMPLE:
        begin = perf_counter()
        torch.mm(x, x)
        times.append(perf_counter() - begin)
    return Speed(512.0**3 / fmean(times), busy=fmean(times) > BUSY * min(times))
