"""Threads: jobs side by side, and small operations in one thread.

If all threads of torch share an operation, each waits for the others at its end. This takes longer than a short
operation, and very long on a machine with other work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


def side_by_side(jobs: Sequence[Callable[[], object]], device: torch.device) -> None:
    """Run all jobs, as many at once as torch has threads. On a device other than the CPU they run one after another.

    Each job has its own thread, with a share of torch's threads and the caller's setting of gradients.

    Raises:
        Exception: the first exception of a job, after all started jobs have ended.
    """
    threads = torch.get_num_threads()
    count = min(len(jobs), threads)
    if device.type != "cpu" or count < 2:
        for job in jobs:
            job()
        return
    gradients = torch.is_grad_enabled()

    def begin() -> None:
        torch.set_num_threads(threads // count)
        torch.set_grad_enabled(gradients)

    try:
        with ThreadPoolExecutor(count, thread_name_prefix="heads", initializer=begin) as pool:
            futures = [pool.submit(job) for job in jobs]
            try:
                for future in futures:
                    future.result()
            finally:
                for future in futures:
                    future.cancel()
    finally:
        torch.set_num_threads(threads)  # of threads that begin later: torch keeps the last number that any thread set


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which the caller's operations on a CPU run in one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
