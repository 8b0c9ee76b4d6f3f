"""Verdicts: their order, which is that of `Finding.verdicts`, and that every statement keeps to it."""

import itertools
import math

import pytest
import torch
from inputs import make
from theory_settings import check

from attnprobe import QKV
from attnprobe.theorems import THEOREMS, Finding


def of(met, vacuous, measured, bound, sense="at most", **more):
    def number(x):
        return torch.tensor([x], dtype=torch.float64)

    ends = {name: number(x) if name != "rounding" else x for name, x in more.items()}
    return Finding(
        "t",
        "a",
        torch.tensor([met]),
        "p",
        number(bound),
        number(measured),
        torch.tensor([vacuous]),
        sense=sense,
        **ends,
    )


@pytest.mark.parametrize("sense", ["at most", "at least"])
def test_what_is_not_assumed_comes_first_then_what_is_not_promised_then_what_is_lost(sense):
    selected, broken = (1.0, 3.0) if sense == "at most" else (3.0, 1.0)
    for met, vacuous, measured in itertools.product((True, False), (True, False), (selected, broken, math.nan)):
        expected = (
            "assumption not met"
            if not met
            else "vacuous"
            if vacuous
            else None
            if math.isnan(measured)
            else "holds"
            if measured == selected
            else "violated"
        )
        assert of(met, vacuous, measured, 2.0, sense).verdicts() == [expected]


def test_an_interval_and_rounding_must_lie_beyond_the_bound_as_a_whole():
    assert of(True, False, 2.5, 2.0, lower=1.9, upper=3.0).verdicts() == ["holds"]
    assert of(True, False, 2.5, 2.0, lower=2.1, upper=3.0).verdicts() == ["violated"]
    assert of(True, False, 2.5, 2.0, lower=2.1, upper=3.0, rounding=0.2).verdicts() == ["holds"]
    assert of(True, False, 1.5, 2.0, "at least", lower=1.0, upper=2.1).verdicts() == ["holds"]
    assert of(True, False, 1.5, 2.0, "at least", lower=1.0, upper=1.9).verdicts() == ["violated"]
    assert of(True, False, 1.5, 2.0, "at least", rounding=0.6).verdicts() == ["holds"]
    assert of(True, False, 2.0, 2.0).verdicts() == ["holds"] == of(True, False, 2.0, 2.0, "at least").verdicts()


def test_infinite_numbers_are_compared_and_nan_is_not():
    inf = math.inf
    assert of(True, False, 1.0, inf).verdicts() == ["holds"] and of(True, False, inf, 1.0).verdicts() == ["violated"]
    assert of(True, False, inf, 1.0, "at least").verdicts() == ["holds"]
    for lost in (
        of(True, False, 1.0, math.nan),
        of(True, False, 1.0, 2.0, lower=math.nan),
        of(True, False, inf, 1.0, rounding=inf),
    ):
        assert lost.verdicts() == [None] and bool(lost.lost)


def uniform(n=40):
    q = torch.zeros(1, n, 4, dtype=torch.float64)
    return QKV(q, q, torch.randn(1, n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


BOTH = {  # where the assumption fails and the bound would say nothing either
    "skyformer-theorem-2": (make(n=24, score=3.0), (6,)),
    "skeinformer-jl": (make(n=24, score=3.0), (6,)),
    "skeinformer-jl-vector": (uniform(), (1,)),
    "skeinformer-proposition-1": (make(n=24, score=1e4), (2,)),
    "eckart-young": (make(n=24, score=1.0), (12,)),
    "rank-collapse": (make(n=24, score=6.0), (6,)),
}


@pytest.mark.parametrize("name", BOTH)
def test_a_theorem_whose_assumption_fails_is_not_called_vacuous(name):
    qkv, budgets = BOTH[name]
    both = 0
    for one in check(name, qkv, budgets, epsilons=(0.1, 1.5), methods=("window", "skyformer"), seeds=range(4)):
        for met, vacuous, verdict in zip(one.met.tolist(), one.vacuous.tolist(), one.verdicts(), strict=True):
            assert (verdict == "assumption not met") == (not met)
            assert (verdict == "vacuous") == (met and vacuous)
            both += vacuous and not met
    assert both


def test_inputs_without_any_structure_have_verdicts_everywhere():
    """Values or scores that are all zero, one token, repeated tokens: nothing is violated there, and nothing NaN."""
    zero, g = torch.zeros(1, 8, 4, dtype=torch.float64), torch.Generator().manual_seed(1)
    x, y, v = torch.randn(3, 1, 8, 4, generator=g, dtype=torch.float64)

    def same(t):
        return t[:, :1].expand(1, 8, 4)

    inputs = {
        "no scores": (zero, zero, v),
        "no values": (x, y, zero),
        "nothing": (zero, zero, zero),
        "one token": (x[:, :1], y[:, :1], v[:, :1]),
        "repeated": (same(x), same(y), v),
    }
    for what, three in inputs.items():
        qkv = QKV(*three)
        for name in sorted(set(THEOREMS) - {"ma-property", "shift-bound"}):  # a method may be bad, a bound wrong
            if what == "one token" and name.startswith("shift-"):
                continue
            d = 1 if what == "one token" else 4
            for one in check(name, qkv, (d,), methods=("nystromformer",), seeds=range(3)):
                assert not {None, "violated"} & set(one.verdicts()), (what, name, dict(one.at))
    for one in check("ma-property", QKV(x, y, zero), (4,), methods=("nystromformer",)):
        assert one.at["of"] == "matrix" or (one.measured == 0).all()  # an output of zeros is met exactly
