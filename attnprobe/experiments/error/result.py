"""What a run of ``attnprobe error`` found, in a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...tables.methods import OPEN, is_fragile, label, statistic
from ...tables.numbers import significant
from ...tables.results import best_of, led, listed, lost, sentences
from ...tables.table import grouped_by

__all__ = ["error_result"]

Row = Any

METRIC = "output_spectral_relative"


def error_result(rows: Sequence[Row]) -> str:
    """The method with the smallest median error beside V-Mean's, and which are worse than V-Mean, kernels left out."""
    known = [row for row in rows if _median(row) is not None and row["family"] != "kernel"]
    places = grouped_by(known, "source", "layer", "n", "target")
    compared = [some for some in places if any(not row["reference"] for row in some)]
    if len(compared) == 1:
        found = _of_one(compared[0])
    else:
        values = [_at(some, _largest(some)) for some in compared]
        found = led(values, "the smallest median error at the largest d")
    return sentences(found, lost(rows, _name))


def _of_one(rows: Sequence[Row]) -> str:
    """The sentences of one table."""
    methods = [row for row in rows if not row["reference"]]
    budgets = sorted({row["d"] for row in methods if row["d"] is not None}) or [None]
    d = budgets[-1]
    best = best_of(_at(rows, d))
    winners = {name for budget in budgets for name in best_of(_at(rows, budget))}
    vmean = next((_median(row) for row in rows if row["reference"] and row["method"] == "vmean"), None)
    row = min((row for row in methods if label(row) == best[0] and row["d"] in (None, d)), key=_median)
    where = "" if d is None else f"at d = {d} "
    sign = OPEN if is_fragile(row, METRIC, "median") else ""
    size = f"{sign}{significant(_median(row), 2)} of ‖BV‖₂" + (
        f", {significant(_median(row) / vmean, 2)} of V-Mean's median" if vmean else ""
    )
    several = len({label(row) for row in methods}) > 1
    if not several:
        text = f"{best[0]}: {where}the median error is {size}."
    elif len(best) > 1:
        text = f"{listed(best)} have the smallest median errors {where}and differ by less than 5 %: {size}."
    elif winners == set(best) and len(budgets) > 1:
        text = f"{best[0]} has the smallest median error at every d; {where}it is {size}."
    else:
        text = f"{best[0]} has the smallest median error {where}: {size}.".replace(" :", ":")
    worse = [name for name, value in _at(rows, d).items() if vmean and value > vmean]
    return sentences(text, f"Worse than V-Mean {where}: {listed(worse)}.".replace(" :", ":") if worse else "")


def _largest(rows: Sequence[Row]) -> int | None:
    return max((row["d"] for row in rows if row["d"] is not None and not row["reference"]), default=None)


def _at(rows: Sequence[Row], d: int | None) -> dict[str, float]:
    """The median errors of methods at a budget, and of those without one."""
    return {label(row): _median(row) for row in rows if not row["reference"] and row["d"] in (None, d)}


def _median(row: Row) -> Any:
    return statistic(row, METRIC, "median")


def _name(row: Row) -> str:
    return label(row) + ("" if row["d"] is None else f" d = {row['d']}")
