"""The tables and figures of ``attnprobe theory``: verdicts on statements, and measured values against bounds.

Rows of kind ``head`` are statements on heads, rows of kind ``detail`` further numbers of them: the statistical
dimension ``d_stat`` with ``sufficient``, the landmarks that Skyformer's Theorem 2 requires, and ``errors`` of draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...operators.linalg.exceedance import least_trials
from ..figure import EACH, Figure, Guide
from ..table import BUDGET, KEY, METHOD, Column, Table

if TYPE_CHECKING:
    from pandas import DataFrame

VERDICTS = ("holds", "violated", "undecided", "vacuous", "assumption not met")
PLACE = ["source", "theorem", "name", "n", "layer", "window", "head"]
GRID = 32  # values of ε between the least and the largest error
DIMENSION = "d_stat == d_stat and d_stat > 0"


def _is(verdict: str) -> Callable[[DataFrame], Any]:
    """A column of 1 for the heads with this verdict and 0 for those with another."""
    return lambda rows: (rows["verdict"] == verdict).astype("Float64").where(rows["verdict"].notna())


def _verdicts(rows: DataFrame) -> str | None:
    """How many heads have which verdict."""
    counts = rows["verdict"].value_counts()
    found = [verdict for verdict in VERDICTS if verdict in counts]
    return ", ".join(f"{verdict} {counts[verdict]}" for verdict in found) or None


def _result(rows: DataFrame) -> str:
    """The paper of the theorem, and what it says."""
    return f"{rows['paper'].iloc[0]}: {rows['says'].iloc[0]}."


def _notes(rows: DataFrame) -> list[str]:
    """What is assumed and promised, where all statements agree; and a probability that so few draws cannot show."""
    lines = []
    for name, word in (("assumption", "assumes"), ("promise", "promises")):
        texts = rows[name].dropna().unique()
        lines += [f"{word}: {texts[0]}"] if len(texts) == 1 else []
    undecided = rows[(rows["verdict"] == "undecided") & rows["delta"].notna()]
    for delta, seeds in dict.fromkeys(zip(undecided["delta"], undecided["seeds"], strict=True)):
        # even draws that all succeed leave an interval that may reach beyond δ
        least = least_trials(float(delta))
        if seeds < least:
            lines.append(
                f"undecided: too few repeats to show a probability of at most {delta:g}; choose --repeats {least}"
            )
    return lines


def with_statement(rows: DataFrame) -> DataFrame:
    """The rows with ``statement``, the theorem with its parameters in words."""
    return rows.assign(statement=rows["theorem"] + rows["at"].fillna("").map(lambda at: f", {at}" if at else ""))


def dimensions(details: Any) -> DataFrame:
    """A row for each ε and head with ``d_stat`` and ``sufficient``, which statements of several budgets repeat."""
    known = details[details["detail"].isin(["d_stat", "sufficient"])]
    # d_stat does not depend on d, so statements of several budgets have the same numbers
    once = known.drop_duplicates([*PLACE, "epsilon", "detail"])
    names = [name for name in once if name not in ("detail", "index", "value")]
    wide = once[names].drop_duplicates([*PLACE, "epsilon"])
    for detail in ("d_stat", "sufficient"):
        of_detail = once.loc[once["detail"] == detail, [*PLACE, "epsilon", "value"]]
        wide = wide.merge(of_detail.rename(columns={"value": detail}), "left", [*PLACE, "epsilon"])
    return wide


def failures(details: Any) -> DataFrame:
    """For each head, the ``rate`` of draws whose error is above ε, at values of ε between all errors of the run."""
    import numpy as np
    import pandas as pd

    errors = details[(details["detail"] == "errors") & details["value"].notna()]
    errors = errors.drop_duplicates([*PLACE, "d", "at", "index"])
    finite = errors["value"].to_numpy(float)
    finite = finite[np.isfinite(finite) & (finite > 0)]
    if not len(finite):
        return errors.iloc[:0].assign(rate=pd.Series(dtype="Float64"), of=pd.Series(dtype="string"))
    # beyond the least and the largest error, so that curves begin and end flat
    grid = np.geomspace(finite.min() / 2, finite.max() * 2, GRID)
    rows = []
    for _, group in errors.groupby([*PLACE, "d", "at"], sort=False, dropna=False):
        values = group["value"].to_numpy(float)
        first = group.iloc[[0] * GRID].assign(epsilon=grid, rate=[(values > step).mean() for step in grid])
        rows.append(first)
    every = pd.concat(rows, ignore_index=True)
    return every.assign(of=every["at"].str.extract("of=([^,]*)")[0].fillna("errors").astype("string"))


TITLE = "What the theorems promise, and what is"
TABLES = (
    Table(
        "statements",
        "Verdicts on heads",
        each=("source", "scale_inputs", "theorem", "n"),
        by=("name", "d", "epsilon", "at"),
        columns=(
            METHOD,
            BUDGET,
            Column("ε", "epsilon", digits=None, priority=KEY, meaning="ε of the statement"),
            Column("at", "at", priority=KEY, meaning="other parameters of the statement"),
            Column("verdict", "verdicts", priority=KEY, meaning="the verdicts, each with its number of heads"),
            Column("measured\np10 – p90", "measured.median", "measured.p10", "measured.p90", priority=7),
            Column("bound\np10 – p90", "bound.median", "bound.p10", "bound.p90", priority=6),
            Column("slack\np10 – p90", "slack.median", "slack.p10", "slack.p90", priority=5),
        ),
        derived={verdict.replace(" ", "_"): _is(verdict) for verdict in VERDICTS},
        of_groups={"verdicts": _verdicts},
        sentence=_result,
        notes=_notes,
    ),
)
FIGURES = (
    Figure(
        "theory-verdicts",
        "Verdicts on heads",
        x="values",
        y="statement",
        marks=("stack",),
        rows="verdict.notna()",
        prepared=with_statement,
        colour="verdict",
        columns=(),
        caption="How many findings of each statement have each verdict: one for each head, budget and ε.",
    ),
    Figure(
        "theory-bounds",
        "Measured against bound",
        x="bound",
        y="measured",
        marks=("point",),
        rows="measured > 0 and bound > 0",
        prepared=with_statement,
        points=(EACH,),
        colour="verdict",
        columns=("statement",),
        log=("bound", "measured"),
        shared="",
        guides=(Guide("equal", "measured = bound"),),
        caption="What was measured against the bound of the statement: a point for each head, budget and ε.",
    ),
    Figure(
        "theory-dimension",
        "Statistical dimension against λ",
        kind="detail",
        prepared=dimensions,
        x="epsilon",
        y="d_stat",
        marks=("band p10 p90", "line", "point"),
        rows=DIMENSION,
        colour="n",
        log=("epsilon", "d_stat"),
        several="epsilon",
        caption="Statistical dimension of the lifted kernel at λ = ε‖C‖, over heads and windows.",
    ),
    Figure(
        "theory-tokens",
        "Statistical dimension and sufficient landmarks against n",
        kind="detail",
        prepared=dimensions,
        x="n",
        y=("d_stat", "sufficient"),
        marks=("band p10 p90", "line", "point"),
        rows=DIMENSION,
        colour="epsilon",
        log=("n", "d_stat", "sufficient"),
        several="n",
        caption="Statistical dimension, and the landmarks that Theorem 2 requires, over heads and windows.",
    ),
    Figure(
        "theory-failures",
        "Share of draws with an error above ε",
        kind="detail",
        prepared=failures,
        x="epsilon",
        y="rate",
        marks=("band median max", "line"),
        center="max",
        shade="d",
        columns=("of", "layer"),
        log=("epsilon",),
        caption="Share of draws whose error is above ε: the median head, and the head with the largest share.",
    ),
    Figure(
        "theory-collapse",
        "What attention leaves of V beyond rank one",
        x="layer",
        y=("measured", "bound"),
        marks=("band p10 p90", "line", "point"),
        rows="theorem == 'rank-collapse'",
        colour="theorem",
        columns=(),
        log=("measured", "bound"),
        several="layer",
        caption="Residual of BV over that of V, and its bound, layer by layer.",
    ),
)
