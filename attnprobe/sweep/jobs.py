"""``attnprobe error --jobs``: the groups of a run measured by several processes, each bound to its device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError
from ..records import RecordWriter
from ..timings import Timings
from .inputs import InputKeeper
from .plan import ErrorPlan, Group
from .pool import run_pool
from .run import Outcome, head_of, result_of, run_error

__all__ = ["ErrorWork", "jobs_of", "run_jobs"]

MOST = 1024
Place = tuple[int, Group, int]  # the number of the source, the group, the layer


def jobs_of(jobs: int | None, source: Any) -> int:
    """How many processes: what was asked for, or one per visible GPU where the source is on one, and 1 on a CPU.

    Raises:
        UsageError: a number that cannot be.
    """
    if jobs is None:
        device = torch.device(source.device)
        return torch.cuda.device_count() if device.type == "cuda" and device.index is None else 1
    if not 1 <= jobs <= MOST:
        raise UsageError(f"jobs={jobs}: choose a number from 1 to {MOST}")
    return jobs


@dataclass(frozen=True)
class ErrorWork:
    """Measures the groups of a request in a process of a pool, which makes their Q, K, V and exact outputs itself.

    Args:
        run: the run's name. folder: the run's, which is read alone. threads: of torch.
        devices: the processes take turns with them; empty leaves them all to the request's.
        prepare: makes sources and plans of the request (`prepared`); a function of a module.
        keeper: makes what measures input statistics.
    """

    request: Any
    run: str
    threads: int
    devices: tuple[str, ...]
    prepare: Callable[..., list[tuple[Any, ErrorPlan]]]
    keeper: Callable[..., InputKeeper]
    folder: Path

    def start(self, number: int, send: Callable[[str, Any], None]) -> Callable[[Place, frozenset[str]], None]:
        torch.set_num_threads(self.threads)
        request = self.request
        if self.devices:
            device = self.devices[number % len(self.devices)]
            torch.cuda.set_device(device)
            request = replace(request, source=replace(request.source, device=device))
        parts = self.prepare(request, lambda line: None, Timings())
        inputs = self.keeper(request, RecordWriter(self.folder / "records.jsonl"), self.run)
        inputs.write = lambda record: send("inputs", record)
        warm: set[int] = set()

        def measure(place: Place, done: frozenset[str]) -> None:
            at, group, layer = place
            source, plan = parts[at]
            timings = Timings()
            run_error(
                replace(plan, share=frozenset({(group, layer)})), source, _Sender(send), done=dict.fromkeys(done, {}),
                run=self.run, timings=timings, progress=lambda _, __, label: send("show", label),
                cell_timeout=request.cell_timeout, keep_inputs=inputs.keep, warm_up=at not in warm,
            )  # fmt: skip
            warm.add(at)
            send("timings", timings.seconds)

        return measure


class _Sender:
    """A writer that hands records to the process which keeps them."""

    def __init__(self, send: Callable[[str, Any], None]) -> None:
        self.send = send

    def append(self, record: Mapping[str, Any]) -> None:
        self.send("record", record)


def run_jobs(
    work: ErrorWork,
    jobs: int,
    parts: Sequence[tuple[Any, ErrorPlan]],
    writer: RecordWriter,
    inputs: InputKeeper,
    *,
    done: Mapping[str, dict[str, Any]],
    timings: Timings,
    progress: Callable[[int, int, str], None],
) -> list[Outcome]:
    """`run_error` of every part by ``jobs`` processes; the records are those of one process, and written here.

    A group is one layer of one window, the longest sequences first. The cells of a group whose process died `TRIES`
    times are ``failed``.
    """
    listed = {(at, *place): cells for at, (source, plan) in enumerate(parts)
              for place, cells in plan.listed(source.facts).items()}  # fmt: skip
    total = sum(map(len, listed.values()))
    missing = {place: {cell.key for cell in cells} - done.keys() for place, cells in listed.items()}
    waiting = sorted((place for place, keys in missing.items() if keys), key=lambda place: -place[1].n)
    outcome = Outcome(done_before=total - sum(map(len, missing.values())))
    kept = {key: done[key] for cells in listed.values() for key in (cell.key for cell in cells) if key in done}

    def keep(place: Place, record: Mapping[str, Any]) -> None:
        outcome.keep(record, writer)
        kept[record["key"]] = outcome.records[-1]
        missing[place].discard(record["key"])

    def found(place: Place, kind: str, value: Any) -> None:
        if kind == "record":
            keep(place, value)
        elif kind == "inputs":
            inputs.write(value)
        elif kind == "show":
            progress(outcome.done_before + outcome.measured, total, value)
        elif kind == "timings":
            for stage, seconds in value.items():
                timings.seconds[stage] = timings.seconds.get(stage, 0.0) + seconds
        elif missing[place]:
            lost(place, "its process found other inputs than the one that keeps the records")

    def lost(place: Place, reason: str) -> None:
        source, plan = parts[place[0]]
        heads = list(source.head_numbers if plan.heads is None else plan.heads)
        for cell in listed[place]:
            if cell.key in missing[place]:
                keep(place, {**head_of(cell, plan, source, work.run, heads, None), **result_of("failed", reason)})

    told = lambda place: frozenset(cell.key for cell in listed[place] if cell.key not in missing[place])
    progress(outcome.done_before, total, f"starting {jobs} processes")
    run_pool(waiting, work, min(jobs, len(waiting)) or 1, told=told, found=found, lost=lost)
    progress(total, total, "")
    outcomes = []
    for at in range(len(parts)):
        keys = [cell.key for place, cells in listed.items() if place[0] == at for cell in cells]
        there = sum(key in done for key in keys)
        outcomes.append(Outcome([kept[key] for key in keys], there, len(keys) - there))
    return outcomes
