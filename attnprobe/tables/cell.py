"""Cells of tables as format strings over a row: ``{cond[median]:brief}``, ``{rank:g}/{size}``, ``{seconds:3ms}``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from .numbers import brief, per_cent, significant

UNITS = {"ms": 1e3, "MiB": 2.0**-20, "G": 1e-9}  # what a value in seconds, bytes or single pieces is multiplied by
NAMED: Mapping[str, Callable[[Any], str]] = {"brief": brief, "share": per_cent}


class Cell(Formatter):
    """Python's format strings, with the numbers of tables. A specification is one of

    - ``brief`` and ``share``: see `brief` and `per_cent`.
    - ``3``, ``3ms``, ``3MiB``, ``3G``: so many significant digits, in a unit of `UNITS`.
    - ``.2f``, ``+.2f``, ``g``, …: Python's own.
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            raise KeyError("null")
        if format_spec in NAMED:
            return NAMED[format_spec](value)
        if format_spec[:1].isdigit():
            return significant(value * UNITS.get(format_spec[1:], 1), int(format_spec[0]))
        return super().format_field(value, format_spec)


CELL = Cell()


def cell_text(templates: Sequence[str], row: Mapping[str, Any]) -> str:
    """A cell from format strings: the first, then those of the others whose fields the row has.

    It is empty where a field of the first is missing or null.

    >>> cell_text(["{rank:g}/{size}"], {"rank": 3.0, "size": 4}), cell_text(["{error:3}"], {"error": None})
    ('3/4', '')
    >>> cell_text(["{seconds:3ms}", " ± {spread:2ms}"], {"seconds": 0.5, "spread": None})
    '500'
    """
    texts = [_written(template, row) for template in templates]
    return "".join(text for text in texts if text) if texts[0] else ""


def _written(template: str, row: Mapping[str, Any]) -> str:
    try:
        return CELL.vformat(template, (), row)
    except (KeyError, IndexError, TypeError):  # a field is missing, or one that another is looked up in is null
        return ""
