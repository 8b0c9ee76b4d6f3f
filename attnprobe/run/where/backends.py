"""Where groups of work are done: in this process, or by a crew of others that are replaced when they die."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...errors import AttnprobeError, UsageError
from ...grammar.foreign import reason

__all__ = ["TRIES", "Alone", "Backend", "Crew", "Crewed", "Died", "Listener", "Member", "Send", "Work", "raisable"]

TRIES = 3  # of a group whose process dies
FALSE_STARTS = 3  # processes in a row that die before they can begin
SHARE = 4  # bundles of groups for each process: few enough to share forwards, enough to end together
Send = Callable[[str, Any], None]


class Work(Protocol):
    """What is done with groups. It is pickled; what it needs there it makes in the process that uses it."""

    def start(self, number: int, send: Send) -> tuple[Any, Callable[[Any, Any], None]]:
        """Called once in the ``number``-th process; gives what that says of itself, and what does a group.

        The latter is called with a group and what its process is told of it; ``send(kind, value)`` hands the listener
        what is found, as it is found.
        """


class Listener(Protocol):
    """What the process that asked for the work makes of it."""

    def told(self, group: Any) -> Any:
        """What a process is told of a group when it gets it."""

    def found(self, group: Any, kind: str, value: Any) -> None:
        """Called with whatever work sends; ``end`` is sent when a group is done."""

    def died(self, reason: str) -> None:
        """Called when a process that had begun died; what it did is done again by another."""

    def lost(self, group: Any, reason: str) -> None:
        """Called with a group that is given up."""

    def began(self, facts: Any) -> None:
        """Called with what a process says of itself before its first group."""


class Backend(Protocol):
    """One way of doing groups: each gives a listener the same, to the last bit where threads are the same."""

    def run(self, groups: Iterable[Any], work: Work, listener: Listener) -> None:
        """Do every group. What work raises is raised here, and so is Ctrl-C; nothing is left running."""

    def bundle(self, count: int) -> int:
        """How many of ``count`` groups one process may do in a row, so that they share what they can."""


class Alone:
    """This process, one group after the other."""

    def run(self, groups: Iterable[Any], work: Work, listener: Listener) -> None:
        groups = deque(groups)
        if not groups:
            return
        _, do = work.start(0, lambda kind, value=None: listener.found(groups[0], kind, value))
        while groups:
            do(groups[0], listener.told(groups[0]))
            listener.found(groups[0], "end", None)
            groups.popleft()

    def bundle(self, count: int) -> int:
        return max(1, count)


@dataclass
class Member:
    """A process of a crew: its number, the group that it does, and whether it has begun."""

    number: int
    group: Hashable | None = None
    ready: bool = False


@dataclass(frozen=True)
class Died:
    """How a process ended that should not have."""

    reason: str


class Crew(Protocol):
    """Processes that do groups, wherever they run.

    What `hear` gives of a member is ``("ready", facts)`` once, then what its work sends, ``("end", None)`` after each
    group, ``("raised", error)`` where work raised, and `Died` in the place of a pair.
    """

    def hire(self, work: Work, number: int) -> Member:
        """A new process, which begins by itself."""

    def give(self, member: Member, group: Any, told: Any) -> None:
        """Let a process that is ready do a group."""

    def hear(self, members: Sequence[Member]) -> Iterable[tuple[Member, Any]]:
        """Wait for something, and give it."""

    def dismiss(self, members: Sequence[Member]) -> None:
        """End every process: those without a group by themselves, the others at once."""


class Crewed:
    """A crew of ``size`` processes. Only this process hears what was found.

    One that dies is replaced, and its group done again, `TRIES` times in all; then the group is lost. What it sent
    before stands.

    Args:
        hint: where to look when processes die before they can begin.
    """

    def __init__(self, crew: Crew, size: int, hint: str) -> None:
        self.crew, self.size, self.hint = crew, size, hint

    def bundle(self, count: int) -> int:
        return max(1, count // (SHARE * self.size))

    def run(self, groups: Iterable[Any], work: Work, listener: Listener) -> None:
        """As `Backend.run`.

        Raises:
            UsageError: processes die before they can begin.
        """
        waiting, tries, false_starts = deque(groups), Counter(), 0
        members: list[Member] = []
        free = list(range(self.size - 1, -1, -1))
        try:
            while waiting or any(one.group is not None for one in members):
                for member in members:
                    if waiting and member.ready and member.group is None:
                        self._give(member, waiting.popleft(), listener)
                starting = sum(not one.ready for one in members)
                for _ in range(min(len(free), len(waiting) - starting)):
                    members.append(self.crew.hire(work, free.pop()))
                for member, heard in self.crew.hear(members):
                    if isinstance(heard, Died):
                        members.remove(member)
                        free.append(member.number)
                        false_starts = 0 if member.ready else false_starts + 1
                        if false_starts >= FALSE_STARTS:
                            raise UsageError(
                                f"jobs: {heard.reason} before it could begin, {false_starts} times; {self.hint}"
                            )
                        if member.ready:
                            listener.died(heard.reason)
                        if member.group is None:
                            continue
                        tries[member.group] += 1
                        if tries[member.group] < TRIES:
                            waiting.appendleft(member.group)
                        else:
                            listener.lost(member.group, f"{heard.reason}, {TRIES} times")
                        continue
                    kind, value = heard
                    if kind == "ready":
                        member.ready, false_starts = True, 0
                        listener.began(value)
                    elif kind == "raised":
                        raise value
                    elif kind == "end":
                        done, member.group = member.group, None
                        listener.found(done, kind, value)
                    else:
                        listener.found(member.group, kind, value)
                    if waiting and member.ready and member.group is None:  # before anyone else is heard
                        self._give(member, waiting.popleft(), listener)
        finally:
            self.crew.dismiss(members)

    def _give(self, member: Member, group: Any, listener: Listener) -> None:
        member.group = group
        self.crew.give(member, group, listener.told(group))


def raisable(error: Exception) -> Exception:
    """An error as another process can raise it: its own kind where it is this project's, else its name in words."""
    return error if isinstance(error, AttnprobeError) else RuntimeError(reason(error))
