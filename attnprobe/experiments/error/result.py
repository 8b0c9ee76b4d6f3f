"""The sentences that state the result of ``attnprobe error``."""

from __future__ import annotations

from collections.abc import Sequence

from ...tables.methods import OPEN, is_fragile, label, rivals
from ...tables.numbers import significant
from ...tables.results import Value, at_budget, best_of, in_words, led, lost, sentences, tie_rule
from ...tables.table import grouped_by
from .rows import ErrorRow

METRIC = "output_spectral_relative"


def error_result(rows: Sequence[ErrorRow]) -> str:
    """The method with the smallest median error, V-Mean's error, and the methods worse than V-Mean, without kernels.

    Methods tie if their medians differ by no more than the standard errors of both. The spread over heads, windows and
    repeats gives these standard errors (see `Value.of_median`). As in the tables, rows with a mark and medians that are
    not reproducible do not compete.
    """
    known = [row for row in rows if _median(row) is not None and row["family"] != "kernel"]
    places = grouped_by(known, "source", "layer", "n", "target")
    compared = [group for group in places if any(not row["reference"] for row in group)]
    if len(compared) == 1:
        text = _of_one(compared[0])
    else:
        values = [_at(_competing(group), _budgets(group)[-1]) for group in compared]
        text = led(values, "the smallest median error at the largest d")
    return sentences(text, lost(rows, lambda row: at_budget(row, label)))


def _of_one(rows: Sequence[ErrorRow]) -> str:
    """The sentences of one table."""
    methods = [row for row in rows if not row["reference"]]
    budgets = _budgets(rows)
    d = budgets[-1]
    values, competing = _at(rows, d), _competing(rows)
    alone = len({label(row) for row in methods}) == 1
    best = best_of(values if alone else _at(competing, d))
    where = "" if d is None else f" at d = {d}"
    vmean = next((_median(row) for row in rows if row["reference"] and row["method"] == "vmean"), None)
    size = _size(methods, best[0], d, values[best[0]], vmean) if best else ""
    winners = {name for budget in budgets for name in best_of(_at(competing, budget))}
    if not best:
        text = f"No method has a sound median error{where}: see the notes."
    elif alone:
        text = f"{best[0]}{where}: the median error is {size}."
    elif len(best) > 1:
        text = f"{in_words(best)} have the smallest median errors{where}{tie_rule(values, best)}: {size}."
    elif winners == set(best) and len(budgets) > 1:
        text = f"{best[0]} has the smallest median error at every d;{where} it is {size}."
    else:
        text = f"{best[0]} has the smallest median error{where}: {size}."
    worse = [name for name, one in values.items() if vmean is not None and _is_worse(one, vmean)]
    return sentences(text, f"Worse than V-Mean{where}: {in_words(worse)}." if worse else "")


def _size(methods: Sequence[ErrorRow], name: str, d: int | None, median: Value, vmean: Value | None) -> str:
    """A median error in words."""
    row = next(row for row in methods if label(row) == name and row["d"] in (None, d))
    sign = OPEN if is_fragile(row, METRIC, "median") else ""
    of_vmean = "" if not vmean or not vmean.value else significant(median.value / vmean.value, 2)
    size = f"{sign}{significant(median.value, 2)} of ‖BV‖₂"
    return f"{size}, {of_vmean} of V-Mean's median" if of_vmean else size


def _is_worse(one: Value, vmean: Value) -> bool:
    """Whether a median error is larger than V-Mean's and does not tie with it."""
    return one.value > vmean.value and not one.ties(vmean)


def _budgets(rows: Sequence[ErrorRow]) -> list[int | None]:
    """The budgets of methods from small to large; a single None if no method has one."""
    budgets = {row["d"] for row in rows if row["d"] is not None and not row["reference"]}
    return [*sorted(budgets)] or [None]


def _competing(rows: Sequence[ErrorRow]) -> list[ErrorRow]:
    """The rows among which the best is chosen, as the tables choose it."""
    return [row for row in rows if rivals(row) is not None and not is_fragile(row, METRIC, "median")]


def _at(rows: Sequence[ErrorRow], d: int | None) -> dict[str, Value]:
    """The median errors of methods at a budget, and of those without one."""
    medians = {label(row): _median(row) for row in rows if not row["reference"] and row["d"] in (None, d)}
    return {name: median for name, median in medians.items() if median is not None}


def _median(row: ErrorRow) -> Value | None:
    stats = row["metrics"].get(METRIC)
    return None if stats is None else Value.of_median(stats)
