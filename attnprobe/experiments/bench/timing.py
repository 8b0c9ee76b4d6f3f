"""The machine and the conditions of the times of ``attnprobe bench``, and disturbances of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...tables.numbers import method_label, significant
from ...tables.table import grouped_by
from .rows import BenchRow

if TYPE_CHECKING:
    from .record import BenchRecord


def conditions(records: Iterable[BenchRecord]) -> list[str]:
    """The machine and the conditions of times; more than one line if a run was resumed on another machine."""
    records = [record for record in records if record.get("machine")]
    lines = []
    for group in grouped_by(records, "machine", "versions"):
        facts, known = group[0]["machine"], group[0]["versions"]
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
        lines.append(f"{line}, torch {known['torch']}, Python {known['python']}, attnprobe {known['attnprobe']}")
    return lines


def disturbances(records: Iterable[BenchRecord], rows: Sequence[BenchRow]) -> list[str]:
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
