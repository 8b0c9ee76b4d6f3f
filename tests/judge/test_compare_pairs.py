"""`compare --pair`: two methods of one run or of two, the interval of a difference, and the line below `error`."""

import itertools
import json
import re

import numpy as np
import pytest
from frames import compared, frame_of
from judged_cells import BETTER, LAYERS, METRIC, WORSE, cell, methods, of_layers, run
from paths import GOLDEN
from scipy.stats import ttest_1samp

from attnprobe.errors import UsageError
from attnprobe.frame.records.file import LOWER_BOUND
from attnprobe.frame.records.read import read_records
from attnprobe.judge import pairs as of_pairs
from attnprobe.judge.chance import Evidence
from attnprobe.judge.chance import of_heads as over_pairs
from attnprobe.judge.runs import compare_runs


def related(a, b, pairs):
    """The rows of both sides of pairs."""
    left = frame_of([one for one in a if one["method"] != LOWER_BOUND])
    return of_pairs.related(left, left if b is a else frame_of(b), pairs)


def test_two_methods_without_draws_are_tested_over_heads():
    cells = methods(draws_hash=None)
    (row,) = compared(cells, cells, pairs=["blr=blr:block=64"]).rows
    assert (row["method"], row["verdict"], row["test"]) == ("blr → blr:block=64", "better", "heads")
    assert (row["a"], row["b"], row["values"], row["windows"], row["heads"]) == (2.5, 1.6875, 16, 2, 8)
    assert row["p"] == 2 / 2**8  # the differences of all eight heads have one sign
    assert row["low"] < row["difference"] == -0.8125 < row["high"] < 0
    (other,) = compared(cells, cells, pairs=["blr:block=64=blr"]).rows
    assert other["verdict"] == "worse" and (other["low"], other["high"]) == (-row["high"], -row["low"])


def test_more_windows_of_the_same_heads_are_no_more_evidence():
    """Each of six heads has one difference in every window, and one of the six is against the others."""
    x, y = [5.0] * 6, [4.0, 4.2, 4.1, 4.3, 4.05, 5.5]
    p = []
    for windows in (1, 4):
        cells = run(*[x] * windows, method="x", draws_hash=None) + run(*[y] * windows, method="y", draws_hash=None)
        (row,) = compared(cells, cells, pairs=["x=y"]).rows
        assert (row["test"], row["verdict"], row["values"]) == ("heads", "undecided", 6 * windows)
        p.append((row["p"], row["low"], row["high"]))
    assert p[0] == pytest.approx(p[1]) and p[0][0] > 0.05


@pytest.mark.parametrize(
    "again", ["blr:block=64=blr", "blr=blr:block=64", "blr:d=16=blr:block=64", "blr:block=64,d=16=blr:d=16"]
)
def test_a_hypothesis_is_counted_once(again):
    """In reverse, with its budget or repeated, it was another row, for which Holm's method corrected."""
    cells = methods(draws_hash=None)
    comparison = compared(cells, cells, pairs=["blr=blr:block=64", again])
    (row,) = comparison.rows
    assert row["p_adjusted"] == row["p"]


def test_the_median_that_is_tested_is_that_of_the_table():
    """Medians over heads and windows, and exchanges of heads in all windows; a median of medians was tested."""
    rng = np.random.default_rng(3)
    x, y = rng.lognormal(size=(2, 7)), rng.lognormal(size=(2, 7)) * 2
    x[:, 6] = 80.0  # of rounded rows, which carry the mean
    cells = [
        cell(list(values), window=w, method=name, draws_hash=None, metrics={METRIC: list(values), "rounded_rows": rows})
        for name, of, rows in (("x", x, [0] * 6 + [3]), ("y", y, [0] * 7))
        for w, values in enumerate(of)
    ]
    (row,) = compared(cells, cells, pairs=["x=y"]).rows
    assert (row["statistic"], row["test"]) == ("median", "heads")
    assert (row["a"], row["b"]) == (np.median(x), np.median(y))
    observed, reached = np.median(y) - np.median(x), 0
    for exchanged in itertools.product([False, True], repeat=7):
        a, b = np.where(exchanged, y, x), np.where(exchanged, x, y)
        reached += abs(np.median(b) - np.median(a)) >= abs(observed) - 1e-12
    assert row["p"] == reached / 2**7
    assert row["low"] is None  # of a median


