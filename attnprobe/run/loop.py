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
SLOWEST = 1e9  # work a second of any machine: less takes less time, and no speed is measured


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
            name, place = folder.path.name, folder.writer.path.parent
            inputs = InputKeeper(request, place, name)
            ledger = Ledger(cells, folder, inputs, notify=notify, progress=progress, timings=timings)
            work = ledger.all_work + cells.work_of_opening(place for place, keys in ledger.missing.items() if keys)
            per_second, state = speed() if work > LONG * SLOWEST else (SLOWEST, "")
            if (seconds := work / per_second) > LONG:
                notify(f"about {duration(seconds)} for {len(ledger.work)} cells ({state}); --dry-run lists them")
            made = (cells, timings) if site.alone else None
            groups = GroupWork(open_cells, request, name, place, site.threads, site.devices, made)
            folder.outcome = ledger.measured_by(site.backend, groups)
            unmapped = cells.keep(kept, folder.outcome.records, place, progress)
    return Session(folder.outcome, folder.path, cells.sources, unmapped)


class Ledger:
    """The listener of a run of cells.

    Args:
        folder: the run's; its earlier records stay. inputs: keeps input statistics.
        progress: called with the cells done, their total and a label. Cells of this run count by their work
            (see `Cells.work`), also partly finished ones.
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
        self.work: dict[str, float] = {}  # of the cells that are missing; each counts, free ones too
        self.reading: dict[str, float] = {}  # the part of it that is their share of reading the inputs
        for place, keys in self.missing.items():
            for key, work in cells.works(place, keys).items():
                self.work[key], self.reading[key] = work.total + 1.0, work.inputs
        self.all_work, self.done_work = sum(self.work.values()), 0.0
        self.most = 0.0
        self.begun: dict[str, float] = {}  # the work that is done of cells without a record
        self.outcome = Outcome(done_before=len(self.records))

    def measured_by(self, backend: Alone | Crew, work: GroupWork) -> Outcome:
        """Measure everything that is missing, and return the records of all cells in their order.

        Several processes begin with the longest sequences, so that they end together.
        """
        waiting = [place for place, keys in self.missing.items() if keys]
        most = backend.bundle(len(waiting))
        groups = bundles(waiting, most)
        if self.resumed and (waiting or self.changes):
            others = "the others are measured now" if waiting else "nothing is measured"
            changes = f"; this command differs from the last one there: {self.changes}" if self.changes else ""
            self.notify(f"{len(self.records)} of {self.total} cells are there already; {others}{changes}")
        if most < len(waiting):
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
        if kind == "record":
            self._keep(next((place for place in bundle if value["key"] in self.missing[place]), None), value)
        elif kind == "inputs":
            self.inputs.write_once(value)
        elif kind == "show":
            self.progress(self.done, self.total, value)
        elif kind == "begun":
            for key, share in value.items():
                if key in self.work and key not in self.records:
                    self.begun[key] = self.reading[key] + share * (self.work[key] - self.reading[key])
        elif kind == "note":
            self.notify(value)
        elif kind == "timings":
            for stage, seconds in value.items():
                self.timings.seconds[stage] = self.timings.seconds.get(stage, 0.0) + seconds
        elif any(self.missing[place] for place in bundle):
            self.lost(bundle, "its process read other inputs than the process that writes the records")

    @property
    def done(self) -> float:
        """The number of finished cells. Cells of this run count by their work."""
        before = self.outcome.done_before
        work = self.done_work + sum(self.begun.values())
        self.most = max(self.most, before + work / self.all_work * (self.total - before))  # sums round in their order
        return self.most

    def died(self, reason: str) -> None:
        self.outcome.deaths.append(reason)
        self.notify(f"{reason}; another does its group again")

    def lost(self, bundle: tuple[Place, ...], reason: str) -> None:
        self._fail(bundle, set().union(*(self.missing[place] for place in bundle)), reason)

    def overran(self, bundle: tuple[Place, ...], limit: Limit) -> None:
        reason = f"{TIMEOUT}: took longer than --cell-timeout {limit.seconds:g}, and its process was ended"
        self._fail(bundle, frozenset(limit.what), reason)

    def _fail(self, bundle: tuple[Place, ...], keys: Collection[str], reason: str) -> None:
        for place in bundle:
            for cell in self.cells.by_place[place]:
                if cell.key in keys and cell.key in self.missing[place]:
                    failed = {"status": "failed", "reason": reason}
                    self._keep(place, record_of(self.cells, place, cell, self.run, failed))

    def _keep(self, place: Place | None, record: Fields) -> None:
        if place is None:  # it is here already, from a process that died after it
            return
        held: JsonObject = plain(encode_inf(record) if "rows" in record else record)
        try:
            self.writer.append(held)
        except UsageError as error:
            held |= {"status": "failed", "reason": f"measured, but not written: {message(error)}"}
        self.outcome.measured += 1
        self.records[held["key"]] = held
        self.begun.pop(held["key"], None)
        self.done_work += self.work[held["key"]]
        self.missing[place].discard(held["key"])
