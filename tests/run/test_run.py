"""The plan of a run with its default budget, its cells, estimates of them, and its loop."""

import json
import re
import signal
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from shutil import rmtree
from time import sleep

import pytest
import torch
from error_rows import in_lists, known, lines_of_cells
from folders import saved_layers
from safetensors.torch import save_file

from attnprobe.errors import UsageError
from attnprobe.frame.records import read_records
from attnprobe.machine.timings import Timings
from attnprobe.measure import experiment, read_run
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.measure.error.measure import ErrorCells
from attnprobe.methods import by_family
from attnprobe.run import estimate
from attnprobe.run.costs import SAMPLED
from attnprobe.run.estimate import estimate_cells, speed
from attnprobe.run.limits import CellTimeout, time_limit
from attnprobe.run.plan import ErrorPlan, parse_methods


@pytest.fixture
def source(tmp_path):
    return {"qkv": str(saved_layers(tmp_path, 80)), "device": "cpu"}


def measured(source, tmp_path, name="r", **rest):
    outcome = measure_errors(ErrorRequest(**source, out=str(tmp_path / name), **{"d": (8,), **rest})).outcome
    return {cell["key"]: in_lists(cell) for cell in outcome.records}, outcome


def names(texts, target="softmax"):
    return [(request.name, dict(request.options)) for request in parse_methods(texts, target)]


def test_methods_take_options_lists_and_repeats():
    expected = [("skyformer", {"sampler": "iid", "share_heads": True}), ("vmean", {}), ("svd", {})]
    assert names(["skyformer:sampler=iid,share_heads=true,vmean", "svd"]) == expected
    twice = names(["skyformer,skyformer:sampler=wor,skyformer"])
    assert twice == [("skyformer", {}), ("skyformer", {"sampler": "wor"})]


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("skyformer:guard=sampled:inverse=pinv", "skyformer:guard=sampled,inverse=pinv"),
        ("vmean,skyformer:sampler=iid,guard=none:gamma=2", "guard=none,gamma=2"),
        ("./mine.py:fn:k=4:b=2", "./mine.py:fn:k=4,b=2"),
    ],
)
def test_colons_between_options_are_answered_with_commas(text, joined):
    with pytest.raises(UsageError, match=f"join options by commas: {joined}$"):
        parse_methods([text], "softmax")


def test_an_option_at_its_default_is_not_an_option():
    assert names(["skyformer:n_iter=6,gamma=none,share_heads=false"]) == [("skyformer", {})]


def test_all_is_every_method_of_that_kind():
    assert [name for name, _ in names(["all"])] == [m.name for m in by_family() if m.kind == "method"]


MALFORMED = (
    *("skyformer:sampler", "skyformer:=1", "skyformer:sampler=", "n_iter=4", "", "vmean,,svd"),
    *("skyformer:n_iter=6.5", "skyformer:share_heads=1", "skyformer:n_iter=1,n_iter=2"),
)


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_method_is_refused(text):
    with pytest.raises(UsageError):
        parse_methods([text], "softmax")


def test_the_forward_is_shared_and_cells_are_complete(source, tmp_path):
    records, outcome = measured(
        source, tmp_path, methods=("skyformer,nystromformer",), n=(40, 80), layer=(0, 2), windows=2, repeats=3, d=(4, 8)
    )
    per_place = 2 + 1 + 2 * 3 + 2  # bounds, V-Mean, Skyformer's budgets and seeds, Nyströmformer once per budget
    assert len(records) == outcome.measured == per_place * 2 * 2 * 2
    assert {(r["n"], r["layer"], r["window"]) for r in records.values()} == {
        (n, layer, window) for n in (40, 80) for layer in (0, 2) for window in (0, 1)
    }


def test_repeats_differ_and_a_deterministic_method_has_one(source, tmp_path):
    records, _ = measured(source, tmp_path, methods=("skyformer,nystromformer",), repeats=3, seed=5)
    sky = [r for r in records.values() if r["method"] == "skyformer"]
    assert sorted(r["seed"] for r in sky) == [5, 6, 7] and len({r["draws_hash"] for r in sky}) == 3
    assert sum(r["method"] == "nystromformer" for r in records.values()) == 1


