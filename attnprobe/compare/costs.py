"""What the two sides of a row cost, and the budgets at which a pair of methods costs about the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from ..files import Fields
from ..tables.long import Row
from ..tables.methods import NEAR_COST
from .cells import Key, per_head

CHOOSING = "scored"  # which few methods state: those that choose keys by scores
COSTS = ("visited_fraction", CHOOSING, "kv_read", "cache_bytes")
NONE = "none"  # in place of a pair
SAME = 1.01  # costs within this factor are equal
NEARER = 0.5  # of the logarithm of the ratio of costs: what another budget must reach to be named
COST_FIELDS = tuple(f"{name}_{side}" for name in COSTS for side in "ab")


def costs_of(a: Iterable[Fields], b: Iterable[Fields], at_equal_cost: str | None = None) -> Row:
    """The costs of both sides as fields of a row: means over cells and heads, None where a side does not state one.

    Args:
        at_equal_cost: what `nearer` says of the row.
    """
    sides = {"a": _means(a), "b": _means(b)}
    known = {f"{name}_{side}": of.get(name) for name in COSTS for side, of in sides.items()}
    return {**known, "at_equal_cost": at_equal_cost}


def _means(cells: Iterable[Fields]) -> dict[str, float]:
    cells = [*cells]
    values = {name: [one for cell in cells for one in per_head(cell, name) or () if one is not None] for name in COSTS}
    return {name: fmean(of) for name, of in values.items() if of}


def differing(rows: Sequence[Row]) -> list[str]:
    """The costs that differ between the sides of a row, or are unknown of one."""
    return [name for name in COSTS if any(_differ(*sides) for row in rows if (sides := stated(row, name)))]


def _differ(a: float | None, b: float | None) -> bool:
    return a is None or b is None or max(a, b) > SAME * min(a, b)


def stated(row: Row, name: str) -> tuple[float | None, float | None] | None:
    """A cost of both sides; None where one lacks it, though both state some cost, and where no side states it.

    Scores that choose keys are a cost beside a method that states none of them.

    >>> row = dict.fromkeys(COST_FIELDS) | {"visited_fraction_a": 0.5, "kv_read_a": 4.0}
    >>> stated(row, "kv_read"), stated({**row, "visited_fraction_b": 0.5}, "kv_read"), stated(row, "cache_bytes")
    ((4.0, None), None, None)
    """
    sides = row[f"{name}_a"], row[f"{name}_b"]
    silent = any(all(row[f"{one}_{side}"] is None for one in COSTS) for side in "ab")
    known = [one is not None for one in sides]
    return sides if all(known) or (any(sides) if name == CHOOSING else any(known) and silent) else None


def nearer(key: Key, a: Mapping[Key, Mapping[Key, Fields]], b: Mapping[Key, Mapping[Key, Fields]]) -> str | None:
    """The pair of the same two methods, as in ``--pair``, whose costs are nearest to one another.

    One side has the budget of the row, the other any that was measured. `NONE` where no other budget is clearly nearer.
    None where the costs of the row are about equal, where another row has that pair, and where a pair names its
    budgets or a method has none. Scores that choose keys are left out.

    Args:
        key: of a row. a, b: the cells of all rows.
    """
    if key not in a or key not in b or key[5] is None:
        return None
    ours, others = (
        {at[5]: [*rows[at].values()] for at in rows if _elsewhere(at) == _elsewhere(key)} for rows in (a, b)
    )
    d = key[5]
    here = _apart(ours[d], others[d])
    if here is None or here <= math.log(NEAR_COST) or None in (cells[d][0].get("own_d") for cells in (ours, others)):
        return None
    candidates = [(ours[d], cells) for cells in others.values()] + [(cells, others[d]) for cells in ours.values()]
    measured = [(apart, *sides) for sides in candidates if (apart := _apart(*sides)) is not None]
    apart, left, right = min(measured, key=lambda one: one[0])
    if apart > max(NEARER * here, math.log(NEAR_COST)):
        return NONE
    names = left[0]["at_budget"], right[0]["at_budget"]
    return None if names in {cell["sides"] for cells in a.values() for cell in cells.values()} else "=".join(names)


def _elsewhere(key: Key) -> Key:
    """The row of a key but for its budget."""
    return (*key[:5], *key[6:])


def _apart(a: Sequence[Fields], b: Sequence[Fields]) -> float | None:
    """How far costs are apart, |ln(a / b)|, of the first cost that both sides state."""
    ours, others = _means(a), _means(b)
    known = (name for name in COSTS if name != CHOOSING and ours.get(name) and others.get(name))
    ratios = (ours[name] / others[name] for name in known)
    return next((abs(math.log(ratio)) for ratio in ratios), None)
