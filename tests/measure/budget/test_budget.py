"""``attnprobe budget`` and `budgets`: the search, what it finds beside brute force, and what a run leaves of it."""

import json
import math
import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from folders import saved_heads
from thinned import others_slow

from attnprobe import QKV, Approximation, approximate, budgets, exact, matrix_errors, output_errors
from attnprobe.errors import Unsupported, UsageError
from attnprobe.judge.parse import parse_gates
from attnprobe.measure import experiment
from attnprobe.measure.budget import LIMITED, BudgetRequest, measure_budgets
from attnprobe.measure.budget import search as budget_search
from attnprobe.measure.budget.bisect import coarse_budgets, fine_budgets, search, seeds_needed
from attnprobe.measure.budget.files import files_of
from attnprobe.measure.budget.measure import _trials
from attnprobe.methods.registry import METHODS, register
from attnprobe.metrics import MATRIX_METRICS, OUTPUT_METRICS, shared_matrix_errors
from attnprobe.operators.linalg.exceedance import clopper_pearson
from attnprobe.reference import exact_output
from attnprobe.rng import generator
from attnprobe.show.catalogue.budget import _cell
from attnprobe.show.page import open_run, views

HEADS = 3
RELATIVE = "output_frobenius_relative"


def inputs(n=48, scale=1.0, h=HEADS, dtype=torch.float64):
    q, k, v = torch.randn(3, h, n, 8, generator=generator(5, "budget"), dtype=dtype)
    return QKV(scale * q, scale * k, v)


# --- methods of these tests: the relative output error is known, by head and budget


def planted(name, error, tags=("deterministic",), **facts):
    """Register a method whose output is ``(1 + error(head, d, seed))`` times the exact one."""

    @register(
        name=name,
        paper="Nobody",
        year=2026,
        family="reference",
        targets=("softmax",),
        kind="reference",
        tags=tags,
        budget="nothing",
        cost="n",
        oracle="itself",
        limit=lambda n_q, n_k: 10 * n_q,
        **facts,
    )
    def method(qkv, d, *, streams, target="softmax"):
        sizes = [1 + error(head, d, streams.seed) for head in qkv.heads]
        output = exact_output(qkv) * torch.tensor(sizes, dtype=torch.float64)[:, None, None]
        return Approximation(None, output)

    return method


