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
from matplotlib.figure import Figure
from showing import files_of

from attnprobe.compare.runs import compare_runs
from attnprobe.errors import UsageError
from attnprobe.experiments import experiment
from attnprobe.experiments.bench import GATED as BENCH
from attnprobe.experiments.bench import BenchRequest, figures, measure_bench
from attnprobe.experiments.bench.calls import Work, load_call, save_inputs
from attnprobe.experiments.bench.timing import ERROR, bench_summary, exponent, growth
from attnprobe.experiments.bench.view import bench_judged, timed_rows
from attnprobe.figures.costs import Point, frontier
from attnprobe.gates.check import check
from attnprobe.gates.parse import parse_gate, parse_gates
from attnprobe.methods import METHODS
from attnprobe.metrics import cost
from attnprobe.metrics.cost import counted_flops, interleaved, leading_products, peak_bytes
from attnprobe.operators.precision import product
from attnprobe.qkv import QKV
from attnprobe.records.read import read_records
from attnprobe.reference import exact_output
from attnprobe.run.estimate import estimate_cells
from attnprobe.run.provenance import machine
from attnprobe.sources import RandomSource

CONTRACT = {"method", "n", "d", "seconds", "peak_bytes", "flops", "visited", "ratio_to_exact"}


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
    """Of the leading cost; the rest, such as the score of every page of keys, has a small constant."""
    leading = re.sub(r" \+ O\(.*\)$", "", METHODS[name].cost)
    assert (growth(leading) in ("n²", "n³")) == ("diagnostic" in METHODS[name].tags)


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


def test_records_say_what_was_measured_and_under_what_conditions(tmp_path):
    records = measured(tmp_path, memory=True, errors=True).records
    assert [(one["method"], one["n"]) for one in records] == [
        (name, n) for n in (32, 64) for name in ("exact", "vmean", "performer", "linear")
    ]
    for one in records:
        metrics = one["metrics"]
        assert one["status"] == "ok" and one["command"] == "bench" and one["heads"] == [0, 1]
        assert len(metrics["seconds"]) == len(metrics["exact_seconds"]) == 2
        assert metrics["peak_bytes"][0] is None or metrics["peak_bytes"][0] >= 0
        assert one["machine"] == machine("cpu") and set(one["versions"]) == {"attnprobe", "python", "torch"}
        assert one["load"] >= 0 and (one["clock_mhz"] is None or one["clock_mhz"] > 0)
    actual = by_name(records)
    assert actual["exact", 64, None]["metrics"]["flops"] == [2 * 2 * 2 * 64 * 64 * 8]
    assert actual["performer", 64, 8]["metrics"]["visited"] == [2 * 64 * 8] * 2
    assert len(actual["performer", 64, 8]["metrics"]["output_spectral_relative"]) == 2
    assert "output_spectral_relative" not in actual["exact", 64, None]["metrics"]


def test_rows_hold_what_the_contract_says(tmp_path):
    rows = timed_rows(measured(tmp_path).records)
    assert all(set(row) >= CONTRACT for row in rows)
    for row in rows:
        ours, other = row["seconds_rounds"], [t / r for t, r in zip(row["seconds_rounds"], [1, 1], strict=True)]
        assert row["seconds"] == pytest.approx(sum(ours) / 2) and row["seconds_spread"] == pytest.approx(
            abs(ours[0] - other[1]) / 4
        )
        assert row["ratio_to_exact"] > 0 and row["peak_bytes"] is None and row["error"] is None
    [exact] = [row for row in rows if row["method"] == "exact" and row["n"] == 64]
    assert exact["visited"] == 2 * 64**2 and exact["visited_fraction"] == 1 and exact["reference"]


def test_a_run_is_gone_on_with_and_forced(tmp_path):
    first = measured(tmp_path)
    again = measured(tmp_path)
    assert first.measured == 8 and again.measured == 0 and again.records == first.records
    more = measured(tmp_path, n=(32, 64, 48))
    assert more.measured == 4 and more.done_before == 8
    assert measured(tmp_path, rounds=3).done_before == 0 and measured(tmp_path, backward=True).done_before == 0
    assert measured(tmp_path, force=True).measured == 8


