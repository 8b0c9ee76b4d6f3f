"""How long one cell may take, and what happens where the device's memory ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from ..operators import GPU_BLOCK

__all__ = ["CellTimeout", "time_limit", "with_smaller_blocks"]

HALVINGS = 4
Result = TypeVar("Result")


class CellTimeout(Exception):
    """A cell ran longer than it may."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise `CellTimeout` in the block once it has run for ``seconds``; None is no limit.

    By the alarm signal, which Python handles between two of its instructions: a single call into compiled code ends
    first. Only the main thread of a POSIX process has it; elsewhere nothing is limited.
    """
    if seconds is None or not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise CellTimeout(f"took longer than --cell-timeout {seconds:g}")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def with_smaller_blocks(work: Callable[[], Result]) -> Result:
    """``work()``, again with blocks half as large where the device runs out of memory, four times at most.

    The blocks stay that small for the rest of the process.
    """
    for _ in range(HALVINGS):
        try:
            return work()
        except torch.OutOfMemoryError:
            GPU_BLOCK.halve()
        if torch.cuda.is_available():  # outside the handler, which holds the frames of what failed
            torch.cuda.empty_cache()
    return work()
