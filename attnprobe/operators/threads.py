"""Independent jobs on a CPU, side by side: each thread has its share of the threads of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

__all__ = ["side_by_side"]


def side_by_side(jobs: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Run all jobs, as many at once as torch has threads; on another device than the CPU one after another.

    The operations of a job are short. If all threads of torch shared each of them, they would wait for one another
    after every one, and for a long time on a machine that has other work. So each job has a thread of its own, with
    the caller's choice about gradients.

    Raises:
        Exception: the first exception of a job, once the jobs that were begun have ended.
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
