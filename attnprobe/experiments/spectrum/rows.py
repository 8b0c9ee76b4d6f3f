"""The rows of ``attnprobe spectrum``: a row for each head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NotRequired

from typing_extensions import TypedDict

from ...tables.labels import with_source
from ...tables.numbers import method_label
from ...tables.rows import part
from ...tables.statistics import fields_of

if TYPE_CHECKING:
    from .record import SpectrumRecord


class Head(TypedDict):
    """The matrix and head of a spectrum."""

    of: str
    kind: str
    weights: str | None
    source: str | None
    layer: int
    window: int
    head: int
    n: int
    status: str
    reason: str | None


class Spectrum(TypedDict, total=False):
    """The values of one matrix, of one kind."""

    singular_values: list[float] | None
    eigenvalues: list[float | list[float]] | None


class Numbers(TypedDict):
    """Further numbers of a spectrum."""

    options: Mapping[str, object]
    target: NotRequired[str | None]
    d: int | None
    size: int | None
    complete: bool | None
    log_scale: float | None
    duplicates: int | None
    seed: int | None
    scale_inputs: float
    stable_rank: float | None
    entropy_rank: float | None
    participation_ratio: float | None
    rank_90: int | None
    rank_95: int | None
    rank_99: int | None
    d_spectral: Mapping[str, int | None] | None
    d_frobenius: Mapping[str, int | None] | None
    frobenius: float | None
    error: list[float | None] | None
    upper: list[float | None] | float | None
    passes: int | None
    closed: bool | None
    draws_hash: str | None
    seconds: float | None


class SpectrumRow(Head, Spectrum, Numbers):
    """The values of one matrix of one head, and the numbers made of them."""


FIELDS = fields_of(SpectrumRow)


def spectrum_rows(records: Sequence[SpectrumRecord]) -> list[SpectrumRow]:
    """One row per record, and so per head: its values, and the numbers computed from them.

    ``source`` tells apart the sources of a run.
    """
    rows: list[SpectrumRow] = []
    for record, source in with_source(records):
        row: SpectrumRow = {**part(Head, record), **_spectrum(record), **part(Numbers, record)}
        row["scale_inputs"] = source["scale_inputs"]
        row["source"] = source["source"]
        if record.get("method") is None:
            del row["target"]  # matrices do not depend on the target of methods
        rows.append(row)
    return rows


def _spectrum(record: SpectrumRecord) -> Spectrum:
    if record["kind"] == "eigen":
        return {"eigenvalues": record.get("eigenvalues")}
    return {"singular_values": record.get("singular_values")}


def moduli(row: SpectrumRow) -> list[float]:
    """``σ_i``, or ``|λ_i|``, by rank."""
    values = row.get("singular_values") or row.get("eigenvalues") or []
    return [math.hypot(*value) if isinstance(value, (list, tuple)) else abs(value) for value in values]


def matrix_label(row: SpectrumRow) -> str:
    """The name of a row's matrix, or of its method with options and budget."""
    budget = "" if row.get("d") is None else f" d={row['d']}"
    return method_label({"method": row["of"], "options": row.get("options") or {}}) + budget
