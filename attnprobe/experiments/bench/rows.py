"""The view of ``attnprobe bench``: a row for each method, n and d, how costs grow, and what to choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Literal, NotRequired

from typing_extensions import TypedDict

from ...tables.labels import identity, source_labels
from ...tables.rows import MethodRow, part
from ...tables.statistics import describe, fields_of, fragile_statistics
from ...tables.table import grouped_by
from .gates import ERRORS
from .growth import exponent, faster_from, growth

if TYPE_CHECKING:
    from .record import BenchRecord

EXACT = "exact"  # exact attention by torch's fused kernel
ERROR = "output_spectral_relative"
COSTS = ("seconds", "peak_bytes", "flops")
PLACE = ("source", "layer", "target", "backward")


class Method(TypedDict):
    """What was timed, as in the record."""

    method: str
    options: Mapping[str, object]
    target: str | None
    family: str | None
    cost: str | None
    n: int
    d: int | None
    layer: int
    backward: bool | None
    gradient: str | None
    status: str
    reason: str | None
    reference: bool
    requested: bool


class BenchRow(MethodRow, Method):
    """The cost of one method at one n."""

    rounds: int
    seconds: float | None
    seconds_spread: float | None
    seconds_rounds: list[float]
    ratio_to_exact: float | None
    ratio_rounds: list[float]
    ratio_spread: float | None
    peak_bytes: float | None
    flops: float | None
    leading_flops: float | None
    visited: float | None
    visited_fraction: float | None
    scored: float | None
    kv_read: float | None
    error: float | None
    load: float | None
    noise_floor: NotRequired[float | None]


FIELDS = fields_of(BenchRow, [metric.name for metric in ERRORS])


class Grown(TypedDict):
    """The fields that all rows of an entry share."""

    method: str
    options: Mapping[str, object]
    family: str | None
    target: str | None
    weights: str | None
    source: str | None
    layer: int
    backward: bool | None
    d: int | None
    reference: bool


class BenchSummary(Grown):
    """How the costs of one method grow with n."""

    growth: str
    time_exponent: float | None
    memory_exponent: float | None
    time_exponent_spread: float | None
    faster_from: float | None
    smaller_from: float | None
    lengths: int
    memory_lengths: int
    longest_n: int | None


class ChoicePlace(TypedDict):
    """Where there is a choice."""

    source: str | None
    layer: int
    target: str | None
    backward: bool | None
    weights: str | None
    n: int


class Chosen(TypedDict):
    """The best method; null if none is within the limit."""

    method: str | None
    options: Mapping[str, object]
    d: int | None
    seconds: float | None
    ratio_to_exact: float | None
    peak_bytes: float | None
    error: float | None


class Choice(ChoicePlace, Chosen):
    """The best method within a limit, of so many."""

    limit: str
    value: float
    of: int


def timed_rows(records: Sequence[BenchRecord]) -> list[BenchRow]:
    """The rows of the JSON contract, one for each (method, options, n, d, layer).

    ``seconds`` is the median of ``seconds_rounds``, and ``seconds_spread`` half the range between their quartiles.
    ``ratio_to_exact`` and ``ratio_spread`` are the same for the ratios round by round. Exact attention is timed twice
    in each round. Its ratio is 1; ``noise_floor`` is the ratio of the two times, in all rows of its place and n.
    ``flops`` are counted, ``leading_flops`` are computed from the registry's leading cost, and ``visited`` counts
    entries of n², each over all heads. ``scored`` and ``kv_read`` are for a row, means over heads.
    ``error`` is the median over heads of ‖E‖₂/‖BV‖₂; ``metrics`` describes each error over heads.
    """
    labels = source_labels(records)
    rows = [_row(record, labels[identity(record.get("source"))]) for record in records]
    floors = {(*_place(row), row["n"]): row["ratio_to_exact"] for row in rows if row["method"] == EXACT}
    for row in rows:
        row["noise_floor"] = floors.get((*_place(row), row["n"]))
        if row["method"] == EXACT and row["ratio_rounds"]:
            row["ratio_to_exact"], row["ratio_spread"] = 1.0, 0.0
            row["ratio_rounds"] = [1.0] * len(row["ratio_rounds"])
    return rows


def _row(record: BenchRecord, label: str | None) -> BenchRow:
    metrics = record["metrics"]
    times, exact = _numbers(metrics.get("seconds")), _numbers(metrics.get("exact_seconds"))
    ratios = [ours / reference for ours, reference in zip(times, exact, strict=False) if reference]
    windows = [0] * len(record["heads"])
    described = {
        name: describe(values, windows)
        for name, values in sorted(metrics.items())
        if name.startswith("output_") or name == "bad_rows"
    }
    visited = _numbers(metrics.get("visited"))
    return {
        **part(Method, record),
        "weights": (record.get("source") or {}).get("weights"),
        "source": label,
        "heads": len(record["heads"]),
        "windows": 0,
        "rounds": len(times),
        "seconds": median(times) if times else None,
        "seconds_spread": _spread(times),
        "seconds_rounds": times,
        "ratio_to_exact": median(ratios) if ratios else None,
        "ratio_rounds": ratios,
        "ratio_spread": _spread(ratios),
        "peak_bytes": _one(metrics.get("peak_bytes")),
        "flops": _one(metrics.get("flops")),
        "leading_flops": _one(metrics.get("leading_flops")),
        "visited": sum(visited) if visited else None,
        "visited_fraction": sum(visited) / len(visited) / record["n"] ** 2 if visited else None,
        "scored": _mean(metrics.get("scored")),
        "kv_read": _mean(metrics.get("kv_read")),
        "error": described[ERROR]["median"] if ERROR in described else None,
        "metrics": described,
        "fragile": {name: fragile for name in described if (fragile := fragile_statistics([record], name))},
        "load": record.get("load"),
    }


def _place(row: BenchRow) -> tuple[Any, ...]:
    """Where costs are compared."""
    return tuple(row[name] for name in PLACE)


def _numbers(values: Sequence[float | None] | None) -> list[float]:
    return [value for value in values or () if value is not None]


def _mean(values: Sequence[float | None] | None) -> float | None:
    known = _numbers(values)
    return sum(known) / len(known) if known else None


def _one(values: Sequence[float | None] | None) -> float | None:
    return values[0] if values else None


def _spread(values: Sequence[float]) -> float | None:
    """Half the range between the quartiles; None for a single value."""
    if len(values) < 2:
        return None
    first, _, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / 2


def bench_summary(rows: Iterable[BenchRow]) -> list[BenchSummary]:
    """One entry per (source, layer, target, backward, method, options, d): the growth of time and memory with n.

    ``time_exponent`` and ``memory_exponent`` are those of `exponent`; ``time_exponent_spread`` is the spread over
    rounds. ``faster_from`` and ``smaller_from`` are the n from which it takes less time, and less memory, than exact
    attention. ``growth`` is that of the leading cost. ``lengths`` and ``memory_lengths`` count the measured n.
    """
    groups = grouped_by(rows, *PLACE, "method", "options", "d")
    exact = {_place(group[0]): group for group in groups if group[0]["method"] == EXACT}
    summary = []
    for group in groups:
        reference = exact.get(_place(group[0]), [])
        seconds, memory = _at(group, "seconds"), _at(group, "peak_bytes")
        entry: BenchSummary = {
            **part(Grown, group[0]),
            "growth": growth(group[0]["cost"] or ""),
            "time_exponent": exponent(seconds),
            "memory_exponent": exponent(memory),
            "time_exponent_spread": _exponent_spread(group),
            "faster_from": None if group is reference else faster_from(seconds, _at(reference, "seconds")),
            "smaller_from": None if group is reference else faster_from(memory, _at(reference, "peak_bytes")),
            "lengths": len(seconds),
            "memory_lengths": len(memory),
            "longest_n": max(seconds, default=None),
        }
        summary.append(entry)
    return summary


def _exponent_spread(rows: Sequence[BenchRow]) -> float | None:
    """The spread of the exponents of the rounds, each fitted alone."""
    rounds = min((len(row["seconds_rounds"]) for row in rows if row["seconds"]), default=0)
    each = [exponent({row["n"]: row["seconds_rounds"][i] for row in rows if row["seconds"]}) for i in range(rounds)]
    known = [one for one in each if one is not None]
    return _spread(known) if len(known) == len(each) else None


def _at(rows: Sequence[BenchRow], cost: Literal["seconds", "peak_bytes"]) -> dict[int, float]:
    return {row["n"]: value for row in rows if (value := row[cost])}


def bench_choices(rows: Iterable[BenchRow], epsilons: Sequence[float], under_ms: Sequence[float]) -> list[Choice]:
    """For each (source, layer, target, n): the fastest method under each error, and the smallest error under each time.

    An entry's ``limit`` is ``error`` or ``ms``, and ``value`` its value; ``method`` is None if none is within it.
    References and rows with a non-finite error are not chosen, nor are methods that take as long as exact attention.
    """
    timed = [row for row in rows if not row["reference"] and row["status"] == "ok" and row["seconds"]]
    cheaper = lambda row: row["ratio_to_exact"] is None or row["ratio_to_exact"] < 1
    choices: list[Choice] = []
    for group in grouped_by([row for row in timed if row["error"] is not None], *PLACE, "n"):
        error = lambda row: row["error"]
        seconds = lambda row: row["seconds"]
        limits = [("error", value, [row for row in group if error(row) <= value], seconds) for value in epsilons]
        limits += [("ms", value, [row for row in group if 1e3 * seconds(row) <= value], error) for value in under_ms]
        for limit, value, within, least in limits:
            best: Mapping[str, object] = min(filter(cheaper, within), key=least, default={})
            choice: Choice = {
                **part(ChoicePlace, group[0]),
                "limit": limit,
                "value": value,
                "of": len(group),
                **part(Chosen, best),
            }
            choices.append(choice)
    return choices


def frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (cost, error) pairs that no other pair beats in both, by cost.

    >>> frontier([(1.0, 0.5), (2.0, 0.6), (3.0, 0.1), (3.0, 0.2)])
    [(1.0, 0.5), (3.0, 0.1)]
    """
    best: list[tuple[float, float]] = []
    for cost, error in sorted(points):
        if not best or error < best[-1][1]:
            best.append((cost, error))
    return best
