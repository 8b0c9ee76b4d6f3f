"""Joining a Ray cluster that the user names. A cluster is started only for the address ``local``."""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from ...errors import SourceError, UsageError
from ..topics.running import Cluster
from .ray_actors import Actors, room_of

PRIVATE = "local"  # the address of a cluster that is started for the run
GPU = "cuda:0"  # in every process, because Ray shows a process its own GPUs alone
DEADLINE = 30.0  # seconds in which a cluster must be joined
IMPORT = 300.0  # seconds in which a process must have imported Ray, also from a slow file system
# A program that joins a cluster as the run will. It tries a plain connection first, because Ray itself retries for
# minutes if nothing listens. Ray replaces localhost by the machine's address. The last line on stdout is the reason of
# a failure.
JOIN = """
import logging, os, socket, sys
stdout = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
import ray
from ray._private.services import canonicalize_bootstrap_address
print("imported", file=stdout)
logging.disable(logging.CRITICAL)
try:
    host, _, port = canonicalize_bootstrap_address(sys.argv[1]).rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=float(sys.argv[2])).close()
    ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)
except BaseException as error:
    print(str(error).strip().split("\\n")[0][:200] or type(error).__name__, file=stdout)
else:
    print("joined", file=stdout)
stdout.flush()
os._exit(0)
"""


@contextmanager
def cluster(
    asked: Cluster, jobs: int | None, device: str, notify: Callable[[str], None]
) -> Iterator[tuple[Actors, str]]:
    """Join a cluster for the length of a block; ``local`` starts one on this machine.

    Yields the backend, and the device of its processes. The request is compared with the resources of the cluster
    before anything runs, because Ray waits for ever for a GPU that no node has.

    Raises:
        UsageError: Ray is not installed, or a request that does not fit the cluster or contradicts itself.
        SourceError: there is no cluster.
    """
    _refuse(device, asked.gpus)
    ray = _imported(asked.address)
    host = _this_cluster() if asked.address == "auto" else asked.address
    if host != PRIVATE:
        _refuse_form(host)
        refuse_silence(host)
    try:
        _joined(ray, host)
        room = room_of(ray, asked.cpus or 1, _gpus(ray, device, asked.gpus))
        jobs = room.checked_jobs(jobs)
        nodes = "1 node" if len(room.nodes) == 1 else f"{len(room.nodes)} nodes"
        notify(f"ray: {jobs} processes on {nodes}{'' if host == PRIVATE else f' of {host}'}")
        crew = Actors(ray, room, jobs)
        try:
            yield crew, GPU if room.gpus else "cpu"
        finally:
            crew.close()
    finally:
        ray.shutdown()


def _refuse(device: str, gpus: float | None) -> None:
    """Refuse an impossible device, and a contradiction between the device and the number of GPUs."""
    if device.startswith("cuda:"):
        raise UsageError(f"device {device}: Ray binds each process to a GPU; give --device cuda")
    if device == "cuda" and gpus == 0:
        raise UsageError("device cuda needs GPUs, and gpus=0; drop one of the two")
    if device == "cpu" and gpus:
        raise UsageError(f"device cpu needs no GPU, and gpus={gpus:g}; drop one of the two")


def _gpus(ray: ModuleType, device: str, gpus: float | None) -> float:
    """GPUs of a process. By default one GPU if the cluster has GPUs or the device is cuda, and none for a CPU."""
    if gpus is not None or device == "cpu":
        return gpus or 0.0
    return 1.0 if device == "cuda" or ray.cluster_resources().get("GPU", 0) else 0.0


def _imported(address: str) -> ModuleType:
    """Ray, imported with the settings of its environment that the run needs."""
    if address.startswith("ray://"):
        raise UsageError(
            f"backend {address}: Ray Client is not supported; run attnprobe on a node of the cluster, with "
            "--backend ray:auto"
        )
    if address == PRIVATE:  # a cluster that is joined has its own settings
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # the default since Ray 2.59
    # Ray would print its nodes' lines on stdout, which is for tables
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError as error:
        raise UsageError("backend ray: Ray is not installed; run pip install 'attnprobe[ray]'") from error
    return ray


def _this_cluster() -> str:
    """The address of this node's cluster, from RAY_ADDRESS or from `ray start`."""
    left = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    address = os.environ.get("RAY_ADDRESS", "") or (left.read_text().strip() if left.is_file() else "")
    if ":" not in address:
        raise SourceError(
            "ray: this node belongs to no cluster (RAY_ADDRESS is not set, and `ray start` left no address); give "
            "--backend ray:HOST:PORT, or ray:local"
        )
    return address


def _refuse_form(address: str) -> None:
    """Refuse an address that is not a host and a port."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and port.isascii() and 0 < int(port) < 65536):
        raise UsageError(f"backend ray: '{address[:80]}' is not HOST:PORT, auto or local")


def _joined(ray: ModuleType, address: str) -> None:
    """Connect, and hide Ray's own lines from the terminal."""
    private = {"include_dashboard": False} if address == PRIVATE else {}
    for name in ("ray", "ray._private", "ray.serve"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    umask = os.umask(0o077)  # Ray writes the token of a private cluster to ~/.ray, where others could read it
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, **private)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        first = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise SourceError(f"ray: no cluster at {address}: {first}") from error
    finally:
        os.umask(umask)


def refuse_silence(address: str, deadline: float = DEADLINE) -> None:
    """Refuse an address without a cluster: a process of its own joins the cluster and leaves it.

    Ray's own calls cannot be interrupted, and retry for minutes if the address is not that of a cluster.

    Raises:
        SourceError: there is no cluster, or it does not answer within ``deadline`` seconds.
    """
    command = [sys.executable, "-P", "-c", JOIN, address, str(deadline)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,  # so that its children can be ended with it
    )
    lines: queue.Queue[str] = queue.Queue()
    stdout = process.stdout
    assert stdout is not None  # it is a pipe
    # a thread reads, because a read of a pipe has no time limit
    reader = threading.Thread(target=lambda: [lines.put(stdout.readline()) for _ in range(2)], daemon=True)
    reader.start()
    try:
        if lines.get(timeout=IMPORT).strip() != "imported":
            raise SourceError(f"ray: no cluster at {address}: Ray cannot be imported in a process of its own")
        answer = lines.get(timeout=deadline).strip()
    except queue.Empty:
        raise SourceError(
            f"ray: no cluster at {address}: the server there did not answer as Ray within {deadline:g} s"
        ) from None
    finally:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
        stdout.close()
    if answer != "joined":
        raise SourceError(f"ray: no cluster at {address}: {answer or 'the process that joined it died'}")
