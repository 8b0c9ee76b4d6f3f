"""Runs by several processes of this machine: what dies, what is interrupted, what is refused."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from attnprobe.errors import UsageError
from attnprobe.frame.records.read import read_records
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.run.where import pool
from attnprobe.show.page import open_run, views

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def file(two_layers):
    return two_layers


def request(file, out, **rest):
    given = {"methods": ("skyformer,performer",), "d": (4,), "n": (40, 64), "layer": (0, 2), "windows": 2, **rest}
    return ErrorRequest(qkv=str(file), device="cpu", out=str(out), **given)


def bits(records):
    return {one["key"]: json.dumps({**one, "seconds": None, "run": None}, sort_keys=True) for one in records}


@pytest.mark.slow
def test_cells_whose_process_always_dies_have_failed_and_can_be_tried_again(file, tmp_path):
    def progress(done, total, label):
        if "layer 2" in label and "n=64" in label:
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGKILL)

    out = tmp_path / "r"
    few = {"windows": 1, "jobs": 2, "n": (64,), "methods": ("skyformer",), "repeats": 40}
    run = measure_errors(request(file, out, **few), progress=progress)
    failed = [record for record in run.outcome.records if record["status"] == "failed"]
    assert failed and {record["layer"] for record in failed} <= {0, 2} and 2 in {record["layer"] for record in failed}
    assert all("ended by SIGKILL, 3 times" in record["reason"] and record["heads"] == [0, 1] for record in failed)
    assert [view.text("md") for view in views(open_run(out))]
    measure_errors(request(file, out, retry_failed=True, **few))
    measure_errors(request(file, tmp_path / "one", **{**few, "jobs": 1}))
    assert bits(read_records(out)) == bits(read_records(tmp_path / "one"))


@pytest.mark.slow
def test_an_interruption_keeps_what_is_done(file, tmp_path):
    held = tmp_path / "held.py"  # the first process that calls it stays in it, the other one goes on
    held.write_text(f"""import time


def held(q, k, v):
    try:
        open({str(tmp_path / "held")!r}, "x").close()
    except FileExistsError:
        return v
    time.sleep(120)
    return v
""")
    options = f"--qkv {file} --n 40,64 --layer 0,2 --windows 2 --method {held}:held --d 4,8 --out {tmp_path}/r --jobs 2"
    command = [sys.executable, "-m", "attnprobe", "error", *options.split()]

    def hears():
        return signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background does not

    process = subprocess.Popen(command, stdout=-1, stderr=-1, start_new_session=True, text=True, preexec_fn=hears)
    kept, until = tmp_path / "r/rows.jsonl", time.monotonic() + 60
    while time.monotonic() < until and not (kept.exists() and kept.stat().st_size and (tmp_path / "held").exists()):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the group
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "go on" in err and "Traceback" not in err, err
    assert read_records(tmp_path / "r")
    while (left := alive(process.pid)) and time.monotonic() < until + 30:
        time.sleep(0.05)
    assert not left


def alive(group):
    """The processes of a group that run still."""
    actual = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone meanwhile
            state, _, its = path.read_text().rpartition(")")[2].split()[:3]
            actual += [path.parent.name] if its == str(group) and state != "Z" else []
    return actual


HELD = """import multiprocessing, time


def held(q, k, v):
    if multiprocessing.parent_process() is None:
        return v
    open("held", "w").close()
    while True:
        try:
            time.sleep(0.1)
        except BaseException:
            pass
"""


@pytest.mark.parametrize(
    "command", ["error --cell-timeout 600", pytest.param("bench --rounds 1", marks=pytest.mark.slow)]
)
def test_no_process_outlives_a_run_that_is_killed(command, file, tmp_path):
    """Neither one that measures, nor the one in which memory is measured."""
    (tmp_path / "held.py").write_text(HELD)
    source = () if command.startswith("bench") else ("--qkv", file)
    arguments = (*command.split(), *source, "--n", "32", "--method", "./held.py:held", "--out", "r")
    run = [sys.executable, "-m", "attnprobe", *map(str, arguments)]
    with open(tmp_path / "output", "w") as output:
        process = subprocess.Popen(run, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True)
    until = time.monotonic() + 90
    while not (tmp_path / "held").exists() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
    assert len(alive(process.pid)) > 1, (tmp_path / "output").read_text()
    process.kill()
    process.wait()
    until = time.monotonic() + 10
    while (left := alive(process.pid)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert not left


def test_impossible_numbers_of_processes_are_refused(file, tmp_path):
    for jobs in (0, -1, 100_000):
        with pytest.raises(UsageError, match=f"jobs={jobs}"):
            measure_errors(request(file, tmp_path / "r", jobs=jobs))
    assert not (tmp_path / "r").exists()


def test_an_interruption_while_a_process_starts_is_not_lost(hearing):
    with pytest.raises(KeyboardInterrupt), pool._without_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        heard = True  # not yet
    assert heard
