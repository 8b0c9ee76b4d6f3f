"""``attnprobe theory``: its records, rows, tables, figures, gates and refusals, with theorems of these tests alone."""

import json
import math
import shutil
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from folders import saved_heads
from safetensors.torch import load_file, save_file

from attnprobe import approximate, exact, findings, load_qkv, output_errors
from attnprobe.errors import Unsupported, UsageError
from attnprobe.frame.read import frame_of
from attnprobe.frame.records.read import read_records
from attnprobe.measure.theory import TheoryRequest, measure_theory
from attnprobe.measure.theory.record import SHAPE
from attnprobe.measure.theory.setting import question_of
from attnprobe.rng import Streams
from attnprobe.show.page import open_run, views
from attnprobe.theorems import THEOREMS, VERDICTS, Finding, theorem

HEADS = 4


def first(qkv, setting):
    """Every verdict of an exact number once, an infinite bound, an infinite number measured, and a curve."""
    size = qkv.q.double().norm(dim=(1, 2))
    half, none = torch.tensor([True, True, True, False]), torch.zeros(HEADS, dtype=torch.bool)
    bound = torch.stack([2 * size[0], size[1] / 2, torch.tensor(math.inf), size[3]])
    yield Finding(
        "first",
        "Q is given",
        half,
        "‖Q‖_F is at most b",
        bound,
        size,
        bound.isinf(),
        details={"curve": torch.stack([size, 2 * size], 1), "twice": 2 * size},
    )
    yield Finding(
        "first",
        "Q is given",
        ~none,
        "−‖Q‖_F/0 is at least b",
        bound,
        -size / 0,
        none,
        at={"kind": "endless"},
        sense="at least",
    )


def frequency(qkv, setting):
    """A share over seeds with its interval, at every budget and ε."""
    for d in setting.budgets:
        for epsilon in setting.epsilons:
            draws = torch.stack(
                [
                    torch.stack([torch.rand((), generator=setting.streams("t", seed).head(head)) for head in qkv.heads])
                    for seed in setting.seeds
                ]
            ).double()
            share = (draws > epsilon).double().mean(0)
            yes = torch.ones(qkv.h, dtype=torch.bool)
            yield Finding(
                "frequency",
                "none",
                yes,
                "a share above 1 − δ",
                torch.full_like(share, 1 - setting.delta),
                share,
                ~yes,
                d=d,
                at={"epsilon": epsilon, "delta": setting.delta},
                sense="at least",
                lower=share - 0.1,
                upper=share + 0.1,
                rounding=1e-12,
            )


def worst(qkv, setting):
    """The relative error of a method at most 1."""
    for method in setting.methods:
        for d in setting.budgets:
            measured = output_errors(exact(qkv), setting.run(method, d, setting.seeds[0]), qkv)
            measured = measured["output_spectral_relative"]
            yes = torch.ones(qkv.h, dtype=torch.bool)
            yield Finding(
                "worst",
                "none",
                yes,
                "‖E‖₂ at most ‖BV‖₂",
                torch.ones_like(measured),
                measured,
                ~yes,
                d=d,
                at={"method": method},
            )


def broken(qkv, setting):
    """One finding, and then an error."""
    yield next(first(qkv, setting))
    raise RuntimeError("the lemma has a bad day\nmore")


def curves(qkv, setting):
    """What the curves are drawn from: a dimension at every ε, errors of every seed, residuals of V."""
    yes = torch.ones(qkv.h, dtype=torch.bool)
    one = torch.arange(1.0, qkv.h + 1, dtype=torch.float64)
    shared = {"assumption": "none", "promise": "p", "met": yes, "vacuous": ~yes, "bound": one, "measured": one}
    for epsilon in setting.epsilons:
        details = {"d_stat": one / epsilon, "sufficient": 4 * one / epsilon}
        yield Finding("curves", at={"epsilon": epsilon}, details=details, **shared)
    yield Finding("curves", details={"relative": one / 2, "values": one / 3}, **shared)


