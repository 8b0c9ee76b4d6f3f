"""The numbers of a small run of every command are those that are kept, but for rounding."""

import pytest
from golden import values
from thinned import others_slow

SHOWN = 12  # differences in a message
KNOWN, ROUNDING = values.read(), values.read_rounding()
# `condition-steps` has every kind of number of `condition`, of half the heads and iterations; `compare-decode` compares
SLOW = ("condition", "compare-seeds")
EVERY = others_slow([(runs,) for runs in values.together()], lambda runs: runs[0][0] not in SLOW)


@pytest.mark.parametrize("runs", EVERY, ids="+".join)
def test_no_number_has_moved(runs, here):  # in this process: no time is compared
    measured = values.measured(runs)
    for run in runs:
        lines = values.differences(measured[run], KNOWN.get(run, {}), ROUNDING.get(run, {}))
        rest = f"\nand {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        message = "\n".join(lines[:SHOWN]) + rest
        assert not lines, f"{run}: a number moved; prove why, then cd tests; python -m golden.values\n{message}"


def test_every_run_is_kept():
    assert sorted(run for runs in values.together() for run in runs) == sorted(KNOWN)


@pytest.mark.parametrize("run", ["error", "inject-decode", "stability", "select-topk"])
def test_a_number_that_moves_is_named(run):
    known, rounding = KNOWN[run], ROUNDING.get(run, {})
    assert values.differences(known, known, rounding) == []
    for key, text in list(known.items())[::397]:
        place = " ".join([*key[0], key[1]])
        for other in ("-1e30", "another"):
            assert values.differences({**known, key: other}, known, rounding) == [f"{place}: {other}, was {text}"]
        less = {known_key: value for known_key, value in known.items() if known_key != key}
        assert values.differences(less, known, rounding) == [f"{place}: absent, was {text}"]
        assert values.differences(known, less, rounding) == [f"{place}: {text}, was absent"]


def test_rounding_moves_no_number_by_more_than_was_seen():
    place = ("head=0", "method=linear")
    known = {(place, "output_spectral"): "0.5", (place, "cond"): "40000"}
    rounding = {("linear", "cond"): (4.0, 1e-3)}
    moved = {(place, "output_spectral"): "0.5000004", (place, "cond"): "40030"}
    assert values.differences(moved, known, rounding) == []
    moved = {(place, "output_spectral"): "0.500001", (place, "cond"): "40040"}
    assert len(values.differences(moved, known, rounding)) == 2
