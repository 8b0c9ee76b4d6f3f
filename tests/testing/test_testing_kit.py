"""The conformance kit: that each property fails where it should, small and replayable, and holds where it should."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from operator_cases import cases
from thinned import others_slow
from torch import softmax

import attnprobe
from attnprobe import QKV, Approximation, method
from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import METHODS, TAGS, get
from attnprobe.operators import LowRank, Scaled, Stacked
from attnprobe.testing import PROPERTIES, Case, Fault, check_method, examine
from attnprobe.testing.bands import magnitude
from attnprobe.testing.cases import half_the_digits, make
from attnprobe.testing.examine import conformance_table

HERE = {**os.environ, "PYTHONPATH": str(Path(attnprobe.__file__).parents[1])}
linear = method(linear_in_v=True)


def attention(q, k, v, scale):
    return softmax(scale * q @ k.mT, -1) @ v


class Askew(LowRank):
    """Its transpose is not its transpose."""

    def _apply_transpose(self, y):
        return 2 * super()._apply_transpose(y)


def starting_at(top, scores, v):
    """Attention whose largest score is at least ``top``, as that of a kernel which starts there."""
    weights = torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=top))
    return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-30)


def features(q, k):
    return softmax(q, -1), softmax(k, 1).mT


def shifts(q, k, scale):
    """C, from squared distances."""
    return torch.exp(-(torch.cdist(q, k) ** 2) * scale / 2)


def tagged(tag, function, **more):
    return method(tags=(tag,), **more)(function)


# a fault for each property, which it must notice
FAULTS = {
    "shapes": lambda q, k, v, scale: attention(q, k, v, scale) if q.shape[1] == k.shape[1] else v,
    "finite": lambda q, k, v, scale: attention(q, k, v, scale) / (q.sum() != q.sum()),
    "large-scores": lambda q, k, v, scale: (
        torch.exp(scale * q @ k.mT) @ v / torch.exp(scale * q @ k.mT).sum(-1, keepdim=True)
    ),
    "low-scores": method(kind="kernel")(lambda q, k, v, scale: starting_at(-4e4, scale * q @ k.mT, v)),
    "one-key": method(tags=("causal", "row_sums_one"))(
        lambda qkv: below(qkv.scale * qkv.q @ qkv.k.mT, qkv.query_positions + 1)
    ),
    "half-precision": lambda q, k, v, scale: attention(q, k, v, scale) * (1e5 if q.dtype == torch.float16 else 1),
    "float32": lambda q, k, v, scale: attention(q, k, v, scale) + (0.01 if q.dtype == torch.float32 else 0),
    "scale": lambda q, k, v: softmax(q @ k.mT, -1) @ v,
    "deterministic-by-seed": lambda v: v + torch.rand(1, dtype=v.dtype),
    "inputs": lambda v: v + torch.rand(1, dtype=v.dtype) * 0,
    "heads": lambda q, k, v, scale: attention(q, k, v, scale) + v.mean(0, keepdim=True)[:, : q.shape[1]],
    "padding": lambda q, k, v, scale, mask: attention(q, k, v, scale),
    "operator": lambda qkv: Approximation(shifted(qkv).operator, qkv.v[:, :1].expand(-1, qkv.n_q, -1) * 3),
    "linear": lambda q, k, v, scale: softmax(scale * q @ (k * v.norm()).mT, -1),
    "adjoint": lambda q, k: Askew(*features(q, k)[:1], None, features(q, k)[1]),
    "budget": lambda q, k, v, d, scale: attention(q, k, v, scale) * d,
    "diagnostics": lambda qkv: Approximation(None, qkv.v, diagnostics={"visited": torch.ones(qkv.h + 1)}),
    "deterministic": tagged("deterministic", lambda v, generator: v + torch.rand(1, generator=generator)),
    "row-sums-one": tagged("row_sums_one", lambda q, k, scale: 1.01 * softmax(scale * q @ k.mT, -1)),
    "nonnegative": tagged("nonnegative", lambda q, k, scale: softmax(scale * q @ k.mT, -1) - 1e-9),
    "uses-values": tagged("uses_values", lambda q, k, v, scale: softmax(scale * q @ k.mT, -1)),
    "exact-at-full-budget": tagged(
        "exact_at_full_budget", lambda q, k, v, d, scale: attention(q, k, v, scale / 2), exact_at=lambda n: (n, {})
    ),
    "biases": tagged(
        "biases", lambda qkv: softmax(qkv.scale * qkv.q @ qkv.k.mT, -1) + (0 if qkv.bias is None else qkv.bias)
    ),
    "shift-invariant": tagged("shift_invariant", shifts),
    "permutation-equivariant": tagged(
        "permutation_equivariant", lambda q, k, v, scale: attention(q, k, v, scale) * torch.arange(q.shape[1])[:, None]
    ),
    "vanishing-normaliser": tagged("vanishing_normaliser", lambda q, k, v, scale: attention(q, k, v, scale)),
    "own-scale": tagged("own_scale", lambda q, k, v, scale: attention(q, k, v, scale)),
    "causal": tagged("causal", lambda q, k, scale: softmax(scale * q @ k.mT, -1)),
    "causal-rows": tagged("causal", lambda q, k, scale: below(scale * q @ k.mT, torch.arange(q.shape[1]))),
    "decodes": method(tags=("causal", "decodes"))(
        lambda qkv: below(qkv.q @ qkv.k.mT * qkv.scale / qkv.n_k**0.5, qkv.query_positions)
    ),
    "local": tagged("local", lambda qkv: below(qkv.q @ qkv.k.mT * qkv.scale, qkv.query_positions)),
    "prefill": tagged("prefill", lambda q, k, scale: softmax(scale * q @ k.mT, -1)),
    "whole-scale": tagged("whole_scale", lambda q, k, scale: softmax(scale * q @ k.mT / k.abs().max(), -1)),
    "causal-target": tagged("causal_target", lambda qkv: Approximation(None, qkv.v[:, :, :1] if qkv.causal else qkv.v)),
    "diagnostic": tagged(
        "diagnostic", lambda qkv: Approximation(None, qkv.v, diagnostics={"visited": torch.ones(qkv.h)})
    ),
}


def below(scores, last):
    """Causal softmax whose row i sees the keys up to ``last_i``."""
    hidden = torch.arange(scores.shape[2]) > last[:, None]
    return softmax(scores.masked_fill(hidden, float("-inf")), -1)


def looking_ahead(qkv):
    """Keeps, for each query, those of its keys that the last query of the text likes best."""
    scores = qkv.scale * qkv.q @ qkv.k.mT
    best = scores[:, -1:].topk(qkv.n_k // 2).indices
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(2, best.expand(-1, qkv.n_q, -1), True)
    chosen |= torch.eye(qkv.n_q, qkv.n_k, dtype=torch.bool)
    return below(scores.masked_fill(~chosen, float("-inf")), qkv.query_positions)


def test_a_selection_that_looks_ahead_is_noticed_though_no_later_key_has_weight():
    [verdict] = examine(tagged("causal", looking_ahead), only=["causal"])
    assert verdict.status == "failed" and "change the rows before them" in verdict.reason


@pytest.mark.parametrize("seen", ["up to its own place", "of its pair", "as if it were the last"])
def test_the_causal_form_of_a_function_without_a_matrix_is_checked_by_its_output(seen):
    def fn(qkv):
        places = torch.arange(qkv.n_q) + qkv.n_k - qkv.n_q if seen == "as if it were the last" else qkv.query_positions
        last = places // 2 * 2 + 1 if seen == "of its pair" else places
        return Approximation(None, below(qkv.scale * qkv.q @ qkv.k.mT, last) @ qkv.v)

    causal, rows = examine(tagged("causal", fn), only=["causal", "causal-rows"])
    if seen == "up to its own place":
        assert (causal.status, rows.status) == ("ok", "ok")
    elif seen == "of its pair":
        assert causal.status == "failed" and causal.reason.endswith("hide the keys that qkv.visible hides")
    else:
        assert rows.status == "failed" and "alone (read their places from qkv.query_positions): at" in rows.reason


@pytest.mark.parametrize(
    ("mixes", "normaliser", "why"), [(False, True, None), (True, True, "query .* alone"), (False, False, "no log_norm")]
)
def test_a_policy_without_a_causal_form_is_checked_behind_a_prompt(mixes, normaliser, why):
    """It keeps the keys that its first query likes best, or by all of them together."""

    def policy(q, k, v, d, scale):
        looking = q.sum(1, keepdim=True) if mixes else torch.ones_like(q[:, :1])
        kept = (looking @ k.mT)[:, 0].topk(d).indices[..., None]
        keys, values = (x.gather(1, kept.expand(-1, -1, x.shape[2])) for x in (k, v))
        scores = scale * q @ keys.mT
        return Approximation(None, softmax(scores, -1) @ values, log_normalizer=size(scores) if normaliser else None)

    def size(scores):
        return lambda: scores.logsumexp(-1)

    claimed = method(tags=("decodes",), limit=lambda n_q, n_k: n_k)(policy)
    [verdict] = examine(claimed, only=["decodes"])
    assert verdict.status == ("failed" if why else "ok")
    assert why is None or re.search(why, verdict.reason)


def test_a_method_with_any_budget_decodes_at_its_own():
    """Its budget has no limit by the number of keys, which most have."""

    def first(qkv, d):
        """Its own key, and those of the first d - 1 places."""
        late = torch.arange(qkv.n_k) >= d - 1
        late = late & (torch.arange(qkv.n_k) != qkv.query_positions[:, None])
        scores = qkv.scale * qkv.q @ qkv.k.mT
        return below(scores.masked_fill(late, float("-inf")), qkv.query_positions)

    [verdict] = check_method(method(tags=("causal", "decodes"))(first), only=["decodes"])
    assert verdict.status == "ok", verdict.reason


def shifted(qkv):
    left, right = features(qkv.q, qkv.k)
    return Approximation.of(Scaled(LowRank(left, None, right)), qkv)


@pytest.mark.parametrize("name", PROPERTIES)
def test_each_property_notices_its_fault_and_leaves_a_small_case(name):
    if name == "psd-below":
        return  # the project's own suite alone proves it
    fault = FAULTS[name]
    [verdict] = examine(fault, only=[name])
    assert verdict.status == "failed" and verdict.reason and verdict.says == PROPERTIES[name].says
    assert verdict.case["h"] == 1 or name in ("heads", "diagnostics", "scale"), verdict
    assert verdict.case["n"] <= 12 and verdict.case["p"] <= 8 and verdict.case["p_v"] <= 3, verdict.case
    fixed = {key: value for key, value in verdict.case.items() if key != "dtype"}
    again = examine(fault, only=[name], fixed={**fixed, "dtype": getattr(torch, verdict.case["dtype"])})
    assert [one.status for one in again] == ["failed"]
    with pytest.raises(AssertionError, match=f"{name} .softmax.: "):
        check_method(fault, only=[name])


@pytest.mark.parametrize(
    ("draw", "whose"),
    [(lambda: torch.rand(1), "torch's"), (lambda: np.random.rand(), "numpy's"), (lambda: random.random(), "Python's")],
    ids=["torch", "numpy", "python"],
)
def test_a_draw_from_any_global_generator_is_named(draw, whose):
    def careless(v):
        draw()
        return v

    [verdict] = examine(careless, only=["inputs"])
    assert verdict.status == "failed" and verdict.reason.startswith(f"it moves {whose} global generator on")


def test_what_is_right_passes_and_what_is_not_claimed_is_skipped():
    actual = {one.property: one for one in check_method(linear(lambda q, k, v, scale: attention(q, k, v, scale)))}
    assert {one.status for one in actual.values()} == {"ok", "skipped"}
    assert actual["linear"].status == actual["adjoint"].status == "ok" and actual["scale"].cases == 4
    assert actual["row-sums-one"].reason == "not claimed" and actual["budget"].reason == "it has no budget"
    assert "does not say linear_in_v" in {o.property: o for o in examine(attention)}["linear"].reason
    assert {one.tag for one in PROPERTIES.values() if one.tag} == set(TAGS)
    row = tagged("row_sums_one", lambda q, k, v, scale: attention(q, k, v, scale))  # without a matrix: of ones
    assert check_method(row, only=["row-sums-one"])[0].status == "ok"


# what test_methods_contract does not prove of each method on the same cases
OTHERS = ("shapes", "finite", "deterministic-by-seed", "permutation-equivariant", "exact-at-full-budget", "local")
OTHERS += ("vanishing-normaliser", "causal", "causal-rows", "causal-target", "decodes", "prefill", "whole-scale")


@pytest.mark.parametrize("only, least", [(OTHERS, 3), pytest.param((), 14, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", others_slow(METHODS, lambda name: name[0] in [*METHODS][::2]))
def test_every_method_of_the_project_conforms(name, only, least):
    verdicts = check_method(name, only=only)
    assert {one.target for one in verdicts} == set(get(name).targets)
    assert len([one for one in verdicts if one.status == "ok"]) >= least


def test_a_case_that_a_method_refuses_is_no_failure():
    def two(q, v, d):
        return v[:, : q.shape[1]]

    entry = method(least=3, limit=lambda n_q, n_k: n_k)(two)
    actual = {one.property: one for one in examine(entry, fixed={"n": 2})}
    assert {one.status for one in actual.values()} == {"skipped"} and "above n=2" in actual["finite"].reason


def test_what_a_method_raises_is_its_failure_with_the_line(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def fn(q, v):\n    if q.shape[1] > 3:\n        raise ValueError('too long')\n    return v\n"
    )
    [verdict] = examine(f"{tmp_path}/mine.py:fn", only=["finite"])
    assert verdict.reason == "ValueError: too long (mine.py, line 3)" and verdict.case["n"] == 4
    assert verdict.case["h"] == verdict.case["p"] == verdict.case["p_v"] == 1


def test_a_demand_says_where_numbers_differ():
    case = Case(get("svd"))
    x = torch.zeros(2, 3, 4)
    y = x.clone()
    y[1, 2, 3] = 1
    with pytest.raises(Fault, match="this: at head 1, row 2, column 3 1 against 0"):
        case.near(y, x, torch.full_like(x, 0.5), "this")
    with pytest.raises(Fault, match="nan against 0"):
        case.near(y * torch.nan, x, torch.full_like(x, 0.5), "this")
    assert case.near(y, x, torch.full_like(x, 1.0), "this") is None
    assert isinstance(make(), QKV) and case.budget == 6


def test_a_result_without_a_matrix_is_compared_by_its_output():
    case, qkv = Case(get("svd")), make()
    ours = case.run(qkv)
    other = replace(ours, operator=None)
    case.compare(ours, other, qkv, "this")
    case.compare(other, ours, qkv, "this")
    with pytest.raises(Fault, match="this: at head"):
        case.compare(ours, replace(other, output=other.output + 1), qkv, "this")


SUMMED = [case for case in cases() if case[0] != "no row replaced"]


def test_draws_that_depend_on_the_other_heads_are_noticed():
    def run(qkv, d):
        return Approximation(None, torch.zeros_like(qkv.v), draws={"x": torch.full((qkv.h, 1), qkv.h)})

    [verdict] = examine(run, only=["heads"])
    assert verdict.status == "failed" and re.fullmatch(r"head \d draws other x alone", verdict.reason)


def test_a_method_whose_values_are_lost_is_tried_no_further():
    """NaN differs from itself: ten properties failed, with causes that were none."""

    def lost(q, k, v):
        return torch.full_like(q @ k.mT @ v, torch.nan)

    verdicts = {one.property: one for one in examine(lost)}
    assert [name for name, one in verdicts.items() if one.status == "failed"] == ["finite"]
    assert verdicts["heads"].reason == "not tried, as finite failed"


def test_two_tokens_have_one_that_may_be_padded():
    [verdict] = examine("linear", only=["padding"], fixed={"n": 2})
    assert verdict.status == "ok"


def test_a_demand_without_columns_names_head_and_row():
    x = torch.zeros(2, 3)
    y = x.clone()
    y[1, 2] = 1
    with pytest.raises(Fault, match="this: at head 1, row 2 1 against 0"):
        Case(get("svd")).near(y, x, torch.full_like(x, 0.5), "this")
    y[0, 1] = float("nan")  # which is worse than any number
    with pytest.raises(Fault, match="this: at head 0, row 1 nan against 0"):
        Case(get("svd")).near(y, x, torch.full_like(x, 0.5), "this")


@pytest.mark.parametrize("name, operator, dense", SUMMED, ids=[case[0] for case in SUMMED])
def test_the_size_of_what_is_summed_is_at_least_the_entry(name, operator, dense):
    sizes = magnitude(operator)
    assert sizes.shape == dense.shape and (sizes >= dense.abs() * (1 - 1e-12) - 1e-12).all()
    both = magnitude(Stacked([operator.heads(slice(1, 2)), operator.heads(slice(0, 1))]))
    torch.testing.assert_close(both, sizes[[1, 0]])


def reading(keys):
    """A method that states this number of keys of every head."""

    def run(qkv, d):
        read = torch.full((qkv.h,), float(keys))
        return Approximation(None, qkv.v[:, :1].expand(-1, qkv.n_q, -1).clone(), diagnostics={"realised_d": read})

    return run


@pytest.mark.parametrize("size", [1e-206, 1e200])
def test_the_scale_of_rounding_follows_the_size_of_the_factors(size):
    """Squares of such entries under- or overflow float64."""
    g = torch.Generator().manual_seed(0)
    left = torch.randn(1, 5, 3, generator=g, dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(1, 4, 3, generator=g, dtype=torch.float64)).Q.mT
    whole, scaled = (magnitude(LowRank(one, None, basis)) for one in (left, size * left))
    assert torch.allclose(scaled, size * whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "fault, only, status, says",
    [
        (reading(7), "diagnostics", "failed", "realised_d=[7.0] of d=1"),
        (reading(0.5), "diagnostics", "failed", "realised_d=[0.5] of d=1"),
        (reading(6), "diagnostics", "ok", None),
        (tagged("diagnostic", lambda v: v), "diagnostic", "skipped", "it does not count the entries that it visits"),
        (tagged("own_scale", lambda v: v), "scale", "skipped", "it says own_scale"),
        (tagged("uses_values", lambda v: v), "linear", "skipped", "it says that it looks at V"),
    ],
)
def test_what_is_judged_of_diagnostics_and_of_what_a_method_says(fault, only, status, says):
    [verdict] = examine(fault, only=[only])
    assert verdict.status == status and (verdict.reason is None if says is None else says in verdict.reason), verdict


def test_lengths_that_a_method_refuses_are_skipped_with_its_reason():
    def square(q, v):
        if q.shape[1] != v.shape[1]:
            raise Unsupported("as many queries as keys are needed")
        return v

    def never(q, v):
        raise Unsupported("not today")

    assert check_method(square, only=["shapes"])[0].status == "ok"
    for name in ("shapes", "finite"):
        [verdict] = check_method(never, only=[name])
        assert (verdict.status, verdict.cases) == ("skipped", 0) and "not today" in verdict.reason


@pytest.mark.parametrize("least", [2, 3, 4, 5, 6, 8, 10, 12, 16])
def test_the_least_length_that_fails_is_found(least):
    def short(qkv, d):
        if qkv.n_q >= least:
            raise ValueError("too long")
        return Approximation(None, qkv.v)

    [verdict] = examine(short, only=["shapes"])
    assert verdict.case["n"] == least


def test_a_fault_that_does_not_come_again_says_so():
    calls = []

    def once(v):
        calls.append(v)
        if len(calls) == 1:
            raise ValueError("at first")
        return v

    [verdict] = examine(once, only=["finite"], fixed={"n": 5})
    assert (verdict.status, verdict.reason) == ("failed", "fails only now and then") and verdict.case["n"] == 5


@pytest.mark.parametrize("tries, n", [(0, 20), (1, 1)])
def test_a_case_is_made_smaller_as_often_as_is_allowed(tries, n, monkeypatch):
    monkeypatch.setattr(sys.modules["attnprobe.testing.examine"], "TRIES", tries)
    [verdict] = examine(FAULTS["nonnegative"], only=["nonnegative"])
    assert verdict.status == "failed" and (verdict.case["h"], verdict.case["p"]) == (2, 8)


def test_a_field_that_no_case_has_is_named():
    with pytest.raises(UsageError, match="unknown field of a case 'sead'; did you mean 'seed'"):
        examine("svd", fixed={"sead": 3})


def test_draws_from_the_global_generator_are_the_first_of_the_failures():
    def careless(q, k, v):
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + torch.randn(1), -1) @ (v + torch.randn(1))

    names = ["scale", "inputs", "deterministic-by-seed", "float32"]
    text = conformance_table([asdict(one) for one in examine(careless, only=names)])
    first, *others = text.split("\n\n")[1:-1]
    assert first.startswith("✗ deterministic-by-seed: two runs with one seed differ: draw from the generator")
    assert first.splitlines()[-1].startswith("  mend this first") and "✗ scale" in "\n".join(others)
    alone = conformance_table([asdict(one) for one in examine(careless, only=["deterministic-by-seed"])])
    assert "mend this first" not in alone


def test_targets_are_told_apart_and_repeated_and_a_function_has_no_command():
    rows = [
        {"property": "scale", "target": one, "status": "ok", "cases": 1, "says": "s"} for one in ("softmax", "gaussian")
    ]
    refused = {"property": "budget", "target": "softmax", "status": "skipped", "reason": "none", "says": "b"}
    failed = {**rows[0], "status": "failed", "reason": "r", "case": {"n": 2}, "replay": None}
    text = conformance_table([*rows, refused, failed])
    assert "✓ scale (gaussian)  1 case " in text and "1 does not apply" in text and "  smallest case: n=2" in text
    assert "again:" not in text and "scale (" not in conformance_table(rows[:1])
    failing = method(targets=("softmax", "gaussian"))(lambda v: v.log())
    [_, verdict] = examine(failing, only=["finite"])
    assert verdict.target == "gaussian" and verdict.replay is None


WRONG = """
import torch

