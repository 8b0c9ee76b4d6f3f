"""Fused products: those of Triton's interpreter are torch's, and the choice of kernels is one of a list."""

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch
from fused_cases import wrong

from attnprobe import UsageError
from attnprobe.operators import SoftmaxAttention
from attnprobe.operators.fused import TILES, is_fused, kernels, tile_of

SUPPORT = Path(__file__).parents[1] / "support"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (pip install 'attnprobe[triton]')"
)


def release(package: str) -> tuple[int, ...]:
    """The first two numbers of an installed version; none where it is not installed."""
    with suppress(PackageNotFoundError):
        return tuple(map(int, version(package).split(".")[:2]))
    return ()


needs_interpreter = pytest.mark.skipif(
    release("triton") < (3, 9) and release("numpy") >= (2, 4),
    reason="the interpreter of older Tritons needs a numpy below 2.4",
)


def run(script: str, *arguments: str, **variables: str) -> dict:
    """What a script of the tests prints, in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    command = [sys.executable, "-W", "error::SyntaxWarning", str(SUPPORT / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_triton
@needs_interpreter
@pytest.mark.parametrize(("dtype", "same", "large"), [("float64", 1e-13, 1e-13), ("float32", 1e-5, 1e-2)])
def test_interpreted_products_are_those_of_torch(dtype, same, large):
    actual = run("interpreted.py", dtype)
    assert len(actual["differences"]) > 60
    assert wrong(actual, same, large) == {}


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("chip", ["80", "90"])
def test_kernels_compile_for_a_gpu_that_is_not_here(chip, tmp_path):
    """Machine code of an A100 or H100: on tensor cores, and within the shared memory by which tiles are chosen."""
    actual = run("compiled.py", chip, TRITON_CACHE_DIR=str(tmp_path))
    assert len(actual) == 2 * sum(map(len, TILES.values()))
    for name, facts in actual.items():
        assert facts["shared"] <= facts["expected"], name
        assert facts["tensor_cores"], name


def test_an_unknown_name_is_refused_with_the_list(monkeypatch):
    op = SoftmaxAttention(torch.zeros(1, 2, 4), torch.zeros(1, 5, 4), 0.5)
    monkeypatch.setenv("ATTNPROBE_KERNELS", "cuda")
    with pytest.raises(UsageError, match="ATTNPROBE_KERNELS 'cuda'.*torch, triton"):
        op @ torch.ones(1, 5, 1)


@pytest.mark.parametrize("value", ["", "torch", "triton"])
def test_torch_serves_a_cpu_whatever_is_chosen(monkeypatch, value):
    monkeypatch.setenv("ATTNPROBE_KERNELS", value)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    op = SoftmaxAttention(torch.zeros(1, 2, 4), torch.zeros(1, 5, 4), 0.5)
    assert kernels() == (value or "torch") and not is_fused(op)
    assert torch.equal(op @ torch.ones(1, 5, 1), torch.ones(1, 2, 1))


def test_triton_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setenv("ATTNPROBE_KERNELS", "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "triton", None)
    op = SoftmaxAttention(torch.zeros(1, 2, 4), torch.zeros(1, 5, 4), 0.5)
    with pytest.raises(UsageError, match=r"Triton is not installed; pip install 'attnprobe\[triton\]'"):
        op @ torch.ones(1, 5, 1)


def test_importing_the_package_imports_no_triton_kernels():
    code = "import sys, attnprobe.operators; sys.exit('attnprobe.operators.triton_kernels' in sys.modules)"
    environment = os.environ | {"ATTNPROBE_KERNELS": "triton"}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


@pytest.mark.parametrize(
    "has, p, rows", [(232448, 128, 128), (166912, 128, 64), (101376, 128, 32), (101376, 512, None)]
)
def test_a_tile_fits_the_shared_memory_of_a_gpu(monkeypatch, has, p, rows):
    """Of an H100, an A100 and a consumer's GPU."""
    device = torch.device("cuda")
    said = type("Properties", (), {"shared_memory_per_block_optin": has})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: said)
    tile = tile_of(torch.float64, p, device)
    assert (tile and tile.rows) == rows
    assert tile_of(torch.float16, p, device) is None
