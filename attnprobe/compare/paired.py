"""One row of a comparison: which cells pair, their means, the standard error of the difference, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..gates.check import LARGER
from ..records.file import STATUSES
from ..tables.statistics import describe
from .cells import Key, Record

__all__ = ["Pairing", "Row", "blank", "compared", "paired", "per_head"]

Row = dict[str, Any]

SIGMAS = 2  # joint standard errors that a change must exceed, where there is one


@dataclass(frozen=True)
class Pairing:
    """How the cells of a row are paired (see `compare_runs`), and those of each run that take part.

    With ``kind`` "cells" both hold the same keys.
    """

    kind: str | None
    a: Mapping[Key, Record]
    b: Mapping[Key, Record]

    @property
    def pairs(self) -> list[tuple[Record, Record]]:
        return [(cell, self.b[key]) for key, cell in self.a.items()] if self.kind == "cells" else []


def blank(cells: Sequence[Record]) -> Row:
    """The fields of a row in which nothing is compared."""
    return {
        **dict.fromkeys(("metric", "a", "b", "difference", "se", "difference_in_se", "ratio", "verdict", "paired")),
        "cells": len(cells),
        "values": 0,
        "windows": len({cell.get("window") for cell in cells}),
        "heads": len({head for cell in cells for head in cell["heads"]}),
        **dict.fromkeys(("seeds_a", "seeds_b")),
        "status_a": None,
        "status_b": None,
        "reason": None,
    }


def per_head(cell: Record, metric: str) -> list[float | None] | None:
    """The values of a cell, None where there is none finite; None where it was not measured at all."""
    found = cell.get("seconds") if metric == "seconds" else cell["metrics"].get(metric)
    if found is None:
        return None
    values = found if isinstance(found, (list, tuple)) else [found]
    return [value if isinstance(value, (int, float)) and math.isfinite(value) else None for value in values]


def _values(cell: Record, metric: str) -> list[float | None]:
    """The values of a cell, one per head, as `_per_head` has them; all None where it was not measured."""
    return per_head(cell, metric) or [None] * (1 if metric == "seconds" else len(cell["heads"]))


def paired(ours: Mapping[Key, Record], theirs: Mapping[Key, Record]) -> Pairing:
    """The pairing of a row's cells; where one run has none, no cell takes part."""
    if not ours or not theirs:
        return Pairing(None, {}, {})
    common = [key for key in ours if key in theirs]
    if common:
        return Pairing("cells", {key: ours[key] for key in common}, {key: theirs[key] for key in common})
    places = [{(window, heads) for window, _, heads in cells} for cells in (ours, theirs)]
    both = places[0] & places[1]
    if not both:
        return Pairing(None, ours, theirs)
    kept = ({key: cell for key, cell in cells.items() if (key[0], key[2]) in both} for cells in (ours, theirs))
    return Pairing("windows", *kept)


def compared(place: Row, pairing: Pairing, metrics: Sequence[str], tolerance: float) -> list[Row]:
    """A row for each metric that either run has, or one of them where a status says more than any metric."""
    pairs, a, b = pairing.pairs, list(pairing.a.values()), list(pairing.b.values())
    seeds = [sorted({cell.get("seed") for cell in cells} - {None}) for cells in (a, b)]
    statuses = [max((cell["status"] for cell in cells), key=STATUSES.index) for cells in (a, b)]
    worse, better = (_changed(pairs, a, b, fall) for fall in (True, False))
    rows = []
    for metric in metrics:
        if pairs:
            numbers = _of_pairs(pairs, metric)
        else:
            numbers = _of_runs(a, b, metric, pairing.kind is not None)
        absent = numbers["a"] is None and numbers["b"] is None  # anything to lose or gain has a mean
        if absent and (rows or statuses == ["ok", "ok"]):
            continue
        verdict, reason = _judged(metric, numbers, tolerance)
        if worse:
            verdict, reason = "worse", worse
        elif better and verdict != "worse":
            verdict, reason = "better", better
        elif absent:
            reason = f"{statuses[0]} in both"
        row = {**place, **blank(a if len(a) >= len(b) else b), "metric": metric, "paired": pairing.kind}
        row |= {name: numbers[name] for name in ("a", "b", "difference", "se", "difference_in_se", "ratio", "values")}
        row |= {"seeds_a": seeds[0], "seeds_b": seeds[1], "status_a": statuses[0], "status_b": statuses[1]}
        rows.append({**row, "verdict": verdict, "reason": reason})
    return rows


