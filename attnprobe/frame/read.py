"""Cells as tidy frames of pandas, one for each kind of rows."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any

from ..errors import unknown
from ..files import Fields
from . import Rows
from .rows import CELL, HEAD, CellLine, RowTypes

if TYPE_CHECKING:
    from pandas import DataFrame

# the columns of every frame, from the line of a cell; `weights` and `scale_inputs` are facts of its source
PLACE = (
    *("command", "key", "source", "weights", "scale_inputs", "name", "method", "options", "target"),
    *("requested", "reference", "family", "n", "d", "window", "layer", "repeat", "seed"),
    *("status", "reason", "duplicates", "seconds"),
)
DTYPES = {int: "Int64", float: "Float64", bool: "boolean", str: "string"}
STATE = ("status", "reason")  # a row without a status of its own has its cell's
WIDE = ("seed",)  # columns whose numbers may have more than 64 bits


def frame_of(cells: Sequence[Fields], types: RowTypes, kind: str, labels: Mapping[str, str]) -> DataFrame:
    """The rows of one kind, in the order of their cells. The kind ``cell`` has a row for each cell.

    Columns have nullable types: `pandas.NA` is not measured, infinity is infinite. If no row of a cell has the cell's
    status, the cell has a further row without a head. A skipped cell, which has no rows, is an example.

    Args:
        labels: the label of each cell's source, by the cell's key.

    Raises:
        UsageError: the command has no rows of this kind.
    """
    import pandas as pd

    if kind not in (CELL, *types.kinds):
        raise unknown("kind of rows", kind, [CELL, *types.kinds])
    more = [name for name in types.cell.model_fields if name not in CellLine.model_fields]
    cell_facts = [place_of(cell, labels[cell["key"]]) | {name: cell.get(name) for name in more} for cell in cells]
    of_cells = typed(pd.DataFrame(cell_facts, columns=[*PLACE, *more]), types.cell)
    if kind == CELL:
        return of_cells
    model = types.kinds[kind]
    own = [name for name in model.model_fields if name not in ("kind", "key")]
    rows, numbers = [], []  # the rows, and the number of each row's cell
    for number, cell in enumerate(cells):
        of_kind = [row for row in cell["rows"] if row["kind"] == kind]
        # without a row that has the status, a table would show the cell as sound, or not at all
        lost = cell["status"] != "ok" and not any(row.get("status") == cell["status"] for row in of_kind)
        if not cell["rows"] or lost and (not of_kind or "status" in own):
            of_kind.append({})
        rows += of_kind
        numbers += [number] * len(of_kind)
    # a metric that no row has is no column, so that tables leave it out
    needed = {HEAD, *(name for name, field in model.model_fields.items() if field.is_required())}
    known = {name for row in rows for name in row}
    of_rows = typed(pd.DataFrame(rows, columns=[name for name in own if name in known or name in needed]), model)
    of_cells = of_cells.take(numbers).reset_index(drop=True)
    # the row's own value replaces the cell's, such as the time of a round
    in_both = [name for name in of_cells if name in own]
    for name in set(in_both) & {*STATE}:
        of_rows[name] = of_rows[name].fillna(of_cells[name]) if name in of_rows else of_cells[name]
    return pd.concat([of_cells.drop(columns=in_both), of_rows], axis=1)


def found_by(frame: Rows, query: str) -> Rows:
    """The rows that a query finds. pandas prepares every column of a frame for a query, so it gets the named ones."""
    named = [name for name in dict.fromkeys(re.findall(r"\w+", query)) if name in frame]
    found = frame[named].eval(query).to_numpy(bool, na_value=False)
    return frame if found.all() else frame.loc[found]  # a selection copies every column


def place_of(cell: Fields, label: str) -> dict[str, Any]:
    """The columns `PLACE` of a cell."""
    source, method, options = cell.get("source") or {}, cell.get("method"), cell.get("options")
    return {
        **{name: cell.get(name) for name in PLACE},
        "source": label,
        "weights": source.get("weights"),
        "scale_inputs": float(source.get("scale_inputs", 1)),
        "name": f"{method}:{options}" if options else method,
        "requested": cell.get("requested", True),
        "reference": cell.get("reference", False),
    }


def typed(frame: DataFrame, model: type) -> DataFrame:
    """The frame with the nullable types of its model's fields."""
    fields = {field.alias or name: field.annotation for name, field in getattr(model, "model_fields", {}).items()}
    fields |= {"source": str, "weights": str, "scale_inputs": float, "name": str}
    dtypes = {name: dtype for name in frame if (dtype := dtype_of(fields.get(name))) and name not in WIDE}
    return frame.astype(dtypes)


def dtype_of(annotation: Any) -> str | None:
    """The nullable type of pandas for a field; None for one that stays as it is.

    >>> dtype_of(float | None), dtype_of(int), dtype_of(list[int])
    ('Float64', 'Int64', None)
    """
    for member in _members(annotation):
        if member in DTYPES:
            return DTYPES[member]
        if typing.get_origin(member) is typing.Literal:
            return "string"
    return None


def _members(annotation: Any) -> Iterable[Any]:
    """The types of a union, or the type itself, without the comments of ``Annotated``."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    if origin in (typing.Union, UnionType):
        return [member for part in typing.get_args(annotation) for member in _members(part)]
    return [annotation]