@pytest.fixture(autouse=True)
def no_new_methods():
    """What a test registers is gone after it."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


# --- the budgets that are tried


@pytest.mark.parametrize("resolution", [1.0, 1.01, 1.05, 1.3, 2.0])
@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 2), (3, 5), (8, 256), (7, 1000), (100, 101)])
def test_the_grid_holds_powers_of_two_and_takes_no_larger_steps(least, most, resolution):
    fine, coarse = fine_budgets(least, most, resolution), coarse_budgets(least, most)
    assert set(coarse) <= set(fine) and fine == sorted(set(fine))
    assert fine[0] == least and fine[-1] == most
    assert all(high <= max(low + 1, low * resolution) for low, high in zip(fine, fine[1:], strict=False))
    assert {2**k for k in range(12) if least <= 2**k <= most} <= set(coarse)
    assert resolution > 1 or fine == list(range(least, most + 1))


@pytest.mark.parametrize("percent", [1, 5, 10, 25, 50, 70, 90])
def test_as_few_seeds_as_the_share_allows(percent):
    for seeds in range(1, 200):
        k = seeds_needed(seeds, percent / 100)
        assert 1 <= k <= seeds and 100 * k >= (100 - percent) * seeds > 100 * (k - 1)  # in whole numbers


# --- the search alone


class Asked:
    """Errors of heads by a function, and what was asked for."""

    def __init__(self, error, refused=()):
        self.error, self.refused, self.calls = error, refused, []

    def __call__(self, d, heads):
        self.calls.append((d, tuple(heads)))
        return {head: tuple(sorted(self.error(head, d))) for head in heads if (d, head) not in self.refused}


def linear(error, heads, epsilons, fine, needed=1):
    """By trying all."""
    return [
        next((d for d in fine if sorted(error(head, d))[needed - 1] <= epsilon), None)
        for epsilon in epsilons
        for head in heads
    ]


@pytest.mark.parametrize("trial", range(30))
def test_where_errors_fall_the_bisection_finds_what_trying_all_does(trial):
    dice = random.Random(trial)
    least, most, seeds = dice.randint(1, 12), dice.randint(20, 300), dice.choice([1, 5])
    resolution, needed = dice.choice([1.0, 1.05, 1.5]), dice.randint(1, seeds)
    fall = {(head, seed): dice.uniform(0.2, 3) for head in range(6) for seed in range(seeds)}

    def error(head, d):
        return [d ** -fall[head, seed] for seed in range(seeds)]

    epsilons, heads = [dice.uniform(0.001, 0.5) for _ in range(3)], list(range(6))
    ask = Asked(error)
    actual, tried = search(ask, heads, epsilons, least, most, resolution=resolution, needed=needed, random=seeds > 1)
    fine = fine_budgets(least, most, resolution)
    assert [one.d for one in actual] == linear(error, heads, epsilons, fine, needed)
    assert [(one.epsilon, one.head) for one in actual] == [(epsilon, head) for epsilon in epsilons for head in heads]
    for one in actual:
        assert not one.fails_at and one.holds_from == one.d
        if one.d is None:
            assert one.below == most and one.error is None and one.held is None
            continue
        place = fine.index(one.d)
        assert one.below == (fine[place - 1] if place else None)
        assert one.error == sorted(error(one.head, one.d))[needed - 1] <= one.epsilon
        assert one.held == sum(x <= one.epsilon for x in error(one.head, one.d)) >= needed
        assert one.interval == (clopper_pearson(one.held, seeds) if seeds > 1 else None)
        assert all(one.head in tried[d] for d in fine[place + 1 : place + 3])  # the neighbours above
    pairs = [(d, head) for d, some in ask.calls for head in some]
    assert len(pairs) == len(set(pairs))  # nothing twice
    assert set(pairs) == {(d, head) for d, some in tried.items() for head in some}
    coarse = coarse_budgets(least, most)
    assert ask.calls[: len(coarse)] == [(d, tuple(heads)) for d in coarse]


def test_every_error_of_outputs_and_matrices_can_be_limited():
    assert {*LIMITED} == {*OUTPUT_METRICS, *MATRIX_METRICS, "residual_error"}


def test_heads_that_need_the_same_budget_share_its_run():
    ask = Asked(lambda head, d: [1 / d])
    actual, _ = search(ask, range(12), [0.013], 8, 256)
    assert {one.d for one in actual} == {79} and {len(heads) for _, heads in ask.calls} == {12}
    assert len(ask.calls) < 20  # of 60 budgets


def test_every_budget_tried_above_d_that_fails_is_listed():
    bumps = {0: range(96, 97), 1: range(60, 130), 2: range(256, 257), 3: range(0)}

    def error(head, d):
        return [0.5 if d < 33 or d in bumps[head] else 0.01]

    actual, tried = search(Asked(error), range(4), [0.1], 8, 256, resolution=1.0)
    assert [one.d for one in actual] == [33] * 4 and [one.below for one in actual] == [32] * 4
    assert [one.fails_at for one in actual] == [(96,), (64, 96, 128), (256,), ()]
    assert [one.holds_from for one in actual] == [128, 192, None, 33]
    assert [not one.fails_at for one in actual] == [False, False, False, True]
    scanned, every = search(Asked(error), range(4), [0.1], 8, 256, resolution=1.0, scan=True)
    assert [one.d for one in scanned] == [33] * 4 and list(every) == list(range(8, 257))
    assert [one.fails_at for one in scanned] == [tuple(some) for some in bumps.values()]
    assert [one.holds_from for one in scanned] == [97, 130, None, 33]


def test_a_failure_next_to_the_smallest_budget_is_listed():
    def error(head, d):
        return [0.5 if d < 41 or d == 43 else 0.01]

    (one,) = search(Asked(error), [0], [0.1], 8, 64, resolution=1.0)[0]
    assert (one.d, one.fails_at, one.holds_from) == (41, (43,), 44)


def test_a_scan_finds_what_a_bisection_cannot():
    def error(head, d):
        return [0.01 if d == 37 or d > 50 else 0.5]

    (one,) = search(Asked(error), [0], [0.1], 8, 64, resolution=1.0)[0]
    (sure,) = search(Asked(error), [0], [0.1], 8, 64, resolution=1.0, scan=True)[0]
    assert one.d == 51 and sure.d == 37 and sure.fails_at == tuple(range(38, 51)) and sure.holds_from == 51


def test_budgets_that_a_head_cannot_take_are_left_out_for_it():
    refused = {(d, 1) for d in range(8, 257) if d % 8}
    ask = Asked(lambda head, d: [1 / d], refused)
    actual, tried = search(ask, [0, 1], [0.013, 0.5], 8, 256, resolution=1.0)
    assert [one.d for one in actual] == [77, 80, 8, 8] and [one.below for one in actual][:2] == [76, 72]
    assert all(1 not in some for d, some in tried.items() if d % 8)


def test_infinite_errors_never_hold():
    actual, _ = search(Asked(lambda head, d: [math.inf] * 3), [0], [1e300], 1, 16, needed=1)
    assert actual[0].d is None and not actual[0].fails_at and actual[0].seeds == 3


# --- beside closed forms


@pytest.mark.parametrize("metric", [RELATIVE, "output_frobenius", "matrix_frobenius_relative", "matrix_spectral"])
def test_svd_needs_the_rank_that_eckart_and_young_say(metric):
    qkv = inputs(n=40, scale=2.0)
    left, values, right = torch.linalg.svd(exact(qkv).dense())
    weights = (right @ qkv.v).norm(dim=-1) if metric.startswith("output") else torch.ones_like(values)
    parts = values * weights  # (B - B~) V = Σ_{i>d} σ_i u_i (v_iᵀ V), of orthogonal u_i
    epsilons = [0.5, 0.1, 0.02] if metric.endswith("relative") else [1.0, 0.3, 0.05]
    actual = budgets(qkv, "svd", epsilons, metric=metric, d_min=1, d_max=40, resolution=1)
    for one in actual.heads:
        mine = parts[one.head]
        tails = (
            [float(mine[d]) if d < 40 else 0.0 for d in range(1, 41)]
            if metric == "matrix_spectral"
            else [float(mine[d:].norm()) for d in range(1, 41)]
        )
        size = float(mine.norm()) if metric.endswith("relative") else 1.0
        expected = next(d for d, tail in enumerate(tails, 1) if tail / size <= one.epsilon)
        assert one.d == expected and not one.fails_at and one.interval is None and one.seeds == 1
    assert len({one.d for one in actual.heads}) > 3  # the heads differ


def brute(qkv, method, d, seeds, metric, **options):
    """Errors (seeds, h) by the public calls alone."""
    rows = []
    for seed in seeds:
        approx = approximate(method, qkv, d, seed=seed, **options)
        of = (
            matrix_errors(exact(qkv), approx.operator)
            if metric.startswith("matrix")
            else output_errors(exact(qkv), approx, qkv)
        )
        rows.append(1 - of[metric] if metric == "output_cosine_min" else of[metric])
    return torch.stack(rows)


CASES = [
    ("svd", RELATIVE, 0.3, {}),
    ("topk", RELATIVE, 0.3, {}),
    ("nystromformer", RELATIVE, 0.6, {}),
    ("skyformer", RELATIVE, 1.0, {"sampler": "wor"}),
    ("performer", "output_spectral", 4.0, {}),
    ("linformer", "matrix_frobenius_relative", 1.8, {}),
    ("bigbird", "output_row_relative_max", 2.52, {}),
    ("window", "output_cosine_min", 1.1, {}),
    ("reformer", "matrix_infinity", 1.75, {}),
    ("dsa-oracle", RELATIVE, 0.3, {}),
    ("snapkv", RELATIVE, 0.3, {"allocation": "ada"}),
]


@pytest.mark.parametrize(
    ("method", "metric", "epsilon", "options"),
    others_slow(CASES, lambda case: case in CASES[1::4]),
    ids=[case[0] for case in CASES],
)
def test_the_bisection_has_the_result_of_a_linear_scan(method, metric, epsilon, options):
    n = 28
    qkv = inputs(n=n)
    seeds = range(3, 8) if "deterministic" not in METHODS[method].tags else range(3, 4)
    errors, kth = {}, seeds_needed(len(seeds), 0.2) - 1
    least, most = max(2, METHODS[method].least), min(n, METHODS[method].limit(n, n))
    for d in range(least, most + 1):
        try:
            errors[d] = brute(qkv, method, d, seeds, metric, **options)
        except Unsupported:
            continue
    level = {d: actual.sort(0).values[kth] for d, actual in errors.items()}

    def holds(head):
        return [d for d in level if level[d][head] <= epsilon]

    arguments = {"metric": metric, "delta": 0.2, "seeds": range(3, 8), "d_min": 2, "d_max": n, "resolution": 1}
    scanned = budgets(qkv, method, epsilon, scan=True, **arguments, **options)
    bisected = budgets(qkv, method, epsilon, **arguments, **options)
    assert (scanned.least, scanned.most) == (least, most) and set(scanned.tried) == set(errors)
    for sure, one in zip(scanned.heads, bisected.heads, strict=True):
        good = holds(sure.head)
        assert sure.d == (good[0] if good else None)
        if sure.d is not None:
            assert sure.fails_at == tuple(d for d in level if d > sure.d and d not in good)
            assert sure.held == int((errors[sure.d][:, sure.head] <= epsilon).sum())
        if sure.d is None or not sure.fails_at:
            assert replace(one, error=None) == replace(sure, error=None)  # falling: nothing is missed
            assert one.error == pytest.approx(
                sure.error, rel=1e-14
            )  # other heads ran with it: products round otherwise
        elif one.d is not None:  # else what the bisection tried is all too large
            assert one.d in good and one.below not in good and set(one.fails_at) <= set(sure.fails_at)
    assert any(one.d is not None and one.d > least for one in scanned.heads)  # it is no empty comparison


def test_budgets_share_their_draws_and_heads_their_runs(monkeypatch):
    """One run a seed and budget for all heads that need it, whose draws are those of `approximate`."""
    import attnprobe.measure.budget.search as module

    calls = []

    def counted(name, qkv, d, **rest):
        calls.append((d, qkv.heads, rest["seed"]))
        return approximate(name, qkv, d, **rest)

    monkeypatch.setattr(module, "approximate", counted)
    actual = budgets(inputs(), "performer", 2.0, seeds=range(2), d_max=48)
    assert len(calls) == len(set(calls)) == 2 * len({(d, heads) for d, heads, _ in calls})
    assert all(seed in (0, 1) for _, _, seed in calls)
    assert [d for d, heads, _ in calls if len(heads) == HEADS][:6] == [8, 8, 12, 12, 16, 16]
    for one in actual.heads:
        expected = brute(inputs(), "performer", one.d, range(2), RELATIVE)[:, one.head].sort().values
        assert one.error == pytest.approx(float(expected[-1]), rel=1e-9)


# --- planted methods


def test_a_method_that_errs_more_at_a_larger_budget_is_reported():
    planted("bumpy", lambda head, d, seed: 0.3 if d < 20 or (d in range(30, 40) and head == 1) else 0.01)
    actual = budgets(inputs(n=96), "bumpy", 0.1, d_max=96)
    assert [one.d for one in actual.heads] == [20] * 3
    assert [not one.fails_at for one in actual.heads] == [True, False, True]
    assert actual.heads[1].fails_at == (32,) and actual.heads[1].holds_from == 48
    assert actual.tried[32][1] == pytest.approx((0.3,)) and actual.heads[1].error == pytest.approx(0.01)


def test_a_method_that_reaches_nothing_has_none():
    planted("hopeless", lambda head, d, seed: 0.2 + head)
    actual = budgets(inputs(), "hopeless", (0.1, 0.5))
    assert [one.d for one in actual.heads] == [None] * 3 + [8, None, None]
    assert actual.most == 24 and actual.heads[0].below == 24  # half of n


def test_of_a_random_method_so_many_seeds_must_hold():
    """Seed s holds from d = 4 (s + 1) on: the d of k seeds of 10 is known."""
    planted("lucky", lambda head, d, seed: 0.01 if d >= 4 * (seed + 1) else 0.4, tags=())
    few = {"d_max": 60, "resolution": 1}
    for delta, k in ((0.1, 9), (0.5, 5), (0.01, 10)):
        actual = budgets(inputs(n=20), "lucky", 0.1, delta=delta, seeds=range(10), **few)
        assert actual.needed == k and actual.seeds == 10
        for one in actual.heads:
            assert (one.d, one.held, one.below) == (4 * k, k, 4 * k - 1)
            assert one.interval == clopper_pearson(k, 10)
    shifted = budgets(inputs(n=20), "lucky", 0.1, delta=0.5, seeds=range(3, 13), **few)
    assert shifted.heads[0].d == 32


def test_an_output_that_is_not_finite_does_not_hold():
    planted("lost", lambda head, d, seed: math.nan if d > 12 and head == 2 else 1 / d)
    actual = budgets(inputs(n=96), "lost", 0.0501)
    assert [one.d for one in actual.heads] == [20, 20, None]
    assert actual.tried[16][2] == (math.inf,)
    with pytest.raises(Unsupported, match="lost gives no operator, so it has no matrix errors"):
        budgets(inputs(), "lost", 0.1, metric="matrix_frobenius_relative")
    large = QKV(*torch.full((3, 1, 16, 4), 1e160, dtype=torch.float64))
    with pytest.raises(ArithmeticError, match="exact attention itself is not finite"):
        budgets(large, "lost", 0.1)


@pytest.mark.parametrize(("finite", "status"), [(2, "diverged"), (3, "ok")])
def test_a_head_needs_as_many_finite_seeds_as_must_hold(file, tmp_path, finite, status):
    """3 of 5 seeds must hold at δ = 0.4; with finite errors in 2 alone no budget can."""
    planted("half", lambda head, d, seed: 1 / d if seed < finite else math.nan, tags=())
    [record] = measured(file, tmp_path, methods=("half",), epsilon=(0.1,), repeats=5, delta=0.4).records
    assert record["needed"] == 3 and record["status"] == status


@pytest.mark.parametrize(("d", "text"), [(math.inf, "> 64"), (9, "9"), (8, "≤ 8"), (10.5, "10.5")])
def test_a_budget_says_whether_others_were_tried(d, text):
    """Above the range, inside of it, at its lower end; the median of two heads is between them."""
    assert _cell(d, 8, 64).text == text
    assert _cell(1, 1, 64).text == "1"  # no smaller one exists
    assert _cell(math.nan, 8, 64).empty


def test_a_method_that_refuses_some_budgets_is_searched_at_the_others():
    def picky(head, d, seed):
        if d % 4 and head == 0:
            raise Unsupported(f"picky: d={d} is no multiple of 4")
        return 1 / d

    planted("picky", picky)
    actual = budgets(inputs(n=96), "picky", 0.03, resolution=1)
    assert [one.d for one in actual.heads] == [36, 34, 34]
    assert "no multiple of 4" in actual.refused[34]


def test_impossible_values_are_refused_by_name():
    qkv = inputs()
    for words, rest in (
        ("epsilon=0", {"epsilon": 0.0}),
        ("epsilon=: choose numbers above 0", {"epsilon": ()}),
        ("delta=1", {"delta": 1.0}),
        ("resolution=0.5", {"resolution": 0.5}),
        ("d-min=0", {"d_min": 0}),
        ("d-max=4 is below d-min=8", {"d_max": 4}),
        ("no seeds", {"seeds": range(0)}),
        ("did you mean 'output_spectral'", {"metric": "output_spectrl"}),
        ("resolution=3", {"resolution": 3.0}),
        ("no budget", {"method": "vmean"}),
        ("does not take target", {"method": "performer", "target": "gaussian"}),
        ("did you mean 'skyformer'", {"method": "skyfromer"}),
        ("unknown option", {"samplr": 1}),
        ("d=40 exceeds", {"method": "nystromformer", "d_min": 49, "d_max": 50}),
    ):
        with pytest.raises(UsageError) as caught:
            budgets(qkv, **rest)
        assert words.replace("d=40", "d=49") in str(caught.value), str(caught.value)


def test_padded_tokens_do_not_count():
    qkv = inputs(n=48)
    mask = torch.arange(48) < 40
    masked = QKV(qkv.q, qkv.k, qkv.v, mask=mask)
    cut = QKV(*(x[:, :40] for x in (qkv.q, qkv.k, qkv.v)))
    for metric in (RELATIVE, "matrix_frobenius"):
        padded, expected = (budgets(x, "nystromformer", 1.0, metric=metric) for x in (masked, cut))
        assert padded == expected and expected.most == 20


def test_seeds_share_a_pass_over_the_exact_matrix_as_far_as_memory_goes(monkeypatch):
    """An operator of d = 4 has (20 + 20 + 4) 4 numbers of a head; memory for 2.5 of them takes two."""
    batches = []

    def shared(exact, batch, **options):
        batches.append(len(batch))
        return shared_matrix_errors(exact, batch, **options)

    monkeypatch.setattr(budget_search, "shared_matrix_errors", shared)
    monkeypatch.setattr(budget_search, "HELD", 5 * 44 * 4 * 8 // 2)
    options = {"metric": "matrix_frobenius", "d_min": 4, "d_max": 4, "delta": 0.2, "seeds": range(5)}
    budgets(inputs(n=20, h=1), "linformer", 9.0, **options)
    assert batches == [2, 2, 1]


def test_the_spectral_norm_of_a_matrix_counts_by_its_upper_end():
    qkv = inputs(n=272, h=1)  # above 256 keys the interval is no point
    (one,) = budgets(qkv, "nystromformer", 10.0, metric="matrix_spectral_relative", d_min=16, d_max=16).heads
    actual = matrix_errors(exact(qkv), approximate("nystromformer", qkv, 16).operator)
    assert one.error == pytest.approx(float(actual["matrix_spectral_relative_upper"]), rel=1e-9)
    assert one.error > float(actual["matrix_spectral_relative"]) * (1 + 1e-6)


# --- a run and its records


@pytest.fixture
def file(tmp_path):
    """Q, K, V of 3 heads and 48 tokens."""
    return saved_heads(tmp_path, HEADS)


@pytest.fixture
def run(run):
    """``attnprobe budget`` in this process: ``(code, stdout, stderr)``."""
    return lambda *args: run(*args) if args[0] in ("sweep", "report") else run("budget", *args)


def measured(file, tmp_path, name="r", **rest):
    spec = {"qkv": str(file), "device": "cpu"}
    arguments = {"methods": ("svd,performer",), "epsilon": (0.5, 1.5), "repeats": 4, **rest}
    return measure_budgets(BudgetRequest(**spec, out=str(tmp_path / name), **arguments)).outcome


def of_kind(cell, kind):
    """The rows of one kind of a cell."""
    return [row for row in cell["rows"] if row["kind"] == kind]


def test_a_record_is_a_search_of_one_method_on_one_layer(file, tmp_path):
    from attnprobe import load_qkv

    records = measured(file, tmp_path).records
    names = ("method", "d", "repeat", "seed", "seeds", "needed", "scan", "status", "requested")
    assert [[record[name] for name in names] for record in records] == [
        ["svd", None, 0, 0, 1, 1, False, "ok", True],
        ["performer", None, 0, 0, 4, 4, False, "ok", True],
    ]
    qkv = load_qkv(qkv=str(file), n=48)
    for record in records:
        actual = budgets(qkv, record["method"], (0.5, 1.5), seeds=range(4))
        rows = of_kind(record, "head")
        assert [(row["epsilon"], row["head"]) for row in rows] == [
            (e, head) for e in (0.5, 1.5) for head in range(HEADS)
        ]
        for row, head in zip(rows, actual.heads, strict=True):
            for name in ("below", "error", "held", "holds_from"):
                assert row[name] == getattr(head, name)
            assert float(row["found"]) == (math.inf if head.d is None else head.d) and row["fails"] == len(
                head.fails_at
            )
            assert (row["lower"], row["upper"]) == (head.interval or (None, None))
        above = [(row["epsilon"], row["head"], row["d"]) for row in of_kind(record, "counterexample")]
        assert above == [(head.epsilon, head.head, d) for head in actual.heads for d in head.fails_at]
        trials = of_kind(record, "trial")
        assert [(row["d"], row["head"]) for row in trials] == [
            (d, head) for d, some in actual.tried.items() for head in some
        ]
        for row in trials:
            errors = actual.tried[row["d"]][row["head"]]
            assert row["error"] == errors[actual.needed - 1] and row["median"] == pytest.approx(np.median(errors))
    assert "NaN" not in (tmp_path / "r/rows.jsonl").read_text()
    manifest = json.loads((tmp_path / "r/manifest.json").read_text())
    assert (manifest["command"], manifest["status"]) == ("budget", "finished")
    assert manifest["plan"]["epsilons"] == [0.5, 1.5] and manifest["plan"]["metric"] == RELATIVE
    assert manifest["plan"]["repeats"] == 4


def test_repeats_do_not_matter_to_a_deterministic_method(file, tmp_path):
    measured(file, tmp_path, methods=("svd",))
    assert measured(file, tmp_path, methods=("svd",), repeats=9).done_before == 1


def test_rows_table_and_file_say_the_same(file, tmp_path):
    planted("half", lambda head, d, seed: 0.01 if head == 1 or (d >= 20 and head == 2) else 0.4)
    records = measured(file, tmp_path, methods=("half",), epsilon=(0.1,)).records
    run = open_run(tmp_path / "r")
    rows = run.frame().replace({pd.NA: None})
    assert list(zip(rows["head"], rows["found"], rows["fails"], rows["below"], strict=True)) == [
        (0, math.inf, 0, 24),
        (1, 8, 0, None),
        (2, 20, 0, 19),
    ]
    [shown] = views(run)
    (one,) = [line for line in shown.gate_lines if line["table"] == "budgets"]
    assert [one[f"found.{end}"] for end in ("min", "median", "max")] == [8, 20, "inf"]
    assert (one["unreached.sum"], one["counterexamples.sum"]) == (1, 0)
    assert one["d.max"] == 20 and one["d.count"] == 2 and one["values"] == 3
    assert one["unreached.mean"] == pytest.approx(1 / 3)
    files = files_of(records)
    assert list(files) == ["budgets-half.json"] and files == shown.files
    contents = files["budgets-half.json"]
    assert (contents["schema"], contents["method"], contents["options"], contents["n"]) == (1, "half", {}, 48)
    assert (contents["metric"], contents["epsilon"], contents["target"]) == (RELATIVE, 0.1, "softmax")
    assert [(b["layer"], b["head"], b["d"]) for b in contents["budgets"]] == [(0, 0, None), (0, 1, 8), (0, 2, 20)]


def test_a_trial_is_a_row(file, tmp_path):
    measured(file, tmp_path, methods=("svd",))
    frame = open_run(tmp_path / "r").frame("trial")
    assert len(frame.columns) < 45 and not [name for name in frame if "[" in name]
    assert (frame.groupby(["d", "head"]).size() == 1).all() and frame["d"].min() == 8


def test_of_several_windows_the_file_has_the_largest_budget():
    place = {"method": "svd", "options": "", "target": "softmax", "layer": 2, "n": 64, "heads": [0, 1, 2]}
    asked = {"metric": RELATIVE, "delta": 0.1, "least": 8, "most": 32, "resolution": 1.05, "scan": False}
    base = {**place, **asked, "seeds": 1, "needed": 1, "status": "ok", "source": {}}

    def record(window, d, fails):
        pairs = zip(d, fails, strict=True)
        rows = [
            {"kind": "head", "head": head, "epsilon": 0.1, "found": found, "fails": count}
            for head, (found, count) in enumerate(pairs)
        ]
        return {**base, "window": window, "rows": rows}

    (contents,) = files_of([record(0, [8, 9, 10], [0, 0, 0]), record(1, [12, math.inf, 9], [0, 0, 1])]).values()
    assert [(b["d"], b["no_counterexample"]) for b in contents["budgets"]] == [(12, True), (None, None), (10, False)]
    assert contents["windows"] == 2


def test_files_are_told_apart_by_what_they_differ_in(file, tmp_path):
    records = measured(file, tmp_path, methods=("svd,performer:orthogonal=false",), n=(48, 40)).records
    names = list(files_of(records))
    assert len(names) == 2 * 2 * 2 and "budgets-svd-n48-epsilon0.5.json" in names
    assert sum(name.startswith("budgets-performer-orthogonal-False-") for name in names) == 4


def test_factors_of_the_scores_are_searched_apart(file, tmp_path):
    from attnprobe import load_qkv

    records = measured(file, tmp_path, methods=("nystromformer",), epsilon=(0.9,), scale_inputs=(1, 4)).records
    qkv = load_qkv(qkv=str(file), n=48)
    scaled = QKV(2 * qkv.q, 2 * qkv.k, qkv.v, scale=qkv.scale)
    for record, x in zip(records, (qkv, scaled), strict=True):
        found = [float(row["found"]) for row in of_kind(record, "head")]
        assert found == [one.d or math.inf for one in budgets(x, "nystromformer", 0.9).heads]
    files = files_of(records)
    assert len(files) == 2 and [contents["scale_inputs"] for contents in files.values()] == [1.0, 4.0]


def test_a_search_that_no_method_allows_is_refused_before_a_model_is_read(run):
    code, _, err = run("--method", "skyformer", "--model", "./nowhere", "--n", 16, "--d-min", 64, "--epsilon", "0.1")
    assert "skyformer: d=64 exceeds" in err and code != 0
    code, _, err = run("--method", "skyformer", "--model", "./nowhere", "--n", 16, "--epsilon", "0.1")
    assert code == 3 and "no such directory: ./nowhere" in err


def test_a_counterexample_is_in_rows_and_table_and_a_report_writes_the_budgets_again(run, file, tmp_path):
    planted("bumpy", lambda head, d, seed: 0.3 if d < 12 or (d == 24 and head == 1) else 0.01)
    args = ("--qkv", file, "--method", "bumpy,svd,performer", "--epsilon", "0.1,0.9", "--repeats", 3, "--out", "r")
    code, out, err = run(*args, "--format", "json")
    assert code == 0, err
    lines = json.loads(out)["rows"]
    assert sum(line["table"] == "budgets" for line in lines) == 6
    assert [line["head"] for line in lines if (line["table"], line["name"]) == ("counterexamples", "bumpy")] == [1]
    frame = open_run("r").frame()
    assert len(frame) == 3 * 2 * HEADS
    one = frame.query("method == 'bumpy' and head == 1 and epsilon == 0.1").iloc[0]
    assert (one["found"], one["fails"]) == (12, 1)
    above = open_run("r").frame("counterexample").iloc[0]
    assert (above["head"], above["d"], above["found"]) == (1, 24, 12) and above["error"] == pytest.approx(0.3)
    assert lines[0]["counterexamples.sum"] == 1
    out = run(*args, "--format", "md")[1]
    assert "| bumpy | 0.1 | 1 | 12 | 24 | 24 | 0.30000 |" in out
    assert "1/3" in out and "> 24" in out and "3/3" in out
    kept = tmp_path / "r/budgets-bumpy-epsilon0.1.json"
    before = kept.read_bytes()
    kept.unlink()
    assert run("report", "r")[0] == 0 and kept.read_bytes() == before


def test_gates_fail_closed(run, file):
    planted("half", lambda head, d, seed: 0.01 if head or d >= 20 else 0.4)
    args = ("--qkv", file, "--method", "half", "--out", "r")
    kept = [part for gate in ("d.max=20", "unreached=0", "counterexamples=0") for part in ("--fail-above", gate)]
    assert run(*args, *kept)[0] == 0
    code, _, err = run(*args, "--fail-above", "d.max=19")
    assert code == 1 and f"d.max <= 19: half n=48 layer=0 ε = 0.1, metric = {RELATIVE}: 20 is above 19" in err
    planted("never", lambda head, d, seed: 0.4)
    code, _, err = run("--qkv", file, "--method", "never", "--out", "s", "--fail-above", "d.max=1000")
    assert code == 1 and "only 0 of 3 values are finite" in err
    assert run(*args, "--fail-above", "seconds=1")[0] == 2
    with pytest.raises(UsageError, match="unknown key 'd'"):
        parse_gates([{"metric": "d", "max": 64, "d": 8}], experiment("budget").gated)


def test_exit_codes(run, file):
    def breaks(head, d, seed):
        raise RuntimeError("bad day")

    planted("broken", breaks)
    planted("lost", lambda head, d, seed: math.nan if head == 1 else 0.01)
    args = ("--qkv", file)
    code, out, _ = run(*args, "--method", "broken,svd", "--out", "r")
    assert code == 4 and "✗ broken: RuntimeError: bad day at d=8 of 3 heads" in " ".join(out.split())
    code, out, _ = run(*args, "--method", "lost", "--out", "s")
    assert code == 4 and "✗ lost 0.1: the error is not finite at any budget in head 1" in out
    code, out, _ = run(*args, "--method", "vmean,svd", "--out", "t")
    assert code == 0 and "– vmean: vmean has no budget to search for" in out
    few = ("--target", "gaussian", "--epsilon", "9", "--repeats", "1", "--head", "0")
    code, out, _ = run(*args, "--method", "performer,skyformer", *few, "--out", "v")
    assert code == 0 and "– performer: performer does not take target=gaussian" in " ".join(out.split())
    for rest, words in (
        (("--method", "vmean"), "has no budget"),
        (("--metric", "seconds"), "unknown metric"),
        (("--metric", "residual_error"), "Q, K and V without their model have no residual stream"),
        (("--epsilon", "x"), "epsilon: 'x'"),
        (("--delta", "1"), "delta=1"),
        (("--d-min", "30"), "no budget from 30 to 24"),
    ):
        code, out, err = run(*args, *rest, "--out", "u")
        assert code == 2 and words in err and not out, (rest, err)


def test_the_median_of_seeds_counts_lost_ones_as_the_largest():
    """A seed whose output is not finite has an infinite error; the middle two of the others are finite."""
    errors = {0: (0.1, 0.2, 0.4, math.inf), 1: (0.1, 0.2, math.inf, math.inf), 2: (0.1, 0.3)}
    assert [row["median"] for row in _trials(8, errors, 1)] == pytest.approx([0.3, math.inf, 0.2])
