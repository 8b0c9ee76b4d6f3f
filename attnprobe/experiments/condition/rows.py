"""The rows of ``attnprobe condition``: rows per matrix and head, and their summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NotRequired, TypeGuard, cast

from typing_extensions import ReadOnly, TypedDict

from ...records.shapes import by_name
from ...tables.labels import with_source
from ...tables.rows import State, Where, part
from ...tables.statistics import fields_of

if TYPE_CHECKING:
    from .record import ConditionRecord, Matrix

ERROR = "output_spectral_relative"


class Cell(TypedDict):
    """The cell of a row."""

    method: str | None
    options: Mapping[str, object]
    target: str | None
    layer: int
    window: int
    n: int
    d: int | None


class Placed(Cell, Where, State):
    """The place of a row."""


class ConditionRow(Placed):
    """A matrix of one head. The row of a cell without matrices has neither matrix nor head."""

    matrix: ReadOnly[str | None]
    head: ReadOnly[int | None]
    error: ReadOnly[NotRequired[float | None]]
    sensitivity: NotRequired[Sequence[float | None]]


class Condition(TypedDict):
    """Condition numbers, as in the record."""

    cond: float | None
    flag: str | None
    rank: ReadOnly[int | None]
    cond_at: Mapping[str, float | None]
    cond_eff: float | None
    duplicates: float | None


class Numbers(TypedDict, total=False):
    """Numbers that only some matrices have, as in the record."""

    cond_lower: float | None
    cond_upper: float | None
    gradient: float | None
    gradient_six: float | None
    residuals: Sequence[float | None]
    eigen_min: float | None
    eigen_max: float | None
    lemma3: str | None
    start: str | None


class KnownRow(ConditionRow, Condition):
    """A matrix of one head."""


class MeasuredRow(KnownRow, Numbers):
    """A matrix of one head whose condition number is known."""

    matrix: str
    head: int
    error: float | None
    rank: int
    size: int
    inverted: bool


FIELDS = fields_of(MeasuredRow)


def is_measured(row: ConditionRow) -> TypeGuard[MeasuredRow]:
    """Whether the condition number of the row's matrix is known."""
    return row.get("rank") is not None


def condition_rows(records: Sequence[ConditionRecord]) -> list[ConditionRow]:
    """The rows of the JSON contract: one per matrix and head; a cell without matrices is one row with its reason."""
    rows: list[ConditionRow] = []
    for record, source in with_source(records):
        place: Placed = {**part(Cell, record), **source, **part(State, record)}
        measured = {one["matrix"]: one for one in record["matrices"]}
        changes = record["metrics"].get("sensitivity") or {}
        for name in dict.fromkeys([*measured, *changes]):
            for index in range(len(record["heads"])):
                row = _row(record, place, name, measured.get(name), index)
                rows.append({**row, "sensitivity": changes[name][index]} if name in changes else row)
        if not measured and not changes:
            rows.append({"matrix": None, **place, "head": None})
    return rows


def _row(record: ConditionRecord, place: Placed, name: str, measured: Matrix | None, index: int) -> ConditionRow:
    """One matrix of one head."""
    errors = record["metrics"].get(ERROR)
    numbers = {} if measured is None else by_name(measured["metrics"], index)
    row: KnownRow = {
        "matrix": name,
        **place,
        "head": record["heads"][index],
        "error": errors[index] if errors else None,
        **part(Condition, numbers),
    }
    if measured is None:
        return row
    others = {key: numbers[key] for key in sorted(numbers) if key not in row}
    facts = {"size": measured["size"], "inverted": measured["inverted"]}
    start = {"start": measured["start"]} if "start" in measured else {}
    return cast(MeasuredRow, {**row, **facts, **start, **others})
