"""The tables and figures of ``attnprobe condition``: conditions of matrices, their changes, residuals, and the error.

Rows of kind ``matrix``, one for each ``matrix`` of a head, have its condition number ``cond``, which is infinite if the
matrix is singular, whether the method has ``inverted`` it, and the method's ``output_spectral_relative``. Rows of kind
``iteration`` have the ``residual`` of the Schulz iteration on it at each ``iteration``, rows of kind ``trial`` its
``sensitivity`` in a random direction, and rows of kind ``at`` its condition number up to the ``k``-th singular value.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...frame.correlation import rank_correlation
from ..figure import EACH, Figure, Guide
from ..table import BUDGET, KEY, METHOD, Column, Table

if TYPE_CHECKING:
    from pandas import DataFrame

ERROR = "output_spectral_relative"
CORE = ["source", "scale_inputs", "n", "name", "d", "matrix"]  # the cores whose heads are ranked together
HEADS = [*CORE, "layer", "head"]
STEPS = (0, 2, 4, 6, 8, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 500, 1000)
SHOWN = 6  # the last of `STEPS` that the table has by itself, beside the last step
NOT_INVERTED = {"inverted == False and method.notna()": "hollow: not inverted by the method"}
SYMBOLS = {"SAS": "SᵀĀS", "SCS": "SᵀC̄S", "SCS+ridge": "SᵀC̄S + γI", "N0": "N at γ = 0"}


def conditions(cells: DataFrame) -> list[str]:
    """The reasons of cells that measured a part only, such as exact matrices that are too large to decompose."""
    return [*cells.loc[cells["status"] == "ok", "reason"].dropna().unique()]


def _numbers(rows: DataFrame, name: str) -> Any:
    """A column of numbers; NaN where it is missing."""
    import numpy as np

    return rows[name].to_numpy(float, na_value=np.nan) if name in rows else np.full(len(rows), np.nan)


def _singular(rows: DataFrame) -> Any:
    """1 for matrices without a finite condition number and 0 for the others."""
    import pandas as pd

    known = pd.Series(_numbers(rows, "rank"), index=rows.index).notna()
    flagged = rows["flag"].notna() if "flag" in rows else ~known
    return flagged.astype("Float64").where(known)


def _correlation(name: str, rows: DataFrame) -> float | None:
    """Spearman's ρ of the condition number and another number over the heads and windows where both are finite."""
    found = rank_correlation(_numbers(rows, "cond"), _numbers(rows, name))
    return found and found[0]


def _result(rows: DataFrame) -> str:
    """Whether heads whose inverted core has a larger condition number have a larger error."""
    import numpy as np

    known = np.isfinite(_numbers(rows, "cond")) & np.isfinite(_numbers(rows, ERROR))
    regular = rows[known & rows["inverted"].fillna(False)]
    if regular.empty:
        return ""
    # windows of a head are not independent: each head has one vote, its median
    heads = regular.groupby(HEADS, dropna=False, sort=False)[["cond", ERROR]].median().reset_index()
    cores = [*heads[CORE].itertuples(index=False, name=None)]
    found = rank_correlation(heads["cond"], heads[ERROR], cores)
    if found is None:
        return ""
    rho, p = found
    says = "The error has no clear relation to the condition number"
    if p < SMALL:
        says = f"The error {'grows' if rho > 0 else 'falls'} with the condition number"
    return f"{says}: ρ = {rho:+.2f}, p = {p:.2g} ({len(heads)} heads, ranked in each of {len(set(cores))} cores)."


def _notes(rows: DataFrame) -> list[str]:
    """How often the eigenvalues of the scaled cores are where Lemma 3 has them."""
    if "lemma3" not in rows:
        return []
    lines = []
    for matrix, verdicts in rows.groupby("matrix", sort=False)["lemma3"]:
        counts = verdicts.value_counts()
        if len(counts):
            parts = [f"{count} {WORDS[word]}" for word in WORDS if (count := counts.get(word, 0))]
            name = SYMBOLS.get(str(matrix), matrix)
            lines.append(f"Lemma 3 (eigenvalues of {name} in (0, 1]): {', '.join(parts)}")
    return lines


def _residual(step: Any, rows: DataFrame) -> Any:
    return rows.loc[rows["iteration"] == step, "residual"].median()


def _last(rows: DataFrame) -> Any:
    return _residual(rows["iteration"].max(), rows)


def _step(step: int) -> Column:
    return Column(f"t = {step}", f"residual_{step}", meaning=f"residual after {step} steps, median over heads")


