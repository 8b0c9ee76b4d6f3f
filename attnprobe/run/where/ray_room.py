"""The size of processes on a Ray cluster, and how many of them it can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import UsageError


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
            way = "a smaller --gpus-per-task, or 0 for CPUs alone" if self.gpus else "a smaller --cpus-per-task"
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


def room_of(ray: Any, cpus: int, gpus: float) -> Room:
    """How many processes of so many CPUs and GPUs the cluster can hold now."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return Room(cpus, gpus, tuple((node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes))
