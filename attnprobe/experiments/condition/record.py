"""The records of ``attnprobe condition``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from ...records.shapes import Count, Number, PerHead, Place, Shape, by_name, said, unequal

ERROR = "output_spectral_relative"  # the error that stands beside a condition number
BAD_ROWS = "bad_rows"  # of this error


class Numbers(TypedDict):
    """The numbers of one matrix, each with one entry for each head."""

    cond: PerHead
    flag: list[str | None]
    rank: list[Count | None]
    cond_eff: PerHead
    cond_at: list[dict[str, Number | None]]
    duplicates: list[Count | None]
    gradient: NotRequired[PerHead]
    gradient_six: NotRequired[PerHead]
    residuals: NotRequired[list[PerHead]]
    eigen_min: NotRequired[PerHead]
    eigen_max: NotRequired[PerHead]
    lemma3: NotRequired[list[str | None]]


class Matrix(TypedDict):
    """One matrix of all heads."""

    matrix: Annotated[str, said("its name: A, B, C, B~ or a core")]
    inverted: Annotated[bool, said("whether the method inverts it")]
    size: Annotated[Count, said("its number of rows")]
    metrics: Annotated[Numbers, said("its numbers by name, one entry for each head")]
    start: NotRequired[Annotated[str | None, said("the start of the iteration of its inverse")]]


class Metrics(TypedDict, total=False):
    """Numbers that belong to no single matrix."""

    output_spectral_relative: PerHead
    bad_rows: list[Count]
    sensitivity: dict[str, list[PerHead]]


class ConditionRecord(Place):
    """The condition numbers of the exact matrices, or of the matrices of one method at one budget."""

    method: NotRequired[Annotated[str | None, said("the method; null for the exact matrices")]]
    matrices: Annotated[list[Matrix], said("the matrices, with their condition numbers")]
    metrics: Annotated[
        Metrics,
        said("the error and bad rows of each head, and by matrix how it changes with Q and K (sensitivity)"),
    ]


def _problems(record: ConditionRecord) -> Iterator[str]:
    heads, metrics = record["heads"], record["metrics"]
    for number, matrix in enumerate(record["matrices"]):
        where, half = f"matrices[{number}].metrics.", str(max(1, matrix["size"] // 2))
        yield from unequal(where, matrix["metrics"], heads)
        if any(half not in at for at in matrix["metrics"]["cond_at"]):
            yield f"field {where}cond_at: no entry of {half}, half the size"
    yield from unequal("metrics.", {name: value for name, value in metrics.items() if name != "sensitivity"}, heads)
    yield from unequal("metrics.sensitivity.", metrics.get("sensitivity", {}), heads)


def _rows(record: ConditionRecord) -> Iterator[dict[str, Any]]:
    errors, bad = record["metrics"].get(ERROR), record["metrics"].get(BAD_ROWS)
    changes = record["metrics"].get("sensitivity", {})
    matrices: dict[str | None, Matrix | None] = {one["matrix"]: one for one in record["matrices"]}
    matrices |= dict.fromkeys(name for name in changes if name not in matrices)
    if not matrices and errors is None:
        yield {"matrix": None, "head": None}
        return
    for name, matrix in (matrices or {None: None}).items():
        for index, head in enumerate(record["heads"]):
            row: dict[str, Any] = {"matrix": name, "head": head, "error": errors and errors[index]}
            row |= {BAD_ROWS: bad[index]} if bad else {}
            if matrix is not None:
                row |= {field: value for field, value in matrix.items() if field != "metrics"}
                row |= by_name(matrix["metrics"], index)
            yield row | ({"sensitivity": changes[name][index]} if name in changes else {})


COLUMNS = {
    "matrix": "the matrix; a cell has a row for each matrix and head",
    "size": "its number of rows",
    "inverted": "whether the method inverts it",
    "start": "the start of the iteration of its inverse: norms or columns",
    "error": "the relative spectral output error of the method",
    "bad_rows": "its rows whose normaliser is not positive or lost to rounding, unless a guard replaces them",
    "NUMBER": "each number of the matrix, by its name: `cond`, `flag`, `rank`, `cond_eff`, `duplicates`, …",
    "cond_at[k]": "σ₁/σ_k, a column for each k",
    "residuals": "the list of residuals of the iteration, one for each step",
    "sensitivity": "the list of relative changes of the matrix per relative change of Q and K",
}
SHAPE = Shape(ConditionRecord, _problems, _rows, COLUMNS)