def errors(qkv, setting):
    """Errors of three seeds of a method, one of them infinite."""
    yes = torch.ones(qkv.h, dtype=torch.bool)
    actual = torch.linspace(0.1, 0.9, 3 * qkv.h, dtype=torch.float64).reshape(qkv.h, 3)
    actual[0, 0] = math.inf
    for part in ("matrix", "output"):
        at = {"method": setting.methods[0], "of": part, "epsilon": 0.5}
        yield Finding(
            "errors",
            "none",
            yes,
            "p",
            actual[:, 0],
            actual[:, 1],
            ~yes,
            d=setting.budgets[0],
            at=at,
            details={"errors": actual},
        )


KINDS = {
    "first": first,
    "frequency": frequency,
    "worst": worst,
    "broken": broken,
    "rank-collapse": curves,
    "ma-property": errors,
}


def register(*names, per_method=("worst", "ma-property")):
    for name in names:
        says = KINDS[name].__doc__
        theorem(name, paper="Nobody 2026, Theorem 1", says=says, cost="n", per_method=name in per_method)(KINDS[name])


@pytest.fixture(autouse=True)
def theorems():
    """The theorems of these tests in place of the registered ones."""
    before = dict(THEOREMS)
    THEOREMS.clear()
    register("first", "frequency", "worst")
    yield
    THEOREMS.clear()
    THEOREMS.update(before)


@pytest.fixture
def file(tmp_path):
    """Q, K, V of 4 heads and 48 tokens."""
    return saved_heads(tmp_path, HEADS)


@pytest.fixture
def run(run):
    """``attnprobe theory`` in this process: ``(code, stdout, stderr)``."""
    return lambda *args: run(*args) if args[0] in ("sweep", "report", "compare") else run("theory", *args)


def measured(file, tmp_path, name="r", **rest):
    spec = {"qkv": str(file), "device": "cpu"}
    arguments = {"d": (8, 16), "repeats": 5, "methods": ("nystromformer",), "epsilon": (0.1, 0.5), **rest}
    return measure_theory(TheoryRequest(**spec, out=str(tmp_path / name), **arguments)).outcome


def rows_of(cells, kind="head"):
    """The rows of a kind, as `Run.frame` has them."""
    frame = frame_of(cells, SHAPE, kind, {cell["key"]: "" for cell in cells})
    return [
        {name: None if pd.isna(value) else value for name, value in row.items()} for row in frame.to_dict("records")
    ]


def verdicts_of(cell):
    """How many verdicts a cell has."""
    return sum(row.get("verdict") is not None for row in cell["rows"])


def test_a_cell_is_a_theorem_on_a_layer_with_a_row_for_each_statement_and_head(file, tmp_path):
    cells = measured(file, tmp_path).records
    expected = [("first", None, "ok"), ("frequency", None, "ok"), ("worst", "nystromformer", "ok")]
    assert [(r["theorem"], r["method"], r["status"]) for r in cells] == expected
    rows = [row for row in cells[0]["rows"] if row["kind"] == "head"]
    one, endless = rows[:HEADS], rows[HEADS:]
    assert [row["verdict"] for row in one] == [word for word in VERDICTS if word != "undecided"]
    assert one[2]["bound"] == "inf" == one[2]["slack"] and [row["slack"] for row in one[:2]] == [2.0, 0.5]
    assert {row["measured"] for row in endless} == {"-inf"} and {row["verdict"] for row in endless} == {"violated"}
    assert {row["at"] for row in endless} == {"kind=endless"} and {row["lower"] for row in endless} == {None}
    assert {row["rounding"] for row in one} == {0.0}
    details = [row for row in cells[0]["rows"] if row["kind"] == "detail" and row["head"] == 3]
    assert [(row["detail"], row["index"]) for row in details] == [("curve", 0), ("curve", 1), ("twice", None)]
    assert details[-1]["value"] == 2 * one[3]["measured"] == details[1]["value"]
    places = {(row["d"], row["epsilon"], row["delta"]): None for row in cells[1]["rows"]}
    assert [*places] == [(d, e, 0.1) for d in (8, 16) for e in (0.1, 0.5)]
    raw = (tmp_path / "r/rows.jsonl").read_text()
    assert "NaN" not in raw and "Infinity" not in raw
    manifest = json.loads((tmp_path / "r/manifest.json").read_text())
    assert manifest["command"] == "theory" and manifest["status"] == "finished"
    assert manifest["plan"]["theorems"] == ["first", "frequency", "worst"]
    assert manifest["plan"]["epsilons"] == [0.1, 0.5] and manifest["plan"]["repeats"] == 5


