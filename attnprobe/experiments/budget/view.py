"""The view of ``attnprobe budget``: rows per head, their summary per layer, tables, and the files of budgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from ...records.file import SCHEMA
from ...tables.labels import file_tag, identity, source_heading, source_labels
from ...tables.numbers import brief, method_label, per_cent, significant
from ...tables.table import Best, Column, Table, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .result import budget_result
from .rows import (
    FIELDS,
    BudgetSummary,
    Counterexample,
    HeadRow,
    HeadsSummary,
    budget_rows,
    budget_summary,
    has_heads,
    is_of_head,
)

if TYPE_CHECKING:
    from ...records.shapes import Source
    from .record import BudgetRecord

MOST_NOTES = 8  # heads whose error does not fall


def view(recorded: Recorded[BudgetRecord]) -> View:
    """The view of the records of ``attnprobe budget``."""
    from .figures import budget_figures

    records = recorded.records
    rows = budget_rows(records)
    summary = budget_summary(rows)
    draw = lambda folder: budget_figures(records, recorded.drawing, folder)
    return View(
        "budget",
        recorded.header,
        rows,
        budget_tables(summary),
        columns=COLUMNS,
        fields=FIELDS,
        title="The smallest budget that is enough",
        result=budget_result(rows),
        summary=summary,
        judged=summary,
        figures={"budget": Figure("budget", draw, "no head has a budget, so there is nothing to draw")},
        files=budget_files(records),
    )


def budget_tables(summary: Sequence[BudgetSummary]) -> list[Table]:
    """One table per (source, target, metric), a line for each method, ε, length and layer."""
    tables = []
    for group in grouped_by(summary, "source", "target", "metric"):
        first = group[0]
        steps = "every budget" if first["resolution"] == 1 else f"steps of {first['resolution']:g}"
        caption = joined(
            f"smallest d with {first['metric']} ≤ ε",
            source_heading(first),
            "" if first["target"] == "softmax" else f"target {first['target']}",
            counted(group) if any(row["heads"] for row in group) else "",
            f"{steps} scanned" if first["scan"] else steps,
            f"δ = {first['delta']:g}",
        )
        tables.append(table_of(caption, group, COLUMNS, _notes(group), rivals=_rivals))
    return tables


def _measured(cell: Callable[[HeadsSummary], str]) -> Callable[[BudgetSummary], str]:
    """The cell of rows with a measurement."""
    return lambda row: cell(row) if has_heads(row) else ""


def _epsilon(row: BudgetSummary) -> str:
    return "" if row["epsilon"] is None else f"{row['epsilon']:g}"


def _budget(name: str) -> Callable[[BudgetSummary], str]:
    """A budget: ``> d`` if none up to d is enough, ``≤ d`` if smaller ones were not tried."""

    def cell(row: HeadsSummary) -> str:
        d = row["range"][name]
        if math.isinf(d):
            return f"> {row['most']}"
        return f"≤ {d:g}" if 1 < d == row["least"] else f"{d:g}"

    return _measured(cell)


def _share(row: HeadsSummary) -> str:
    median, most = row["range"]["median"], row["most"] or 0
    return f"> {per_cent(most / row['n'])}" if math.isinf(median) else per_cent(median / row["n"])


def _interval(row: HeadsSummary) -> str:
    weakest = row["weakest"]
    return "" if weakest is None else " – ".join(significant(weakest[end], 3) for end in ("lower", "upper"))


def _seeds(row: HeadsSummary) -> str:
    return "" if row["weakest"] is None else f"{row['weakest']['held']}/{row['seeds']}"


def _median(row: BudgetSummary) -> float | None:
    """The median budget; None if half of the heads have none or nothing was measured."""
    median = row["range"]["median"] if has_heads(row) else math.inf
    return median if math.isfinite(median) else None


def _rivals(row: BudgetSummary) -> Hashable | None:
    """Methods are compared at one ε, layer and n."""
    return (row["epsilon"], row["layer"], row["n"]) if row["status"] == "ok" else None


ENOUGH = "smallest d with an error ≤ ε, over heads and windows"
TRIED = "in at least 1 − δ of the seeds; > d: no budget up to d is enough; ≤ d: smaller ones were not tried"
HELD = "the fewest seeds of a head that hold at d"
CHOSEN = "with the exact interval of their probability; these seeds also chose d, so it is on the high side"
COLUMNS: tuple[Column, ...] = (
    Column("method", method_label, key=True),
    Column("ε", _epsilon, "the largest error allowed", key=True),
    Column("layer", "{layer}", key=True),
    Column("n", "{n}", key=True),
    Column("status", lambda row: "" if row["heads"] else row["status"]),
    Column("d min", _budget("min"), ENOUGH, spare=1, more=TRIED),
    Column("d median", _budget("median"), ENOUGH, more=TRIED, best=Best(_median)),
    Column("d max", _budget("max"), ENOUGH, more=TRIED),
    Column("median d/n", _measured(_share), "the median d over the number of tokens", spare=2),
    Column("unreached", _measured(lambda row: f"{row['unreached']}/{row['values']}"), "heads without such a d"),
    Column(
        "counterexamples",
        _measured(lambda row: f"{row['counterexamples']}/{row['values']}"),
        "heads whose error exceeds ε again at a larger d",
        more="of the budgets that were tried; others may exceed ε too",
    ),
    Column("seeds", _measured(_seeds), HELD, spare=3, more=CHOSEN),
    Column("95 % interval", _measured(_interval), HELD, spare=4, more=CHOSEN),
)


def _name(row: BudgetSummary) -> str:
    return f"{method_label(row)} layer {row['layer']} n = {row['n']}"


def _notes(group: Sequence[BudgetSummary]) -> list[str]:
    """Cells without results, then heads whose error exceeds ε again."""
    lines = [_counterexample(row, one) for row in group if has_heads(row) for one in row["counterexample_heads"]]
    more = [f"counterexamples: {len(lines) - MOST_NOTES} heads more (`--format json` has all)"]
    return reasons(group, _name) + lines[:MOST_NOTES] + more * (len(lines) > MOST_NOTES)


def _counterexample(row: HeadsSummary, head: Counterexample) -> str:
    window = f" window {head['window']}" if row["windows"] > 1 else ""
    budgets = list(zip(head["fails_at"], head["fails_at_error"], strict=True))
    beyond = ", ".join(f"{brief(error)} at {d}" for d, error in budgets[:3])
    more = f" and at {len(budgets) - 3} more" if len(budgets) > 3 else ""
    holds = "" if head["holds_from"] is None else f"; at most ε from {head['holds_from']} on"
    place = f"{_name(row)} ε = {row['epsilon']:g} head {head['head']}{window}"
    return f"counterexample: {place}: d = {head['d']}, but {beyond}{more}{holds}"


def budget_files(records: Sequence[BudgetRecord]) -> dict[str, dict[str, Any]]:
    """The contents of each ``budgets-METHOD.json``, by name: the d of every layer and head for one method and ε.

    A head has the largest d over windows, or null if one window has none. If a run has several files of a method, their
    names also contain what they differ in: ε, n, target, metric, source.
    """
    rows = list(filter(is_of_head, budget_rows(records)))
    labels = source_labels(records)
    facts = {labels[identity(record["source"])]: record["source"] for record in records}
    own = {record["method"]: record.get("method_file") for record in records}
    hashes = {name: {"method_sha256": file["sha256"]} if file else {} for name, file in own.items()}
    varying = [name for name in TAGS if len({row[name] for row in rows}) > 1]
    files = {}
    for group in grouped_by(rows, "method", "options", *TAGS):
        first = group[0]
        tags = "".join(file_tag(TAGS[name](first[name])) for name in varying)
        contents = _file(group, facts[first["source"]]) | hashes[first["method"]]
        files[f"budgets{file_tag(method_label(first))}{tags}.json"] = contents
    return files


TAGS: dict[str, Callable[[Any], str]] = {  # the parts of file names
    "source": str,
    "target": str,
    "metric": str,
    "n": lambda n: f"n{n}",
    "epsilon": lambda epsilon: f"epsilon{epsilon:g}",
}


def _file(group: Sequence[HeadRow], source: Source) -> dict[str, Any]:
    first = group[0]
    heads = []
    for rows in sorted(grouped_by(group, "layer", "head"), key=lambda rows: (rows[0]["layer"], rows[0]["head"])):
        d = [row["d"] for row in rows if row["d"] is not None]
        place = {name: rows[0][name] for name in ("layer", "head")}
        sure = all(row["no_counterexample"] for row in rows)
        lost = {"d": None, "no_counterexample": None}
        heads.append(place | ({"d": max(d), "no_counterexample": sure} if len(d) == len(rows) else lost))
    return {
        "schema": SCHEMA,
        **{name: first[name] for name in ("method", "options", "metric", "epsilon", "n")},
        **{name: source.get(name) for name in ("model", "weights")},
        **{name: first[name] for name in ("target", "scale_inputs", "delta", "seeds", "needed")},
        "windows": len({row["window"] for row in group}),
        "resolution": first["resolution"],
        "d_max": first["most"],
        "budgets": heads,
    }
