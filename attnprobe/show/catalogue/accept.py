"""The table of ``attnprobe accept``: a line for each case of a pack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..table import KEY, Column, Table

if TYPE_CHECKING:
    from pandas import DataFrame

PASSES, MISSING = "passes", "missing"


def _verdict(rows: DataFrame) -> str:
    """The verdict of a case: that of its worst head."""
    # worst first: one head without output, or one wrong head, decides the case
    verdicts = set(rows["verdict"])
    return next((verdict for verdict in (MISSING, "wrong") if verdict in verdicts), PASSES)


def _worst(rows: DataFrame) -> str | None:
    """The head and the query with the largest error over its tolerance."""
    judged = rows.dropna(subset=["excess"]) if "excess" in rows else rows.iloc[:0]
    if judged.empty:
        return None
    row = judged.loc[judged["excess"].idxmax()]
    return f"{row['q_head']}, {int(row['worst_row'])}"


def _result(rows: DataFrame) -> str:
    """How many cases pass, and the first that do not."""
    failed = list(dict.fromkeys(rows.loc[rows["verdict"] != PASSES, "case"]))
    cases = rows["case"].nunique()
    if not failed:
        return f"The kernel passes all {cases} cases."
    named = ", ".join(failed[:3]) + (" …" if len(failed) > 3 else "")
    return f"The kernel fails {len(failed)} of {cases} cases: {named}."


TITLE = "Outputs of a kernel"
TABLES = (
    Table(
        "accept",
        "Outputs against exact attention",
        kind="case",
        by=("case",),
        columns=(
            Column("case", "case", priority=KEY, meaning="the case of the pack"),
            Column(
                "verdict", "verdict", priority=KEY, meaning="wrong: an entry is not finite, or beyond its tolerance"
            ),
            Column("error /\ntolerance", "excess.max"),
            Column("max\n|error|", "max_abs.max"),
            Column("relative\nF error", "relative_frobenius.max"),
            Column("× torch in\nthis dtype", "ratio_to_framework.max"),
            Column("queries\nwithin", "queries_within.min", unit="%", priority=4),
            Column("worst\nhead, query", "worst", priority=3, meaning="where the error over its tolerance is largest"),
            Column("not\nfinite", "entries_not_finite.sum", digits=0, words={0: ""}),
            Column("lse error /\ntolerance", "lse_excess.max", priority=4),
        ),
        of_groups={"verdict": _verdict, "worst": _worst},
        sentence=_result,
    ),
)