def test_draws_come_from_the_streams_of_head_layer_and_window(file, tmp_path):
    rows = measured(file, tmp_path, seed=3, epsilon=(0.5,), d=(8,)).records[1]["rows"]
    for head in range(HEADS):
        draws = [float(torch.rand((), generator=Streams(seed, "t").head(head))) for seed in range(3, 8)]
        assert rows[head]["measured"] == sum(x > 0.5 for x in draws) / 5


def test_rows_hold_what_was_measured(file, tmp_path):
    rows = rows_of(measured(file, tmp_path).records)
    assert len(rows) == HEADS * (2 + 4 + 2)
    qkv = load_qkv(qkv=str(file), n=48)
    for row in rows:
        if row["theorem"] == "worst":
            approx = approximate("nystromformer", qkv, row["d"])
            expected = output_errors(exact(qkv), approx, qkv)["output_spectral_relative"][row["head"]]
            assert row["measured"] == float(expected) and row["slack"] == pytest.approx(1 / float(expected))
            assert row["method"] == "nystromformer" and row["status"] == "ok"


def test_a_summary_counts_verdicts_and_takes_what_is_not_finite_for_infinite(file, tmp_path):
    measured(file, tmp_path)
    [shown] = views(open_run(tmp_path / "r"))
    lines = shown.rows
    assert len(lines) == 2 + 4 + 2
    one, endless = lines[:2]
    assert (
        one["verdicts"] == "holds 1, violated 1, vacuous 1, assumption not met 1" and one["values"] == one["heads"] == 4
    )
    assert one["violated.mean"] == 0.25 and one["slack.count"] == 4
    assert one["bound.p90"] == "inf" and one["bound.p10"] < math.inf
    assert endless["verdicts"] == "violated 4" and endless["measured.median"] == "-inf" == endless["slack.p10"]


def test_infinity_and_nan_are_told_apart(run, file, tmp_path):
    """A bound that is infinite is a fact and has a verdict; what is NaN is a failure, has none, and ends with 4."""

    def partly(qkv, setting):
        yes = torch.ones(qkv.h, dtype=torch.bool)
        measured = torch.tensor([1.0, math.nan, math.nan, math.nan], dtype=torch.float64)
        bound, met, vacuous = torch.full_like(measured, math.inf), yes.clone(), ~yes
        met[2], vacuous[3] = False, True
        yield Finding("partly", "a", met, "p", bound, measured, vacuous, details={"x": bound})

    theorem("partly", paper="p", says="s", cost="c")(partly)
    args = ("--qkv", file, "--theorem", "partly", "--out", "r")
    code, out, err = run(*args, "--plot")
    assert code == 4 and "nothing to compare: what was measured or its bound is NaN" in out
    (cell,) = read_records("r")
    assert (cell["status"], cell["reason"]) == ("diverged", "1 of 1 findings are NaN in some head")
    heads = [row for row in cell["rows"] if row["kind"] == "head"]
    assert [row["verdict"] for row in heads] == ["holds", None, "assumption not met", "vacuous"]
    assert [row["bound"] for row in heads] == ["inf"] * 4
    assert [row["value"] for row in cell["rows"] if row["kind"] == "detail"] == ["inf"] * 4
    assert [row["measured"] for row in heads] == [1.0, None, None, None]
    assert [row["slack"] for row in heads] == ["inf", None, None, None]
    assert [row["status"] for row in rows_of([cell])] == ["ok", "diverged", "ok", "ok"]
    shutil.rmtree("r/figures")  # what is there is drawn again
    code, out, err = run(*args, "--format", "json", "--fail-above", "violated=1")
    [line] = json.loads(out, parse_constant=pytest.fail)["rows"]
    assert (line["status"], line["measured.median"], line["bound.median"]) == ("diverged", 1.0, "inf")
    assert code == 1 and "diverged: nothing to compare" in err


