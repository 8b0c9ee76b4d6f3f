"""Types of the compared cells and of the rows of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

Verdict = Literal["same", "better", "worse", "undecided", "only in A", "only in B"]
ONLY: dict[str, Verdict] = {"A": "only in A", "B": "only in B"}


class ComparedCell(TypedDict):
    """The compared fields of a record of errors."""

    method: str
    status: str
    source: Mapping[str, Any]
    heads: Sequence[int]
    metrics: Mapping[str, Any]
    command: NotRequired[str]
    options: NotRequired[Mapping[str, Any] | None]
    target: NotRequired[str | None]
    n: NotRequired[int]
    d: NotRequired[int | None]
    layer: NotRequired[int | None]
    window: NotRequired[int]
    seed: NotRequired[int | None]
    reason: NotRequired[str | None]
    requested: NotRequired[bool]
    reference: NotRequired[bool]
    seconds: NotRequired[float | None]
    draws_hash: NotRequired[str | None]
    method_file: NotRequired[Mapping[str, Any] | None]
    matrix_tol: NotRequired[float | None]
    matrix_open: NotRequired[Sequence[bool | None] | None]


class TimedCell(TypedDict):
    """The compared fields of a record of times."""

    command: NotRequired[str]
    method: str
    requested: bool
    source: Mapping[str, Any]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    options: NotRequired[Mapping[str, Any] | None]
    target: NotRequired[str | None]
    n: NotRequired[int]
    d: NotRequired[int | None]
    layer: NotRequired[int | None]
    backward: NotRequired[bool]


class ComparedTime(TypedDict):
    """The compared fields of a row of times."""

    method: str
    options: Mapping[str, Any]
    target: str | None
    n: int
    d: int | None
    layer: int | None
    weights: str | None
    reference: bool
    status: str
    seconds: float | None
    seconds_spread: float | None
    ratio_to_exact: float | None
    ratio_spread: float | None
    noise_floor: float | None
    peak_bytes: float | None


class Place(TypedDict):
    """The place of a row; ``source`` has the facts in which the runs' sources differ."""

    method: str
    options: Mapping[str, Any]
    target: str | None
    n: int | None
    d: int | None
    layer: int | None
    weights: str | None
    source: Mapping[str, Any]
    reference: bool


class Numbers(TypedDict):
    """The two values of a row, with their difference and ratio."""

    a: float | None
    b: float | None
    difference: float | None
    se: float | None
    difference_in_se: float | None
    ratio: float | None


class Change(Place, Numbers):
    """A row of a comparison: the values of both runs, the test, and the verdict."""

    metric: str | None
    statistic: str | None
    test: str | None
    freedom: float | None
    p: float | None
    p_adjusted: float | None
    verdict: Verdict | None
    paired: str | None
    cells: int
    values: NotRequired[int]
    windows: NotRequired[int]
    heads: NotRequired[int]
    seeds_a: Sequence[int] | None
    seeds_b: Sequence[int] | None
    status_a: NotRequired[str | None]
    status_b: NotRequired[str | None]
    reason: str | None


def alone(row: Change, run: str, missing: bool, why: str) -> Change:
    """A row of cells that only one run has.

    Args:
        row: its place. run: ``A`` or ``B``. missing: whether the cells were requested and no cell of their place is
            compared; such a row is undecided. why: the cells in words.
    """
    if missing:
        return {**row, "verdict": "undecided", "reason": ONLY[run]}
    return {**row, "verdict": ONLY[run], "reason": why}
