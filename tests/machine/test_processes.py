"""Processes end with the one that started them, by kill -9 too."""

import os
import signal
import subprocess
import sys
import time

PARENT = """
import multiprocessing, time
from attnprobe.machine.processes import follow_parent

def child():
    follow_parent()
    print(multiprocessing.current_process().pid, flush=True)
    time.sleep(600)

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=child, daemon=True).start()
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert alive(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 60
    while alive(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(child)
