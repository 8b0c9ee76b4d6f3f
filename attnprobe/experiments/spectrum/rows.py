"""What records of ``attnprobe spectrum`` say: a row for each head."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ...tables.labels import identity, scale_of, source_labels
from ...tables.numbers import method_label

__all__ = ["matrix_label", "moduli", "spectrum_rows"]

Row = Any
FIRST = ("of", "kind", "weights", "layer", "window", "head", "n", "status", "reason")
FACTS = (
    "options",
    "target",
    "d",
    "size",
    "complete",
    "log_scale",
    "duplicates",
    "seed",
    "scale_inputs",
    "stable_rank",
    "entropy_rank",
    "participation_ratio",
    "rank_90",
    "rank_95",
    "rank_99",
    "d_spectral",
    "d_frobenius",
    "frobenius",
    "error",
    "upper",
    "passes",
    "closed",
    "draws_hash",
    "seconds",
)


def spectrum_rows(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per record, which is one head: its values, and the numbers made of them.

    ``weights`` tells sources apart; where several share the word, it says what else differs.
    """
    records = list(records)
    labels = source_labels(records)
    rows = []
    for record in records:
        values = "eigenvalues" if record["kind"] == "eigen" else "singular_values"
        names = [*FIRST, values, *FACTS]
        row = {name: record.get(name) for name in names}
        row["scale_inputs"] = scale_of(record.get("source"))
        row["weights"] = labels[identity(record.get("source"))] or row["weights"]
        if record.get("method") is None:
            row.pop("target")  # a matrix is what it is, whatever methods shall stand for
        rows.append(row)
    return rows


def moduli(row: Row) -> list[float]:
    """``σ_i``, or ``|λ_i|``, by rank."""
    values = row.get("singular_values") or row.get("eigenvalues") or []
    return [math.hypot(*value) if isinstance(value, (list, tuple)) else abs(value) for value in values]


def matrix_label(row: Row) -> str:
    """What the spectrum is of: a matrix, or a method with its options and budget."""
    budget = "" if row.get("d") is None else f" d={row['d']}"
    return method_label({"method": row["of"], "options": row.get("options")}) + budget