def test_bad_rows_that_do_not_decide_are_named_too():
    """Below `error` the method is left out; an undecided row of `compare` did not say so."""
    bad = {"bad_rows": [0, 2, 0, 0, 0, 0, 0, 0]}
    cells = run(WORSE, method="x", draws_hash=None) + run(WORSE, method="y", draws_hash=None)
    cells[0]["metrics"] |= bad
    (row,) = compared(cells, cells, pairs=["x=y"]).rows
    assert row["bad"] == "A"
    cells[0]["metrics"] |= {"guarded_rows": bad["bad_rows"]}
    (row,) = compared(cells, cells, pairs=["x=y"]).rows
    assert row["bad"] is None


def test_p_values_are_corrected_over_the_budgets_of_a_pair():
    cells = methods(draws_hash=None) + methods(draws_hash=None, d=32)
    rows = compared(cells, cells, pairs=["blr=blr:block=64"]).rows
    assert [(row["d"], row["p"], row["p_adjusted"]) for row in rows] == [(16, 1 / 128, 1 / 64), (32, 1 / 128, 1 / 64)]


def test_several_tables_have_a_note_on_chance():
    """Holm's method corrects within a table: two tables have a worse row by chance in 2 x 2.5 %."""
    one = methods(draws_hash=None)
    assert not any("tables" in note for note in compared(one, one, pairs=["blr=blr:block=64"]).notes)
    two = one + methods(draws_hash=None, layer=3)
    (note,) = compared(two, two, pairs=["blr=blr:block=64"]).notes
    assert note.startswith(
        "p is corrected in each of 2 tables: with no change, a false *worse* somewhere has up to 5 %"
    )
    assert note.endswith("--level 0.025 or --all-layers lowers it")


def test_the_interval_holds_what_the_test_does_not_refuse():
    differences = np.random.default_rng(3).normal(0.4, 1.0, 9)
    signs = np.array([*itertools.product((1, -1), repeat=9)])

    def p(shift):
        moved = signs @ (differences - shift)
        return np.mean(np.abs(moved) >= abs((differences - shift).sum()) * (1 - 1e-12))

    for level in (0.05, 0.2):
        low, high = over_pairs([0.0] * 9, list(differences)).interval(level)
        assert p(low + 1e-9) > level and p(high - 1e-9) > level
        assert p(low - 1e-9) <= level and p(high + 1e-9) <= level
    assert over_pairs([0.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]).interval(0.05) is None  # 5 pairs refuse nothing
    assert over_pairs([0.0] * 9, list(differences), np.median).interval(0.05) is None
    assert Evidence().interval(0.05) is None


def test_the_heads_of_all_layers_are_the_units_of_one_verdict():
    """Against a test by hand: the sign flips of the mean differences of 12 heads, each over its windows."""
    cells = of_layers() + [one | {"d": 32} for one in of_layers()]
    rows = compared(cells, cells, pairs=["x=y"], all_layers=True).rows
    differences = np.concatenate([(of[1] - of[0]).mean(axis=0) for of in LAYERS.values()])
    signs = np.array([*itertools.product([-1, 1], repeat=12)])
    means = np.abs(signs @ differences) / 12
    p = np.mean(means >= np.abs(differences.mean()) * (1 - 1e-12))
    for row in rows:
        assert (row["layer"], row["layers_together"], row["heads"], row["values"]) == (None, "1, 4-5", 12, 24)
        assert (row["test"], row["p"], row["tests"], row["p_adjusted"]) == ("heads", p, 2, min(1.0, 2 * p))
        x, y = (np.concatenate([of[side].ravel() for of in LAYERS.values()]).mean() for side in (0, 1))
        assert (row["a"], row["b"]) == (pytest.approx(x), pytest.approx(y))
        assert row["difference"] == pytest.approx(differences.mean())


