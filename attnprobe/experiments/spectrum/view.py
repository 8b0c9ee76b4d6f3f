"""The view of ``attnprobe spectrum``: a row for each head, medians over heads in tables, and the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from ...tables.long import FIELDS as LONG
from ...tables.long import Row, known, long_rows, median, spread, summarised, unbounded
from ...tables.marks import OF_STATUS
from ...tables.numbers import method_label
from ...tables.table import Column, Table, counted, equal_tokens, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .record import NUMBERS, SHAPE, SpectrumRecord

SHARES = (90, 95, 99)
FIELDS = (*LONG, *NUMBERS)


def view(recorded: Recorded[SpectrumRecord]) -> View:
    """The view of the records of ``attnprobe spectrum``."""
    from .figures import spectrum_figures

    rows = spectrum_rows(recorded.records)
    complete = any(row.get("complete") for row in rows)
    remark = "" if complete else "no cumulative figure: only leading values are known"
    draw = partial(spectrum_figures, rows, recorded.drawing)
    return View(
        "spectrum",
        recorded.header,
        rows,
        spectrum_tables(rows),
        _legend(rows),
        title="Spectra of attention matrices",
        figures={"spectrum": Figure("spectrum", draw, "no spectrum to draw", remark)},
    )


def spectrum_rows(records: Sequence[SpectrumRecord]) -> list[Row]:
    """One row per record, and so per head. Rows of matrices have no target, as only methods depend on it."""
    rows = long_rows(records, SHAPE)
    for row in rows:
        if row["method"] is None:
            del row["target"]
    return rows


def moduli(row: Row) -> list[float]:
    """``σ_i``, or ``|λ_i|``, by rank."""
    values = row.get("singular_values") or row.get("eigenvalues") or []
    return [math.hypot(*value) if isinstance(value, (list, tuple)) else abs(value) for value in values]


def matrix_label(row: Row) -> str:
    """The name of a row's matrix, or of its method with options and budget."""
    budget = "" if row.get("d") is None else f" d={row['d']}"
    return method_label({"method": row["of"], "options": row.get("options") or {}}) + budget


def _matrix(line: Row) -> str:
    return f"{OF_STATUS.get(line['status'], '')} {matrix_label(line)}".lstrip()


def _rank_text(line: Row, rank: float | None) -> str:
    """The median of ranks; ``> k`` if it exceeds the number k of known values."""
    if rank is None:
        return ""
    return f"> {line['known']}" if math.isinf(rank) else f"{rank:g}"


def _leading(share: int) -> Callable[[Row], str]:
    return lambda line: _rank_text(line, line[f"rank_{share}"])


def _within(epsilon: str) -> Callable[[Row], str]:
    """The smallest ranks within an error, in both norms."""

    def cell(line: Row) -> str:
        ranks = [_rank_text(line, line[norm].get(epsilon)) for norm in ("d_spectral", "d_frobenius")]
        return " | ".join(ranks) if any(ranks) else ""

    return cell


MATRIX = Column("matrix", _matrix, more="the matrix whose values these are", key=True)
WEIGHTS = Column("weights", "{source}", key=True)
LAYER = Column("layer", "{layer}", key=True)


def _rank_columns(weight: str, epsilons: Sequence[str]) -> list[Column]:
    """The columns of effective ranks and of the ranks within an error.

    Args:
        weight: that of a value, in symbols.
    """
    shares = f"p = {weight}/Σ{weight}"
    leading = f"leading values that hold 90, 95, 99% of Σ{weight}"
    within = "smallest rank within ε of the matrix, ‖·‖₂ | ‖·‖_F"
    more = "of any approximation; relative"
    stable = ("{stable_rank[median]:3}", " [{stable_rank[p10]:3} – {stable_rank[p90]:3}]")
    return [
        Column("stable rank", stable, "‖·‖_F²/σ₁² [p10 – p90]"),
        Column("entropy rank", "{entropy_rank:3}", f"exp(−Σ p log p), {shares}"),
        Column("participation", "{participation_ratio:3}", f"1/Σ p², {shares}"),
        *(Column(f"rank {share}%", _leading(share), leading, short="rank") for share in SHARES),
        *(Column(f"d for {epsilon}", _within(epsilon), within, short="d for ε", more=more) for epsilon in epsilons),
    ]


def _value_column(symbol: str, rank: int) -> Column:
    return Column(symbol.format(rank), f"{{values[{rank}]:3}}", "the values by rank", short=symbol.format(""))


