"""A command's run from start to end: its folder, its cells and processes, and what is finished and missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import Fields, JsonObject
from ..frame.records.file import encode_inf, plain
from ..grammar.foreign import message
from ..inputs import Source
from ..machine.timings import Timings, duration
from .cells import Cells, Done, OpenCells, Place, Progress, bundles, record_of
from .estimate import speed
from .folder import Outcome, RunFolder, run_folder
from .group_work import VERSIONS, GroupWork
from .inputs import InputKeeper
from .limits import TIMEOUT
from .provenance import versions
from .sources import once
from .topics.running import RunRequest
from .where.backends import Alone, Crew, Limit
from .where.sites import site_of

LONG = 20.0  # seconds from which on a run says how long it takes
SLOWEST = 1e9  # work a second that every machine can do


@dataclass
class Session:
    """A finished run: its records, folder and sources, and the reasons of missing maps by key."""

    outcome: Outcome
    path: Path
    sources: Sequence[Source]
    unmapped: Mapping[str, str] = field(default_factory=dict)


def measure_cells(
    open_cells: OpenCells,
    request: RunRequest,
    *,
    notify: Callable[[str], None],
    progress: Progress,
    timings: Timings,
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
    notify = once(notify)
    with site_of(request, notify, exclusive=open_cells.exclusive) as site:
        cells = open_cells(site.local_request(request), notify, timings)
        with run_folder(request, cells, notify) as folder:
            name = folder.path.name
            inputs = InputKeeper(request, folder.path, name)
            ledger = Ledger(cells, folder, inputs, notify=notify, progress=progress, timings=timings)
            work = ledger.all_work + cells.work_of_opening(place for place, keys in ledger.missing.items() if keys)
            # less work takes less than LONG seconds on any machine: no line is due, and the speed need not be known
            per_second, state = speed(enough=work / LONG) if work > LONG * SLOWEST else (SLOWEST, "")
            if (seconds := work / per_second) > LONG:
                notify(f"about {duration(seconds)} for {len(ledger.work)} cells ({state}); --dry-run lists them")
            # other processes build the cells for themselves: a model in memory is not pickled
            made = (cells, timings) if site.alone else None
            groups = GroupWork(open_cells, request, name, folder.path, site.threads, site.devices, made)
            folder.outcome = ledger.measured_by(site.backend, groups)
            unmapped = cells.keep(kept, folder.outcome.records, folder.path, progress)
    return Session(folder.outcome, folder.path, cells.sources, unmapped)


class Ledger:
    """The books of a run: it receives what the processes measured, writes the records, and counts what is done.

    Args:
        folder: the run's folder; its earlier records stay. inputs: writes the input statistics.
        progress: called with the number of finished cells, the number of all cells and a label. A cell of this run
            counts by its work (see `Cells.work`), and an unfinished cell by the part of its work that is done.
    """

    def __init__(
        self,
        cells: Cells,
        folder: RunFolder,
        inputs: InputKeeper,
        *,
        notify: Callable[[str], None],
        progress: Callable[[float, int, str], None],
        timings: Timings,
    ) -> None:
        self.cells, self.writer, self.inputs, self.run = cells, folder.writer, inputs, folder.path.name
        self.notify, self.progress, self.timings = notify, progress, timings
        done, self.changes = folder.done, folder.changes
        self.resumed = bool(done)
        self.total = sum(map(len, cells.by_place.values()))
        self.records = {cell.key: done[cell.key] for cell in cells.ordered() if cell.key in done}
        self.missing = {place: {cell.key for cell in group} - done.keys() for place, group in cells.by_place.items()}
        self.work: dict[str, float] = {}  # of each missing cell
        self.reading: dict[str, float] = {}  # the cell's share of reading the inputs, a part of its work
        for place, keys in self.missing.items():
            for key, work in cells.works(place, keys).items():
                # the 1 makes a cell without work count too, and keeps the total above zero
                self.work[key], self.reading[key] = work.total + 1.0, work.inputs
        self.all_work, self.done_work = sum(self.work.values()), 0.0
        self.furthest = 0.0  # the largest `done` so far
        self.begun: dict[str, float] = {}  # the finished work of each cell without a record
        self.outcome = Outcome(done_before=len(self.records))

    def measured_by(self, backend: Alone | Crew, work: GroupWork) -> Outcome:
        """Measure everything that is missing, and return the records of all cells in their order.

        Several processes begin with the longest sequences, so that they end together.
        """
        waiting = [place for place, keys in self.missing.items() if keys]
        largest_bundle = backend.bundle(len(waiting))
        groups = bundles(waiting, largest_bundle)
        if self.resumed and (waiting or self.changes):
            others = "the others are measured now" if waiting else "nothing is measured"
            changes = f"; this command differs from the last one there: {self.changes}" if self.changes else ""
            self.notify(f"{len(self.records)} of {self.total} cells are there already; {others}{changes}")
        if largest_bundle < len(waiting):  # several processes
            groups.sort(key=lambda bundle: -bundle[0].group.n)
        backend.run(groups, work, self)
        self.progress(self.total, self.total, "")
        self.outcome.records = [self.records[cell.key] for cell in self.cells.ordered()]
        return self.outcome

    def done_keys(self, bundle: tuple[Place, ...]) -> Done:
        """The keys of finished cells, with the reasons of their records."""
        cells = (cell for place in bundle for cell in self.cells.by_place[place])
        return {cell.key: self.records[cell.key].get("reason") for cell in cells if cell.key in self.records}

    def began(self, facts: Fields) -> None:
        """Add the facts of a process to the manifest, and warn if its numbers may differ."""
        if facts in self.outcome.processes:
            return
        self.outcome.processes.append(dict(facts))
        own = versions()
        other = [f"{name} {facts[name]} (here {own.get(name)})" for name in VERSIONS if facts[name] != own.get(name)]
        if other:
            self.notify(f"{facts['host']} has {', '.join(other)}: its numbers may differ by rounding")

    def received(self, bundle: tuple[Place, ...], kind: str, value: Any) -> None:
        """Take a message of the process that measures a bundle; `GroupWork` lists the kinds of messages."""
        if kind == "record":
            # a process that died may have sent the record before it, so that no place misses it
            self._keep(next((place for place in bundle if value["key"] in self.missing[place]), None), value)
        elif kind == "inputs":
            self.inputs.write_once(value)
        elif kind == "show":
            self.progress(self.done, self.total, value)
        elif kind == "begun":
            for key, share in value.items():
                if key in self.work and key not in self.records:
                    # a cell begins once its inputs are read
                    self.begun[key] = self.reading[key] + share * (self.work[key] - self.reading[key])
        elif kind == "note":
            self.notify(value)
        elif kind == "timings":
            for stage, seconds in value.items():
                self.timings.seconds[stage] = self.timings.seconds.get(stage, 0.0) + seconds
        # kind is "end" here; a cell without a record has another key in the other process, from other inputs
        elif any(self.missing[place] for place in bundle):
            self.lost(bundle, "its process read other inputs than the process that writes the records")

    @property
    def done(self) -> float:
        """The number of finished cells. A cell of this run counts by its work."""
        before = self.outcome.done_before
        work = self.done_work + sum(self.begun.values())
        # the sums round in another order as cells finish; without the maximum the bar could step back
        self.furthest = max(self.furthest, before + work / self.all_work * (self.total - before))
        return self.furthest

    def died(self, reason: str) -> None:
        """Note the death of a process, whose bundle another process repeats."""
        self.outcome.deaths.append(reason)
        self.notify(f"{reason}; another does its group again")

    def lost(self, bundle: tuple[Place, ...], reason: str) -> None:
        """Record every missing cell of a bundle as failed."""
        self._fail(bundle, set().union(*(self.missing[place] for place in bundle)), reason)

    def overran(self, bundle: tuple[Place, ...], limit: Limit) -> None:
        """Record the cells of an exceeded time limit as failed. The other cells of the bundle stay missing."""
        reason = f"{TIMEOUT}: took longer than --cell-timeout {limit.seconds:g}, and its process was ended"
        self._fail(bundle, frozenset(limit.keys), reason)

    def _fail(self, bundle: tuple[Place, ...], keys: Collection[str], reason: str) -> None:
        for place in bundle:
            for cell in self.cells.by_place[place]:
                if cell.key in keys and cell.key in self.missing[place]:
                    failed = {"status": "failed", "reason": reason}
                    self._keep(place, record_of(self.cells, place, cell, self.run, failed))

    def _keep(self, place: Place | None, record: Fields) -> None:
        """Write a record and count it as done; without a place, the record is there already."""
        if place is None:
            return
        held: JsonObject = plain(encode_inf(record) if "rows" in record else record)
        try:
            self.writer.append(held)
        except UsageError as error:
            # a full disk: the run goes on and shows what it measured, and a resumed run measures the cell again
            held |= {"status": "failed", "reason": f"measured, but not written: {message(error)}"}
        self.outcome.measured += 1
        self.records[held["key"]] = held
        self.begun.pop(held["key"], None)
        self.done_work += self.work[held["key"]]
        self.missing[place].discard(held["key"])
