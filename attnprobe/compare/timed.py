"""Two runs of times on one machine, row by row: the rows that became slower or larger beyond the noise of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import UsageError, unknown
from ..experiments import EXPERIMENTS, experiment
from ..files import Fields
from ..records.file import strict_json
from ..tables.labels import identity
from ..tables.long import Row
from ..tables.metrics import BENCH, METRICS
from .cells import related
from .chance import certain, within_rounds
from .verdicts import Draft, alone, blank, numbers

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


def timed_drafts(
    a: Sequence[Fields],
    b: Sequence[Fields],
    rows_of: Callable[[Sequence[Fields]], Sequence[Fields]],
    metrics: Sequence[str] = (),
    pairs: Sequence[str] = (),
) -> tuple[list[Draft | Row], list[Mapping[str, Any]], list[str]]:
    """Drafts of the rows that both runs have, then the rows of one run alone; the sources that both share; notes.

    A row is one (method, options, target, n, d, layer) of one source. The noise of a time, or of its ratio to exact
    attention, is the sum of both runs' spreads over their rounds; of a ratio at least what the ratio of exact
    attention to itself was off from 1 (``noise_floor``). Memory and products have none but the floor of their metric.

    Raises:
        UsageError: runs of different machines (what differs is named), no row in common, an unknown metric.
    """
    for metric in metrics:
        if metric not in BENCHED:
            raise unknown("metric", metric, BENCHED)
    _refuse_other_machines(a, b)
    rows = [_of_requests(run, rows_of) for run in (a, b)]
    if pairs:
        rows = related(rows[0], rows[0] if a is b else rows[1], pairs)
    runs = [{_key(row): row for row in run} for run in rows]
    shared = [key for key in runs[0] if key in runs[1]]
    if not any(runs[0][key]["requested"] for key in shared):
        what = "pair at the same" if pairs else "requested method at the same options,"
        raise UsageError(f"A and B have no {what} source, target, n, d and layer: nothing to compare")
    names = dict.fromkeys(metrics or DEFAULT)
    drafts = [_draft(runs[0][key], runs[1][key], metric) for key in shared for metric in names]
    lone = [
        alone(_blank(row), name, row["requested"], "this row is not in the other run")
        for name, rows, other in (("A", *runs), ("B", *runs[::-1]))
        for key, row in rows.items()
        if key not in other
    ]
    sources = {identity(facts): facts for key in shared for facts in [runs[0][key]["record"]["source"]]}
    return [one for one in (*drafts, *lone) if one is not None], list(sources.values()), _notes(a, b)


def _of_requests(
    records: Sequence[Fields], rows_of: Callable[[Sequence[Fields]], Sequence[Fields]]
) -> list[dict[str, Any]]:
    rows = zip(records, rows_of(records), strict=True)
    return [{**row, "requested": record["requested"], "record": record} for record, row in rows]


def _key(row: Fields) -> tuple[Any, ...]:
    of = (row["pair"], "") if "pair" in row else (row["method"], strict_json(row.get("options") or {}))
    facts = {**row["record"], "d": row.get("d")}
    names = ("target", "n", "d", "layer", "backward")
    return identity(facts["source"]), *of, *(facts.get(name) for name in names)


def _refuse_other_machines(a: Sequence[Fields], b: Sequence[Fields]) -> None:
    """Refuse times of different machines, which cannot be compared."""
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


def _blank(row: Fields) -> Row:
    """A row without a comparison; runs that are compared have one source each."""
    return blank(row, weights=row["weights"], source={}, cells=1)


def _draft(a: Fields, b: Fields, metric: str) -> Draft | None:
    """One metric of one row; None if neither run has it."""
    values = numbers(a[metric], b[metric])
    row = {**_blank(a), **values, "metric": metric, "statistic": "median", "paired": "cells"}
    evidence = within_rounds(_noise(a, b, metric)) if METRICS[metric].timed else certain()
    if a["status"] != b["status"]:
        change = f"{a['status']} became {b['status']}"
        worse = b["status"] != "ok"
        return Draft(row, METRICS[metric], evidence, change if worse else None, None if worse else change)
    return None if a[metric] is None or b[metric] is None else Draft(row, METRICS[metric], evidence)


def _noise(a: Fields, b: Fields, metric: str) -> float | None:
    """The largest difference of two times, or ratios to exact attention, that is noise; None for single rounds."""
    spreads = [row[SPREADS[metric]] for row in (a, b)]
    if None in spreads:
        return None
    floors = [abs(row["noise_floor"] - 1) * row[metric] for row in (a, b) if row["noise_floor"] is not None]
    return max(sum(spreads), *floors) if metric == "ratio_to_exact" and floors else sum(spreads)


def _notes(a: Iterable[Fields], b: Iterable[Fields]) -> list[str]:
    """Versions that differ. They may be what is compared, so they are not refused."""
    ours, others = (next(iter(run))["versions"] for run in (a, b))
    return [f"{name} {ours.get(name)} in A, {others.get(name)} in B" for name in ours if ours[name] != others.get(name)]
