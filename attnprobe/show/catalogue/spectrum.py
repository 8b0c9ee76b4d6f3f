"""The tables and figures of ``attnprobe spectrum``: effective ranks, ranks within ε, values by rank.

Rows of kind ``head`` have the effective ranks of a matrix of a head, rows of kind ``rank`` its rank within each
``epsilon``, and rows of kind ``singular`` its values, with their ``index`` from 1 on. ``of`` names the matrix: the
method with its options, or the exact one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..figure import Figure
from ..table import BUDGET, KEY, Column, Table

if TYPE_CHECKING:
    from pandas import DataFrame

SCALED = ("unnormalised", "lifted-softmax")  # matrices that are divided by their largest entry
ROUNDING = 2.0**-52
INDEXES = tuple(4**power for power in range(7))  # of the values that the table shows
WEIGHTS = {"singular": "Σσ²", "eigen": "Σ|λ|"}


def _result(rows: Any) -> str:
    """How few values the first matrix needs."""
    measured = rows[rows["rank_95"].notna()] if "rank_95" in rows else rows.iloc[:0]
    if measured.empty:
        return ""
    first = measured[measured["of"] == measured["of"].iloc[0]]
    middle, known, size = first["rank_95"].median(), first["known"].min(), first["size"].max()
    # of leading values alone, a rank beyond them is infinite
    values = f"more than {known}" if middle > known else f"{middle:g}"
    return (
        f"{first['of'].iloc[0]}: {values} of {size} values hold 95 % of {WEIGHTS[first['spectrum'].iloc[0]]} "
        "in a median head."
    )


def _notes(rows: Any) -> list[str]:
    """What the numbers of a few matrices mean."""
    scaled = [name for name in SCALED if (rows["of"] == name).any()]
    lines = [f"values of {' and '.join(scaled)} are divided by the largest entry of the matrix"] if scaled else []
    if (rows["known"] < rows["size"]).any():
        lines.append("only leading values are known: > k is a rank beyond the k that are")
    if (~rows["closed"].fillna(True)).any():
        lines.append("errors of some leading values are beyond the tolerance")
    return lines


def above_rounding(rows: Any) -> DataFrame:
    """The rows with a decay of 0 where float64's rounding decides the value, as in the usual numerical rank."""
    if "decay" not in rows:
        return rows
    is_rounding = (rows["decay"] <= ROUNDING * rows["size"]).fillna(False)
    return rows.assign(decay=rows["decay"].mask(is_rounding, 0.0))


def _value_at(index: int, rows: Any) -> Any:
    return rows.loc[rows["index"] == index, "value"].median()


PLACE = ("source", "scale_inputs", "spectrum", "n")
LINE = ("of", "d", "target")
LIMIT = {"known": lambda rows: rows["known"].min()}
MATRIX = (
    Column("matrix", "of", priority=KEY, meaning="the matrix, or the method with its options whose matrix it is"),
    BUDGET,
    Column("target", "target", words={"softmax": ""}, priority=KEY, meaning="the exact matrix of a method"),
)
RANKS = Table(
    "ranks",
    "Effective ranks",
    each=PLACE,
    by=LINE,
    columns=(
        *MATRIX,
        Column("stable rank\n[p10 – p90]", "stable_rank.median", "stable_rank.p10", "stable_rank.p90", priority=8),
        Column("entropy\nrank", "entropy_rank.median", priority=6),
        Column("partici-\npation", "participation_ratio.median", priority=4),
        *(
            Column(
                f"rank\n{share} %", f"rank_{share}.median", limit="known", digits=None, priority=7 if share == 95 else 5
            )
            for share in (90, 95, 99)
        ),
    ),
    of_groups=LIMIT,
    sentence=_result,
    notes=_notes,
)
WITHIN = Table(
    "within",
    "Smallest ranks within ε of the matrix",
    kind="rank",
    each=PLACE,
    by=(*LINE, "epsilon"),
    columns=(
        *MATRIX,
        Column("ε", "epsilon", digits=None, priority=KEY, meaning="the relative error of an approximation"),
        *(
            Column(f"{symbol}\n[p10 – p90]", f"{name}.median", f"{name}.p10", f"{name}.p90", limit="known")
            for symbol, name in (("‖·‖₂", "d_spectral"), ("‖·‖_F", "d_frobenius"))
        ),
    ),
    of_groups=LIMIT,
)
VALUES = Table(
    "values",
    "Values by rank, medians",
    kind="singular",
    rows=f"index in {INDEXES}",
    each=PLACE,
    by=LINE,
    columns=(
        *MATRIX,
        *(
            Column(f"i = {index}", f"value_{index}", meaning=f"value of rank {index}, median over heads")
            for index in INDEXES
        ),
    ),
    of_groups={f"value_{index}": partial(_value_at, index) for index in INDEXES},
)
TITLE = "Spectra of attention matrices"
TABLES = (RANKS, WITHIN, VALUES)
FIGURES = (
    Figure(
        "spectrum-decay",
        "Decay of values",
        x="index",
        y="decay",
        marks=("band p10 p90", "line"),
        kind="singular",
        prepared=above_rounding,
        colour="of",
        shade="d",
        log=("index", "decay"),
        caption="Values over the largest one, by rank, over heads and windows. What rounding decides counts as 0.",
    ),
    Figure(
        "spectrum-cumulative",
        "Cumulative share of values",
        x="index",
        y="cumulative",
        marks=("band p10 p90", "line"),
        kind="singular",
        colour="of",
        shade="d",
        log=("index",),
        caption="Share of Σσ² (of eigenvalues Σ|λ|) that the values up to a rank have, over heads and windows.",
    ),
)
