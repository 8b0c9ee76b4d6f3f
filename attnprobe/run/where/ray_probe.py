"""Whether a Ray cluster answers at an address. A separate process joins it, so that it can be ended."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress

from ...errors import SourceError

DEADLINE = 30.0  # seconds in which a cluster must be joined
IMPORT = 300.0  # seconds in which a process must have imported Ray, off a slow file system too
# Joins in the same way as the run. A plain connection is tried first, because Ray itself retries for minutes if nothing
# listens. Ray replaces localhost by the machine's address. The last line on stdout is the reason of a failure.
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


def refuse_silence(address: str, deadline: float = DEADLINE) -> None:
    """Return after a process has joined the cluster at an address and left it.

    Ray's own calls cannot be interrupted, and retry for minutes if the address is not that of a cluster.

    Raises:
        SourceError: there is no cluster, or none that answers within ``deadline`` seconds.
    """
    command = [sys.executable, "-P", "-c", JOIN, address, str(deadline)]
    process = subprocess.Popen(
        command, stdin=-3, stdout=-1, stderr=-3, text=True, errors="replace", start_new_session=True
    )
    lines: queue.Queue[str] = queue.Queue()
    stdout = process.stdout
    assert stdout is not None  # stdout=-1 is a pipe
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
