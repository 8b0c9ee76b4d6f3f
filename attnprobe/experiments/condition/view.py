"""What ``attnprobe condition`` shows: rows per head, their summary per matrix, and the tables of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...tables.labels import source_heading
from ...tables.numbers import brief, method_label, significant
from ...tables.table import Column, Table, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .rows import condition_rows, conditions_summary

__all__ = ["condition_legend", "condition_tables", "view"]

Row = Any

SYMBOLS = {"SAS": "SᵀĀS", "SCS": "SᵀC̄S", "SCS+ridge": "SᵀC̄S + γI", "N0": "N at γ = 0"}
STEPS = (0, 2, 4, 6, 8, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 500, 1000)
STRONG = 0.5  # |ρ| from which on the legend counts rows


def view(recorded: Recorded) -> View:
    """What records of ``attnprobe condition`` show."""
    from .figures import condition_figures

    rows = condition_rows(recorded.records)
    summary = conditions_summary(rows)
    title = recorded.header.title
    return View(
        "condition",
        recorded.header,
        rows,
        condition_tables(summary),
        condition_legend(summary),
        title="Condition numbers",
        summary=summary,
        figures={
            "condition": Figure(
                "condition",
                lambda folder: condition_figures(rows, summary, title, folder),
                "nothing was measured that could be drawn",
            )
        },
    )


def _spread(heading: str, name: str, meaning: str = "") -> tuple[Column[Row], Column[Row]]:
    """A median, and its quantiles."""
    ends = lambda row: f"[{brief(row[name]['p10'])} – {brief(row[name]['p90'])}]"
    return (
        Column(heading, lambda row: brief(row[name]["median"]), meaning),
        Column("[p10 – p90]", ends, spare=2),
    )


def _rho(row: Row) -> str:
    if row["error"] is None:
        return ""
    return "–" if row["spearman"] is None else f"{row['spearman']:+.2f} ({row['spearman_count']})"


MATRIX: tuple[Column[Row], ...] = (
    Column("matrix", lambda row: SYMBOLS.get(row["matrix"], str(row["matrix"]))),
    Column("", lambda row: "●" if row["inverted"] else "", "●: the method inverts this matrix"),
    Column("method", lambda row: method_label(row) if row["method"] else ""),
    Column("d", lambda row: "" if row["d"] is None else str(row["d"])),
)
CONDITIONS: tuple[Column[Row], ...] = (
    *MATRIX,
    *_spread(
        "cond",
        "cond",
        "cond: σ₁/σ_m in float64, median over heads and windows; a matrix whose smallest singular value is rounding "
        "has no value and counts as singular",
    ),
    Column("singular", lambda row: f"{row['flagged']}/{row['count']}" if row["flagged"] else ""),
    Column("rank", lambda row: f"{row['rank']:g}/{row['size']}", "rank: σ > m eps σ₁, median, of m", 1),
    Column("effective", lambda row: brief(row["cond_eff"]), "effective: σ₁/σ_rank", 3),
    Column("at m/2", lambda row: brief(row["cond_at_half"]), "at m/2: σ₁/σ_{m/2}", 5),
    Column("repeated", lambda row: f"{row['duplicates']:g}", "repeated: rows that repeat exactly, median", 4),
    Column("error", lambda row: significant(row["error"], 3), "error: ‖E‖₂/‖BV‖₂ of the method"),
    Column("ρ", _rho, "ρ: Spearman's rank correlation of cond and error, over so many heads"),
)
CHANGES: tuple[Column[Row], ...] = (
    *MATRIX,
    *_spread("change", "sensitivity"),
    Column("max", lambda row: brief(row["sensitivity"]["max"])),
)
GRADIENTS: tuple[Column[Row], ...] = (
    *MATRIX,
    Column("‖M⁻¹‖₂²", lambda row: brief(row["gradient"])),
    Column("six steps", lambda row: brief(row["gradient_six"])),
)


def condition_tables(summary: Sequence[Row]) -> list[Table]:
    """Up to four tables for each source, layer and n: conditions, changes, gradients, residuals."""
    tables = []
    for here in grouped_by(summary, "source", "layer", "n"):
        first = here[0]
        where = joined(source_heading(first), f"layer {first['layer']}", f"n = {first['n']}", counted(here))
        having = lambda name, here=here: [row for row in here if name in row]
        notes = [_lemma3(row) for row in having("lemma3")] + _lost(here)
        tables.append(table_of(f"Condition numbers · {where}", having("cond"), CONDITIONS, notes))
        if rows := having("sensitivity"):
            directions = f"{rows[0]['sensitivity']['count']} directions"
            caption = f"Relative change per relative change of Q and K, {directions} · {where}"
            tables.append(table_of(caption, rows, CHANGES))
        if rows := [row for row in having("gradient_six") if "gradient" in row]:
            caption = f"Gradient norm through each core, ‖∂M⁻¹/∂M‖₂ and that of six Schulz steps, median · {where}"
            note = "A core k times as large has a gradient norm k² times smaller."
            tables.append(table_of(caption, rows, GRADIENTS, [note]))
        if rows := having("residuals"):
            caption = f"‖I − MZ_t‖_F/√d of the Schulz iteration, median · {where}"
            tables.append(table_of(caption, rows, _steps(rows)))
    return tables


def _steps(rows: Sequence[Row]) -> list[Column[Row]]:
    last = len(rows[0]["residuals"]["median"]) - 1
    steps = [*(step for step in STEPS if step < last), last]
    at = lambda step: Column[Row](f"t = {step}", lambda row: brief(row["residuals"]["median"][step]))
    return [*MATRIX, Column("start", lambda row: row["start"] or ""), *map(at, steps)]


def _lost(here: Sequence[Row]) -> list[str]:
    """Why cells are not ok, and why a cell that is has no condition numbers."""
    name = lambda row: " ".join(filter(None, [row["method"] and method_label(row), row["d"] and f"d = {row['d']}"]))
    partial = (row["reason"] for row in here if row["status"] == "ok" and row["reason"] and "cond" not in row)
    return list(dict.fromkeys([*reasons(here, name), *partial]))


def condition_legend(summary: Sequence[Row]) -> str:
    """How the condition numbers of this run go with its errors."""
    known = [(row["spearman"], row["spearman_count"]) for row in summary if row.get("spearman") is not None]
    if not known:
        return ""
    rho, heads = zip(*known, strict=True)
    ends = " to ".join(f"{end:+.2f}" for end in dict.fromkeys((min(rho), max(rho))))
    counts = " to ".join(map(str, dict.fromkeys((min(heads), max(heads)))))
    strong = sum(abs(one) >= STRONG for one in rho)
    return (
        f"In this run ρ is {ends}, over {counts} heads a row, and |ρ| ≥ {STRONG:g} in {strong} of {len(rho)} "
        f"row{'s' * (len(rho) != 1)}."
    )


def _lemma3(row: Row) -> str:
    """What a scaled core says of Lemma 3's interval."""
    counts, name = row["lemma3"], SYMBOLS.get(row["matrix"], row["matrix"])
    parts = [f"holds in {counts['holds']} of {sum(counts.values())} heads"]
    parts += [f"smallest eigenvalue zero to rounding in {counts['zero']}"] if counts["zero"] else []
    parts += [f"violated in {counts['violated']}"] if counts["violated"] else []
    least = max(row["eigen_min"], 0.0) if counts["zero"] else row["eigen_min"]
    ends = f"eigenvalues from {significant(least, 2)} to {row['eigen_max']:.12g}"
    statement = "Lemma 3, spectrum in (0, 1] (printed open at 1, which is always reached)"
    return f"{statement}: {name} of {method_label(row)}, d = {row['d']}: {', '.join(parts)}; {ends}"