def test_what_is_missing_of_a_length_is_measured_beside_exact_attention(tmp_path):
    before = measured(tmp_path, methods=("linear",))
    after = measured(tmp_path, methods=("linear,performer",))
    assert after.measured == 2 and after.done_before == before.measured == 6
    rows = {(row["method"], row["n"]): row for row in timed_rows(after.records)}
    assert rows["performer", 64]["ratio_to_exact"] > 0


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
    monkeypatch.setattr("attnprobe.experiments.bench.measure.peak_bytes", lambda *words, **further: 1)
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
    assert actual["performer", 64, 8]["status"] == "ok" and len(actual["performer", 64, 8]["metrics"]["seconds"]) == 2
    again = by_name(measured(tmp_path, methods=("efficient,performer",), n=(64,), retry_failed=True).records)
    assert again["efficient", 64, None]["reason"] == "RuntimeError: tired"
    assert again["performer", 64, 8] == actual["performer", 64, 8]


def test_a_process_that_dies_leaves_the_times(tmp_path, monkeypatch):
    def killed(*_, **__):
        raise RuntimeError("killed")

    monkeypatch.setattr("attnprobe.experiments.bench.measure.peak_bytes", killed)
    actual = by_name(measured(tmp_path, methods=("linear",), n=(32,), memory=True).records)["linear", 32, None]
    assert actual["status"] == "ok" and actual["reason"] == "no peak memory: RuntimeError: killed"
    assert actual["metrics"]["peak_bytes"] == [None] and len(actual["metrics"]["seconds"]) == 2


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
    assert actual["exact", 64, None]["gradient"] == "QKV" and actual["vmean", 64, None]["gradient"] == "V"
    assert actual["performer", 64, 8]["gradient"] == "QKV"
    assert actual["efficient", 64, None]["status"] == "skipped"
    assert actual["efficient", 64, None]["reason"] == "does not differentiate: no gradient reaches its output"
    forward = counted_flops(lambda: Work("performer", 8).run(inputs()))
    assert actual["performer", 64, 8]["metrics"]["flops"][0] > 2 * forward
    assert actual["performer", 64, 8]["metrics"]["leading_flops"] == [None]


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


PLACE = {"source": None, "layer": 0, "target": "softmax", "backward": False, "weights": None, "options": {}}


def planted(method, seconds, error, n=64, **rest):
    times = {
        "seconds": seconds,
        "seconds_rounds": [seconds] * 3,
        "ratio_to_exact": 0.9,
        "ratio_spread": 0.01,
        "peak_bytes": 1,
    }
    state = {"error": error, "status": "ok", "reference": False}
    return {**PLACE, **times, **state, "method": method, "n": n, "d": 8, **rest}


def test_no_point_of_the_frontier_is_beaten():
    pairs = torch.rand(60, 2, generator=torch.Generator().manual_seed(0)).tolist()
    points = [Point("x", place, *pair) for place, pair in enumerate(pairs)]
    best = frontier(points)

    def beaten(point):
        return any(one.cost <= point.cost and one.error <= point.error and one != point for one in points)

    assert set(best) == {point for point in points if not beaten(point)}


def test_the_summary_reads_growth_off_the_rows():
    rows = []
    for n in (2048, 4096, 8192):
        for name, power, size in (("exact", 2, 1e-9), ("performer", 1, 1e-5)):
            facts = {"family": "x", "cost": "2 n² p", "peak_bytes": n, "d": None, "reference": name == "exact"}
            facts |= {"ratio_to_exact": 1e4 / n if name == "performer" else 1.0}
            rows.append({**planted(name, size * n**power, None, n), **facts})
    actual = {one["method"]: one for one in bench_summary(rows)}
    assert actual["exact"]["time_exponent_spread"] == pytest.approx(0)
    assert actual["exact"]["time_exponent"] == pytest.approx(2)
    assert actual["performer"]["time_exponent"] == pytest.approx(1)
    assert actual["performer"]["memory_exponent"] == pytest.approx(1)


@pytest.fixture
def bench(run):
    """``attnprobe bench`` in this process: ``(code, stdout, stderr)``."""
    return lambda *args: run("bench", *args)