def test_methods_matter_to_statements_about_methods_alone(file, tmp_path):
    measured(file, tmp_path)
    other = measured(file, tmp_path, methods=("skyformer,nystromformer",))
    assert other.done_before == 3 and other.measured == 1
    kinds = [(r["theorem"], r["method"]) for r in other.records]
    assert kinds[2:] == [("worst", "skyformer"), ("worst", "nystromformer")]


def test_a_method_that_is_refused_is_a_row_and_the_others_go_on(file, tmp_path):
    records = measured(file, tmp_path, methods=("nystromformer,performer",), d=(16, 64)).records
    rows = rows_of(records)
    worst = [row for row in rows if row["theorem"] == "worst"]
    skipped = [(row["method"], row["d"], row["status"], row["reason"]) for row in worst if row.get("verdict") is None]
    assert skipped == [("nystromformer", 64, "skipped", "nystromformer: d=64 exceeds n=48; choose d in 1..48")]
    expected = {("nystromformer", 16), ("performer", 16), ("performer", 64)}
    assert {(row["method"], row["d"]) for row in worst if row.get("verdict")} == expected
    [shown] = views(open_run(tmp_path / "r"))
    assert "– nystromformer, d = 64: nystromformer: d=64 exceeds n=48" in shown.text("table")
    outcome = measured(file, tmp_path, "s", methods=("nystromformer,performer",), d=(64,))
    state = [(r["method"], r["status"]) for r in outcome.records if r["theorem"] == "worst"]
    assert state == [("nystromformer", "skipped"), ("performer", "ok")]


def test_a_method_that_refuses_within_keeps_what_was_found_before(file, tmp_path, monkeypatch):
    import attnprobe.measure.theory.setting as loop

    def picky(name, qkv, d, **rest):
        if d == 16:
            raise Unsupported("d=16 is an unlucky number")
        return approximate(name, qkv, d, **rest)

    monkeypatch.setattr(loop, "approximate", picky)
    record = measured(file, tmp_path, theorems=("worst",)).records[0]
    assert record["status"] == "ok" and sum(row["head"] is not None for row in record["rows"]) == HEADS
    (row,) = [row for row in rows_of([record]) if row.get("verdict") is None]
    assert (row["status"], row["reason"]) == ("skipped", "d=16 is an unlucky number")
    with pytest.raises(UsageError, match="unlucky"):
        measured(file, tmp_path, "s", theorems=("worst",), d=(16,))


def test_a_theorem_that_raises_is_a_row_and_the_loop_goes_on(run, file, tmp_path):
    register("broken")
    code, out, err = run("--qkv", file, "--d", 8, "--out", "r")
    assert code == 4 and "RuntimeError: the lemma has a bad day" in out, err
    record = next(r for r in read_records("r") if r["theorem"] == "broken")
    assert record["status"] == "failed" and verdicts_of(record) == HEADS  # what was found before
    rows = [row for row in rows_of([record]) if row.get("verdict") is None]
    assert len(rows) == 1 and rows[0]["head"] is None
    THEOREMS.pop("broken")
    KINDS["broken"], kept = first, KINDS["broken"]
    try:
        register("broken")
        assert run("--qkv", file, "--d", 8, "--out", "r")[0] == 4  # it is done
        code, _, err = run("--qkv", file, "--d", 8, "--out", "r", "--retry-failed")
        assert code == 0, err
    finally:
        KINDS["broken"] = kept


