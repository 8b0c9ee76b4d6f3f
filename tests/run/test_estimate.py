"""Estimates divide work by a speed of the processor, which other programs do not change, and count measured rows."""

from functools import partial
from time import sleep

import pytest
import torch
from safetensors.torch import save_file

from attnprobe.experiments import experiment
from attnprobe.run.estimate import estimate_cells, speed

WAIT = 0.05  # seconds, ten times those of a product


def test_the_time_in_which_other_programs_run_does_not_count(monkeypatch):
    product = torch.mm

    def delayed(x, y):
        sleep(WAIT)
        return product(x, y)

    monkeypatch.setattr(torch, "mm", delayed)
    assert speed() > 512**3 / WAIT


def test_a_dry_run_says_its_speed(run, qkv):
    code, out, _ = run("error", "--qkv", qkv, "--d", 8, "--dry-run")
    assert code == 0 and " of it before the first cell, at " in out and " GFLOP/s measured now; " in out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("error", {"methods": ("topk",), "rows": True}),
        ("error", {"methods": ("topk",), "matrix": True}),
        ("audit", {"methods": ("vattention",), "repeats": 10}),
    ],
)
def test_the_work_of_some_queries_is_their_share(tmp_path, command, words):
    """The work of 64 of 1024 queries is far below that of all: each of them counts with the keys of all tokens."""
    path = tmp_path / "qkv.safetensors"
    save_file({name: torch.ones(2, 1024, 8) for name in "qkv"}, path)
    request = partial(experiment(command).request, qkv=str(path), d=(16,), **words)
    every, some = (
        sum(cell.work for cell in estimate_cells(experiment(command).cells, request(queries=queries)))
        for queries in (None, "last:64")
    )
    assert 0 < some < every / 5
