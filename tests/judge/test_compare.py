"""`attnprobe compare`: pairs, standard errors worked by hand, verdicts, refused sources, formats, exit codes."""

import json
import math
import re
import statistics
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from frames import compared, frame_of
from judged_cells import METRIC, SOURCE, cell, run
from safetensors.torch import save_file

from attnprobe.errors import UsageError
from attnprobe.frame.metric import METRICS as TABLE
from attnprobe.frame.records.file import LOWER_BOUND
from attnprobe.frame.records.read import read_records
from attnprobe.judge.runs import best_cells, directed, judged_by, refuse_metric, refuse_other_sources
from attnprobe.measure import EXPERIMENTS, experiment
from attnprobe.measure.error import EXPERIMENT


def redrawn(*values, **fields):
    """A run of other random numbers with the same seed."""
    return run(*values, **fields, draws_hash="two")


def only(a, b, *metrics, **options):
    (row,) = compared(a, b, metrics, **options).rows
    return row


# --- numbers


def test_the_differences_are_paired_and_clustered_by_window():
    """Windows that lie far apart, differences that do not: d_w = 0.5, 1.5, so s.e. = sd/√2 = 0.5."""
    row = only(run([1.0, 3.0], [101.0, 103.0]), redrawn([1.0, 4.0], [103.0, 104.0]))
    assert (row["a"], row["b"], row["difference"], row["ratio"]) == (52.0, 53.0, 1.0, 53 / 52)
    assert row["se"] == pytest.approx(statistics.stdev([0.5, 1.5]) / math.sqrt(2), rel=1e-14) == 0.5
    assert [row[name] for name in ("paired", "cells", "values", "windows", "heads")] == ["cells", 2, 4, 2, 2]
    assert (row["status_a"], row["status_b"], row["metric"]) == ("ok", "ok", METRIC)


def test_heads_and_seeds_do_not_shrink_the_error_bar():
    shared = {"options": {"share_heads": True}}
    few = only(run([1.0], [2.0], [4.0], **shared), redrawn([2.0], [2.5], [8.0], **shared))
    many = only(
        [c for s in range(5) for c in run([1.0] * 7, [2.0] * 7, [4.0] * 7, seed=s, **shared)],
        [c for s in range(5) for c in redrawn([2.0] * 7, [2.5] * 7, [8.0] * 7, seed=s, **shared)],
    )
    assert few["se"] == pytest.approx(many["se"], rel=1e-14)
    assert few["se"] == pytest.approx(statistics.stdev([1.0, 0.5, 4.0]) / math.sqrt(3), rel=1e-14)
    assert many["cells"] == 15 and many["values"] == 105


def test_the_order_of_the_records_and_of_the_pairs_does_not_matter():
    a, b = run([1.0, 3.0], [7.0, 8.0], [2.0, 2.5]), run([1.5, 3.0], [7.0, 9.0], [2.0, 2.0])
    assert only(a, b) == only(a[::-1], b) == only(a, b[1:] + b[:1])
    assert only(b, a)["difference"] == -only(a, b)["difference"]


def test_seeds_that_differ_are_paired_by_window():
    """Window means 2, 102 against 2.5, 103.5 of other seeds: d_w = 0.5, 1.5."""
    a = run([1.0, 3.0], [101.0, 103.0], seed=0)
    b = [cell([x, x], window=w, seed=s) for w, x in ((0, 2.5), (1, 103.5)) for s in (1, 2)]
    comparison = compared(a, [*b, cell([7.0, 7.0], window=2, seed=1)])
    row, alone = comparison.rows
    assert (row["paired"], row["difference"], row["a"], row["b"]) == ("windows", 1.0, 52.0, 53.0)
    assert row["se"] == pytest.approx(0.5, rel=1e-14)
    assert (row["seeds_a"], row["seeds_b"], row["cells"]) == ("0", "1-2", 4)
    assert (alone["verdict"], alone["cells"], alone["reason"]) == ("only in B", 1, "window 2; seed 1; heads 0-1")
    assert alone["metric"] is None and alone["a"] is None


def test_runs_that_share_no_window_add_their_variances():
    a, b = run([1.0], [3.0]), [cell([2.0], window=5), cell([8.0], window=6), cell([5.0], window=7)]
    comparison = compared(a, b)
    (row,) = comparison.rows
    ses = statistics.stdev([1, 3]) / math.sqrt(2), statistics.stdev([2, 8, 5]) / math.sqrt(3)
    assert row["paired"] is None and row["difference"] == 3.0
    assert row["se"] == pytest.approx(math.hypot(*ses), rel=1e-14)


@pytest.mark.parametrize("shift", [0.0, 1e-13])
def test_windows_that_do_not_vary_give_no_test(shift):
    """Equal differences, also up to rounding, would give p = 0 from two windows, and an interval without a width."""
    equal = "equal differences in 2 windows: no variance to test by"
    apart = "equal values in the windows of each run: no variance to test by"
    a = run([1.0], [1.0])
    other = [cell([2.0], window=5), cell([2.0 + shift], window=6)]
    for b, why in ((redrawn([2.0], [2.0 + shift]), equal), (other, apart)):
        row = only(a, b)
        assert (row["verdict"], row["reason"]) == ("undecided", why)
        assert [row[name] for name in ("test", "p", "low", "high", "se")] == [None] * 5
    row = only(a, redrawn([1.02], [1.02 + shift]))  # within the tolerance, which no interval shows
    assert (row["verdict"], row["reason"]) == ("undecided", equal)
    assert only(run([0.5, 1.5], [1.0, 3.0]), redrawn([1.5, 0.5], [3.0, 1.0 + shift]))["verdict"] == "same"
    a, b = run([1.0, 2.0], [1.0, 2.0]), [cell([1.5, 1.5], window=5), cell([1.5, 1.5 + shift], window=6)]
    assert (only(a, b)["p"], only(a, b)["verdict"]) == (None, "same")


def test_a_difference_that_is_repeated_exactly_is_no_evidence(command, write):
    """Counts of two methods that draw nothing are the same in each window; many windows are no more of a test."""
    metrics = ("visited_fraction", "bad_rows", "kv_read")

    def made(method, value):
        at = {"method": method, "draws_hash": None, "metrics": {metric: [value] * 2 for metric in metrics}}
        return [cell(window=window, **at) for window in range(9)]

    write("a", made("topk", 4.0) + made("window", 8.0))
    code, _, err = command("compare", "a", "--pair", "topk=window", "--metric", ",".join(metrics))
    assert code == 0 and err.splitlines()[-1] == "attnprobe: 3 lines compared: 3 undecided"


