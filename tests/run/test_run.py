"""The plan of a run, its cells and its loop."""

import json
import re
import signal
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from attnprobe.errors import UsageError
from attnprobe.experiments import read_run
from attnprobe.experiments.error import ErrorRequest, measure_errors
from attnprobe.methods import by_family
from attnprobe.records import read_records
from attnprobe.run.limits import CellTimeout, time_limit
from attnprobe.run.plan import ErrorPlan, parse_methods


@pytest.fixture
def source(tmp_path):
    q, k, v = torch.randn(3, 3, 80, 8, generator=torch.Generator().manual_seed(1))
    tensors = {
        f"layer{layer}.window{window}.{axis}": (x * (1 + layer) + window).contiguous()
        for layer in (0, 2)
        for window in (0, 1)
        for axis, x in zip("qkv", (q, k, v), strict=True)
    }
    save_file(tensors, tmp_path / "qkv.safetensors")
    return {"qkv": str(tmp_path / "qkv.safetensors"), "device": "cpu"}


def measured(source, tmp_path, name="r", **rest):
    outcome = measure_errors(ErrorRequest(**source, out=str(tmp_path / name), **{"d": (8,), **rest})).outcome
    return {record["key"]: record for record in outcome.records}, outcome


def names(texts, target="softmax"):
    return [(request.name, dict(request.options)) for request in parse_methods(texts, target)]


def test_methods_take_options_lists_and_repeats():
    expected = [("skyformer", {"sampler": "iid", "share_heads": True}), ("vmean", {}), ("svd", {})]
    assert names(["skyformer:sampler=iid,share_heads=true,vmean", "svd"]) == expected
    twice = names(["skyformer,skyformer:sampler=wor,skyformer"])
    assert twice == [("skyformer", {}), ("skyformer", {"sampler": "wor"})]


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
    assert outcome.measured == 0 and outcome.done_before == 3 and again == first
    more, outcome = measured(source, tmp_path, d=(4, 8))
    assert outcome.measured == 2 and {key: more[key] for key in first} == first


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


@pytest.mark.parametrize("metrics", ['{"output_spectral":["x"]}', '{"output_spectral":3}', '"x"', "[1]"])
def test_a_record_of_other_values_counts_as_not_measured_and_is_measured_again(source, tmp_path, metrics):
    before, _ = measured(source, tmp_path, methods=("vmean",), n=(40,))
    path = tmp_path / "r/records.jsonl"
    *rest, last = path.read_text().splitlines()
    path.write_text("\n".join([*rest, re.sub(r'"metrics":\{[^}]*\}', f'"metrics":{metrics}', last)]) + "\n")
    notes = []
    request = ErrorRequest(**source, out=str(tmp_path / "r"), d=(8,), methods=("vmean",), n=(40,))
    outcome = measure_errors(request, notify=notes.append).outcome
    assert outcome.measured == 1 and len(path.read_text().splitlines()) == len(before) + 1
    assert [line for line in notes if "counts as not measured" in line and f"{path}:{len(before)}: record" in line]
    assert {one["key"]: one["metrics"] for one in read_records(path)} == {
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
