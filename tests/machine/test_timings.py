"""Seconds by stage, and durations in words."""

import time

import pytest

from attnprobe.machine.timings import Timings, duration


def test_an_inner_stage_is_not_counted_in_the_outer_one():
    timings = Timings()
    with timings("outer"):
        with timings("inner"):
            time.sleep(0.05)
        with timings("inner"):
            time.sleep(0.05)
    assert timings.seconds["inner"] >= 0.1 > 0.05 > timings.seconds["outer"]


def test_a_stage_that_raises_is_counted_and_closed():
    timings = Timings()
    with pytest.raises(ValueError), timings("stage"):
        time.sleep(0.02)
        raise ValueError
    time.sleep(0.02)
    with timings("other"):
        pass
    assert timings.seconds["stage"] >= 0.02 and timings.seconds["other"] < 0.02


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.1, "1 s"), (89.4, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h"), (12600, "3.5 h")],
)
def test_a_duration_has_the_unit_that_fits(seconds, words):
    assert duration(seconds) == words
