"""From records to the rows of the JSON contract."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np

from ..records.file import LOWER_BOUND, STATUSES
from .labels import identity, scale_of, source_labels

__all__ = [
    "RATIOS",
    "STATISTICS",
    "describe",
    "doubtful_heads",
    "fragile_statistics",
    "quantiles",
    "rank_correlation",
    "sortable",
    "summarise",
    "worst_status",
]

Record = Mapping[str, Any]
Row = dict[str, Any]

STATISTICS = ("mean", "se", "median", "p10", "p90", "max", "count")
RATIOS = ("output_spectral", "output_frobenius")
ROUNDING = 1e-5  # relative errors below it may be rounding alone
NORMALISED = ("output_", "matrix_")  # metrics of B~, whose rows are divided by the normaliser
FRAGILE = 0.02  # relative change of a statistic; two runs within it differ by less than the 5 % of `compare`


def summarise(records: Iterable[Record]) -> tuple[list[Row], list[Row]]:
    """The rows of `error`'s JSON and its bounds, from the records of one run.

    A row is one (source, method, options, target, n, d, layer); its values run over heads x windows x repeats, and
    ``seconds`` over cells. ``source`` is a label where the run has several, which are never averaged together (see
    `source_labels`), else null. Per metric: `describe`. A value that is null enters no statistic and not ``count``; the
    row's ``values`` and ``cells`` say how many there should have been. ``status`` is the worst of the cells' (failed,
    then diverged, skipped, ok) and ``reason`` says of how many; a row whose output or matrix error is null in an ok
    cell is ``diverged``. ``matrix_open`` counts the values of ‖B − B~‖₂ whose interval did not close, null where none
    was measured. ``over_vmean`` is the ratio of means

        ``Σ_i e_i / Σ_i v_i``,   v_i the V-Mean's error at the same source, window, head, layer, n and target as e_i,

    null where V-Mean was not measured there. ``fragile`` lists by metric the statistics that are not reproducible (see
    `fragile_statistics`). Rows are ordered by source, layer, n, target, references last, the
    method's first appearance, and d. Bounds are the records of the method `LOWER_BOUND`, summarised alike.

    >>> cell = {"method": "x", "target": "softmax", "n": 8, "d": 2, "layer": 0, "heads": [0, 1], "status": "ok"}
    >>> rows, bounds = summarise([{**cell, "window": w, "metrics": {"output_spectral": [w, 3.0]}} for w in (0, 1)])
    >>> rows[0]["metrics"]["output_spectral"]["mean"], rows[0]["metrics"]["output_spectral"]["se"], bounds
    (1.75, 0.25, [])
    """
    records = list(records)
    labels = source_labels(records)
    sources = {label: place for place, label in enumerate(labels.values())}
    groups: dict[tuple[Any, ...], list[Record]] = {}
    rank: dict[tuple[str, str], int] = {}
    for record in records:
        who = (record["method"], json.dumps(record.get("options") or {}, sort_keys=True))
        rank.setdefault(who, len(rank))
        place = _place(record, labels)
        groups.setdefault((*who, *place, record.get("d")), []).append(record)
    for cells in groups.values():  # sums do not depend on the order in which a sweep was run
        cells.sort(key=lambda cell: (sortable(cell.get("window")), sortable(cell.get("repeat"))))
    vmean = _vmean_errors(groups)
    rows = [_row(cells, key[2:6], vmean) for key, cells in groups.items()]
    rows.sort(
        key=lambda row: (
            sources[row["source"]],
            *(sortable(row[name]) for name in ("layer", "n", "target")),
            row["reference"],
            rank[row["method"], json.dumps(row["options"], sort_keys=True)],
            sortable(row["d"]),
        )
    )
    bounds = [row for row in rows if row["method"] == LOWER_BOUND]
    return [row for row in rows if row["method"] != LOWER_BOUND], bounds


def describe(values: Sequence[float | None], windows: Sequence[Any]) -> dict[str, float | int | None]:
    """Mean, s.e., median, p10, p90, max and count of the finite ``values``; ``windows`` names each one's text window.

    The heads and repeats of one text are not independent, so the standard error clusters by window: with the W window
    means m_w of the finite values,

        ``se = sqrt( Σ_w (m_w - m)² / (W - 1) ) / sqrt(W)``,   m the mean of the m_w,

    null for W = 1. Quantiles interpolate linearly between order statistics. A statistic that overflows is null.

    >>> found = describe([1.0, 3.0, 6.0, None], [0, 0, 1, 1])
    >>> [found[name] for name in STATISTICS]
    [3.3333333333333335, 2.0, 3.0, 1.4, 5.4, 6.0, 3]
    """
    kept = [(float(v), w) for v, w in zip(values, windows, strict=True) if v is not None and math.isfinite(v)]
    if not kept:
        return {**dict.fromkeys(STATISTICS), "count": 0}
    x = np.array([value for value, _ in kept])
    by_window: dict[Any, list[float]] = {}
    for value, window in kept:
        by_window.setdefault(window, []).append(value)
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.array([np.mean(group) for group in by_window.values()])
        p10, median, p90 = np.quantile(x, [0.1, 0.5, 0.9])
        found = {
            "mean": x.mean(),
            "se": means.std(ddof=1) / math.sqrt(len(means)) if len(means) > 1 else math.nan,
            "median": median,
            "p10": p10,
            "p90": p90,
            "max": x.max(),
        }
    return {**{name: _finite(value) for name, value in found.items()}, "count": len(kept)}


def fragile_statistics(cells: Iterable[Record], metric: str) -> list[str]:
    """Which statistics of a row's metric (mean, se, median, p10, p90, max) heads with bad rows carry.

    Where rounding decides the normaliser of a row, its error differs from machine to machine, and with the number of
    threads. Such a row matters where it puts the error of its head beyond what other heads have. So: the values of
    doubtful heads (see `doubtful_heads`) are brought into the range of the other heads' values, and a statistic that
    this moves by more than `FRAGILE` of its size is fragile. A maximum is fragile where a doubtful head attains it,
    a median where about half the heads are doubtful. Where every head is doubtful, nothing bounds them: all are.
    Metrics of other things than B~ (`NORMALISED`) have no fragile statistic.

    Args:
        cells: the records of one row: of one method, d, n, layer, target and source.

    >>> cell = {"metrics": {"output_spectral": [1.0, 2.0, 3.0, 90.0], "rounded_rows": [0, 0, 0, 7]}}
    >>> fragile_statistics([cell], "output_spectral")
    ['mean', 'p90', 'max']
    """
    if not metric.startswith(NORMALISED):
        return []
    found = [
        (value, cell.get("window"), bad)
        for cell in cells
        for value, bad in zip(_per_head(cell, metric), chain(doubtful_heads(cell), repeat(False)), strict=False)
        if value is not None and math.isfinite(value)
    ]
    values, windows, doubtful = zip(*found, strict=True) if found else ((), (), ())
    if not any(doubtful):
        return []
    before = describe(values, windows)
    if all(doubtful):
        return [name for name in STATISTICS[:-1] if before[name] is not None]
    sound = [value for value, _, bad in found if not bad]
    bounded = [min(max(value, min(sound)), max(sound)) for value in values]
    after = describe(bounded, windows)
    return [name for name in STATISTICS[:-1] if _differ(before[name], after[name])]


def doubtful_heads(cell: Record) -> list[bool]:
    """Whether a head of a record has ``rounded_rows``, for each head; empty where the method does not count them.

    Bad rows alone say nothing of this: a normaliser that is clearly negative is wrong, and the same everywhere.

    >>> doubtful_heads({"metrics": {"bad_rows": [4, 5], "rounded_rows": [0, 3]}})
    [False, True]
    """
    return [(count or 0) > 0 for count in _per_head(cell, "rounded_rows")]


def _differ(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return False
    return abs(before - after) > FRAGILE * max(abs(before), abs(after))


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p10, median and p90 by linear interpolation; infinite where it reaches an infinite value."""
    ordered = sorted(values)
    found = {}
    for name, share in (("p10", 0.1), ("median", 0.5), ("p90", 0.9)):
        place = share * (len(ordered) - 1)
        low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
        part = place - math.floor(place)
        within = part and not math.isinf(low)
        found[name] = low if not within else high if math.isinf(high) else low + part * (high - low)
    return found


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation; ties share their mean rank. None below 3 pairs or where one side is constant.

    >>> rank_correlation([1, 2, math.inf], [3.0, 2.0, 1.0])
    -1.0
    """
    from scipy.stats import spearmanr

    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return round(float(spearmanr(x, y).statistic), 12)


def _place(record: Record, labels: Mapping[str, str | None]) -> tuple[Any, ...]:
    """Where methods are compared: source, layer, n, target."""
    label = labels[identity(record.get("source"))]
    return label, record.get("layer"), record.get("n"), record.get("target")


def _row(cells: list[Record], place: tuple[Any, ...], vmean: Mapping[Any, float]) -> Row:
    """One row from the cells that differ only in window, repeat and heads."""
    first = cells[0]
    names = sorted({name for cell in cells for name in cell.get("metrics") or {}})  # as in records that were read back
    metrics = {}
    for name in names:
        values, windows = [], []
        for cell in cells:
            found = _per_head(cell, name)
            values += found
            windows += [cell.get("window")] * len(found)
        metrics[name] = describe(values, windows)
    if any(cell.get("seconds") is not None for cell in cells):
        windows = [cell.get("window") for cell in cells]
        metrics["seconds"] = describe([cell.get("seconds") for cell in cells], windows)
    status, reason = worst_status(cells)
    return {
        "method": first["method"],
        "options": dict(first.get("options") or {}),
        "target": first.get("target"),
        "n": first.get("n"),
        "d": first.get("d"),
        "realised_d": metrics["realised_d"]["mean"] if "realised_d" in metrics else None,
        "layer": first.get("layer"),
        "weights": (first.get("source") or {}).get("weights"),
        "source": place[0],
        "scale_inputs": scale_of(first.get("source")),
        "heads": len({head for cell in cells for head in cell.get("heads") or ()}),
        "windows": len({cell.get("window") for cell in cells}),
        "repeats": len({cell.get("repeat") for cell in cells}),
        "cells": len(cells),
        "values": sum(len(cell.get("heads") or ()) for cell in cells),
        "status": status,
        "reason": reason,
        "reference": any(cell.get("reference") for cell in cells),
        "requested": any(cell.get("requested") for cell in cells),
        "family": first.get("family"),
        "duplicates": max((cell.get("duplicates") or 0 for cell in cells), default=0),
        "matrix_open": _matrix_open(cells),
        "matrix_skipped": next((cell["matrix_skipped"] for cell in cells if cell.get("matrix_skipped")), None),
        **{name: first[name] for name in ("kernel_dtype", "row_tolerance") if name in first},
        "metrics": metrics,
        "fragile": {name: found for name in names if (found := fragile_statistics(cells, name))},
        "over_vmean": {name: _over_vmean(cells, name, place, vmean) for name in RATIOS if name in metrics},
    }


def _per_head(cell: Record, name: str) -> list[float | None]:
    values = (cell.get("metrics") or {}).get(name)
    return list(values) if isinstance(values, (list, tuple)) else [] if values is None else [values]


def _matrix_open(cells: list[Record]) -> int | None:
    measured = [cell["matrix_open"] for cell in cells if isinstance(cell.get("matrix_open"), (list, tuple))]
    return sum(map(sum, measured)) if measured else None


def worst_status(cells: list[Record]) -> tuple[str, str | None]:
    """The worst status of the cells, and in how many of them, with the first reason given."""
    statuses = [_cell_status(cell) for cell in cells]
    worst = max((status for status, _ in statuses), key=STATUSES.index)
    if worst == "ok":
        return worst, None
    reasons = Counter(reason for status, reason in statuses if status == worst)
    counts = Counter(status for status, _ in statuses)
    where = ", ".join(f"{counts[status]} {status}" for status in reversed(STATUSES[1:]) if counts[status])
    text = "; ".join(str(reason) for reason in list(reasons)[:3] if reason)
    more = f" (and {len(reasons) - 3} more reasons)" if len(reasons) > 3 else ""
    if len(cells) == 1:
        return worst, text or None
    return worst, f"{where} of {len(cells)} cells" + (f": {text}{more}" if text else "")


def _cell_status(cell: Record) -> tuple[str, str | None]:
    status = cell.get("status", "ok")
    if status != "ok":
        return status, cell.get("reason")
    for name in (*RATIOS, "matrix_spectral"):
        values = _per_head(cell, name)
        missing = sum(value is None or not math.isfinite(value) for value in values)
        if missing:
            return "diverged", f"{name} is not finite in {missing} of {len(values)} heads"
    return status, None


def _vmean_errors(groups: Mapping[tuple[Any, ...], list[Record]]) -> dict[Any, float]:
    """V-Mean's error by (metric, source, layer, n, target, window, head)."""
    found: dict[Any, float] = {}
    for (method, _, *place, _), cells in groups.items():
        if method != "vmean":
            continue
        for cell in cells:
            for name in RATIOS:
                for head, value in zip(cell.get("heads") or (), _per_head(cell, name), strict=False):
                    if value is not None and math.isfinite(value):
                        found[name, *place, cell.get("window"), head] = value
                relative = [value for value in _per_head(cell, f"{name}_relative") if value is not None]
                for head in cell.get("heads") or () if relative and max(relative) < ROUNDING else ():
                    found[name, *place, cell.get("window"), head] = 0.0  # V-Mean is exact here: no measure of others
    return found


def _over_vmean(cells: list[Record], name: str, place: tuple[Any, ...], vmean: Mapping[Any, float]) -> float | None:
    """``Σ e / Σ v`` over the finite values of the row; null where a V-Mean is missing or they sum to zero."""
    if cells[0].get("target") != "softmax":
        return None  # V-Mean's rows sum to 1 and those of C do not: it is no baseline there
    ours, theirs = [], []
    for cell in cells:
        for head, value in zip(cell.get("heads") or (), _per_head(cell, name), strict=False):
            if value is not None and math.isfinite(value):
                ours.append(value)
                theirs.append(vmean.get((name, *place, cell.get("window"), head)))
    if not ours or None in theirs or sum(theirs) == 0:
        return None
    return _finite(sum(ours) / sum(theirs))


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def sortable(value: Any) -> tuple[Any, ...]:
    """A key under which null precedes numbers and numbers precede strings."""
    if value is None:
        return (0,)
    return (2, value) if isinstance(value, str) else (1, value)