def _changed(pairs: Sequence[tuple[Record, Record]], a: Sequence[Record], b: Sequence[Record], fall: bool) -> str:
    """How a status got worse, or where not ``fall`` better, from A to B, in words; empty where none did."""
    rank = lambda cell: STATUSES.index(cell["status"])
    compared = pairs or [(max(a, key=rank), max(b, key=rank))]
    changed = [(x, y) for x, y in compared if (rank(y) > rank(x) if fall else rank(y) < rank(x))]
    if not changed:
        return ""
    x, y = max(changed, key=lambda pair: abs(rank(pair[1]) - rank(pair[0])))
    share = f" in {len(changed)} of {len(compared)} cells" if len(compared) > 1 else ""
    why = f": {y['reason']}" if fall and y.get("reason") else ""
    return f"{x['status']} became {y['status']}{share}{why}"


def _of_pairs(pairs: Sequence[tuple[Record, Record]], metric: str) -> Row:
    """The numbers of cells paired head by head; where no head pairs, the mean of what is there."""
    found = []
    for ours, theirs in pairs:
        heads = zip(_values(ours, metric), _values(theirs, metric), strict=False)
        found += [(one, other, ours.get("window")) for one, other in heads]
    lost = sum(one is not None and other is None for one, other, _ in found)
    gained = sum(one is None and other is not None for one, other, _ in found)
    whole = [(one, other, window) for one, other, window in found if one is not None and other is not None]
    x, y, windows = zip(*(whole or found), strict=True) if found else ((), (), ())
    se = describe([other - one for one, other, _ in whole], [window for *_, window in whole])["se"]
    return _numbers(describe(x, windows)["mean"], describe(y, windows)["mean"], se, len(whole), lost, gained)


def _of_runs(a: Sequence[Record], b: Sequence[Record], metric: str, by_window: bool) -> Row:
    """The numbers of cells that do not pair, or by their windows only."""
    found = []
    for cells in (a, b):
        values = [(value, cell.get("window")) for cell in cells for value in _values(cell, metric)]
        found.append((values, describe([v for v, _ in values], [w for _, w in values])))
    (ours, x), (theirs, y) = found
    if by_window:
        means = [_window_means(values) for values in (ours, theirs)]
        both = [window for window in means[0] if window in means[1]]
        se = describe([means[1][window] - means[0][window] for window in both], both)["se"]
    else:
        se = None if x["se"] is None or y["se"] is None else math.hypot(x["se"], y["se"])
    share = x["count"] / max(len(ours), 1) - y["count"] / max(len(theirs), 1)  # of values lost
    lost, gained = math.ceil(max(share, 0) * len(theirs)), math.ceil(max(-share, 0) * len(ours))
    return _numbers(x["mean"], y["mean"], se, min(x["count"], y["count"]), lost, gained)


def _window_means(values: Sequence[tuple[float | None, Any]]) -> dict[Any, float]:
    by_window: dict[Any, list[float]] = {}
    for value, window in values:
        if value is not None:
            by_window.setdefault(window, []).append(value)
    return {window: math.fsum(found) / len(found) for window, found in by_window.items()}


def _numbers(a: float | None, b: float | None, se: float | None, count: int, lost: int, gained: int) -> Row:
    difference = None if a is None or b is None else b - a
    return {
        "a": a,
        "b": b,
        "difference": difference,
        "se": se,
        "difference_in_se": difference / se if difference is not None and se else None,
        "ratio": b / a if difference is not None and a else None,
        "values": count,
        "lost": lost,
        "gained": gained,
    }


def _judged(metric: str, numbers: Row, tolerance: float) -> tuple[str, str | None]:
    """The verdict on the numbers of one row, and what stands behind it where that is no number."""
    if numbers["lost"]:
        return "worse", f"no finite value in {numbers['lost']} places where A has one"
    gained = f"a finite value in {numbers['gained']} places where A has none" if numbers["gained"] else None
    change = numbers["difference"]
    if change is None:
        return "better" if gained else "same", gained
    worse = -change if metric in LARGER else change
    if abs(worse) <= tolerance * abs(numbers["a"]):
        return "better" if gained else "same", gained
    if numbers["se"] is not None and abs(worse) <= SIGMAS * numbers["se"]:
        return "unclear", gained
    return "worse" if worse > 0 else "better", gained
