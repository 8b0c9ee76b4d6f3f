"""Threads: jobs side by side, small operations in one thread, and spans of one long sequence's rows by several devices.

If all threads of torch share an operation, each waits for the others at its end. This takes longer than a short
operation, and very long on a machine with other work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

from ..errors import UsageError
from .blocks import row_blocks


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


# Rows of a span. It is long compared with its sum of n_k numbers for each column, which is added to the others. It is
# short enough that 16 devices have equal shares at n = 131072. It is a multiple of the blocks of a CPU, whose rows are
# then the same with and without spans.
SPAN = 2048

Result = TypeVar("Result")
Work = Callable[[int, int], Result]


def in_spans(
    n: int,
    home: torch.device,
    devices: Sequence[torch.device] | None,
    begin: Callable[[torch.device], Work[Result]],
    take: Callable[[Result], None],
) -> None:
    """Call ``take(work(start, stop))`` for spans of `SPAN` of ``n`` rows, in the order of the rows, on N devices.

    Device ``i mod N`` computes span i, by the ``work`` that ``begin(device)`` returns. Each device has its own thread,
    with the caller's setting of gradients; ``take`` runs in the caller's thread. So ``take`` adds the same spans in the
    same order for every N. A device has at most one span that is not taken yet. An error in a thread, or an
    interruption of the caller, is raised here after all started spans have ended.

    Args:
        home: the device of the operands and of the results.
        devices: a device that is named twice has two threads. None computes all rows as one span, at home and in the
            caller's thread.
    """
    if devices is None:
        take(begin(home)(0, n))
        return
    for device in {home, *devices}:  # each thread has its own streams
        _settle(device)
    spans = list(row_blocks(n, SPAN))
    threads = [_Thread(device, home, begin) for device in devices[: len(spans)]]
    waiting = deque(thread.span(*span) for thread, span in zip(threads, spans, strict=False))
    try:
        for place in range(len(spans)):
            result, later = waiting.popleft().result(), place + len(threads)
            if later < len(spans):
                waiting.append(threads[later % len(threads)].span(*spans[later]))
            take(result)
    finally:
        for thread in threads:
            thread.shutdown()  # waits for at most one span


def located(devices: Sequence[torch.device | str] | None) -> tuple[torch.device, ...] | None:
    """The devices with their numbers: ``cuda`` becomes ``cuda:0``, or the current CUDA device. None stays None."""
    if devices is None:
        return None
    if isinstance(devices, (str, torch.device)) or not devices:
        raise UsageError(f"devices={devices!r}: give a list of one or more, such as ['cuda:0', 'cuda:1']")
    try:
        return tuple(torch.empty(0, device=device).device for device in devices)
    except (RuntimeError, AssertionError) as error:  # the latter of a torch without CUDA
        raise UsageError(f"devices={list(map(str, devices))}: {str(error).splitlines()[0]}") from error


class _Thread(ThreadPoolExecutor, Generic[Result]):
    """The thread of one device."""

    def __init__(self, device: torch.device, home: torch.device, begin: Callable[[torch.device], Work[Result]]) -> None:
        super().__init__(1, thread_name_prefix=f"rows on {device}")
        self.device, self.home, self.begin = device, home, begin
        self.work: Work[Result] | None = None
        self.gradients = torch.is_grad_enabled()  # which is a choice of each thread

    def span(self, start: int, stop: int) -> Future[Result]:
        return self.submit(self._made, start, stop)

    def _made(self, start: int, stop: int) -> Result:
        with torch.set_grad_enabled(self.gradients):
            if self.work is None:
                self.work = self.begin(self.device)
            result = self.work(start, stop)
        for device in {self.device, self.home}:
            _settle(device)
        return result


def _settle(device: torch.device) -> None:
    """Wait for the work that this thread started on a GPU."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
