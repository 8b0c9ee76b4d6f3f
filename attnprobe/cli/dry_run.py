"""``--dry-run`` of the measuring commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..experiments.base import Experiment
from ..timings import duration
from .progress import progress_bar
from .streams import BEGAN, answer

if TYPE_CHECKING:
    from ..run.estimate import CellEstimate

MOST_BUDGETS = 4  # that are listed one by one
MOST_LINES = 100  # of the table


def show_plan(experiment: Experiment, request: Any) -> None:
    """Print the cells of a request, a line per weights, n and layer, with an estimate of time and memory.

    The time until the run starts is measured: this command imports the same modules and resolves the same sources. All
    times are by the clock, with the other programs that run on the machine now.
    """
    from ..run.estimate import estimate_cells, speed

    opened = experiment.cells
    with progress_bar("listing the cells") as (progress, notify):
        cells = estimate_cells(opened, request, notify, progress)
    start = monotonic() - BEGAN
    answer(plan_table(cells))
    left = [cell for cell in cells if not cell.done]
    memory = max((cell.bytes for cell in cells), default=0)
    share = ""
    if request.shard is not None:
        all_cells = estimate_cells(opened, replace(request, shard=None))
        share = f"shard {request.shard}: {len(cells)} of {len(all_cells)} cells\n"
    done = "" if request.out is None else f", {len(cells) - len(left)} done in {request.out}"
    answer(f"{share}{len(cells)} cells{done}")
    if left:
        per_second, state = speed()
        seconds = start + sum(cell.work for cell in left) / per_second
        answer(
            f"about {duration(seconds)} ({state}), {duration(start)} of it before the first cell; "
            f"{memory / 2**20:.0f} MiB in addition to the model, Q, K and V"
        )


def plan_table(cells: Sequence[CellEstimate]) -> str:
    """The cells as a table, a line per weights, n and layer; of many lines the first."""
    from ..tables.console import Header
    from ..tables.table import Column, gathered, table_of
    from ..tables.terminal import plain_tables

    def place(row: Sequence[CellEstimate]) -> tuple[str, int, int | str]:
        weights, n, _, layer = row[0].place
        return weights, n, layer

    columns = [
        Column("weights", lambda row: place(row)[0]),
        Column("n", lambda row: str(place(row)[1])),
        Column("layer", lambda row: str(place(row)[2])),
        Column("windows", lambda row: str(len({cell.place[2] for cell in row}))),
        Column("d", lambda row: _budgets([cell.d for cell in row if cell.d is not None])),
        Column("cells", lambda row: str(len(row))),
        Column("done", lambda row: str(sum(cell.done for cell in row))),
        Column("of", lambda row: ", ".join(dict.fromkeys(cell.name for cell in row))),
    ]
    rows = gathered(cells, lambda cell: place([cell]))
    notes = [f"the first {MOST_LINES} of {len(rows)} lines"] if len(rows) > MOST_LINES else []
    return plain_tables([table_of("", rows[:MOST_LINES], columns, notes)], [], Header()).lstrip("\n")


def _budgets(budgets: Sequence[int]) -> str:
    """Budgets without repeats; a long list is shown by its first and last.

    >>> _budgets([8, 16, 8]), _budgets(range(1, 100))
    ('8, 16', '1, …, 99 (99 values)')
    """
    unique = list(dict.fromkeys(budgets))
    if len(unique) > MOST_BUDGETS:
        return f"{unique[0]}, …, {unique[-1]} ({len(unique)} values)"
    return ", ".join(map(str, unique))
