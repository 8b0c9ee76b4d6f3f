"""The tables and figure of ``attnprobe compare``: two runs, or two methods of one, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...frame.metric import METRICS
from ..figure import EACH, Figure, Guide
from ..table import BUDGET, KEY, METHOD, Column, Table

if TYPE_CHECKING:
    from pandas import DataFrame

PLACE = ("source", "n", "layer", "where", "target")
WORDS = {  # of further facts that tell lines apart, in captions
    "layers_together": "layers {} together",
    "layers": "layers {} replaced",
    "kv_head": "KV head {}",
    "prefix": "behind {} tokens",
    "backward": "",
    "format": "{}",
}
COSTS = {"visited_fraction": "visited", "scored": "scored", "kv_read": "keys read", "cache_bytes": "kept"}
FEW = "too few"


def _metric(rows: Any) -> Any:
    """The metric of each row with its symbol."""
    metrics = {name: METRICS[name] for name in rows["metric"].dropna().unique()}
    words = {name: ", ".join(dict.fromkeys([metric.title, metric.symbol])) for name, metric in metrics.items()}
    return rows["metric"].map(words)


def _where(rows: DataFrame) -> list[str]:
    """The facts of `WORDS` that each row has, in words."""
    texts = [
        [words.format(value) for value in rows[name].astype("object").where(rows[name].notna(), "")]
        for name, words in WORDS.items()
    ]
    known = [rows[name].notna().tolist() for name in WORDS]
    # from a list for each fact to a list for each row
    return [
        ", ".join(text for text, is_known in zip(of_row, facts, strict=True) if text and is_known)
        for of_row, facts in zip(zip(*texts, strict=True), zip(*known, strict=True), strict=True)
    ]


def _cost(name: str, unit: str = "") -> tuple[Column, Column]:
    """The columns of a cost of both sides."""
    first, second = (
        Column(
            f"{COSTS[name]}\nof {side.upper()}", f"{name}_{side}", unit=unit, priority=2, meaning=METRICS[name].meaning
        )
        for side in "ab"
    )
    return first, second


def _reasons(rows: DataFrame) -> list[str]:
    """The reasons behind verdicts that no column has; budgets of one method with one reason share a line."""
    budgets: dict[tuple[str, str, str], list[str]] = {}
    for row in rows.to_dict("records"):
        # a reason that is a p-value stands in a column of the table already
        if isinstance(row["reason"], str) and (not row["reason"].startswith("p =") or FEW in row["reason"]):
            of_method = budgets.setdefault((row["name"], row["verdict"], row["reason"]), [])
            of_method += [] if str(row["d"]) in ("<NA>", "nan", "None") else [str(row["d"])]
    return [
        f"{name}{', d = ' + ', '.join(of_method) if of_method else ''}: {verdict}, {reason}"
        for (name, verdict, reason), of_method in budgets.items()
    ]


DIFFERENCES = Table(
    "differences",
    "Comparison",
    kind="line",
    rows="compared",
    each=("what", *PLACE),
    columns=(
        METHOD,
        Column("verdict", "verdict", priority=KEY, meaning="on B, by the rules of the guide to compare"),
        BUDGET,
        Column("A", "a", digits=4, priority=8, meaning="the statistic of A"),
        Column("B", "b", digits=4, priority=8, meaning="the statistic of B"),
        Column("B / A", "ratio", priority=5, meaning="the ratio; empty where the sign changes"),
        Column(
            "B − A\n[interval]",
            "difference",
            "low",
            "high",
            signed=True,
            priority=8,
            meaning="the difference with its interval; all intervals of the table hold with the same confidence",
        ),
        Column("p by\nHolm", "p_adjusted", digits=2, priority=7, meaning="two-sided, corrected over the table's lines"),
        Column("test", "test", priority=4, meaning="what is exchanged or averaged"),
    ),
    more=(
        Column("p of\none line", "p", digits=2, meaning="two-sided, not corrected"),
        Column("s.e.", "se", meaning="of a difference that windows test"),
        Column("statistic", "statistic", meaning="of the paired values"),
        Column("pairs", "values", digits=0, meaning="pairs of finite values"),
        Column("windows", "windows", digits=0, meaning="text windows"),
        Column("heads", "heads", digits=0, meaning="heads, of all layers together"),
        Column("paired", "paired", meaning="cells, or windows where seeds differ; empty for none"),
        Column("seeds\nof A", "seeds_a", meaning="seeds of A that are compared"),
        Column("seeds\nof B", "seeds_b", meaning="seeds of B that are compared"),
        Column("status\nof A", "status_a", meaning="the worst status of A"),
        Column("status\nof B", "status_b", meaning="the worst status of B"),
        Column("bad rows", "bad", meaning="the sides with bad rows"),
        Column("reason", "reason", meaning="why the verdict is what it is"),
        *_cost("visited_fraction", "%"),
        *_cost("scored"),
        *_cost("kv_read"),
        *_cost("cache_bytes", "MiB"),
    ),
    derived={"what": _metric, "where": _where},
    notes=_reasons,
)


ALONE = Table(
    "alone",
    "Not compared",
    kind="line",
    rows="not compared",
    each=PLACE,
    derived={"where": _where},
    columns=(
        METHOD,
        BUDGET,
        Column("verdict", "verdict", priority=KEY, meaning="missing: the line was requested, and one side lacks it"),
        Column("cells", "cells", digits=0, meaning="cells without a partner"),
        Column("which", "reason", priority=6, meaning="the side that has them, or their windows, seeds and heads"),
    ),
)
TITLE = "Comparison of methods"
TABLES = (DIFFERENCES, ALONE)
FIGURES = (
    Figure(
        "differences",
        "Differences B − A with their intervals",
        kind="line",
        x="difference",
        y="at",
        marks=("bar low high", "point"),
        points=(EACH,),
        colour="verdict",
        columns=("layer",),
        lines=("metric",),
        guides=(Guide("x", "no difference"),),
        caption="B − A of each method and budget, with intervals that hold together in a panel.",
    ),
)