def test_a_theorem_without_a_finding_and_one_that_takes_too_long(here, file, tmp_path):
    def nothing(qkv, setting):
        yield from ()

    def slow(qkv, setting):
        yield next(first(qkv, setting))
        end = time.monotonic() + 30
        while time.monotonic() < end:
            time.sleep(0.01)

    def confused(qkv, setting):
        raise UsageError("a value that no user gave")
        yield

    for name, check in (("nothing", nothing), ("slow", slow), ("confused", confused)):
        theorem(name, paper="p", says="s", cost="c")(check)
    records = measured(file, tmp_path, theorems=("nothing,slow,confused,first",), cell_timeout=0.3).records
    assert [r["status"] for r in records] == ["failed", "failed", "failed", "ok"]
    assert (
        records[0]["reason"] == "the theorem gave no finding"
        and "longer than --cell-timeout 0.3" in records[1]["reason"]
    )
    assert verdicts_of(records[1]) == HEADS


def test_a_device_out_of_memory_gets_another_try_and_no_finding_twice(file, tmp_path, monkeypatch):
    tries = []

    def hungry(qkv, setting):
        yield next(first(qkv, setting))
        tries.append(None)
        if len(tries) == 1:
            raise torch.OutOfMemoryError("full")

    theorem("hungry", paper="p", says="s", cost="c")(hungry)
    record = measured(file, tmp_path, theorems=("hungry",)).records[0]
    assert record["status"] == "ok" and verdicts_of(record) == HEADS and len(tries) == 2


def test_theorems_see_the_valid_tokens_alone(file, tmp_path):
    qkv = load_qkv(qkv=str(file), n=48)
    tensors = {name: getattr(qkv, name).contiguous() for name in "qkv"}
    save_file(tensors | {"mask": torch.arange(48) < 40}, tmp_path / "masked.safetensors")
    record = measured(tmp_path / "masked.safetensors", tmp_path, theorems=("first",)).records[0]
    assert [row["measured"] for row in record["rows"] if row["kind"] == "head"][:HEADS] == qkv.q[:, :40].double().norm(
        dim=(1, 2)
    ).tolist()


@pytest.mark.parametrize(
    ("more", "metadata", "why"),
    [
        ({}, {"sliding_window": "9"}, "attention has a sliding window"),
        ({"sink_logits": torch.zeros(HEADS)}, {}, "heads have their own sinks"),
        ({}, {"causal": "true"}, "attention is causal"),
    ],
)
def test_attention_that_is_not_to_all_tokens_is_skipped(file, tmp_path, more, metadata, why):
    save_file(load_file(file) | more, tmp_path / "other.safetensors", metadata)
    with pytest.raises(UsageError, match=why):
        measured(tmp_path / "other.safetensors", tmp_path, theorems=("first",))


@pytest.mark.parametrize("axis, size", [("q", 1e-80), ("k", 1e80), ("v", 1e-170), ("v", 1e170)])
def test_entries_whose_powers_leave_float64_are_skipped(file, tmp_path, axis, size):
    tensors = {name: x.double() for name, x in load_file(file).items()}
    save_file(tensors | {axis: tensors[axis] * size}, tmp_path / "far.safetensors")
    with pytest.raises(UsageError, match=f"the largest entry of {axis} is .*: scale it into 1e-75..1e"):
        measured(tmp_path / "far.safetensors", tmp_path, theorems=("first",), dtype="float64")
    save_file(tensors | {axis: tensors[axis] * 0}, tmp_path / "zero.safetensors")
    near = measured(tmp_path / "zero.safetensors", tmp_path, name="zero", theorems=("first",))
    assert near.records[0]["status"] != "skipped"


def test_the_target_is_that_of_statements_about_methods_alone(file, tmp_path):
    seen = {}

    def of_method(qkv, setting):
        seen["method"] = setting.target, setting.methods
        yield from worst(qkv, setting)

    def fixed(qkv, setting):
        seen["fixed"] = setting.target, setting.methods
        assert setting.run("nystromformer", 8, 0).operator is not None  # it takes softmax alone
        yield next(first(qkv, setting))

    theorem("of-method", paper="p", says="s", cost="c", per_method=True)(of_method)
    theorem("fixed", paper="p", says="s", cost="c")(fixed)
    arguments = {"theorems": ("of-method,fixed",), "methods": ("skyformer:sampler=iid",)}
    records = measured(file, tmp_path, target="gaussian", **arguments).records
    assert [record["status"] for record in records] == ["ok", "ok"]
    assert seen == {"method": ("gaussian", ("skyformer:sampler=iid",)), "fixed": ("softmax", ())}
    assert [record["target"] for record in records] == ["gaussian", None]
    assert measured(file, tmp_path, **arguments).done_before == 1


