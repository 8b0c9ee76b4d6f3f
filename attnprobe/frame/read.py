"""Cells as tidy frames of pandas, one for each kind of rows."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any

from ..errors import unknown
from ..files import Fields
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
STATE = ("status", "reason")  # which a row without its own has from its cell
WIDE = ("seed",)  # may have more than 64 bits


def frame_of(cells: Sequence[Fields], types: RowTypes, kind: str, labels: Mapping[str, str]) -> DataFrame:
    """The rows of one kind, in the order of their cells; of kind ``cell`` a row for each cell.

    Columns have nullable types: `pandas.NA` is not measured, infinity is infinite. A cell whose
    state none of its rows has, as one that was skipped, has a row of the kind without a head too.

    Args:
        labels: the label of each cell's source, by the cell's key.

    Raises:
        UsageError: the command has no rows of this kind.
    """
    import pandas as pd

    if kind not in (CELL, *types.kinds):
        raise unknown("kind of rows", kind, [CELL, *types.kinds])
    more = [name for name in types.cell.model_fields if name not in CellLine.model_fields]
    places = [place_of(cell, labels[cell["key"]]) | {name: cell.get(name) for name in more} for cell in cells]
    left = typed(pd.DataFrame(places, columns=[*PLACE, *more]), types.cell)
    if kind == CELL:
        return left
    model = types.kinds[kind]
    own = [name for name in model.model_fields if name not in ("kind", "key")]
    rows, of_cell = [], []
    for number, cell in enumerate(cells):
        of_kind = [row for row in cell["rows"] if row["kind"] == kind]
        lost = cell["status"] != "ok" and not any(row.get("status") == cell["status"] for row in of_kind)
        if not cell["rows"] or lost and (not of_kind or "status" in own):
            of_kind.append({})
        rows += of_kind
        of_cell += [number] * len(of_kind)
    needed = {HEAD, *(name for name, field in model.model_fields.items() if field.is_required())}
    there = {name for row in rows for name in row}
    right = typed(pd.DataFrame(rows, columns=[name for name in own if name in there or name in needed]), model)
    left = left.take(of_cell).reset_index(drop=True)
    of_both = [name for name in left if name in own]  # a row's own goes first, as the time of a round
    for name in set(of_both) & {*STATE}:
        right[name] = right[name].fillna(left[name]) if name in right else left[name]
    return pd.concat([left.drop(columns=of_both), right], axis=1)


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
    for one in _members(annotation):
        if one in DTYPES:
            return DTYPES[one]
        if typing.get_origin(one) is typing.Literal:
            return "string"
    return None


def _members(annotation: Any) -> Iterable[Any]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    if origin in (typing.Union, UnionType):
        return [member for one in typing.get_args(annotation) for member in _members(one)]
    return [annotation]