def test_runs_that_share_no_window_have_no_test_where_one_has_no_value():
    a, b = run([1.0, 2.0], [1.5, 2.5]), [cell([None, None], window=w) for w in (5, 6)]
    row = only(a, b)
    assert (row["a"], row["b"], row["test"], row["verdict"]) == (1.75, None, None, "worse")
    half = [cell([None, 2.0], window=5), cell([3.0, 4.0], window=6)]
    assert only(a, half)["b"] == 3.0 and only(half, a)["a"] == 3.0


def test_a_mean_beyond_the_largest_number_is_no_value():
    a, b = run([1.0, 2.0], [1.0, 2.0]), run([1.5e308, 1.6e308], [1.0, 3.0])
    row = only(a, b)
    assert (row["b"], row["difference"]) == (None, None)


def test_heads_that_both_runs_have_are_paired_and_the_others_are_listed():
    """A has heads 0-11 and B 0-7, in parts of four; a time of twelve heads is none of eight."""
    values = [float(head) for head in range(12)]
    a = [cell(values, seconds=3.0)]
    b = [cell([x + 1 for x in values[i : i + 4]], heads=list(range(i, i + 4)), seconds=1.0) for i in (0, 4)]
    comparison = compared(a, b)
    row, alone = comparison.rows
    assert (row["paired"], row["a"], row["b"], row["values"], row["heads"]) == ("cells", 3.5, 4.5, 8, 8)
    assert (alone["verdict"], alone["reason"], alone["cells"]) == ("only in A", "window 0; seed 0; heads 8-11", 1)
    assert comparison.notes == []
    assert [one["difference"] for one in compared(b, a).rows] == [-1.0, None]
    with pytest.raises(UsageError, match="no line of both has a number in seconds"):
        compared(a, b, ["seconds"])
    assert only([cell([1.0, 2.0])], [cell([2.0, 3.0], heads=[2, 3])])["paired"] is None


def test_the_standard_error_is_null_without_a_test_of_windows():
    """Beside p of heads, or beside a verdict without chance, a standard error of windows contradicts."""
    a, b = run([1.0], [3.0]), [cell([2.0], window=5)]
    runs = [(run([1.0], [2.0]), run([2.0], [3.5])), (a, b), (run([1.0] * 6, [3.0] * 6), redrawn([2.0] * 6, [3.5] * 6))]
    for (first, other), test in zip(runs, (None, None, "heads"), strict=True):
        row = only(first, other)
        assert (row["se"], row["test"]) == (None, test)
    comparison = compared(run([0.0]), run([0.5]))
    (zero,) = comparison.regressions
    assert (zero["ratio"], zero["difference"], zero["verdict"]) == (None, 0.5, "worse")


def test_means_are_over_what_both_have():
    """Of four heads one is null in both; a window of A that B lacks is no part of its mean."""
    a = run([1.0, None, 3.0, 5.0], [100.0] * 4)
    row, alone = compared(a, run([1.0, None, 3.0, 5.0])).rows
    assert (row["a"], row["b"], row["values"], row["cells"], row["verdict"]) == (3.0, 3.0, 3, 1, "same")
    assert (alone["verdict"], alone["reason"]) == ("only in A", "window 1; seed 0; heads 0-3")


def test_a_run_equals_itself():
    records = run([1.0, 2.0], [3.0, 5.0]) + run([7.0, None], method="vmean", d=None) + run([0.5, 0.5], d=32)
    comparison = compared(records, records)
    assert [row["verdict"] for row in comparison.rows] == ["same"] * 3 and comparison.regressions == []
    assert all(row["difference"] == 0 and row["ratio"] == 1 for row in comparison.rows)
    assert [row["d"] for row in comparison.rows] == [16, 32, None] and comparison.rows[2]["reference"]


# --- verdicts


@pytest.mark.parametrize(("after", "verdict"), [(1.25, "same"), (1.3, "worse"), (0.75, "same"), (0.7, "better")])
def test_the_tolerance_is_a_share_of_a(after, verdict):
    assert only(run([1.0]), run([after]), tolerance=0.25)["verdict"] == verdict
    assert only(run([64.0]), run([64.0 * after]), tolerance=0.25)["verdict"] == verdict


def test_without_chance_the_tolerance_decides():
    """The same cells with the same draws, or without any: whatever differs is of the program."""
    assert only(run([1.0], [1.0]), run([1.0], [3.0]))["verdict"] == "worse"
    nothing = {"draws_hash": None}  # of a method that draws nothing
    row = only(run([1.0], [1.0], **nothing), run([1.0], [1.2], **nothing))
    assert (row["verdict"], row["test"], row["p"], row["freedom"], row["reason"]) == ("worse", None, None, None, None)
    unknown = [{name: fact for name, fact in one.items() if name != "draws_hash"} for one in run([1.0], [1.0])]
    after = [{**one, "metrics": {METRIC: [value]}} for one, value in zip(unknown, (2.0, 3.0), strict=True)]
    assert only(unknown, after)["test"] == "windows"


def test_other_draws_of_several_windows_are_tested_by_student():
    """d_w = 1, 2 and then 0, 2, 1: t = 3 with one degree of freedom, and √3 with two."""
    row = only(run([1.0], [1.0]), redrawn([2.0], [3.0]))
    assert (row["test"], row["freedom"], row["verdict"]) == ("windows", 1, "undecided")
    assert row["p"] == row["p_adjusted"] == pytest.approx(1 - 2 / math.pi * math.atan(3.0), rel=1e-12)
    assert row["reason"] == "p = 0.20 over 2 windows"
    row = only(run([1.0], [1.0], [1.0]), redrawn([1.0], [3.0], [2.0]))
    assert row["p"] == pytest.approx(1 - math.sqrt(3 / 5), rel=1e-12) and row["freedom"] == 2
    a, sure = run([1.0], [1.0], [1.0]), redrawn([2.0], [2.1], [2.2])
    assert only(a, sure)["verdict"] == "worse" and only(sure, a)["verdict"] == "better"
    assert only(a, sure, level=0.001)["verdict"] == "undecided"
    assert only(a, redrawn([1.0], [1.001], [1.0]))["verdict"] == "same"
    row = only(a, redrawn([1.0], [1.09], [1.0]))  # of 0.05, 0.03 are within; its interval is not
    assert row["difference"] < 0.05 < row["high"]
    assert (row["verdict"], row["reason"]) == ("undecided", "its interval is wider than the tolerance")


