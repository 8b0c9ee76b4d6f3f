"""The view of ``attnprobe condition``: a row for each matrix and head, their summary, its tables and the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from ...tables.labels import source_heading
from ...tables.long import FIELDS as LONG
from ...tables.long import Row, known, long_rows, median, quantiles, rank_correlation, spread, summarised, unbounded
from ...tables.numbers import method_label, significant
from ...tables.results import at_budget
from ...tables.table import Column, Table, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .record import SHAPE, Numbers

ORDER = ("A", "B", "C", "B~", "A_S", "SAS", "SCS", "SCS+ridge", "N0", "N")
SYMBOLS = {"SAS": "SᵀĀS", "SCS": "SᵀC̄S", "SCS+ridge": "SᵀC̄S + γI", "N0": "N at γ = 0"}
STEPS = (0, 2, 4, 6, 8, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 500, 1000)
LEMMA_3 = "Lemma 3: all eigenvalues are in (0, 1]. The paper prints (0, 1), but the largest is always 1."
STRONG = 0.5  # |ρ| from which on the legend counts rows
FIELDS = (*LONG, "matrix", "error", "bad_rows", "size", "inverted", "start", *Numbers.__annotations__, "sensitivity")


def _symbol(row: Row) -> str:
    return SYMBOLS.get(row["matrix"], str(row["matrix"]))


def _rho(row: Row) -> str:
    if row["error"] is None:
        return ""
    return "–" if row["spearman"] is None else f"{row['spearman']:+.2f} ({row['spearman_count']})"


MATRIX = (
    Column("matrix", _symbol, key=True),
    Column("", lambda row: "●" if row["inverted"] else "", "the method inverts this matrix", short="●"),
    Column("method", method_label, key=True),
    Column("d", "{d}", key=True),
)
COND = "σ₁/σ_m, median over heads and windows"
FLOAT64 = "in float64; if rounding decides the smallest singular value, the matrix has no value and counts as singular"
CONDITIONS = (
    *MATRIX,
    Column("cond", "{cond[median]:brief}", COND, more=FLOAT64),
    Column("[p10 – p90]", "[{cond[p10]:brief} – {cond[p90]:brief}]", COND, spare=2, short="cond", more=FLOAT64),
    Column(
        "singular",
        lambda row: f"{row['flagged']}/{row['count']}" if row["flagged"] else "",
        "heads where rounding decides σ_m",
    ),
    Column("rank", "{rank:g}/{size}", "σ > m eps σ₁, of m", 1, more="median"),
    Column("effective", "{cond_eff:brief}", "σ₁/σ_rank", 3),
    Column("at m/2", "{cond_at_half:brief}", "σ₁/σ_{m/2}", 5, more="without the smaller half of the values"),
    Column("repeated", "{duplicates:g}", "equal rows, median", 4),
    Column("error", "{error:3}", "‖E‖₂/‖BV‖₂ of the method"),
    Column("ρ", _rho, "Spearman's, of cond and error (regular heads); – of too few"),
)
CHANGE = "relative, per relative change of Q and K"
CHANGES = (
    *MATRIX,
    Column("change", "{sensitivity[median]:brief}", CHANGE),
    Column("[p10 – p90]", "[{sensitivity[p10]:brief} – {sensitivity[p90]:brief}]", CHANGE, spare=2, short="change"),
    Column("max", "{sensitivity[max]:brief}", CHANGE),
)
GRADIENT = "gradient norm through the core"
GRADIENTS = (
    *MATRIX,
    Column("‖M⁻¹‖₂²", "{gradient:brief}", GRADIENT, more="of the exact inverse, median"),
    Column("six steps", "{gradient_six:brief}", GRADIENT, more="of six Schulz steps, median"),
)
START = Column("start", "{start}", "of the Schulz iteration")


def _step(step: int) -> Column:
    return Column(f"t = {step}", f"{{residuals[median][{step}]:brief}}", "‖I − MZ_t‖_F/√d after t steps", short="t")


COLUMNS = (*CONDITIONS, *CHANGES, *GRADIENTS, START, _step(0))


def view(recorded: Recorded) -> View:
    """The view of the records of ``attnprobe condition``."""
    from .figures import condition_figures

    rows = long_rows(recorded.records, SHAPE)
    summary = conditions_summary(rows)
    draw = partial(condition_figures, rows, summary, recorded.drawing)
    return View(
        "condition",
        recorded.header,
        rows,
        [table for group in grouped_by(summary, "source", "layer", "n") for table in _tables(group)],
        title="Condition numbers",
        summary=summary,
        figures={"condition": Figure("condition", draw, "nothing was measured that could be drawn")},
    )


def conditions_summary(rows: Sequence[Row]) -> list[Row]:
    """One entry per (source, layer, n, matrix, method with options, d), over heads and windows, in the tables' order.

    The condition number of a flagged matrix counts as infinite. A quantile that reaches one is infinite (``"inf"`` in
    JSON). ``spearman`` is the rank correlation of `regular_pairs`, with the number of its heads.
    """
    entries = summarised(rows, ("source", "layer", "n", "matrix", "method", "options", "d"), _statistics)
    sources = list(dict.fromkeys(row["source"] for row in entries))
    rank = {name: place for place, name in enumerate(ORDER)}

    def order(row: Row) -> tuple[int, int, int, int]:
        return sources.index(row["source"]), row["layer"], row["n"], rank.get(row["matrix"], len(rank))

    return sorted(entries, key=order)


def _statistics(group: list[Row]) -> Row:
    measured = [row for row in group if row.get("rank") is not None]
    entry: Row = {
        "size": next(iter(known(measured, "size")), None),
        "inverted": next(iter(known(measured, "inverted")), None),
        "flagged": None,
        "error": median(known(group, "error")),
    }
    if changes := [value for values in known(group, "sensitivity") for value in values if value is not None]:
        entry["sensitivity"] = {**quantiles(changes), "max": max(changes), "count": len(changes)}
    if not measured:
        return entry
    half = str(max(1, measured[0]["size"] // 2))
    regular = regular_pairs(measured)
    entry |= {
        "count": len(measured),
        "flagged": len(known(measured, "flag")),
        "cond": spread(unbounded(row["cond"] for row in measured)),
        "cond_at_half": median(unbounded(row["cond_at"][half] for row in measured)),
        "rank": median(known(measured, "rank")),
        "cond_eff": median(unbounded(row["cond_eff"] for row in measured)),
        "duplicates": median(unbounded(row["duplicates"] for row in measured)),
        "spearman": rank_correlation(*regular),
        "spearman_count": len(regular[0]),
    }
    for name in ("gradient", "gradient_six"):
        if all(name in row for row in measured):
            entry[name] = median(unbounded(row[name] for row in measured))
    if verdicts := Counter(known(measured, "lemma3")):
        entry["lemma3"] = {word: verdicts[word] for word in ("holds", "zero", "violated")}
        entry |= {"eigen_min": min(known(measured, "eigen_min")), "eigen_max": max(known(measured, "eigen_max"))}
    if residuals := known(measured, "residuals"):
        steps = [quantiles(unbounded(step)) for step in zip(*residuals, strict=False)]
        entry["residuals"] = {name: [step[name] for step in steps] for name in ("p10", "median", "p90")}
        entry["start"] = measured[0].get("start")
    return entry


def regular_pairs(rows: Iterable[Row]) -> tuple[list[float], list[float]]:
    """The condition numbers and errors of the heads with both, for their rank correlation.

    Singular matrices have no order, so they do not count.
    """
    pairs = [(row["cond"], row["error"]) for row in rows if None not in (row["cond"], row.get("error"))]
    return [cond for cond, _ in pairs], [error for _, error in pairs]


def _tables(group: Sequence[Row]) -> list[Table]:
    """Up to four tables of one source, layer and n: conditions, changes, gradients, residuals."""
    where = joined(source_heading(group[0]), f"layer {group[0]['layer']}", f"n = {group[0]['n']}", counted(group))
    conditioned, changed, iterated = (
        [row for row in group if name in row] for name in ("cond", "sensitivity", "residuals")
    )
    scaled = [_lemma3(row) for row in group if "lemma3" in row]
    notes = [*([LEMMA_3, *scaled] if scaled else []), *correlation_notes(conditioned), *_lost(group)]
    tables = [table_of(f"Condition numbers · {where}", conditioned, CONDITIONS, notes)]
    if changed:
        directions = f"{changed[0]['sensitivity']['count']} directions"
        caption = f"Relative change per relative change of Q and K, {directions} · {where}"
        tables.append(table_of(caption, changed, CHANGES))
    if inverses := [row for row in conditioned if "gradient_six" in row and "gradient" in row]:
        caption = f"Gradient norm through each core, ‖∂M⁻¹/∂M‖₂ and that of six Schulz steps, median · {where}"
        note = "A core k times as large has a gradient norm k² times smaller."
        tables.append(table_of(caption, inverses, GRADIENTS, [note]))
    if iterated:
        last = len(iterated[0]["residuals"]["median"]) - 1
        steps = [*(step for step in STEPS if step < last), last]
        caption = f"‖I − MZ_t‖_F/√d of the Schulz iteration, median · {where}"
        tables.append(table_of(caption, iterated, [*MATRIX, START, *map(_step, steps)]))
    return tables


def _lost(group: Sequence[Row]) -> list[str]:
    """The reasons of cells that are not ok, and of ok cells without condition numbers."""
    partial = (row["reason"] for row in group if row["status"] == "ok" and row["reason"] and "cond" not in row)
    return list(dict.fromkeys([*reasons(group, at_budget), *partial]))


def correlation_notes(conditioned: Sequence[Row]) -> list[str]:
    """The rank correlation of condition numbers and errors."""
    pairs = [(row["spearman"], row["spearman_count"]) for row in conditioned if row["spearman"] is not None]
    if not pairs:
        return []
    rho, heads = zip(*pairs, strict=True)
    ends = " to ".join(f"{end:+.2f}" for end in dict.fromkeys((min(rho), max(rho))))
    counts = " to ".join(map(str, dict.fromkeys((min(heads), max(heads)))))
    strong = sum(abs(one) >= STRONG for one in rho)
    rows = f"{len(rho)} row{'s' * (len(rho) != 1)}"
    return [f"ρ is {ends}, over {counts} heads a row, and |ρ| ≥ {STRONG:g} in {strong} of {rows}"]


def _lemma3(row: Row) -> str:
    """Whether the eigenvalues of a scaled core are in Lemma 3's interval."""
    counts = row["lemma3"]
    parts = [f"holds in {counts['holds']} of {sum(counts.values())} heads"]
    parts += [f"smallest eigenvalue zero to rounding in {counts['zero']}"] if counts["zero"] else []
    parts += [f"violated in {counts['violated']}"] if counts["violated"] else []
    least = max(row["eigen_min"], 0.0) if counts["zero"] else row["eigen_min"]
    ends = f"eigenvalues from {significant(least, 2)} to {row['eigen_max']:.12g}"
    return f"Lemma 3, {_symbol(row)} of {method_label(row)}, d = {row['d']}: {', '.join(parts)}; {ends}"
