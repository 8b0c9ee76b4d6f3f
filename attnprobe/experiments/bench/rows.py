"""What ``attnprobe bench`` shows: a row for each method, n and d, how costs grow, and what to choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median, quantiles
from typing import Any

from ...tables.labels import identity, source_labels
from ...tables.numbers import method_label, significant
from ...tables.statistics import describe, fragile_statistics
from ...tables.table import grouped_by
from .growth import exponent, faster_from, growth

__all__ = ["COSTS", "EXACT", "bench_choices", "bench_rows", "bench_summary", "conditions", "disturbances", "frontier"]

Record = Any
Row = Any

EXACT = "exact"  # exact attention by torch's fused kernel
ERROR = "output_spectral_relative"
COSTS = ("seconds", "peak_bytes", "flops")
PLACE = ("source", "layer", "target", "backward")


def bench_rows(records: Iterable[Record]) -> list[Row]:
    """The rows of the JSON contract, one for each (method, options, n, d, layer).

    ``seconds`` is the median of ``seconds_rounds`` and ``seconds_spread`` half the range between their quartiles;
    ``ratio_to_exact`` and ``ratio_spread`` the same of the ratios round by round. Exact attention is timed twice in
    each round: its ratio is 1, and ``noise_floor``, in all rows of its place and n, that of the two times. ``flops``
    are counted and ``leading_flops`` what the registry's leading cost says, ``visited`` the entries of n², all heads
    each.
    ``error`` is the median over heads of ‖E‖₂/‖BV‖₂; ``metrics`` describes each error over heads.
    """
    records = list(records)
    labels = source_labels(records)
    rows = [_row(record, labels[identity(record.get("source"))]) for record in records]
    floors = {(*_place(row), row["n"]): row["ratio_to_exact"] for row in rows if row["method"] == EXACT}
    for row in rows:
        row["noise_floor"] = floors.get((*_place(row), row["n"]))
        if row["method"] == EXACT and row["ratio_rounds"]:
            row |= {"ratio_to_exact": 1.0, "ratio_rounds": [1.0] * len(row["ratio_rounds"]), "ratio_spread": 0.0}
    return rows


def _row(record: Record, label: str | None) -> Row:
    metrics = record["metrics"]
    times, exact = metrics.get("seconds") or [], metrics.get("exact_seconds") or []
    ratios = [ours / theirs for ours, theirs in zip(times, exact, strict=False) if theirs]
    windows = [0] * len(record["heads"])
    described = {
        name: describe(values, windows)
        for name, values in sorted(metrics.items())
        if name.startswith("output_") or name == "bad_rows"
    }
    visited = [value for value in metrics.get("visited") or [] if value is not None]
    names = (
        "method",
        "options",
        "target",
        "family",
        "cost",
        "n",
        "d",
        "layer",
        "backward",
        "gradient",
        "status",
        "reason",
        "reference",
        "requested",
    )
    return {
        **{name: record.get(name) for name in names},
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
        "error": (described.get(ERROR) or {}).get("median"),
        "metrics": described,
        "fragile": {name: found for name in described if (found := fragile_statistics([record], name))},
        "load": record.get("load"),
    }


def _place(row: Row) -> tuple[Any, ...]:
    """Where costs are compared."""
    return tuple(row[name] for name in PLACE)


def _one(values: Sequence[float | None] | None) -> float | None:
    return values[0] if values else None


def _spread(values: Sequence[float]) -> float | None:
    """Half the range between the quartiles; None for a single value, of which nothing is known."""
    if len(values) < 2:
        return None
    first, _, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / 2


def bench_summary(rows: Iterable[Row]) -> list[Row]:
    """One entry per (source, layer, target, backward, method, options, d): how time and memory grow with n.

    ``time_exponent`` and ``memory_exponent`` are those of `exponent`, ``time_exponent_spread`` that of the rounds;
    ``faster_from`` and ``smaller_from`` the n from which it takes less time, and less memory, than exact attention;
    ``growth`` is what the leading cost claims; ``lengths`` and ``memory_lengths`` are how many n were measured.
    """
    groups = grouped_by(rows, *PLACE, "method", "options", "d")
    exact = {_place(some[0]): some for some in groups if some[0]["method"] == EXACT}
    found = []
    for some in groups:
        theirs = exact.get(_place(some[0]), [])
        names = ("method", "options", "family", "target", "weights", "source", "layer", "backward", "d", "reference")
        entry = {name: some[0][name] for name in names}
        entry["growth"] = growth(some[0]["cost"] or "")
        for name, cost in (("time", "seconds"), ("memory", "peak_bytes")):
            entry[f"{name}_exponent"] = exponent(_at(some, cost))
        entry["time_exponent_spread"] = _exponent_spread(some)
        for name, cost in (("faster_from", "seconds"), ("smaller_from", "peak_bytes")):
            entry[name] = None if some is theirs else faster_from(_at(some, cost), _at(theirs, cost))
        entry["lengths"] = len(_at(some, "seconds"))
        entry["memory_lengths"] = len(_at(some, "peak_bytes"))
        entry["longest_n"] = max(_at(some, "seconds"), default=None)
        found.append(entry)
    return found


def _exponent_spread(rows: Sequence[Row]) -> float | None:
    """The spread of the exponents of the rounds, each fitted alone."""
    rounds = min((len(row["seconds_rounds"]) for row in rows if row["seconds"]), default=0)
    each = [exponent({row["n"]: row["seconds_rounds"][i] for row in rows if row["seconds"]}) for i in range(rounds)]
    known = [one for one in each if one is not None]
    return _spread(known) if len(known) == len(each) else None


def _at(rows: Sequence[Row], cost: str) -> dict[int, float]:
    return {row["n"]: row[cost] for row in rows if row[cost]}


def bench_choices(rows: Iterable[Row], epsilons: Sequence[float], under_ms: Sequence[float]) -> list[Row]:
    """For each (source, layer, target, n): the fastest method under each error, and the smallest error under each time.

    An entry's ``limit`` is ``error`` or ``ms`` and ``value`` its value; ``method`` is None where none is within it.
    Methods alone are chosen from, not references; a row whose error is not finite is out.
    """
    timed = [row for row in rows if not row["reference"] and row["status"] == "ok" and row["seconds"]]
    found = []
    for some in grouped_by([row for row in timed if row["error"] is not None], *PLACE, "n"):
        limits = [("error", value, [row for row in some if row["error"] <= value], "seconds") for value in epsilons]
        limits += [("ms", value, [row for row in some if 1e3 * row["seconds"] <= value], "error") for value in under_ms]
        for limit, value, within, least in limits:
            place = {name: some[0][name] for name in (*PLACE, "weights", "n")}
            best = min(within, key=lambda row, name=least: row[name], default=None)
            names = ("method", "options", "d", "seconds", "ratio_to_exact", "peak_bytes", "error")
            found.append(
                {
                    **place,
                    "limit": limit,
                    "value": value,
                    "of": len(some),
                    **{name: best and best[name] for name in names},
                }
            )
    return found


def frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (cost, error) pairs those that no other one beats in both, by cost.

    >>> frontier([(1.0, 0.5), (2.0, 0.6), (3.0, 0.1), (3.0, 0.2)])
    [(1.0, 0.5), (3.0, 0.1)]
    """
    kept: list[tuple[float, float]] = []
    for cost, error in sorted(points):
        if not kept or error < kept[-1][1]:
            kept.append((cost, error))
    return kept