def test_other_draws_of_one_window_are_tested_over_its_heads():
    heads = [1.0 + head / 8 for head in range(12)]
    row = only(run(heads), redrawn([2 * value for value in heads]))
    assert (row["test"], row["freedom"], row["se"], row["verdict"]) == ("heads", None, None, "worse")
    assert row["p"] == 2 / 2**12  # of all exchanges only that of no pair, and of every one, differ by as much
    mixed = [value + (0.5 if head % 2 else -0.3) for head, value in enumerate(heads)]
    row = only(run(heads), run(mixed, seed=1))
    assert (row["paired"], row["verdict"]) == ("windows", "undecided")
    assert row["reason"] == f"p = {row['p']:.2f} over 12 heads of one window"
    few = only(run([1.0, 1.0]), redrawn([9.0, 9.0]))
    assert (few["p"], few["verdict"]) == (0.5, "undecided")  # two heads show nothing


def test_other_draws_of_several_windows_are_tested_over_all_their_heads():
    """2 windows of 6 heads are 12 pairs, 3 of 6 are 18; of these, 9999 exchanges and the identity are tried."""
    a = run([1.0] * 6, [3.0] * 6)
    row = only(a, redrawn([2.0] * 6, [3.5] * 6))
    assert (row["test"], row["freedom"], row["p"], row["verdict"]) == ("heads", None, 2 / 2**12, "worse")
    row = only(a, run([2.0] * 6, [2.0] * 6, seed=1))
    assert (row["paired"], row["difference"], row["verdict"]) == ("windows", 0, "undecided")  # 1 more, 1 less
    row = only(a, run([2.0] * 6, [2.25] * 6, seed=1))
    assert row["reason"] == f"p = {row['p']:.2f} over 12 pairs of heads in 2 windows"
    for seed in (0, 1):  # seeds that differ, and the same seed with other draws
        row = only(run(*[[1.0] * 6] * 3), redrawn(*[[2.0] * 6] * 3, seed=seed))
        assert (row["test"], row["p"], row["verdict"]) == ("heads", 1e-4, "worse")

    def seeds(*values):
        return [one for seed, value in enumerate(values) for one in redrawn([value] * 3, seed=seed)]

    row = only(run([1.0] * 3) + run([1.0] * 3, seed=1), seeds(2.0, 2.0))  # pairs of one window and two seeds
    assert (row["test"], row["p"], row["values"]) == ("heads", 2 / 2**6, 6)


@pytest.mark.parametrize(("windows", "heads", "test"), [(8, 1, "windows"), (2, 2, "windows"), (2, 3, "heads")])
def test_the_number_of_rows_does_not_choose_the_test(windows, heads, test):
    """Windows decide where each has one value, or where fewer than 6 pairs cannot."""
    a = [[0.5] * heads] * windows
    b = [[1.0 + window / 50 + head / 70 for head in range(heads)] for window in range(windows)]

    def rows(count, made, values):
        return [one for d in range(count) for one in made(*values, d=d + 1)]

    p = set()
    for count in (1, 7):
        found = compared(rows(count, run, a), rows(count, redrawn, b)).rows
        assert {(row["test"], row["freedom"]) for row in found} == {(test, windows - 1 if test == "windows" else None)}
        p |= {row["p"] for row in found}
    assert len(p) == 1


def test_too_few_pairs_for_the_rows_are_said():
    a, b = ([one for d in (1, 2) for one in made([error] * 6, d=d)] for made, error in ((run, 1.0), (redrawn, 2.0)))
    few = compared(a, b).rows
    assert {(row["test"], row["verdict"], row["reason"]) for row in few} == {
        ("heads", "undecided", "p = 0.062 over 6 heads of one window, too few for 2 lines")
    }
    assert (
        only(run([1.0] * 5), redrawn([2.0] * 5))["reason"] == "p = 0.062 over 5 heads of one window, too few for 1 line"
    )


@pytest.mark.parametrize(("heads", "rows"), [(6, 1), (7, 3), (8, 6), pytest.param(10, 25, marks=pytest.mark.slow)])
def test_how_many_rows_the_heads_of_one_window_can_decide(heads, rows):
    """2^(h-1)/20, as the guide says."""

    def pairs(count):
        return [run([1.0] * heads, d=d + 1)[0] for d in range(count)]

    def other(count):
        return [redrawn([2.0] * heads, d=d + 1)[0] for d in range(count)]

    verdicts = [{row["verdict"] for row in compared(pairs(count), other(count)).rows} for count in (rows, rows + 1)]
    assert verdicts == [{"worse"}, {"undecided"}]


def test_one_window_that_gives_no_test_is_undecided():
    def reason(*runs):
        return (row := only(*runs))["verdict"] == "undecided" and row["p"] is None and row["reason"]

    assert reason(run([1.0]), redrawn([9.0])) == "one text window"
    a, b = run([1.0] * 12), run([8.0] * 12, seed=1) + run([9.0] * 12, seed=2)
    assert reason(a, b) == "one text window, and other numbers of seeds: 1 in A, 2 in B"
    shared = {"options": {"share_heads": True}}  # one draw for all heads: they are no twelve
    expected = "one text window, whose heads share their draws"
    assert reason(run([1.0] * 12, **shared), redrawn([2.0] * 12, **shared)) == expected
    each = only(a + run([1.5] * 12, seed=9), b)  # two seeds each
    assert (each["test"], each["a"], each["b"], each["verdict"]) == ("heads", 1.25, 8.5, "worse")
    two = only(run([1.0] * 12, [2.0] * 12, **shared), redrawn([2.0] * 12, [3.5] * 12, **shared))
    assert (two["test"], two["reason"]) == ("windows", "p = 0.13 over 2 windows, whose heads share their draws")
    assert reason(run([1.0]), [cell([2.0], window=5)]) == "one text window, and no cell in both runs"


def test_a_method_of_a_user_is_named_where_p_rests_on_draws_of_each_head():
    mine = {"method": "mine.py:fn", "method_file": {"file": "mine.py"}}
    a, b = run([1.0] * 6, **mine), redrawn([2.0] * 6, **mine)
    says = "mine.py:fn: if its heads share random numbers, p is too small; then give it an option share_heads=true"
    assert compared(a, b).notes == compared(a + run([1.0] * 6, layer=1, **mine), b).notes == [says]
    assert compared(a, run([2.0] * 6, **mine)).notes == []  # the same draws: no test
    shared = {**mine, "options": {"share_heads": True}}
    assert compared(run([1.0] * 6, **shared), redrawn([2.0] * 6, **shared)).notes == []
    assert compared(run([1.0] * 6), redrawn([2.0] * 6)).notes == []


