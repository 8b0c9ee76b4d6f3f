"""One attempt to measure: a method may raise anything, take too long, or need too much memory."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import ParamSpec, TypeVar

import torch

from ..errors import NotFinite, Unsupported
from ..grammar.foreign import message
from ..methods import error_text
from ..operators.blocks import BLOCK_MEMORY

HALVINGS = 4  # of the memory of blocks, before a cell gives up
AGAIN = 1.0  # seconds after which a block that caught an interruption is interrupted again
TIMEOUT = "timeout"  # the first word of the reason of a cell that ran out of time
P = ParamSpec("P")
Result = TypeVar("Result")


class CellTimeout(BaseException):
    """A cell ran longer than its limit. It is not an `Exception`, so ``except Exception`` in a method misses it."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise `CellTimeout` in the block after ``seconds``, and then every second; None is no limit.

    `CellTimeout` is raised at the end of the block at the latest, even if the block caught it before. Python handles
    the alarm signal between two instructions, so a call into compiled code ends first. A block that catches every
    ``BaseException`` does not end; then its process is killed (see `Crew`). Only the main thread of a POSIX process
    gets the signal. Elsewhere the limit is checked only at the end of the block.
    """
    if seconds is None:
        yield
        return
    end, reason = monotonic() + seconds, f"took longer than --cell-timeout {seconds:g}"
    try:
        with _alarm(seconds, reason):
            yield
    except (KeyboardInterrupt, CellTimeout):
        raise
    except BaseException as error:
        if monotonic() < end:
            raise
        # the block may have caught `CellTimeout` and raised an error of its own
        raise CellTimeout(reason) from error
    if monotonic() >= end:
        raise CellTimeout(reason)


@contextmanager
def _alarm(seconds: float, reason: str) -> Iterator[None]:
    """Raise `CellTimeout` in the block after ``seconds``, and then every second, if the platform has the signal."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    inside = False

    def stop(*_: object) -> None:
        # outside, the alarm is being switched on or off: raised there, the handler would not be reset
        if inside:
            raise CellTimeout(reason)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    inside = True
    try:
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Attempt:
    """The outcome of a block: the status of its record, and the reason of a status that is not ``ok``."""

    status: str = "ok"
    reason: str | None = None

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def state(self) -> dict[str, str | None]:
        """The record's fields ``status`` and ``reason``."""
        return {"status": self.status, "reason": self.reason}


@contextmanager
def attempt(limit: float | None = None) -> Iterator[Attempt]:
    """A block in which a method may raise anything or take too long. This ends the block, not the run.

    The status is ``skipped`` after `Unsupported`, ``diverged`` if Q, K or V is not finite, and ``failed`` after any
    other error or more than ``limit`` seconds. Only Ctrl-C is raised again.
    """
    tried = Attempt()
    try:
        with time_limit(limit):
            yield tried
    except KeyboardInterrupt:
        raise
    except Unsupported as error:
        tried.status, tried.reason = "skipped", message(error)
    except NotFinite as error:
        tried.status, tried.reason = "diverged", message(error)
    except CellTimeout as error:
        tried.status, tried.reason = "failed", error_text(error).replace(CellTimeout.__name__, TIMEOUT, 1)
    except BaseException as error:
        tried.status, tried.reason = "failed", error_text(error)


def with_smaller_blocks(work: Callable[P, Result], *args: P.args, **options: P.kwargs) -> Result:
    """The result of ``work`` with these arguments.

    When the device runs out of memory, the work is repeated with blocks half as large, at most `HALVINGS` times. The
    blocks stay that small for the rest of the process.
    """
    for _ in range(HALVINGS):
        try:
            return work(*args, **options)
        except torch.OutOfMemoryError:
            BLOCK_MEMORY.halve()
        # outside the handler, which holds the frames of the failed call and so their tensors
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return work(*args, **options)
