"""Sweeps that are ended by kill -9 at random moments and run again have the records of one that was not.

``python -m pytest -m slow tests/run/test_kills.py -s`` ends 200 of them and prints the seeds of their moments.
"""

import json
import os
import subprocess
import sys

import pytest
from cells import bits
from paths import GOLDEN

from attnprobe.frame.records.read import read_records

QKV = GOLDEN / "inputs/qkv.safetensors"
SWEEP = f"""
command: error
qkv: {QKV}
device: cpu
methods: [skyformer, performer]
d: [4, 8]
n: [16, 24]
layer: all
windows: 2
repeats: 2
"""
# Forks runs off a process that has imported everything, so that moments fall within a run and not within its imports.
KILLER = """
import os, random, signal, sys, time
import torch
torch.set_num_threads(1)
import attnprobe.show.page, attnprobe.measure.error.measure
from attnprobe.cli import main

kills, seed, jobs = map(int, sys.argv[1:])
draw = random.Random(seed)

def begin(out):
    child = os.fork()
    if child:
        return child
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    try:
        main(["sweep", "sweep.yaml", "--out", out, "--jobs", str(jobs)])
    except SystemExit as stop:
        os._exit(stop.code or 0)
    os._exit(0)

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

start = time.monotonic()
assert ended(begin("whole")) == 0
took = time.monotonic() - start
folder = 0
while kills:
    child = begin(f"r{folder}")
    # many moments lie in the beginning, where the folder is made, and some behind the last record, where tables are
    time.sleep(took * (draw.random() ** 3 if draw.random() < 0.3 else draw.random()))
    os.kill(child, signal.SIGKILL)
    code = ended(child)
    assert code in (0, -signal.SIGKILL), f"r{folder} exits {code} after a kill: {open('stderr').read()}"
    if code == 0:  # it had ended before
        folder += 1
        continue
    kills -= 1
    if draw.random() < 0.2 or not kills:
        assert ended(begin(f"r{folder}")) == 0
        folder += 1
"""


def whole_cells(folder):
    found = bits(read_records(folder))
    lines = map(json.loads, (folder / "rows.jsonl").read_bytes().splitlines())
    assert len(found) == sum(line["kind"] == "cell" for line in lines)  # none is measured twice
    return found


# The ordinary suite has rows that end at any byte, folders as a kill leaves them, runs that go on from some records,
# and processes of a pool that are killed: test_frame_rows.py, test_outputs.py, test_run_matrix.py, test_backends.py.
@pytest.mark.slow
@pytest.mark.parametrize(("kills", "seed", "jobs"), [(170, 1, 1), (30, 2, 2)])
def test_a_sweep_that_is_killed_ends_as_one_that_was_not(kills, seed, jobs, tmp_path):
    print(f"{kills} kills of seed {seed}, jobs {jobs}")
    (tmp_path / "sweep.yaml").write_text(f"{SWEEP}plot: true\n")
    (tmp_path / "beside").write_text("mine")
    run = [sys.executable, "-c", KILLER, str(kills), str(seed), str(jobs)]
    done = subprocess.run(run, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    whole = whole_cells(tmp_path / "whole")
    folders = sorted(tmp_path.glob("r*"))
    assert folders and all(whole_cells(folder) == whole for folder in folders)
    expected = {"sweep.yaml", "beside", "stderr", "whole", *(f.name for f in folders)}
    assert {path.name for path in tmp_path.iterdir()} == expected