def test_windows_of_all_layers_have_the_means_over_layers():
    cells = of_layers(options={"share_heads": True})
    (row,) = compared(cells, cells, pairs=["x=y"], all_layers=True).rows
    means = np.mean([(of[1] - of[0]).mean(axis=1) for of in LAYERS.values()], axis=0)
    assert (row["test"], row["freedom"]) == ("windows", 1)
    assert row["p"] == pytest.approx(ttest_1samp(means, 0.0).pvalue)


def test_layers_that_one_side_lacks_are_refused_and_a_note_names_the_option():
    cells = of_layers()
    some = [one for one in cells if (one["method"], one["layer"]) != ("y", 4)]
    says = "x → y d=16 has layers 1, 4-5 on the left and 1, 5 on the right; measure it in the same layers"
    with pytest.raises(UsageError, match=re.escape(f"--all-layers: {says}")):
        compared(some, some, pairs=["x=y"], all_layers=True)
    assert any("--all-layers" in note for note in compared(cells, cells, pairs=["x=y"]).notes)
    assert not any("--all-layers" in note for note in compared(cells, cells, pairs=["x=y"], all_layers=True).notes)


def test_heads_of_all_layers_that_one_run_lacks_are_named():
    a, b = of_layers(), of_layers()
    for one in b:
        one |= {"draws_hash": "2"} | ({"window": 7} if one["layer"] == 5 and one["window"] else {})
    rows = compared(a, b, all_layers=True).rows
    lost = [row["reason"] for row in rows if row["verdict"] == "only in A"]
    assert lost == 2 * ["window 1; seed 0; layer 5; heads 0-3"]
    assert [(row["cells"], row["heads"]) for row in rows if row["metric"]] == 2 * [(5, 12)]


def test_all_layers_are_of_heads_alone():
    whole = [cell([], method=x, command="inject", heads=None, metrics={"kl": 1.0}) for x in "xy"]
    with pytest.raises(UsageError, match="--all-layers: runs of inject have no heads of layers"):
        compare_runs(whole, whole, pairs=["x=y"], all_layers=True)


def test_differences_of_rounding_are_ties():
    """Five of twelve heads differ; the others by what another order of a sum leaves."""
    x = np.linspace(1.0, 2.0, 12)
    y = x + np.where(np.arange(12) < 5, 0.9, 3e-7 * np.cos(np.arange(12)))
    evidence = over_pairs(list(x), list(y))
    assert evidence.p == 2 / 2**5
    assert evidence.interval(0.05)[0] == 0.0
    assert over_pairs(list(x), list(x * (1 + 3e-6))).p == 2 / 2**12


def test_heads_that_share_their_draws_are_no_sample():
    shared = run(WORSE, [value + 0.1 for value in WORSE], method="shared", options={"share_heads": True})
    cells = run(BETTER, BETTER, method="plain") + shared
    for pair in ("plain=shared", "shared=plain"):
        (row,) = compared(cells, cells, pairs=[pair]).rows
        assert row["test"] == "windows"


def test_repeats_of_a_method_are_averaged_before_they_meet_one_that_draws_nothing():
    """Six heads; the three repeats lie 0.5 apart around 2, 3, …, so the means differ by 1 in each head."""
    heads = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    drawn = [cell([x + 1 + 0.5 * (seed - 1) for x in heads], method="drawn", seed=seed) for seed in range(3)]
    fixed = cell(heads, method="fixed", draws_hash=None)
    for a, b, sign in (("fixed", "drawn", 1), ("drawn", "fixed", -1)):
        comparison = compared(cells := [fixed, *drawn], cells, pairs=[f"{a}={b}"])
        (row,) = comparison.rows
        assert (row["difference"], row["values"], row["test"], row["p"]) == (sign, 6, "heads", 2 / 2**6)
        assert (row["paired"], row["verdict"]) == ("windows", "worse" if sign > 0 else "better")
        seeds = ("0", "0-2") if sign > 0 else ("0-2", "0")
        assert (row["paired"], row["seeds_a"], row["seeds_b"]) == ("windows", *seeds)
    other = [one | {"method": "other", "draws_hash": "two"} for one in drawn]
    (row,) = compared(cells := drawn + other, cells, pairs=["drawn=other"]).rows
    assert (row["values"], row["test"]) == (6, None)  # three draws of a head are one place of the sample


