"""Where a run is measured: this process, several here, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from ...errors import UsageError
from ...inputs.spec import choose_device
from ..topics.running import Cluster, RunRequest
from .backends import Alone, Crew
from .pool import Processes


@dataclass(frozen=True)
class Site:
    """The processes that measure the cells of a request.

    Attributes:
        threads, devices: as `GroupWork` takes them. device: where this process keeps Q, K and V, None is the request's.
    """

    backend: Alone | Crew
    threads: int | None = None
    devices: tuple[str, ...] = ()
    device: str | None = None

    @property
    def alone(self) -> bool:
        """Whether this process measures everything."""
        return isinstance(self.backend, Alone)

    def local_request(self, request: RunRequest) -> RunRequest:
        """The request with the device on which this process reads its sources."""
        if self.device is None:
            return request
        return replace(request, device=self.device)


@contextmanager
def site_of(request: RunRequest, notify: Callable[[str], None], exclusive: bool = False) -> Iterator[Site]:
    """The site of a request. The default is one process per visible GPU, and one on a CPU.

    A single process is this process. Under a time limit it is another process, which can be ended.

    Args:
        exclusive: at most one process measures on a device, with all threads; by default there is one process.

    Raises:
        UsageError: options of a cluster without one, or a cluster that does not exist or is too small for the request.
    """
    if (joined := Cluster.read(request.backend)) is not None:
        if exclusive:
            raise UsageError("backend ray: times belong to one machine; give --jobs, or run a --shard on each machine")
        from .ray_cluster import cluster

        with cluster(joined, request.jobs, request.source.device, notify) as (backend, device):
            yield Site(backend, joined.cpus, (device,), device="cpu")
        return
    device = choose_device(request.source.device)
    # a device with an index, such as cuda:1, is that GPU alone
    visible = torch.cuda.device_count() if device.type == "cuda" and device.index is None else 0
    devices, threads = tuple(f"cuda:{i}" for i in range(visible)), torch.get_num_threads()
    jobs = request.jobs or (1 if exclusive else visible or 1)
    if jobs == 1 and request.cell_timeout is None:
        yield Site(Alone())
    elif jobs == 1:
        yield Site(Processes(1), threads)  # a cell that ignores its time limit is ended with the process
    elif exclusive:
        if jobs > (visible or 1):
            notify(f"jobs={jobs}: one process at a time measures on each device, {visible or 1} in all")
        yield Site(Processes(min(jobs, visible or 1)), threads, devices)
    else:  # the processes share the threads of this one
        yield Site(Processes(jobs), max(1, threads // jobs), devices)
