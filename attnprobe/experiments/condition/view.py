"""The view of ``attnprobe condition``: rows per head, their summary per matrix, and the tables of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ...tables.labels import source_heading
from ...tables.numbers import brief, method_label, significant
from ...tables.rows import Quantiles
from ...tables.table import Column, Table, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .result import condition_result
from .rows import FIELDS, condition_rows
from .summary import (
    Changed,
    Conditioned,
    ConditionSummary,
    Iterated,
    Scaled,
    conditions_summary,
    is_changed,
    is_conditioned,
    is_iterated,
    is_scaled,
)

if TYPE_CHECKING:
    from .record import ConditionRecord

T = TypeVar("T")

SYMBOLS = {"SAS": "SᵀĀS", "SCS": "SᵀC̄S", "SCS+ridge": "SᵀC̄S + γI", "N0": "N at γ = 0"}
STEPS = (0, 2, 4, 6, 8, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 500, 1000)
LEMMA_3 = "Lemma 3: all eigenvalues are in (0, 1]. The paper prints (0, 1), but the largest is always 1."
STRONG = 0.5  # |ρ| from which on the legend counts rows


def view(recorded: Recorded[ConditionRecord]) -> View:
    """The view of the records of ``attnprobe condition``."""
    from .figures import condition_figures

    rows = condition_rows(recorded.records)
    summary = conditions_summary(rows)
    return View(
        "condition",
        recorded.header,
        rows,
        condition_tables(summary),
        columns=COLUMNS,
        fields=FIELDS,
        title="Condition numbers",
        result=condition_result(rows),
        summary=summary,
        figures={
            "condition": Figure(
                "condition",
                lambda folder: condition_figures(rows, summary, recorded.drawing, folder),
                "nothing was measured that could be drawn",
            )
        },
    )


def _spread(heading: str, of: Callable[[T], Quantiles], meaning: str, more: str = "") -> tuple[Column[T], Column[T]]:
    """A median, and its quantiles."""
    ends = lambda row: f"[{brief(of(row)['p10'])} – {brief(of(row)['p90'])}]"
    return (
        Column(heading, lambda row: brief(of(row)["median"]), meaning, more=more),
        Column("[p10 – p90]", ends, meaning, spare=2, short=heading, more=more),
    )


def _cond(row: Conditioned) -> Quantiles:
    return row["cond"]


def _sensitivity(row: Changed) -> Quantiles:
    return row["sensitivity"]


def _symbol(row: ConditionSummary) -> str:
    return SYMBOLS.get(row["matrix"] or "", str(row["matrix"]))


def _rho(row: Conditioned) -> str:
    if row["error"] is None:
        return ""
    return "–" if row["spearman"] is None else f"{row['spearman']:+.2f} ({row['spearman_count']})"


MATRIX: tuple[Column[ConditionSummary], ...] = (
    Column("matrix", lambda row: _symbol(row), key=True),
    Column("", lambda row: "●" if row["inverted"] else "", "the method inverts this matrix", short="●"),
    Column("method", method_label, key=True),
    Column("d", lambda row: "" if row["d"] is None else str(row["d"]), key=True),
)
CONDITIONS: tuple[Column[Conditioned], ...] = (
    *MATRIX,
    *_spread(
        "cond",
        _cond,
        "σ₁/σ_m, median over heads and windows",
        "in float64; a matrix whose smallest singular value is rounding has no value and counts as singular",
    ),
    Column(
        "singular",
        lambda row: f"{row['flagged']}/{row['count']}" if row["flagged"] else "",
        "heads where σ_m is rounding",
    ),
    Column("rank", lambda row: f"{row['rank']:g}/{row['size']}", "σ > m eps σ₁, of m", 1, more="median"),
    Column("effective", lambda row: brief(row["cond_eff"]), "σ₁/σ_rank", 3),
    Column("at m/2", lambda row: brief(row["cond_at_half"]), "σ₁/σ_{m/2}", 5),
    Column("repeated", lambda row: f"{row['duplicates']:g}", "equal rows, median", 4),
    Column("error", lambda row: significant(row["error"], 3), "‖E‖₂/‖BV‖₂ of the method"),
    Column("ρ", _rho, "Spearman's, of cond and error (heads)"),
)
CHANGE = "relative, per relative change of Q and K"
CHANGES: tuple[Column[Changed], ...] = (
    *MATRIX,
    *_spread("change", _sensitivity, CHANGE),
    Column("max", lambda row: brief(row["sensitivity"]["max"]), CHANGE),
)
GRADIENT = "gradient norm through the core"
GRADIENTS: tuple[Column[Conditioned], ...] = (
    *MATRIX,
    Column("‖M⁻¹‖₂²", lambda row: brief(row.get("gradient")), GRADIENT, more="of the exact inverse, median"),
    Column("six steps", lambda row: brief(row.get("gradient_six")), GRADIENT, more="of six Schulz steps, median"),
)
STARTS = Column[Iterated]("start", lambda row: row["start"] or "", "of the Schulz iteration")


def _step(step: int | str, cell: Callable[[Iterated], str]) -> Column[Iterated]:
    """A step of the Schulz iteration."""
    return Column(f"t = {step}", cell, "‖I − MZ_t‖_F/√d after t steps", short="t")


COLUMNS = (*CONDITIONS, *CHANGES, *GRADIENTS, STARTS, _step("0", lambda row: ""))


def condition_tables(summary: Sequence[ConditionSummary]) -> list[Table]:
    """Up to four tables for each source, layer and n: conditions, changes, gradients, residuals."""
    tables = []
    for group in grouped_by(summary, "source", "layer", "n"):
        first = group[0]
        where = joined(source_heading(first), f"layer {first['layer']}", f"n = {first['n']}", counted(group))
        conditioned = list(filter(is_conditioned, group))
        notes = [*_lemma3_notes(list(filter(is_scaled, group))), *correlation_notes(conditioned), *_lost(group)]
        tables.append(table_of(f"Condition numbers · {where}", conditioned, CONDITIONS, notes))
        if rows := list(filter(is_changed, group)):
            directions = f"{rows[0]['sensitivity']['count']} directions"
            caption = f"Relative change per relative change of Q and K, {directions} · {where}"
            tables.append(table_of(caption, rows, CHANGES))
        if rows := [row for row in conditioned if "gradient_six" in row and "gradient" in row]:
            caption = f"Gradient norm through each core, ‖∂M⁻¹/∂M‖₂ and that of six Schulz steps, median · {where}"
            note = "A core k times as large has a gradient norm k² times smaller."
            tables.append(table_of(caption, rows, GRADIENTS, [note]))
        if rows := list(filter(is_iterated, group)):
            caption = f"‖I − MZ_t‖_F/√d of the Schulz iteration, median · {where}"
            tables.append(table_of(caption, rows, _steps(rows)))
    return tables


def _steps(rows: Sequence[Iterated]) -> list[Column[Iterated]]:
    last = len(rows[0]["residuals"]["median"]) - 1
    steps = [*(step for step in STEPS if step < last), last]
    at = lambda step: _step(step, lambda row: brief(row["residuals"]["median"][step]))
    return [*MATRIX, STARTS, *map(at, steps)]


def _lost(group: Sequence[ConditionSummary]) -> list[str]:
    """The reasons of cells that are not ok, and of ok cells without condition numbers."""
    name = lambda row: " ".join(filter(None, [method_label(row), row["d"] and f"d = {row['d']}"]))
    partial = (row["reason"] for row in group if row["status"] == "ok" and row["reason"] and "cond" not in row)
    return list(dict.fromkeys([*reasons(group, name), *partial]))


def correlation_notes(conditioned: Sequence[Conditioned]) -> list[str]:
    """The rank correlation of condition numbers and errors."""
    known = [(row["spearman"], row["spearman_count"]) for row in conditioned if row["spearman"] is not None]
    if not known:
        return []
    rho, heads = zip(*known, strict=True)
    ends = " to ".join(f"{end:+.2f}" for end in dict.fromkeys((min(rho), max(rho))))
    counts = " to ".join(map(str, dict.fromkeys((min(heads), max(heads)))))
    strong = sum(abs(one) >= STRONG for one in rho)
    rows = f"{len(rho)} row{'s' * (len(rho) != 1)}"
    return [f"ρ is {ends}, over {counts} heads a row, and |ρ| ≥ {STRONG:g} in {strong} of {rows}"]


def _lemma3_notes(rows: Sequence[Scaled]) -> list[str]:
    """Lemma 3, and a line for each scaled core."""
    return [LEMMA_3, *map(_lemma3, rows)] if rows else []


def _lemma3(row: Scaled) -> str:
    """Whether the eigenvalues of a scaled core are in Lemma 3's interval."""
    counts, name = row["lemma3"], _symbol(row)
    parts = [f"holds in {counts['holds']} of {sum(counts.values())} heads"]
    parts += [f"smallest eigenvalue zero to rounding in {counts['zero']}"] if counts["zero"] else []
    parts += [f"violated in {counts['violated']}"] if counts["violated"] else []
    least = max(row["eigen_min"], 0.0) if counts["zero"] else row["eigen_min"]
    ends = f"eigenvalues from {significant(least, 2)} to {row['eigen_max']:.12g}"
    return f"Lemma 3, {name} of {method_label(row)}, d = {row['d']}: {', '.join(parts)}; {ends}"
