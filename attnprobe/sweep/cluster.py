"""A crew of actors on a Ray cluster that the user names; none is ever started unless the address is ``local``."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SourceError, UsageError
from ..installation import versions
from .backends import Crewed, Died, Member, Work, raisable

__all__ = ["Room", "cluster", "room_of"]

PRIVATE = "local"
GPU = "cuda:0"  # Ray shows a process its own GPUs alone
POLL = 0.25  # seconds between two looks at what was sent
SHOWN = 0.2  # seconds between two labels of one process: each is a call across the network
REACH = 10.0  # seconds in which the address of a cluster must answer
PATIENCE = 60.0  # seconds without a process that could be, before the run gives up


@dataclass(frozen=True)
class Room:
    """What each process asks for, and how many of them the nodes of a cluster have room for.

    Attributes:
        nodes: CPUs and GPUs of each node that is alive.
    """

    cpus: int
    gpus: float
    nodes: tuple[tuple[float, float], ...]

    @property
    def places(self) -> int:
        """How many processes fit, node by node: none is split over two."""
        return sum(self._on(*node) for node in self.nodes)

    def _on(self, cpus: float, gpus: float) -> int:
        found = int(cpus // self.cpus)
        if self.gpus > 1:  # whole GPUs
            return min(found, int(gpus // self.gpus))
        return min(found, int(gpus) * int(1 / self.gpus + 1e-9)) if self.gpus else found

    def refuse(self, jobs: int | None) -> int:
        """How many processes there shall be.

        Raises:
            UsageError: more than fit, or none does.
        """
        asked = f"{self.cpus} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
        has = f"{len(self.nodes)} nodes" if len(self.nodes) != 1 else "one node"
        most = ", ".join(f"{max((node[i] for node in self.nodes), default=0):g} {what}" for i, what in
                         enumerate(("CPU", "GPU")))  # fmt: skip
        if not self.places:
            way = "a smaller --gpus-per-task, or 0 for CPUs alone" if self.gpus else "a smaller --cpus-per-task"
            raise UsageError(f"ray: no node has room for a process of {asked}: the cluster has {has}, the largest with "
                             f"{most}; give {way}")  # fmt: skip
        if jobs is not None and jobs > self.places:
            raise UsageError(f"ray: jobs={jobs} processes of {asked} each do not fit: the cluster has {has}, with room "
                             f"for {self.places}; give --jobs {self.places} or less")  # fmt: skip
        return jobs or self.places


@contextmanager
def cluster(
    address: str | None,
    jobs: int | None,
    cpus: int | None,
    gpus: float | None,
    device: str,
    notify: Callable[[str], None],
) -> Iterator[tuple[Crewed, str]]:
    """Join the cluster at an address, or start one of this machine for ``local``, for the length of a block.

    Gives the backend, and the device of its processes. What the cluster has is compared with what is asked before
    anything runs: Ray itself waits for ever for a GPU that no node has.

    Raises:
        UsageError: no address, Ray is not installed, what is asked does not fit or contradicts itself.
        SourceError: there is no cluster.
    """
    device, gpus = _device(device, gpus)
    ray = _imported(address)
    address = _this_cluster() if address == "auto" else address
    _reached(address)
    try:
        _joined(ray, address)
        room = room_of(ray, cpus or 1, _gpus(ray, device, gpus))
        jobs = room.refuse(jobs)
        notify(f"ray: {jobs} processes on {len(room.nodes)} node{'s' * (len(room.nodes) > 1)}"
               f"{'' if address == PRIVATE else f' of {address}'}")  # fmt: skip
        crew = Actors(ray, room)
        try:
            yield Crewed(crew, jobs, "run it without --backend ray to see why"), GPU if room.gpus else "cpu"
        finally:
            crew.close()
    finally:
        ray.shutdown()


def _device(device: str, gpus: float | None) -> tuple[str, float | None]:
    """The request's device and GPUs, refused where they contradict each other."""
    if gpus is not None and not (gpus == 0 or 0.01 <= gpus <= 1 or (gpus > 1 and float(gpus).is_integer())):
        raise UsageError(f"gpus-per-task={gpus:g}: choose 0, a fraction from 0.01 to 1, or a whole number")
    if device.startswith("cuda:"):
        raise UsageError(f"device {device}: Ray binds each process to a GPU; give --device cuda")
    if device == "cuda" and gpus == 0:
        raise UsageError("device cuda needs GPUs, and gpus-per-task is 0; drop one of the two")
    if device == "cpu" and gpus:
        raise UsageError(f"device cpu needs no GPU, and gpus-per-task is {gpus:g}; drop one of the two")
    return device, 0 if device == "cpu" else gpus


