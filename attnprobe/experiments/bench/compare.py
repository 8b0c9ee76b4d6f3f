"""Two runs of bench on one machine, row by row: what became slower or larger beyond the spread of the rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import UsageError, unknown
from ...records.file import strict_json
from ...tables.labels import identity
from .rows import bench_rows

__all__ = ["BENCHED", "compare_bench"]

Record = Mapping[str, Any]
Row = dict[str, Any]

BENCHED = ("ratio_to_exact", "seconds", "peak_bytes", "flops")
DEFAULT = ("ratio_to_exact", "peak_bytes")
SPREADS = {"ratio_to_exact": "ratio_spread", "seconds": "seconds_spread"}


def compare_bench(
    a: Sequence[Record], b: Sequence[Record], metrics: Sequence[str] = (), tolerance: float = 0.05
) -> tuple[list[Row], list[Mapping[str, Any]], list[str]]:
    """Rows as those of `compare_runs`, the sources that both runs share, and notes.

    A row is one (method, options, target, n, d, layer) of one source. ``worse`` is a value above A's by more than
    ``tolerance`` of it and by more than both runs' spreads together, or a status that got worse; ``unclear`` a change
    beyond the tolerance within the spreads.

    Raises:
        UsageError: runs of different machines (what differs is named), no row in common, an unknown metric.
    """
    for metric in metrics:
        if metric not in BENCHED:
            raise unknown("metric", metric, BENCHED)
    _refuse_other_machines(a, b)
    runs = [{_key(record): (record, row) for record, row in zip(run, bench_rows(run), strict=True)} for run in (a, b)]
    shared = [key for key in runs[0] if key in runs[1]]
    if not any(runs[0][key][0]["requested"] for key in shared):
        raise UsageError(
            "A and B have no requested method at the same source, options, target, n, d and layer: nothing to compare"
        )
    found = [
        _compared(runs[0][key][1], runs[1][key][1], metric, tolerance)
        for key in shared
        for metric in dict.fromkeys(metrics or DEFAULT)
    ]
    for verdict, mine, other in (("only in A", *runs), ("only in B", *runs[::-1])):
        found += [
            _place(row) | {"verdict": verdict, "cells": 1, "reason": "this row is not in the other run"}
            for key, (_, row) in mine.items()
            if key not in other
        ]
    sources = {identity(runs[0][key][0]["source"]): runs[0][key][0]["source"] for key in shared}
    kept = [row for row in found if row is not None]
    return kept, list(sources.values()), _notes(a, b)


def _key(record: Record) -> tuple[Any, ...]:
    options = strict_json(record.get("options") or {})
    names = ("target", "n", "d", "layer", "backward")
    return identity(record["source"]), record["method"], options, *(record.get(name) for name in names)


def _refuse_other_machines(a: Sequence[Record], b: Sequence[Record]) -> None:
    """Times of two machines say nothing about what was timed."""
    ours, theirs = ({strict_json(record["machine"]): record["machine"] for record in run} for run in (a, b))
    if ours.keys() == theirs.keys():
        return
    first, second = next(iter(ours.values())), next(iter(theirs.values()))
    told = [
        f"{name} {first.get(name)} in A, {second.get(name)} in B"
        for name in {**first, **second}
        if first.get(name) != second.get(name)
    ]
    raise UsageError(f"A and B were measured on different machines: {'; '.join(told) or 'one of them on several'}")


def _place(row: Row) -> Row:
    """What a row says of where it is, with nothing compared."""
    names = ("method", "options", "target", "n", "d", "layer", "weights", "reference")
    empty = ("metric", "a", "b", "difference", "se", "difference_in_se", "ratio", "paired", "seeds_a", "seeds_b")
    return {**{name: row[name] for name in names}, "source": {}, **dict.fromkeys(empty), "cells": 1, "reason": None}


def _compared(a: Row, b: Row, metric: str, tolerance: float) -> Row | None:
    """One metric of one row; None where neither run has it."""
    row = {**_place(a), "metric": metric, "a": a[metric], "b": b[metric], "paired": "cells"}
    if a["status"] != b["status"]:
        worse = b["status"] != "ok"
        return row | {"verdict": "worse" if worse else "better", "reason": f"{a['status']} became {b['status']}"}
    if a[metric] is None or b[metric] is None:
        return None
    difference, spread = b[metric] - a[metric], sum(one.get(SPREADS.get(metric)) or 0.0 for one in (a, b))
    row |= {"difference": difference, "ratio": b[metric] / a[metric] if a[metric] else None}
    if abs(difference) <= tolerance * abs(a[metric]) or math.isclose(difference, 0.0):
        return row | {"verdict": "same"}
    if abs(difference) <= spread:
        return row | {"verdict": "unclear", "reason": f"within the spreads of the rounds, {spread:.3g} together"}
    return row | {"verdict": "worse" if difference > 0 else "better"}


def _notes(a: Iterable[Record], b: Iterable[Record]) -> list[str]:
    """Versions that differ: no reason to refuse, as they may be what is compared."""
    ours, theirs = (next(iter(run))["versions"] for run in (a, b))
    return [f"{name} {ours.get(name)} in A, {theirs.get(name)} in B" for name in ours if ours[name] != theirs.get(name)]
