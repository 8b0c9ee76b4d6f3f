"""``pytest -m cuda`` where no GPU is: each test is skipped and says why, or a stand-in runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import missing

ROOT = Path(__file__).parents[2]
ONE = "tests/cuda/test_cuda_device.py"
pytestmark = pytest.mark.skipif(missing() is None, reason="this machine has a GPU")


def pytest_of(*arguments, device=None):
    """What pytest says, alone in this process's place."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ATTNPROBE"))}
    environ |= {} if device is None else {"ATTNPROBE_TEST_DEVICE": device}
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-rs", "-p", "no:cacheprovider", *arguments, ONE]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_without_a_gpu_each_is_skipped_with_its_reason():
    said = pytest_of("-m", "cuda", "-k", "blocks or tf32")
    assert f"{missing()}; ATTNPROBE_TEST_DEVICE=cpu lets the CPU stand in" in said and " passed" not in said


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "pretended"])
def test_a_stand_in_runs_them(device):
    said = pytest_of("-m", "cuda", "-k", "blocks_cover", device=device)
    assert "1 passed" in said, said


@pytest.mark.slow
def test_a_stand_in_that_there_is_not():
    assert "choose cpu or pretended" in pytest_of("-m", "cuda", "-k", "blocks_cover", device="tpu")


@pytest.mark.slow
def test_the_ordinary_suite_runs_a_share_of_them():
    said = pytest_of("-k", "blocks or sleep or timed")
    assert "1 passed" in said and "deselected" in said and "skipped" not in said, said
