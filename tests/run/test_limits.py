"""What a method may do in an attempt: raise anything, go on too long."""

import time
from contextlib import suppress
from importlib import import_module

import pytest
import torch

from attnprobe.errors import NotFinite, Unsupported, UsageError
from attnprobe.frame.records.read import read_records
from attnprobe.measure.error import ErrorRequest
from attnprobe.operators.blocks import BLOCK_MEMORY
from attnprobe.run.limits import CellTimeout, attempt, time_limit


class Mute(Exception):
    def __str__(self):
        raise GeneratorExit


RAISED = {
    "BaseException: all": BaseException("all"),
    "GeneratorExit": GeneratorExit(),
    "SystemExit: 1": SystemExit(1),
    "StopIteration: 3": StopIteration(3),
    "Mute": Mute(),
    "UsageError: misused": UsageError("misused"),
    "ValueError: one": ValueError("one\ntwo"),
}


@pytest.mark.parametrize(("reason", "error"), RAISED.items(), ids=[type(one).__name__ for one in RAISED.values()])
@pytest.mark.parametrize("limit", [None, 60])
def test_whatever_is_raised_has_failed(reason, error, limit):
    with attempt(limit) as tried:
        raise error
    assert tried.state == {"status": "failed", "reason": reason}


def test_what_cannot_be_is_skipped_and_what_is_not_finite_diverged():
    for error, status in ((Unsupported("not here"), "skipped"), (NotFinite("not here"), "diverged")):
        with attempt() as tried:
            raise error
        assert tried.state == {"status": status, "reason": "not here"} and not tried.ok
    with attempt() as tried:
        pass
    assert tried.ok and tried.state == {"status": "ok", "reason": None}


def test_an_interruption_passes():
    with pytest.raises(KeyboardInterrupt), attempt(60):
        raise KeyboardInterrupt


def stubborn():
    while True:
        with suppress(Exception):
            time.sleep(0.01)


def swallowing():
    with suppress(BaseException):
        time.sleep(5)


def renaming():
    try:
        time.sleep(5)
    except BaseException as error:
        raise Unsupported("cannot run here") from error


def twice():
    """It goes on once more after the first alarm."""
    swallowing()
    time.sleep(60)


@pytest.mark.parametrize("late", [stubborn, swallowing, renaming, twice])
def test_what_takes_too_long_has_failed(late):
    begin = time.monotonic()
    with attempt(0.05) as tried:
        late()
    assert time.monotonic() - begin < 5
    assert tried.state == {"status": "failed", "reason": "timeout: took longer than --cell-timeout 0.05"}


def test_a_limit_that_ends_before_its_block_begins_fails_the_block():
    with attempt(1e-9) as tried:
        time.sleep(5)
    assert tried.state == {"status": "failed", "reason": "timeout: took longer than --cell-timeout 1e-09"}


def test_no_alarm_is_left_behind():
    with attempt(0.05):
        time.sleep(5)
    time.sleep(1.2)  # it would come again
    with pytest.raises(CellTimeout), time_limit(0.05):
        time.sleep(5)
    with time_limit(0.3):
        pass
    time.sleep(0.4)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 0.0, 1e308])
def test_a_limit_that_is_none_is_refused(seconds):
    with pytest.raises(UsageError, match=r"cell-timeout=.*: choose seconds above 0"):
        ErrorRequest(cell_timeout=seconds)
    for fine in (None, 0.01, 9e6):
        assert ErrorRequest(cell_timeout=fine).cell_timeout == fine


@pytest.mark.parametrize("command, place", [("spectrum", "spectra"), ("condition", "exact_matrices")])
def test_a_device_out_of_memory_gets_another_try_with_smaller_blocks(run, qkv, monkeypatch, command, place):
    module = import_module(f"attnprobe.measure.{command}.measure")
    good, left = getattr(module, place), [2]

    def hungry(*args, **options):
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("the device is full")
        return good(*args, **options)

    monkeypatch.setattr(module, place, hungry)
    assert run(command, "--qkv", qkv, "--device", "cpu", "--out", "r")[0] == 0 and BLOCK_MEMORY.halvings == 2
    assert {one["status"] for one in read_records("r")} <= {"ok", "skipped"}
    left[0] = 5
    code, _, err = run(command, "--qkv", qkv, "--device", "cpu", "--out", "s")
    assert code == 4 and BLOCK_MEMORY.halvings == 6, err
    assert "the device is full" in next(one["reason"] for one in read_records("s") if one["status"] == "failed")
