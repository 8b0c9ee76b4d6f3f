"""``--dry-run`` of the measuring commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..machine.timings import duration
from ..measure.base import Experiment
from .progress import progress_bar
from .streams import BEGAN, answer

if TYPE_CHECKING:
    from ..run.estimate import CellEstimate

MOST_BUDGETS = 4  # up to so many budgets are listed one by one
MOST_LINES = 100  # lines of the table


def show_plan(experiment: Experiment, request: Any) -> None:
    """Print the cells of a request, a line per weights, n and layer, with an estimate of time and memory.

    The time until the run starts is measured: this command imports the same modules and resolves the same sources. All
    times are by the clock, with the other programs that run on the machine now.
    """
    from ..run.estimate import estimate_cells, speed

    opened = experiment.cells
    with progress_bar("listing the cells") as (progress, notify):
        cells = estimate_cells(opened, request, notify, progress)
    # measured and not estimated: most of it is imports, which this command has just done
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
    """The cells as a table, with a line for each weights, n and layer; a long table has its first lines."""
    from ..show.listing import UNLIMITED, listing
    from ..show.shown import stdout_width

    groups: dict[tuple[str, int, int | str], list[CellEstimate]] = {}
    for cell in cells:
        weights, n, _, layer = cell.place
        groups.setdefault((weights, n, layer), []).append(cell)
    rows = [
        {
            "weights": weights,
            "n": n,
            "layer": layer,
            "windows": len({cell.place[2] for cell in group}),
            "d": _budgets([cell.d for cell in group if cell.d is not None]),
            "cells": len(group),
            "done": sum(cell.done for cell in group),
            "of": ", ".join(dict.fromkeys(cell.name for cell in group)),
        }
        for (weights, n, layer), group in groups.items()
    ]
    notes = [f"the first {MOST_LINES} of {len(rows)} lines"] if len(rows) > MOST_LINES else []
    return listing("plan", rows[:MOST_LINES], "table", "Cells", notes, stdout_width(UNLIMITED))


def _budgets(budgets: Sequence[int]) -> str:
    """Budgets without repeats; a long list is shown by its first and last.

    >>> _budgets([8, 16, 8]), _budgets(range(1, 100))
    ('8, 16', '1, …, 99 (99 values)')
    """
    unique = list(dict.fromkeys(budgets))
    if len(unique) > MOST_BUDGETS:
        return f"{unique[0]}, …, {unique[-1]} ({len(unique)} values)"
    return ", ".join(map(str, unique))
