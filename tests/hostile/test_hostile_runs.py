"""Run folders of others end in success or in one line, and cost nothing outside of them."""

import pytest
from hostile_runs import Case, broken

QUICK = (1, 14, 18, 69)  # without figures


@pytest.fixture(autouse=True)
def alone(no_hub, monkeypatch):
    monkeypatch.setenv("ATTNPROBE_CACHE_SIZE", "0")


@pytest.mark.parametrize("numbers", [QUICK, pytest.param(range(600), marks=pytest.mark.slow)], ids=["quick", "all"])
def test_a_hostile_folder_ends_in_one_line_and_touches_nothing_else(numbers, tmp_path):
    faults = []
    for number in numbers:
        (tmp_path / str(number)).mkdir()
        faults += broken(Case(number), tmp_path / str(number))
    assert not faults, "\n".join(faults)