def conditions(records: Iterable[Record]) -> list[str]:
    """The lines that say where and how times were taken; more than one where a run was gone on with elsewhere."""
    records = [record for record in records if record.get("machine")]
    lines = []
    for here in grouped_by(records, "machine", "versions"):
        facts, known = here[0]["machine"], here[0]["versions"]
        clocks = sorted({round(r["clock_mhz"]) for r in here if r.get("clock_mhz")})
        clock = f", {clocks[0]} MHz" if len(clocks) == 1 else f", {clocks[0]} – {clocks[-1]} MHz" if clocks else ""
        loads = [r["load"] for r in here if r.get("load") is not None]
        load = f", load average {min(loads):g} – {max(loads):g}" if loads else ""
        rounds = sorted({len(r["metrics"].get("seconds") or []) for r in here} - {0})
        lines.append(
            f"machine: {facts['device']}, {facts['cpu']}{clock}, {facts['threads']} threads of {facts['cores']} cores, "
            f"{facts['system']}{load}"
        )
        told = f"timed: medians of {', '.join(map(str, rounds))} interleaved rounds" if rounds else "timed: nothing"
        lines.append(f"{told}, torch {known['torch']}, Python {known['python']}, attnprobe {known['attnprobe']}")
    return lines


def disturbances(records: Iterable[Record], rows: Sequence[Row]) -> list[str]:
    """Warnings of times that other programs disturbed: a load above the cores, or a spread above its median."""
    warnings = []
    loads = [(r["load"], r["machine"]["cores"]) for r in records if r.get("machine") and r.get("load") is not None]
    if busy := [(load, cores) for load, cores in loads if cores and load > cores]:
        load, cores = max(busy)
        warnings.append(
            f"load average {load:g} exceeds the {cores} cores: other programs ran, so times are too long; "
            "measure again on a quiet machine"
        )
    if wild := [row for row in rows if row["seconds"] and (row["seconds_spread"] or 0) > row["seconds"]]:
        worst = max(wild, key=lambda row: row["seconds_spread"] / row["seconds"])
        time, spread = (significant(1e3 * worst[name], 3) for name in ("seconds", "seconds_spread"))
        who = method_label(worst) + ("" if worst["d"] is None else f" d={worst['d']}")
        warnings.append(
            f"the rounds of {len(wild)} of {sum(bool(row['seconds']) for row in rows)} times spread by more than their "
            f"median, most {who} at n = {worst['n']}, {time} ± {spread} ms: these times are unreliable"
        )
    return warnings
