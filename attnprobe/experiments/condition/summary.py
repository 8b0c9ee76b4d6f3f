"""The summary of ``attnprobe condition``: each matrix over heads and windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard, cast

from typing_extensions import ReadOnly, TypedDict

from ...tables.rows import Quantiles
from ...tables.statistics import quantiles, rank_correlation
from ...tables.table import grouped_by
from .rows import ConditionRow, MeasuredRow, is_measured

ORDER = ("A", "B", "C", "B~", "A_S", "SAS", "SCS", "SCS+ridge", "N0", "N")


class ConditionSummary(TypedDict):
    """One matrix on one layer, over heads and windows. The classes below add fields that an entry may have."""

    matrix: ReadOnly[str | None]
    method: str | None
    options: Mapping[str, object]
    target: str | None
    layer: int
    n: int
    d: int | None
    weights: str | None
    source: str | None
    scale_inputs: float
    size: int | None
    inverted: bool | None
    status: str
    reason: str | None
    heads: int
    windows: int
    flagged: int | None
    error: float | None


class Gradients(TypedDict, total=False):
    """Medians of norms of gradients."""

    gradient: float
    gradient_six: float


class Conditions(Gradients):
    """Condition numbers over heads and windows."""

    count: int
    flagged: int
    cond: Quantiles
    cond_at_half: float
    rank: float
    cond_eff: float
    duplicates: float
    spearman: float | None
    spearman_count: int


class Interval(TypedDict):
    """Scaled cores and Lemma 3's interval."""

    lemma3: Mapping[str, int]
    eigen_min: float
    eigen_max: float


class Spread(Quantiles):
    """Relative changes of a matrix per relative change of Q and K."""

    max: float
    count: int


class Steps(TypedDict):
    """Quantiles over heads for each step."""

    p10: list[float]
    median: list[float]
    p90: list[float]


class Conditioned(Conditions, ConditionSummary):
    """An entry whose condition numbers are known."""

    matrix: str


class Scaled(Interval, ConditionSummary):
    """An entry of a core with Lemma 3's scaling."""

    matrix: str


class Changed(ConditionSummary):
    """An entry whose changes with Q and K are known."""

    sensitivity: Spread


class Iterated(ConditionSummary):
    """An entry of a core whose inverse is iterated."""

    matrix: str
    residuals: Steps
    start: str | None


def is_conditioned(row: ConditionSummary) -> TypeGuard[Conditioned]:
    return "cond" in row


def is_scaled(row: ConditionSummary) -> TypeGuard[Scaled]:
    return "lemma3" in row


def is_changed(row: ConditionSummary) -> TypeGuard[Changed]:
    return "sensitivity" in row


def is_iterated(row: ConditionSummary) -> TypeGuard[Iterated]:
    return "residuals" in row


def conditions_summary(rows: Iterable[ConditionRow]) -> list[ConditionSummary]:
    """One entry per (source, layer, n, matrix, method with options, d), over heads and windows, in the tables' order.

    The condition number of a flagged matrix counts as infinite. A quantile that reaches one is infinite (``"inf"`` in
    JSON), and flagged heads tie at the top of the rank correlation. ``spearman`` is null for fewer than 3 heads, or if
    all tie.
    """
    groups = grouped_by(rows, "source", "layer", "n", "matrix", "method", "options", "d")
    entries = [_summary(group) for group in groups]
    sources = list(dict.fromkeys(row["source"] for row in entries))
    rank: dict[str | None, int] = {name: place for place, name in enumerate(ORDER)}
    order = lambda row: (sources.index(row["source"]), row["layer"], row["n"], rank.get(row["matrix"], len(rank)))
    return sorted(entries, key=order)


def _summary(group: Sequence[ConditionRow]) -> ConditionSummary:
    """The summary of the rows of one matrix."""
    first, measured = group[0], list(filter(is_measured, group))
    statuses = [row["status"] for row in group]
    errors = [error for row in group if (error := row.get("error")) is not None]
    entry: ConditionSummary = {
        "matrix": first["matrix"],
        "method": first["method"],
        "options": first["options"],
        "target": first["target"],
        "layer": first["layer"],
        "n": first["n"],
        "d": first["d"],
        "weights": first["weights"],
        "source": first["source"],
        "scale_inputs": first["scale_inputs"],
        "size": next((row["size"] for row in measured), None),
        "inverted": next((row["inverted"] for row in measured), None),
        "status": next((word for word in ("failed", "diverged", "skipped") if word in statuses), "ok"),
        "reason": next((row["reason"] for row in group if row["reason"]), None),
        "heads": len({row["head"] for row in group}),
        "windows": len({row["window"] for row in group}),
        "flagged": None,
        "error": quantiles(errors)["median"] if errors else None,
    }
    more = {**_conditions(measured), **_interval(measured), **_changes(group), **_residuals(measured)}
    return cast(ConditionSummary, entry | more)


def _infinite(values: Iterable[float | None]) -> list[float]:
    """The values, with infinity for None."""
    return [math.inf if value is None else value for value in values]


def _conditions(measured: Sequence[MeasuredRow]) -> Conditions | dict[str, object]:
    if not measured:
        return {}
    conds = _infinite(row["cond"] for row in measured)
    median = lambda values: quantiles(_infinite(values))["median"]
    pairs = [(cond, row["error"]) for cond, row in zip(conds, measured, strict=True) if row["error"] is not None]
    gradients: Gradients = {}
    for name in ("gradient", "gradient_six"):
        if all(name in row for row in measured):
            gradients[name] = median(row.get(name) for row in measured)
    conditions: Conditions = {
        "count": len(measured),
        "flagged": sum(row["flag"] is not None for row in measured),
        "cond": quantiles(conds),
        "cond_at_half": median(row["cond_at"][str(max(1, row["size"] // 2))] for row in measured),
        "rank": median(row["rank"] for row in measured),
        "cond_eff": median(row["cond_eff"] for row in measured),
        "duplicates": median(row["duplicates"] for row in measured),
        **gradients,
        "spearman": rank_correlation(*zip(*pairs, strict=True)) if pairs else None,
        "spearman_count": len(pairs),
    }
    return conditions


def _interval(measured: Sequence[MeasuredRow]) -> Interval | dict[str, object]:
    names = ("lemma3", "eigen_min", "eigen_max")
    known = [values for row in measured if None not in (values := [row.get(name) for name in names])]
    if not known:
        return {}
    verdicts, least, largest = zip(*known, strict=True)
    return {
        "lemma3": {word: verdicts.count(word) for word in ("holds", "zero", "violated")},
        "eigen_min": min(least),
        "eigen_max": max(largest),
    }


def _changes(group: Sequence[ConditionRow]) -> dict[str, Spread]:
    changes = [value for row in group for value in row.get("sensitivity") or () if value is not None]
    return {"sensitivity": {**quantiles(changes), "max": max(changes), "count": len(changes)}} if changes else {}


def _residuals(measured: Sequence[MeasuredRow]) -> dict[str, object]:
    residuals = [values for row in measured if (values := row.get("residuals"))]
    if not residuals:
        return {}
    spread = [quantiles(_infinite(step)) for step in zip(*residuals, strict=False)]
    steps: Steps = {
        "p10": [one["p10"] for one in spread],
        "median": [one["median"] for one in spread],
        "p90": [one["p90"] for one in spread],
    }
    return {"residuals": steps, "start": measured[0].get("start")}
