"""Rows and tables of `attnprobe spectrum`: one row per head in data formats, medians over heads in tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...tables.labels import identity, scale_of, source_labels
from ...tables.numbers import method_label, significant
from ...tables.table import Table
from ...tables.view import Figure, View
from ..base import Recorded

__all__ = ["matrix_label", "moduli", "spectrum_legend", "spectrum_rows", "spectrum_tables", "view"]

Row = Mapping[str, Any]

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
MARKS = {"failed": "✗", "diverged": "✗", "skipped": "–"}
SHARES = ("rank_90", "rank_95", "rank_99")


def view(recorded: Recorded) -> View:
    """What records of ``attnprobe spectrum`` show."""
    from .figures import spectrum_figures

    rows, title = spectrum_rows(recorded.records), recorded.header.title
    whole = any(row["complete"] for row in rows)
    remark = "" if whole else "no cumulative figure: only leading values are known"
    draw = lambda folder: spectrum_figures(rows, title, folder)
    return View(
        "spectrum",
        recorded.header,
        rows,
        spectrum_tables(rows),
        spectrum_legend(rows) if rows else "",
        title="Spectra of attention matrices",
        figures={"spectrum": Figure("spectrum", draw, "no spectrum to draw", remark)},
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


def spectrum_tables(rows: Sequence[Row]) -> list[Table]:
    """The tables of each n: the ranks, then the values."""
    tables = []
    for n in dict.fromkeys(row["n"] for row in rows):
        here = [row for row in rows if row["n"] == n]
        lines = _lines(here)
        good = [[row for row in line if row["status"] == "ok"] for line in lines]
        names = [_names(line, here) for line in lines]
        headings = [name for name, _ in names[0]]
        broken = [
            f"{MARKS[row['status']]} {matrix_label(row)}, layer {row['layer']}, head {row['head']}: "
            f"{row.get('reason') or row['status']}"
            for row in here
            if row["status"] != "ok"
        ]
        caption = _caption(here)
        columns = _rank_columns(good)
        ranks = [[*(text for _, text in name), *(cell[i] for _, cell in columns)] for i, name in enumerate(names)]
        headed = [*headings, *(head for head, _ in columns)]
        tables.append(Table(f"{caption} · effective ranks", headed, ranks, broken))
        symbol = "|λ" if here[0]["kind"] == "eigen" else "σ"
        places = _places(good)
        close = "|" if symbol == "|λ" else ""
        values = [[*(text for _, text in name), *_values(line, places)] for name, line in zip(names, good, strict=True)]
        headed = [*headings, *(f"{symbol}{i}{close}" for i in places)]
        tables.append(Table(f"{caption} · values by rank, median", headed, values))
    return tables


def spectrum_legend(rows: Sequence[Row]) -> str:
    """What the columns and the marks mean, in one paragraph."""
    eigen = any(row["kind"] == "eigen" for row in rows)
    weight = "|λ|" if eigen else "σ²"
    parts = [
        "Median over heads and windows, [p10 – p90]. Stable rank: ‖·‖_F²/σ₁².",
        f"Entropy rank: exp(−Σ p log p), participation: 1/Σ p², with p = {weight}/Σ{weight}.",
        f"Rank 90%: how many leading values hold 90% of Σ{weight}.",
        "d for ε: the smallest rank of any approximation within ε of the matrix, relative, in ‖·‖₂ | ‖·‖_F.",
    ]
    if any(not row.get("complete", True) for row in rows if row["status"] == "ok"):
        parts.append(
            "Leading values only, from a block Krylov space; the JSON holds an error for each. > k: beyond the k known."
        )
    scaled = [name for name in ("unnormalised", "lifted-softmax") if any(row["of"] == name for row in rows)]
    if scaled:
        parts.append(f"{' and '.join(scaled)}: divided by the largest entry, e^log_scale.")
    if any(row["status"] == "ok" and not row.get("closed", True) for row in rows):
        parts.append("Not every residual came within the tolerance.")
    if any(row["status"] != "ok" for row in rows):
        parts.append("Marks: ✗ failed or diverged, – skipped.")
    return " ".join(parts)


def _lines(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows behind each line: heads and windows of one matrix, weights and layer."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((matrix_label(row), row.get("weights"), row["layer"]), []).append(row)
    labels = list(dict.fromkeys(matrix_label(row) for row in rows))
    weights = list(dict.fromkeys(row.get("weights") for row in rows))
    order = sorted(found, key=lambda key: (labels.index(key[0]), weights.index(key[1]), key[2]))
    return [found[key] for key in order]


def _names(line: Sequence[Row], rows: Sequence[Row]) -> list[tuple[str, str]]:
    first = line[0]
    several = len({row.get("weights") for row in rows}) > 1
    broken = next((MARKS[row["status"]] + " " for row in line if row["status"] != "ok"), "")
    weights = [("weights", str(first.get("weights")))] if several else []
    return [("matrix", broken + matrix_label(first)), *weights, ("layer", str(first["layer"]))]


def _caption(rows: Sequence[Row]) -> str:
    kind = "eigenvalues" if rows[0]["kind"] == "eigen" else "singular values"
    counts = [(len({row[name] for row in rows}), name) for name in ("head", "window")]
    text = " x ".join(f"{count} {name}{'s' if count > 1 else ''}" for count, name in counts)
    repeated = max((row.get("duplicates") or 0 for row in rows), default=0)
    note = f" · up to {repeated} repeated token{'s' if repeated > 1 else ''}" if repeated else ""
    return f"{kind} · n = {rows[0]['n']} · {text}{note}"


def _rank_columns(lines: Sequence[Sequence[Row]]) -> list[tuple[str, list[str]]]:
    """Heading and cells of every column in which some line has something to say."""
    columns = [("stable rank", [_spread(line, "stable_rank") for line in lines])]
    columns.append(("entropy rank", [_middle(line, lambda row: row["entropy_rank"]) for line in lines]))
    columns.append(("participation", [_middle(line, lambda row: row["participation_ratio"]) for line in lines]))
    for name in SHARES:
        columns.append((f"rank {name[5:]}%", [_middle(line, lambda row, name=name: row[name], True) for line in lines]))
    epsilons = {epsilon for line in lines for row in line for epsilon in row["d_spectral"] or {}}
    for epsilon in sorted(epsilons, key=float, reverse=True):
        columns.append((f"d for {epsilon}", [_both_norms(line, epsilon) for line in lines]))
    return [(heading, cells) for heading, cells in columns if any(cells)]


def _both_norms(line: Sequence[Row], epsilon: str) -> str:
    pair = [
        _middle(line, lambda row, norm=norm: (row[norm] or {}).get(epsilon), True)
        for norm in ("d_spectral", "d_frobenius")
    ]
    return " | ".join(pair) if any(pair) else ""


def _middle(line: Sequence[Row], of: Any, known: bool = False) -> str:
    """The median; ``> k`` where it lies beyond the k values that are known."""
    found = [of(row) for row in line]
    if all(value is None for value in found):
        whole = [row for row in line if row.get("complete") or row["kind"] == "eigen"]
        return "" if not found or whole or not known else f"> {min(len(moduli(row)) for row in line)}"
    middle = statistics.median(math.inf if value is None else value for value in found)
    if middle == math.inf:
        return f"> {min(len(moduli(row)) for row in line)}" if known else ""
    return f"{middle:g}" if known else significant(middle, 3)


def _spread(line: Sequence[Row], name: str) -> str:
    found = sorted(row[name] for row in line if row[name] is not None)
    if not found:
        return ""
    low, middle, high = (significant(float(value), 3) for value in np.quantile(found, [0.1, 0.5, 0.9]))
    return middle if len(found) == 1 else f"{middle} [{low} – {high}]"


def _places(lines: Sequence[Sequence[Row]]) -> list[int]:
    """1, 2, 4, … and the last rank that any line knows."""
    most = max((len(moduli(row)) for line in lines for row in line), default=0)
    return [2**power for power in range(most.bit_length())]


def _values(line: Sequence[Row], places: Sequence[int]) -> list[str]:
    known = [moduli(row) for row in line]
    found = [[one[i - 1] for one in known if len(one) >= i] for i in places]
    return [significant(statistics.median(values), 3) if values else "" for values in found]
