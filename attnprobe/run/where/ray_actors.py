"""A crew of actors on a Ray cluster, and the room that the cluster has for them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...errors import SourceError, UsageError
from ..provenance import versions
from .backends import Crew, Died, Member, raisable

if TYPE_CHECKING:
    from ..cells import Done
    from ..group_work import GroupWork
    from .backends import Bundle, Heard, Message

POLL = 0.25  # seconds between two looks into the mailbox
SHOWN = 0.2  # seconds between two labels of one process: each is a call across the network
PATIENCE = 60.0  # seconds without a process or room for one, after which the run gives up


@dataclass(frozen=True)
class Room:
    """The size of each process, and how many of them the nodes of a cluster can hold.

    Attributes:
        cpus, gpus: of each process. nodes: CPUs and GPUs of each node that is alive.
    """

    cpus: int
    gpus: float
    nodes: tuple[tuple[float, float], ...]

    @property
    def capacity(self) -> int:
        """How many processes fit. No process is split over two nodes."""
        return sum(self._capacity_of(*node) for node in self.nodes)

    def _capacity_of(self, cpus: float, gpus: float) -> int:
        """How many processes fit on a node."""
        by_cpus = int(cpus // self.cpus)
        if self.gpus > 1:
            return min(by_cpus, int(gpus // self.gpus))
        if self.gpus:
            # shares of one GPU only: Ray gives no process parts of two; 1/0.1 may round to below 10
            return min(by_cpus, int(gpus) * int(1 / self.gpus + 1e-9))
        return by_cpus

    def checked_jobs(self, jobs: int | None) -> int:
        """The number of processes: ``jobs``, or by default as many as fit.

        Raises:
            UsageError: ``jobs`` do not fit, or not even one process does.
        """
        size = f"{self.cpus} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
        nodes = f"{len(self.nodes)} nodes" if len(self.nodes) != 1 else "one node"
        if not self.capacity:
            cpus, gpus = (max((node[part] for node in self.nodes), default=0) for part in (0, 1))
            way = "ray:ADDRESS,gpus=F with a smaller F, or 0" if self.gpus else "ray:ADDRESS,cpus=N with a smaller N"
            raise UsageError(
                f"ray: no node has room for a process of {size}: the cluster has {nodes}, the largest with "
                f"{cpus:g} CPU, {gpus:g} GPU; give {way}"
            )
        if jobs is not None and jobs > self.capacity:
            raise UsageError(
                f"ray: jobs={jobs} processes of {size} each do not fit: the cluster has {nodes}, with room "
                f"for {self.capacity}; give --jobs {self.capacity} or less"
            )
        return jobs or self.capacity


def room_of(ray: ModuleType, cpus: int, gpus: float) -> Room:
    """How many processes of so many CPUs and GPUs the cluster can hold now."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return Room(cpus, gpus, tuple((node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes))


class Mailbox:
    """Messages of processes in an actor, until the crew's process takes them."""

    def __init__(self) -> None:
        self.items: list[object] = []

    def put(self, item: object) -> None:
        self.items.append(item)

    def take(self) -> list[object]:
        items, self.items = self.items, []
        return items


class Worker:
    """A process on the cluster: an actor whose calls run one after the other in its main thread."""

    def __init__(self, mailbox: Any, folder: str, version: str) -> None:
        self.mailbox, self.folder, self.version = mailbox, folder, version
        self.shown = 0.0

    def start(self, work: GroupWork, number: int) -> Message:
        """The first message of a process to its `Crew`."""
        version_here = versions()["attnprobe"]
        if self.version != version_here:
            return "raised", UsageError(
                f"ray: a node has attnprobe {version_here}, and this is {self.version}; install the same everywhere"
            )
        if not Path(self.folder).is_dir():
            return "raised", UsageError(f"ray: {self.folder} is not on a node; run in a folder that all share")
        os.chdir(self.folder)  # the user's names of files are relative to it
        try:
            facts, self.do = work.start(number, lambda kind, value=None: self._send(number, kind, value))
        except Exception as error:
            return "raised", raisable(error)
        return "ready", facts

    def work(self, group: Bundle, done: Done) -> Message:
        """Measure a group. Returns the last message about it."""
        try:
            self.do(group, done)
        except Exception as error:
            return "raised", raisable(error)
        return "end", None

    def _send(self, number: int, kind: str, value: object) -> None:
        import ray

        if kind == "show":
            if time.monotonic() < self.shown + SHOWN:
                return
            self.shown = time.monotonic()
        # waited for, so that messages arrive in their order, and all of them before the end of the call
        ray.get(self.mailbox.put.remote((number, kind, value)))


