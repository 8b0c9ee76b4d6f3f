"""Groups of work, each done by one of several processes; one that dies is replaced and its group tried again."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, TypeVar

from ..errors import AttnprobeError, UsageError

__all__ = ["TRIES", "Work", "run_pool"]

TRIES = 3  # of a group whose process dies
FALSE_STARTS = 3  # processes in a row that die before they can begin
GRACE = 5.0  # seconds that a process has to end
Group = TypeVar("Group", bound=Hashable)
Send = Callable[[str, Any], None]


class Work(Protocol):
    """What is done with groups. It is pickled; what it needs there it makes in the process that uses it."""

    def start(self, number: int, send: Send) -> Callable[[Any, Any], None]:
        """Called once in the ``number``-th process; gives what does a group, with what it is told of it.

        ``send(kind, value)`` hands the caller what was found, as it is found.
        """


@dataclass
class _Worker:
    number: int
    process: Any
    connection: Connection
    group: Any = None
    ready: bool = False


def run_pool(
    groups: Iterable[Group],
    work: Work,
    jobs: int,
    *,
    told: Callable[[Group], Any],
    found: Callable[[Group, str, Any], None],
    lost: Callable[[Group, str], None],
) -> None:
    """Do every group in one of ``jobs`` spawned processes. Only the caller's process hears what was found.

    A process that dies is replaced, and its group done again, `TRIES` times in all; then the group is ``lost``. What it
    sent before stands. An exception that work raises ends the pool and is raised here, as is Ctrl-C; no process is left
    behind.

    Args:
        told: what a process is told of a group when it gets it. found: called with whatever work sends.
        lost: called with a group that is given up, and the reason.

    Raises:
        UsageError: processes die before they can begin.
    """
    waiting, tries, false_starts = deque(groups), Counter(), 0
    workers: list[_Worker] = []
    spawn = multiprocessing.get_context("spawn")
    free = list(range(jobs - 1, -1, -1))
    try:
        while waiting or any(worker.group is not None for worker in workers):
            while waiting and free:
                workers.append(_started(spawn, work, free.pop()))
                _give(workers[-1], waiting.popleft(), told)
            for connection in wait([worker.connection for worker in workers]):
                worker = next(one for one in workers if one.connection is connection)
                try:
                    kind, value = connection.recv()
                except (EOFError, OSError):
                    workers.remove(worker)
                    free.append(worker.number)
                    reason = _ended(worker)
                    false_starts = 0 if worker.ready else false_starts + 1
                    if false_starts >= FALSE_STARTS:
                        raise UsageError(f"jobs: {reason} before it could begin, {false_starts} times; "
                                         "drop --jobs to see why") from None  # fmt: skip
                    if worker.group is None or not worker.ready:
                        waiting.extendleft([] if worker.group is None else [worker.group])
                        continue
                    tries[worker.group] += 1
                    if tries[worker.group] < TRIES:
                        waiting.appendleft(worker.group)
                    else:
                        lost(worker.group, f"{reason}, {TRIES} times")
                    continue
                if kind == "ready":
                    worker.ready, false_starts = True, 0
                elif kind == "raised":
                    raise value
                elif kind == "end":
                    done, worker.group = worker.group, None
                    found(done, kind, value)
                    if waiting:
                        _give(worker, waiting.popleft(), told)
                else:
                    found(worker.group, kind, value)
    finally:
        _end(workers)


def _started(spawn: Any, work: Work, number: int) -> _Worker:
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs, work, number), daemon=True, name=f"attnprobe-{number}")
    with _without_interrupts():
        process.start()
    theirs.close()  # the end of the process is then the end of the pipe
    return _Worker(number, process, ours)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """What starts in the block never hears of Ctrl-C, which the terminal sends to all: this process ends the others.

    It hears of one itself once the block ends, whichever of its threads got it; ignored, it would be lost.
    """
    main = threading.current_thread() is threading.main_thread()
    heard: list[tuple[Any, ...]] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the new process inherits
    before = signal.signal(signal.SIGINT, lambda *told: heard.append(told)) if main else None
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if main:
            signal.signal(signal.SIGINT, before)
    if heard and callable(before):
        before(*heard[0])


def _give(worker: _Worker, group: Any, told: Callable[[Any], Any]) -> None:
    worker.group = group
    with suppress(OSError):  # it died: the next look at its pipe says so
        worker.connection.send((group, told(group)))


def _ended(worker: _Worker) -> str:
    """How a process ended, in words."""
    worker.connection.close()
    worker.process.join(GRACE)
    code = worker.process.exitcode
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


def _end(workers: list[_Worker]) -> None:
    """End every process: those without a group by themselves, the others at once."""
    for worker in workers:
        with suppress(OSError):
            worker.connection.send(None)
        if worker.group is not None:
            worker.process.terminate()
    for worker in workers:
        worker.process.join(GRACE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.connection.close()


def _serve(connection: Connection, work: Work, number: int) -> None:
    """The life of a process of the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked since before it began

    def send(kind: str, value: Any = None) -> None:
        connection.send((kind, value))

    try:
        do = work.start(number, send)
        send("ready")
        while (task := connection.recv()) is not None:
            do(*task)
            send("end")
    except (EOFError, BrokenPipeError):  # whom it works for is gone
        return
    except Exception as error:
        known = error if isinstance(error, AttnprobeError) else RuntimeError(f"{type(error).__name__}: {error}")
        with suppress(OSError):
            send("raised", known)
