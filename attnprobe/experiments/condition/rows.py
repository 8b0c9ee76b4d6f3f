"""What records of ``attnprobe condition`` say: rows per matrix and head, and their summary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ...tables.statistics import quantiles, rank_correlation
from ...tables.table import grouped_by, places

__all__ = ["condition_rows", "conditions_summary"]

Record = Any
Row = Any
ERROR = "output_spectral_relative"
ORDER = ("A", "B", "C", "B~", "A_S", "SAS", "SCS", "SCS+ridge", "N0", "N")
PLACE = ("method", "options", "target", "layer", "window", "n", "d")
EMPTY = ("cond", "flag", "rank", "cond_at", "cond_eff", "duplicates")  # of a row that nothing was measured of
MEDIANS = ("rank", "cond_eff", "duplicates", "gradient", "gradient_six")


def condition_rows(records: Iterable[Record]) -> list[Row]:
    """The rows of the JSON contract: one per matrix and head; a cell without matrices is one row with its reason."""
    records = list(records)
    rows = []
    for record, place in zip(records, places(records, *PLACE), strict=True):
        measured = {one["matrix"]: one for one in record["matrices"]}
        changes = record["metrics"].get("sensitivity") or {}
        for name in dict.fromkeys([*measured, *changes]):
            rows += [_row(record, place, name, measured.get(name), index) for index in range(len(record["heads"]))]
        if not measured and not changes:
            rows.append({"matrix": None, **place, "head": None})
    return rows


def _row(record: Record, place: Row, name: str, measured: Record | None, index: int) -> Row:
    """One matrix of one head."""
    errors, changes = record["metrics"].get(ERROR), record["metrics"].get("sensitivity") or {}
    row = {"matrix": name, **place, "head": record["heads"][index], "error": errors[index] if errors else None}
    row |= dict.fromkeys(EMPTY)
    if measured is not None:
        row |= {"size": measured["size"], "inverted": measured["inverted"]}
        row |= {key: values[index] for key, values in sorted(measured["metrics"].items())}
    return row | ({"sensitivity": changes[name][index]} if name in changes else {})


def conditions_summary(rows: Iterable[Row]) -> list[Row]:
    """One entry per (source, layer, n, matrix, method with options, d), over heads and windows, in the tables' order.

    A flagged matrix counts as infinitely ill-conditioned: a quantile that reaches one is infinite (``"inf"`` in JSON),
    and in the rank correlation flagged heads are tied at the top. ``spearman`` is null below 3 heads, or where all tie.
    """
    groups = grouped_by(rows, "source", "layer", "n", "matrix", "method", "options", "d")
    found = [_summary(some) for some in groups]
    sources = list(dict.fromkeys(row["source"] for row in found))
    rank = {name: place for place, name in enumerate(ORDER)}
    order = lambda row: (sources.index(row["source"]), row["layer"], row["n"], rank.get(row["matrix"], len(rank)))
    return sorted(found, key=order)


def _summary(some: Sequence[Row]) -> Row:
    """The summary of the rows of one matrix."""
    first, measured = some[0], [row for row in some if row.get("rank") is not None]
    statuses = [row["status"] for row in some]
    names = ("matrix", *PLACE, "weights", "source", "scale_inputs")
    errors = [row["error"] for row in some if row.get("error") is not None]
    return {
        **{name: first.get(name) for name in names if name != "window"},
        **{name: next((row[name] for row in some if name in row), None) for name in ("size", "inverted")},
        "status": next((word for word in ("failed", "diverged", "skipped") if word in statuses), "ok"),
        "reason": next((row["reason"] for row in some if row["reason"]), None),
        "heads": len({row["head"] for row in some}),
        "windows": len({row["window"] for row in some}),
        "flagged": None,
        "error": quantiles(errors)["median"] if errors else None,
        **(_conditions(measured) if measured else {}),
        **_intervals(measured),
        **_changes(some),
        **_residuals(measured),
    }


def _infinite(values: Iterable[float | None]) -> list[float]:
    """The values, infinite where there is none."""
    return [math.inf if value is None else value for value in values]


def _conditions(measured: Sequence[Row]) -> Row:
    conds = _infinite(row["cond"] for row in measured)
    median = lambda values: quantiles(_infinite(values))["median"]
    pairs = [(cond, row["error"]) for cond, row in zip(conds, measured, strict=True) if row.get("error") is not None]
    return {
        "count": len(measured),
        "flagged": sum(row["flag"] is not None for row in measured),
        "cond": quantiles(conds),
        "cond_at_half": median(row["cond_at"][str(max(1, row["size"] // 2))] for row in measured),
        **{name: median(row[name] for row in measured) for name in MEDIANS if all(name in row for row in measured)},
        "spearman": rank_correlation(*zip(*pairs, strict=True)) if pairs else None,
        "spearman_count": len(pairs),
    }


def _intervals(measured: Sequence[Row]) -> Row:
    """What scaled cores say of Lemma 3's interval."""
    names = ("lemma3", "eigen_min", "eigen_max")
    known = [[row[name] for name in names] for row in measured if None not in map(row.get, names)]
    if not known:
        return {}
    verdicts, least, largest = zip(*known, strict=True)
    return {
        "lemma3": {word: verdicts.count(word) for word in ("holds", "zero", "violated")},
        "eigen_min": min(least),
        "eigen_max": max(largest),
    }


def _changes(some: Sequence[Row]) -> Row:
    changes = [value for row in some for value in row.get("sensitivity") or () if value is not None]
    return {"sensitivity": {**quantiles(changes), "max": max(changes), "count": len(changes)}} if changes else {}


def _residuals(measured: Sequence[Row]) -> Row:
    residuals = [row["residuals"] for row in measured if row.get("residuals")]
    if not residuals:
        return {}
    spread = [quantiles(_infinite(step)) for step in zip(*residuals, strict=False)]
    listed = {key: [one[key] for one in spread] for key in ("p10", "median", "p90")}
    return {"residuals": listed, "start": measured[0].get("start")}
