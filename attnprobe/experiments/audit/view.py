"""What ``attnprobe audit`` shows: rows per head, their summary per promise, and tables in every format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...tables.labels import source_heading
from ...tables.numbers import brief, method_label, per_cent, significant
from ...tables.table import Column, Table, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .result import audit_result
from .rows import FIELDS, AuditSummary, audit_rows, audit_summary

if TYPE_CHECKING:
    from .record import AuditRecord

ERRORS = {"normaliser": "|D~/D − 1|", "numerator": "‖N~ − N‖/‖N‖", "output": "‖o~ − o‖/‖o‖", "matrix": "‖E‖₂/‖B‖₂"}


def view(recorded: Recorded[AuditRecord]) -> View:
    """What records of ``attnprobe audit`` show."""
    from .figures import audit_figures

    rows = audit_rows(recorded.records)
    summary = audit_summary(rows)
    draw = lambda folder: audit_figures(rows, recorded.drawing, folder)
    return View(
        "audit",
        recorded.header,
        rows,
        audit_tables(summary),
        columns=COLUMNS,
        fields=FIELDS,
        title="Promised and measured probabilities of errors",
        result=audit_result(rows),
        summary=summary,
        judged=summary,
        figures={"calibration": Figure("calibration", draw, "nothing was tested that could be drawn")},
    )


def _verdicts(row: AuditSummary) -> str:
    if row["status"] == "skipped" or not row["verdicts"]:
        return row["status"]
    return ", ".join(f"{word} {count}/{row['values']}" for word, count in row["verdicts"].items())


def _stat(name: str, stat: str, text: Callable[[float | None], str] = brief) -> Callable[[AuditSummary], str]:
    """A statistic of a metric, if there is one."""

    def cell(row: AuditSummary) -> str:
        statistics = row["metrics"].get(name)
        value = None if statistics is None else dict(statistics).get(stat)
        return text(value) if isinstance(value, float) else ""

    return cell


def _interval(row: AuditSummary) -> str:
    ends = row.get("interval")
    return "" if ends is None else f"[{per_cent(ends[0])} – {per_cent(ends[1])}]"


def _trials(row: AuditSummary) -> str:
    return " – ".join(map(str, dict.fromkeys(row["trials"])))


def _biased(row: AuditSummary) -> str:
    biased = row["metrics"].get("biased")
    if biased is None or biased["mean"] is None:
        return ""
    return f"{round(biased['mean'] * biased['count'])}/{biased['count']}"


def _keys(row: AuditSummary) -> str:
    read, share = (row["metrics"].get(name) for name in ("keys", "keys_share"))
    return "" if read is None or share is None else f"{significant(read['mean'])} ({per_cent(share['mean'])})"


def _of_rows(row: AuditSummary) -> str:
    return f"{row['per']}s" if row["per"] == "row" else ""


ENOUGH = 400  # repeats; unbiased vattention at ε = 0.5 seems biased in 4 % of heads then, in 16 % at 60 repeats
METHOD: tuple[Column, ...] = (
    Column("method", method_label, key=True),
    Column("d", lambda row: "" if row["d"] is None else str(row["d"]), key=True),
)
PROMISES: tuple[Column, ...] = (
    *METHOD,
    Column("error", lambda row: ERRORS.get(row["quantity"] or "", ""), "the error that is promised", key=True),
    Column("of", _of_rows, "each row is judged by itself", key=True),
    Column("ε", lambda row: "" if row["epsilon"] is None else f"{row['epsilon']:g}", "promised error", key=True),
    Column(
        "δ",
        lambda row: "" if row["delta"] is None else f"{row['delta']:g}",
        "promised probability of a larger error",
        key=True,
    ),
    Column(
        "verdict",
        _verdicts,
        "with the number of heads",
        more="all verdicts of a line are right together at the stated confidence; a head of rows holds if all rows do",
    ),
    Column("rate", _stat("rate", "mean", per_cent), "share of repeats with an error above ε, mean over heads"),
    Column("worst", _stat("worst", "max", per_cent), "rate of the worst head or row"),
    Column("keys", _keys, "that a row reads, and their share of those that it sees", 1),
    Column("interval", _interval, "of that rate", 2, more="right for all heads and rows together"),
    Column("repeats", _trials, "seeds that were measured", 3),
)
NORMALISERS: tuple[Column, ...] = (
    *METHOD,
    Column("bias", _stat("bias", "median"), "mean of D~/D − 1, median over heads"),
    Column("z", _stat("bias_z", "median"), "bias over its standard error, median"),
    Column("biased", _biased, "heads whose bias is not chance"),
    Column("s.d.", _stat("normaliser_sd", "median"), "of D~/D over repeats, median over heads", 1),
    Column("stated / s.d.", _stat("sd_ratio", "median"), "the method's own estimate over the measured s.d."),
    Column("ESS", _stat("ess", "median"), "effective sample size of the weights"),
    Column("least π", _stat("least_inclusion", "median"), "smallest probability that a key is used"),
    Column("capped", _stat("capped", "median", per_cent), "share of rows at the cap of samples"),
)
COLUMNS = (*PROMISES, *NORMALISERS)


def audit_tables(summary: Sequence[AuditSummary]) -> list[Table]:
    """Two tables for each source, layer and n: the promises, and the normalisers of methods that state one."""
    tables = []
    for group in grouped_by(summary, "source", "layer", "n"):
        first = group[0]
        where = joined(source_heading(first), f"layer {first['layer']}", f"n = {first['n']}", counted(group))
        tables.append(table_of(f"Promised errors · {where}", group, PROMISES, reasons(group, _name)))
        known = [values[0] for values in grouped_by(group, "method", "options", "d") if "bias" in values[0]["metrics"]]
        if known:
            tables.append(table_of(f"Normalisers D~/D · {where}", known, NORMALISERS, doubts(known)))
    return tables


def doubts(rows: Sequence[AuditSummary]) -> list[str]:
    """A note on biases that were found in few repeats, in which rare large weights may be missing."""
    found = [row["trials"][0] for row in rows if (row["metrics"].get("biased") or {}).get("mean")]
    if not found or min(found) >= ENOUGH:
        return []
    return [
        f"biased: {min(found)} repeats may find a bias where there is none, if large weights are rare; choose "
        f"--repeats {ENOUGH}"
    ]


def _name(row: AuditSummary) -> str:
    return " ".join(filter(None, [method_label(row), "" if row["d"] is None else f"d = {row['d']}"]))
