"""Processes that end with the process that started them."""

from __future__ import annotations

import multiprocessing.process
import os
import threading
from multiprocessing.process import BaseProcess


def follow_parent() -> None:
    """End this process when its parent ends, also by kill -9.

    Call it in a process that `multiprocessing` started. If compiled code holds Python's lock, the process ends after
    that call.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    # sys.exit would end this thread only
    os._exit(1)