def forgetful(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v
"""


def test_what_fails_for_one_reason_is_told_once(run, tmp_path):
    (tmp_path / "mine.py").write_text("def spoils(q, v):\n    q *= 2\n    return q[..., :1] * v\n")
    code, out, _ = run("check", "mine.py:spoils", "--only", "inputs,shapes,finite")
    assert code == 1 and out.count("writes into its input q") == 1 == out.count("again: "), out
    assert "✗ inputs, shapes, finite: BadResult" in out and "0 hold, 3 fail" in out
    rows = json.loads(run("check", "mine.py:spoils", "--only", "shapes,finite", "--format", "json")[1])["rows"]
    assert ["--only finite" in row["replay"] for row in rows] == [False, True]


def test_the_command_shows_a_failure_and_how_to_repeat_it(run, tmp_path):
    (tmp_path / "mine.py").write_text(WRONG)
    code, out, err = run("check", "mine.py:forgetful")
    assert code == 1 and "✗ scale: the scale is left out, fixed, or applied twice" in out, err
    [replay] = [line.split("again: ")[1] for line in out.splitlines() if "again: " in line]
    words = shlex.split(replay)
    assert words[:5] == ["attnprobe", "check", "mine.py:forgetful", "--only", "scale"] and "--n" in words
    code, out, _ = run(*words[1:])
    assert code == 1 and "0 hold, 1 fails, 0 do not apply" in out and replay in out
    code, out, _ = run("check", "mine.py:forgetful", "--format", "json")
    result = json.loads(out)
    rows = {row["property"]: row for row in result["rows"]}
    assert code == 1 and result["command"] == "check" and rows["scale"]["status"] == "failed"
    assert rows["scale"]["replay"] == replay and rows["scale"]["case"]["h"] == 1 and rows["heads"]["status"] == "ok"
    for form in ("csv", "md", "latex", "jsonl"):
        assert run("check", "mine.py:forgetful", "--only", "scale", "--format", form)[0] == 1


@pytest.mark.parametrize(
    "args, words",
    [
        (("svd", "--only", "scal"), "unknown property 'scal'; did you mean 'scale'"),
        (("svd", "--dtype", "int8"), "unknown dtype 'int8'"),
        (("svd", "--target", "sigmoid"), "does not take target=sigmoid"),
        (("skyfromer",), "did you mean 'skyformer'"),
        (("skyformer:bogus=1",), "unknown option of skyformer 'bogus'"),
        (("skyformer:bogus",), "'bogus' is not OPTION=VALUE; write skyformer:OPTION=VALUE"),
        (("svd", "--n", "0"), "--n"),
        (("svd", "--format", "xml"), "unknown format"),
    ],
)
def test_what_cannot_be_checked_is_one_line_and_exit_2(run, args, words):
    code, out, err = run("check", *args)
    assert code == 2 and words in err and len(err.strip().splitlines()) == 1 and not out


def test_options_and_targets_are_checked_as_they_are_given(run):
    code, out, _ = run("check", "skyformer:sampler=iid", "--target", "gaussian", "--format", "json")
    rows = json.loads(out)["rows"]
    assert code == 0 and {row["target"] for row in rows} == {"gaussian"}
    assert {row["property"] for row in rows} == set(PROPERTIES)


class Outcomes:
    """A plugin of pytest that keeps what became of each test."""

    def __init__(self):
        self.seen = []

    def pytest_runtest_logreport(self, report):
        self.seen += [report.outcome] * (report.when == "call")


def test_new_method_writes_what_passes_its_check_and_its_test(run, tmp_path, monkeypatch, capsys):
    code, out, err = run("new-method", "my_pool", "--out", "own")
    assert code == 0 and out.split() == ["own/my_pool.py", "own/test_my_pool.py"]
    assert "attnprobe check ./own/my_pool.py:my_pool" in err
    code, out, err = run("check", "./own/my_pool.py:my_pool")
    assert code == 0 and "0 fail" in out, out
    for claim in (
        "row-sums-one",
        "nonnegative",
        "exact-at-full-budget",
        "linear",
        "adjoint",
        "budget",
        "causal",
        "causal-rows",
    ):
        assert f"✓ {claim} " in out
    outcomes = Outcomes()
    with monkeypatch.context() as patch:  # in this process: another one takes two seconds to import torch
        patch.setattr(sys, "path", [*sys.path])
        assert pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "own"], [outcomes]) == 0
    said = capsys.readouterr().out  # and the next command says what it says alone
    assert outcomes.seen == ["passed", "passed"], said
    visited = attnprobe.approximate("own/my_pool.py:my_pool", make(h=2, n=20).replace(causal=True), 4).diagnostics[
        "visited"
    ]
    assert visited.tolist() == [20 + 15 + 10 + 5] * 2
    before = (tmp_path / "own/my_pool.py").read_bytes()
    for name, words in (
        ("my_pool", "exists; choose another name"),
        ("not-a-name", "cannot name a function"),
        ("torch", "is the name of an installed module"),
        ("class", "cannot name a function"),
    ):
        code, out, err = run("new-method", name, "--out", "own")
        assert code == 2 and words in err and not out and len(err.strip().splitlines()) == 1
    assert (tmp_path / "own/my_pool.py").read_bytes() == before and len(list((tmp_path / "own").glob("*.py"))) == 2
    (tmp_path / "file").write_text("")
    assert run("new-method", "mine", "--out", "file/x")[0] == 2


@pytest.mark.parametrize(
    "line, expected",
    [("attnprobe new", ["new-method"]), ("attnprobe error --wind", ["--windows"]), ("attnprobe unknown --m", [])],
)
def test_the_shell_completes_commands_and_options(line, expected):
    env = {**HERE, "_ATTNPROBE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": f"{line.count(' ')}"}
    code = "from attnprobe.cli import main; main([])"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert [entry.split(",", 1)[1] for entry in done.stdout.split()] == expected, done.stderr


def test_a_property_is_known_by_name_to_python_too():
    with pytest.raises(UsageError, match="unknown property 'adjiont'; did you mean 'adjoint'"):
        check_method("svd", only=["adjiont"])


def test_equal_zeros_agree_inhalf_the_digits():
    assert (half_the_digits(torch.zeros(2, 3, 4), torch.float32) > 0).all()
