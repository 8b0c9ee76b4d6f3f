"""The cells of a request without measuring any: which are finished, and an estimate for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from ..timings import Timings
from .cells import Cells
from .costs import Work
from .folder import held_already

__all__ = ["CellEstimate", "estimate_cells", "seconds_of"]

NOTHING = Work(0.0, 0.0, 0.0)  # of a cell that is done


@dataclass(frozen=True)
class CellEstimate:
    """One cell of a request.

    Attributes:
        place: weights (and a factor of the scores), n, window and layer (``all`` if several layers are one cell).
        name: of the method or the matrix. work: the estimated float32 multiply-adds, with a share of the inputs of its
            place; 0 for a finished cell. bytes: the estimated memory besides Q, K and V; 0 for a finished cell.
    """

    place: tuple[str, int, int, int | str]
    name: str
    d: int | None
    done: bool
    work: float
    bytes: float


def estimate_cells(
    open_cells: Callable[..., Cells], request: Any, notify: Callable[[str], None] = lambda line: None
) -> list[CellEstimate]:
    """The cells of a request in their order.

    Raises:
        UsageError, SourceError: as a run would.
    """
    cells = open_cells(request, notify, Timings())
    earlier = {} if request.force else held_already(request, cells)
    done = {key for key, record in earlier.items() if not (request.retry_failed and record["status"] == "failed")}
    estimates = []
    for place, cells_here in cells.by_place.items():
        works = cells.works(place, {cell.key for cell in cells_here} - done)
        for cell in cells_here:
            head = {"window": place.group.window, "layer": place.layer, **cells.head(place, cell)}
            layer = "all" if head["layer"] is None else head["layer"]
            where = (cells.source_name(place), place.group.n, head["window"], layer)
            work = works.get(cell.key, NOTHING)
            estimates.append(CellEstimate(where, cell.name, cell.d, cell.key in done, work.total, work.bytes))
    return estimates


def seconds_of(cells: list[CellEstimate]) -> float:
    """The estimated seconds of the unfinished cells on this machine, from a matrix product timed now.

    A rough estimate, without the time to load the model. The cost of every method is taken as that of a low-rank one.
    """
    return sum(cell.work for cell in cells) / speed()


def speed() -> float:
    """Multiply-adds per second of a float32 product of 512 x 512 matrices, timed now for about 10 ms."""
    x = torch.randn(512, 512)
    x @ x
    begin = perf_counter()
    for _ in range(3):
        x @ x
    return 3 * 512.0**3 / (perf_counter() - begin)
