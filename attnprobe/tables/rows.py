"""Types of what rows hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired

from typing_extensions import TypedDict

AnyRow = Mapping[str, Any]


class Statistics(TypedDict):
    """Statistics of some values (see `describe`)."""

    mean: float | None
    se: float | None
    median: float | None
    p10: float | None
    p90: float | None
    max: float | None
    count: int
    of: NotRequired[int]


class Quantiles(TypedDict):
    """Quantiles of some numbers (see `quantiles`)."""

    p10: float
    median: float
    p90: float
