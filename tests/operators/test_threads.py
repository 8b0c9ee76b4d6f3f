"""Jobs side by side: each once, in threads that share those of torch, and nothing of that is left afterwards."""

import threading
from functools import partial

import pytest
import torch

from attnprobe.operators.threads import one_thread, side_by_side

CPU = torch.device("cpu")


@pytest.fixture
def four():
    """Four threads of torch, and none of ours afterwards."""
    before, alive = torch.get_num_threads(), set(threading.enumerate())
    torch.set_num_threads(4)
    yield
    assert torch.get_num_threads() == 4 and set(threading.enumerate()) <= alive
    torch.set_num_threads(before)


def test_jobs_run_at_once_with_a_share_of_the_threads_and_the_callers_gradients(four):
    meet, seen = threading.Barrier(2, timeout=20), []

    def job(number):
        meet.wait()  # which one job alone would wait for in vain
        seen.append((number, torch.get_num_threads(), torch.is_grad_enabled(), threading.current_thread().name))

    with torch.no_grad():
        side_by_side([partial(job, number) for number in range(2)], CPU)
    assert sorted(number for number, *_ in seen) == [0, 1]
    assert all(threads == 2 and not gradients and "heads" in name for _, threads, gradients, name in seen)
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [4]


@pytest.mark.parametrize("device, jobs", [("meta", 3), ("cpu", 1)])
def test_elsewhere_and_alone_they_run_in_the_callers_thread_in_order(four, device, jobs):
    seen = []

    def job(number):
        return seen.append((number, threading.get_ident()))

    side_by_side([partial(job, number) for number in range(jobs)], torch.device(device))
    assert seen == [(number, threading.get_ident()) for number in range(jobs)]


def test_the_error_of_a_job_is_raised_and_jobs_that_wait_are_not_begun(four):
    seen, go = [], threading.Event()

    def wrong():
        go.wait(20)
        raise ValueError("no")

    def slow():
        go.set()
        seen.append(1)

    with pytest.raises(ValueError, match="no"):
        side_by_side([wrong, slow, slow, slow, *[partial(seen.append, 1)] * 200], CPU)
    assert torch.get_num_threads() == 4


def test_one_thread_is_one_thread_and_put_back_after_an_error(four):
    with pytest.raises(ValueError), one_thread():
        assert torch.get_num_threads() == 1
        raise ValueError
    assert torch.get_num_threads() == 4
