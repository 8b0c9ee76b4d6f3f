"""Shared parts of tables of methods: labels and marks, the grouping and order of rows, notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from ..files import Fields
from ..frame.metric import ROUNDING as ROUNDING
from ..frame.rows import YARDSTICKS
from ..frame.summary import SPARE
from ..records.file import LOWER_BOUND
from .labels import layer_in_words, source_heading
from .marks import OF_STATUS
from .numbers import OPEN, is_fragile, method_label, significant
from .results import Value, student_reach
from .table import Best, Column, counted, equal_tokens, grouped_by, joined

R = TypeVar("R", bound=Fields)


FRAGILE = "rounding decides the sum that divides some rows; without a causal mask, guard=sampled replaces them"
NEAR_COST = 1.1  # costs within this factor are about equal
KERNEL = "kernel"  # the family of exact attention's kernels


def statistic(row: Fields, metric: str, name: str) -> float | None:
    """A statistic of a row's metric; None where it was not measured."""
    return (row["metrics"].get(metric) or {}).get(name)


def mean_of(row: Fields, metric: str) -> Value | None:
    """The mean of a metric with its standard error; None where it was not measured."""
    stats = row["metrics"].get(metric)
    return None if stats is None else Value.of(stats["mean"], stats["se"])


def half_interval(row: Fields, metric: str) -> float | None:
    """Half of the 95 % interval of a mean over windows, by Student's distribution; None of one window.

    Tables have it after ±, and figures as bars and bands. A standard error of two windows would look exact: the
    interval is 12.7 times as wide.

    >>> round(half_interval({"windows": 2, "metrics": {"kl": {"se": 0.01}}}, "kl"), 3)
    0.127
    """
    se = statistic(row, metric, "se")
    return None if se is None else student_reach(se, row["windows"])


def reach(row: Fields, metric: str) -> str:
    """`half_interval` as what stands after ±, with `OPEN` where it is not reproducible; empty of one window.

    >>> reach({"windows": 2, "metrics": {"kl": {"se": 0.01}}}, "kl")
    '0.13'
    """
    text = significant(half_interval(row, metric), 2)
    return OPEN + text if text and is_fragile(row, metric, "se") else text


def family(row: Fields) -> str:
    """The family of a method's row; references and lower bounds stand apart from all families."""
    return "" if row.get("reference") or row["method"] == LOWER_BOUND else row.get("family") or ""


def several_families(rows: Iterable[Fields]) -> bool:
    """Whether the rows are of more than one family."""
    return len({family(row) for row in rows} - {""}) > 1


def budget(row: Fields) -> str:
    """The budget d as text."""
    return "" if row.get("d") is None else str(row["d"])


def budget_used(row: Fields) -> str:
    """The budget with the mean of what was used, if that differs."""
    used = statistic(row, "realised_d", "mean")
    return budget(row) + ("" if used is None or used == row.get("d") else f" ({used:.1f})".replace(".0)", ")"))


def label(row: Fields) -> str:
    """The method's label, with words for references and lower bounds."""
    if row["method"] == LOWER_BOUND:
        return "lower bound"
    return "V-Mean (ref.)" if row["method"] == "vmean" and row.get("reference") else method_label(row)


def mark(row: Fields) -> str:
    """``!`` bad rows left as they are, ``✗`` failed or diverged, ``–`` skipped, else empty."""
    if row["status"] in OF_STATUS:
        return OF_STATUS[row["status"]]
    replaced = statistic(row, "guarded_rows", "max") is not None
    return "!" if (statistic(row, "bad_rows", "max") or 0) > 0 and not replaced else ""


def spoiled_heads(record: Fields) -> list[Any]:
    """The heads of a record with bad rows that are left as they are, for which `mark` has ``!``."""
    bad, guarded = (record["metrics"].get(name) or [] for name in ("bad_rows", "guarded_rows"))
    replaced = any(count is not None for count in guarded)
    return [head for head, count in zip(record["heads"], bad, strict=False) if count and not replaced]


def marked(row: Fields, name: str) -> str:
    """A name with the row's mark."""
    return f"{mark(row)} {name}".lstrip()


