"""Costs: products against hand counts, planted growth, a known allocation, the command, its records and comparisons."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnprobe.errors import UsageError
from attnprobe.frame.read import frame_of
from attnprobe.frame.records.read import read_records
from attnprobe.inputs import RandomSource
from attnprobe.judge.gates import check
from attnprobe.judge.parse import parse_gate, parse_gates
from attnprobe.judge.runs import compare_runs
from attnprobe.judge.times import times
from attnprobe.measure import experiment
from attnprobe.measure.bench import GATED as BENCH
from attnprobe.measure.bench import BenchRequest, measure_bench
from attnprobe.measure.bench.calls import Work, load_call, save_inputs
from attnprobe.methods import METHODS
from attnprobe.metrics import cost
from attnprobe.metrics.cost import counted_flops, interleaved, leading_products, peak_bytes
from attnprobe.operators.precision import product
from attnprobe.qkv import QKV
from attnprobe.reference import exact_output
from attnprobe.run.estimate import estimate_cells
from attnprobe.run.provenance import machine
from attnprobe.show.catalogue.bench import exponent, growth
from attnprobe.show.header import Header
from attnprobe.show.page import open_run, views
from attnprobe.show.shown import Catalogue, Shown


def inputs(n=64, heads=2, p=8):
    return RandomSource(heads, p, "cpu").qkv(n, [0], 0)[0]


def counted(name, n=64, d=16, heads=3, p=8):
    return counted_flops(lambda: Work(name, d if METHODS[name].budget else None).run(inputs(n, heads, p)))


def test_products_are_those_counted_by_hand():
    """Two operations a multiply-add: Q Kᵀ and B V; φ(K)ᵀ V and φ(Q) times it; projections of Q, K and the two again."""
    n, d, h, p = 64, 16, 3, 8
    assert counted_flops(lambda: Work("exact").run(inputs(n, h, p))) == 2 * h * (n * n * p + n * n * p)
    assert counted("softmax") == 2 * h * 2 * n * n * p
    assert counted("linear") == 2 * h * 2 * n * p * p
    assert counted("performer") == 2 * h * (2 * n * d * p + 2 * n * d * p)
    assert counted("linformer") == 2 * h * (2 * n * d * p + 2 * n * d * p)  # two sketches, scores, values
    assert counted("vmean") == 2 * h * n * p


def test_large_products_are_counted_whichever_library_makes_them():
    a, b = torch.ones(2, 128, 64), torch.ones(2, 64, 256)  # 2^21 multiply-adds a head: oneDNN's, with AVX-512
    product(a, b)  # the first product asks for the library by a small one
    assert counted_flops(lambda: product(a, b)) == 2 * 2 * 128 * 64 * 256


@pytest.mark.parametrize("name", [name for name, one in METHODS.items() if "O(" not in one.cost and one.kind != "user"])
def test_products_are_about_what_the_leading_cost_says(name, monkeypatch):
    """At sizes where each term stands apart; selections, the rest of a block and d x d work are lower order."""
    monkeypatch.setattr("attnprobe.operators.sparse.STREAMED", 1)  # the cost is that of gathered keys
    n, d, h, p = 512, 160 if name == "tri-shape" else 32, 1, 16  # tri-shape has 100 full rows
    if METHODS[name].max_n or "softmax" not in METHODS[name].targets:
        pytest.skip("not at this size")
    expected = 2 * h * leading_products(METHODS[name].cost, n, d, p)
    assert 0.5 * expected <= counted(name, n, d, h, p) <= 2 * expected


def test_every_cost_in_the_registry_can_be_read():
    for entry in METHODS.values():
        actual = leading_products(entry.cost, 100, 10, 4)
        assert (actual is None) == entry.cost.startswith("O("), entry.name
        assert actual is None or actual > 0
    assert leading_products("4 n d p", 100, None, 4) is None
    assert leading_products("n² (p + d)", 10, 3, 4) == 700 and leading_products("n √n p", 100, 1, 4) == 4000


def test_exponents_of_planted_costs():
    for power in (1.0, 1.5, 2.0):
        cost = {n: 3e-9 * n**power for n in (2048, 4096, 8192, 16384)}
        assert exponent({512: 1.0, 1024: 1.0, **cost}) == pytest.approx(power, abs=1e-9)
    assert exponent({1024: 1.0, 2048: 2.0}) is None and exponent({}) is None
    noisy = {2048: 1.0, 4096: 2.2, 8192: 3.8, 16384: 8.0}
    expected = np.polyfit(np.log(list(noisy)), np.log(list(noisy.values())), 1)[0]
    assert exponent(noisy) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_growth_says_what_the_tag_says(name):
    """Of the leading cost; the rest, such as the score of every page of keys, has a small constant.

    A format saves bytes, not work.
    """
    leading = re.sub(r" \+ O\(.*\)$", "", METHODS[name].cost)
    yardstick = "diagnostic" in METHODS[name].tags
    assert (growth(leading) in ("n²", "n³")) == (yardstick or METHODS[name].format is not None)


def allocation(mebibytes):
    """A call that holds so many MiB for a moment."""
    return lambda: torch.ones(mebibytes * 2**18).sum()


def projection(n):
    """A call whose library keeps buffers after its first large product."""
    x = torch.ones(n, 64)
    return lambda: x @ torch.ones(64, 64)


def broken():
    raise RuntimeError("no such call")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak of the resident set")
@pytest.mark.parametrize("mebibytes", [8, pytest.param(64, marks=pytest.mark.slow)])
def test_peak_memory_of_a_known_allocation(mebibytes):
    actual = peak_bytes(allocation, mebibytes) / 2**20
    assert mebibytes - 1 <= actual <= mebibytes + 2


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak of the resident set")
def test_buffers_of_libraries_are_not_a_cost_of_the_call():
    assert peak_bytes(projection, 8192) / 2**20 <= 2 + 1.5  # the product alone has 2 MiB


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak of the resident set")
def test_peak_memory_of_a_call_that_raises():
    with pytest.raises(RuntimeError, match="no such call"):
        peak_bytes(broken)


def test_calls_take_turns_and_warm_up_is_not_kept():
    order = []
    actual = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, rounds=3)
    assert {name: len(times) for name, times in actual.items()} == {"a": 3, "b": 3}
    assert "".join(dict.fromkeys(order)) == "ab" and "ba" in "".join(order)
    assert all(time > 0 for times in actual.values() for time in times)


@pytest.mark.parametrize("seconds, repeats", [(0.001, 5), (0.0011, 5), (0.005, 1), (0.05, 1), (2.0, 1)])
def test_a_short_call_is_repeated_until_five_milliseconds_and_a_long_one_warms_up_once(seconds, repeats, monkeypatch):
    now, calls, told = [0.0], [], []

    def call():
        calls.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(cost, "clock", lambda: now[0])
    actual = interleaved({"it": call}, rounds=3, progress=lambda done, name: told.append((done, name)))
    assert actual["it"] == pytest.approx([seconds] * 3)
    assert len(calls) == 3 * repeats + (1 if seconds > 0.05 else 2)
    assert told == [(done, "it") for done in range(4)]


def test_peak_memory_is_told_by_linux_alone(monkeypatch):
    monkeypatch.setattr(cost, "Path", lambda _: SimpleNamespace(exists=lambda: False))
    assert peak_bytes(allocation, 1) is None


def measured(tmp_path, name="r", **rest):
    arguments = {
        "methods": ("performer,linear",),
        "n": (32, 64),
        "d": (8,),
        "p": 8,
        "rounds": 2,
        "memory": False,
        **rest,
    }
    source = {"device": "cpu", "dtype": arguments.pop("dtype", "float32")}
    return measure_bench(BenchRequest(**source, out=str(tmp_path / name), **arguments)).outcome


def by_name(records):
    return {(one["method"], one["n"], one["d"]): one for one in records}


def of_kind(cell, kind):
    """The rows of one kind of a cell."""
    return [row for row in cell["rows"] if row["kind"] == kind]


def test_records_say_what_was_measured_and_under_what_conditions(tmp_path):
    records = measured(tmp_path, memory=True, errors=True).records
    assert [(one["method"], one["n"]) for one in records] == [
        (name, n) for n in (32, 64) for name in ("exact", "vmean", "performer", "linear")
    ]
    where = machine("cpu")
    for one in records:
        rounds = of_kind(one, "time")
        assert one["status"] == "ok" and one["command"] == "bench" and one["heads"] == [0, 1]
        assert [row["round"] for row in rounds] == [0, 1] and one["rounds"] == 2
        assert one["seconds"] == pytest.approx(sum(row["seconds"] for row in rounds) / 2)
        assert all(row["ratio_to_exact"] == row["seconds"] / row["exact_seconds"] for row in rounds)
        assert one["peak_bytes"] is None or one["peak_bytes"] >= 0
        assert {name: one[name] for name in where} == where and all(one[name] for name in ("torch", "python"))
        assert one["load"] >= 0 and (one["clock_mhz"] is None or one["clock_mhz"] > 0)
        assert [row["head"] for row in of_kind(one, "head")] == [0, 1]
    actual = by_name(records)
    assert actual["exact", 64, None]["flops"] == 2 * 2 * 2 * 64 * 64 * 8
    assert [row["visited"] for row in of_kind(actual["performer", 64, 8], "head")] == [64 * 2 * 8] * 2
    assert all("output_spectral_relative" in row for row in of_kind(actual["performer", 64, 8], "head"))
    assert of_kind(actual["exact", 64, None], "head") == [
        {"kind": "head", "head": head, "visited": 64**2, "stored_bits": 16.0} for head in (0, 1)
    ]


def test_a_round_is_a_row_and_a_head_is_a_row(tmp_path):
    measured(tmp_path)
    run = open_run(tmp_path / "r")
    rounds, heads = run.frame("time"), run.frame()
    assert len(rounds) == 8 * 2 and len(heads) == 8 * 2
    assert (rounds["ratio_to_exact"] == rounds["seconds"] / rounds["exact_seconds"]).all()
    medians = rounds.groupby("key")["seconds"].median()
    assert heads["seconds"].tolist() == pytest.approx(heads["key"].map(medians).tolist())
    exact = rounds.query("method == 'exact'")
    assert (exact["ratio_to_exact"] == 1).all() and exact["repeated_seconds"].notna().all() and exact["reference"].all()
    assert set(exact["kernel"]) == {"fused"}


def test_exact_attention_by_the_own_kernel_is_not_called_fused(tmp_path, monkeypatch):
    """Torch refuses its kernel in half precision on some processors."""

    def refused(*_, **__):
        raise RuntimeError("pack_vnni2 is only supported when avx512 is supported")

    measured(tmp_path, "torch", n=(32,))
    monkeypatch.setattr("attnprobe.reference.attention", refused)
    measured(tmp_path, "own", n=(32,))
    for name, kernel in (("torch", "fused"), ("own", "attnprobe's kernel")):
        [shown] = views(open_run(tmp_path / name))
        assert f"exact ({kernel})" in shown.text("table"), name
        assert f"exact ({kernel})" in shown.text("md"), name


def test_without_a_time_of_exact_attention_there_is_no_ratio(tmp_path, monkeypatch):
    """Its call raises in a round; the time of a call that does nothing was taken for its time."""
    calls = []

    def tired(qkv):
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("tired")
        return qkv.v.clone()

    monkeypatch.setattr("attnprobe.measure.bench.calls.own_output", tired)
    actual = by_name(measured(tmp_path, methods=("linear",), n=(64,)).records)
    assert actual["exact", 64, None]["status"] == "failed" and "tired" in actual["exact", 64, None]["reason"]
    rounds = of_kind(actual["linear", 64, None], "time")
    assert all(row["seconds"] > 0 and row["exact_seconds"] is row["ratio_to_exact"] is None for row in rounds)


def known(cell):
    """The fields of a cell that have a value; a file that is read has the others as null."""
    return {name: value for name, value in cell.items() if value is not None}


def test_a_run_is_gone_on_with_and_forced(tmp_path):
    first = measured(tmp_path)
    before = read_records(tmp_path / "r")
    again = measured(tmp_path)
    assert first.measured == 8 and again.measured == 0 and list(map(known, again.records)) == list(map(known, before))
    more = measured(tmp_path, n=(32, 64, 48))
    assert more.measured == 4 and more.done_before == 8
    assert measured(tmp_path, rounds=3).done_before == 0 and measured(tmp_path, backward=True).done_before == 0
    assert measured(tmp_path, force=True).measured == 8


def test_what_is_missing_of_a_length_is_measured_beside_exact_attention(tmp_path):
    before = measured(tmp_path, methods=("linear",))
    after = measured(tmp_path, methods=("linear,performer",))
    assert after.measured == 2 and after.done_before == before.measured == 6
    assert all(row["ratio_to_exact"] > 0 for row in of_kind(by_name(after.records)["performer", 64, 8], "time"))


def test_yardsticks_stop_at_their_length_with_the_reason(tmp_path):
    records = measured(tmp_path, methods=("amm,svd,linear",), quadratic_n=40).records
    actual = by_name(records)
    assert actual["amm", 32, 8]["status"] == "ok" and actual["amm", 64, 8]["status"] == "skipped"
    assert (
        "costs n² p + 2 n d p: called up to n=40, n=64 needs a larger --quadratic-n" in actual["amm", 64, 8]["reason"]
    )
    assert "n=10" in actual["svd", 32, 8]["reason"] and actual["linear", 64, None]["status"] == "ok"


def test_the_estimate_has_no_call_that_is_not_made_and_no_scores_of_linear_methods():
    request = BenchRequest(methods=("amm,linformer",), n=(8192, 16384), d=(8,), quadratic_n=4096)
    cells = estimate_cells(experiment("bench").cells, request)
    works = {(cell.name, cell.place[1]): cell.work for cell in cells}
    assert works["amm", 8192] == works["amm", 16384] == 0
    assert works["linformer", 16384] < 2 * works["linformer", 8192]  # a call has a constant part
    assert works["exact", 16384] > 3 * works["exact", 8192]


@pytest.mark.parametrize("memory", [False, True])
def test_the_memory_of_calls_is_a_part_of_the_progress(tmp_path, monkeypatch, memory):
    """Of short calls it takes most of the time."""
    monkeypatch.setattr("attnprobe.measure.bench.measure.peak_bytes", lambda *words, **further: 1)
    told = []
    request = BenchRequest(
        methods=("linear",), n=(32,), p=8, rounds=2, memory=memory, device="cpu", out=str(tmp_path / "r")
    )
    measure_bench(request, progress=lambda done, total, label: told.append((label, done / total)))
    shares = [share for label, share in told if ", call " in label]
    assert max(shares) > 0.5 if not memory else 0 < max(shares) < 0.3
    last = [share for label, share in told if label.startswith("n=32 memory of linear")]
    assert len(last) == memory and all(2 / 3 < share < 0.75 for share in last)


def test_what_cannot_be_is_skipped(tmp_path):
    actual = by_name(measured(tmp_path, methods=("linformer,spectral-shift",), d=(8, 48)).records)
    assert actual["linformer", 32, 48]["status"] == "skipped" and "d=48" in actual["linformer", 32, 48]["reason"]
    assert "does not take target=softmax" in actual["spectral-shift", 32, 8]["reason"]
    assert actual["linformer", 64, 48]["status"] == "ok"


def test_a_call_that_raises_in_a_later_round_does_not_stop_the_others(tmp_path, monkeypatch):
    calls = []

    def tired(*args, **options):
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("tired")
        return METHODS["linear"].function(*args, **options)

    monkeypatch.setitem(METHODS, "efficient", replace(METHODS["efficient"], function=tired))
    actual = by_name(measured(tmp_path, methods=("efficient,performer",), n=(64,)).records)
    assert actual["efficient", 64, None]["status"] == "failed" and "tired" in actual["efficient", 64, None]["reason"]
    assert actual["performer", 64, 8]["status"] == "ok" and len(of_kind(actual["performer", 64, 8], "time")) == 2
    [shown] = views(open_run(tmp_path / "r"))
    assert "efficient: RuntimeError: tired" in shown.text("table")  # of its rows, those of its heads are there
    before = by_name(read_records(tmp_path / "r"))
    again = by_name(measured(tmp_path, methods=("efficient,performer",), n=(64,), retry_failed=True).records)
    assert again["efficient", 64, None]["reason"] == "RuntimeError: tired"
    assert known(again["performer", 64, 8]) == known(before["performer", 64, 8])


def test_a_process_that_dies_leaves_the_times(tmp_path, monkeypatch):
    def killed(*_, **__):
        raise RuntimeError("killed")

    monkeypatch.setattr("attnprobe.measure.bench.measure.peak_bytes", killed)
    actual = by_name(measured(tmp_path, methods=("linear",), n=(32,), memory=True).records)["linear", 32, None]
    assert actual["status"] == "ok" and actual["reason"] == "no peak memory: RuntimeError: killed"
    assert "peak_bytes" not in actual and len(of_kind(actual, "time")) == 2


FORMS = {
    "windows and sinks": {"causal": True, "sliding_window": 5, "sinks": 2, "sink_logits": torch.tensor([0.5, -0.5])},
    "both sides": {"sliding_window": 5},
    "some queries": {"causal": True, "positions": torch.tensor([3, 30, 12])},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_from_a_file_is_that_of_the_inputs(form, tmp_path):
    tokens = torch.randn(3, 2, 40, 4, generator=torch.Generator().manual_seed(0))
    q, k, v = tokens.double()
    q = q[:, : len(FORMS[form].get("positions", q[0]))]
    qkv = QKV(q, k, v, **FORMS[form])
    save_inputs(tmp_path / "inputs", qkv)
    for work in (Work("exact"), Work("softmax")):
        loaded = load_call(str(tmp_path / "inputs"), work, "cpu")().output
        assert (loaded - exact_output(qkv)).abs().max() < 1e-12


def test_the_gradient_is_that_of_the_sum_of_the_output():
    qkv = inputs(16, 1, 4)
    leaves = [x.clone().requires_grad_() for x in (qkv.q, qkv.k, qkv.v)]
    torch.softmax(leaves[0] @ leaves[1].mT / 2, -1).matmul(leaves[2]).sum().backward()
    for name in ("exact", "softmax"):
        actual = Work(name, backward=True).call(qkv)()
        for ours, leaf in zip(actual, leaves, strict=True):
            assert torch.allclose(ours, leaf.grad, atol=1e-5), name


@pytest.mark.parametrize("name", ["window", "longformer", "bigbird", "nystromformer", "mss"])
def test_methods_that_are_exact_have_the_exact_gradient(name):
    qkv = inputs(16, 2, 4).to(dtype=torch.float64)
    d, options = METHODS[name].exact_at(16)
    ours, theirs = (Work(*arguments, backward=True).call(qkv)() for arguments in ((name, d, options), ("softmax",)))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-8)


def test_backward_says_whom_a_gradient_reaches_and_skips_what_has_none(tmp_path, monkeypatch):
    linear = METHODS["linear"].function

    def opaque(qkv, d, **options):
        with torch.no_grad():
            return linear(qkv, d, **options)

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            raise RuntimeError("no second way\nback")

    def broken(qkv, d, **options):
        approx = linear(qkv, d, **options)
        return replace(approx, output=Once.apply(approx.output))

    monkeypatch.setitem(METHODS, "efficient", replace(METHODS["efficient"], function=opaque))
    monkeypatch.setitem(METHODS, "linear", replace(METHODS["linear"], function=broken))
    actual = by_name(measured(tmp_path, methods=("performer,efficient,linear",), backward=True, n=(64,)).records)
    assert actual["linear", 64, None]["status"] == "skipped"
    assert actual["linear", 64, None]["reason"] == "does not differentiate: no second way"
    assert actual["exact", 64, None]["gradient_of"] == "QKV" and actual["vmean", 64, None]["gradient_of"] == "V"
    assert actual["performer", 64, 8]["gradient_of"] == "QKV"
    assert actual["efficient", 64, None]["status"] == "skipped"
    assert actual["efficient", 64, None]["reason"] == "does not differentiate: no gradient reaches its output"
    forward = counted_flops(lambda: Work("performer", 8).run(inputs()))
    assert actual["performer", 64, 8]["flops"] > 2 * forward
    assert actual["performer", 64, 8]["leading_flops"] is None


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_any_dtype(tmp_path, dtype):
    actual = by_name(measured(tmp_path, dtype=dtype, methods=("linear",), n=(64,)).records)
    assert actual["exact", 64, None]["status"] == "ok" and actual["linear", 64, None]["status"] in ("ok", "diverged")


def test_random_inputs_are_the_same_whoever_asks():
    first, again = inputs(), inputs()
    assert torch.equal(first.q, again.q) and torch.equal(first.v, again.v) and not torch.equal(first.q, first.k)
    assert torch.equal(RandomSource(2, 8, "cpu", "float64").qkv(64, [0], 0)[0].k, first.k.double())
    with pytest.raises(UsageError, match="have only layer 0"):
        RandomSource(2, 8, "cpu").check(8, 1, [1])


def test_inputs_that_no_memory_holds_are_refused_before_they_are_made():
    page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    fits = page * pages // (3 * 2 * 8 * 4)
    RandomSource(2, 8, "cpu").check(fits, 1, [0])
    with pytest.raises(UsageError, match=r"n=\d+ of 2 heads and p=8 needs [\d,.]+ GiB, and this machine has"):
        RandomSource(2, 8, "cpu").check(fits + 1, 1, [0])


def benched(ratio=2.0, spread=0.0, floor=1.0, peak=2**21, error=None, **fields):
    """Cells of performer and of exact attention, which is timed twice, in five rounds of one machine."""
    steps = [-2 * spread, -spread, 0.0, spread, 2 * spread]  # half the range of their quartiles is the spread
    place = {"schema": 2, "kind": "cell", "command": "bench", "target": "softmax", "n": 64, "layer": 0, "window": 0}
    state = {"source": {}, "options": "", "heads": [0, 1], "status": "ok", "reason": None, "family": "x"}
    state |= {"cost": "n d p", "peak_bytes": peak, "flops": 8.0, "rounds": 5, "backward": False}
    facts = {"device": "cpu", "cpu": "any", "threads": 2, "cores": 2, "system": "any"}
    known = {"torch": "2", "python": "3", "attnprobe": "0"}
    here = {**place, **state, **facts, **known, "load": 0.5} | fields

    def cell(name, times, repeated, own):
        one = {**here, "method": name, **own}
        key = "-".join(str(one[part]) for part in ("method", "n", "layer", "d"))
        rows = rounds_of(times, repeated=repeated)
        rows += [{"kind": "head", "head": head, "output_spectral_relative": error} for head in (0, 1)]
        return {**one, "key": key, "rows": rows, "lines": len(rows), "seconds": sorted(times)[2]}

    ours = {"d": 8, "requested": True, "reference": False}
    exact = {"d": None, "requested": False, "reference": True, "kernel": "fused"}
    return [
        cell("performer", [ratio + step for step in steps], [None] * 5, ours),
        cell("exact", [1.0] * 5, [floor + step for step in steps], exact),
    ]


def rounds_of(times, exact=1.0, repeated=None):
    rows = [
        {"kind": "time", "round": number, "seconds": own, "exact_seconds": exact, "ratio_to_exact": own / exact}
        for number, own in enumerate(times)
    ]
    return [{**row, "repeated_seconds": again} for row, again in zip(rows, repeated or [None] * len(rows), strict=True)]


def shown(cells):
    """What is shown of some cells."""
    types = experiment("bench").shape
    cells = [{**cell, "rows": [{**row, "key": cell["key"]} for row in cell["rows"]]} for cell in cells]
    assert not [problem for cell in cells if (problem := types.problem(cell))]

    def frame(kind):
        return frame_of(cells, types, kind, {cell["key"]: "" for cell in cells})

    return Shown("bench", Catalogue.of("bench"), frame, Header())


def test_growth_is_read_off_the_rounds():
    cells = []
    for n in (1024, 2048, 4096, 8192):  # the first is below those that are fitted
        for cell in benched(n=n, peak=n):
            power, size = {"exact": (2, 1e-9), "performer": (1, 1e-5)}[cell["method"]]
            times = [size * n**power * (1 + number * n / 1e5) for number in range(3)]
            rows = [*rounds_of(times if n > 1024 else [9.0] * 3), *cell["rows"][5:]]
            cells.append({**cell, "rows": rows, "lines": len(rows)})
    [*_, (_, lines)] = shown(cells).lines
    actual = {line["name"]: line for line in lines.to_dict("records")}
    for name, power in (("exact", 2), ("performer", 1)):
        slopes = [
            power + np.polyfit(np.log([2048, 4096, 8192]), np.log([1 + r * n / 1e5 for n in (2048, 4096, 8192)]), 1)[0]
            for r in range(3)
        ]
        assert actual[name]["time_exponent"] == pytest.approx(slopes[1])
        assert actual[name]["time_exponent_spread"] == pytest.approx((slopes[2] - slopes[0]) / 4, rel=0.1)
        assert actual[name]["memory_exponent"] == pytest.approx(1) and actual[name]["growth"] == "n"
    assert "growth" not in [table.table.name for table in shown(cells[:4]).tables]  # one length is fitted


def test_conditions_stand_above_the_tables():
    cells = [{**cell, "clock_mhz": 2000.4 + n, "load": None} for n in (16, 64) for cell in benched(n=n)]
    lines = Catalogue.of("bench").conditions(shown(cells).frame("cell"))
    assert lines == [
        "machine: cpu, any, 2016 – 2064 MHz, 2 threads of 2 cores, any",
        "timed: medians of 5 interleaved rounds, torch 2, Python 3, attnprobe 0",
    ]
    elsewhere = [{**cell, "cpu": "another", "key": f"{cell['key']}-b", "layer": 1} for cell in benched()]
    assert len(Catalogue.of("bench").conditions(shown([*cells, *elsewhere]).frame("cell"))) == 4


def test_times_without_those_of_exact_attention_have_no_ratio():
    cells = benched(n=4096, cost=None)
    for cell in cells:
        cell["rows"] = [{**row, "exact_seconds": None, "ratio_to_exact": None} for row in cell["rows"][:5]]
        cell["lines"] = 5
    text = shown(cells).text("table")
    assert "time / exact" not in text and "claimed" not in text and "performer" in text


def of_layers_and_budgets():
    """Cells of performer, of which no exact attention was measured."""
    cells = [
        {**cell, "key": f"{cell['key']}-{layer}-{d}", "layer": layer, "d": d, "backward": True, "gradient_of": "QKV"}
        for n in (64, 128)
        for layer, d in ((0, 8), (0, 16), (1, 8))
        for cell in benched(n=n, error=0.5)[:1]
    ]
    lost = {"status": "failed", "reason": "no memory", "rows": [], "lines": 0, "peak_bytes": None, "seconds": None}
    exact = [{**cell, **lost} for cell in benched()[1:]]
    return shown([*cells, *exact])


def test_a_table_of_layers_and_budgets_without_yardsticks():
    text = of_layers_and_budgets().text("table")
    assert "no memory" in text and "QKV" in text


@pytest.mark.slow
def test_figures_of_layers_and_budgets_without_yardsticks(tmp_path):
    found = of_layers_and_budgets()
    assert {name for name, figure in found.figures.items() if figure.draw(tmp_path)} == {
        *("bench-time", "bench-memory", "bench-pareto", "bench-pareto-memory", "bench-pareto-products")
    }


@pytest.fixture
def bench(run):
    """``attnprobe bench`` in this process: ``(code, stdout, stderr)``."""
    return lambda *args: run("bench", *args)


def test_the_command_draws_each_length(bench):
    options = "--method performer,linear --errors --no-memory --plot --out r --format json"
    code, out, err = bench("--n 32,64 --d 8 --p 8 --rounds 2 --device cpu", options)
    assert code == 0, err
    figures = {path.stem for path in Path("r/figures").iterdir()}
    assert figures == {"bench-time", "bench-pareto", "bench-pareto-products"}
    options = "--method linear --rounds 1 --no-memory --out s --plot bench-time"
    assert bench("--n 32,64 --d 8 --p 8 --device cpu", options)[0] == 0
    assert {path.stem for path in Path("s/figures").iterdir()} == {"bench-time"}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak of the resident set")
def test_memory_has_a_figure_of_its_own(bench):
    code, out, err = bench(
        "--n", "512,1024", "--rounds", 1, "--method", "linear", "--device", "cpu", "--plot", "--out", "r"
    )
    assert code == 0 and "MiB" in out, err
    assert {path.stem for path in Path("r/figures").iterdir()} == {"bench-time", "bench-memory"}


@pytest.mark.parametrize(
    "args, message",
    [
        (("--source", "file"), "source 'file'"),
        (("--n", "a"), "not a whole number"),
        (("--d", "0", "--method", "performer"), "d: 0 is below 1; write a whole number from 1 on"),
        (("--heads", "0"), "heads=0"),
        (("--quadratic-n", "1"), "quadratic-n=1"),
        (
            ("--method", "amm", "--n", "64", "--d", "8", "--quadratic-n", "32"),
            "amm costs n² p + 2 n d p: called up to n=3",
        ),
        (("--model", "minilm"), "--model needs --source model, but the source is random"),
        (("--layer", "1"), "--layer needs --source model, but the source is random"),
        (("--source", "model", "--heads", "4"), "--heads needs --source random, but the source is model"),
    ],
)
def test_what_cannot_be_asked_for_exits_2_and_leaves_nothing(bench, args, message):
    code, out, err = bench("--device", "cpu", "--out", "r", *args)
    assert code == 2 and message in err and out == "" and not Path("r").exists(), err


def test_a_file_of_queries_is_a_source(bench, qkv):
    options = f"--qkv {qkv} --d 8 --method linear --rounds 1 --no-memory --format json --device cpu"
    code, out, err = bench("--source model", options)
    assert code == 0, err
    rows = [row for row in json.loads(out)["rows"] if row["table"] == "work"]
    error = "output_spectral_relative.median"
    assert {row["n"] for row in rows} == {96} and all(row[error] is not None for row in rows if row["name"] != "exact")
    assert {row["heads"] for row in rows} == {2}
    code, out, err = bench("--source model --head 1", options)
    assert code == 0 and {row["heads"] for row in json.loads(out)["rows"] if row["table"] == "work"} == {1}, err
    code, _, err = bench("--source", "model", "--qkv", "nowhere.safetensors")
    assert code == 3 and "does not exist" in err


def test_a_command_without_gates_refuses_them(run, tmp_path):
    Path("g.yaml").write_text("command: spectrum\ngates: [{metric: seconds, max: 1}]\n")
    code, _, err = run("sweep", "g.yaml")
    assert code == 2 and "g.yaml:2: spectrum takes no gates" in err


def test_runs_of_different_machines_are_not_compared(run, tmp_path):
    measured(tmp_path, "a")
    lines = (tmp_path / "a/rows.jsonl").read_text().splitlines()
    (tmp_path / "b").mkdir()
    other = [json.loads(line) for line in lines]
    for one in other:
        one |= {"cpu": "Z80", "threads": 64} if "schema" in one else {}
    (tmp_path / "b/rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in other))
    code, _, err = run("compare", "a", "b")
    threads = machine("cpu")["threads"]
    assert code == 2 and "Z80" in err and f"threads {threads} in A, 64 in B" in err


def test_a_slower_method_is_a_regression(run, tmp_path):
    measured(tmp_path, "a", n=(64,))
    lines = [json.loads(line) for line in (tmp_path / "a/rows.jsonl").read_text().splitlines()]
    for name, factor in (("same", 1.0), ("slow", 3.0)):
        methods = {one["key"]: one["method"] for one in lines if "schema" in one}
        for one in (line for line in lines if line["kind"] == "time"):
            time = {"performer": 2 * factor, "exact": 1.0}.get(methods[one["key"]], 2.0)
            scale = (1.0, 1.01)[one["round"]]
            one |= {"exact_seconds": scale, "seconds": scale * time, "ratio_to_exact": time}
            one |= {"repeated_seconds": scale} if "repeated_seconds" in one else {}
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert run("compare", "same", "same")[0] == 0
    code, out, err = run("compare", "same", "slow", "--format", "json")
    assert code == 1, err
    worse = [(row["method"], row["metric"]) for row in json.loads(out)["rows"] if row["verdict"] == "worse"]
    assert worse == [("performer", "ratio_to_exact")]
    assert run("compare", "slow", "same")[0] == 0
    assert run("compare", "same", "slow", "--metric", "flops")[0] == 0
    assert run("compare", "same", "slow", "--metric", "speed")[0] == 2
    actual = compare_runs(read_records("same"), read_records("slow"), ["seconds"])
    assert [row["method"] for row in actual.regressions] == ["performer"]
    text = " ".join(run("compare", "same", "slow")[1].split())
    assert "over heads" not in text and "s.e." not in text


def test_exact_attention_is_its_own_measure():
    """It is timed twice in each round: by definition its ratio is 1, and what its two times give is noise."""
    performer, exact = times(shown(benched(2.0, floor=1.17)).frame("time")).to_dict("records")
    assert (exact["ratio_to_exact"], exact["ratio_to_exact_spread"], exact["seconds"]) == (1.0, 0.0, 1.0)
    assert exact["noise_floor"] == performer["noise_floor"] == pytest.approx(1.17)
    assert performer["ratio_to_exact"] == pytest.approx(2.0)
    [alone] = times(shown(benched(2.0)[:1]).frame("time")).to_dict("records")
    assert alone["noise_floor"] is None


def test_a_time_within_the_noise_is_undecided():
    """The spreads of both runs together, and what exact attention is off from itself."""

    def judge(a, b, metric="ratio_to_exact"):
        return compare_runs(benched(**a), benched(**b), [metric]).rows[0]

    noisy = judge({"spread": 0.2}, {"ratio": 2.3, "spread": 0.2})
    expected = ("undecided", "rounds", "within the noise of the rounds, 0.4")
    assert (noisy["verdict"], noisy["test"], noisy["reason"]) == expected
    assert judge({"spread": 0.1}, {"ratio": 2.3, "spread": 0.1})["verdict"] == "worse"
    assert judge({"floor": 1.17}, {"ratio": 2.3})["verdict"] == "undecided"  # 0.17 of 2
    assert judge({"floor": 1.17}, {"ratio": 2.3}, "seconds")["verdict"] == "worse"
    assert judge({"ratio": 2.0}, {"ratio": 2.05})["verdict"] == "same"
    once = [[{**one, "rows": rounds_of([t])} for one in benched()] for t in (2.0, 3.0)]
    (row, _) = compare_runs(*once, ["ratio_to_exact"]).rows
    assert (row["verdict"], row["reason"]) == ("undecided", "one round has no spread")


def test_memory_below_a_page_of_the_allocator_is_no_change():
    def judge(a, b):
        return compare_runs(benched(peak=a), benched(peak=b), ["peak_bytes"]).rows[0]["verdict"]

    assert judge(2_290_000, 2_670_000) == "same" and judge(2_290_000, 3_400_000) == "worse"
    assert judge(200 * 2**20, 230 * 2**20) == "worse" and judge(200 * 2**20, 209 * 2**20) == "same"


def test_a_bench_is_not_compared_with_errors(run, tmp_path, qkv):
    measured(tmp_path, "a", n=(64,))
    assert run("error", "--qkv", qkv, "--d", 8, "--no-matrix", "--out", "e")[0] == 0
    code, _, err = run("compare", "a", "e")
    assert code == 2 and "bench" in err


def judged(text, found):
    """What became of a gate at the lines of a view, which makes them once, by method and n."""
    results = check(found.gate_lines, [parse_gate(text, BENCH)])
    return {result.where: result.passed for result in results}


def gated(n, times, d=8, **fields):
    """A cell of performer with these times, of which exact attention takes a millisecond, and exact attention."""
    cells = benched(n=n, error=0.1, **fields)
    for cell in cells:
        rows = rounds_of(times, exact=1e-3)
        rows += [{"kind": "head", "head": head, "scored": 3.0, "kv_read": 7.0} for head in (0, 1)]
        cell |= {"rows": rows, "lines": len(rows)}
    return cells


def test_gates_judge_costs_over_rounds_and_growth_over_lengths():
    cells = [cell for n, t in ((2048, 1e-3), (4096, 4e-3)) for cell in gated(n, [t, 3 * t, 2 * t])]
    found = shown(cells)
    expected = {"performer d=8 n=2048 layer=0": True, "performer d=8 n=4096 layer=0": False}
    assert judged("ratio_to_exact.median=2.1", found) == expected
    assert list(judged("ratio_to_exact.max=11.9", found).values()) == [True, False]
    assert list(judged("seconds=0.005", found).values()) == [True, False]
    assert list(judged("kv_read=6.9", found).values()) == [False, False]
    assert list(judged("scored=3.1", found).values()) == [True, True]
    assert judged("time_exponent=1.99", found) == {"performer d=8 layer=0": False}
    assert judged("time_exponent=2.01", found) == {"performer d=8 layer=0": True}
    assert judged("memory_exponent=0.01", found) == {"performer d=8 layer=0": True}


def test_gates_on_what_was_not_measured_fail():
    cells = [cell for n in (64, 128) for cell in gated(n, [1e-3] * 3, peak=None)]
    assert set(judged("peak_bytes=1e12", shown(cells)).values()) == {False}
    assert set(judged("time_exponent=9", shown(cells)).values()) == {False}  # no two lengths from 2048 on
    assert set(judged("output_spectral=9", shown(cells)).values()) == {False}
    for cell in cells:
        cell["rows"][-1]["output_spectral"] = 0.1  # of one head
    assert set(judged("output_spectral=9", shown(cells)).values()) == {False}
    with pytest.raises(UsageError, match="time_exponent describes all n together; leave n out"):
        parse_gates([{"metric": "time_exponent", "max": 1, "n": 64}], BENCH)


def test_a_failed_gate_exits_1(run, tmp_path):
    base = ("bench", "--method", "linear", "--n", "32", "--rounds", "2", "--no-memory", "--p", "8")
    code, _, err = run(*base, "--fail-above", "seconds=0", "--junit", "gates.xml")
    assert code == 1 and "gate failed: seconds.mean <= 0: linear n=32" in err and (tmp_path / "gates.xml").exists()
    code, _, err = run(*base, "--fail-above", "seconds.max=60")
    assert code == 0 and "gates passed" in err
    gates = "gates: [{metric: output_spectral, max: 1}]\n"
    Path("c.yaml").write_text(f"command: bench\nmethod: linear\nn: 32\nrounds: 2\nerrors: false\n{gates}")
    code, _, err = run("sweep", "c.yaml")
    assert code == 2 and "only --errors measures output_spectral" in err
    Path("c.yaml").write_text(
        "command: bench\nmethod: linear\nn: 32\nrounds: 2\nmemory: false\n"
        "gates: [{metric: seconds, stat: median, max: 0}]\n"
    )
    assert run("sweep", "c.yaml")[0] == 1


def test_bits_of_caches_are_those_of_what_stays(tmp_path):
    """Of 64 tokens: a format's bits, a policy's share of 16, both, and none of a method that is no cache."""
    methods = ("q4_0", "snapkv:observe=8", "snapkv+q4_0:observe=8", "kivi:exact=0,bits=4", "skyformer", "topk")
    run = measure_bench(
        BenchRequest(
            methods=methods, n=(64,), d=(16,), heads=2, p=32, rounds=1, memory=False, out=str(tmp_path / "run")
        )
    )
    bits = {}
    for cell in run.outcome.records:
        heads = [row for row in cell["rows"] if row["kind"] == "head"]
        bits[cell["method"]] = {row.get("stored_bits") for row in heads}
    assert bits["q4_0"] == {4.5} and bits["snapkv"] == {4.0} and bits["snapkv+q4_0"] == {4.5 / 4}
    assert bits["kivi"] == {5.0} and bits["skyformer"] == bits["topk"] == {None} and bits["exact"] == {16.0}
