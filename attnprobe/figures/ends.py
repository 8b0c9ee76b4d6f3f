"""The ends of axes, and what lies outside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ..files import Fields
from ..tables.methods import ROUNDING
from ..tables.table import gathered
from .kit import logarithmic
from .methods import HUGE, text_label

R = TypeVar("R", bound=Fields)
DEEP = 1e4  # from the largest value on an axis of errors to the least, where all are small
STEEP = 20  # from the largest value to the least on a logarithmic axis, at least


def scale(panel: Any, values: Iterable[float | None], dots: bool = False, high: float = math.inf) -> None:
    """Make an error axis logarithmic if the values span more than a factor of `STEEP`; else it starts at zero.

    Values above ``high``, and those below the `floor` of all others, do not stretch it. With a finite ``high``, equal
    values give equal axes.
    """
    low, end = _span([*values], high)
    panel.grid(False, axis="y" if dots else "x")
    if low:
        logarithmic(panel, "x" if dots else "y")
    if end < math.inf:
        (panel.set_xlim if dots else panel.set_ylim)(low, end)


def highest(values: Iterable[float | None], high: float = math.inf) -> float:
    """The end of the axis of `scale`; infinite where matplotlib has it beyond all that is drawn."""
    return _span([*values], high)[1]


def _span(values: Sequence[float | None], high: float) -> tuple[float, float]:
    """The ends of the axis of `scale`, of which 0 is of a linear one; the upper is infinite where both are free."""
    inside = _inside(values, high)
    kept = [value for value in inside if value >= floor(inside)]
    bounded = math.isfinite(high)
    if not kept or max(kept) <= STEEP * min(kept):
        return 0.0, (1.1 if bounded else 1.06) * max(kept, default=1.0)
    return min(kept) / 1.5, max(kept) * 1.5 if bounded or len(kept) < len(inside) else math.inf


def lowest(values: Iterable[float | None], high: float = math.inf) -> float:
    """The least value that the axis of `scale` reaches."""
    return floor(_inside(values, high))


def floor(values: Iterable[float]) -> float:
    """The least value that is more than the rounding of exact methods: `ROUNDING`, or less if all values are small."""
    return min(ROUNDING, max(values, default=0.0) / DEEP)


def _inside(values: Iterable[float | None], high: float) -> list[float]:
    return [value for value in map(drawable, values) if 0 < value <= high and value < HUGE]


def drawable(value: float | None) -> float:
    """The value clipped to the drawable range; NaN for null."""
    return math.nan if value is None else min(value, HUGE)


def outside(
    rows: Sequence[R],
    values: Callable[[R], Sequence[float | None]],
    low: float,
    high: float = math.inf,
    by: str = "d",
) -> dict[str, str]:
    """What a legend adds to the names of methods, by `text_label`: which rows lie outside the axis, and by how much.

    Args:
        values: of a row; it is outside if all of them are. low, high: the ends of the axis. by: the field that tells
            the rows of a method apart.
    """
    notes = {}
    for group in gathered(rows, text_label):
        parts = []
        for ends in ((low, math.inf), (0.0, high)):
            out = [row for row in group if beyond(values(row), *ends)]
            parts += [_which(group, out, by) + _side([x for row in out for x in values(row)], *ends)] if out else []
        notes[text_label(group[0])] = f" ({'; '.join(parts)})" if parts else ""
    return notes


def off_axis(notes: Mapping[str, str]) -> list[str]:
    """The sentence of a caption on what lies outside an axis.

    >>> off_axis({"moba": " (below: ≤ 4e-16)", "topk": ""}), off_axis({})
    (['Not on the axis: moba (below: ≤ 4e-16).'], [])
    """
    names = [label + note for label, note in notes.items() if note]
    return [f"Not on the axis: {', '.join(names)}."] if names else []


def _which(group: Sequence[Fields], out: Sequence[Fields], by: str) -> str:
    """Which rows of a method are out, in words: none for all; ``some`` if other rows of these budgets are not."""
    lost = set(map(id, out))
    inside = {row[by] for row in group if id(row) not in lost}
    if not inside:
        return ""
    outside = {row[by] for row in out}
    some = "some " if inside & outside else ""
    budgets = sorted((inside | outside) - {None})
    left = [d for d in budgets if d in outside]
    if len(left) > 1 and left == budgets[-len(left) :]:
        return f"{some}{by} ≥ {left[0]} "
    if len(left) > 1 and left == budgets[: len(left)]:
        return f"{some}{by} ≤ {left[-1]} "
    return f"{some}{by} = {', '.join(map(str, left))} " if left else some


def beyond(values: Iterable[float | None], low: float, high: float = math.inf) -> str:
    """What a legend adds to the name of a curve that lies outside its panel.

    >>> beyond([2e-9, 1e-8, None], 0.01), beyond([7.66, 9], 0.01, 5), beyond([0.1], 0.01)
    (' (below: ≤ 1e-8)', ' (above: ≥ 7)', '')
    """
    side = _side(values, low, high)
    return f" ({side})" if side else ""


def _side(values: Iterable[float | None], low: float, high: float) -> str:
    known = [value for value in values if value is not None and not math.isnan(value)]
    if known and max(known) < low:
        return f"below: ≤ {_digit(max(known), math.ceil)}" if max(known) else "below: 0"
    return f"above: ≥ {_digit(min(known), math.floor)}" if known and min(known) > high else ""


def _digit(value: float, towards: Callable[[float], int]) -> str:
    """One digit, rounded by `math.ceil` or `math.floor`, with a short exponent where there are many zeros."""
    step = 10.0 ** math.floor(math.log10(value))
    rounded = towards(round(value / step, 6)) * step
    digits, _, exponent = f"{rounded:{'g' if 1e-3 <= rounded < 1e4 else '.0e'}}".partition("e")
    return f"{digits}e{int(exponent)}" if exponent else digits
