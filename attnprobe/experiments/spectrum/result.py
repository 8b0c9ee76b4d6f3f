"""The sentence that states the result of ``attnprobe spectrum``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ...tables.labels import source_heading
from ...tables.results import lost, sentences
from ...tables.rows import Sourced, part
from ...tables.table import gathered
from .rows import SpectrumRow, matrix_label


def spectrum_result(rows: Sequence[SpectrumRow]) -> str:
    """The number of leading values that hold nine tenths of each matrix, at the largest n."""
    known = [row for row in rows if row["status"] == "ok" and row.get("rank_90") is not None]
    n = max((row["n"] for row in known), default=0)
    groups = gathered([row for row in known if row["n"] == n], _name)
    ranks = [f"{median(row['rank_90'] or 0 for row in group):g} of {_name(group[0])}" for group in groups]
    weight = "Σ|λ|" if any(row["kind"] == "eigen" for row in known) else "Σσ²"
    share = f"90 % of {weight} lie in so many leading values (n = {n}, medians over heads): {', '.join(ranks)}."
    return sentences(share if ranks else "", lost(rows, matrix_label))


def _name(row: SpectrumRow) -> str:
    heading = source_heading(part(Sourced, row))
    return matrix_label(row) + (f" ({heading})" if heading else "")
