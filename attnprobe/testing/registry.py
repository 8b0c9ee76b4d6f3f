"""The registry of properties, each a function of a `Case`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .cases import Case
from .inputs import DTYPES, SCORES


@dataclass(frozen=True)
class Property:
    """A property of methods.

    Attributes:
        name: its name on the command line. says: its statement. hold: the function that checks a case.
        scores, dtypes: the cases on which it is checked.
        tag: the tag of the methods that it applies to; None for all methods.
    """

    name: str
    says: str
    hold: Callable[[Case], None]
    scores: Sequence[float] = SCORES
    dtypes: Sequence[torch.dtype] = DTYPES
    tag: str | None = None


PROPERTIES: dict[str, Property] = {}


def in_kit(name: str, says: str, **where: Any) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """A decorator that adds a function to `PROPERTIES`. Further keywords are fields of `Property`."""

    def put(function: Callable[[Case], None]) -> Callable[[Case], None]:
        PROPERTIES[name] = Property(name, says, function, **where)
        return function

    return put
