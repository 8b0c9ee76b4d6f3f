"""Rows that are measured one by one within a time limit: a row that fails, or would take too long, says so.

A benchmark's sections run in a process of their own, which appends every row to a file at once. What breaks that
process, or holds it up, costs one section: the next one begins in a new process.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import Any

import torch
from measuring import spread

from attnprobe.grammar.foreign import reason
from attnprobe.run.limits import CellTimeout, time_limit

ONCE = 2.0  # seconds: a call that takes longer is not repeated
SURPRISING = 3.0  # times the expected seconds, 0 where no smaller n was measured: a call that is made once more
ROUNDS = 3
GRACE = 20.0  # seconds that a section may be late before its process is ended
STARTUP = 60.0  # seconds that a process may take until its first section
NO_TIME = " s are left of the section"  # the end of the reason of a row that was not begun
BROKEN = 3  # exit code of a process whose device takes no more work

Call = Callable[[], Any]
Facts = Callable[[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Subject:
    """What a row is of.

    Attributes:
        flops: of the products that cannot be avoided, 2 a multiply-add, all heads; a function of the call's result
            where that says how many there were. None is not known.
        growth: the power of n with which the time grows.
    """

    name: str
    n: int
    heads: int = 1
    p: int = 128
    dtype: str = "float64"
    flops: float | Callable[[Any], float] | None = None
    growth: float = 2.0


@dataclass
class Row:
    """One line of a table. ``floor`` is ``flops`` over the measured rate of a plain product in the same precision."""

    section: str
    name: str
    n: int
    heads: int
    p: int
    dtype: str
    seconds: float | None = None
    spread: float = 0.0
    calls: int = 0
    mib: float | None = None
    flops: float | None = None
    floor: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    absent: str | None = None  # why there are no seconds

    @property
    def over_floor(self) -> float | None:
        return self.seconds / self.floor if self.seconds and self.floor else None


class Measure:
    """Measures rows of a section until its time is over, and appends them to a file."""

    def __init__(self, device: torch.device, path: Path) -> None:
        self.device, self.path = device, path
        self.rows = read_rows(path)
        self.section, self.deadline = "", 0.0

    def begin(self, section: str, deadline: float) -> None:
        """Start a section that ends at ``deadline`` of `time.monotonic`."""
        self.section, self.deadline = section, deadline

    def row(self, subject: Subject, make: Callable[[], Call], facts: Facts = lambda _: {}) -> Row:
        """Time the call that ``make`` gives, ``facts`` of its last result beside it.

        Whatever it raises is the row's reason. A row whose time, by that of a smaller n, does not fit is not begun.
        """
        row = Row(self.section, subject.name, subject.n, subject.heads, subject.p, subject.dtype)
        left, known = self.deadline - monotonic(), self._known(subject)
        expected = 0.0
        if known is not None:
            expected = known.seconds * (subject.n / known.n) ** subject.growth
        if expected > left or left <= 0:
            row.absent = f"about {expected:.0f} s, {max(0.0, left):.0f}{NO_TIME}"
        else:
            self._fill(row, subject, make, facts, left, expected)
        rate = self.rate(subject.dtype)
        if row.flops is not None and rate is not None:
            row.floor = row.flops / rate
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        time = "" if row.seconds is None else f"{row.seconds:.3g} s"
        print(f"{row.section}: {row.name}, {row.dtype}, n={row.n}, heads={row.heads}: {row.absent or time}", flush=True)
        if row.absent is not None and "CUDA error" in row.absent:
            sys.exit(BROKEN)  # no later call of this process would succeed
        return row

    def rate(self, dtype: str) -> float | None:
        """FLOP/s of a plain product in ``dtype`` on this device, where the section of peaks measured it."""
        for row in self.rows:
            if row.section == "peaks" and row.dtype == dtype and row.seconds and row.flops:
                return row.flops / row.seconds
        return None

    def _fill(
        self, row: Row, subject: Subject, make: Callable[[], Call], facts: Facts, left: float, expected: float
    ) -> None:
        row.flops = None if callable(subject.flops) else subject.flops
        once = result = None
        try:
            with torch.no_grad(), time_limit(max(1.0, left + GRACE / 2)):
                once = make()
                result, row.mib, first = self._first(once)
                if first > max(ONCE, SURPRISING * expected):  # it was compiled, or its kernels were chosen
                    first = self._timed(once)[1]
                again = ROUNDS if first <= ONCE else 0
                seconds = [self._timed(once)[1] for _ in range(again)] or [first]
                row.seconds, row.spread, row.calls = median(seconds), spread(seconds), len(seconds)
                row.facts = dict(facts(result))
                if callable(subject.flops):
                    row.flops = subject.flops(result)
        except torch.OutOfMemoryError:
            row.absent = "out of memory"
        except (Exception, CellTimeout) as error:
            row.absent = reason(error)[:160]
        del once, result
        gc.collect()
        if self.device.type == "cuda" and not (row.absent and "CUDA error" in row.absent):
            torch.cuda.empty_cache()

    def _first(self, once: Call) -> tuple[Any, float | None, float]:
        """The result of the first call, its memory beyond what was held before in MiB (CUDA alone), its seconds."""
        if self.device.type != "cuda":
            result, seconds = self._timed(once)
            return result, None, seconds
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result, seconds = self._timed(once)
        return result, (torch.cuda.max_memory_allocated() - before) / 2**20, seconds

    def _timed(self, once: Call) -> tuple[Any, float]:
        self._settle()
        begin = perf_counter()
        result = once()
        self._settle()
        return result, perf_counter() - begin

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _known(self, subject: Subject) -> Row | None:
        """The row of the same name with the largest n that is not larger, where there is one."""
        alike = (self.section, subject.name, subject.heads, subject.dtype)
        known = [
            row
            for row in self.rows
            if (row.section, row.name, row.heads, row.dtype) == alike and row.n <= subject.n and row.seconds
        ]
        return max(known, key=lambda row: row.n, default=None)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; a last line that was cut is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [Row(**json.loads(line)) for line in lines if line.endswith("\n")]


def run_sections(
    script: Sequence[str], names: Sequence[str], path: Path, show: Callable[[list[Row]], None]
) -> dict[str, str]:
    """Run sections in a process of their own; those that broke, and why.

    ``script`` with its arguments is called with ``--sections``, ``--rows`` and ``--since``, the `time.monotonic` of the
    beginning, and leaves word of each section with `mark`. Where the process breaks, or is later than that by `GRACE`,
    the sections after go on in a new one. ``show`` is called with the rows as they come.
    """
    since, broken, left, shown = monotonic(), {}, list(names), 0
    while left:
        ours = ["--sections", ",".join(left), "--rows", str(path), "--since", repr(since)]
        process = subprocess.Popen([sys.executable, *script, *ours])
        begun, why = monotonic(), None
        while process.poll() is None:
            sleep(0.2)
            rows = read_rows(path)
            if len(rows) > shown:
                shown = len(rows)
                show(rows)
            _, deadline = _current(path, left, begun + STARTUP)
            if why is None and monotonic() > deadline + GRACE:
                why = "took too long and was ended"
                process.kill()
        if process.returncode == 0:
            break
        last, _ = _current(path, left, begun)
        broken[last] = why or f"its process ended with {process.returncode}"
        left = left[left.index(last) + 1 :]
    return broken


def mark(path: Path, section: str, deadline: float) -> None:
    """Leave word that a section has begun, and of the `time.monotonic` at which it should end."""
    with _marks(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps([section, deadline]) + "\n")


def _current(path: Path, names: Sequence[str], startup: float) -> tuple[str, float]:
    """The last of these sections that has begun and its deadline; the first one and ``startup`` where none has."""
    marks = _marks(path)
    lines = marks.read_text(encoding="utf-8").splitlines(keepends=True) if marks.exists() else []
    begun = [json.loads(line) for line in lines if line.endswith("\n")]
    return next(((name, deadline) for name, deadline in reversed(begun) if name in names), (names[0], startup))


def _marks(path: Path) -> Path:
    return path.with_suffix(".sections")
