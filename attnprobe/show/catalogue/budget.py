"""The tables and the figure of ``attnprobe budget``: the smallest budgets, and larger ones that fail.

A row of kind ``head`` is a head and ε: ``found`` is the smallest d that is enough, infinite where none is. A row of
kind ``counterexample`` is a larger budget at which the error exceeds ε again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..figure import Figure
from ..grid import Cell
from ..table import KEY, METHOD, Column, Computed, Table

if TYPE_CHECKING:
    from pandas import DataFrame

PLACE = ("source", "scale_inputs", "n", "layer", "target", "metric")
EPSILON = Column("ε", "epsilon", digits=None, priority=KEY, meaning="the largest error allowed")


def _budgets(statistic: str) -> Computed:
    """A statistic of d: ``> most`` where no budget up to most is enough, ``≤ d`` where smaller ones were not tried."""
    found = f"found.{statistic}"

    def cells(lines: DataFrame) -> list[Cell]:
        ends = zip(lines[found], lines["least.min"], lines["most.max"], strict=True)
        return [_cell(d, least, most) for d, least, most in ends]

    return Computed((found, "least.min", "most.max"), cells)


def _cell(d: float, least: float, most: float) -> Cell:
    if math.isnan(d):
        return Cell()
    # d = 1 is the smallest of all budgets, so nothing below it could be enough
    return Cell(d, text=f"> {most:g}" if math.isinf(d) else f"≤ {d:g}" if 1 < d == least else f"{d:g}")


def _shares(lines: DataFrame) -> list[Cell]:
    """The median d over n, in per cent."""
    ends = zip(lines["share.median"], lines["most.max"], lines["n"], strict=True)
    return [
        Cell(None if math.isnan(share) else share, text=f"> {most / n:.0%}" if math.isinf(share) else "")
        for share, most, n in ends
    ]


def _column(name: str) -> Callable[[DataFrame], Any]:
    """A column of the rows; all missing where every cell was skipped, whose rows lack the column."""
    return lambda rows: rows[name] if name in rows else rows["n"].where(rows["n"] < 0).astype("Float64")


_found, _fails = _column("found"), _column("fails")


def _finite(rows: DataFrame) -> Any:
    return _found(rows).where(_found(rows) < math.inf)


def _share(is_so: Callable[[DataFrame], Any]) -> Callable[[DataFrame], Any]:
    """1 for the heads for which ``is_so`` holds, 0 for the others, missing where nothing was searched."""
    return lambda rows: is_so(rows).astype("Float64").where(_found(rows).notna())


def _search(rows: DataFrame) -> list[str]:
    """How budgets were tried."""
    known = rows[["resolution", "scan", "delta"]].dropna().drop_duplicates()
    return [_searched(*search) for search in known.itertuples(index=False)]


def _searched(resolution: float, scan: bool, delta: float) -> str:
    steps = "every budget" if resolution == 1 else f"steps of {resolution:g}"
    return f"{steps}{' scanned' if scan else ''}, δ = {delta:g}"


ENOUGH = "smallest d with an error ≤ ε in 1 − δ of the seeds; > d: none up to d; ≤ d: the smallest tried"
BUDGETS = Table(
    "budgets",
    "Smallest d with an error ≤ ε",
    each=PLACE,
    by=("name", "epsilon"),
    pooled=("d",),
    columns=(
        METHOD,
        EPSILON,
        Column("d\nmin", _budgets("min"), name="found.min", priority=6, meaning=ENOUGH),
        Column("d\nmedian", _budgets("median"), name="found.median", priority=8, best="smaller", meaning=ENOUGH),
        Column("d\nmax", _budgets("max"), name="found.max", priority=7, meaning=ENOUGH),
        Column(
            "median\nd / n",
            Computed(("share.median", "most.max", "n"), _shares),
            name="share.median",
            unit="%",
            priority=4,
            meaning="the median d over the number of tokens",
        ),
        Column("heads\nunreached", "unreached.sum", digits=0, of="values", meaning="heads without such a d"),
        Column(
            "counter-\nexamples",
            "counterexamples.sum",
            digits=0,
            of="values",
            meaning="heads whose error exceeds ε again at a larger budget that was tried",
        ),
    ),
    more=(
        Column("seeds\nthat hold", "held.min", digits=0, of="seeds.max", meaning="the fewest seeds of a head, at d"),
        Column("probability\n95 %", "lower.min", meaning="lower end of the interval of the probability to hold"),
    ),
    rivals=("epsilon",),
    derived={
        **{name: _column(name) for name in ("found", "least", "most", "seeds", "held", "lower")},
        "d": _finite,
        "d_over_n": lambda rows: _finite(rows) / rows["n"],
        "share": lambda rows: _found(rows) / rows["n"],
        "unreached": _share(lambda rows: _found(rows) == math.inf),
        "counterexamples": _share(lambda rows: _fails(rows) > 0),
    },
    notes=_search,
)
COUNTEREXAMPLES = Table(
    "counterexamples",
    "Larger budgets whose error exceeds ε again",
    kind="counterexample",
    rows="failed == failed",
    each=PLACE,
    by=("name", "epsilon", "head"),
    columns=(
        METHOD,
        EPSILON,
        Column("head", "head", digits=None, priority=KEY),
        Column("smallest\nd", "found.max", digits=0, meaning="the smallest d that is enough"),
        Column("fails\nfrom", "failed.min", digits=0, meaning="the smallest larger budget that fails"),
        Column("to", "failed.max", digits=0, meaning="the largest budget that fails"),
        Column("largest\nerror", "exceeds.max", digits=5, meaning="the largest error at these budgets"),
        Column("holds\nfrom", "holds_from.max", digits=0, meaning="every budget tried from here on holds"),
    ),
    derived={
        **{"failed": _column("d"), "exceeds": _column("error"), "holds_from": _column("holds_from")},
    },
)
TITLE = "The smallest budget that is enough"
TABLES = (BUDGETS, COUNTEREXAMPLES)
MAP = Figure(
    "budget",
    "The smallest d of each head",
    x="head",
    y="layer",
    value="found",
    marks=("cell", "number"),
    columns=("epsilon",),
    lines=("name",),
    log=("found",),
    spaced=("head", "layer"),
    flags={"fails": "ring: above ε again at a larger d"},
    center="max",
    several="layer",
    caption="The smallest d with which the error is at most ε: the largest over windows. Grey: no d is enough.",
)
FIGURES = (
    MAP,
    replace(MAP, name="budget-methods", title="The smallest d of each method", y="name", lines=("layer",), several=""),
)