SMALL = 0.05  # the level of a claim
WORDS = {"holds": "hold", "zero": "undecided, the smallest is within rounding of 0", "violated": "violated"}
PLACE = ("source", "scale_inputs", "n")
MATRIX = (
    Column("matrix", "matrix", words=SYMBOLS, priority=KEY, meaning="A, B, C, or a core"),
    Column("inv.", "inverted", words={True: "●", False: ""}, priority=KEY, meaning="● the method inverts this matrix"),
    METHOD,
    BUDGET,
    Column("target", "target", words={"softmax": ""}, priority=KEY, meaning="the exact matrix of a method"),
)
LINE = ("name", "matrix", "inverted", "d", "target")
CONDITIONS_TABLE = Table(
    "conditions",
    "Condition numbers",
    kind="matrix",
    each=PLACE,
    by=LINE,
    columns=(
        *MATRIX,
        Column("σ₁/σ_m\n[p10 – p90]", "cond.median", "cond.p10", "cond.p90", priority=8),
        Column(
            "singular\nheads",
            "singular.sum",
            of="singular.count",
            digits=0,
            words={0: ""},
            priority=7,
            meaning="heads and windows where rounding decides σ_m, or the matrix is zero or not finite",
        ),
        Column("error", f"{ERROR}.median", priority=6),
        Column(
            "ρ",
            "rho",
            digits=2,
            signed=True,
            priority=5,
            meaning="Spearman's ρ of σ₁/σ_m and the error over heads and windows with both; of 6 or more",
        ),
        Column("amplification\nof rounding", "amplification.median", priority=8),
        Column(
            "ρ of the\namplification",
            "rho_amplification",
            digits=2,
            signed=True,
            priority=5,
            meaning="Spearman's ρ of σ₁/σ_m and the amplification over heads and windows with both; of 6 or more",
        ),
    ),
    more=(
        Column("rank", "rank.median", digits=None),
        Column("m", "size", digits=0, meaning="rows of the matrix"),
        Column("effective\nσ₁/σ_r", "cond_eff.median"),
        Column("half\nσ₁/σ_{m/2}", "cond_half.median"),
        Column("repeated\nrows", "repeated.median", digits=None),
        Column("‖M⁻¹‖₂²", "gradient.median"),
        Column("six\nsteps", "gradient_six.median"),
        Column("λ_min\nleast", "eigen_min.min"),
        Column("λ_max\nlargest", "eigen_max.max"),
    ),
    derived={"singular": _singular},
    of_groups={
        "rho": partial(_correlation, ERROR),
        "rho_amplification": partial(_correlation, "amplification"),
        "size": lambda rows: rows["size"].max(),
    },
    sentence=_result,
    notes=_notes,
)
CHANGES = Table(
    "changes",
    "Relative change of a matrix per relative change of Q and K",
    kind="trial",
    rows="matrix.notna()",
    each=PLACE,
    by=("name", "matrix", "d", "target"),
    columns=(
        *(column for column in MATRIX if column.value != "inverted"),
        Column("change\n[p10 – p90]", "sensitivity.median", "sensitivity.p10", "sensitivity.p90", priority=8),
        Column("max", "sensitivity.max", priority=7),
    ),
)
RESIDUALS = Table(
    "residuals",
    "Residuals of the Schulz iteration after t steps, medians",
    kind="iteration",
    rows="matrix.notna()",
    each=PLACE,
    by=LINE,
    columns=(
        *MATRIX,
        *(_step(step) for step in STEPS if step <= SHOWN),
        Column("last", "residual_last", meaning="residual after the last step, median over heads"),
    ),
    more=tuple(_step(step) for step in STEPS if step > SHOWN),
    metric="residual",
    of_groups={**{f"residual_{step}": partial(_residual, step) for step in STEPS}, "residual_last": _last},
)
TITLE = "Condition numbers"
CONDITIONS = conditions
TABLES = (CONDITIONS_TABLE, CHANGES, RESIDUALS)
FIGURES = (
    Figure(
        "condition-numbers",
        "Condition numbers, head by head",
        x="cond",
        y="matrix",
        marks=("point", "tick median"),
        kind="matrix",
        points=(EACH,),
        columns=("d",),
        lines=("layer",),
        log=("cond",),
        flags=NOT_INVERTED,
        caption="Condition number of each matrix: a point for each head and window. Singular matrices are counted.",
    ),
    Figure(
        "condition-errors",
        "Condition of the inverted core against the error",
        x="cond",
        y=ERROR,
        marks=("point",),
        kind="matrix",
        rows="inverted",
        points=(EACH,),
        columns=("layer", "d"),
        log=("cond", ERROR),
        note="correlation",
        caption="Condition number of the core that a method inverts against its error: a point for each head.",
    ),
    Figure(
        "condition-iterations",
        "Residual of the Schulz iteration",
        x="iteration",
        y="residual",
        marks=("band p10 p90", "line", "point"),
        kind="iteration",
        rows="inverted",
        columns=("d",),
        lines=("layer",),
        log=("residual",),
        span=(1e-16, 1e6),
        guides=(Guide("x", "the six steps that methods take", 6.0),),
        caption="Residual of the iteration on the core that a method inverts, over heads and windows.",
    ),
)