def _gpus(ray: Any, device: str, gpus: float | None) -> float:
    """GPUs of a process where none are given: one, where there are any or the device asks for one."""
    if gpus is None:
        gpus = 1.0 if device == "cuda" or ray.cluster_resources().get("GPU", 0) else 0.0
    return gpus


def _imported(address: str | None) -> Any:
    if not address or not address.strip():
        raise UsageError("backend ray: name the cluster; give --ray-address HOST:PORT, or local for a private one here")
    if address.startswith("ray://"):
        raise UsageError(f"ray-address {address}: Ray Client is not supported; run attnprobe on a node of the cluster, "
                         "with --ray-address auto")  # fmt: skip
    if address == PRIVATE:  # one that is joined has its own settings
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # by itself since Ray 2.59
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # it prints what its nodes say on stdout, which is ours
    try:
        import ray
    except ImportError as error:
        raise UsageError("backend ray: Ray is not installed; run pip install 'attnprobe[ray]'") from error
    return ray


def _this_cluster() -> str:
    """The address of the cluster that this node is of, as ``ray start`` leaves it.

    Raises:
        SourceError: it is of none.
    """
    left = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    found = os.environ.get("RAY_ADDRESS", "") or (left.read_text().strip() if left.is_file() else "")
    if ":" not in found:
        raise SourceError("ray: this node is of no cluster (no RAY_ADDRESS, nothing that `ray start` left here); give "
                          "--ray-address HOST:PORT, or local")  # fmt: skip
    return found


def _reached(address: str) -> None:
    """Refuse a host and port where nobody listens: Ray would try again for minutes."""
    host, colon, port = address.rpartition(":")
    if address == PRIVATE:
        return
    if not (host and colon and port.isdecimal() and port.isascii() and 0 < int(port) < 65536):
        raise UsageError(f"ray-address '{address[:80]}' is not HOST:PORT, auto or local")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
    except OSError as error:
        raise SourceError(f"ray: no cluster at {address}: {error}") from error


def _joined(ray: Any, address: str) -> None:
    """Connect; Ray's own lines are kept off the terminal, as ours say what matters."""
    private = {"include_dashboard": False} if address == PRIVATE else {}
    for name in ("ray", "ray._private", "ray.serve"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, **private)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        first = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise SourceError(f"ray: no cluster at {address}: {first}") from error


def room_of(ray: Any, cpus: int, gpus: float) -> Room:
    """The room that the cluster has now for processes of so many CPUs and GPUs."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return Room(cpus, gpus, tuple((node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes))


class Mailbox:
    """What processes sent and nobody took yet; an actor beside the process that takes it."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, item: Any) -> None:
        self.items.append(item)

    def take(self) -> list[Any]:
        items, self.items = self.items, []
        return items


class Worker:
    """The life of a process on the cluster: an actor, whose calls come one after the other in its main thread."""

    def __init__(self, mailbox: Any, folder: str, version: str) -> None:
        self.mailbox, self.folder, self.version = mailbox, folder, version
        self.shown = 0.0

    def start(self, work: Work, number: int) -> tuple[str, Any]:
        """What a `Crew` hears of a process that begins."""
        theirs = versions()["attnprobe"]
        if self.version != theirs:
            return "raised", UsageError(f"ray: a node has attnprobe {theirs}, and this is {self.version}; install the "
                                        "same everywhere")  # fmt: skip
        if not Path(self.folder).is_dir():
            return "raised", UsageError(f"ray: {self.folder} is not on a node; run in a folder that all share")
        os.chdir(self.folder)  # names of files are the user's
        try:
            facts, self.do = work.start(number, lambda kind, value=None: self._send(number, kind, value))
        except Exception as error:
            return "raised", raisable(error)
        return "ready", facts

    def work(self, group: Any, told: Any) -> tuple[str, Any]:
        try:
            self.do(group, told)
        except Exception as error:
            return "raised", raisable(error)
        return "end", None

    def _send(self, number: int, kind: str, value: Any) -> None:
        import ray

        if kind == "show":
            if time.monotonic() < self.shown + SHOWN:
                return
            self.shown = time.monotonic()
        ray.get(self.mailbox.put.remote((number, kind, value)))  # what was sent is there before the next is made


