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

POLL = 0.25  # seconds between two looks at what was sent
SHOWN = 0.2  # seconds between two labels of one process: each is a call across the network
PATIENCE = 60.0  # seconds without a process that could be, before the run gives up


@dataclass(frozen=True)
class Room:
    """The size of each process, and how many of them the nodes of a cluster can hold.

    Attributes:
        nodes: CPUs and GPUs of each node that is alive.
    """

    cpus: int
    gpus: float
    nodes: tuple[tuple[float, float], ...]

    @property
    def places(self) -> int:
        """How many processes fit. No process is split over two nodes."""
        return sum(self._on(*node) for node in self.nodes)

    def _on(self, cpus: float, gpus: float) -> int:
        by_cpus = int(cpus // self.cpus)
        if self.gpus > 1:  # whole GPUs
            return min(by_cpus, int(gpus // self.gpus))
        return min(by_cpus, int(gpus) * int(1 / self.gpus + 1e-9)) if self.gpus else by_cpus

    def refuse(self, jobs: int | None) -> int:
        """The number of processes.

        Raises:
            UsageError: more than fit, or none does.
        """
        size = f"{self.cpus} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
        has = f"{len(self.nodes)} nodes" if len(self.nodes) != 1 else "one node"
        most = ", ".join(
            f"{max((node[i] for node in self.nodes), default=0):g} {what}" for i, what in enumerate(("CPU", "GPU"))
        )
        if not self.places:
            way = "ray:ADDRESS,gpus=F with a smaller F, or 0" if self.gpus else "ray:ADDRESS,cpus=N with a smaller N"
            raise UsageError(
                f"ray: no node has room for a process of {size}: the cluster has {has}, the largest with "
                f"{most}; give {way}"
            )
        if jobs is not None and jobs > self.places:
            raise UsageError(
                f"ray: jobs={jobs} processes of {size} each do not fit: the cluster has {has}, with room "
                f"for {self.places}; give --jobs {self.places} or less"
            )
        return jobs or self.places


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
        os.chdir(self.folder)  # names of files are the user's
        try:
            facts, self.do = work.start(number, lambda kind, value=None: self._send(number, kind, value))
        except Exception as error:
            return "raised", raisable(error)
        return "ready", facts

    def work(self, group: Bundle, done: Done) -> Message:
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
        ray.get(self.mailbox.put.remote((number, kind, value)))  # what was sent is there before the next is made


@dataclass(kw_only=True)
class _Actor(Member):
    actor: Any = None
    call: object = None  # what it does now


class Actors(Crew[_Actor]):
    """Actors of Ray, each with its CPUs and GPUs. Their messages come through a mailbox."""

    def __init__(self, ray: ModuleType, room: Room, size: int) -> None:
        super().__init__(size, "run it without --backend ray to see why")
        self.ray, self.room = ray, room
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

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
        for number, kind, value in sent:  # what came before the end of a call
            member = self.numbers.get(number)
            if member is not None and member.group is not None:  # else it came from one that died
                yield member, (kind, value)
        for member, heard in results:
            member.call = None
            if isinstance(heard, Died):
                self.numbers.pop(member.number, None)
                self.dismiss([member])  # it may be out of reach only
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
        if any(member.ready for member in self.members) or room_of(self.ray, self.room.cpus, self.room.gpus).places:
            self.without_room_since = None
            return
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
