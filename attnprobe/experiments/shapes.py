"""The type of each command's records."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..records.read import ReadRecords, read_typed
from . import EXPERIMENTS

if TYPE_CHECKING:
    from ..records.shapes import Record, Shape


@cache
def shape_of(command: str) -> Shape[Any] | None:
    """The type of a command's records; None if `EXPERIMENTS` lacks the command."""
    if command not in EXPERIMENTS:
        return None
    return import_module(f".{command}.record", __package__).SHAPE


def read_run(path: str | os.PathLike[str]) -> ReadRecords[Record]:
    """The records of a run's folder or of a file, each checked against the type of its command; see `read_typed`."""
    return read_typed(path, shape_of)