@dataclass(kw_only=True)
class _Actor(Member):
    actor: Any = None
    call: object = None  # the call of the actor that has not ended


class Actors(Crew[_Actor]):
    """Actors of Ray, each with its CPUs and GPUs. Their messages come through a mailbox."""

    def __init__(self, ray: ModuleType, room: Room, size: int) -> None:
        super().__init__(size, "run it without --backend ray to see why")
        self.ray, self.room = ray, room
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # the mailbox must not be lost with another node
        on_this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.mailbox = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=on_this_node).remote()
        self.make = ray.remote(Worker).options(num_cpus=room.cpus, num_gpus=room.gpus, max_restarts=0)
        self.numbers: dict[int, _Actor] = {}
        self.without_room_since: float | None = None

    def hire(self, work: GroupWork, number: int) -> _Actor:
        actor = self.make.remote(self.mailbox, os.getcwd(), versions()["attnprobe"])
        self.numbers[number] = _Actor(number, actor=actor, call=actor.start.remote(work, number))
        return self.numbers[number]

    def give(self, member: _Actor, group: Bundle, done: Done) -> None:
        member.call = member.actor.work.remote(group, done)

    def hear(self) -> Iterator[tuple[_Actor, Heard]]:
        calls = {member.call: member for member in self.members if member.call is not None}
        try:
            over, _ = self.ray.wait(list(calls), num_returns=1, timeout=POLL)
            results = [(calls[call], self._result(call)) for call in over]
            sent = self.ray.get(self.mailbox.take.remote())
        except self.ray.exceptions.RayError as error:
            raise SourceError(
                f"ray: the cluster is gone: {_reason(str(error))}; finished cells are kept: "
                "run the same command to resume"
            ) from error
        # messages first: they were sent before the calls ended
        for number, kind, value in sent:
            member = self.numbers.get(number)
            if member is not None and member.group is not None:  # else the sender died, and its group is repeated
                yield member, (kind, value)
        for member, heard in results:
            member.call = None
            if isinstance(heard, Died):
                self.numbers.pop(member.number, None)
                self.dismiss([member])  # the actor may live on, on a node that is out of reach
            yield member, heard
        self._refuse_to_wait()

    def _result(self, call: object) -> Heard:
        """The result of a call, or how its process died."""
        try:
            return self.ray.get(call)
        except self.ray.exceptions.RayTaskError as error:
            return "raised", RuntimeError(str(error).strip().splitlines()[-1])
        except self.ray.exceptions.RayError as error:
            return Died(f"its process on the cluster died: {_reason(str(error))}")

    def _refuse_to_wait(self) -> None:
        """Give up if no process is left and no node has room for one."""
        if any(member.ready for member in self.members) or room_of(self.ray, self.room.cpus, self.room.gpus).capacity:
            self.without_room_since = None
            return
        # nodes may join again soon
        self.without_room_since = self.without_room_since or time.monotonic()
        if time.monotonic() > self.without_room_since + PATIENCE:
            raise UsageError(
                f"ray: for {PATIENCE:g} s no node of the cluster had room for a process; finished cells "
                "are kept: run the same command to resume"
            )

    def dismiss(self, members: Sequence[_Actor]) -> None:
        for member in members:
            with suppress(Exception):
                self.ray.kill(member.actor, no_restart=True)

    def close(self) -> None:
        """End the mailbox."""
        with suppress(Exception):
            self.ray.kill(self.mailbox, no_restart=True)


def _reason(text: str) -> str:
    """The relevant line of a long message of Ray."""
    text = text.split("Some common causes", 1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    known = [line for line in lines if line.startswith("The actor is dead") or "exit type" in line or "Error:" in line]
    return (known or lines or ["unknown"])[0][:300]