def test_a_method_without_a_budget_meets_each_budget_and_d_names_one():
    cells = [cell(d=8), cell(), cell(method="vmean", d=None)]
    assert [row["d"] for row in compared(cells, cells, pairs=["vmean=skyformer"]).rows] == [8, 16]
    (row,) = compared(cells, cells, pairs=["skyformer:d=8=skyformer:d=16"]).rows
    assert (row["method"], row["d"], row["verdict"]) == ("skyformer:d=8 → skyformer:d=16", None, "same")


def test_a_budget_of_one_side_is_that_of_the_other():
    """The other budgets of the right method take no part: they once stood in for that of the left one."""
    cells = [cell((d, d), d=d) for d in (8, 16)] + [cell((2 * d, 2 * d), method="other", d=d) for d in (8, 16, 32)]
    for pair, a, b in (("skyformer:d=8=other", 8, 16), ("skyformer=other:d=16", 16, 32)):
        (row,) = compared(cells, cells, pairs=[pair]).rows
        assert (row["a"], row["b"]) == (a, b) and row["method"].count(f"d={a}") == 2
    with pytest.raises(UsageError, match="skyformer has no cell at d=32, which other:d=32 names: write its d= too"):
        related(cells, cells, ["skyformer=other:d=32"])


def test_a_method_that_was_skipped_is_no_worse_than_the_other():
    cells = [cell(), cell(d=32), cell(method="other"), {**cell(method="other", d=32), "status": "skipped"}]
    rows = compared(cells, cells, pairs=["other=skyformer"]).rows
    assert [(row["d"], row["verdict"]) for row in rows] == [(32, "missing"), (16, "same")]


def test_methods_of_two_runs_are_paired_by_their_short_names():
    a, b = [cell(method="v1.py:blr")], [cell(method="blr.py:blr", values=(2.0, 4.0))]
    (row,) = compared(a, b, pairs=["old/v1.py:blr=./blr.py:blr"]).rows
    assert (row["method"], row["a"], row["b"]) == ("v1.py:blr → blr.py:blr", 1.5, 3.0)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("blr", "write two methods, LEFT=RIGHT"),
        ("blr=nobody", "unknown method 'nobody'; choose from blr$"),
        ("blr=blt:block=64", "unknown method 'blt'; did you mean 'blr'.$"),
        ("brl:d=16=blr:block=64,d=16", "unknown method 'brl'; did you mean 'blr'.$"),
        ("blr:block=64=blr:block=64", "both sides are the same cells"),
        ("blr:d=8=blr", "is not among blr, blr:block=64, measured at d=16$"),
        ("blr=blr:block=64,d=8", "is not among blr, blr:block=64, measured at d=16$"),
        ("blr:d=8:temp=1=nobody:d=32", "unknown method 'nobody'"),
        ("blr:d=8=nobody", "unknown method 'nobody'"),
        (
            "blr=longformer",
            "the run has no longformer, but blr; run its command again with longformer added to --method$",
        ),
        ("blr=skyformer:d=8", "the run has no skyformer, but blr; run"),
        ("blr=old/mine.py:mine", "the run has no mine.py:mine, but blr; run"),
        (
            "blr:block=32=blr:block=64",
            "'blr:block=32' is not among blr, blr:block=64, measured at d=16$",
        ),
        ("blr:block=64:d=16=blr", "join options by commas: blr:block=64,d=16$"),
        ("blr:d=16:temp=1=blr:block=64,d=16", "join options by commas: blr:d=16,temp=1$"),
        ("lower-bound=blr:block=64", "unknown method 'lower-bound'; choose from blr$"),
    ],
)
def test_a_pair_that_names_no_two_methods_is_refused(pair, says):
    cells = [*methods(), cell(method=LOWER_BOUND)]
    with pytest.raises(UsageError, match=says):
        related(cells, cells, [pair])


