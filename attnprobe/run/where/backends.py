"""Where groups of work are done: in this process, or by a crew of others that are replaced when they die."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ...errors import AttnprobeError, UsageError
from ...grammar.foreign import reason as reason_of

__all__ = [
    "TRIES",
    "Alone",
    "Backend",
    "Crew",
    "Crewed",
    "Died",
    "Limit",
    "Listener",
    "Member",
    "Send",
    "Work",
    "raisable",
]

TRIES = 3  # of a group whose process dies
GRACE = 5.0  # seconds beyond its time limit that a process has to end it
FALSE_STARTS = 3  # processes in a row that die before they can begin
SHARE = 4  # bundles of groups for each process: few enough to share forwards, enough to end together
Send = Callable[[str, Any], None]


@dataclass(frozen=True)
class Limit:
    """What a process may take so many seconds for, from when it sends this until it sends another or None."""

    what: tuple[str, ...]
    seconds: float


class Work(Protocol):
    """What is done with groups. It is pickled; what it needs there it makes in the process that uses it."""

    def start(self, number: int, send: Send) -> tuple[Any, Callable[[Any, Any], None]]:
        """Called once in the ``number``-th process; gives what that says of itself, and what does a group.

        The latter is called with a group and what its process is told of it; ``send(kind, value)`` hands the listener
        what is found, as it is found; ``send("limit", value)`` is for the backend, a `Limit` or None.
        """
        ...


class Listener(Protocol):
    """What the process that asked for the work makes of it."""

    def done_keys(self, group: Any, /) -> Any:
        """What a process is told of a group when it gets it."""

    def received(self, group: Any, kind: str, value: Any, /) -> None:
        """Called with whatever work sends; ``end`` is sent when a group is done."""

    def died(self, reason: str) -> None:
        """Called when a process that had begun died; what it did is done again by another."""

    def lost(self, group: Any, reason: str, /) -> None:
        """Called with a group that is given up."""

    def overran(self, group: Any, limit: Limit, /) -> None:
        """Called when a process was ended that went on beyond a limit; the rest of its group is done by another."""

    def began(self, facts: Any) -> None:
        """Called with what a process says of itself before its first group."""


class Backend(Protocol):
    """One way of doing groups: each gives a listener the same, to the last bit where threads are the same."""

    def run(self, groups: Iterable[Any], work: Work, listener: Listener) -> None:
        """Do every group. What work raises is raised here, and so is Ctrl-C; nothing is left running."""

    def bundle(self, count: int) -> int:
        """How many of ``count`` groups one process may do in a row, so that they share what they can."""
        ...


class Alone:
    """This process, one group after the other. Nothing can end what goes on beyond a `Limit` here."""

    def run(self, groups: Iterable[Any], work: Work, listener: Listener) -> None:
        groups = deque(groups)
        if not groups:
            return

        def send(kind: str, value: Any = None) -> None:
            if kind != "limit":
                listener.received(groups[0], kind, value)

        _, do = work.start(0, send)
        while groups:
            do(groups[0], listener.done_keys(groups[0]))
            listener.received(groups[0], "end", None)
            groups.popleft()

    def bundle(self, count: int) -> int:
        return max(1, count)


@dataclass
class Member:
    """A process of a crew: its number, the group that it does, whether it has begun, and the limit that it is under."""

    number: int
    group: Hashable | None = None
    ready: bool = False
    limit: Limit | None = None
    since: float = 0.0

    @property
    def late(self) -> bool:
        return self.limit is not None and time.monotonic() > self.since + self.limit.seconds + GRACE


@dataclass(frozen=True)
class Died:
    """How a process ended that should not have."""

    reason: str


One = TypeVar("One", bound=Member)


class Crew(Protocol[One]):
    """Processes that do groups, wherever they run.

    What `hear` gives of a member is ``("ready", facts)`` once, then what its work sends, ``("end", None)`` after each
    group, ``("raised", error)`` where work raised, and `Died` in the place of a pair.
    """

    def hire(self, work: Work, number: int) -> One:
        """A new process, which begins by itself."""
        ...

    def give(self, member: One, group: Any, done: Any) -> None:
        """Let a process that is ready do a group."""

    def hear(self, members: Sequence[One]) -> Iterable[tuple[One, Any]]:
        """Wait for something, and give it."""
        ...

    def dismiss(self, members: Sequence[One]) -> None:
        """End every process: those without a group by themselves, the others at once."""


class Crewed:
    """A crew of ``size`` processes. Only this process hears what was found.

    One that dies is replaced, and its group done again, `TRIES` times in all; then the group is lost. One that goes on
    `GRACE` seconds beyond a limit is ended and replaced, and the rest of its group is done. What it sent before stands.

    Args:
        hint: where to look when processes die before they can begin.
    """

    def __init__(self, crew: Crew[Any], size: int, hint: str) -> None:
        self.crew, self.size, self.hint = crew, size, hint

    def bundle(self, count: int) -> int:
        return max(1, count // (SHARE * self.size))

    def run(self, groups: Iterable[Any], work: Work, listener: Listener) -> None:
        """As `Backend.run`.

        Raises:
            UsageError: processes die before they can begin.
        """
        shift = _Shift(self, groups, work, listener)
        try:
            shift.run()
        finally:
            self.crew.dismiss(shift.members)


class _Shift:
    """One run of a crew: the groups that wait, and the members at work."""

    def __init__(self, crewed: Crewed, groups: Iterable[Any], work: Work, listener: Listener) -> None:
        self.crew, self.hint, self.work, self.listener = crewed.crew, crewed.hint, work, listener
        self.waiting, self.members = deque(groups), []
        self.free = list(range(crewed.size - 1, -1, -1))
        self.tries: Counter[Any] = Counter()
        self.false_starts = 0
        self.timed_out: set[tuple[Any, Limit]] = set()  # groups, by the limits beyond which their processes went on

    def run(self) -> None:
        while self.waiting or any(one.group is not None for one in self.members):
            for member in self.members:
                self._give(member)
            starting = sum(not one.ready for one in self.members)
            for _ in range(min(len(self.free), len(self.waiting) - starting)):
                self.members.append(self.crew.hire(self.work, self.free.pop()))
            silent = {one.number: one for one in self.members}  # others may have left their limit behind
            for member, heard in self.crew.hear(self.members):
                silent.pop(member.number, None)
                if isinstance(heard, Died):
                    self._died(member, heard.reason)
                else:
                    self._heard(member, *heard)
                    self._give(member)  # before anyone else is heard
            for member in silent.values():
                if member.limit is not None and member.late:
                    self._overran(member, member.limit)

    def _give(self, member: Member) -> None:
        """Give a member that is free the next group."""
        if self.waiting and member.ready and member.group is None:
            member.group = self.waiting.popleft()
            self.crew.give(member, member.group, self.listener.done_keys(member.group))

    def _heard(self, member: Member, kind: str, value: Any) -> None:
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

    def _died(self, member: Member, reason: str) -> None:
        self._left(member)
        self.false_starts = 0 if member.ready else self.false_starts + 1
        if self.false_starts >= FALSE_STARTS:
            raise UsageError(f"jobs: {reason} before it could begin, {self.false_starts} times; {self.hint}")
        if member.ready:
            self.listener.died(reason)
        if member.group is not None:
            self._again(member.group, reason)

    def _overran(self, member: Member, limit: Limit) -> None:
        """End a member that goes on beyond its limit: the listener gives that up, and another does the rest."""
        self.crew.dismiss([member])
        self._left(member)
        self.listener.overran(member.group, limit)
        if (member.group, limit) in self.timed_out:
            self._again(member.group, f"its process was ended {GRACE:g} s beyond a limit")
        else:
            self.timed_out.add((member.group, limit))
            self.waiting.appendleft(member.group)

    def _left(self, member: Member) -> None:
        self.members.remove(member)
        self.free.append(member.number)

    def _again(self, group: Any, reason: str) -> None:
        """Have a group done by another process, or give it up."""
        self.tries[group] += 1
        if self.tries[group] < TRIES:
            self.waiting.appendleft(group)
        else:
            self.listener.lost(group, f"{reason}, {TRIES} times")


def raisable(error: BaseException) -> Exception:
    """An error as another process can raise it: its own kind where it is this project's, else its name in words."""
    return error if isinstance(error, AttnprobeError) else RuntimeError(reason_of(error))