def test_the_order_and_company_of_cells_do_not_matter(source, tmp_path):
    alone, _ = measured(source, tmp_path, "a", methods=("skyformer",), layer=(2,), d=(8,))
    among, _ = measured(source, tmp_path, "b", methods=("svd,nystromformer,skyformer",), layer=(0, 2), d=(4, 8, 16))
    for key, record in alone.items():
        assert among[key]["metrics"] == record["metrics"] and among[key]["draws_hash"] == record["draws_hash"]


def test_a_head_alone_has_the_numbers_it_has_among_others(source, tmp_path):
    every, _ = measured(source, tmp_path, "a")
    alone, _ = measured(source, tmp_path, "b", head=(2,))

    def value(actual, place):
        return next(r for r in actual.values() if r["method"] == "skyformer")["metrics"]["output_spectral"][place]

    assert value(alone, 0) == pytest.approx(value(every, 2), rel=1e-10)


def test_the_manifest_says_which_values_a_request_in_python_gave(source, tmp_path):
    request = ErrorRequest(**source, methods=("vmean",), n=(64,), seed=0, out=str(tmp_path / "r"))
    measure_errors(replace(request, seed=3))
    config = json.loads((tmp_path / "r" / "manifest.json").read_text())["config"]
    given = {name for name, one in config.items() if one["origin"] == "python"}
    assert given == {"qkv", "device", "methods", "n", "seed", "out"}
    assert {one["origin"] for name, one in config.items() if name not in given} == {"default"}


def test_a_finished_run_is_not_measured_again_and_an_enlarged_one_is_added_to(source, tmp_path):
    first, _ = measured(source, tmp_path, d=(4,))
    again, outcome = measured(source, tmp_path, d=(4,))
    assert outcome.measured == 0 and outcome.done_before == 3 and known(again) == known(first)
    more, outcome = measured(source, tmp_path, d=(4, 8))
    assert outcome.measured == 2 and known({key: more[key] for key in first}) == known(first)