def test_the_list_runs_nothing(run):
    code, out, err = run("--list")
    assert code == 0 and not err and not Path("outputs").exists()
    for part in ("frequency", "Nobody 2026, Theorem 1", "A share over seeds", "cost: n", "tested for every --method"):
        assert part in out
    code, out, _ = run("--list", "--format", "json")
    assert [row["theorem"] for row in json.loads(out)["rows"]] == ["first", "frequency", "worst"]


@pytest.mark.parametrize(
    "args, word",
    [
        (("--theorem", "frequencey"), "did you mean 'frequency'"),
        (("--theorem", "first,"), "empty theorem"),
        (("--epsilon", "0.1,x"), "epsilon: 'x'"),
        (("--delta", "1"), "delta=1"),
        (("--d", "0"), "d: 0 is below 1"),
        (("--theorem", "frequency", "--d", "8,0"), "d: 0 is below 1"),
        (("--delta", "nan"), "delta=nan"),
        (("--theorem", "worst", "--d", "64", "--method", "nystromformer"), "exceeds n"),
        (("--layer", "4"), "layer 4"),
        (("--fail-above", "violatd=0"), "did you mean 'violated'"),
        (("--fail-above", "slack=1"), "larger is better"),
        (("--fail-above", "output_spectral=1"), "unknown metric"),
        (("--junit", "x.xml"), "--junit reports gates"),
    ],
)
def test_an_impossible_request_is_one_line_and_leaves_nothing(run, file, tmp_path, args, word):
    code, out, err = run("--qkv", file, "--d", "8", *args)
    assert code == 2 and word in err and len(err.strip().splitlines()) == 1 and not out
    assert not (tmp_path / "outputs").exists()


def test_a_method_that_cannot_run_does_not_refuse_theorems_without_methods(run, file):
    code, out, err = run("--qkv", file, "--d", "64", "--method", "nystromformer", "--repeats", 3)
    assert code == 0 and "exceeds n=48" in out and "violated" in out, err


def test_a_gate_turns_a_violated_theorem_into_exit_1(run, file, tmp_path):
    args = ("--qkv", file, "--d", "8", "--theorem", "first", "--out", "r")
    assert run(*args)[0] == 0
    code, _, err = run(*args, "--fail-above", "violated=0.3", "--junit", "gates.xml")
    assert code == 1 and "violated.mean <= 0.3: first n=48 layer=0 at = kind=endless" in err
    assert 'failures="1"' in (tmp_path / "gates.xml").read_text()
    assert run(*args, "--fail-above", "violated=1")[0] == 0
    code, _, err = run(*args, "--fail-above", "bound.max=100")
    assert code == 1 and "no finite value" in err  # an infinite bound fails closed


SWEEP = """
command: theory
qkv: qkv.safetensors
theorems: [first, worst]
method:
  - {name: nystromformer, options: {inverse: pinv}}
d: [8, 16]
epsilon: [0.1, 0.5]
repeats: 3
plot: true
"""


