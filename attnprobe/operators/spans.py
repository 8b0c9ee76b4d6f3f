"""Spans of the rows of one long sequence, computed by several devices in parallel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

from ..errors import UsageError
from .blocks import row_blocks

__all__ = ["SPAN", "in_spans", "located"]

# Rows. Long beside the one sum of n_k numbers a column that a span leaves to add, short enough that 16 devices have as
# much each at n = 131072; a multiple of the blocks that CPUs use, whose rows are then the same with and without spans.
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
    """``take(work(start, stop))`` of ``n`` rows in spans of `SPAN`, in the order of the rows, made by all ``devices``.

    Span i is made on device ``i mod N`` by the ``work`` that ``begin`` gives for that device: both run in a thread of
    its own, with the caller's choice about gradients, ``take`` in the caller's. What ``take`` sums is therefore the
    same sum of the same spans for every N; no device has more than one span that was not taken yet. An error in a
    thread, or an interruption of the caller, is raised here once the spans that were begun have ended.

    Args:
        home: where the operands are, and results go. devices: a device named twice has two threads; None makes all
            rows one span, at home and in the caller's thread.
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
            thread.shutdown()  # none has more than the one span that it is making


def located(devices: Sequence[torch.device | str] | None) -> tuple[torch.device, ...] | None:
    """The devices as tensors on them name theirs: ``cuda`` is ``cuda:0``, or whichever is current.

    Raises:
        UsageError: no device, or one that is not there.
    """
    if devices is None:
        return None
    if isinstance(devices, (str, torch.device)) or not devices:
        raise UsageError(f"devices={devices!r}: give a list of one or more, such as ['cuda:0', 'cuda:1']")
    try:
        return tuple(torch.empty(0, device=device).device for device in devices)
    except (RuntimeError, AssertionError) as error:  # the latter of a torch without CUDA
        raise UsageError(f"devices={list(map(str, devices))}: {str(error).splitlines()[0]}") from error


class _Thread(ThreadPoolExecutor, Generic[Result]):
    """The thread of one device, which begins with its first span."""

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
