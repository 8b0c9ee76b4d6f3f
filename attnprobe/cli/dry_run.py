"""``attnprobe sweep --dry-run``."""

from __future__ import annotations

from typing import Any

import click

from .progress import duration, note

__all__ = ["show_plan"]


def show_plan(request: Any) -> None:
    """Print what a request would measure, a line per weights, n and layer, and about what that takes."""
    from ..report import plan_table
    from ..sweep import listed, seconds_of

    cells = listed(request, note)
    rows: dict[tuple[str, int, int], dict[str, Any]] = {}
    for cell in cells:
        weights, n, window, layer = cell.place
        row = rows.setdefault((weights, n, layer), {"windows": set(), "names": {}, "d": {}, "cells": 0, "done": 0})
        row["windows"].add(window)
        row["names"][cell.name] = row["d"][cell.d] = None
        row["cells"] += 1
        row["done"] += cell.done
    click.echo(plan_table(rows))
    left = [cell for cell in cells if not cell.done]
    memory = max((cell.bytes for cell in left), default=0)
    click.echo(f"{len(cells)} cells, {len(cells) - len(left)} done in {request.out}")
    if left:
        click.echo(f"about {duration(seconds_of(cells))} and {memory / 2**20:.0f} MiB beside the model, Q, K and V")
