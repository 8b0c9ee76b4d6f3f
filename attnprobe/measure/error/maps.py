"""The maps of a run: block averages of the exact matrix and of each method's matrix, stored beside the rows."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...frame.records.file import (
    exact_map_path,
    identity_facts,
    map_path,
    mapped,
    missing_maps,
    missing_maps_path,
    write_bytes,
    write_json,
)
from ...machine.timings import Timings
from ...methods import approximate
from ...metrics import attention_maps
from ...operators import Operator
from ...qkv import QKV
from ...reference import exact
from ...run.limits import attempt
from ...run.plan import Cell, ErrorPlan, Group


def keep_maps(
    plan: ErrorPlan,
    source: Any,
    records: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    timings: Timings,
    progress: Callable[[float, int, str], None] = lambda done, total, label: None,
) -> dict[str, str]:
    """Write ``maps/KEY.npy`` in ``folder`` for each cell that is drawn (see `mapped`), and one for each exact matrix.

    A map needs a method's operator and no metric. If an earlier run measured a cell, its method runs again with the
    same draws, and the cell's rows do not change. Existing maps are not made again. Files hold float32
    (h, b_q, b_k), see `attention_maps`. Cost: a forward for each n, a run of each method, and a product with each
    matrix.

    Args:
        records: those of the plan's cells. Cells that did not run have no map.
        progress: called before each map with the number of maps done, their total and a label.

    Returns:
        The reason of each missing map, by the key of its cell.
    """
    why: dict[str, str] = {}
    ran = {record["key"]: record for record in mapped(records) if record["status"] in ("ok", "diverged")}
    missing = _cells_without_map(plan, source, ran, folder)
    total = sum(len(cells) for layers in missing.values() for cells in layers.values())
    done = 0
    for n, layers in missing.items():
        progress(done, total, f"reading n={n} for maps")
        # window 0 alone: a figure shows the first window
        captured = source.qkv(n, list(layers), 0)
        for layer, cells in layers.items():
            # popped, so that the memory of a layer is freed when its maps are done
            qkv = captured.pop(layer)
            qkv = qkv if plan.heads is None else qkv.select(plan.heads)
            for cell in cells:
                progress(done, total, f"map of n={n} layer {layer} {cell.request.label}")
                with timings("maps"):
                    # methods of one layer share the map of the exact matrix
                    path = exact_map_path(folder, ran[cell.key])
                    if not path.exists():
                        write_bytes(path, _bytes(exact(qkv, plan.target)))
                    reason = _write_map(cell, qkv, plan.target, map_path(folder, cell.key))
                if reason is not None:
                    why[cell.key] = reason
                done += 1
    progress(total, total, "")
    _keep_reasons(folder, ran, why)
    return why


def _keep_reasons(folder: Path, ran: Mapping[str, Any], why: Mapping[str, str]) -> None:
    """Write the reasons of missing maps to the folder, because a report of the run shows them too.

    Reasons of cells that this run did not have stay as they are.
    """
    known = missing_maps(folder)
    reasons = {key: reason for key, reason in known.items() if key not in ran} | {**why}
    if reasons != known:
        write_json(missing_maps_path(folder), reasons)


def _cells_without_map(
    plan: ErrorPlan, source: Any, ran: Mapping[str, Mapping[str, Any]], folder: Path
) -> dict[int, dict[int, list[Cell]]]:
    """The cells that ran and lack a map, by n and layer.

    Args:
        ran: the records of the cells that ran and are drawn, by key.
    """
    facts = identity_facts(source.facts)
    absent = {
        key
        for key, record in ran.items()
        if not (map_path(folder, key).exists() and exact_map_path(folder, record).exists())
    }
    missing: dict[int, dict[int, list[Cell]]] = {}
    for n in plan.n:
        for layer in plan.layers:
            cells = [cell for cell in plan.cells(Group(n, 0), layer, facts) if cell.key in absent]
            if cells:
                missing.setdefault(n, {})[layer] = cells
    return missing


def _write_map(cell: Cell, qkv: QKV, target: str, path: Path) -> str | None:
    """Write the map of a cell. Return the reason if the cell has no map."""
    if path.exists():
        return None
    blocks = b""
    # the cell's rows do not change if the method fails now; the figure shows the reason
    with attempt() as tried:
        approx = approximate(cell.request.entry, qkv, cell.d, seed=cell.seed, target=target, **cell.request.options)
        if approx.operator is None:
            return approx.no_operator
        blocks = _bytes(approx.operator)
    if tried.ok:
        write_bytes(path, blocks)
    return tried.reason


def _bytes(operator: Operator) -> bytes:
    """The contents of a file with the map of an operator."""
    file = io.BytesIO()
    np.save(file, attention_maps(operator).float().cpu().numpy())
    return file.getvalue()
