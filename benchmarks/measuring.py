"""What the benchmarks share: interleaved medians, and peak memory (Linux)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeVar

Result = TypeVar("Result")


def timed(
    work: dict[str, Callable[[], Result]], rounds: int, warm_up: int = 1
) -> tuple[dict[str, float], dict[str, Result]]:
    """Medians of interleaved rounds after ``warm_up`` others, which find cold caches, and what the last one gave."""
    seconds, results = {name: [] for name in work}, {}
    for _ in range(rounds + warm_up):
        for name, once in work.items():
            begin = perf_counter()
            results[name] = once()
            seconds[name].append(perf_counter() - begin)
    return {name: median(every[warm_up:]) for name, every in seconds.items()}, results


def peak_mib(work: Callable[[], object]) -> float:
    """Peak memory of ``work()`` beyond what this process holds."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident_mib("VmRSS")
    work()
    return resident_mib("VmHWM") - before


def resident_mib(what: str) -> float:
    """``VmRSS`` or its peak ``VmHWM`` of this process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith(what))
