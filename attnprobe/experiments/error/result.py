"""The best methods of ``attnprobe error`` in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...tables.duels import left_out
from ...tables.long import Row
from ...tables.methods import label, mean_of, rivals, statistic
from ...tables.numbers import OPEN, is_fragile, significant
from ...tables.results import UNTESTED, beside, in_words, led, lost, sentences
from ...tables.table import Tested, grouped_by, is_worse
from .columns import MEAN, RELATIVE

PLACE = ("source", "layer", "n", "target")  # where methods are compared


def error_result(rows: Sequence[Row], tested: Tested | None = None, together: Sequence[Row] = ()) -> str:
    """The method with the smallest mean error, V-Mean's error, and the methods worse than V-Mean, without kernels.

    The methods that are not shown to be worse than the best are those whose means are bold in the table. Rows with a
    mark, yardsticks and means that are not reproducible do not compete.

    Args:
        together: the rows of all layers together, which decide where they are of one source, n and target.
    """
    compared, of_all = _compared(rows), _compared(together)
    if len(compared) == 1:
        text = _of_one(compared[0], tested)
    elif len(of_all) == 1:
        text = f"All layers together: {_of_one(of_all[0], tested)}"
    else:
        every = [_winners(group, tested) for group in compared]
        winners = [one.names if one.tested else [] for found in every for one in found.values()]
        several = any(len(found) > 1 for found in every)
        text = led(winners, "the smallest mean error", "cases (table, d)" if several else "tables")
    return sentences(text, *left_out(rows), lost(rows, label))


def _compared(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows with an error by place, where there are methods."""
    rated = [row for row in rows if mean_of(row, RELATIVE) is not None and row["family"] != "kernel"]
    return [group for group in grouped_by(rated, *PLACE) if any(not row["reference"] for row in group)]


class Winners(NamedTuple):
    """The labels of the best method and of those not shown to be worse; whether a test was possible."""

    names: list[str]
    tested: bool


def _winners(rows: Sequence[Row], tested: Tested | None) -> dict[int | None, Winners]:
    """The winners at each budget; those of methods without one only if there are no others."""
    found = {}
    for leaders in MEAN.leaders(rows, rivals, tested):
        best = [rows[place] for place in leaders.places]
        found[best[0]["d"]] = Winners([label(row) for row in best], leaders.tested)
    return {d: found[d] for d in _budgets(rows) if d in found}


def _of_one(rows: Sequence[Row], tested: Tested | None) -> str:
    methods = [row for row in rows if not row["reference"]]
    d = _budgets(rows)[-1]
    values, winners = _at(rows, d), _winners(rows, tested)
    names = {label(row) for row in methods}
    best = winners.get(d)
    where = "" if d is None else f" at d = {d}"
    vmean = next((row for row in rows if row["reference"]), None)

    def size(name: str) -> str:
        return _size(values[name], vmean)

    if len(names) == 1:
        [name] = values
        text = f"{name}{where}: the mean error is {size(name)}."
    elif best is None:
        below = f"{_at_each(winners)}." if winners else ""
        text = sentences(below, f"No method has a sound mean error{where}: see the notes.")
    elif not best.tested:
        text = f"{best.names[0]} has the smallest mean error{where}: {size(best.names[0])}; {UNTESTED}."
    elif len(winners) > 1 and all(one == best for one in winners.values()) and len(best.names) == 1:
        text = f"{best.names[0]} has the smallest mean error at every d;{where} it is {size(best.names[0])}."
    elif len(winners) > 1:
        name, *alike = best.names
        text = f"{_at_each(winners)};{where} {name} has {size(name)}{beside(alike)}."
    else:
        name, *alike = best.names
        text = f"{name} has the smallest mean error{where}: {size(name)}{beside(alike)}."
    worse = []
    if vmean is not None and tested is not None:
        sound = {name: row for name, row in values.items() if row["status"] == "ok"}
        against = tested(RELATIVE, [(vmean, row) for row in sound.values()])
        worse = [name for name, compared in zip(sound, against, strict=True) if is_worse(compared)]
    return sentences(text, f"Worse than V-Mean{where}: {in_words(worse)}." if worse else "")


def _at_each(winners: Mapping[int | None, Winners]) -> str:
    """Which method is alone the best at which d, and at which none is.

    >>> best = {32: Winners(["a", "b"], True), 64: Winners(["a"], True), 128: Winners(["a"], True)}
    >>> _at_each(best), _at_each({8: best[32], 16: best[32]})
    ('a has the smallest mean error at d = 64 and 128, no method alone at d = 32', \
'No method alone has the smallest mean error at d = 8 and 16')
    """
    budgets: dict[str, list[str]] = {}
    for d, one in sorted(winners.items(), key=lambda item: item[0] or 0):
        alone = one.tested and len(one.names) == 1
        budgets.setdefault(one.names[0] if alone else "", []).append(str(d))
    shared = budgets.pop("", [])
    parts = [f"{name} at d = {in_words(at)}" for name, at in budgets.items()]
    if not parts:
        return f"No method alone has the smallest mean error at d = {in_words(shared)}"
    name, _, first = parts[0].partition(" at ")
    ties = [f"no method alone at d = {in_words(shared)}"] if shared else []
    return ", ".join([f"{name} has the smallest mean error at {first}", *parts[1:], *ties])


def _size(row: Row, vmean: Row | None) -> str:
    error = statistic(row, RELATIVE, "mean") or 0.0
    reference = 0.0 if vmean is None else statistic(vmean, RELATIVE, "mean") or 0.0
    size = f"{OPEN if is_fragile(row, RELATIVE, 'mean') else ''}{significant(error, 2)} of ‖BV‖₂"
    return f"{size}, {significant(error / reference, 2)} of V-Mean's mean" if reference else size


def _budgets(rows: Sequence[Row]) -> list[int | None]:
    """The budgets of methods from small to large; a single None if no method has one."""
    budgets = {row["d"] for row in rows if row["d"] is not None}
    return [*sorted(budgets)] or [None]


def _at(rows: Sequence[Row], d: int | None) -> dict[str, Row]:
    """The methods at a budget, and those without one."""
    return {label(row): row for row in rows if not row["reference"] and row["d"] in (None, d)}
