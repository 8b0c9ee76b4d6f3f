"""A command's run from start to end: cells, processes, records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..files import Fields
from ..records.append import RecordWriter
from ..timings import Timings, duration
from .cells import OpenCells, Progress
from .estimate import in_gflops, speed
from .folder import recorded
from .group_work import GroupWork
from .inputs import keeper_of
from .ledger import Ledger, Outcome
from .limits import check_limit
from .sources import once
from .topics.running import RunRequest
from .where.sites import site_of

LONG = 60.0  # seconds from which on a run says how long it takes
SLOWEST = 1e9  # multiply-adds a second of any machine: less work takes less time, and no speed is measured


@dataclass
class Session:
    """A finished run: its records, folder and sources, and the reasons of missing maps by key."""

    outcome: Outcome
    path: Path
    sources: Sequence[Any]
    unmapped: Mapping[str, str] = field(default_factory=dict)


def measure_cells(
    open_cells: OpenCells,
    request: RunRequest,
    *,
    notify: Callable[[str], None],
    progress: Progress,
    timings: Timings | None = None,
    kept: Sequence[str] = (),
) -> Session:
    """Measure every cell of a request that its folder does not have, in the processes that the request names (see
    `site_of`).

    Args:
        open_cells: the class of a command's cells. kept: kinds of figures that need more than records (see
            `Cells.keep`).

    Raises:
        UsageError, SourceError: as the parts say; nothing is left behind.
        KeyboardInterrupt: passed on once the folder is in order.
    """
    check_limit(request.cell_timeout)
    timings, notify, unmapped = timings or Timings(), once(notify), {}
    if open_cells.in_one_process(request):
        request = replace(request, jobs=1)
    with site_of(request, notify, exclusive=open_cells.exclusive) as site:
        cells = open_cells(site.local_request(request), notify, timings)

        def measure(writer: RecordWriter, done: Fields, run: str) -> Outcome:
            folder = writer.path.parent
            work = GroupWork(
                open_cells, request, run, folder, site.threads, site.devices, (cells, timings) if site.alone else None
            )
            ledger = Ledger(
                cells,
                writer,
                keeper_of(request, folder, run),
                done=done,
                run=run,
                notify=notify,
                progress=progress,
                timings=timings,
            )
            if ledger.all_work > LONG * SLOWEST and (seconds := ledger.all_work / (pace := speed())) > LONG:
                notify(
                    f"about {duration(seconds)} for {len(ledger.work)} cells, at {in_gflops(pace)} measured now; "
                    "--dry-run lists them"
                )
            outcome = ledger.measured_by(site.backend, work)
            unmapped.update(cells.keep(kept, outcome.records, folder, progress))
            return outcome

        outcome, path = recorded(request, cells, notify, measure)
    return Session(outcome, path, cells.sources, unmapped)
