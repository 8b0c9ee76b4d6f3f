"""The view of ``attnprobe theory``: rows per head, their summary per statement, and tables in every format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ...tables.labels import at_label, source_heading
from ...tables.numbers import brief, method_label
from ...tables.table import Column, Table, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .result import theory_result
from .rows import FIELDS, TheorySummary, theory_rows, theory_summary

if TYPE_CHECKING:
    from .record import TheoryRecord


def view(recorded: Recorded[TheoryRecord]) -> View:
    """The view of the records of ``attnprobe theory``."""
    from .figures import theory_figures

    records = recorded.records
    rows = theory_rows(records)
    summary = theory_summary(rows)
    draw = lambda folder: theory_figures(records, recorded.drawing, folder)
    return View(
        "theory",
        recorded.header,
        rows,
        theory_tables(summary),
        columns=COLUMNS,
        fields=FIELDS,
        title="What the theorems promise, and what is",
        result=theory_result(rows),
        summary=summary,
        judged=summary,
        figures={"theory": Figure("theory", draw, "no cell has a finding, so there is nothing to draw")},
    )


def theory_tables(summary: Sequence[TheorySummary]) -> list[Table]:
    """One table per (source, theorem): its statement, then a line for each case that was evaluated.

    Theorems that were skipped everywhere have no table, but a line below the last one for each reason.
    """
    groups = grouped_by(summary, "source", "theorem")
    evaluated = [group for group in groups if any(row["status"] != "skipped" for row in group)]
    if not evaluated:
        return [_table(group) for group in groups]
    *tables, last = [_table(group) for group in evaluated]
    names: dict[str, dict[str, None]] = {}
    for row in (row for group in groups if group not in evaluated for row in group):
        names.setdefault(row["reason"] or "", {})[row["theorem"]] = None
    skipped = [f"– skipped, {reason}: {', '.join(theorems)}" for reason, theorems in names.items()]
    return [*tables, replace(last, notes=[*last.notes, *skipped])]


def _table(group: Sequence[TheorySummary]) -> Table:
    first = group[0]
    shared = _shared_at(group)
    at = at_label(shared, first["method"])
    notes = [f"says: {first['says']}"] if first["says"] else []
    notes += [f"at: {at}"] if at else []
    texts = {}
    for name, word in (("assumption", "assumes"), ("promise", "promises")):
        texts[name] = list(dict.fromkeys(row[name] for row in group if row[name]))
        notes += [f"{word}: {texts[name][0]}"] if len(texts[name]) == 1 else []
    columns = [
        *PLACES,
        _at(shared),
        *NUMBER_COLUMNS,
        *(TEXTS[name] for name in TEXTS if len(texts[name]) > 1),
    ]
    heads = counted(group) if any(row["heads"] for row in group) else ""
    caption = joined(f"{first['theorem']} · {first['paper']}", source_heading(first), heads)
    return table_of(caption, group, columns, notes + reasons(group, _name))


def _shared_at(group: Sequence[TheorySummary]) -> dict[str, object]:
    """The parameters that all of several statements share."""
    given = [row["at"] for row in group if row["status"] == "ok"]
    if len(given) < 2:
        return {}
    return {name: value for name, value in given[0].items() if all(at.get(name) == value for at in given)}


def _own_at(row: TheorySummary, shared: Mapping[str, object]) -> dict[str, object]:
    """The parameters of a statement that the others do not share."""
    return {name: value for name, value in row["at"].items() if name not in shared}


def _name(row: TheorySummary) -> str:
    budget = "" if row["d"] is None else f"d = {row['d']}"
    return " ".join(filter(None, [method_label(row), f"layer {row['layer']}", f"n = {row['n']}", budget]))


def _verdict(row: TheorySummary) -> str:
    if row["status"] != "ok":
        return row["status"]
    if len(row["verdicts"]) > 1:
        return ", ".join(f"{word} {count}" for word, count in row["verdicts"].items())
    return f"{next(iter(row['verdicts']))} {row['values']}/{row['values']}"


def _ends(name: str, *ends: Literal["p10", "median", "p90"]) -> Callable[[TheorySummary], str]:
    """A quantile, or two if they differ."""

    def cell(row: TheorySummary) -> str:
        spread = row.get("quantiles", {}).get(name, {})
        if spread.get("median") is None:
            return ""
        texts = [brief(spread[end]) for end in ends]
        return "" if len(texts) > len(set(texts)) else " – ".join(texts)

    return cell


def _text(name: Literal["assumption", "promise"]) -> Callable[[TheorySummary], str]:
    return lambda row: (row[name] or "") if row["status"] == "ok" else ""


def _at(shared: Mapping[str, object]) -> Column:
    """The parameters of a statement that the others of its table do not share."""
    return Column(
        "at", lambda row: at_label(_own_at(row, shared), row["method"]), "parameters of the statement", key=True
    )


PLACES: tuple[Column, ...] = (
    Column("method", method_label, key=True),
    *(Column(name, f"{{{name}}}", key=True) for name in ("layer", "n", "d")),
)
QUANTILES = "median over heads and windows"
SLACK = "factor between measured and bound, above 1 where the promise holds"
SIDES = "bound over measured where at most the bound is promised, measured over bound where at least"
VERDICTS_IN_WORDS = (
    "the first that applies: assumption not met, so nothing is promised; vacuous, the bound promises no more than is "
    "true of every matrix; violated, beyond the measured interval and its rounding; holds"
)
ENDS = "quantiles, where they differ"
NUMBER_COLUMNS: tuple[Column, ...] = (
    Column("verdict", _verdict, "with the number of heads", more=VERDICTS_IN_WORDS),
    Column("measured", _ends("measured", "median"), QUANTILES),
    Column("measured p10 – p90", _ends("measured", "p10", "p90"), ENDS, spare=1),
    Column("bound", _ends("bound", "median"), QUANTILES),
    Column("bound p10 – p90", _ends("bound", "p10", "p90"), ENDS, spare=3),
    Column("slack", _ends("slack", "median"), SLACK, more=SIDES),
    Column("slack p10 – p90", _ends("slack", "p10", "p90"), ENDS, spare=2),
)
TEXTS: dict[Literal["assumption", "promise"], Column] = {  # columns where a table has several
    "assumption": Column("assumption", _text("assumption"), "what the theorem assumes", spare=4),
    "promise": Column("promise", _text("promise"), "what the theorem promises", spare=5),
}
COLUMNS = (*PLACES, _at({}), *NUMBER_COLUMNS, *TEXTS.values())
