"""Sampled columns: the identities of Drineas, Kannan & Mahoney 2006, over 2000 draws with fixed seeds."""

from math import sqrt

import pytest
import torch
from inputs import assert_twin, make
from twins import TWINS
from twins_sketches import amm_probabilities

from attnprobe.methods import approximate
from attnprobe.operators.linalg.sampling import weighted_with_replacement
from attnprobe.qkv import QKV
from attnprobe.reference import exact
from attnprobe.rng import generator

CHOICES = ("uniform", "optimal", "vnorm", "pilot")
DRAWS = 2000


def skewed(**shape):
    """Values whose norms differ, so that the probabilities do."""
    qkv = make(**shape)
    return QKV(qkv.q, qkv.k, qkv.v * torch.linspace(0.1, 3, qkv.n_k, dtype=torch.float64)[:, None])


def copies(qkv, count=DRAWS):
    """One head ``count`` times: as many independent draws in one call, since each head has its own stream."""
    return QKV(*(x[:1].expand(count, -1, -1).contiguous() for x in (qkv.q, qkv.k, qkv.v)))


def expected_square(qkv, p, d):
    """``E‖B~V - BV‖_F²`` for probabilities that do not themselves depend on draws."""
    b, v = exact(qkv).dense()[0], qkv.v[0]
    probability = torch.tensor(amm_probabilities(qkv, {}, p), dtype=torch.float64)
    terms = b.square().sum(0) * v.square().sum(1) / probability
    return (terms.sum() - (b @ v).square().sum()) / d


def errors(qkv, p, d=6, **options):
    """The error of the output in every draw, (R, n, p_v)."""
    return approximate("amm", copies(qkv), d, p=p, **options).output - exact(qkv).dense()[0] @ qkv.v[0]


@pytest.mark.parametrize("p", CHOICES)
@pytest.mark.parametrize("normalizer", ["exact", "self"])
@pytest.mark.parametrize("score", [1.0, 6.0])
def test_every_choice_equals_its_twin(p, normalizer, score):
    qkv = skewed(n=14, n_k=19, score=score)
    approx = approximate("amm", qkv, 7, p=p, normalizer=normalizer)
    assert_twin(approx, qkv, TWINS["amm"], 7, p=p, normalizer=normalizer)
    assert approx.diagnostics["realised_d"].tolist() == [len(set(row)) for row in approx.draws["columns"].tolist()]


@pytest.mark.parametrize("p", CHOICES)
@pytest.mark.parametrize("score", [pytest.param(1.0, marks=pytest.mark.slow), 2.0])
def test_the_output_is_unbiased(p, score):
    error = errors(skewed(score=score).select([0]), p)
    assert ((error.mean(0)).abs() <= 5 * error.std(0) / sqrt(DRAWS)).all()


@pytest.mark.parametrize("p", ["uniform", "optimal", "vnorm"])
@pytest.mark.parametrize("score", [pytest.param(1.0, marks=pytest.mark.slow), 2.0])
@pytest.mark.parametrize("d", [1, 6])
def test_the_error_has_the_expected_square(p, score, d):
    qkv = skewed(score=score).select([0])
    squares = errors(qkv, p, d).square().sum((1, 2))
    desired = float(expected_square(qkv, p, d))
    assert abs(float(squares.mean()) - desired) <= 5 * float(squares.std()) / sqrt(DRAWS)
    assert float(squares.std()) / sqrt(DRAWS) < 0.05 * desired  # the band is narrow enough to say something


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_the_optimal_probabilities_minimise_the_expected_square(score):
    for seed in range(5):
        qkv = skewed(score=score, seed=seed).select([0])
        expected = {p: float(expected_square(qkv, p, 6)) for p in ("uniform", "optimal", "vnorm")}
        assert min(expected.values()) == expected["optimal"] < min(expected["uniform"], expected["vnorm"])
        b, v = exact(qkv).dense()[0], qkv.v[0]
        least = (b.norm(dim=0) @ v.norm(dim=1)) ** 2 - (b @ v).square().sum()  # the closed form at the optimum
        assert abs(expected["optimal"] - float(least) / 6) <= 1e-12 * float(least)


