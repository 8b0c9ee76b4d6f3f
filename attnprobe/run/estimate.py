"""The cells of a request without measuring any: which are finished, and an estimate for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from statistics import fmean
from time import perf_counter

import torch

from ..machine.timings import Timings
from ..qkv import QKV
from ..reference import exact_output
from .cells import Cells
from .costs import SAMPLE, SAMPLED, P, Work
from .folder import held_already, named_folder
from .topics.running import RunRequest

SECONDS = 0.25  # in which the speed of the machine is measured
BUSY = 1.4  # the mean time of a busy machine is above this multiple of the least time
NOTHING = Work(0.0, 0.0, 0.0)  # the work of a finished cell


@dataclass(frozen=True)
class CellEstimate:
    """One cell of a request.

    Attributes:
        place: weights (and a factor of the scores), n, window and layer (``all replaced`` if several layers are one
            cell).
        name: of the method or the matrix.
        work: as `costs` estimates it, with a share of the inputs of its place; the first unfinished cell has the work
            of opening the model too; 0 for a finished cell.
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
    """The cells of a request in their order, with estimates.

    Args:
        progress: called with the number of cells that are estimated, the number of all cells, and a label.
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
            # a cell may have a window or a layer of its own, as one that replaces several layers
            head = {"window": place.group.window, "layer": place.layer, **cells.head(place, cell)}
            layer = "all replaced" if head["layer"] is None else head["layer"]
            where = (cells.source_name(place), place.group.n, head["window"], layer)
            work = works.get(cell.key, NOTHING)
            # the first cell that is measured opens the model
            first = opening if work is not NOTHING else 0.0
            opening -= first
            estimates.append(CellEstimate(where, cell.name, cell.d, cell.key in done, work.total + first, work.bytes))
    return estimates


def speed(enough: float = inf) -> tuple[float, str]:
    """The work that this machine does per second by the clock, and whether it is busy with other programs, in words.

    The sample is the exact output of one head: it takes products, exponentials, memory and small operations. It is
    repeated for `SECONDS`, or until the speed is above ``enough``.
    """
    q, k, v = torch.randn(3, 1, SAMPLE, P)
    qkv = QKV(q, k, v)
    exact_output(qkv)  # not timed: torch starts its threads here
    times: list[float] = []
    per_second = 0.0
    while sum(times) < SECONDS and per_second <= enough:
        begin = perf_counter()
        exact_output(qkv)
        times.append(perf_counter() - begin)
        per_second = SAMPLED / fmean(times)
    state = "busy machine" if fmean(times) > BUSY * min(times) else "idle machine"
    return per_second, state
