"""The registry of properties, each a function of a `Case`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .cases import Case
from .inputs import DTYPES, SCORES

__all__ = ["PROPERTIES", "Property", "in_kit"]


@dataclass(frozen=True)
class Property:
    """A property: its name, its statement, the function that checks it, and the cases on which it is checked."""

    name: str
    says: str
    hold: Callable[[Case], None]
    scores: Sequence[float] = SCORES
    dtypes: Sequence[torch.dtype] = DTYPES
    tag: str | None = None


PROPERTIES: dict[str, Property] = {}


def in_kit(name: str, says: str, **where: Any) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """A decorator that enters a function in `PROPERTIES`. Further keywords are fields of `Property`."""

    def put(function: Callable[[Case], None]) -> Callable[[Case], None]:
        PROPERTIES[name] = Property(name, says, function, **where)
        return function

    return put