def test_p_values_are_corrected_over_the_rows_of_a_table():
    """By hand: the smaller of two p-values is doubled, the larger stays; another layer is another table."""
    a = run([1.0] * 12) + run([1.0] * 12, d=32) + run([1.0] * 12, layer=1) + run([1.0] * 12, d=64, draws_hash=None)
    mixed = [2.0] * 8 + [0.5] * 4
    b = redrawn([2.0] * 12) + redrawn(mixed, d=32) + redrawn([2.0] * 12, layer=1)
    rows = compared(a, b + run([2.0] * 12, d=64, draws_hash=None)).rows
    first, second, certain, other = rows
    assert first["p"] == other["p"] == 2 / 2**12 and certain["p"] is None
    assert first["p_adjusted"] == 2 * first["p"] and other["p_adjusted"] == other["p"]
    assert second["p_adjusted"] == second["p"] > first["p"] and second["verdict"] == "undecided"


def rounded(values, rows, **fields):
    """A run of one window in which heads have rounded rows."""
    return [cell(values, metrics={METRIC: list(values), "rounded_rows": list(rows)}, **fields)]


def test_what_rounded_rows_carry_is_judged_by_the_median():
    """Thread counts move the error of a head with rounded rows at will."""
    rows = [0] * 5 + [3]
    row = only(rounded([1.0, 1.1, 1.2, 1.3, 1.4, 80.0], rows), rounded([1.0, 1.1, 1.2, 1.3, 1.4, 95.0], rows))
    assert (row["statistic"], row["verdict"], row["difference"]) == ("median", "same", 0.0)
    assert row["a"] == pytest.approx(1.25)
    row = only(rounded([1.0, 1.1, 1.2, 1.3, 1.4, 80.0], rows), rounded([2.0, 2.1, 2.2, 2.3, 2.4, 10.0], rows))
    assert (row["statistic"], row["verdict"]) == ("median", "worse")


def test_the_windows_that_are_tested_are_those_that_a_and_b_are_means_of():
    """Heads that share their draws have one difference a window: that of the medians, whose mean is tested."""
    rows, options = [0] * 5 + [3], {"share_heads": True}
    a, b = (
        [
            cell(
                [*x, 80.0], window=w, metrics={METRIC: [*x, 80.0], "rounded_rows": rows}, options=options, draws_hash=h
            )
            for w, x in enumerate(values)
        ]
        for h, values in (
            ("a", ([1.0, 1.1, 1.2, 1.3, 1.4], [3.0, 3.0, 3.0, 3.0, 3.0], [1.0, 1.0, 1.0, 1.0, 1.0])),
            ("b", ([2.0, 2.1, 2.2, 2.3, 2.4], [3.5, 3.5, 3.5, 3.5, 3.5], [9.0, 9.0, 9.0, 9.0, 9.0])),
        )
    )
    row = only(a, b)
    medians = np.array([1.25, 3.0, 1.0]), np.array([2.25, 3.5, 9.0])
    assert (row["statistic"], row["test"]) == ("median", "windows")
    assert (row["a"], row["b"]) == (pytest.approx(medians[0].mean()), pytest.approx(medians[1].mean()))
    assert (row["low"] + row["high"]) / 2 == pytest.approx(row["difference"])


def test_where_rounded_rows_carry_the_median_too_the_other_heads_are_judged():
    rows = [0, 0, 3, 3, 3, 3]
    before = rounded([1.0, 1.2, 50.0, 60.0, 70.0, 80.0], rows)
    row = only(before, rounded([1.0, 1.2, 90.0, 90.0, 90.0, 90.0], rows))
    assert (row["statistic"], row["verdict"], row["values"]) == ("mean without rounded rows", "same", 2)
    assert row["a"] == pytest.approx(1.1)
    assert only(before, rounded([2.0, 2.2, 50.0, 60.0, 70.0, 80.0], rows))["verdict"] == "worse"
    elsewhere = [{**one, "window": 7} for one in rounded([3.0, 3.2, 50.0, 60.0, 70.0, 80.0], rows)]
    row = only(before, elsewhere)
    assert (row["statistic"], row["paired"], row["verdict"]) == ("mean without rounded rows", None, "undecided")
    assert (row["a"], row["b"]) == (pytest.approx(1.1), pytest.approx(3.1))
    every = rounded([50.0, 60.0], [3, 3])
    row = only(every, rounded([90.0, 90.0], [3, 3]))
    assert (row["statistic"], row["verdict"]) == ("mean", "undecided")
    assert row["reason"] == "rounded rows carry the mean and the median, and every head has some"
    assert only(every, every)["verdict"] == "same"


def test_no_tolerance_at_all():
    assert only(run([1.0]), run([1.0]), tolerance=0.0)["verdict"] == "same"
    assert only(run([1.0]), run([math.nextafter(1, 2)]), tolerance=0.0)["verdict"] == "worse"
    for tolerance in (-0.1, math.nan, math.inf):
        with pytest.raises(UsageError, match="tolerance="):
            compared(run([1.0]), run([1.0]), tolerance=tolerance)


def test_a_cosine_is_worse_where_it_is_smaller():
    name = "output_cosine_min"

    def judged(x, y):
        return only(run([x], metric=name), run([y], metric=name), name)["verdict"]

    expected = ["worse", "better", "worse", "better"]
    assert [judged(0.5, 0.4), judged(0.5, 0.6), judged(-0.5, -0.6), judged(-0.5, -0.4)] == expected
    assert judged(-0.5, -0.51) == "same"


def test_a_cosine_is_judged_by_its_distance_from_1():
    """Near 0 a share of the cosine itself is nothing: -0.004 to -0.046 moves 1 − x by 4.2 %."""
    name = "output_cosine_min"

    def judged(x, y, **of):
        return only(run([x], metric=name), run([y], metric=name), name, **of)["verdict"]

    assert judged(-0.004, -0.046) == "same" and judged(-0.004, -0.046, tolerance=0.04) == "worse"
    assert judged(0.99, 0.98) == "worse" and judged(0.98, 0.99) == "better" and judged(0.99, 0.9896) == "same"
    assert judged(1.0, 1 - 1e-7) == "same"  # rounding


def test_a_share_is_judged_by_its_own_size():
    name = "rows_within"

    def judged(x, y):
        return only(run([x], metric=name), run([y], metric=name), name)["verdict"]

    assert (judged(0.1, 0.06), judged(0.9, 0.84), judged(0.9, 0.96)) == ("same", "worse", "better")


