"""What a request would measure: its cells without measuring any, what is done already, and about what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from ..timings import Timings
from .cells import Cells
from .folder import held_already

__all__ = ["Listed", "listed", "seconds_of"]


@dataclass(frozen=True)
class Listed:
    """One cell that a request asks for.

    Attributes:
        place: weights (and a factor of the scores), n, window and layer (``all`` where several are one cell).
        name: of the method or the matrix. work: about how many float32 multiply-adds it takes, its part of what its
            place's cells share included.
        bytes: about what it holds beside Q, K and V.
    """

    place: tuple[str, int, int, int | str]
    name: str
    d: int | None
    done: bool
    work: float
    bytes: float


def listed(
    open_cells: Callable[..., Cells], request: Any, notify: Callable[[str], None] = lambda line: None
) -> list[Listed]:
    """Every cell of a request in its order.

    Raises:
        UsageError, SourceError: as a run would.
    """
    cells = open_cells(request, notify, Timings())
    kept = {} if request.force else held_already(request, cells)
    done = {key for key, record in kept.items() if not (request.retry_failed and record["status"] == "failed")}
    found = []
    for place, some in cells.listed.items():
        for cell in some:
            head = {"window": place.group.window, "layer": place.layer, **cells.head(place, cell)}
            layer = "all" if head["layer"] is None else head["layer"]
            where = (cells.source_name(place), place.group.n, head["window"], layer)
            work, size = cells.work(place, cell)
            work += cells.work_of_inputs(place) / len(some)
            found.append(Listed(where, cell.name, cell.d, cell.key in done, work, size))
    return found


def seconds_of(cells: list[Listed]) -> float:
    """About how long the cells that are not done take here, from the speed of a matrix product measured now.

    A guess to plan by: loading the model comes on top, and a method's own cost is taken for that of a low rank.
    """
    return sum(cell.work for cell in cells if not cell.done) / speed()


def speed() -> float:
    """Multiply-adds a second of a float32 product of 1024 x 1024 matrices, measured now."""
    x = torch.randn(1024, 1024)
    x @ x
    begin = perf_counter()
    for _ in range(3):
        x @ x
    return 3 * 1024.0**3 / (perf_counter() - begin)
