"""An end that is asked for: Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 143  # exit codes


class Terminated(KeyboardInterrupt):
    """SIGTERM, which batch systems send: a run ends as after Ctrl-C."""


def heed_termination() -> None:
    """Raise `Terminated` on SIGTERM in this process, not in those that it forks."""

    def stop(*_: object) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    if hasattr(os, "register_at_fork"):
        # a worker that is ended by SIGTERM must end, and not unwind the run of its parent
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