COLUMNS = (
    *(MATRIX, WEIGHTS, LAYER),
    *_rank_columns("σ²", ["ε"]),
    *(_value_column(symbol, 1) for symbol in ("σ{}", "|λ{}|")),
)


def spectrum_tables(rows: Sequence[Row]) -> list[Table]:
    """The tables of each n: the ranks, then the values; a line for each matrix, source and layer."""
    tables = []
    for group in grouped_by(rows, "n"):
        lines = _lines(group)
        eigen = group[0]["kind"] == "eigen"
        epsilons = {epsilon for row in group for epsilon in row.get("d_spectral") or {}}
        ranks = _rank_columns("|λ|" if eigen else "σ²", sorted(epsilons, key=float, reverse=True))
        places = sorted({rank for line in lines for rank in line["values"]})
        values = [_value_column("|λ{}|" if eigen else "σ{}", rank) for rank in places]
        names = [MATRIX, WEIGHTS, LAYER] if len({line["source"] for line in lines}) > 1 else [MATRIX, LAYER]
        repeated = max(line["duplicates"] for line in lines)
        where = joined(
            "eigenvalues" if eigen else "singular values",
            f"n = {group[0]['n']}",
            counted(lines),
            equal_tokens(repeated, "up to "),
        )
        broken = reasons(group, lambda row: f"{matrix_label(row)}, layer {row['layer']}, head {row['head']}")
        tables.append(table_of(f"{where} · effective ranks", lines, [*names, *ranks], broken))
        tables.append(table_of(f"{where} · values by rank", lines, [*names, *values]))
    return tables


def _lines(rows: Sequence[Row]) -> list[Row]:
    """The numbers of each matrix, source and layer over heads and windows."""
    labels = list(dict.fromkeys(map(matrix_label, rows)))
    sources = list(dict.fromkeys(row["source"] for row in rows))

    def order(line: Row) -> tuple[int, int, int]:
        return labels.index(matrix_label(line)), sources.index(line["source"]), line["layer"]

    return sorted(summarised(rows, ("of", "options", "d", "source", "layer"), _statistics), key=order)


def _statistics(group: list[Row]) -> Row:
    measured = [row for row in group if row["status"] == "ok"]
    spectra = [moduli(row) for row in measured]
    stable = known(measured, "stable_rank")
    epsilons = {epsilon for row in measured for epsilon in row.get("d_spectral") or {}}
    powers = [2**power for power in range(max(map(len, spectra), default=0).bit_length())]
    return {
        "duplicates": max(row.get("duplicates") or 0 for row in group),
        "known": min(map(len, spectra), default=0),
        "stable_rank": spread(stable) if len(stable) > 1 else {"median": median(stable)},
        **{name: _finite([row.get(name) for row in measured]) for name in ("entropy_rank", "participation_ratio")},
        **{f"rank_{share}": _rank(measured, [row.get(f"rank_{share}") for row in measured]) for share in SHARES},
        **{
            norm: {one: _rank(measured, [(row.get(norm) or {}).get(one) for row in measured]) for one in epsilons}
            for norm in ("d_spectral", "d_frobenius")
        },
        "values": {rank: median([one[rank - 1] for one in spectra if len(one) >= rank]) for rank in powers},
    }


def _finite(values: Sequence[float | None]) -> float | None:
    """The median, where unknown values count as infinite; None if it is infinite."""
    middle = median(unbounded(values))
    return middle if middle is not None and math.isfinite(middle) else None


def _rank(rows: Sequence[Row], ranks: Sequence[float | None]) -> float | None:
    """The median of ranks, infinite if it is beyond the known values; None if it is unknown with all values known."""
    complete = any(row.get("complete") or row["kind"] == "eigen" for row in rows)
    return None if complete and set(ranks) == {None} else median(unbounded(ranks))


def _legend(rows: Sequence[Row]) -> list[str]:
    """What the lines are over, and the meaning of the marks."""
    parts = ["Medians over heads and windows."]
    measured = [row for row in rows if row["status"] == "ok"]
    if any(not row.get("complete", True) for row in measured):
        parts += ["Leading values only; > k: beyond the k known."]
    scaled = [name for name in ("unnormalised", "lifted-softmax") if any(row["of"] == name for row in rows)]
    if scaled:
        parts.append(f"{' and '.join(scaled)}: divided by the largest entry, e^log_scale.")
    if any(not row.get("closed", True) for row in measured):
        parts.append("Some residuals are beyond the tolerance.")
    return parts