@pytest.mark.slow
def test_a_sweep_has_gates_of_theorems(run, file, tmp_path):
    Path("c.yaml").write_text(SWEEP)
    assert run("sweep", "c.yaml", "--out", "r")[0] == 0
    gates = "gates: [{metric: measured, max: 1000, theorem: worst, method: nystromformer, d: 16}]\n"
    Path("c.yaml").write_text(SWEEP + gates)
    code, _, err = run("sweep", "c.yaml", "--out", "r")
    assert code == 0 and "1 checked, 0 failed" in err, err
    Path("c.yaml").write_text(SWEEP + "gates: [{metric: slack, stat: p10, min: 1, theorem: first}]\n")
    code, _, err = run("sweep", "c.yaml", "--out", "r")
    assert code == 1 and "2 checked, 2 failed" in err
    for gate, word in (
        ("{metric: slack, max: 1}", "give min"),
        ("{metric: violated, max: 0, theorm: x}", "theorem"),
        ("{metric: bad_rows, max: 0}", "unknown metric"),
    ):
        Path("c.yaml").write_text(f"{SWEEP}gates: [{gate}]\n")
        code, _, err = run("sweep", "c.yaml", "--out", "r")
        assert code == 2 and word in err and "c.yaml:11: gate 1" in err
    Path("c.yaml").write_text(SWEEP + "gates: [{metric: violated, max: 0, theorem: wurst}]\n")
    code, _, err = run("sweep", "c.yaml", "--out", "r")
    assert code == 1 and "no row of the theorem 'wurst'; did you mean 'worst'?" in err


def test_compare_refuses_a_run_of_theory(run, file):
    run("--qkv", file, "--d", 8, "--theorem", "first", "--out", "r")
    code, _, err = run("compare", "r", "r")
    assert (
        code == 2
        and "it holds cells of `theory`; compare takes two runs of `error`, of `rounding`, of `bench`, of `inject`"
        in err
    )


def test_weights_stand_side_by_side(run, tiny_bert, text_file):
    options = "--weights pretrained,initialized --n 24 --d 4 --layer 0-1 --windows 2 --theorem frequency --repeats 2"
    code, out, err = run("--model", tiny_bert, "--text", text_file, *options.split(), "--plot", "--out", "r")
    assert code == 0, err
    assert len(read_records("r")) == 2 * 2 * 2
    assert "pretrained, scores" not in out and "initialized" in out and "Nobody 2026, Theorem 1: " in out


@pytest.mark.slow
def test_curves_of_dimensions_failures_and_layers(run, tiny_bert, text_file):
    THEOREMS.clear()
    register("rank-collapse", "ma-property")
    options = "--weights pretrained --n 24,32 --d 4 --layer 0,1 --method performer --plot --out r"
    args = ("--model", tiny_bert, "--text", text_file, *options.split())
    code, _, err = run(*args)
    assert code == 0, err
    names = {path.stem for path in Path("r/figures").glob("theory-*.svg")}
    curves = {"theory-dimension", "theory-tokens", "theory-failures", "theory-collapse"}
    assert curves <= names
    one = ("--layer", 0, "--n", 24, "--out", "s")
    run(*args, *one)
    assert not {path.stem for path in Path("s/figures").iterdir()} & {"theory-tokens", "theory-collapse"}


def test_the_python_door_gives_findings(file):
    qkv = load_qkv(qkv=str(file), n=48)
    actual = findings(qkv, "frequency", d=(8, 16), epsilon=0.5, delta=0.2, seeds=range(3, 8))
    assert [(one.d, one.at) for one in actual] == [(d, {"epsilon": 0.5, "delta": 0.2}) for d in (8, 16)]
    assert len(findings(qkv, d=8, methods=("nystromformer:inverse=pinv",))) == 2 + 4 + 1
    with pytest.raises(Unsupported):
        findings(qkv, "worst", d=64, methods=["nystromformer"])
    with pytest.raises(UsageError, match="did you mean 'first'"):
        findings(qkv, "frist")
    for words, rest in (
        ("unknown target 'softmx'; did you mean 'softmax'", {"target": "softmx"}),
        ("no seeds", {"seeds": range(0)}),
        ("no epsilon", {"epsilon": ()}),
        ("no budget", {"d": ()}),
    ):
        with pytest.raises(UsageError, match=words):
            findings(qkv, "first", **rest)
    with pytest.raises(UsageError, match="no theorem"):
        question_of([], (0.1,), 0.1, None)
    masked = type(qkv)(qkv.q, qkv.k, qkv.v, mask=torch.arange(48) < 40)
    shorter = type(qkv)(qkv.q[:, :40], qkv.k[:, :40], qkv.v[:, :40])
    assert torch.equal(findings(masked, "first")[0].measured, findings(shorter, "first")[0].measured)
