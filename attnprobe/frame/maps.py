"""The maps of a run as a frame: the mean of each block of a matrix, from the files beside its rows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..files import MIB, Fields, read_regular, reading
from .read import PLACE, place_of, typed
from .records.file import exact_map_path, map_path, mapped
from .rows import CellLine

if TYPE_CHECKING:
    from pandas import DataFrame

LARGEST = 64 * MIB  # of a file
EXACT = "exact"  # the name of the matrix that methods approximate


def maps_of(cells: Sequence[Fields], folder: Path, labels: Mapping[str, str]) -> DataFrame:
    """A row for each block of each map: the place of its cell, ``head``, ``row`` and ``column`` from 0, ``weight``.

    The exact matrix of a place stands before its methods, under the name `EXACT`.

    Args:
        cells: of the run. folder: of the run. labels: the label of each cell's source, by the cell's key.
    """
    import pandas as pd

    frames = []
    known: set[Path] = set()
    for cell in mapped(cells):
        path, exact = map_path(folder, cell["key"]), exact_map_path(folder, cell)
        columns = place_of(cell, labels[cell["key"]])
        if exact not in known and exact.exists():  # the methods of a place share the file of the exact matrix
            known.add(exact)
            frames.append(_blocks(exact, cell, {**columns, "name": EXACT, "method": None, "options": None, "d": None}))
        if path.exists():
            frames.append(_blocks(path, cell, columns))
    if not frames:
        return pd.DataFrame(columns=[*PLACE, "head", "row", "column", "weight"])
    return typed(pd.concat(frames, ignore_index=True), CellLine).astype({"head": "Int64", "weight": "Float64"})


def _blocks(path: Path, cell: Fields, place: dict[str, Any]) -> DataFrame:
    """The blocks of one file, each with the columns of its place."""
    import numpy as np
    import pandas as pd

    with reading(path, UsageError, ": not a map; delete it, and the next run writes it again"):
        # without pickle: a run's folder may come from anywhere
        blocks = np.load(io.BytesIO(read_regular(path, LARGEST)), allow_pickle=False)  # (h, b_q, b_k)
        if blocks.ndim != 3 or len(blocks) != len(cell["heads"]):
            raise ValueError(f"it has the shape {blocks.shape}, not one of {len(cell['heads'])} heads")
    heads, rows, columns = (part.ravel() for part in np.indices(blocks.shape))
    numbers = {"head": np.asarray(cell["heads"])[heads], "row": rows, "column": columns, "weight": blocks.ravel()}
    return pd.DataFrame({**place, **numbers}, columns=[*PLACE, *numbers])
