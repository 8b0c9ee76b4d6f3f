"""The two methods of ``--pair``, and their cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import UsageError, cut, unknown
from ..experiments import defaults_of, is_method
from ..files import Fields
from ..grammar.lists import parts, short_name, with_commas
from ..records.file import LOWER_BOUND
from ..tables.numbers import method_label

ARROW = " → "  # between the methods of a pair in the name of a row
NO_NAME = re.compile(r"=|^\d")  # a value of an option
DEMAND = re.compile(r"\s*d\s*=")  # of a budget, among options
Related = list[dict[str, Any]]


def related(a: Sequence[Fields], b: Sequence[Fields], pairs: Iterable[str]) -> tuple[Related, Related, list[str]]:
    """The cells of the left method of each pair in A, and of the right one in B, under the name of their pair.

    A pair is ``LEFT=RIGHT``, each as in ``--method``; options that are not written may have any value, if one method of
    the run fits alone. ``d=N`` among them takes that budget alone, so that two budgets can be compared; a side without
    it takes the budget of the other. A method without a budget is compared with every budget of the other. Skipped
    records are of no side. Two methods at one budget are compared once, also if a later pair names them, or in one run
    the same in reverse.

    Args:
        a, b: records or rows, with ``method``, ``options`` and ``d``.

    Returns:
        the cells of A and those of B: copies with the name ``pair`` that is shown, with both ``sides`` as ``--pair``
        takes them, requested, with the budget of their pair, their own one in ``own_d``, and in ``at_budget`` their
        side at that; and the pairs of which an earlier one has a budget.
    """
    ours: Related = []
    others: Related = []
    compared: set[Any] = set()
    repeated: list[str] = []
    for text in pairs:
        left, right = _sides(text, a, b)
        if a is b and left == right:
            raise UsageError(f"--pair {text}: both sides are the same cells")
        taken = [_cells(rows, side) for rows, side in ((a, left), (b, right))]
        name = ARROW.join(_side(rows[0], side[1])[0] for rows, side in zip(taken, (left, right), strict=True))
        budgets = [{row["d"] for row in rows} for rows in taken]
        free = left[1] is not None or right[1] is not None
        again = []
        for d in [None] if free else sorted((budgets[0] | budgets[1]) - {None}) or [None]:
            at = (left[1], right[1]) if free else [None if of == {None} else d for of in budgets]
            test = (left[2], at[0]), (right[2], at[1])
            if test in compared:
                again.append(d)
                continue
            compared |= {test, test[::-1]} if a is b else {test}
            for into, rows in zip((ours, others), taken, strict=True):
                for row in rows:
                    if free or row["d"] in (None, d):
                        of_pair = {"pair": name, "sides": (left[0], right[0]), "requested": True, "d": d}
                        into.append({**row, **of_pair, "own_d": row["d"], "at_budget": _side(row, row["d"])[0]})
        named = ", ".join(str(d) for d in again if d is not None)
        repeated += [f"{text} at d={named}" if named else text] if again else []
    return ours, others, repeated


Side = tuple[str, int | None, str]  # the name that is shown, the budget that is asked for, the method's label


def _sides(text: str, a: Sequence[Fields], b: Sequence[Fields]) -> tuple[Side, Side]:
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
        raise _unfit(text, [(text[:place], text[place + 1 :]) for place in places], a, b)
    if any(len(side) > 1 for side in found[0]):
        several = ", ".join(dict.fromkeys(one[2] for side in found[0] for one in side))
        raise UsageError(f"--pair {text} fits several methods, {several}: write their options")
    (left,), (right,) = found[0]
    return _at_budget_of(right, left, a), _at_budget_of(left, right, b)


def _unfit(text: str, splits: Sequence[tuple[str, str]], a: Sequence[Fields], b: Sequence[Fields]) -> UsageError:
    """Why a pair, which is split at one of its signs of equality, names no two methods of the runs."""
    known = [list(dict.fromkeys(row["method"] for row in rows if _counts(row))) for rows in (a, b)]

    def names(split: tuple[str, str]) -> list[str]:
        return [short_name(parts(side)[0]) for side in split]

    def likely(split: tuple[str, str]) -> tuple[int, int]:
        named = names(split)
        return sum(name in of for name, of in zip(named, known, strict=True)), sum(
            not NO_NAME.search(name) for name in named
        )

    split = max(splits, key=likely)
    for name, of, run in zip(names(split), known, ("A", "B"), strict=True):
        if name not in of and is_method(name):
            has = f"{'the run' if a is b else run} has no {cut(name)}, but {', '.join(of)}"
            return UsageError(f"--pair {text}: {has}; run its command again with {cut(name)} added to --method")
        if name not in of:
            return UsageError(f"--pair {text}: {unknown('method' if a is b else f'method of {run}', name, of)}")
    joined = [with_commas(side) for side in split]
    if joined != [*split]:
        return UsageError(f"--pair {text}: join options by commas: {'='.join(joined)}")
    side, rows = next((side, rows) for side, rows in zip(split, (a, b), strict=True) if not _found(side, rows))
    name, options = parts(side)
    fitting = _found(f"{name}:{','.join(one for one in (options or '').split(',') if not DEMAND.match(one))}", rows)
    if fitting:
        budgets = sorted({row["d"] for row in _cells(rows, fitting[0]) if row["d"] is not None})
        at = f"at d={', '.join(map(str, budgets))}" if budgets else "without d"
        return UsageError(f"--pair {text}: {fitting[0][2]} was measured {at}")
    labels = dict.fromkeys(method_label(row) for row in rows if row["method"] == short_name(name) and _counts(row))
    return UsageError(f"--pair {text}: '{side}' is not among {', '.join(labels)}; leave out options at their defaults")


def _at_budget_of(other: Side, side: Side, rows: Sequence[Fields]) -> Side:
    """A side at the budget that the other one names; as it is if it names its own, or its method has none."""
    cells = _cells(rows, side)
    if other[1] is None or side[1] is not None or all(row["d"] is None for row in cells):
        return side
    if all(row["d"] != other[1] for row in cells):
        raise UsageError(f"--pair: {side[0]} has no cell at d={other[1]}, which {other[0]} names: write its d= too")
    return _side(cells[0], other[1])


def _side(row: Fields, d: int | None) -> Side:
    """The method of a row as a side of a pair, at the budget that is asked for."""
    label = method_label(row)
    return (label if d is None else f"{label}{',' if row.get('options') else ':'}d={d}"), d, label


def _found(text: str, rows: Sequence[Fields]) -> list[Side]:
    """The methods of a run that a side of a pair may mean. It may have options at their defaults, as no record has."""
    return _matching(text, rows, lambda method: {}) or _matching(text, rows, defaults_of)


def _matching(text: str, rows: Sequence[Fields], defaults: Callable[[str], Mapping[str, Any]]) -> list[Side]:
    """The methods with these options, where a record without one has its default; exactly these alone, if there are."""
    name, options = parts(text)
    pieces = [piece.partition("=") for piece in (options or "").split(",") if piece]
    wanted = {key.strip(): value.strip() for key, _, value in pieces}
    d = wanted.pop("d", None)
    if (d is not None and not d.isdecimal()) or any(not value for value in wanted.values()):
        return []
    budget = None if d is None else int(d)
    sides: dict[str, Side] = {}
    for row in rows:
        has = row.get("options") or {}
        if row["method"] != short_name(name) or not _counts(row) or budget not in (None, row["d"]):
            continue
        known = has if wanted.keys() <= has.keys() else {**defaults(row["method"]), **has}
        if all(key in known and _means(value, known[key]) for key, value in wanted.items()):
            side = _side(row, budget)
            if has.keys() <= wanted.keys():
                return [side]
            sides[side[2]] = side
    return [*sides.values()]


def _means(text: str, value: Any) -> bool:
    """Whether the text of an option, as in ``--method``, means a recorded value: 2 and 2e0 are 2.0, true is True.

    >>> _means("2", 2.0), _means("false", False), _means("null", None), _means("1", True), _means("max", "max")
    (True, True, True, False, True)
    """
    if value is None:
        return text.lower() in ("none", "null")
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, str):
        return text == value
    try:
        return float(text) == value
    except ValueError:
        return False


def _counts(row: Fields) -> bool:
    return row.get("method") not in (None, LOWER_BOUND) and row.get("status") != "skipped"


def _cells(rows: Sequence[Fields], side: Side) -> list[Fields]:
    return [row for row in rows if _counts(row) and method_label(row) == side[2] and side[1] in (None, row["d"])]