def test_methods_that_two_runs_lack_are_named_for_each():
    with pytest.raises(
        UsageError, match="B has no topk, but window; run its command again with topk added to --method$"
    ):
        related([cell(method="topk")], [cell(method="window")], ["topk=topk"])
    with pytest.raises(UsageError, match="no pair has both methods at the same target, n, d and layer"):
        compared([cell(method="topk", n=8)], [cell(method="window", n=16)], pairs=["topk=window"])
    with pytest.raises(UsageError, match="have no requested method at the same options, .*; --pair NAME=NAME"):
        compared([cell(method="topk")], [cell(method="window")])


def test_a_budget_stands_beside_options():
    cells = [cell((d, d), options={"block": 64}, d=d) for d in (8, 16)]
    for pair in ("skyformer:block=64,d=8=skyformer:d=16", "skyformer:d=8=skyformer:block=64,d=16"):
        (row,) = compared(cells, cells, pairs=[pair]).rows
        assert row["method"] == "skyformer:block=64,d=8 → skyformer:block=64,d=16"
        assert (row["a"], row["b"]) == (8, 16)


@pytest.mark.parametrize(
    "said", ["n_iter=6", "gamma=none,guard=none", "guard=sampled,n_iter=6", "d=16,share_heads=false"]
)
def test_an_option_at_its_default_may_be_said(said):
    """No record has it, so `error --method` took it, and `compare --pair` did not."""
    cells = [cell(method="skyformer", options=options) for options in ({}, {"guard": "sampled"})]
    cells.append(cell(method="topk"))
    (row,) = compared(cells, cells, pairs=[f"topk=skyformer:{said}"]).rows
    assert ("guard=sampled" in row["method"]) == ("guard=sampled" in said)
    with pytest.raises(UsageError, match="is not among skyformer, skyformer:guard=sampled"):
        related(cells, cells, [f"topk=skyformer:{said},rtol=0.5"])


@pytest.mark.parametrize(
    ("option", "value", "texts"),
    [
        ("power", 2.0, ("2", "2.0", "2e0")),
        ("block", 64, ("64", "64.0")),
        ("streaming", False, ("false", "False")),
        ("width", None, ("none", "null")),
        ("rope", "model", ("model",)),
    ],
)
def test_an_option_is_written_as_for_the_method(option, value, texts):
    cells = [cell(method="mc.py:unif", options={option: value}), cell(method="topk")]
    for text in texts:
        (row,) = compared(cells, cells, pairs=[f"topk=./mc.py:unif:{option}={text}"]).rows
        assert row["method"] == f"topk → mc.py:unif:{option}={value}"
    for other in ("3", "true", "Model"):
        with pytest.raises(UsageError, match="is not among|unknown method"):
            related(cells, cells, [f"topk=mc.py:unif:{option}={other}"])


def test_a_pair_reads_the_cells_that_tables_and_figures_show(command, qkv):
    """A second command of the folder asks for one head: the cells of the first, with both heads, are left out."""
    both = ("error", "--qkv", qkv, "--method", "topk,window", "--no-matrix", "--plot", "none", "--out", "r")
    command(*both, "--d", "4,8")
    command(*both, "--d", "8", "--head", "0")
    code, out, err = command("compare", "r", "--pair", "window=topk", "--format", "json")
    rows = json.loads(out)["rows"]
    assert code == 0 and [(row["d"], row["heads"]) for row in rows] == [(8, 1)]
    left_out = "attnprobe: r has 7 cells of other settings, which are not shown: the last command did not ask for "
    left_out += "them; name r/rows.jsonl to compare them too"
    assert err.splitlines()[0] == left_out
    code, out, err = command("compare", "r", "--pair", "window=skyformer")
    assert code == 2 and err.splitlines()[0] == left_out
    code, out, err = command("compare", "r/rows.jsonl", "--pair", "window=topk", "--format", "json")
    assert {row["d"] for row in json.loads(out)["rows"]} == {4, 8} and "other settings" not in err
    assert "attnprobe: A and B have the same rows: a run equals itself" in command("compare", "r", "r")[2]


