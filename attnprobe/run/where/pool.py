"""A crew of processes on this machine, with the standard library only."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import TYPE_CHECKING, Any

from ...grammar.foreign import diverted
from ...machine.processes import follow_parent
from .backends import Crew, Died, Member, raisable

if TYPE_CHECKING:
    from ..cells import Done
    from ..group_work import GroupWork
    from .backends import Bundle, Heard

GRACE = 5.0  # seconds that a process has to end
LOOK = 1.0  # seconds after which dead processes are looked for, also without a message


@dataclass(kw_only=True)
class _Process(Member):
    process: BaseProcess
    connection: Any  # a pipe's end, of another class on each system


class Processes(Crew[_Process]):
    """Spawned processes, each with a pipe."""

    def __init__(self, size: int) -> None:
        super().__init__(size, "drop --jobs and --cell-timeout to see why")
        self.spawn = multiprocessing.get_context("spawn")

    def hire(self, work: GroupWork, number: int) -> _Process:
        own_end, its_end = self.spawn.Pipe()
        # no daemon: a daemon may have no children, but a method may start some, and peak memory is measured in one
        process = self.spawn.Process(target=_serve, args=(its_end, work, number), name=f"attnprobe-{number}")
        try:
            with _without_interrupts():
                process.start()
        except BaseException:  # an interruption: the process is no member yet, so that nobody else would end it
            if process.pid is not None:
                process.kill()
            raise
        its_end.close()  # with this copy closed, the end of the process is the end of the pipe
        return _Process(number, process=process, connection=own_end)

    def give(self, member: _Process, group: Bundle, done: Done) -> None:
        with suppress(OSError):  # the process died: `hear` finds its pipe closed
            member.connection.send((group, done))

    def hear(self) -> Iterator[tuple[_Process, Heard]]:
        ready = wait([member.connection for member in self.members], LOOK)
        for member in list(self.members):
            # the pipe alone does not tell: it stays open if the dead process had forked another
            dead = member.process.exitcode is not None
            try:
                if member.connection in ready or (dead and member.connection.poll()):
                    yield member, member.connection.recv()
                elif dead:
                    yield member, Died(_exit_text(member))
            except (EOFError, OSError):
                yield member, Died(_exit_text(member))

    def dismiss(self, members: Sequence[_Process]) -> None:
        for member in members:
            with suppress(OSError):
                member.connection.send(None)
            if member.group is not None or not member.ready:  # busy: it would read the message too late
                member.process.terminate()
        for member in members:
            _join(member)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.connection.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started in the block ignore Ctrl-C, which the terminal sends to all; this process ends them.

    An interrupt of this process is held back until the block ends. In the block it would be lost.
    """
    main = threading.current_thread() is threading.main_thread()  # Python lets no other thread set a handler
    held_back: list[tuple[int, FrameType | None]] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a new process inherits the blocked signal
    before = signal.signal(signal.SIGINT, lambda *arguments: held_back.append(arguments)) if main else None
    try:
        yield
    finally:
        # unblocked under the new handler, so that a pending interrupt is noted and not raised here
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if main:
            signal.signal(signal.SIGINT, before)
    if held_back and callable(before):
        before(*held_back[0])


def _join(member: _Process) -> None:
    """Wait for the end of a process, but not of the processes that it forked."""
    # in short waits: one long join would wait for the end of a pipe that the forked processes hold open
    until = time.monotonic() + GRACE
    while member.process.exitcode is None and time.monotonic() < until:
        member.process.join(0.1)


def _exit_text(member: _Process) -> str:
    """How a process ended, in words."""
    member.connection.close()
    _join(member)
    code = member.process.exitcode
    if code is not None and code < 0:  # ended by a signal; a number without a name is told as it is
        with suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


def _serve(connection: Connection, work: GroupWork, number: int) -> None:
    """The main function of a process of the pool. It ends when its parent ends."""
    follow_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see `_without_interrupts`
    with suppress(OSError):  # a stream may be closed
        os.dup2(2, 1)  # what methods print belongs to no table

    def send(kind: str, value: object = None) -> None:
        connection.send((kind, value))

    try:
        with diverted():
            facts, do = work.start(number, send)
            send("ready", facts)
            while (task := connection.recv()) is not None:
                do(*task)
                send("end")
    except (EOFError, BrokenPipeError):  # the process that it works for is gone
        return
    except BaseException as error:  # a source may raise anything
        with suppress(OSError):
            send("raised", raisable(error))
