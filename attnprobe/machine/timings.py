"""The time of each stage of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter


class Timings:
    """Seconds by stage. Stages may nest; the time of an inner stage does not count for the outer one.

    >>> timings = Timings()
    >>> with timings("outer"), timings("inner"):
    ...     pass
    >>> sorted(timings.seconds)
    ['inner', 'outer']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self._charge()
        self._open.append(stage)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        now = perf_counter()
        if self._open:
            # only the innermost stage is charged, so that the seconds of all stages add up to the run's
            stage = self._open[-1]
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now


def duration(seconds: float) -> str:
    """``40 s``, ``12 min`` or ``3.5 h``.

    >>> duration(39.6), duration(700), duration(12600)
    ('40 s', '12 min', '3.5 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def timings_table(seconds: Mapping[str, float], total: float) -> str:
    """Stage, seconds and share of ``total``, the longest first. The last line is the time of no stage.

    >>> print(timings_table({"capture": 3.0, "exact": 6.5}, total=10.0))
    stage              seconds   share
    exact                6.500   65.0%
    capture              3.000   30.0%
    attnprobe itself     0.500    5.0%
    """
    lines = sorted(seconds.items(), key=lambda item: -item[1])
    lines.append(("attnprobe itself", max(total - sum(seconds.values()), 0.0)))
    width = max(len(stage) for stage, _ in lines)
    table = [f"{'stage':{width}}  {'seconds':>8}  {'share':>6}"]
    for stage, spent in lines:
        table.append(f"{stage:{width}}  {spent:8.3f}  {spent / total if total > 0 else 0:6.1%}")
    return "\n".join(table)