@dataclass
class _Actor(Member):
    actor: Any = None
    call: Any = None  # what it does now


class Actors:
    """Actors of Ray, each with its CPUs and GPUs; what they send comes through a mailbox."""

    def __init__(self, ray: Any, room: Room) -> None:
        self.ray, self.room = ray, room
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.mailbox = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        self.make = ray.remote(Worker).options(num_cpus=room.cpus, num_gpus=room.gpus, max_restarts=0)
        self.numbers: dict[int, _Actor] = {}
        self.hopeless_since: float | None = None

    def hire(self, work: Work, number: int) -> _Actor:
        actor = self.make.remote(self.mailbox, os.getcwd(), versions()["attnprobe"])
        self.numbers[number] = _Actor(number, actor=actor, call=actor.start.remote(work, number))
        return self.numbers[number]

    def give(self, member: _Actor, group: Any, told: Any) -> None:
        member.call = member.actor.work.remote(group, told)

    def hear(self, members: Sequence[_Actor]) -> Iterator[tuple[_Actor, Any]]:
        calls = {member.call: member for member in members if member.call is not None}
        try:
            over, _ = self.ray.wait(list(calls), num_returns=1, timeout=POLL)
            ended = [(calls[call], self._result(call)) for call in over]
            sent = self.ray.get(self.mailbox.take.remote())
        except self.ray.exceptions.RayError as error:
            raise SourceError(f"ray: the cluster is gone: {_reason(str(error))}; what is done is kept: run the same "
                              "command to go on") from error  # fmt: skip
        for number, kind, value in sent:  # what came before the end of a call
            member = self.numbers.get(number)
            if member is not None and member.group is not None:  # else it came from one that died
                yield member, (kind, value)
        for member, heard in ended:
            member.call = None
            if isinstance(heard, Died):
                self.numbers.pop(member.number, None)
                self.dismiss([member])  # it may be out of reach only
            yield member, heard
        self._refuse_to_wait(members)

    def _result(self, call: Any) -> Any:
        """What a call gave, or how its process died."""
        try:
            return self.ray.get(call)
        except self.ray.exceptions.RayTaskError as error:
            return "raised", RuntimeError(str(error).strip().splitlines()[-1])
        except self.ray.exceptions.RayError as error:
            return Died(f"its process on the cluster died: {_reason(str(error))}")

    def _refuse_to_wait(self, members: Sequence[_Actor]) -> None:
        """Give up where no process is left and no node could have one."""
        if any(member.ready for member in members) or room_of(self.ray, self.room.cpus, self.room.gpus).places:
            self.hopeless_since = None
            return
        self.hopeless_since = self.hopeless_since or time.monotonic()
        if time.monotonic() > self.hopeless_since + PATIENCE:
            raise UsageError(f"ray: for {PATIENCE:g} s no node of the cluster has had room for a process; what is done "
                             "is kept: run the same command to go on")  # fmt: skip

    def dismiss(self, members: Sequence[_Actor]) -> None:
        for member in members:
            with suppress(Exception):
                self.ray.kill(member.actor, no_restart=True)

    def close(self) -> None:
        """End the mailbox."""
        with suppress(Exception):
            self.ray.kill(self.mailbox, no_restart=True)


def _reason(text: str) -> str:
    """What matters of what Ray says over many lines."""
    text = text.split("Some common causes", 1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    known = [line for line in lines if line.startswith("The actor is dead") or "exit type" in line or "Error:" in line]
    return (known or lines or ["unknown"])[0][:300]
