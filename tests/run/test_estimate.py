"""The speed that estimates divide by is of processor time, so that the load of the machine does not count."""

from time import sleep

import torch

from attnprobe.run.estimate import speed

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
