"""Plain lists of facts in every format: methods, theorems, checks, the cells of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from ..files import Fields
from .table import KEY, Column, Table

UNLIMITED = 10_000  # the width of a table whose lines are not folded


def listing(
    name: str,
    rows: Sequence[Fields],
    format: str,
    title: str = "",
    notes: Sequence[str] = (),
    width: int = UNLIMITED,
) -> str:
    """Rows with the same fields as a text in a format, a column for each field; JSON and CSV have the rows unchanged.

    Args:
        name: of the list, as JSON names it. title: above a table. notes: below it. width: of a table on a terminal.

    >>> print(listing("methods", [{"name": "window", "d": 8}], "csv"))
    name,d
    window,8
    """
    from pandas import DataFrame

    from ..frame.records.file import SCHEMA, strict_json
    from ..grammar.foreign import printable_within
    from .grid import Selection, grids
    from .writers import csv, jsonl, latex, markdown, terminal

    rows = printable_within(list(rows))
    if format == "json":
        return strict_json({"schema": SCHEMA, "command": name, "rows": rows}, indent=2)
    frame = DataFrame(rows).convert_dtypes() if rows else DataFrame()
    if format == "jsonl":
        return jsonl(frame).rstrip("\n")
    if format == "csv":
        return csv(frame).rstrip("\n")
    frame = frame.map(lambda value: value if value is None or isinstance(value, (str, int, float)) else str(value))
    columns = tuple(Column(field, field, digits=None, priority=KEY, name=field) for field in frame)
    table = Table(name, title or name.capitalize(), columns=columns, notes=lambda rows: notes)
    filled = grids(Selection.of(frame, table)) if len(frame) else []
    if format == "latex":
        return latex(filled).rstrip("\n")
    if format in ("md", "github"):
        return markdown(filled).strip()
    return terminal(filled, width).strip()
