"""The rows of ``attnprobe bench``, their growth with n, and the conditions of times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log
from operator import itemgetter
from statistics import linear_regression, median, quantiles
from typing import Any

from ...figures.looks import EXACT
from ...tables.labels import with_source
from ...tables.long import Row, described, known, mean
from ...tables.results import Value
from ...tables.table import grouped_by
from .record import SHAPE, BenchRecord

ERROR = "output_spectral_relative"
METHOD = ("method", "options", "target", "family", "cost", "n", "d", "layer", "backward", "gradient")
STATE = ("status", "reason", "reference", "requested", "load")
OF_CALLS = ("seconds", "peak_bytes", "flops", "leading_flops")
FIT_FROM = 2048  # tokens; below it, constant costs would distort the fit
PLACE = ("source", "layer", "target", "backward")  # where costs are compared
GROWN = ("method", "options", "family", "target", "weights", "source", "layer", "backward", "d", "reference")


def timed_rows(records: Sequence[Any]) -> list[Row]:
    """A row for each record: one (method, options, n, d, layer).

    ``seconds`` is the median of ``seconds_rounds``, and ``seconds_spread`` half the range between their quartiles.
    ``ratio_to_exact`` and ``ratio_spread`` are the same for the ratios round by round. Exact attention is timed twice
    in each round: its row has the times that the ratios are over, and a ratio of 1; ``noise_floor`` is the ratio of the
    other times to these, in all rows of its place and n.
    ``flops`` are counted, ``leading_flops`` are computed from the registry's leading cost, and ``visited`` counts
    entries of n², each over all heads. ``scored`` and ``kv_read`` are for a row, means over heads.
    ``error`` is the median over heads of ‖E‖₂/‖BV‖₂; ``metrics`` describes each error over heads.
    """
    place = itemgetter(*PLACE, "n")
    rows: list[Row] = []
    floors: dict[tuple[Any, ...], float | None] = {}
    for record, where in with_source(records):
        row = {**_row(record), "weights": where["weights"], "source": where["source"]}
        if row["method"] == EXACT:
            floors[place(row)] = row["ratio_to_exact"]
            if over := _rounds(record, "exact_seconds"):
                row |= {"seconds": median(over), "seconds_spread": half_range(over), "seconds_rounds": over}
                row |= {"ratio_to_exact": 1.0, "ratio_spread": 0.0, "ratio_rounds": [1.0] * len(over)}
        rows.append(row)
    for row in rows:
        row["noise_floor"] = floors.get(place(row))
    return rows


def _row(record: BenchRecord) -> Row:
    heads = list(SHAPE.rows(record))
    times, exact = _rounds(record, "seconds"), _rounds(record, "exact_seconds")
    ratios = [ours / reference for ours, reference in zip(times, exact, strict=False) if reference]
    errors = [name for name in sorted(record["metrics"]) if name.startswith("output_") or name == "bad_rows"]
    of_heads = described(heads, errors)
    visited = known(heads, "visited")
    return {
        **{name: record.get(name) for name in (*METHOD, *STATE)},
        **{name: heads[0][name] for name in OF_CALLS},
        "heads": len(heads),
        "windows": 0,
        "rounds": len(times),
        "seconds_rounds": times,
        "seconds_spread": half_range(times),
        "ratio_rounds": ratios,
        "ratio_to_exact": median(ratios) if ratios else None,
        "ratio_spread": half_range(ratios),
        "visited": sum(visited) if visited else None,
        "visited_fraction": sum(visited) / len(visited) / record["n"] ** 2 if visited else None,
        "scored": mean(known(heads, "scored")),
        "kv_read": mean(known(heads, "kv_read")),
        "error": of_heads["metrics"].get(ERROR, {}).get("median"),
        **of_heads,
    }


def _rounds(record: BenchRecord, name: str) -> list[float]:
    return [value for value in record["metrics"].get(name) or () if value is not None]


def conditions(records: Iterable[BenchRecord]) -> list[str]:
    """The machine and the conditions of times; more than one line if a run was resumed on another machine."""
    lines = []
    for group in grouped_by(records, "machine", "versions"):
        facts, versions = group[0]["machine"], group[0]["versions"]
        clocks = sorted({round(clock) for r in group if (clock := r.get("clock_mhz"))})
        clock = f", {clocks[0]} MHz" if len(clocks) == 1 else f", {clocks[0]} – {clocks[-1]} MHz" if clocks else ""
        loads = [load for r in group if (load := r.get("load")) is not None]
        load = f", load average {min(loads):g} – {max(loads):g}" if loads else ""
        rounds = sorted({len(r["metrics"].get("seconds") or []) for r in group} - {0})
        lines.append(
            f"machine: {facts['device']}, {facts['cpu']}{clock}, {facts['threads']} threads of {facts['cores']} cores, "
            f"{facts['system']}{load}"
        )
        line = f"timed: medians of {', '.join(map(str, rounds))} interleaved rounds" if rounds else "timed: nothing"
        lines.append(
            f"{line}, torch {versions['torch']}, Python {versions['python']}, attnprobe {versions['attnprobe']}"
        )
    return lines


def growth(cost: str) -> str:
    """The growth with n of the cost that the registry states for a method.

    >>> growth("n² (p + d)"), growth("2 n d p + O(n √n p)"), growth("4 n d p + O(d³)")
    ('n²', 'n √n', 'n')
    """
    return next((word for word in ("n³", "n²", "n √n") if word in cost), "n")


def exponent(cost_at: Mapping[int, float]) -> float | None:
    """The slope of log cost over log n by least squares for n ≥ 2048; None for fewer than two of them.

    >>> round(exponent({1024: 9.0, 2048: 1.0, 4096: 4.0, 8192: 16.0}), 6)
    2.0
    """
    points = [(log(n), log(cost)) for n, cost in cost_at.items() if n >= FIT_FROM and cost > 0]
    return linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else None


def time_ratio(row: Row) -> Value | None:
    """A row's time over exact attention's, and its spread over rounds."""
    return Value.of(row["ratio_to_exact"], row["ratio_spread"])


def half_range(values: Sequence[float]) -> float | None:
    """Half the range between the quartiles; None for a single value."""
    if len(values) < 2:
        return None
    first, third = quartiles(values)
    return (third - first) / 2


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The quartiles p25 and p75 of values; of a single one, twice the value.

    >>> quartiles([0.74, 0.95, 0.98, 4.94, 5.27])
    (0.95, 4.94)
    """
    first, _, third = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return first, third