def test_equal_medians_of_heads_that_differ_are_undecided():
    """They were the same without an interval, where one run had a head of twice the error."""
    cells = [
        cell(values, method=name, draws_hash=None, metrics={METRIC: values, "rounded_rows": [0.0] * 6 + [rows]})
        for name, values, rows in (("x", [1.0, 2, 3, 4, 5, 6, 80], 3.0), ("y", [1.5, 2, 3, 4, 5, 7, 8], 0.0))
    ]
    (row,) = compared(cells, cells, pairs=["x=y"]).rows
    assert (row["statistic"], row["a"], row["b"], row["verdict"]) == ("median", 4.0, 4.0, "undecided")


def test_two_methods_without_a_number_are_no_comparison(command, write):
    """An exit code of 0 would pass a gate that compared nothing, also where the reference has numbers."""
    empty = [cell([None, None], method=method, draws_hash=None) for method in ("x", "y")]
    vmean = cell(method="vmean", d=None, draws_hash=None, requested=False, reference=True)
    write("a", [*empty, vmean])
    write("b", [*empty, {**vmean, "heads": [0, 1]}, cell(method="vmean", window=9, d=None, requested=False)])
    for args in (("a", "--pair", "x=y"), ("a", "b"), ("a", "b", "--strict")):
        code, out, err = command("compare", *args)
        assert (code, out) == (2, "") and METRIC in err and len(err.splitlines()) == 1


def test_two_errors_of_rounding_are_the_same():
    a, b = [2e-7] * 12, [3e-8 + head * 1e-9 for head in range(12)]
    cells = [cell(x, method=method, draws_hash=None) for method, x in (("x", a), ("y", b))]
    (row,) = compared(cells, cells, pairs=["x=y"]).rows
    assert (row["verdict"], row["reason"]) == ("same", "both errors may be rounding, at most 1e-05") and row[
        "p"
    ] < 0.001
    larger = [cells[0], cell([2e-5] * 12, method="y", draws_hash=None)]
    assert compared(larger, larger, pairs=["x=y"]).rows[0]["verdict"] == "worse"
    absolute = [{**one, "metrics": {"output_spectral": one["metrics"][METRIC]}} for one in cells]
    (row,) = compared(absolute, absolute, ["output_spectral"], pairs=["x=y"]).rows
    assert row["verdict"] == "better"  # whose size says nothing of rounding
    failed = [cells[0], cell(b[:11] + [None], method="y", draws_hash=None)]
    assert compared(failed, failed, pairs=["x=y"]).rows[0]["verdict"] == "worse"
    drifts = [
        cell([size + window * 1e-9], method=method, window=window, command="inject", metric="drift", draws_hash=None)
        for method, size in (("x", 2e-7), ("y", 3e-7))
        for window in range(4)
    ]
    assert compared(drifts, drifts, ["drift"], pairs=["x=y"]).rows[0]["verdict"] == "same"


def test_what_one_method_of_a_pair_lacks_names_its_side(command, write):
    inner = {METRIC: [1.0, 2.0], "inverse_residual": [0.5, 0.5]}
    fields = {"options": {}, "draws_hash": None}
    left = [cell(method="nystromformer", d=d, window=w, metrics=inner, **fields) for d in (8, 16) for w in (0, 1)]
    right = [cell(method="window", **fields), cell(method="boom", status="failed", reason="it broke", metrics={})]
    write("a", left + right)
    code, out, err = command("compare", "a", "--pair", "nystromformer=window")
    assert code == 0 and "only on the left" in out and "window 1; seed 0; heads 0-1" in out
    assert err.splitlines()[-1] == "attnprobe: 1 line compared: 1 same, 1 not compared"
    code, out, err = command("compare", "a", "--pair", "window=nystromformer", "--metric", f"{METRIC},inverse_residual")
    assert code == 2 and "--metric inverse_residual: no value of window" in err
    code, out, err = command("compare", "a", "--pair", "window=boom")
    assert code == 1 and "ok in A, failed in B: it broke" in err


def test_options_that_could_mean_several_methods_are_asked_for():
    cells = [cell(options={"block": 32}), cell(options={"block": 64}), cell(method="topk")]
    with pytest.raises(UsageError, match="fits several methods, skyformer:block=32, skyformer:block=64"):
        related(cells, cells, ["skyformer=topk"])


