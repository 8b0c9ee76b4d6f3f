"""Types of rows that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypeVar, cast

from typing_extensions import ReadOnly, TypedDict

AnyRow = Mapping[str, Any]
T = TypeVar("T")


def part(kind: type[T], row: AnyRow) -> T:
    """The fields of a type, in its order, from a row or record that may have more; None for a missing one.

    >>> part(Named, {"n": 8, "options": {}, "method": "mss"})
    {'method': 'mss', 'options': {}}
    """
    return cast(T, {name: row.get(name) for name in kind.__annotations__})


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


class Named(TypedDict):
    """A method with its options; None for a row without a method."""

    method: ReadOnly[str | None]
    options: ReadOnly[Mapping[str, object]]


class Budgeted(Named):
    """A method at a budget."""

    d: ReadOnly[int | None]


class Method(Budgeted):
    """A method at a budget, of a family or a reference."""

    family: ReadOnly[str | None]
    reference: ReadOnly[bool | None]


class Sourced(TypedDict):
    """The source of Q, K and V: its weights, and a label if the run has several sources."""

    weights: ReadOnly[NotRequired[str | None]]
    source: ReadOnly[str | None]


class Where(Sourced):
    """The source of Q, K and V, and the factor of their scores."""

    weights: ReadOnly[str | None]
    scale_inputs: ReadOnly[float]


class State(TypedDict):
    """The status of a row's cells, and the reason if it is not ok."""

    status: str
    reason: str | None


class Placed(Named, Sourced, State):
    """The place of a row that gates judge, and its state."""

    requested: ReadOnly[bool]
    target: ReadOnly[str | None]
    layer: ReadOnly[int | None]
    n: ReadOnly[int | None]
    d: ReadOnly[int | None]
    at: ReadOnly[NotRequired[Mapping[str, object]]]
    values: ReadOnly[NotRequired[int]]
    cells: ReadOnly[NotRequired[int]]
    scale_inputs: ReadOnly[NotRequired[float]]
    fragile: ReadOnly[NotRequired[Mapping[str, Sequence[str]]]]
    judges: ReadOnly[NotRequired[Sequence[str]]]
    theorem: ReadOnly[NotRequired[str]]
    task: ReadOnly[NotRequired[str]]


class Judged(Placed):
    """A row that gates judge."""

    metrics: ReadOnly[Mapping[str, Statistics]]


class MethodRow(Judged, Method):
    """A row of a table of methods."""

    weights: ReadOnly[str | None]
    heads: ReadOnly[int]
    windows: ReadOnly[int]
    repeats: ReadOnly[NotRequired[int]]
    duplicates: ReadOnly[NotRequired[int]]
    matrix_skipped: ReadOnly[NotRequired[str | None]]