def test_they_have_the_least_square_of_all_draws():
    measured = {p: float(errors(skewed(score=2.0).select([0]), p).square().sum((1, 2)).mean()) for p in CHOICES}
    assert min(measured, key=measured.get) == "optimal"


@pytest.mark.parametrize("p", CHOICES)
def test_with_the_sampled_normaliser_rows_sum_to_one_and_the_output_is_biased(p):
    qkv = skewed(score=2.0)
    operator = approximate("amm", qkv, 6, p=p, normalizer="self").operator
    assert (operator.row_sums() - 1).abs().max() <= 1e-14
    assert (approximate("amm", qkv, 6, p=p).operator.row_sums() - 1).abs().max() > 1e-2
    error = errors(qkv.select([0]), p, normalizer="self")
    assert (error.mean(0).abs() / (error.std(0) / sqrt(DRAWS))).max() > 8


def test_the_sampled_normaliser_visits_less_than_everything():
    qkv = make(n=40)
    visited = {p: float(approximate("amm", qkv, 4, p=p, normalizer="self").diagnostics["visited"][0]) for p in CHOICES}
    assert visited == {"uniform": 160, "vnorm": 160, "pilot": 320, "optimal": 1760}
    assert float(approximate("amm", qkv, 4).diagnostics["visited"][0]) == 1760


@pytest.mark.parametrize("p", ["optimal", "vnorm", "pilot"])
def test_one_value_that_is_not_zero_is_all_that_is_drawn_and_the_output_exact(p):
    qkv = make()
    v = torch.zeros_like(qkv.v)
    v[:, 7] = qkv.v[:, 7]
    qkv = QKV(qkv.q, qkv.k, v)
    approx = approximate("amm", qkv, 3, p=p)
    assert (approx.draws["columns"] == 7).all() and (approx.diagnostics["realised_d"] == 1).all()
    assert (approx.output - exact(qkv) @ v).abs().max() <= 1e-14


@pytest.mark.parametrize("p", CHOICES)
def test_values_that_are_all_zero_draw_uniformly(p):
    qkv = make()
    qkv = QKV(qkv.q, qkv.k, torch.zeros_like(qkv.v))
    approx = approximate("amm", qkv, 6, p=p)
    assert torch.equal(approx.draws["columns"], approximate("amm", qkv, 6).draws["columns"])
    assert not approx.output.any() and approx.operator.dense().isfinite().all()


def test_all_keys_alike_make_every_column_alike_and_the_row_sums_exact():
    qkv = make()
    qkv = QKV(qkv.q, qkv.k[:, :1].expand_as(qkv.k).contiguous(), qkv.v)
    assert (approximate("amm", qkv, 5).operator.row_sums() - 1).abs().max() <= 1e-14


@pytest.mark.parametrize("p", CHOICES)
def test_heads_draw_the_same_alone_and_in_a_batch_whatever_the_choice(p):
    full = skewed(h=5, n=150)
    batch = approximate("amm", full.select([4, 1]), 20, p=p)
    for row, head in enumerate((4, 1)):
        alone = approximate("amm", full.select([head]), 20, p=p)
        assert all(torch.equal(value[0], batch.draws[key][row]) for key, value in alone.draws.items())


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.0, 3.0, 1.0, 0.0, 6.0, 0.0], [1e-300, 1e-300]], ids=str)
def test_drawing_with_replacement_follows_the_weights(weights):
    weights = torch.tensor(weights, dtype=torch.float64)
    drawn = weighted_with_replacement(weights, 20000, generator(0, "weights"))
    probability = weights / weights.sum()
    share = torch.bincount(drawn, minlength=len(weights)) / 20000
    assert ((share - probability).abs() <= 5 * (probability * (1 - probability) / 20000).sqrt()).all()
