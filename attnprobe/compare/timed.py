"""Two runs of times on one machine, row by row: the rows that became slower or larger beyond the noise of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import UsageError
from ..experiments import EXPERIMENTS, experiment
from ..files import Fields
from ..records.file import strict_json
from ..tables.long import Row
from ..tables.metrics import BENCH, METRICS
from .chance import certain, within_rounds
from .verdicts import Draft, blank, numbers

BENCHED = tuple(metric.name for metric in BENCH)
DEFAULT = ("ratio_to_exact", "peak_bytes")
SPREADS = {"ratio_to_exact": "ratio_spread", "seconds": "seconds_spread"}


def timed_rows(records: Iterable[Fields]) -> Callable[[Sequence[Fields]], Sequence[Fields]] | None:
    """The function that makes the rows of records with times; None for records without times or of several commands."""
    names = {record.get("command") for record in records}
    if len(names) != 1 or not names <= {*EXPERIMENTS}:
        return None
    one = experiment(str(*names))
    return one.part("view:timed_rows") if one.timed else None


def timed_cells(
    records: Sequence[Fields], rows_of: Callable[[Sequence[Fields]], Sequence[Fields]]
) -> list[dict[str, Any]]:
    """Records with times, each with what its row has besides."""
    return [{**row, **record} for record, row in zip(records, rows_of(records), strict=True)]


def refuse_other_machines(a: Sequence[Fields], b: Sequence[Fields]) -> None:
    """Refuse times of different machines, which cannot be compared.

    Raises:
        UsageError: it names what differs.
    """
    ours, others = ({strict_json(record["machine"]): record["machine"] for record in run} for run in (a, b))
    if ours.keys() == others.keys():
        return
    first, second = next(iter(ours.values())), next(iter(others.values()))
    machines = [
        f"{name} {first.get(name)} in A, {second.get(name)} in B"
        for name in {**first, **second}
        if first.get(name) != second.get(name)
    ]
    raise UsageError(f"A and B were measured on different machines: {'; '.join(machines) or 'one of them on several'}")


def other_versions(a: Sequence[Fields], b: Sequence[Fields]) -> list[str]:
    """Notes on versions that differ. They may be what is compared, so they are not refused."""
    ours, others = a[0]["versions"], b[0]["versions"]
    return [f"{name} {ours.get(name)} in A, {others.get(name)} in B" for name in ours if ours[name] != others.get(name)]


def timed_place(cell: Fields) -> Row:
    """A row without a comparison; runs that are compared have one source each."""
    return blank(cell, weights=cell["weights"], source={}, cells=1)


def timed_drafts(a: Fields, b: Fields, metrics: Iterable[str]) -> list[Draft]:
    """A draft for each metric that both cells have, or for every metric if their statuses differ.

    The noise of a time, or of its ratio to exact attention, is the sum of both runs' spreads over their rounds; of a
    ratio at least what the ratio of exact attention to itself was off from 1 (``noise_floor``). Memory and products
    have none but the floor of their metric.
    """
    change = f"{a['status']} became {b['status']}" if a["status"] != b["status"] else None
    fell = b["status"] != "ok"
    drafts = []
    for metric in metrics:
        if change is None and (a[metric] is None or b[metric] is None):
            continue
        row = {**timed_place(a), **numbers(a[metric], b[metric])}
        row |= {"metric": metric, "statistic": "median", "paired": "cells"}
        evidence = within_rounds(_noise(a, b, metric)) if METRICS[metric].timed else certain()
        drafts.append(Draft(row, METRICS[metric], evidence, change if fell else None, None if fell else change))
    return drafts


def _noise(a: Fields, b: Fields, metric: str) -> float | None:
    """The largest difference of two times, or ratios to exact attention, that is noise; None for single rounds."""
    spreads = [row[SPREADS[metric]] for row in (a, b)]
    if None in spreads:
        return None
    floors = [abs(row["noise_floor"] - 1) * row[metric] for row in (a, b) if row["noise_floor"] is not None]
    return max(sum(spreads), *floors) if metric == "ratio_to_exact" and floors else sum(spreads)
