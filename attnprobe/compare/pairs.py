"""Pairs of methods that are compared with one another, in one run or from run A to run B."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import UsageError
from ..grammar.spelling import parts, short_name
from ..records.file import LOWER_BOUND
from ..tables.numbers import method_label
from ..tables.rows import AnyRow

ARROW = " → "  # between the methods of a pair in the name of a row
Related = list[dict[str, Any]]


def related(a: Sequence[AnyRow], b: Sequence[AnyRow], pairs: Iterable[str]) -> tuple[Related, Related]:
    """The cells of the left method of each pair in A, and of the right one in B, under the name of their pair.

    A pair is ``LEFT=RIGHT``, each as in ``--method``; options that are not written may have any value, if one method of
    the run fits alone. ``d=N`` among them takes that budget alone, so that two budgets can be compared. A method
    without a budget is compared with every budget of the other.

    Args:
        a, b: records or rows, with ``method``, ``options`` and ``d``.

    Returns:
        the cells of A and those of B: copies with the name ``pair``, requested, with the budget of their pair.

    Raises:
        UsageError: a pair that names no method of the run, several, or twice the same cells.
    """
    ours: Related = []
    others: Related = []
    for text in pairs:
        left, right = _sides(text, a, b)
        if a is b and left == right:
            raise UsageError(f"--pair {text}: both sides are the same cells")
        taken = [_cells(rows, side) for rows, side in ((a, left), (b, right))]
        name = f"{left[0]}{ARROW}{right[0]}"
        budgets = [{row["d"] for row in rows} for rows in taken]
        for into, rows, elsewhere in ((ours, taken[0], budgets[1]), (others, taken[1], budgets[0])):
            for row in rows:
                free = left[1] is not None or right[1] is not None
                every = [None] if free else elsewhere if row["d"] is None else [row["d"]]
                into += [{**row, "pair": name, "requested": True, "d": d} for d in every]
    return ours, others


Side = tuple[str, int | None, str]  # the name that is shown, the budget that is asked for, the method's label


def _sides(text: str, a: Sequence[AnyRow], b: Sequence[AnyRow]) -> tuple[Side, Side]:
    """The two methods of a pair; options hold signs of equality too, so the one between them is tried out."""
    places = [place for place, letter in enumerate(text) if letter == "="]
    found = []
    for place in places:
        sides = _found(text[:place], a), _found(text[place + 1 :], b)
        if all(sides):
            found.append(sides)
    if not places:
        raise UsageError(f"--pair {text}: write two methods, LEFT=RIGHT, such as skyformer=nystromformer")
    if not found:
        known = [", ".join(dict.fromkeys(method_label(row) for row in run if _counts(row))) for run in (a, b)]
        where = known[0] if known[0] == known[1] else f"{known[0]} in A; {known[1]} in B"
        raise UsageError(f"--pair {text}: no two methods of the runs; they have {where}")
    if len(found) > 1 or any(len(side) > 1 for side in found[0]):
        several = ", ".join(dict.fromkeys(one[2] for sides in found for side in sides for one in side))
        raise UsageError(f"--pair {text} fits several methods, {several}: write their options")
    return found[0][0][0], found[0][1][0]


def _found(text: str, rows: Sequence[AnyRow]) -> list[Side]:
    """The methods of a run that a side of a pair may mean; the one with exactly these options alone, if there is."""
    name, options = parts(text)
    pieces = [piece.partition("=") for piece in (options or "").split(",") if piece]
    wanted = {key.strip(): value.strip() for key, _, value in pieces}
    d = wanted.pop("d", None)
    if (d is not None and not d.isdecimal()) or any(not value for value in wanted.values()):
        return []
    sides: dict[str, Side] = {}
    for row in rows:
        has = {key: str(value) for key, value in (row.get("options") or {}).items()}
        fits = row["method"] == short_name(name) and wanted.items() <= has.items() and _counts(row)
        if fits and (d is None or row["d"] == int(d)):
            label = method_label(row)
            shown = label if d is None else f"{label}{',' if has else ':'}d={d}"
            if has == wanted:
                return [(shown, None if d is None else int(d), label)]
            sides[label] = (shown, None if d is None else int(d), label)
    return [*sides.values()]


def _counts(row: AnyRow) -> bool:
    return row.get("method") is not None and row["method"] != LOWER_BOUND


def _cells(rows: Sequence[AnyRow], side: Side) -> list[AnyRow]:
    return [row for row in rows if _counts(row) and method_label(row) == side[2] and side[1] in (None, row["d"])]