def test_seconds_are_compared_where_they_are_asked_for():
    values = [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]
    a, b = run(*values, seconds=1.0), run(*values, seconds=3.0)
    b[0]["seconds"] = 3.25
    b[1]["seconds"] = 2.75
    assert [row["metric"] for row in compared(a, b).rows] == [METRIC]
    row = only(a, b, "seconds")
    assert (row["a"], row["b"], row["values"], row["verdict"], row["test"]) == (1.0, 3.0, 3, "worse", "windows")
    row = only(a[:1], b[:1], "seconds")  # equal draws take other times
    assert (row["verdict"], row["reason"]) == ("undecided", "one text window: times have no heads to pair")


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("ok", "failed", "worse"),
        ("ok", "diverged", "worse"),
        ("ok", "skipped", "worse"),
        ("diverged", "failed", "worse"),
        ("failed", "ok", "better"),
        ("diverged", "ok", "better"),
        ("failed", "failed", "same"),
        ("skipped", "skipped", "same"),
    ],
)
def test_a_status_that_got_worse_is_a_regression(before, after, verdict):
    def made(status):
        return cell(status=status, window=1, **({} if status == "ok" else {"metrics": {}, "reason": "why"}))

    a, b = [cell(), made(before)], [cell(), made(after)]
    row = only(a, b)
    assert (row["verdict"], row["status_a"], row["status_b"]) == (verdict, before, after)
    assert (row["a"], row["b"]) == (1.5, 1.5)  # of the cells that both have
    if verdict != "same":
        assert row["reason"].startswith(f"{before} in A, {after} in B in 1 of 2 cells")
    assert ("why" in (row["reason"] or "")) == (verdict == "worse")
    if verdict == "same":
        with pytest.raises(UsageError, match=f"no line of both has a number in {METRIC}: nothing to compare"):
            compared([made(before)], [made(after)])
    else:
        alone = only([made(before)], [made(after)])
        assert alone["verdict"] == verdict and alone["metric"] == METRIC


def test_cells_that_fail_in_turn_are_no_balance():
    """One window fails in A, the other in B: the worst status of the rows is the same, that of a cell is not."""

    def broken(window):
        return cell(status="failed", window=window, metrics={}, reason="why")

    row = only([cell(), broken(1)], [broken(0), cell(window=1)])
    assert row["verdict"] == "worse" and "ok in A, failed in B in 1 of 2 cells: why" in row["reason"]
    skipped = {**broken(0), "status": "skipped", "reason": "less"}
    row = only([cell(), cell(window=1)], [skipped, broken(1)])  # of several changes the largest is named
    assert "ok in A, failed in B in 2 of 2 cells: why" in row["reason"]
    row = only([cell(), broken(1)], [cell([3.0, 3.0]), cell(window=1)])  # nor is a status for an error
    assert row["verdict"] == "worse" and (row["a"], row["b"]) == (1.5, 3.0)


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_a_value_that_is_no_longer_finite_is_a_regression(missing):
    row = only(run([1.0, 2.0]), run([1.0, missing]))
    assert row["verdict"] == "worse" and row["reason"] == "no finite value in 1 places where A has one"
    assert only(run([1.0, missing]), run([1.0, 2.0]))["verdict"] == "better"
    assert only(run([1.0, missing]), run([1.0, missing]))["verdict"] == "same"
    assert only(run([1.0, missing]), run([missing, 2.0]))["verdict"] == "worse"
    other = compared(run([1.0, 2.0]), run([1.0, missing], seed=1)).rows[0]  # by window
    assert other["verdict"] == "worse" and other["paired"] == "windows"


def test_a_method_that_lost_its_metric_is_a_regression():
    name = "matrix_spectral_relative"

    def both(one):
        return {**one, "metrics": {**one["metrics"], name: [0.5, 0.5]}}

    a = [both(cell()), both(cell(method="mss"))]
    comparison = compared(a, [both(cell()), cell(method="mss")], [METRIC, name])
    assert [(row["method"], row["metric"], row["verdict"]) for row in comparison.rows] == [
        ("skyformer", METRIC, "same"),
        ("skyformer", name, "same"),
        ("mss", METRIC, "same"),
        ("mss", name, "worse"),
    ]
    assert (comparison.rows[-1]["a"], comparison.rows[-1]["b"], comparison.rows[-1]["difference"]) == (0.5, None, None)


# --- which cells and which metrics

# metrics of which no value is better: a shift, a bias, and facts of the inputs
NEITHER = {"delta", "log_normaliser_error", "mass_oracle", "distant_mass", "needle_mass"}
NEITHER |= {"keys", "support", "k_50", "k_90", "k_99"}


def test_every_metric_that_is_gated_or_compared_says_how():
    gated = [experiment(name).gated for name in EXPERIMENTS if experiment(name).gated is not None]
    every = [metric for one in gated for metric in one.metrics] + list(TABLE.values())
    assert set(directed("error")) == set(EXPERIMENT.gated.names) - NEITHER
    assert all(one.better in ("smaller", "larger", None) for one in every)
    assert all(one.scale in ("relative", "absolute", "complement") for one in every)
    assert all(one == TABLE.get(one.name, one) for one in every), "a metric of two commands is one"
    larger = {one.name for one in every if one.better == "larger"}
    assert larger == {
        *("output_cosine_min", "cosine", "embedding_cosine"),
        *(
            "rows_within",
            "queries_within",
            "top1_agreement",
            "first_divergence",
            "greedy_match",
            "holds",
            "slack",
            "ess",
        ),
        *("mass", "mass_p10", "mass_efficiency", "recall_k", "needle_mass_kept", "answer_right"),
    }


def test_rows_are_apart_by_everything_that_is_no_head_window_or_seed():
    changes = ({}, {"method": "mss"}, {"options": {"ridge": 0.1}}, {"target": "gaussian"}, {"d": None})
    places = [{"n": n, "layer": layer, **change} for change in changes for n in (64, 128) for layer in (0, 5)]
    a = [cell([float(i)], **place) for i, place in enumerate(places, 1)]
    b = [cell([2.0 * i], **place) for i, place in enumerate(places, 1)]
    rows = compared(a, b[::-1]).rows
    assert len(rows) == len(places) == 20 and all(row["ratio"] == 2 and row["cells"] == 1 for row in rows)
    assert [(row["layer"], row["n"]) for row in rows] == sorted((row["layer"], row["n"]) for row in rows)


def test_lower_bounds_are_left_out_and_what_one_run_alone_has_is_listed():
    a = [cell(), cell(window=1), cell(method=LOWER_BOUND), cell(method="vmean", d=8)]
    comparison = compared(a, [cell(), cell(seed=1), cell(method="vmean", d=4), cell(method=LOWER_BOUND, d=4)])
    assert [(row["method"], row["d"], row["verdict"], row["reason"]) for row in comparison.rows] == [
        ("skyformer", 16, "same", None),
        ("skyformer", 16, "only in A", "window 1; seed 0; heads 0-1"),
        ("skyformer", 16, "only in B", "window 0; seed 1; heads 0-1"),
        ("vmean", 4, "only in B", "window 0; seed 0; heads 0-1"),
        ("vmean", 8, "only in A", "window 0; seed 0; heads 0-1"),
    ]
    assert comparison.regressions == comparison.undecided == []
    vmean = cell(method="vmean", d=None)
    for a, b in (([cell()], [cell(d=8)]), ([cell(), vmean], [cell(d=8), vmean])):
        with pytest.raises(UsageError, match="nothing to compare; --pair NAME=NAME"):
            compared(a, b)
    assert only([{**vmean, "requested": True}], [{**vmean, "requested": True}])["verdict"] == "same"


