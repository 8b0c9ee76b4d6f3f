"""The view of ``attnprobe audit``: a row for each promise and head, their summary, its tables and the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from ...linalg.exceedance import VERDICTS, least_trials
from ...tables.labels import source_heading
from ...tables.long import CELL, Row, describe, known, long_rows, summarised
from ...tables.long import FIELDS as LONG
from ...tables.numbers import method_label
from ...tables.results import at_budget, in_words, lost, sentences, too_few_repeats
from ...tables.table import Column, Table, counted, gathered, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .record import METRICS, PER_HEAD, SHAPE

ERRORS = {"normaliser": "|D~/D − 1|", "numerator": "‖N~ − N‖/‖N‖", "output": "‖o~ − o‖/‖o‖", "matrix": "‖E‖₂/‖B‖₂"}
WORDS = {"holds": "hold", "violated": "are violated", "undecided": "are undecided"}
ENOUGH = 400  # repeats; unbiased vattention at ε = 0.5 seems biased in 4 % of heads then, in 16 % at 60 repeats
TEST = ("repeats", "trials", "confidence", "anytime")
PROMISE = ("quantity", "per", "epsilon", "delta")
FIELDS = (*LONG, *TEST, *PROMISE, *PER_HEAD, *METRICS)


def view(recorded: Recorded) -> View:
    """The view of the records of ``attnprobe audit``."""
    from .figures import audit_figures

    rows = long_rows(recorded.records, SHAPE, (*CELL, *TEST))
    summary = audit_summary(rows)
    draw = partial(audit_figures, rows, recorded.drawing)
    return View(
        "audit",
        recorded.header,
        rows,
        [table for group in grouped_by(summary, "source", "layer", "n") for table in _tables(group)],
        title="Promised and measured probabilities of errors",
        result=audit_result(rows),
        summary=summary,
        judged=summary,
        figures={"calibration": Figure("calibration", draw, "nothing was tested that could be drawn")},
    )


def audit_summary(rows: Sequence[Row]) -> list[Row]:
    """One entry per (source, method with options, layer, n, d, promise), over heads and windows.

    ``verdicts`` counts them. ``metrics`` describes the numbers of heads, and for each verdict the share of heads with
    it. Windows with another status have an entry of their own.
    """
    return summarised(rows, ("source", "method", "options", "layer", "n", "d", *PROMISE, "status"), _statistics)


def _statistics(group: list[Row]) -> Row:
    heads = [row for row in group if row["head"] is not None]
    windows = [row["window"] for row in heads]
    counts = Counter(row["verdict"] for row in heads)
    entry: Row = {
        "at": {name: heads[0][name] for name in PROMISE} if heads else {},
        "requested": True,
        "trials": [min(row["trials"] for row in group), max(row["trials"] for row in group)],
        **{name: group[0].get(name) for name in ("confidence", "anytime")},
        "values": len(heads),
        "cells": len({row["window"] for row in group}),
        "verdicts": {word: counts[word] for word in VERDICTS if counts[word]},
        "metrics": {},
    }
    if heads:
        most = max(heads, key=lambda row: row["worst"])
        entry["interval"] = most["lower"], most["upper"]
        for word in VERDICTS:
            entry["metrics"][word] = describe([float(row["verdict"] == word) for row in heads], windows)
        for name in ("rate", "worst", "upper", *METRICS):
            if known(heads, name):
                entry["metrics"][name] = describe([row.get(name) for row in heads], windows)
    return entry


def _verdicts(row: Row) -> str:
    if row["status"] == "skipped" or not row["verdicts"]:
        return row["status"]
    return ", ".join(f"{word} {count}/{row['values']}" for word, count in row["verdicts"].items())


def _biased(row: Row) -> str:
    biased = row["metrics"].get("biased")
    return f"{round(biased['mean'] * biased['count'])}/{biased['count']}" if biased else ""


METHOD = (Column("method", method_label, key=True), Column("d", "{d}", key=True))
PROMISES = (
    *METHOD,
    Column("error", lambda row: ERRORS.get(row["quantity"], ""), "the error that is promised", key=True),
    Column("of", lambda row: "rows" if row["per"] == "row" else "", "each row is judged by itself", key=True),
    Column("ε", "{epsilon:g}", "promised error", key=True),
    Column("δ", "{delta:g}", "promised probability of a larger error", key=True),
    Column(
        "verdict",
        _verdicts,
        "with the number of heads",
        more="all verdicts of a line are right together at the stated confidence; a head of rows holds if all rows do",
    ),
    Column("rate", "{metrics[rate][mean]:share}", "share of repeats with an error above ε, mean over heads"),
    Column("worst", "{metrics[worst][max]:share}", "rate of the worst head or row"),
    Column(
        "used",
        "{metrics[keys][mean]:4} ({metrics[keys_share][mean]:share})",
        "keys, landmarks or features of a row, and their share of the keys that it sees",
        2,
    ),
    Column(
        "residual error",
        "{metrics[residual_error][mean]:3}",
        "size of a head's error beside the residual stream of the model",
        3,
        more="mean over rows, repeats and heads of r² / (1 + r²), r = ‖W_O,h (o~ − o)‖ / ‖x + y‖",
    ),
    Column(
        "interval",
        "[{interval[0]:share} – {interval[1]:share}]",
        "of that rate",
        1,
        more="right for all heads and rows together, by Bonferroni's correction; verdicts are by Holm's, which "
        "decides more",
    ),
    Column("repeats", lambda row: " – ".join(map(str, dict.fromkeys(row["trials"]))), "seeds that were measured", 3),
)
OVER = ", median over heads"
NORMALISERS = (
    *METHOD,
    Column("bias", "{metrics[bias][median]:brief}", f"mean of D~/D − 1{OVER}"),
    Column(
        "z",
        "{metrics[bias_z][median]:brief}",
        f"bias over its standard error, corrected for skewness{OVER}",
    ),
    Column("biased", _biased, "heads whose bias is not chance"),
    Column("s.d.", "{metrics[normaliser_sd][median]:brief}", f"of D~/D over repeats{OVER}", 1),
    Column(
        "stated / s.d.",
        "{metrics[sd_ratio][median]:brief}",
        f"the method's own estimate over the measured s.d.{OVER}",
    ),
    Column("ESS", "{metrics[ess][median]:brief}", f"effective sample size of the weights{OVER}"),
    Column("least π", "{metrics[least_inclusion][p10]:brief}", "smallest probability that a key is used, p10 of heads"),
    Column("capped", "{metrics[capped][median]:share}", f"share of rows at the cap of samples{OVER}"),
)
COLUMNS = (*PROMISES, *NORMALISERS)


def _tables(group: Sequence[Row]) -> list[Table]:
    """Up to two tables of one source, layer and n: promises, and the normalisers of methods that state one."""
    where = joined(source_heading(group[0]), f"layer {group[0]['layer']}", f"n = {group[0]['n']}", counted(group))
    notes = [*too_few(group), *reasons(group, at_budget)]
    tables = [table_of(f"Promised errors · {where}", group, PROMISES, notes)]
    methods = [rows[0] for rows in grouped_by(group, "method", "options", "d")]
    if stated := [row for row in methods if "bias" in row["metrics"]]:
        tables.append(table_of(f"Normalisers D~/D · {where}", stated, NORMALISERS, doubts(stated)))
    return tables


def too_few(rows: Sequence[Row]) -> list[str]:
    """A note on undecided promises of heads without enough repeats for one that exceeds no ε to hold."""
    fixed = [row for row in rows if row["verdicts"] and row["per"] == "head" and not row["anytime"]]
    undecided = [row for row in fixed if "undecided" in row["verdicts"]]
    return too_few_repeats(
        (row["delta"], row["trials"][1], least_trials(row["delta"], row["confidence"], row["values"] // row["cells"]))
        for row in undecided
    )


def doubts(rows: Sequence[Row]) -> list[str]:
    """A note on biases that were found in few repeats, in which rare large weights may be missing."""
    found = [row["trials"][0] for row in rows if (row["metrics"].get("biased") or {}).get("mean")]
    if not found or min(found) >= ENOUGH:
        return []
    return [
        f"biased: {min(found)} repeats may find a bias where there is none, if large weights are rare; choose "
        f"--repeats {ENOUGH}"
    ]


def audit_result(rows: Sequence[Row]) -> str:
    """How many promises hold, head by head, and which methods are biased."""
    counts = Counter(known(rows, "verdict"))
    parts = [f"{counts[verdict]} {WORDS[verdict]}" for verdict in VERDICTS if counts[verdict]]
    share = f"Of {counts.total()} promises, head by head, {in_words(parts)}." if parts else ""
    tested = gathered([row for row in rows if row.get("biased") is not None], at_budget)
    biased = [f"{at_budget(group[0])} in {_heads(group)}" for group in tested if any(row["biased"] for row in group)]
    which = f"The normaliser is biased: {', '.join(biased)}." if biased else ""
    return sentences(share, which, lost(rows))


def _heads(rows: Sequence[Row]) -> str:
    """How many of the heads have a biased normaliser."""
    heads = {tuple(row[name] for name in ("source", "n", "layer", "window", "head")): row["biased"] for row in rows}
    return f"{sum(map(bool, heads.values()))} of {len(heads)} heads"
