"""Rows of a comparison, which begin as the place of a cell or row of a run."""

from __future__ import annotations

from typing import Any

from ..tables.long import Row
from ..tables.rows import AnyRow

ONLY = {"A": "only in A", "B": "only in B"}
PLACE = ("method", "options", "target", "n", "d", "layer", "weights", "source", "reference")
NUMBERS = ("a", "b", "difference", "se", "difference_in_se", "low", "high", "ratio")
FIELDS = (
    *PLACE,
    *NUMBERS,
    *("metric", "statistic", "test", "freedom", "p", "p_adjusted", "verdict", "paired"),
    *("cells", "values", "windows", "heads", "seeds_a", "seeds_b", "status_a", "status_b", "reason"),
)


def blank(first: AnyRow, **known: Any) -> Row:
    """A row without a comparison, at the place of a cell or row of a run; its further fields are null."""
    place = {name: first.get(name) for name in PLACE}
    place |= {"options": dict(first.get("options") or {}), "reference": bool(first.get("reference"))}
    if "pair" in first:
        place |= {"method": first["pair"], "options": {}, "reference": False}
    return {**dict.fromkeys(FIELDS), **place, **known}


def numbers(a: float | None, b: float | None, se: float | None = None) -> Row:
    """The two values of a row, with their difference and ratio."""
    difference = None if a is None or b is None else b - a
    return {
        "a": a,
        "b": b,
        "difference": difference,
        "se": se,
        "difference_in_se": difference / se if difference is not None and se else None,
        "ratio": b / a if b is not None and a else None,
    }


def alone(row: Row, run: str, missing: bool, why: str) -> Row:
    """A row of cells that only one run has.

    Args:
        row: its place. run: ``A`` or ``B``. missing: whether the cells were requested and no cell of their place is
            compared; such a row is undecided. why: the cells in words.
    """
    if missing:
        return {**row, "verdict": "undecided", "reason": ONLY[run]}
    return {**row, "verdict": ONLY[run], "reason": why}