def test_the_command_compares_within_a_run_and_exits_with_1_if_the_right_one_is_worse(command, write):
    write("a", methods(draws_hash=None))
    code, out, err = command("compare", "a", "--pair", "blr:block=64=blr", "--pair", "blr=blr:block=64")
    assert code == 1 and "run: a" in out and "[interval]" in out
    line = f"blr:block=64 → blr d=16 n=64 layer=0 target=softmax: {METRIC} is 1.688 in A, 2.500 in B"
    assert err.splitlines() == [f"attnprobe: worse: {line}", "attnprobe: 1 line compared: 1 worse"]
    assert command("compare", "a", "--pair", "blr=blr:block=64")[0] == 0


def test_mass_of_a_method_that_uses_every_key_is_no_quality():
    """V-Mean was better than every selection, without a word."""
    masses = {"window": [0.5] * 6, "h2o": [0.8] * 6, "dense": [1.0 - 1e-9] * 6}
    cells = [cell(mass, method=name, metric="mass", draws_hash=None) for name, mass in masses.items()]
    for pair, count in {"window=h2o": 0, "window=dense": 1}.items():
        result = compared(cells, cells, ["mass"], pairs=[pair])
        assert result.rows[0]["verdict"] == "better"
        assert sum(note.startswith("mass: a method that uses every key has 1") for note in result.notes) == count


def test_methods_in_a_whole_model_are_paired_over_windows():
    """The two windows of the run; each metric is that of the model, not of its heads."""
    records = read_records(GOLDEN / "runs/inject-decode")
    rows = compare_runs(records, records, pairs=["topk=window"]).compared
    rows = [row for row in rows if row["d"] == 6]
    assert [row["metric"] for row in rows] == ["kl", "loss_change", "drift", "top1_agreement", "residual_sum"]
    found = {one["method"]: [] for one in records}
    for one in records:
        if one["d"] == 6:
            found[one["method"]] += [row["kl"] for row in one["rows"] if row["kind"] == "head"]
    differences = [y - x for x, y in zip(found["topk"], found["window"], strict=True)]
    kl = rows[0]
    assert (kl["values"], kl["windows"], kl["heads"], kl["test"]) == (2, 2, 1, "windows")
    assert kl["difference"] == pytest.approx(sum(differences) / 2, rel=1e-12)
    assert kl["se"] == pytest.approx(abs(differences[1] - differences[0]) / 2, rel=1e-12)
    same = "equal differences in 2 windows: no variance to test by"  # one equal word fewer in each
    assert (rows[3]["verdict"], rows[3]["p"], rows[3]["reason"]) == ("undecided", None, same)
    assert {(row["layers"], row["prefix"]) for row in rows} == {("0-1", 9)}


def test_two_runs_of_inject_are_compared(command):
    for name, places in (("inject", ("layers 0-1 replaced", "layer 1")), ("inject-decode", ("behind 9 tokens",))):
        path = str(GOLDEN / "runs" / name)
        code, out, err = command("compare", path, path, "--metric", "drift,kl")
        assert code == 0 and "same" in err and all(place in out for place in places)
        assert "heads" not in out
    code, _, err = command("compare", path, path, "--metric", "mass")
    assert code == 2 and "unknown metric 'mass'" in err
    code, _, err = command("compare", path, path, "--metric", "perplexity_change")
    assert code == 2 and "it is computed from the mean of loss_change; compare loss_change" in err


def test_times_of_two_methods_of_one_bench_are_compared():
    records = read_records(GOLDEN / "runs/bench")
    rows = compare_runs(records, records, ["flops"], pairs=["linear=skyformer"]).compared
    flops = {(one["method"], one["n"]): one["flops"] for one in records}
    assert {row["method"] for row in rows} == {"linear → skyformer"}
    assert {row["n"]: (row["a"], row["b"]) for row in rows} == {
        n: (flops["linear", n], flops["skyformer", n]) for n in (16, 32, 64)
    }
