"""Passes over differences on another device than the CPU: heads together, and nothing read back."""

import pytest
import torch
from counting import Counting, Reading
from inputs import make
from pretend_device import AWAY, pretending

from attnprobe import exact
from attnprobe.methods import approximate
from attnprobe.operators import blocks
from attnprobe.operators.linalg.differences import Differences
from attnprobe.operators.linalg.krylov import start_block
from attnprobe.qkv import QKV

F64 = torch.float64
N = 90
METHODS = ("performer", "window", "topk", "amm", "informer", "vmean", "skeinformer")


def passes(h, counted=None):
    """A first pass, and a later one in which the first head of the first matrix is done."""
    qkv = make(n=N, h=h)
    ops = [None, *(approximate(name, qkv, 12).operator for name in METHODS)]
    v1, _ = start_block(N, 16, 0, F64, torch.device("cpu"))
    which = torch.arange(1, len(ops) * h)
    x = torch.randn(len(which), N, 16, generator=torch.Generator().manual_seed(0), dtype=F64)
    here = Differences(exact(qkv), ops)
    expected = here.first(v1), here.normal(x, which)
    with pretending():
        away = QKV(*(t.to(AWAY) for t in (qkv.q, qkv.k, qkv.v)))
        there, v1, x = Differences(exact(away), [op and op.on(AWAY) for op in ops]), v1.to(AWAY), x.to(AWAY)
    with pretending(), counted or Counting():
        got = there.first(v1), there.normal(x, which)
    return expected, got


@pytest.mark.parametrize(
    "bytes_", [2**28, 8 * N * 40 * 2, pytest.param(1, marks=pytest.mark.slow)], ids=["whole", "two heads", "row by row"]
)
def test_heads_together_give_the_numbers_of_heads_apart(bytes_, monkeypatch):
    monkeypatch.setattr(blocks, "UNTOLD", bytes_)
    monkeypatch.setattr(blocks, "LEAST_ROWS", 40)
    (first, normal), (of_first, of_normal) = passes(3)
    assert (of_normal.held - normal).abs().max() <= 1e-12 * normal.abs().max()
    for name, value in vars(first).items():
        assert (getattr(of_first, name).held - value).abs().max() <= 1e-12 * value.abs().max(), name


def test_a_pass_over_many_heads_is_as_many_operations_as_over_two():
    calls = []
    for h in (2, 7):
        with Counting() as counted:
            pass
        passes(h, counted)
        calls.append(counted.calls)
    assert calls[0] == calls[1] and sum(calls[0].values()) > 100


def test_a_pass_reads_nothing_back():
    reading = Reading()
    passes(2, reading)
    assert reading.count == 0