def test_what_was_requested_and_one_run_lacks_is_missing_and_stands_first():
    """A method, its options, d, n, layer, target and weights: each is part of what was requested."""
    random = {**SOURCE, "weights": "initialized", "weights_seed": 0}
    for lacked in (
        {"method": "mss"},
        {"options": {"ridge": 0.1}},
        {"d": 8},
        {"n": 128},
        {"layer": 5},
        {"target": "gaussian"},
        {"source": random},
    ):
        both, one = [cell(), cell(method="linformer")], [cell(**lacked)]
        for a, b, where in ((both + one, both, "only in A"), (both, one + both, "only in B")):
            comparison = compared(a, b)
            assert [row["verdict"] for row in comparison.rows] == ["missing", "same", "same"]
            (missing,) = comparison.missing
            assert missing == comparison.rows[0] == comparison.undecided[0]
            assert (missing["reason"], missing["metric"], missing["cells"]) == (where, None, 1)
            assert len(comparison.compared) == 2
    renamed = compared([cell(), cell(method="v1.py:blr")], [cell(), cell(method="blr.py:blr")])
    expected = [("v1.py:blr", "only in A"), ("blr.py:blr", "only in B")]
    assert [(row["method"], row["reason"]) for row in renamed.missing] == expected


@pytest.mark.parametrize(
    "ours, others, better, worse",
    [
        ({"bad_rows": [0, 0]}, {"bad_rows": [0, 3]}, "undecided", "worse"),
        ({"bad_rows": [2, 0]}, {"bad_rows": [0, 0]}, "better", "undecided"),
        ({"bad_rows": [2, 0]}, {"bad_rows": [0, 3]}, "better", "worse"),
        ({"bad_rows": [0, 0]}, {"bad_rows": [3, 3], "guarded_rows": [3, 3]}, "better", "worse"),
        ({}, {}, "better", "worse"),
    ],
)
def test_a_run_that_alone_has_bad_rows_wins_nothing(ours, others, better, worse):
    a, small, large = [2.0, 4.0], [1.0, 2.0], [4.0, 8.0]
    for values, verdict in ((small, better), (large, worse), (a, "same")):
        row = only([cell(metrics={METRIC: a, **ours})], [cell(metrics={METRIC: values, **others})], METRIC)
        marked = "A" if verdict == worse else "B"
        assert (row["verdict"], row["reason"]) == (
            verdict,
            f"{marked} alone has bad rows" if verdict == "undecided" else None,
        )
    for without in ({"metrics": {METRIC: [2.0, None]}}, {"status": "diverged", "metrics": {}, "reason": "x"}):
        row = only([cell(**without)], [cell(metrics={METRIC: small, **others})], METRIC)
        alone = others.get("bad_rows") == [0, 3]  # also where B alone has a value
        assert row["verdict"] == ("undecided" if alone else "better")
    fewer = only([cell(metrics={"bad_rows": [0, 0]})], [cell(metrics={"bad_rows": [0, 9]})], "bad_rows")
    assert fewer["verdict"] == "worse"


def test_options_in_another_order_are_the_same():
    options = {"gamma": 1, "ridge": 0.1}
    assert only([cell(options=options)], [cell(options=dict(reversed(options.items())))])["verdict"] == "same"


def test_metrics_by_default_and_by_name():
    name, usual, known = "matrix_spectral_relative", EXPERIMENT.compared, directed("error")
    metrics = {METRIC: [1.0, 2.0], name: [1.0, 2.0], "bad_rows": [0, 0], "output_spectral": [1.0, 2.0]}
    both, few = frame_of([cell(metrics=metrics)]), frame_of([cell()])
    assert judged_by([], usual, [both, both], known) == ([METRIC, name], [])
    assert judged_by([], usual, [both, few], known) == ([METRIC], [f"{name} was measured in A alone: not compared"])
    assert judged_by([], usual, [few, both], known)[1] == [f"{name} was measured in B alone: not compared"]
    assert judged_by(["bad_rows", METRIC, "bad_rows"], usual, [both, both], known) == (["bad_rows", METRIC], [])
    with pytest.raises(UsageError, match="--metric bad_rows: B did not measure it"):
        judged_by(["bad_rows"], usual, [both, few], known)
    with pytest.raises(UsageError, match="did you mean 'bad_rows'"):
        refuse_metric("bad_row", known)
    with pytest.raises(UsageError, match="neither larger nor smaller is better"):
        refuse_metric("delta", known)
    failed = [cell(status="failed", metrics={}, reason="all of it")]  # measured nothing, as nothing ran
    assert judged_by([], usual, [both, frame_of(failed)], known) == ([METRIC, name], [])
    rows = compared([cell(metrics=metrics)], failed, [METRIC, name]).rows
    expected = [(METRIC, "worse", None), (name, "worse", None)]
    assert [(row["metric"], row["verdict"], row["b"]) for row in rows] == expected
    one = [cell(metrics=metrics), cell(method="mss")]
    assert [row["method"] for row in compared(one, one, ["bad_rows"]).rows] == ["skyformer"]
    named = sorted(set(EXPERIMENT.gated.names) - NEITHER)
    every = [cell(metrics={metric: [1.0, 2.0] for metric in named})]
    assert {row["metric"]: row["verdict"] for row in compared(every, every, named).rows} == dict.fromkeys(named, "same")


def test_of_records_of_one_cell_the_best_counts():
    """As a folder holds them that was measured without matrices first, or failed and was measured again."""
    better = cell([5.0, 5.0], matrix_tol=1e-3, metrics={METRIC: [5.0, 5.0], "matrix_spectral_relative": [1.0, 1.0]})
    for records in ([cell(), better], [better, cell()], [better, cell(status="failed", metrics={})]):
        assert best_cells(records, "A", "error") == [better]


# --- sources


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (
            {"text_sha256": "aa" * 32, "text": "mine.txt"},
            "text_sha256 71f271f271f2… (embedded) in A, aaaaaaaaaaaa… (mine.txt) in B",
        ),
        (
            {"weights": "initialized", "weights_seed": 1},
            "weights pretrained in A, initialized in B; weights_seed null in A, 1 in B",
        ),
        ({"positions": "wrap"}, "positions segment in A, wrap in B"),
        ({"tokenizer_sha256": "cc" * 32}, "tokenizer_sha256 be50be50be50… in A, cccccccccccc… in B"),
        ({"model_sha256": "dd" * 32}, "model_sha256 53aa53aa53aa… (minilm) in A, dddddddddddd… (minilm) in B"),
        ({"dtype": "float16"}, "dtype float32 in A, float16 in B"),
        ({"p": 32}, "p absent in A, 32 in B"),
    ],
)
def test_different_sources_are_refused_by_what_differs(facts, says):
    with pytest.raises(UsageError) as error:
        refuse_other_sources([cell()], [cell(source={**SOURCE, **facts})])
    assert str(error.value) == f"A and B measure different sources: {says}"


