"""Two runs of bench side by side: rows of one run alone, what became of a status, how much rounds may differ."""

import pytest
from paths import GOLDEN

from attnprobe.errors import UsageError
from attnprobe.frame.metric import METRICS
from attnprobe.frame.records.read import read_records
from attnprobe.judge.chance import of_rounds
from attnprobe.judge.runs import compare_runs
from attnprobe.judge.times import noise
from attnprobe.judge.verdict import Difference
from attnprobe.judge.verdict import verdict as judge


@pytest.fixture
def records():
    return read_records(GOLDEN / "runs/bench")


def without(records, method, n):
    return [one for one in records if (one["method"], one["n"]) != (method, n)]


def test_rows_of_one_run_alone_are_missing_if_they_were_requested(records):
    a, b = without(without(records, "linear", 16), "exact", 32), without(records, "skyformer", 32)
    comparison = compare_runs(a, b)
    alone = [row for row in comparison.rows if row["metric"] is None]
    assert [(one["verdict"], one["method"], one["n"], one["reason"]) for one in alone] == [
        ("missing", "linear", 16, "only in B"),
        ("missing", "skyformer", 32, "only in A"),
        ("only in B", "exact", 32, "window 0; seed 0"),
    ]
    assert comparison.missing == alone[:2]
    assert comparison.notes == []
    shared = {(row["method"], row["n"]) for row in comparison.compared}
    assert not {("linear", 16), ("skyformer", 32), ("exact", 32)} & shared


def test_versions_that_differ_are_named_also_of_a_run_that_was_resumed(records):
    one = [record for record in records if record["requested"]][:1]
    assert compare_runs(one, one).notes == []
    later = [{**one, "torch": "9.9"} for one in records]
    torch = records[0]["torch"]
    assert compare_runs(records, later).notes == [f"torch {torch} in A, 9.9 in B"]
    assert compare_runs(records, records[:4] + later[4:]).notes == [f"torch {torch} in A, {torch} and 9.9 in B"]


def test_times_of_other_machines_are_refused(records):
    other = [{**one, "cpu": "another"} for one in records]
    with pytest.raises(UsageError, match="different machines: cpu .* in A, another in B"):
        compare_runs(records, other)
    with pytest.raises(UsageError, match="different machines: cpu .* and another in B"):
        compare_runs(records, records[:4] + other[4:])


def test_a_status_that_changes_is_worse_or_better_whatever_the_numbers_say(records):
    failed = [dict(one) for one in records]
    place = next(i for i, one in enumerate(failed) if (one["method"], one["n"]) == ("linear", 16))
    failed[place] |= {"status": "failed", "reason": "a bad day", "rows": []}
    for a, b, verdict, reason in (
        (records, failed, "worse", "ok in A, failed in B: a bad day"),
        (failed, records, "better", "failed in A, ok in B"),
    ):
        rows = compare_runs(a, b).compared
        changed = {(row["method"], row["n"], row["verdict"], row["reason"]) for row in rows if row["reason"]}
        assert changed == {("linear", 16, verdict, reason)}


@pytest.mark.parametrize(
    ("a", "b", "noise", "verdict"),
    [
        (2.3, 2.0, 0.2, "better"),
        (2.0, 2.3, 0.2, "worse"),
        (2.3, 2.0, 0.4, "undecided"),
        (2.0, 2.3, 0.4, "undecided"),
        (2.3, 2.2, 0.01, "same"),  # within the tolerance of 0.05
        (2.2, 2.3, 0.01, "same"),
        (2.0, 1.75, 0.25, "undecided"),  # as far as the noise
        (2.0, 1.75, 0.24, "better"),
        (2.3, 2.0, None, "undecided"),
    ],
)
def test_a_time_is_better_or_worse_beyond_the_noise_alone(a, b, noise, verdict):
    found, reason = judge(Difference(METRICS["ratio_to_exact"], a, b, of_rounds(noise)), 0.05, 0.05)
    assert found == verdict
    why = "one round has no spread" if noise is None else f"within the noise of the rounds, {noise:g}"
    assert reason == (why if verdict == "undecided" else "")


@pytest.mark.parametrize("more, verdict", [(2**20, "same"), (2**20 + 1, "worse")])
def test_memory_within_the_pages_of_an_allocator_is_the_same(more, verdict):
    memory = Difference(METRICS["peak_bytes"], 2.0**20, 2.0**20 + more, of_rounds(0.0))
    assert judge(memory, 0.05, 0.05)[0] == verdict


def test_the_noise_of_a_ratio_is_no_less_than_that_of_exact_attention_with_itself():
    quiet = {
        "ratio_to_exact": 2.0,
        "ratio_to_exact_spread": 0.1,
        "seconds": 4.0,
        "seconds_spread": 0.3,
        "noise_floor": 1.0,
    }
    loud = {**quiet, "ratio_to_exact_spread": 0.2, "seconds_spread": 0.5, "noise_floor": 0.75}
    assert noise("ratio_to_exact", (quiet, quiet)) == 0.2
    assert noise("ratio_to_exact", (quiet, loud)) == 0.5  # 0.25 of 2, above 0.1 + 0.2
    assert noise("ratio_to_exact", (quiet, {**loud, "noise_floor": 0.875})) == pytest.approx(0.3)
    assert noise("seconds", (quiet, loud)) == 0.8
    assert noise("ratio_to_exact", ({**quiet, "noise_floor": None}, {**loud, "noise_floor": None})) == pytest.approx(
        0.3
    )
    assert noise("ratio_to_exact", ({**quiet, "ratio_to_exact_spread": None}, loud)) is None
