"""Groups of work, in this process or in a crew of processes that are replaced when they die.

Work is pickled; each process calls its ``start`` once (see `GroupWork`). A listener receives the results in the process
that started the work (see `Ledger`). All backends give the same results, bit for bit at equal thread counts.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from ...errors import AttnprobeError, UsageError
from ...grammar.foreign import reason as reason_of

if TYPE_CHECKING:
    from ..cells import Done, Place
    from ..group_work import GroupWork
    from ..loop import Ledger

    Bundle = tuple[Place, ...]  # the groups that a process takes at once
    Message = tuple[str, Any]  # its kind, and what it holds
    Heard: TypeAlias = "Message | Died"

TRIES = 3  # of a group whose process dies
GRACE = 5.0  # seconds beyond its time limit that a process has to end it
FALSE_STARTS = 3  # processes in a row that die before they can begin
SHARE = 4  # bundles of groups for each process: few enough to share forwards, enough to end together


@dataclass(frozen=True)
class Limit:
    """A time limit of a process: it holds from this message until the next limit or None.

    Attributes:
        keys: of the cells that are measured under the limit.
    """

    keys: tuple[str, ...]
    seconds: float


class Alone:
    """This process, one group after the other. It cannot end work that exceeds a `Limit`."""

    def run(self, groups: Iterable[Bundle], work: GroupWork, listener: Ledger) -> None:
        """Do every group."""
        groups = deque(groups)
        if not groups:
            return

        def send(kind: str, value: object = None) -> None:
            if kind != "limit":
                listener.received(groups[0], kind, value)

        _, do = work.start(0, send)
        while groups:
            do(groups[0], listener.done_keys(groups[0]))
            listener.received(groups[0], "end", None)
            groups.popleft()

    def bundle(self, count: int) -> int:
        """The largest number of groups that are done at once, so that they share inputs: all of them."""
        return max(1, count)


@dataclass
class Member:
    """A process of a crew: its number, its group, whether it is ready, and its time limit since a moment."""

    number: int
    group: Any = None
    ready: bool = False
    limit: Limit | None = None
    since: float = 0.0


@dataclass(frozen=True)
class Died:
    """The reason why a process ended unexpectedly."""

    reason: str


M = TypeVar("M", bound=Member)


class Crew(ABC, Generic[M]):
    """``size`` processes on any machine. Only this process receives results.

    A process that dies is replaced, and its group is repeated, `TRIES` times in all; then the group is lost. A process
    that continues `GRACE` seconds beyond a limit is ended and replaced, and the rest of its group is measured. Results
    that it sent before stay.

    Args:
        hint: where to look when processes die before they can begin.
    """

    members: list[M]

    def __init__(self, size: int, hint: str) -> None:
        self.size, self.hint = size, hint

    @abstractmethod
    def hire(self, work: GroupWork, number: int) -> M:
        """Start a new process."""

    @abstractmethod
    def give(self, member: M, group: Bundle, done: Done) -> None:
        """Give a ready process a group."""

    @abstractmethod
    def hear(self) -> Iterator[tuple[M, Heard]]:
        """Wait for messages of the members, and yield them.

        A member sends ``("ready", facts)`` once, then what its work sends, ``("end", None)`` after each group,
        ``("raised", error)`` where work raised. `Died` stands in the place of a pair.
        """

    @abstractmethod
    def dismiss(self, members: Sequence[M]) -> None:
        """End every process: idle ones by a message, the others at once."""

    def bundle(self, count: int) -> int:
        """The largest number of ``count`` groups that one process takes at once, so that they share inputs."""
        return max(1, count // (SHARE * self.size))

    def run(self, groups: Iterable[Bundle], work: GroupWork, listener: Ledger) -> None:
        """Do every group. Errors of the work and Ctrl-C are raised here, after all processes have ended.

        Raises:
            UsageError: processes die before they can begin.
        """
        self.work, self.listener = work, listener
        self.waiting, self.members = deque(groups), []
        self.free = list(range(self.size - 1, -1, -1))  # numbers of processes; the lowest is hired first
        self.tries: Counter[Bundle] = Counter()
        self.false_starts = 0
        self.timed_out: set[tuple[Bundle, Limit]] = set()  # groups with the limits that their processes exceeded
        try:
            while self.waiting or any(member.group is not None for member in self.members):
                self._turn()
        finally:
            self.dismiss(self.members)

    def _turn(self) -> None:
        """Give the free members groups, hire others, and hear all."""
        for member in self.members:
            self._give(member)
        # a process that is still starting will take a group too
        starting = sum(not member.ready for member in self.members)
        for _ in range(min(len(self.free), len(self.waiting) - starting)):
            self.members.append(self.hire(self.work, self.free.pop()))
        silent = {member.number: member for member in self.members}
        for member, heard in self.hear():
            silent.pop(member.number, None)
            if isinstance(heard, Died):
                self._died(member, heard.reason)
            else:
                self._heard(member, *heard)
                self._give(member)  # at once: the other messages may take long
        # only a silent member can be beyond its limit: one that sent a message may have ended its limit by it
        for member in silent.values():
            if member.limit is not None and time.monotonic() > member.since + member.limit.seconds + GRACE:
                self._overran(member, member.limit)

    def _give(self, member: M) -> None:
        if self.waiting and member.ready and member.group is None:
            member.group = self.waiting.popleft()
            self.give(member, member.group, self.listener.done_keys(member.group))

    def _heard(self, member: M, kind: str, value: Any) -> None:
        if kind == "ready":
            member.ready, self.false_starts = True, 0
            self.listener.began(value)
        elif kind == "raised":
            raise value
        elif kind == "limit":
            member.limit, member.since = value, time.monotonic()
        else:
            group = member.group
            member.group = None if kind == "end" else group
            self.listener.received(group, kind, value)

    def _died(self, member: M, reason: str) -> None:
        self._left(member)
        self.false_starts = 0 if member.ready else self.false_starts + 1
        if self.false_starts >= FALSE_STARTS:
            raise UsageError(f"jobs: {reason} before it could begin, {self.false_starts} times; {self.hint}")
        if member.ready:  # a process that never began measured nothing
            self.listener.died(reason)
        if member.group is not None:
            self._again(member.group, reason)

    def _overran(self, member: M, limit: Limit) -> None:
        """End a member that exceeded its limit. The listener gives up the cell; another member does the rest."""
        self.dismiss([member])
        self._left(member)
        self.listener.overran(member.group, limit)
        # the cell has failed, so that the next process skips it; if the same limit is exceeded again, the fault is
        # not the cell's, and the group could come back for ever
        if (member.group, limit) in self.timed_out:
            self._again(member.group, f"its process was ended {GRACE:g} s beyond a limit")
        else:
            self.timed_out.add((member.group, limit))
            self.waiting.appendleft(member.group)

    def _left(self, member: M) -> None:
        self.members.remove(member)
        self.free.append(member.number)

    def _again(self, group: Bundle, reason: str) -> None:
        """Let another process do a group, or give the group up."""
        self.tries[group] += 1
        if self.tries[group] < TRIES:
            self.waiting.appendleft(group)
        else:
            self.listener.lost(group, f"{reason}, {TRIES} times")


def raisable(error: BaseException) -> Exception:
    """An error that another process can raise: the error itself if its type is this project's, else its text.

    The other process may lack the module of a foreign type, and could not unpickle it.
    """
    return error if isinstance(error, AttnprobeError) else RuntimeError(reason_of(error))