def test_the_command_draws_each_length(bench):
    options = "--method performer,linear,nystromformer --errors --no-memory --plot --out r --format json"
    code, out, err = bench("--n 32,64 --d 8 --p 8 --rounds 2 --device cpu", options)
    assert code == 0, err
    figures = {path.name for path in Path("r/figures").iterdir()}
    assert figures == {*files_of("bench-time-d8", "bench-pareto-n32", "bench-pareto-n64")}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak of the resident set")
def test_memory_has_a_figure_of_its_own(bench):
    code, out, err = bench(
        "--n", "512,1024", "--rounds", 1, "--method", "linear", "--device", "cpu", "--plot", "--out", "r"
    )
    assert code == 0 and "MiB" in out, err
    names = {path.name for path in Path("r/figures").iterdir()}
    assert names == {*files_of("bench-time", "bench-memory")}


@pytest.mark.parametrize(
    "args, message",
    [
        (("--source", "file"), "source 'file'"),
        (("--n", "a"), "not a whole number"),
        (("--d", "0", "--method", "performer"), "d: 0 is below 1; write a whole number from 1 on"),
        (("--heads", "0"), "heads=0"),
        (("--quadratic-n", "1"), "quadratic_n=1"),
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
    rows = json.loads(out)["rows"]
    assert {row["n"] for row in rows} == {96} and all(row["error"] is not None for row in rows[1:])
    assert {row["heads"] for row in rows} == {2}
    code, out, err = bench("--source model --head 1", options)
    assert code == 0 and {row["heads"] for row in json.loads(out)["rows"]} == {1}, err
    code, _, err = bench("--source", "model", "--qkv", "nowhere.safetensors")
    assert code == 3 and "does not exist" in err


def test_a_command_without_gates_refuses_them(run, tmp_path):
    Path("g.yaml").write_text("command: spectrum\ngates: [{metric: seconds, max: 1}]\n")
    code, _, err = run("sweep", "g.yaml")
    assert code == 2 and "g.yaml:2: spectrum takes no gates" in err


def test_runs_of_different_machines_are_not_compared(run, tmp_path):
    measured(tmp_path, "a")
    lines = (tmp_path / "a/records.jsonl").read_text().splitlines()
    (tmp_path / "b").mkdir()
    other = [json.loads(line) for line in lines]
    for one in other:
        one["machine"] = {**one["machine"], "cpu": "Z80", "threads": 64}
    (tmp_path / "b/records.jsonl").write_text("".join(json.dumps(one) + "\n" for one in other))
    code, _, err = run("compare", "a", "b")
    threads = machine("cpu")["threads"]
    assert code == 2 and "Z80" in err and f"threads {threads} in A, 64 in B" in err


def test_a_slower_method_is_a_regression(run, tmp_path):
    measured(tmp_path, "a", n=(64,))
    lines = [json.loads(line) for line in (tmp_path / "a/records.jsonl").read_text().splitlines()]
    for name, factor in (("same", 1.0), ("slow", 3.0)):
        for one in lines:
            time = {"performer": 2 * factor, "exact": 1.0}.get(one["method"], 2.0)
            one["metrics"] |= {"exact_seconds": [1.0, 1.01], "seconds": [time, 1.01 * time]}
        (tmp_path / name).mkdir()
        (tmp_path / name / "records.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
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
    assert "A, B: medians of the rounds" in text and "over heads" not in text and "s.e." not in text


def benched(ratio=2.0, spread=0.0, floor=1.0, peak=2**21, **fields):
    """Records of performer and of exact attention, which is timed twice, in five rounds of one machine."""
    steps = [-2 * spread, -spread, 0.0, spread, 2 * spread]  # half the range of their quartiles is the spread
    place = {"schema": 1, "command": "bench", "target": "softmax", "n": 64, "layer": 0, "backward": False}
    state = {"source": {}, "options": {}, "heads": [0, 1], "status": "ok", "reason": None, "family": "x"}
    state |= {"cost": "n d p"}
    facts = {"device": "cpu", "cpu": "any", "threads": 2, "cores": 2, "system": "any"}
    known = {"torch": "2", "python": "3", "attnprobe": "0"}
    here = {**place, **state, "machine": facts, "versions": known, "load": 0.5} | fields

    def times(of):
        return {"seconds": [of + step for step in steps], "exact_seconds": [1.0] * 5, "peak_bytes": [peak]}

    return [
        {**here, "method": "performer", "d": 8, "requested": True, "reference": False, "metrics": times(ratio)},
        {**here, "method": "exact", "d": None, "requested": False, "reference": True, "metrics": times(floor)},
    ]


def test_exact_attention_is_its_own_measure():
    """It is timed twice in each round: by definition its ratio is 1, and what its two times give is noise."""
    performer, exact = timed_rows(benched(2.0, floor=1.17))
    assert (exact["ratio_to_exact"], exact["ratio_spread"], exact["ratio_rounds"]) == (1.0, 0.0, [1.0] * 5)
    assert exact["noise_floor"] == performer["noise_floor"] == pytest.approx(1.17)
    assert performer["ratio_to_exact"] == pytest.approx(2.0)
    alone = timed_rows(benched(2.0)[:1])
    assert alone[0]["noise_floor"] is None


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
    once = [
        [{**one, "metrics": {**one["metrics"], "seconds": [t], "exact_seconds": [1.0]}} for one in benched()]
        for t in (2.0, 3.0)
    ]
    (row, _) = compare_runs(*once, ["ratio_to_exact"]).rows
    assert (row["verdict"], row["reason"]) == ("undecided", "one round has no spread")


def test_memory_below_a_page_of_the_allocator_is_no_change():
    def judge(a, b):
        return compare_runs(benched(peak=a), benched(peak=b), ["peak_bytes"]).rows[0]["verdict"]

    assert judge(2_290_000, 2_670_000) == "same" and judge(2_290_000, 3_400_000) == "worse"
    assert judge(200 * 2**20, 230 * 2**20) == "worse" and judge(200 * 2**20, 209 * 2**20) == "same"


def test_the_row_of_exact_attention_has_the_times_that_ratios_are_over():
    records = benched()
    ours = next(record for record in records if record["method"] == "exact")
    ours["metrics"] |= {"seconds": [9.0, 9.0, 9.0], "exact_seconds": [1.0, 2.0, 5.0]}
    row = next(row for row in timed_rows(records) if row["method"] == "exact")
    assert (row["seconds"], row["seconds_rounds"], row["ratio_to_exact"]) == (2.0, [1.0, 2.0, 5.0], 1.0)
    assert row["noise_floor"] == 4.5


def test_a_figure_speaks_of_exponents_where_there_are_some():
    captions = []
    for first in (64, 2048):
        rows = timed_rows([one for n in (first, 2 * first) for one in benched(n=n)])
        captions.append(" ".join(figures._growth(rows, rows, "seconds", 8, "").caption))
    assert [("exponents" in caption) for caption in captions] == [False, True]


@pytest.mark.parametrize("cost", ["seconds", "peak_bytes"])
def test_bars_of_times_are_the_quartiles_of_the_rounds(cost):
    """Half of the rounds' range around the median went through the floor of the axis."""
    records = [one for n in (64, 128) for one in benched(n=n)]
    for one in records:
        for name in {"seconds", "exact_seconds"} & one["metrics"].keys():
            one["metrics"][name] = [0.74, 4.94, 0.95, 5.27, 0.98]
    rows = timed_rows(records)
    figure = figures._growth(rows, rows, cost, 8, "")
    axis = Figure().subplots()
    figure.draw(axis, figure.panels[0][1])
    bars = [y for lines in axis.collections for part in lines.get_segments() for _, y in part]
    assert bars == (pytest.approx([950.0, 4940.0] * len(rows)) if cost == "seconds" else [])
    sides = {round(lines.get_transform().transform((64, 1))[0], 3) for lines in axis.collections}
    assert len(sides) == len(axis.collections), "bars of several methods stand side by side"
    assert any("p25" in label for label in figure.legend) == (cost == "seconds")
    assert any(line.startswith("Bars") for line in figure.caption) == (cost == "seconds")


def test_a_point_with_bad_rows_is_hollow_and_on_no_frontier():
    """At d = 16 it has the least error, and a mark in the table."""
    errors = {8: ([0.5, 0.5], [0.0, 0.0]), 16: ([0.1, 0.1], [0.0, 2.0])}
    records = benched()[1:]
    for d, (error, bad) in errors.items():
        one = benched(ratio=0.05 * d)[0]
        records.append({**one, "d": d, "metrics": {**one["metrics"], ERROR: error, "bad_rows": bad}})
    rows = timed_rows(records)
    figure = figures._pareto(rows, rows, "")
    axis = Figure().subplots()
    figure.draw(axis, "seconds")
    points = [line for line in axis.lines if len(line.get_xdata()) == 1]
    hollow = [line.get_ydata()[0] for line in points if line.get_markerfacecolor() == "none"]
    (steps,) = (line for line in axis.get_children() if getattr(line, "get_drawstyle", str)() == "steps-post")
    assert hollow == [0.1] and list(steps.get_ydata()) == [0.5]
    figure.finish(axis, "seconds")
    assert axis.texts[0].get_text() == "performer !" and "hollow, !: bad rows (normaliser ≤ 0 or lost)" in figure.legend


def test_a_cost_that_one_of_several_methods_states_has_no_panel():
    performer, exact = benched(ratio=0.5)
    performer["metrics"][ERROR] = [0.4, 0.4]
    reader = {**performer, "method": "topk", "metrics": {**performer["metrics"], "kv_read": [8.0, 8.0]}}
    rows = timed_rows([performer, {**performer, "d": 16}, reader, {**reader, "d": 16}, exact])
    figure = figures._pareto(rows, rows, "")
    assert "kv_read" not in [cost for _, cost in figure.panels]
    assert "No panel of keys read: only topk states their number." in figure.caption
    alone = [row for row in rows if row["method"] != "performer"]
    assert "kv_read" in [cost for _, cost in figures._pareto(alone, alone, "").panels]


def test_errors_beyond_the_axis_are_arrows_at_its_edge():
    """They were dots there, as if measured so."""
    performer, exact = benched(ratio=0.5)
    near = {**performer, "metrics": {**performer["metrics"], ERROR: [0.4, 0.4]}}
    far = {**near, "method": "linformer", "metrics": {**near["metrics"], ERROR: [50.0, 50.0]}}
    vmean = {**exact, "method": "vmean", "metrics": {**exact["metrics"], ERROR: [0.5, 0.5]}}
    rows = timed_rows([near, far, exact, {**vmean, "reference": True}])
    figure = figures._pareto(rows, rows, "")
    axis = Figure().subplots()
    figure.on(axis, *figure.panels[0], with_legend=False)
    low, high = axis.get_ylim()
    arrows = [line.get_ydata()[0] for line in axis.lines if line.get_marker() == "^"]
    assert high < 50 and arrows == [pytest.approx(high)] and "beyond the axis" in figure.legend
    assert "linformer" in [text.get_text() for text in axis.texts]


@pytest.mark.parametrize("error, expected", [(0.9, []), (0.4, [0.5, 0.4])])
def test_no_frontier_is_above_v_mean(error, expected):
    """V-Mean states no keys that it reads; there the frontier began at 0.9."""
    performer, exact = benched(ratio=0.5)
    performer["metrics"] |= {ERROR: [error, error], "kv_read": [8.0, 8.0]}
    vmean = {**exact, "method": "vmean", "metrics": {**exact["metrics"], ERROR: [0.5, 0.5]}}
    rows = timed_rows([performer, {**performer, "d": 16}, exact, vmean])
    figure = figures._pareto(rows, rows, "")
    for name in ("seconds", "kv_read"):
        axis = Figure().subplots()
        figure.draw(axis, name)
        (line,) = (line for line in axis.get_children() if getattr(line, "get_drawstyle", str)() == "steps-post")
        assert list(line.get_ydata()) == expected
    assert any("V-Mean and all cheaper" in words for words in figure.caption) == bool(expected)


@pytest.mark.parametrize(
    "n, power, names", [((64, 128), 1.5, ["∝ n", "∝ n²"]), ((64, 4096), 1.5, ["∝ n"]), ((64, 128), 1.1, [])]
)
def test_guides_lie_within_the_axis_and_apart_from_exact_attention(n, power, names):
    """Times of exact attention grow as n^1.5 here, so that the square leaves the axis; those of n^1.1 hid ∝ n."""
    records = [one for length in n for one in benched(n=length)]
    for one in records:
        one["metrics"]["seconds"] = [one["n"] ** power * 1e-3 for _ in one["metrics"]["seconds"]]
        if "exact_seconds" in one["metrics"]:
            one["metrics"]["exact_seconds"] = one["metrics"]["seconds"]
    rows = timed_rows(records)
    figure = figures._growth(rows, rows, "seconds", 8, "")
    axis = Figure().subplots()
    figure.on(axis, *figure.panels[0], with_legend=False)
    assert [text.get_text() for text in axis.texts] == names and not any("∝" in name for name in figure.legend)
    guides = [line.get_data() for line in axis.lines[1 : 1 + len(names)]]
    for text, (x, y), steep in zip(axis.texts, guides, (1, 2), strict=False):
        assert text.xy[1] == pytest.approx(y[0] * (text.xy[0] / x[0]) ** steep), "beside its guide"
    low, high = axis.get_ylim()
    assert all(low <= y <= high for line in axis.lines for y in line.get_ydata())


def test_a_bench_is_not_compared_with_errors(run, tmp_path, qkv):
    measured(tmp_path, "a", n=(64,))
    assert run("error", "--qkv", qkv, "--d", 8, "--no-matrix", "--out", "e")[0] == 0
    code, _, err = run("compare", "a", "e")
    assert code == 2 and "bench" in err


def judged(text, rows):
    """What became of a gate, by method and n."""
    results = check(bench_judged(rows, bench_summary(rows)), [parse_gate(text, BENCH)])
    return {result.where: result.passed for result in results}


def gated(method, n, seconds, **rest):
    rounds = {"seconds_rounds": seconds, "ratio_rounds": [s / 1e-3 for s in seconds]}
    costs = {"flops": 8.0, "visited_fraction": 0.5, "scored": 3.0, "kv_read": 7.0, "metrics": {}, "heads": 2}
    costs |= {"family": "x", "cost": "n d p"}
    return {**planted(method, sorted(seconds)[1], None, n), **rounds, **costs, "requested": True, **rest}


def test_gates_judge_costs_over_rounds_and_growth_over_lengths():
    rows = [gated("linear", n, [t, 3 * t, 2 * t]) for n, t in ((2048, 1e-3), (4096, 4e-3))]
    rows.append(gated("vmean", 4096, [9.0] * 3, reference=True, requested=False))
    expected = {"linear d=8 n=2048 layer=0": True, "linear d=8 n=4096 layer=0": False}
    assert judged("ratio_to_exact.median=2.1", rows) == expected
    assert list(judged("ratio_to_exact.max=11.9", rows).values()) == [True, False]
    assert list(judged("kv_read=6.9", rows).values()) == [False, False]
    assert list(judged("scored=3.1", rows).values()) == [True, True]
    assert judged("time_exponent=1.99", rows) == {"linear d=8 layer=0": False}
    assert judged("time_exponent=2.01", rows) == {"linear d=8 layer=0": True}
    assert judged("memory_exponent=0.01", rows) == {"linear d=8 layer=0": True}


def test_gates_on_what_was_not_measured_fail():
    unknown = {"peak_bytes": None, "status": "ok"}
    rows = [gated("linear", n, [1e-3] * 3, **unknown) for n in (64, 128)]
    assert set(judged("peak_bytes=1e12", rows).values()) == {False}
    assert judged("time_exponent=9", rows) == {"linear d=8 layer=0": False}  # no two lengths from 2048 on
    assert set(judged("output_spectral=9", rows).values()) == {False}
    half = {"output_spectral": {"mean": 0.1, "count": 1}}
    assert set(judged("output_spectral=9", [{**row, "metrics": half} for row in rows]).values()) == {False}
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