def bench_summary(rows: Sequence[Row]) -> list[Row]:
    """One entry per (source, layer, target, backward, method, options, d): the growth of time and memory with n.

    ``time_exponent`` and ``memory_exponent`` are those of `exponent`; ``time_exponent_spread`` is the spread over
    rounds. ``growth`` is that of the leading cost. ``lengths`` counts the measured n.
    """
    groups = grouped_by(rows, *PLACE, "method", "options", "d")
    summary = []
    for group in groups:
        seconds, memory = _at(group, "seconds"), _at(group, "peak_bytes")
        entry = {
            **{name: group[0].get(name) for name in GROWN},
            "growth": growth(group[0]["cost"]) if group[0]["cost"] else None,
            "time_exponent": exponent(seconds),
            "memory_exponent": exponent(memory),
            "time_exponent_spread": _exponent_spread(group),
            "lengths": len(seconds),
        }
        summary.append(entry)
    return summary


def _at(rows: Sequence[Row], cost: str) -> dict[int, float]:
    return {row["n"]: value for row in rows if (value := row[cost])}


def _exponent_spread(rows: Sequence[Row]) -> float | None:
    """The spread of the exponents of the rounds, each fitted alone."""
    timed = [row for row in rows if row["seconds"]]
    rounds = min((len(row["seconds_rounds"]) for row in timed), default=0)
    each = [exponent({row["n"]: row["seconds_rounds"][place] for row in timed}) for place in range(rounds)]
    found = [one for one in each if one is not None]
    return half_range(found) if len(found) == len(each) else None
