"""Rows and tables of `attnprobe spectrum`: one row per head in data formats, medians over heads in tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from ...tables.numbers import significant
from ...tables.statistics import quantiles
from ...tables.table import Column, Table, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .result import spectrum_result
from .rows import FIELDS, SpectrumRow, matrix_label, moduli, spectrum_rows

if TYPE_CHECKING:
    from .record import SpectrumRecord

Line = Sequence[SpectrumRow]
Cell = Callable[[Line], str]

SHARES = (90, 95, 99)
MARKS = {"failed": "✗", "diverged": "✗", "skipped": "–"}


def view(recorded: Recorded[SpectrumRecord]) -> View:
    """The view of the records of ``attnprobe spectrum``."""
    from .figures import spectrum_figures

    rows = spectrum_rows(recorded.records)
    complete = any(row["complete"] for row in rows)
    remark = "" if complete else "no cumulative figure: only leading values are known"
    draw = lambda folder: spectrum_figures(rows, recorded.drawing, folder)
    return View(
        "spectrum",
        recorded.header,
        rows,
        spectrum_tables(rows),
        spectrum_legend(rows) if rows else (),
        COLUMNS,
        FIELDS,
        title="Spectra of attention matrices",
        result=spectrum_result(rows),
        figures={"spectrum": Figure("spectrum", draw, "no spectrum to draw", remark)},
    )


def spectrum_tables(rows: Sequence[SpectrumRow]) -> list[Table]:
    """The tables of each n: the ranks, then the values."""
    tables = []
    for group in grouped_by(rows, "n"):
        lines = _lines(group)
        broken = reasons(group, lambda row: f"{matrix_label(row)}, layer {row['layer']}, head {row['head']}")
        caption = _caption(group)
        names = [MATRIX, WEIGHTS, LAYER] if len({row["source"] for row in group}) > 1 else [MATRIX, LAYER]
        tables.append(table_of(f"{caption} · effective ranks", lines, [*names, *_ranks(group)], broken))
        tables.append(table_of(f"{caption} · values by rank", lines, [*names, *_values(group)]))
    return tables


def spectrum_legend(rows: Sequence[SpectrumRow]) -> list[str]:
    """The meaning of all columns and of the marks."""
    parts = ["Medians over heads and windows."]
    if any(not row.get("complete", True) for row in rows if row["status"] == "ok"):
        parts += ["Leading values only; > k: beyond the k known."]
    scaled = [name for name in ("unnormalised", "lifted-softmax") if any(row["of"] == name for row in rows)]
    if scaled:
        parts.append(f"{' and '.join(scaled)}: divided by the largest entry, e^log_scale.")
    if any(row["status"] == "ok" and not row.get("closed", True) for row in rows):
        parts.append("Some residuals are beyond the tolerance.")
    if any(row["status"] != "ok" for row in rows):
        parts.append("✗ failed or diverged, – skipped.")
    return parts


def _lines(rows: Sequence[SpectrumRow]) -> list[Line]:
    """The rows behind each line: heads and windows of one matrix, source and layer, in the order of the rows."""
    labels = list(dict.fromkeys(map(matrix_label, rows)))
    sources = list(dict.fromkeys(row["source"] for row in rows))
    order = lambda line: (labels.index(matrix_label(line[0])), sources.index(line[0]["source"]), line[0]["layer"])
    return sorted(grouped_by(rows, "of", "options", "d", "source", "layer"), key=order)


def _ok(line: Line) -> Line:
    return [row for row in line if row["status"] == "ok"]


def _matrix(line: Line) -> str:
    """The name of the matrix, with the mark of the first row that is not ok."""
    mark = next((MARKS[row["status"]] + " " for row in line if row["status"] != "ok"), "")
    return mark + matrix_label(line[0])


def _caption(rows: Sequence[SpectrumRow]) -> str:
    kind = "eigenvalues" if rows[0]["kind"] == "eigen" else "singular values"
    counts = {name: len({row[name] for row in rows}) for name in ("head", "window")}
    repeated = max((row.get("duplicates") or 0 for row in rows), default=0)
    note = f"up to {repeated} repeated token{'s' if repeated > 1 else ''}" if repeated else ""
    return joined(kind, f"n = {rows[0]['n']}", counted([{f"{name}s": count for name, count in counts.items()}]), note)


MATRIX = Column("matrix", _matrix, more="the matrix whose values these are", key=True)
WEIGHTS = Column("weights", lambda line: str(line[0]["source"]), key=True)
LAYER = Column("layer", lambda line: str(line[0]["layer"]), key=True)


def _ranks(rows: Sequence[SpectrumRow]) -> list[Column]:
    """Effective ranks, and the budgets within an error."""
    weight = "|λ|" if rows[0]["kind"] == "eigen" else "σ²"
    epsilons = sorted({epsilon for row in rows for epsilon in row["d_spectral"] or {}}, key=float, reverse=True)
    return _rank_columns(weight, epsilons)


def _rank_columns(weight: str, epsilons: Sequence[str]) -> list[Column]:
    """The columns of ranks; ``weight`` is the weight of a value, in symbols."""
    shares = f"p = {weight}/Σ{weight}"
    leading = f"leading values that hold 90, 95, 99% of Σ{weight}"
    within = "smallest rank within ε of the matrix, ‖·‖₂ | ‖·‖_F"
    more = "of any approximation; relative"
    return [
        Column("stable rank", _stable_rank, "‖·‖_F²/σ₁² [p10 – p90]"),
        Column("entropy rank", _measure("entropy_rank"), f"exp(−Σ p log p), {shares}"),
        Column("participation", _measure("participation_ratio"), f"1/Σ p², {shares}"),
        *(
            Column(f"rank {share}%", _count(lambda row, share=share: row[f"rank_{share}"]), leading, short="rank")
            for share in SHARES
        ),
        *(Column(f"d for {epsilon}", _within(epsilon), within, short="d for ε", more=more) for epsilon in epsilons),
    ]


def _median(values: Sequence[float | None]) -> float | None:
    """The median, where unknown values count as infinite; None if it is not finite."""
    middle = statistics.median([math.inf if value is None else value for value in values] or [math.inf])
    return middle if math.isfinite(middle) else None


def _measure(name: Literal["entropy_rank", "participation_ratio"]) -> Cell:
    return lambda line: significant(_median([row[name] for row in _ok(line)]), 3)


def _count(rank: Callable[[SpectrumRow], float | None]) -> Cell:
    """The median of ranks; ``> k`` if it exceeds the number k of known values."""

    def cell(line: Line) -> str:
        rows = _ok(line)
        ranks = [rank(row) for row in rows]
        middle = _median(ranks)
        if middle is not None:
            return f"{middle:g}"
        complete = any(row.get("complete") or row["kind"] == "eigen" for row in rows)
        if not rows or (complete and set(ranks) == {None}):
            return ""
        return f"> {min(len(moduli(row)) for row in rows)}"

    return cell


def _within(epsilon: str) -> Cell:
    """The smallest rank within an error, in both norms."""
    norms = [_count(lambda row, norm=norm: (row[norm] or {}).get(epsilon)) for norm in ("d_spectral", "d_frobenius")]

    def cell(line: Line) -> str:
        ranks = [of(line) for of in norms]
        return " | ".join(ranks) if any(ranks) else ""

    return cell


def _stable_rank(line: Line) -> str:
    ranks = [row["stable_rank"] for row in _ok(line) if row["stable_rank"] is not None]
    if not ranks:
        return ""
    spread = quantiles(ranks)
    low, middle, high = (significant(spread[name], 3) for name in ("p10", "median", "p90"))
    return middle if len(ranks) == 1 else f"{middle} [{low} – {high}]"


def _values(rows: Sequence[SpectrumRow]) -> list[Column]:
    """The values at the ranks 1, 2, 4, … up to the longest spectrum."""
    most = max((len(moduli(row)) for row in _ok(rows)), default=0)
    symbol = "|λ{}|" if rows[0]["kind"] == "eigen" else "σ{}"
    return [_value_column(symbol, 2**power) for power in range(most.bit_length())]


def _value_column(symbol: str, rank: int) -> Column:
    """The value at a rank."""
    return Column(symbol.format(rank), _value(rank), "the values by rank", short=symbol.format(""))


def _value(rank: int) -> Cell:
    def cell(line: Line) -> str:
        spectra = [moduli(row) for row in _ok(line)]
        values = [values[rank - 1] for values in spectra if len(values) >= rank]
        return significant(statistics.median(values), 3) if values else ""

    return cell


COLUMNS = (
    *(MATRIX, WEIGHTS, LAYER),
    *_rank_columns("σ²", ["ε"]),
    *(_value_column(symbol, 1) for symbol in ("σ{}", "|λ{}|")),
)
