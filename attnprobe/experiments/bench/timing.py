"""The rows of ``attnprobe bench``, one for each method, n and d; the conditions of times, and disturbances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from statistics import median
from typing import Any

from ...figures.looks import EXACT
from ...tables.labels import with_source
from ...tables.long import Row, known
from ...tables.numbers import method_label, significant
from ...tables.statistics import describe, fragile_statistics
from ...tables.table import grouped_by
from .growth import PLACE, half_range
from .record import SHAPE, BenchRecord

ERROR = "output_spectral_relative"
METHOD = ("method", "options", "target", "family", "cost", "n", "d", "layer", "backward", "gradient")
STATE = ("status", "reason", "reference", "requested", "load")
OF_CALLS = ("seconds", "peak_bytes", "flops", "leading_flops")


def timed_rows(records: Sequence[Any]) -> list[Row]:
    """A row for each record: one (method, options, n, d, layer).

    ``seconds`` is the median of ``seconds_rounds``, and ``seconds_spread`` half the range between their quartiles.
    ``ratio_to_exact`` and ``ratio_spread`` are the same for the ratios round by round. Exact attention is timed twice
    in each round. Its ratio is 1; ``noise_floor`` is the ratio of the two times, in all rows of its place and n.
    ``flops`` are counted, ``leading_flops`` are computed from the registry's leading cost, and ``visited`` counts
    entries of n², each over all heads. ``scored`` and ``kv_read`` are for a row, means over heads.
    ``error`` is the median over heads of ‖E‖₂/‖BV‖₂; ``metrics`` describes each error over heads.
    """
    rows = [
        {**_row(record), "weights": where["weights"], "source": where["source"]}
        for record, where in with_source(records)
    ]
    place = itemgetter(*PLACE, "n")
    floors = {place(row): row["ratio_to_exact"] for row in rows if row["method"] == EXACT}
    for row in rows:
        row["noise_floor"] = floors.get(place(row))
        if row["method"] == EXACT and row["ratio_rounds"]:
            row |= {"ratio_to_exact": 1.0, "ratio_spread": 0.0, "ratio_rounds": [1.0] * len(row["ratio_rounds"])}
    return rows


def _row(record: BenchRecord) -> Row:
    """The costs of one record: of all heads together, over rounds, and over heads."""
    heads = list(SHAPE.rows(record))
    times, exact = _rounds(record, "seconds"), _rounds(record, "exact_seconds")
    ratios = [ours / reference for ours, reference in zip(times, exact, strict=False) if reference]
    errors = [name for name in sorted(record["metrics"]) if name.startswith("output_") or name == "bad_rows"]
    metrics = {name: describe([row[name] for row in heads], [0] * len(heads)) for name in errors}
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
        "scored": _mean(known(heads, "scored")),
        "kv_read": _mean(known(heads, "kv_read")),
        "error": metrics[ERROR]["median"] if ERROR in metrics else None,
        "metrics": metrics,
        "fragile": {name: fragile for name in metrics if (fragile := fragile_statistics([record], name))},
    }


def _rounds(record: BenchRecord, name: str) -> list[float]:
    return [value for value in record["metrics"].get(name) or () if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def conditions(records: Iterable[BenchRecord]) -> list[str]:
    """The machine and the conditions of times; more than one line if a run was resumed on another machine."""
    records = [record for record in records if record.get("machine")]
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


def disturbances(records: Iterable[BenchRecord], rows: Sequence[Row]) -> list[str]:
    """Warnings of times that other programs disturbed: a load above the cores, or a spread above the median."""
    warnings = []
    loads = [(load, r["machine"]["cores"]) for r in records if r.get("machine") and (load := r.get("load")) is not None]
    if busy := [(load, cores) for load, cores in loads if cores and load > cores]:
        load, cores = max(busy)
        warnings.append(
            f"load average {load:g} exceeds the {cores} cores: other programs ran, so times are too long; "
            "measure again on a quiet machine"
        )
    times = [(row["seconds"], row["seconds_spread"] or 0.0, row) for row in rows if row["seconds"]]
    if wild := [(spread / time, time, spread, row) for time, spread, row in times if spread > time]:
        _, time, spread, worst = max(wild, key=lambda one: one[0])
        name = method_label(worst) + ("" if worst["d"] is None else f" d={worst['d']}")
        ends = " ± ".join(significant(1e3 * value, 3) for value in (time, spread))
        warnings.append(
            f"the rounds of {len(wild)} of {len(times)} times spread by more than their median, most {name} at "
            f"n = {worst['n']}, {ends} ms: these times are unreliable"
        )
    return warnings
