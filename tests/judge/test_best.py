"""The sentence above a table: the best mean at each d, and what the test says of the next one."""

import json

import pytest
from error_records import cell as a_cell
from error_rows import as_rows, shown_of
from frames import compared
from judged_cells import BETTER, METRIC, methods, of_layers, run

from attnprobe.frame.rows import YARDSTICKS
from attnprobe.judge.runs import compare_runs
from attnprobe.methods import METHODS
from attnprobe.show.page import open_run, views


def view_of(folder):
    [view] = views(open_run(folder))
    return view


def printed(view):
    """What `report` prints, without the widths of its columns."""
    return " ".join(view.text("table").split())


def test_error_tests_all_layers_together_as_compare_does(write, tmp_path):
    """The page led with the number of tables in which a method was alone, of which none answers for the model."""
    x = [one for one in of_layers() if one["method"] == "x"]
    y = [{**one, "method": "y", "metrics": {METRIC: [value / 2 for value in one["metrics"][METRIC]]}} for one in x]
    cells = [one | {"requested": True, "family": "x"} for one in [*x, *y]]
    write("all", cells)
    (row,) = compared(cells, cells, pairs=["x=y"], all_layers=True).rows
    view = view_of(tmp_path / "all")
    data = json.loads(view.text("json"))
    [together] = [duel for duel in data["best"] if duel["layer"] is None]
    assert together["verdict"] == row["verdict"] == "better" and together["name"] == "y"
    for ours, theirs in (("difference", "difference"), ("low", "low"), ("high", "high"), ("p", "p")):
        assert together[ours] == pytest.approx(row[theirs], rel=1e-12)
    assert "Smallest mean error: y at d = 16 (better than x, p = " in printed(view)


def test_error_says_which_of_two_methods_is_better(write, tmp_path):
    heading = "Smallest mean error: blr:block=64 at d = 16 (better than "
    two = methods(draws_hash=None)
    skipped = [one | {"status": "skipped", "reason": "no form", "metrics": {}} for one in methods(d=32)[:2]]
    part = methods(d=32)[2:] + skipped  # at d = 32 one of the two has no errors
    others = run(BETTER, BETTER, method="topk") + run([9.0] * 8, [9.0] * 8, method="far")  # a yardstick, and the last
    wide = [one for one in two if one["options"]]
    marked = [one | {"metrics": {**one["metrics"], "bad_rows": [1] + [0] * 7}} for one in wide]
    bad = [one for one in two if not one["options"]] + marked
    for name, cells in {"two": two, "part": two + part, "more": two + others, "bad": bad, "none": part}.items():
        write(name, cells)
        view = view_of(tmp_path / name)
        out, found = printed(view), json.loads(view.text("json"))["best"]
        if name in ("bad", "none"):
            assert heading not in out and not found
            continue
        assert out.count(heading) == len(found) == 1, name
        [duel] = found
        assert (duel["name"], duel["d"]) == ("blr:block=64", 16)
        assert duel["next"] == "blr"
        assert duel["difference"] == pytest.approx(duel["value"] - duel["next_value"])
        assert (duel["metric"], duel["test"], duel["statistic"]) == (METRIC, "heads", "mean")
        assert duel["verdict"] == "better" and duel["low"] < duel["difference"] < duel["high"] < 0


def best_of(cells):
    """The duels of cells, and the methods whose mean is bold."""
    shown = shown_of([one | {"requested": True} for one in cells])
    (grid,) = shown.tables
    at = [column.title for column in grid.columns].index("mean")
    return shown.duels, {line[0].value for line in grid.cells if line[at].bold}


def test_a_method_of_a_user_with_unknown_draws_is_named_wherever_pairs_test_it(write, tmp_path):
    """compare said so without --pair alone, and error not at all."""
    origin = {"file": "mine.py", "sha256": "0" * 64}
    mine = {"method": "mine.py:fn", "method_file": origin, "draws_hash": None}
    says = "mine.py:fn: if its heads share random numbers, p is too small; then give it an option share_heads=true"
    known = run([0.1] * 8, method="blr", draws_hash=None)
    pair = ["blr=mine.py:fn"]

    def judged(**facts):
        cells = known + [{**one, **facts} for one in run([0.2] * 8, **mine)]
        write("own", cells)
        result = compared(cells, cells, pairs=pair)
        return (says in result.notes, printed(view_of(tmp_path / "own")).count(says), result.rows[0]["test"])

    assert judged() == judged(method_file={**origin, "share_heads": None}) == (True, 1, "heads")
    assert judged(method_file={**origin, "share_heads": False}) == (False, 0, "heads")
    assert judged(method_file={**origin, "share_heads": True}) == (False, 0, None), "one window, whose heads share"
    separate = {"options": {"share_heads": False}, "method_file": {**origin, "share_heads": True}}
    assert judged(**separate) == (False, 0, "heads")
    third = known + run([0.15] * 8, method="mss", draws_hash=None) + run([0.9] * 8, **mine)
    write("third", third)
    assert says in printed(view_of(tmp_path / "third")), "its p decides the bold cells"


def test_two_errors_of_rounding_are_not_compared():
    def two(a, b):
        cells = run([a] * 8, method="mss", draws_hash=None) + run([b] * 8, method="blr", draws_hash=None)
        return best_of(cells)[0]

    assert two(2e-7, 1e-8) == [] and len(two(2e-7, 1e-4)) == len(two(0.2, 0.1)) == 1


