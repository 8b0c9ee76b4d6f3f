"""The cells of a request without measuring any: which are finished, and an estimate for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import thread_time

import torch

from ..timings import Timings
from .cells import Cells
from .costs import Work
from .folder import held_already, named_folder
from .topics.running import RunRequest

PRODUCTS = 24  # timed for the speed of the machine
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


def seconds_of(cells: list[CellEstimate], speed: float) -> float:
    """The estimated seconds of the unfinished cells at a speed."""
    return sum(cell.work for cell in cells) / speed


def speed() -> float:
    """Multiply-adds per second of a float32 product of 512 x 512 matrices: the best of some, for about 60 ms.

    The time is that of the processor in this thread, so that other programs on the machine do not count.
    """
    x = torch.randn(512, 512)
    times = []
    for _ in range(PRODUCTS):
        begin = thread_time()
        torch.mm(x, x)
        times.append(thread_time() - begin)
    return 512.0**3 / min(times)


def in_gflops(speed: float) -> str:
    """A speed in words; a multiply-add is two operations.

    >>> in_gflops(17.6e9)
    '35 GFLOP/s'
    """
    return f"{2e-9 * speed:.0f} GFLOP/s"
