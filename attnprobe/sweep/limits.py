"""How long one cell may take."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CellTimeout", "time_limit"]


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