def test_the_best_and_the_next_have_the_p_of_bold_cells():
    """Of eight heads two are against the others: p decides one row, and not the same beside a second rival."""

    def of(name, *values):
        return run(values, method=name, draws_hash=None)

    best, other = of("mss", *[0.1] * 8), of("blr", 0.20, 0.21, 0.22, 0.23, 0.24, 0.25, 0.05, 0.05)
    far = of("performer", 3.0, *[0.05] * 4, *[0.15] * 3)
    [duel], bold = best_of(best + other)
    assert (duel["name"], duel["next"], duel["d"]) == ("mss", "blr", 16)
    assert duel["verdict"] == "better" and duel["difference"] == pytest.approx(-0.08125)
    assert duel["p"] == duel["p_adjusted"] == 10 / 256 and duel["tests"] == 1 and bold == {"mss"}
    [duel], bold = best_of(best + other + far)
    assert (duel["verdict"], duel["p"], duel["p_adjusted"], duel["tests"]) == ("undecided", 10 / 256, 20 / 256, 2)
    assert bold == {"mss"}, "the smallest mean, whatever the test says"


@pytest.mark.parametrize(("used", "takes_part"), [(16.5, True), (17.0, False)])
def test_a_method_that_uses_more_than_its_budget_is_not_the_best(used, takes_part):
    def of(name, error, keys):
        return [one | {"metrics": one["metrics"] | {"realised_d": [keys] * 8}} for one in run([error] * 8, method=name)]

    [duel], bold = best_of(of("moba", 0.1, used) + of("window", 0.2, 15.0) + of("knorm", 0.3, 16.0))
    assert bold == {"moba" if takes_part else "window"}
    assert (duel["name"], duel["next"]) == (("moba", "window") if takes_part else ("window", "knorm"))


def test_each_budget_has_its_best():
    few, many = run([0.2] * 8, method="mss", draws_hash=None), run([0.1] * 8, method="mss", draws_hash=None, d=32)
    few += run([0.1] * 8, method="blr", draws_hash=None)
    many += run([0.2] * 8, method="blr", draws_hash=None, d=32)
    assert [(one["d"], one["name"], one["next"], one["verdict"]) for one in best_of(few + many)[0]] == [
        (16, "blr", "mss", "better"),
        (32, "mss", "blr", "better"),
    ]


HEADS = 12


def relative(record, errors):
    """The record with these relative errors."""
    return {**record, "metrics": {**record["metrics"], "output_spectral_relative": errors}, "draws_hash": None}


def records(methods, d=(16, 32), layers=(0,)):
    """Cells whose relative errors are the method's number, or its numbers, over d / 16."""
    return [
        relative(
            a_cell(name, one, range(HEADS), layer=layer),
            [value * 16 / one for value in (size if isinstance(size, list) else [size] * HEADS)],
        )
        for layer in layers
        for name, size in methods.items()
        for one in d
    ]


def best(some):
    return [(duel["d"], duel["name"], duel["next"], duel["verdict"]) for duel in shown_of(some).duels]


def test_each_budget_has_its_best_and_the_sentence_says_so():
    some = records({"skyformer": 0.5, "linformer": 3.0})
    assert best(some) == [(16, "skyformer", "linformer", "better"), (32, "skyformer", "linformer", "better")]
    (grid,) = shown_of(some).tables
    assert grid.sentence.startswith("Smallest mean error: skyformer at d = 16, 32 (better than linformer, p = ")


def test_a_mean_that_the_test_does_not_support_is_not_called_better():
    some = records({"skyformer": [0.5] * 7 + [0.9] * 5, "linformer": [0.6] * 7 + [0.7] * 5}, d=(16,))
    assert best(some) == [(16, "linformer", "skyformer", "undecided")]
    (grid,) = shown_of(some).tables
    assert "not shown better than skyformer" in grid.sentence
    cells = as_rows(some)
    (row,) = compare_runs(cells, cells, pairs=["linformer=skyformer"]).rows
    (duel,) = shown_of(some).duels
    assert (duel["value"], duel["next_value"], duel["p"]) == (row["a"], row["b"], row["p"])


def test_a_bound_is_never_the_best():
    """topk reads the largest keys, and svd is the best matrix of its rank."""
    some = records({"topk": 0.1, "svd": 0.2, "skyformer": 0.5, "linformer": 3.0}, d=(16,))
    assert best(some) == [(16, "skyformer", "linformer", "better")]
    (grid,) = shown_of(some).tables
    assert [line[0].value for line in grid.cells if any(one.bold for one in line)] == ["skyformer"]
    assert {name for name, one in METHODS.items() if "diagnostic" in one.tags} == YARDSTICKS


@pytest.mark.parametrize(
    ("rows", "leads"),
    [
        ({"bad_rows": 3}, "linformer"),
        ({"bad_rows": 3, "guarded_rows": 3}, "skyformer"),
        ({"rounded_rows": 1}, "linformer"),  # a mean that rounding decides
        ({"realised_d": 16.5}, "skyformer"),
        ({"realised_d": 17}, "linformer"),
    ],
)
def test_a_line_with_a_sign_is_not_the_best(rows, leads):
    some = records({"skyformer": 0.5, "linformer": 0.51, "mss": 3.0}, d=(16,))
    some[0]["metrics"] |= {name: [count] * HEADS for name, count in rows.items()}
    assert best(some)[0][1] == leads


def test_of_several_layers_all_together_stand_first():
    shown = shown_of(records({"skyformer": 0.5, "linformer": 3.0}, d=(16,), layers=(0, 5)))
    assert [duel["layer"] for duel in shown.duels] == [None, 0, 5]
    (grid,) = shown.tables
    assert grid.sentence.count("skyformer at d = 16") == 1
