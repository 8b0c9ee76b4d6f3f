"""Processes that do not outlive the one that started them."""

from __future__ import annotations

import multiprocessing.process
import os
import threading
from multiprocessing.process import BaseProcess

__all__ = ["follow_parent"]


def follow_parent() -> None:
    """End this process as soon as the one that started it has ended, by kill -9 too.

    It is called in a process that `multiprocessing` started. A call into compiled code that holds Python's lock ends
    first.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