def test_two_models_are_refused_by_their_names_and_sizes():
    """As minilm and smollm2: nothing of them pairs. A copy of one model under another name is no other model."""
    small = {**SOURCE, "heads": 12, "p": 32}
    large = {**SOURCE, "model": "smollm2", "model_sha256": "dd" * 32, "heads": 9, "p": 64, "causal": True}
    with pytest.raises(UsageError) as error:
        refuse_other_sources([cell(source=small)], [cell(source=large)])
    said = str(error.value)
    assert said.startswith("A and B measure two models, minilm (12 heads of 32) and smollm2 (9 heads of 64): ")
    assert "sha256" not in said and "--pair" in said and "\n" not in said
    with pytest.raises(UsageError, match=r"measure two models, minilm and other"):
        refuse_other_sources([cell()], [cell(source={**SOURCE, "model": "other", "model_sha256": "dd" * 32})])
    refuse_other_sources([cell(source=small)], [cell(source={**small, "model": "a/copy"})])


def test_what_only_names_a_source_is_no_difference():
    named = {
        **SOURCE,
        "model": "elsewhere/minilm",
        "text": "a copy",
        "fallback": ["the hub is out of reach"],
        "revision": "abc",
        "unk_fraction": 0.5,
    }
    refuse_other_sources([cell()], [cell(source=named)])


