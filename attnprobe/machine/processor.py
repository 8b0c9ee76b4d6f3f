"""The processor, as Linux describes its first core."""

from __future__ import annotations

import platform
from contextlib import suppress
from functools import cache
from pathlib import Path


def name() -> str:
    """The processor's name."""
    return _fact("model name") or platform.processor() or platform.machine()


@cache
def is_intel() -> bool:
    """Whether Intel made the processor; false where no file and no system says so."""
    return "Intel" in (_fact("vendor_id") or platform.processor())


def clock_mhz() -> float | None:
    """The first core's clock in MHz: its maximum if the kernel has it, else its present value; None if unknown."""
    with suppress(OSError, ValueError):
        return int(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").read_text()) / 1000
    with suppress(ValueError):
        return float(_fact("cpu MHz"))
    return None


def _fact(field: str) -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(field):
                return line.partition(":")[2].strip()
    return ""