def test_a_run_without_a_folder_is_named_by_its_start_command_and_request(source, tmp_path):
    measure_errors(ErrorRequest(**source, methods=("vmean",), d=(4,), base=str(tmp_path / "runs")))
    (made,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch("[0-9]{8}-[0-9]{6}-error-[0-9a-f]{6}", made.name), made


def test_a_source_that_fails_leaves_no_folder(tmp_path, source):
    broken = tmp_path / "nan.safetensors"
    q = torch.full((1, 8, 4), float("nan"))
    save_file({"q": q, "k": q.clone(), "v": q.clone()}, broken)
    with pytest.raises(Exception, match="nan"):
        measure_errors(ErrorRequest(qkv=str(broken), d=(4,), out=str(tmp_path / "gone")))
    assert not (tmp_path / "gone").exists()


def test_what_a_run_that_ends_with_nothing_leaves(tmp_path, source):
    """A folder that it made is gone, and one that was there stays; what it wrote while another deleted it is told."""
    given = {"methods": ("nystromformer",), "d": (80,), "n": (16,)}
    (tmp_path / "there").mkdir()
    for name, shard, stays in (("there", None, True), ("new", None, False), ("shards", "1/2", False)):
        with pytest.raises(UsageError, match="d=80 exceeds n=16"):
            measure_errors(ErrorRequest(**source, out=str(tmp_path / name), shard=shard, **given))
        assert (tmp_path / name).is_dir() is stays
    with pytest.raises(UsageError, match="vanished while the run was writing to it"):
        measure_errors(
            ErrorRequest(**source, out=str(tmp_path / "gone"), methods=("vmean",), d=(4,), n=(16,)),
            progress=lambda *_: rmtree(tmp_path / "gone", ignore_errors=True),
        )


def test_a_shard_may_have_no_cells(tmp_path, source):
    given = {"methods": ("vmean",), "d": (4,), "n": (16,), "layer": (0,)}
    records = [measured(source, tmp_path, **given, shard=shard)[0] for shard in ("1/2", "2/2")]
    assert sorted(map(len, records)) == [0, 2]


def test_a_dry_run_counts_failed_cells_that_are_tried_again(tmp_path, source):
    given = {"methods": ("vmean",), "d": (4,), "n": (16,), "layer": (0,)}
    measured(source, tmp_path, **given)
    path = tmp_path / "r/rows.jsonl"
    path.write_text(path.read_text().replace('"status":"ok"', '"status":"failed","reason":"x"', 1))
    for retry, done in ((False, [True, True]), (True, [False, True])):
        request = ErrorRequest(**source, out=str(tmp_path / "r"), retry_failed=retry, **given)
        assert sorted(cell.done for cell in estimate_cells(experiment("error").cells, request)) == done


def test_a_list_that_is_none_is_shown_one(source):
    with pytest.raises(UsageError, match=r"methods=None: a tuple is needed, such as \("):
        ErrorRequest(**source, methods=None)


def test_a_plan_that_nothing_can_run_says_why():
    plan = ErrorPlan(tuple(parse_methods(["nystromformer,svd"], "softmax")), (16,), (17, 32), (0,), None)
    assert "d=17 exceeds n=16" in (plan.refusal() or "")
    assert ErrorPlan(plan.methods, (16,), (16, 17), (0,), None).refusal() is None


def test_the_same_tensors_under_another_name_are_the_same_cells(source, tmp_path):
    first, _ = measured(source, tmp_path, "a")
    copy = tmp_path / "elsewhere.safetensors"
    copy.write_bytes((tmp_path / "qkv.safetensors").read_bytes())
    second, _ = measured({"qkv": str(copy), "device": "cpu"}, tmp_path, "b")
    assert first.keys() == second.keys()


def test_the_shift_of_each_head_is_in_the_record(source, tmp_path):
    records, _ = measured(source, tmp_path, methods=("mss:rank=4", "mss-literal", "nystromformer"))
    shifts = {record["method"]: record["metrics"].get("delta") for record in records.values()}
    assert len(shifts["mss"]) == 3 and max(shifts["mss"]) > 0
    assert shifts["mss-literal"] == [0.0] * 3 and shifts["nystromformer"] is None


@pytest.mark.parametrize("value", ['"x"', "[1]", "{}"])
def test_a_row_of_other_values_counts_as_not_measured_and_is_measured_again(source, tmp_path, value):
    before, _ = measured(source, tmp_path, methods=("vmean",), n=(40,))
    path = tmp_path / "r/rows.jsonl"
    *rest, last = lines_of_cells(path)
    spoilt = re.sub(rb'"output_spectral":[^,}]*', f'"output_spectral":{value}'.encode(), last, count=1)
    path.write_bytes(b"".join([*rest, spoilt]))
    notes = []
    request = ErrorRequest(**source, out=str(tmp_path / "r"), d=(8,), methods=("vmean",), n=(40,))
    outcome = measure_errors(request, notify=notes.append).outcome
    assert outcome.measured == 1 and len(lines_of_cells(path)) == len(before) + 1
    assert [line for line in notes if "counts as not measured" in line and f"{path}:" in line]
    assert {cell["key"]: in_lists(cell)["metrics"] for cell in read_records(path)} == {
        key: one["metrics"] for key, one in before.items()
    }
    assert measure_errors(request).outcome.measured == 0 and not read_run(path).malformed


@pytest.mark.parametrize("raises", [False, True])
def test_a_limit_leaves_the_alarm_as_it_was(raises):
    def mine(*_):
        raise AssertionError("the alarm of somebody else")

    before = signal.signal(signal.SIGALRM, mine)
    try:
        with suppress(ValueError), time_limit(30):
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
            if raises:
                raise ValueError
        assert signal.getsignal(signal.SIGALRM) is mine and signal.getitimer(signal.ITIMER_REAL) == (0, 0)
        with pytest.raises(CellTimeout, match="took longer"), time_limit(0.05):
            signal.pause()
    finally:
        signal.signal(signal.SIGALRM, before)


WAIT = 0.05  # seconds, ten times those of a sample


@pytest.mark.parametrize("waits", [(), (1, 2, 3)])
def test_the_time_in_which_other_programs_run_counts(waits, monkeypatch):
    """Of four samples three wait for other programs, or none."""
    output, calls = estimate.exact_output, count()

    def delayed(qkv):
        if next(calls) % 4 in waits:
            sleep(WAIT)
        return output(qkv)

    monkeypatch.setattr(estimate, "exact_output", delayed)
    work, state = speed()
    if waits:
        assert state == "busy machine" and 0 < work < SAMPLED / (0.6 * WAIT)
    else:
        assert work > SAMPLED / (0.6 * WAIT)


def test_a_dry_run_says_whether_the_machine_is_busy(run, qkv):
    code, out, _ = run("error", "--qkv", qkv, "--d", 8, "--dry-run")
    assert code == 0 and re.search(r"^about .* \((busy|idle) machine\), .* of it before the first cell; ", out, re.M)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("error", {"methods": ("topk",), "rows": True}),
        ("error", {"methods": ("topk",), "matrix": True}),
        ("audit", {"methods": ("vattention",), "repeats": 10}),
    ],
)
def test_the_work_of_some_queries_is_their_share(tmp_path, command, words):
    """The work of 64 of 1024 queries is far below that of all: each of them counts with the keys of all tokens."""
    path = tmp_path / "qkv.safetensors"
    save_file({name: torch.ones(2, 1024, 8) for name in "qkv"}, path)
    request = partial(experiment(command).request, qkv=str(path), d=(16,), **words)
    every, some = (
        sum(cell.work for cell in estimate_cells(experiment(command).cells, request(queries=queries)))
        for queries in (None, "last:64")
    )
    assert 0 < some < every / 5


