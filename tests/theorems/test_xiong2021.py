"""Nyströmformer's lemmas: the exact step of the residual, the order measured, exactness at d = n, planted faults."""

from dataclasses import replace
from math import log, log10

import pytest
import torch
from inputs import make, one_head, with_spectrum
from theory_settings import check, setting_for

from attnprobe import QKV, findings
from attnprobe.errors import Unsupported
from attnprobe.operators.linalg.inverses import razavi, start
from attnprobe.theorems import THEOREMS, xiong2021
from attnprobe.theorems.xiong2021 import (
    xiong2021_gap,
    xiong2021_next_residual,
    xiong2021_residual_after,
    xiong2021_steps,
)

EPS = torch.finfo(torch.float64).eps
EYE = torch.eye(12, dtype=torch.float64)


def row_stochastic(seed: int, d: int = 12, score: float = 2.0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.softmax(score * torch.randn(1, d, d, generator=g, dtype=torch.float64), -1)


def test_one_step_is_three_quarters_of_the_cube_and_a_quarter_of_the_fourth_power():
    """As matrices, whatever the start: this is what makes the order three."""
    for seed in range(4):
        core = row_stochastic(seed)
        z = start(core, "norms") + 0.01 * row_stochastic(seed + 50).mT
        e = EYE - core @ z
        expected = 0.75 * e @ e @ e + 0.25 * e @ e @ e @ e
        assert (EYE - core @ razavi(core, z, 1) - expected).abs().max() < 1e-13
        assert float(xiong2021_next_residual(torch.tensor(0.5).double())) == 0.75 * 0.5**3 + 0.25 * 0.5**4


@pytest.mark.parametrize("least", [1.0, 1e-1, 1e-3])
def test_the_gap_and_all_that_follows_from_it(least):
    core = with_spectrum(torch.logspace(0, log10(least), 12, dtype=torch.float64))[None]
    columns = max(sum(abs(float(core[0, i, j])) for i in range(12)) for j in range(12))
    rows = max(sum(abs(float(core[0, i, j])) for j in range(12)) for i in range(12))
    gap = xiong2021_gap(core)
    assert float(gap) == pytest.approx(least**2 / (columns * rows), rel=1e-9)
    z, residuals = start(core, "norms"), []
    for _ in range(31):
        residuals.append(float(torch.linalg.matrix_norm(EYE - core @ z, 2)))
        z = razavi(core, z, 1)
    for steps, expected in enumerate(residuals):
        assert float(xiong2021_residual_after(gap, steps)) == pytest.approx(expected, rel=1e-7, abs=1e-11 / least)
    steps = int(xiong2021_steps(gap, 1e-6))
    assert residuals[steps] <= 1e-6 < residuals[steps - 1]


def test_the_gap_of_a_core_without_full_rank_is_that_of_its_smallest_value_and_has_no_unit():
    values = torch.zeros(12, dtype=torch.float64)
    values[:3] = torch.tensor([1.0, 0.5, 0.25])
    core = with_spectrum(values)[None]
    gap = float(xiong2021_gap(core))
    assert gap == pytest.approx(0.25**2 / float(core.abs().sum(-2).max() * core.abs().sum(-1).max()), rel=1e-9)
    for unit in (1e6, 1e-6):
        assert float(xiong2021_gap(unit * core)) == pytest.approx(gap, rel=1e-9)


def test_steps_of_a_gap_that_one_minus_it_rounds_away():
    gap = torch.tensor([1e-18, 1e-9, 0.5, 0.0], dtype=torch.float64)
    few, many = xiong2021_steps(gap)[1], xiong2021_steps(gap)[0]
    assert float(many - few) == pytest.approx(torch.tensor(1e9).log() / torch.tensor(13 / 4).log(), abs=1)
    assert xiong2021_steps(gap)[3].isnan() and 1 <= float(xiong2021_steps(gap)[2]) <= 5


def test_the_precondition_is_measured():
    actual = check("nystromformer-precondition", make(n=24), (4, 8))
    for one in actual:
        assert set(one.verdicts()) == {"holds"} and (one.measured < 1).all()
        assert one.measured.numpy() == pytest.approx((1 - one.details["gap"]).numpy(), abs=1e-13)


def test_equal_landmarks_make_a_singular_core_whose_range_is_what_counts():
    qkv = make(n=24)
    twice = QKV(torch.cat([qkv.q[:, :12], qkv.q[:, :12]], 1), qkv.k, qkv.v)
    one = check("nystromformer-precondition", twice, (12,))[0]
    core = setting_for(twice).run("nystromformer", 12, 0).cores["A"]
    assert (torch.linalg.matrix_rank(core) == 6).all() and set(one.verdicts()) == {"holds"}
    assert one.measured.numpy() == pytest.approx((1 - one.details["gap"]).numpy(), abs=1e-13)


def test_a_start_that_is_too_large_is_violated(monkeypatch):
    monkeypatch.setattr(xiong2021, "start", lambda core, rule: 40 * start(core, rule))
    assert set(check("nystromformer-precondition", make(n=24), (8,))[0].verdicts()) == {"violated"}


def test_scores_that_hardly_differ_leave_a_precondition_that_float64_cannot_tell():
    qkv = make(n=24, score=1e-12)
    one = check("nystromformer-precondition", qkv, (8,))[0]
    assert set(one.verdicts()) == {"vacuous"}
    assert set(check("nystromformer-lemma-1", qkv, (8,))[0].verdicts()) == {"assumption not met"}


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_the_order_is_three(score):
    for one in check("nystromformer-lemma-1", make(n=48, score=score), (6, 12)):
        assert set(one.verdicts()) == {"holds"}
        assert (one.measured >= 3).all() and (one.measured < 3.26).all()  # ¾e³ + ¼e⁴: from 13/4 near 1 down to 3
        residuals = one.details["residuals"]
        for row in range(2):
            steps = [(float(a), float(b)) for a, b in zip(residuals[row], residuals[row][1:], strict=False)]
            ratios = [log(b) / log(a) for a, b in steps if a < 1 - 1e-3 and b > 1e-4]
            assert float(one.measured[row]) <= min(ratios) * (1 + 1e-9)
        assert residuals.shape[0] == 2 and (residuals[:, 0] < 1).all() and (one.details["smallest"] < 1e-9).all()


def test_the_fitted_order_of_a_well_conditioned_core():
    core = with_spectrum(torch.linspace(1, 0.05, 12))[None]
    least, most, slope = xiong2021._order(*(x[0] for x in xiong2021._series(core)))
    assert 3 <= float(least) <= float(most) < 3.26 and float(slope) == pytest.approx(3.05, abs=0.1)


def newton(core, z, steps):
    """The second-order iteration ``Z (2 I - A Z)``."""
    return z @ (2 * torch.eye(core.shape[-1], dtype=core.dtype) - core @ z)


def test_an_iteration_of_second_order_is_violated(monkeypatch):
    monkeypatch.setattr(xiong2021, "razavi", newton)
    one = check("nystromformer-lemma-1", make(n=48), (8,))[0]
    assert set(one.verdicts()) == {"violated"}
    assert one.measured.numpy() == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_landmarks_that_are_the_data_are_exact(score):
    one = check("nystromformer-lemma-2", make(n=20, score=score))[0]
    assert one.d == 20 and set(one.verdicts()) == {"holds"} and (one.measured < 1e-9).all()
    assert (one.details["schulz"] > 1e-3).all()  # six steps are not A⁺
    first = one_head(make(n=20, score=score), 0)
    expected = torch.linalg.cond(torch.softmax(first.scale * first.q @ first.k.mT, -1))
    assert float(one.details["condition"][0]) == pytest.approx(float(expected), rel=1e-6)
    [actual] = findings(make(n=20, score=score), "nystromformer-lemma-2")
    assert torch.equal(actual.measured, one.measured)  # head by head as in a run


def test_lemma_2_is_about_the_true_inverse():
    """With six steps in its place the same statement fails, and the check says so."""
    qkv = make(n=20)
    setting = setting_for(qkv)
    wrong = replace(setting, run=lambda method, d, seed, row: setting.run("nystromformer", d, seed, row))
    one = next(iter(THEOREMS["nystromformer-lemma-2"].check(qkv, wrong)))
    assert set(one.verdicts()) == {"violated"}


def test_lemma_2_refuses_what_it_would_not_finish():
    with pytest.raises(Unsupported, match="21 queries and 20 keys"):
        check("nystromformer-lemma-2", make(n=21, n_k=20))
    with pytest.raises(Unsupported, match="up to 4096"):
        check("nystromformer-lemma-2", make(h=1, n=4097, p=2))


def test_budgets_that_do_not_fit_are_left_out_and_refused_where_none_does():
    actual = check("nystromformer-precondition", make(n=20), (8, 99))
    assert [one.d for one in actual] == [8]
    with pytest.raises(Unsupported, match="99"):
        check("nystromformer-precondition", make(n=20), (99,))


def test_sixty_steps_are_the_most():
    steps = xiong2021_steps(torch.logspace(-40, -20, 800, dtype=torch.float64))
    assert steps.isnan().any() and steps[~steps.isnan()].max() == 60