def test_several_sources_stay_apart():
    random = {**SOURCE, "weights": "initialized", "weights_seed": 0}
    a = [cell([1.0]), cell([10.0], source=random)]
    b = [cell([10.0], source=random), cell([1.0])]
    comparison = compared(a, b)
    expected = [(1.0, "pretrained", "same"), (10.0, "initialized", "same")]
    assert [(row["a"], row["weights"], row["verdict"]) for row in comparison.rows] == expected
    assert [row["source"] for row in comparison.rows] == ["pretrained", "initialized"]
    part = compared(a, b[:1])
    expected = [("pretrained", "missing"), ("initialized", "same")]
    assert [(row["weights"], row["verdict"]) for row in part.rows] == expected
    other = [b[0], cell([1.0], source={**random, "weights_seed": 7})]
    with pytest.raises(UsageError, match="weights pretrained in A, initialized in B; weights_seed null in A, 7 in B"):
        refuse_other_sources(a, other)
    far = cell(source={**random, "weights_seed": 7, "positions": "wrap", "dtype": "float64"})
    near = cell(source={**random, "dtype": "float16"})
    for b in ([far, near], [near, far]):  # decided by the pair that differs least
        with pytest.raises(UsageError, match="different sources: dtype float32 in A, float16 in B$"):
            refuse_other_sources(a, b)


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([], "B: it holds no cell of a method"),
        ([cell(method=LOWER_BOUND)], "B: it holds no cell of a method"),
        (
            [cell(command="spectrum")],
            "B: it holds cells of `spectrum`; compare takes two runs of `error`, of `rounding`, of `bench`, of",
        ),
    ],
)
def test_what_is_no_run_of_error_is_refused(records, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        best_cells(records, "B", "error")


def test_records_of_other_commands_beside_those_of_error_are_passed_over():
    one = cell()
    assert best_cells([one, cell(command="spectrum", metrics=None)], "A", "error") == [one]


# --- formats


@pytest.fixture
def comparison():
    mine = dict(method="mine_%$&.py:fn", options={"x": "a|b"})
    a = run([1.0, 2.0], [1.5, 2.5]) + run([1.0], [1.0], **mine) + [cell(d=8)] + [cell(method="vmean", d=None)]
    a += run([1.0], [1.0], method="mss") + [cell(window=2)]
    b = (
        run([3.0, 4.0], [3.5, 4.75])
        + redrawn([2.0], [3.0], method="mss")
        + [cell([1.0], **mine), cell([3.0], window=1, status="failed", reason="a <b>", metrics={}, **mine)]
    )
    return compared(a, b + [cell(method="vmean", d=None)])


# --- the command


def test_exit_codes_and_streams(command, write):
    write("a", run([1.0], [1.0]) + [cell(d=8)])
    write("b", run([2.0], [2.5]))
    code, out, err = command("compare", "a", "b", "--format", "json")
    result = json.loads(out)
    assert code == 1 and [row["verdict"] for row in result["rows"]] == ["worse", "missing"]
    assert result["source"] == {"a": "a", "b": "b", "tolerance": 0.05, "level": 0.05, "sources": [SOURCE]}
    assert "attnprobe: regression: skyformer d=16" in err
    code, out, err = command("compare", "b", "a/rows.jsonl")
    assert code == 0 and "better" in out and "1 line compared: 1 better, 1 not compared\n" in err
    assert "source: model minilm, weights pretrained, text embedded" in out
    assert command("compare", "a", "b", "--tolerance", "2")[0] == 0
    assert command("compare", "a", "a", "--metric", f"{METRIC},seconds")[0] == 0


def test_what_was_requested_and_not_compared_is_listed_and_fails_with_strict(command, write):
    name = {"method": "v1.py:blr"}
    write("a", [cell(), cell(**name, d=8), cell(**name), cell(window=1), cell(method="vmean", d=None)])
    write("b", [cell(), cell(method="blr.py:blr"), cell(method="mss")])
    write("d", [cell()])
    for strict, expected in (((), 0), (("--strict",), 1)):
        code, out, err = command("compare", "a", "b", "--format", "json", *strict)
        rows = [(row["name"], row["d"], row["verdict"], row["reason"]) for row in json.loads(out)["rows"]]
        assert code == expected and rows[1:] == [
            ("v1.py:blr", 8, "missing", "only in A"),
            ("v1.py:blr", 16, "missing", "only in A"),
            ("blr.py:blr", 16, "missing", "only in B"),
            ("mss", 16, "missing", "only in B"),
            ("skyformer", 16, "only in A", "window 1; seed 0; heads 0-1"),
            ("vmean", None, "only in A", "window 0; seed 0; heads 0-1"),
        ]
        assert err.splitlines()[-1] == "attnprobe: 1 line compared: 1 same, 4 not compared"
    write("c", [cell(method="vmean", d=None), cell(), cell(window=1)])  # V-Mean and windows were not requested
    assert command("compare", "c", "d", "--strict")[0] == 0
    write("e", [cell(method="mss")])  # nothing in common
    assert command("compare", "a", "e")[0] == command("compare", "a", "e", "--strict")[0] == 2


def test_what_is_undecided_fails_only_where_that_is_asked(command, write):
    write("a", run([1.0], [1.0]))
    write("b", redrawn([2.0], [3.0]))
    code, out, err = command("compare", "a", "b")
    assert code == 0 and "undecided" in out and err == "attnprobe: 1 line compared: 1 undecided\n"
    assert command("compare", "a", "b", "--strict")[0] == 1 and command("compare", "a", "a", "--strict")[0] == 0
    assert command("compare", "a", "b", "--level", "0.3")[0] == 1
    assert command("compare", "a", "b", "--level", "1")[0] == 2


def test_junit_xml_has_a_test_case_for_each_compared_or_missing_row(command, write, tmp_path):
    write("a", [*run([1.0], [1.0]), *run([1.0], [1.0], d=32), cell(method="blr"), *run([1.0], method="mss")])
    write("b", [*redrawn([2.0], [3.0]), *run([2.0], [2.5], d=32), *run([1.0], [1.0], method="mss")])
    where = "n=64 layer=0 target=softmax"
    for strict, spared in (((), "skipped"), (("--strict",), "failure")):
        code, _, err = command("compare", "a", "b", "--junit", "c.xml", *strict)
        assert code == 1 and "attnprobe: compare: c.xml" in err.splitlines()
        suite = ElementTree.parse(tmp_path / "c.xml").getroot()[0]
        assert {case.get("name"): (case[0].tag, case[0].get("message")) if len(case) else None for case in suite} == {
            f"blr d=16 {where}": (spared, "only in A"),
            f"skyformer d=16 {where}": (spared, f"{METRIC} is 1.000 in A, 2.500 in B (p = 0.20 over 2 windows)"),
            f"skyformer d=32 {where}": ("failure", f"{METRIC} is 1.000 in A, 2.250 in B"),
            f"mss d=16 {where}": None,
        }
        assert suite.get("name") == "attnprobe compare" and suite.get("failures") == ("3" if strict else "1")
        assert {case.get("classname") for case in suite} == {f"attnprobe.{METRIC}", "attnprobe.missing"}
    (tmp_path / "mine.xml").write_text("<mine/>")
    assert command("compare", "a", "a", "--junit", "mine.xml")[0] == 2
    assert (tmp_path / "mine.xml").read_text() == "<mine/>"
    assert command("compare", "a", "a", "--junit", "a/rows.jsonl/c.xml")[0] == 2
    code, _, err = command("compare", "a", "b", "--junit", "a/rows.jsonl/c.xml")
    assert code == 1 and "a/rows.jsonl/c.xml" in err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["a", "nowhere"], "nowhere: no such file or run directory"),
        (["a"], "compare takes two runs, A and B, or one with --pair LEFT=RIGHT"),
        (["a", "."], "is it a run?"),
        (
            ["empty", "a"],
            "empty: it holds no cell of a method; compare takes two runs of `error`, of `rounding`, of `bench`, of",
        ),
        (["a", "bounds/rows.jsonl"], "attnprobe: bounds/rows.jsonl: it holds no cell of a method"),
        (["a", "torn"], "torn/rows.jsonl:1: this line is no JSON object"),
        (["a", "other"], "different sources: positions segment in A, wrap in B"),
        (["a", "a", "--metric", "output_spektral"], "did you mean 'output_spectral'?"),
        (["a", "a", "--metric", "bad_rows"], "--metric bad_rows: A did not measure it"),
        (["a", "a", "--tolerance", "-1"], "tolerance=-1"),
        (["a", "a", "--tolerance", "much"], "'much'"),
        (["a", "a", "--format", "jsn"], "did you mean 'json'"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_exit_2(command, write, tmp_path, args, says):
    write("a", [cell()])
    write("other", [cell(source={**SOURCE, "positions": "wrap"})])
    write("empty", [])
    write("bounds", [cell(method=LOWER_BOUND)])
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/rows.jsonl").write_text('{"schema":\n{"schema":1}\n')
    code, out, err = command("compare", *args)
    assert code == 2 and not out and says in err and len(err.strip().splitlines()) == 1


def test_two_runs_of_error_are_compared(command, tmp_path):
    q, k, v = torch.randn(3, 2, 96, 8, generator=torch.Generator().manual_seed(0))
    save_file({"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous()}, tmp_path / "qkv.safetensors")
    base = ("error", "--qkv", "qkv.safetensors", "--method", "skyformer,nystromformer")
    for name, args in {"a": ("--d", "8,16"), "again": ("--d", "8,16"), "b": ("--d", "16,24", "--seed", "1")}.items():
        assert command(*base, *args, "--out", name)[0] == 0
    code, out, _ = command("compare", "a", "again", "--format", "json", "--tolerance", "0")
    rows = json.loads(out)["rows"]
    assert code == 0 and len(rows) == 2 * 5 and {row["verdict"] for row in rows} == {"same"}
    code, out, _ = command("compare", "a", "b", "--format", "json", "--tolerance", "100")
    rows = [row for row in json.loads(out)["rows"] if row["metric"] == METRIC]
    assert code == 0 and {(row["method"], row["d"]) for row in rows} == {
        ("vmean", None),
        ("skyformer", 16),
        ("nystromformer", 16),
    }

    def mean(name):
        return statistics.fmean(
            next(
                [row[METRIC] for row in record["rows"]]
                for record in read_records(tmp_path / name)
                if record["method"] == "skyformer" and record["d"] == 16
            )
        )

    (sky,) = [row for row in rows if row["method"] == "skyformer"]
    assert sky["ratio"] == pytest.approx(mean("b") / mean("a"), rel=1e-12) != 1 and sky["paired"] == "windows"


@pytest.mark.parametrize("read", [(8.0, 4.0), (None, 8.0)])
def test_costs_of_both_sides_are_columns(read):
    """Scores at d = 16 are equal; V-Mean reads none, so its cost is no number."""
    both = [cell(method=name) for name in ("skyformer", "linformer")]
    for one, keys in zip(both, read, strict=True):
        one["metrics"] |= {"visited_fraction": [0.25, 0.25], "kv_read": [keys, keys]}
    comparison = compared(both, both, [METRIC], pairs=["skyformer=linformer"])
    (row,) = comparison.rows
    assert [row[name] for name in ("visited_fraction_a", "visited_fraction_b", "kv_read_a", "kv_read_b")] == [
        0.25,
        0.25,
        *read,
    ]
    assert comparison.notes == []