DEFAULT = {"d": "default"}


@pytest.mark.parametrize(
    "n, methods, origin, expected",
    [
        (96, ("skyformer",), DEFAULT, (4,)),  # half of the 8 columns of V
        (3, ("skyformer", "nystromformer"), DEFAULT, (1,)),  # nystromformer takes up to n
        (96, ("skyformer", "nystromformer"), {"d": "command line"}, (128,)),
        (96, ("skyformer", "nystromformer"), {}, (128,)),  # from Python, nobody knows that none was given
    ],
)
def test_the_default_budget_fits_the_tokens_and_every_method(qkv, n, methods, origin, expected):
    lines: list[str] = []
    request = ErrorRequest(qkv=str(qkv), n=(n,), methods=methods, origin=origin, device="cpu")
    cells = ErrorCells(request, lines.append, Timings())
    assert cells.parts[0][1].d == expected
    assert [f"d={expected[0]}, not the default" in line for line in lines] == [True] * (expected == (1,))


def test_budgets_that_were_given_are_measured(run, qkv):
    code, _, err = run("error", "--qkv", qkv, "--n", 40, "--d", 128, "--out", "r")
    assert code == 2 and "d=128 exceeds n_q + n_k=80" in err


@pytest.mark.parametrize(
    "command",
    [
        "theory --qkv qkv.safetensors --n 64 --repeats 1 --theorem eckart-young,topk-tv,wildcat-trace",
        "stability --task listops:n=64,batch=2 --steps 1 --seeds 1 --condition-tokens 0",
    ],
)
def test_every_default_method_runs_on_few_tokens(run, qkv, tmp_path, command):
    code, _, err = run(*command.split(), "--device", "cpu", "--out", "r")
    records = read_records(tmp_path / "r")
    assert code == 0 and {record["status"] for record in records} == {"ok"}, err


def test_a_theorem_that_takes_no_budget_says_which_it_takes(run, qkv):
    code, _, err = run("theory", "--qkv", qkv, "--theorem", "wildcat-trace", "--d", 200, "--repeats", 1, "--out", "r")
    assert code == 2 and "d=200 exceeds n_k=96; choose d in 1..96" in err


def test_an_option_that_is_named_twice_is_refused():
    with pytest.raises(UsageError, match="^window: option sinks is given twice$"):
        parse_methods(["window:sinks=1,sinks=2"], "softmax")
