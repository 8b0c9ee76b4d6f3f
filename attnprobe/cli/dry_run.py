"""``--dry-run`` of the commands that measure."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

from ..experiments.base import Experiment
from ..timings import duration
from .streams import answer, note

__all__ = ["show_plan"]


def show_plan(experiment: Experiment, request: Any, begin: float) -> None:
    """Print what a request asks for, a line per weights, n and layer, and about what that takes.

    The time until a run starts is what it takes here: the same imports, and the same sources found.

    Args:
        begin: when the command began, by `perf_counter`.
    """
    from ..run.estimate import listed, seconds_of
    from ..tables.terminal import plan_table

    opened = experiment.cells()
    cells = listed(opened, request, note)
    rows: dict[tuple[str, int, int | str], dict[str, Any]] = {}
    for cell in cells:
        weights, n, window, layer = cell.place
        row = rows.setdefault((weights, n, layer), {"windows": set(), "names": {}, "d": {}, "cells": 0, "done": 0})
        row["windows"].add(window)
        row["names"][cell.name] = row["d"][cell.d] = None
        row["cells"] += 1
        row["done"] += cell.done
    start = perf_counter() - begin
    answer(plan_table(rows))
    left = [cell for cell in cells if not cell.done]
    memory = max((cell.bytes for cell in left), default=0)
    share = ""
    if request.shard is not None:
        whole = listed(opened, replace(request, shard=None))
        share = f"shard {request.shard}: {len(cells)} of {len(whole)} cells\n"
    done = "" if request.out is None else f", {len(cells) - len(left)} done in {request.out}"
    answer(f"{share}{len(cells)} cells{done}")
    if left:
        answer(
            f"about {duration(start + seconds_of(cells))}, {duration(start)} of it before the first cell, and "
            f"{memory / 2**20:.0f} MiB in addition to the model, Q, K and V"
        )