def rivals(row: Fields) -> tuple[int | None] | None:
    """The key of the rows among which the best is chosen: the budget.

    References, lower bounds, yardsticks and kernels of exact attention take no part, nor does a row with a mark or one
    that uses more than its budget.
    """
    return (row.get("d"),) if competes(row) and row["method"] not in YARDSTICKS else None


def competes(row: Fields) -> bool:
    """Whether a row is sound and within its budget."""
    return is_sound(row) and within_budget(row)


def within_budget(row: Fields) -> bool:
    """Whether the keys or landmarks that a row used are at most d, but for `SPARE`; without d or their number, yes."""
    used = statistic(row, "realised_d", "mean")
    return used is None or row.get("d") is None or used <= (1 + SPARE) * row["d"]


def is_sound(row: Fields) -> bool:
    """Whether a row is of a method, a yardstick or not, and has no mark."""
    apart = row.get("reference") or row["method"] == LOWER_BOUND or row.get("family") == KERNEL
    return not apart and row["status"] == "ok" and not mark(row)


def smallest(metric: str) -> Best:
    """The best of a column: the smallest mean that is reproducible."""
    return Best(lambda row: None if is_fragile(row, metric, "mean") else mean_of(row, metric), metric)


FAMILY = Column("family", family, spare=10)
STATUS = Column(
    "\nstatus",
    lambda row: "" if row["status"] == "ok" else row["status"],
    "the worst of the row's cells",
    spare=8,
    more="empty where all are ok",
)


def grouped(rows: Iterable[R], bounds: Iterable[R] = ()) -> list[list[R]]:
    """The rows of each (source, layer, n, target): methods in their order, then references, then lower bounds.

    Bounds that are zero say nothing, so they are left out.
    """
    groups = []
    for group in grouped_by([*rows, *bounds], "source", "layer", "n", "target"):
        limits = [row for row in group if row["method"] == LOWER_BOUND]
        references = [row for row in group if row.get("reference") and row["method"] != LOWER_BOUND]
        methods = [row for row in group if not row.get("reference") and row["method"] != LOWER_BOUND]
        groups.append([*methods, *references, *(row for row in limits if not is_zero(row))])
    return [group for group in groups if group]


def is_zero(row: Fields) -> bool:
    """Whether a lower bound is zero in every head."""
    return statistic(row, "output_spectral", "max") == 0


def caption(rows: Sequence[Fields]) -> str:
    """The place of a table's rows, and their numbers of heads, windows and repeats."""
    first = rows[0]
    sources = [heading for heading in dict.fromkeys(map(source_heading, rows)) if heading]
    there = [name for name in ("heads", "windows", "repeats") if any(row.get(name) for row in rows)]
    repeated = max(row.get("duplicates") or 0 for row in rows)
    return joined(
        *sources,
        layer_in_words(first["layer"]),
        f"n = {first['n']}",
        f"target {first['target']}",
        counted([{name: row.get(name) or 0 for name in there} for row in rows], *there) if there else "",
        equal_tokens(repeated),
    )


def notes(rows: Iterable[Fields]) -> list[str]:
    """Lines beneath a table for the rows that are not ok; budgets with one reason share a line."""
    budgets: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for sign, reason in _remarks(row):
            budgets.setdefault((sign, label(row), reason), []).append(budget(row))
    lines = []
    for (sign, name, reason), d in budgets.items():
        at_budgets = f" d={', '.join(d)}" if all(d) else ""
        lines.append(f"{sign} {name}{at_budgets}: {reason}")
    return lines


def _remarks(row: Fields) -> list[tuple[str, str]]:
    remarks = []
    if row["status"] != "ok":
        known, values = statistic(row, "output_spectral_relative", "count"), row.get("values")
        some = f"; numbers are of {known} of {values} values" if known and values and known < values else ""
        remarks.append((mark(row), (row.get("reason") or row["status"]) + some))
    elif why := row.get("matrix_skipped"):
        remarks.append(("–", f"matrix errors skipped: it {why}"))
    if row.get("fragile"):
        remarks.append((OPEN, FRAGILE))
    return remarks
