"""Cells of tables as format strings over a row: ``{cond[median]:brief}``, ``{rank:g}/{size}``, ``{seconds:3ms}``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from string import Formatter
from typing import Any

from .numbers import brief, per_cent, significant

UNITS = {"ms": 1e3, "MiB": 2.0**-20, "G": 1e-9}  # what a value in seconds, bytes or single pieces is multiplied by
NAMED: Mapping[str, Callable[[Any], str]] = {"brief": brief, "share": per_cent}


def formatted(value: Any, specification: str) -> str:
    """A value as tables show it. The specification is one of

    - ``brief`` and ``share``: see `brief` and `per_cent`.
    - ``3``, ``3ms``, ``3MiB``, ``3G``: so many significant digits, in a unit of `UNITS`.
    - ``.2f``, ``+.2f``, ``g``, …: Python's own.
    """
    if specification in NAMED:
        return NAMED[specification](value)
    if specification[:1].isdigit():
        return significant(value * UNITS.get(specification[1:], 1), int(specification[0]))
    return format(value, specification)


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
    text = ""
    for literal, keys, specification in _parsed(template):
        text += literal
        if keys:
            value = row
            for key in keys:
                try:
                    value = value[key]
                except (KeyError, IndexError, TypeError):  # a field is missing, or null where it has parts
                    return ""
            if value is None:
                return ""
            text += formatted(value, specification)
    return text


@cache
def _parsed(template: str) -> list[tuple[str, list[Any], str]]:
    """The parts of a template: text, the keys of the field behind it (numbers are places in lists), its format."""
    return [
        (literal, [int(key) if key.isdigit() else key for key in re.findall(r"[^\[\]]+", name or "")], format or "")
        for literal, name, format, _ in Formatter().parse(template)
    ]
