"""The choice of columns by their names, for ``--columns``."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from ..errors import UsageError, nearest
from .table import Column, Table


def spelling(name: str) -> str:
    """A column's name for comparison: letters and digits, with Greek letters as words.

    >>> spelling("d for ε"), spelling("error / V-Mean"), spelling("‖E‖₂"), spelling("D_for_epsilon")
    ('dforepsilon', 'errorvmean', 'e2', 'dforepsilon')
    """
    letters = []
    for character in unicodedata.normalize("NFKC", name):
        words = unicodedata.name(character, "").split()
        if words[:1] == ["GREEK"]:
            character = words[-1]
        if character.isalnum():
            letters.append(character.casefold())
    return "".join(letters) or name.strip()


def chosen_columns(tables: Sequence[Table], names: Sequence[str]) -> list[Table]:
    """The tables with the named columns in this order. Other key columns come first.

    A table with none of these columns is left out.
    """
    chosen = []
    for table in tables:
        places: list[int] = []
        for name in names:
            places += [place for place, column in enumerate(table.columns) if is_called(column, name)]
        if places:
            keys = [place for place, column in enumerate(table.columns) if column.key and place not in places]
            chosen.append(table.with_columns(list(dict.fromkeys([*keys, *places]))))
    return chosen


def is_called(column: Column, name: str) -> bool:
    """Whether this is the name of a column, or its heading."""
    return spelling(name) in (spelling(column.name), spelling(column.title))


def check_columns(columns: Iterable[Column], names: Iterable[str]) -> None:
    """Refuse an unknown column.

    Raises:
        UsageError: it lists the names that there are.
    """
    columns = list(columns)
    known = list(dict.fromkeys(column.name for column in columns if column.name))
    for name in names:
        if not any(is_called(column, name) for column in columns):
            near = nearest(name, known)
            choices = "" if "choose from" in near else f" Columns: {', '.join(known)}"
            raise UsageError(f"unknown column '{name}'{near}{choices}")
