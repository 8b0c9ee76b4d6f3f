"""Spectra: against dense float64 oracles, ARPACK and PROPACK, and matrices whose spectrum is chosen."""

import math

import pytest
import torch
from inputs import by_another_solver, make, reaching

from attnprobe import approximate, exact, spectra
from attnprobe.errors import Unsupported, UsageError
from attnprobe.metrics import attention_matrix
from attnprobe.metrics import spectrum as metric
from attnprobe.operators import Dense, UnnormalisedAttention
from attnprobe.operators.linalg import spectra as file
from attnprobe.operators.linalg.spectra import (
    eigenvalues,
    entropy_rank,
    leading_singular_values,
    participation_ratio,
    rank_for,
    singular_values,
    stable_rank,
    tail_rank,
)
from attnprobe.qkv import QKV
from attnprobe.rng import generator

F64 = torch.float64
M = 240
EPS = 2.0**-52
SQUARE = ("softmax", "unnormalised", "gaussian", "lifted-softmax", "lifted-gaussian")


def orthogonal(n, label):
    return torch.linalg.qr(torch.randn(n, n, generator=generator(0, label), dtype=F64)).Q


def chosen():
    """Singular values by name, descending; M of them."""
    i = torch.arange(M, dtype=F64)
    ones, zeros = torch.ones(M, dtype=F64), torch.zeros(M, dtype=F64)
    return {
        "flat": torch.linspace(1, 0.5, M, dtype=F64),
        "all equal": ones,
        "steep": 2.0**-i,
        "harmonic": 1 / (1 + i),
        "clusters": torch.cat([value * ones[: M // 4] for value in (1, 0.9, 0.1, 1e-3)]),
        "close pair": torch.cat([ones[:1], (1 - 1e-7) * ones[:1], torch.linspace(0.9, 0, M - 2, dtype=F64)]),
        "rank 5": torch.cat([torch.linspace(1, 0.5, 5, dtype=F64), zeros[5:]]),
        "rank 40": torch.cat([torch.linspace(1, 0.5, 40, dtype=F64), zeros[40:]]),
        "one over much": torch.cat([1e6 * ones[:1], torch.linspace(1, 0.1, M - 1, dtype=F64)]),
        "zero": zeros,
    }


CHOSEN = chosen()
every_spectrum = pytest.mark.parametrize("name", CHOSEN)


def matrix_with(values, tall=0):
    """``U diag(values) Vᵀ`` with ``tall`` more rows than columns."""
    m = len(values)
    return orthogonal(m + tall, "left")[:, :m] * values @ orthogonal(m, "right").mT


@every_spectrum
def test_all_values_to_rounding_of_the_largest(name):
    values = CHOSEN[name]
    actual = singular_values(matrix_with(values, tall=7))
    assert actual.dtype == F64 and (actual[:-1] >= actual[1:]).all()
    assert (actual - values).abs().max() <= 8 * M**0.5 * EPS * values[0]


def test_the_bottom_of_the_spectrum_is_no_gram_matrixs():
    """σ down to 1e-14: a Gram matrix has nothing left of those below 1e-8."""
    values = torch.logspace(0, -14, M, dtype=F64)
    matrix = matrix_with(values)
    gram = torch.linalg.eigvalsh(matrix.mT @ matrix).clamp(min=0).sqrt().flip(0)
    near = (singular_values(matrix) / values - 1).abs()
    assert near[values > 1e-11].max() <= 8 * M**0.5 * EPS / 1e-11
    assert ((gram / values - 1).abs()[values < 1e-9] > 0.1).any()


def test_eigenvalues_are_those_chosen_by_descending_modulus():
    expected = torch.tensor([3 + 0j, 1 + 2j, 1 - 2j, -2 + 0j, 0.5 + 0j], dtype=torch.complex128)
    block = torch.block_diag(
        *(torch.tensor(b, dtype=F64) for b in ([[0.5]], [[1.0, -2.0], [2.0, 1.0]], [[-2.0]], [[3.0]]))
    )
    turn = orthogonal(5, "turn")
    actual = eigenvalues(turn @ block @ turn.mT)
    assert actual.dtype == torch.complex128 and (actual - expected).abs().max() <= 1e-14
    symmetric = eigenvalues(turn @ torch.diag(torch.tensor([1.0, -4.0, 2.0, 0.0, 3.0], dtype=F64)) @ turn.mT, True)
    assert symmetric.dtype == F64
    assert (symmetric - torch.tensor([-4.0, 3.0, 2.0, 1.0, 0.0], dtype=F64)).abs().max() <= 1e-14


@every_spectrum
@pytest.mark.parametrize("k", [1, 20, 60])
def test_what_is_proved_of_leading_values_holds(name, k):
    values = CHOSEN[name]
    actual = leading_singular_values(Dense(matrix_with(values, tall=7)[None]), k)
    true, rounding = values[:k], 1e-13 * values[0]
    noise = math.sqrt(4 * EPS * M**0.5) * values[0]  # what is left of a zero: the root of the rounding of T
    assert (actual.values <= true * (1 + 1e-12) + noise).all()  # Cauchy
    assert (actual.upper >= true * (1 - 1e-12) - rounding).all()
    assert actual.frobenius == pytest.approx(float(values.norm()), rel=1e-12)
    if name == "zero":
        assert actual.closed and not actual.values.any()
        return
    near = (values[:, None] - actual.values).abs().amin(0)  # some singular value is that near
    assert (near <= actual.error + rounding).all()
    if actual.closed:
        assert (actual.error <= 1e-3 * true.clamp(min=3e-4 * values[0])).all()
        assert ((actual.values - true).abs() <= 1e-4 * true + noise).all()


def test_leading_values_close_where_spectra_decay():
    for name in ("steep", "harmonic", "rank 5", "rank 40", "one over much"):
        assert leading_singular_values(Dense(matrix_with(CHOSEN[name])[None]), 20).closed, name


def test_more_leading_values_than_a_block_has_columns_are_all_found():
    x = torch.randn(520, 5, generator=generator(0, "tall"), dtype=F64) @ torch.randn(
        5, 520, generator=generator(0, "wide"), dtype=F64
    )
    actual = leading_singular_values(Dense(x[None]), 130)
    assert actual.values.shape == actual.error.shape == actual.upper.shape == (130,) and actual.closed
    assert (actual.values[:5] - torch.linalg.svdvals(x)[:5]).abs().max() <= 1e-9 * actual.values[0]
    assert actual.values[5:].max() <= 1e-6 * actual.values[0]
    none = leading_singular_values(Dense(torch.zeros(1, 520, 520, dtype=F64)), 130)
    assert none.values.shape == none.upper.shape == (130,) and not none.values.any()


def test_an_interrupted_space_has_errors_that_say_so():
    """One pass of a flat spectrum: far from the truth, and the error covers the distance to some singular value."""
    actual = leading_singular_values(Dense(matrix_with(CHOSEN["flat"])[None]), 20, max_passes=1)
    assert not actual.closed or actual.passes > 1
    assert (actual.upper >= CHOSEN["flat"][:20]).all()


def test_no_larger_value_is_missed_in_a_cluster_as_wide_as_the_block():
    values = torch.cat([torch.ones(40, dtype=F64), torch.linspace(0.5, 0, 360, dtype=F64)])
    actual = leading_singular_values(Dense(matrix_with(values)[None]), 40)
    assert actual.closed and (actual.values - 1).abs().max() <= 1e-6  # the square of the tolerance


class Counting(Dense):
    """A dense operator that counts its products."""

    count = 0

    def _apply(self, x):
        Counting.count += 1
        return super()._apply(x)

    def to(self, dtype):
        return self


def test_it_stops_when_it_is_done():
    Counting.count = 0
    actual = leading_singular_values(Counting(matrix_with(CHOSEN["steep"])[None]), 8)
    assert Counting.count == actual.passes <= 4


@pytest.mark.parametrize("solver", [pytest.param("arpack", marks=pytest.mark.slow), "propack"])
@pytest.mark.parametrize("of", SQUARE)
def test_leading_values_against_another_solver(of, solver):
    qkv = make(h=1, n=300, score=2.0)
    op = attention_matrix(qkv, of)
    theirs = by_another_solver(op, 12, solver)
    ours = spectra(qkv, of, k=12)[0]
    assert ours.closed and not ours.complete
    assert torch.allclose(ours.values, theirs, rtol=1e-5)


@pytest.mark.parametrize("n", [256, 257, 320, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("of", SQUARE)
def test_full_and_leading_against_dense_values(of, n):
    qkv = make(h=2, n=n, score=2.0, dtype=torch.float32)
    dense = attention_matrix(qkv.to(dtype=F64), of).dense()
    for head, (full, leading) in enumerate(zip(spectra(qkv, of), spectra(qkv, of, k=16), strict=True)):
        expected = torch.linalg.svdvals(dense[head])
        assert full.complete and (full.values - expected).abs().max() <= 1e-13 * expected[0]
        assert not leading.complete and ((leading.values / expected[:16]) - 1).abs().max() <= 1e-5
        assert leading.stable_rank == pytest.approx(full.stable_rank, rel=1e-9)
        assert leading.rank_within(0.5) == full.rank_within(0.5)


def test_one_exponential_streams_what_the_products_give(monkeypatch):
    op = attention_matrix(make(h=1, n=300), "unnormalised")
    streamed = leading_singular_values(op, 10)
    monkeypatch.setattr(file, "Streamed", type(None))
    generic = leading_singular_values(op, 10)
    assert torch.allclose(streamed.values, generic.values, rtol=1e-9)
    assert streamed.frobenius == pytest.approx(generic.frobenius, rel=1e-12)


def test_beyond_the_limit_values_are_leading_and_nothing_is_held(monkeypatch):
    monkeypatch.setattr(metric, "FULL", 256)
    monkeypatch.setattr(metric, "held", None)  # would raise
    actual = spectra(make(h=1, n=300), "gaussian")[0]
    assert len(actual.values) == 64 and not actual.complete and actual.entropy_rank is None
    assert actual.participation_ratio is None and actual.stable_rank is not None
    eigen = spectra(make(h=1, n=300), "lifted-gaussian", "eigen")[0]
    assert not eigen.complete and eigen.rank(90) is None
    with pytest.raises(Unsupported, match="up to 256"):
        spectra(make(h=1, n=300), "softmax", "eigen")
    with pytest.raises(UsageError, match="choose k up to 75"):
        spectra(make(h=1, n=300), "softmax", k=80)


def test_the_unnormalised_matrix_is_the_exponential_up_to_its_log_scale():
    qkv = make(score=2.0)
    scores = qkv.scale * qkv.q @ qkv.k.mT
    op = attention_matrix(qkv, "unnormalised")
    assert torch.equal(op.shift, scores.amax((1, 2))) and op.dense().amax() == 1
    assert torch.allclose(op.dense() * op.shift.exp()[:, None, None], scores.exp(), rtol=1e-13)
    x = torch.randn(2, qkv.n_k, 3, generator=generator(0, "x"), dtype=F64)
    assert torch.allclose(op @ x, op.dense() @ x) and torch.allclose(op.rmatmul(x), op.dense().mT @ x)
    assert torch.allclose(op.heads(slice(1, 2)).dense()[0], op.dense()[1], rtol=1e-13)
    assert op.to(torch.float32).dtype == torch.float32
    for head, actual in enumerate(spectra(qkv, "unnormalised")):
        expected = torch.linalg.svdvals(scores[head].exp())
        assert torch.allclose(
            actual.values * math.exp(actual.log_scale), expected, rtol=1e-10, atol=1e-13 * expected[0]
        )


@pytest.mark.parametrize("of", ["unnormalised", "lifted-softmax"])
def test_scores_beyond_any_exponential_are_finite(of):
    qkv = reaching(900.0, n=40)
    actual = spectra(qkv, of)
    assert all(one.finite and one.log_scale > 500 and float(one.values[0]) >= 1 - 1e-10 for one in actual)


def test_the_lifted_kernels_hold_the_attention_matrices_and_are_semidefinite():
    qkv = make(n=30, n_k=22, score=2.0)
    lifted, plain = attention_matrix(qkv, "lifted-softmax"), attention_matrix(qkv, "unnormalised")
    assert lifted.shape == (2, 52, 52)
    inner = lifted.dense()[:, :30, 30:] * (lifted.shift - plain.shift).exp()[:, None, None]
    assert torch.allclose(inner, plain.dense(), rtol=1e-12)
    assert lifted.dense().amax() == pytest.approx(1, rel=1e-12)
    inner = attention_matrix(qkv, "lifted-gaussian").dense()[:, :30, 30:]
    assert torch.allclose(inner, exact(qkv, "gaussian").dense(), rtol=1e-12, atol=0)
    for of in ("lifted-softmax", "lifted-gaussian"):
        for eigen, singular in zip(spectra(qkv, of, "eigen"), spectra(qkv, of), strict=True):
            assert eigen.values.dtype == F64 and eigen.values.min() >= -1e-13 * eigen.values[0]
            assert (eigen.values.abs() - singular.values).abs().max() <= 1e-13 * eigen.values[0]
            assert eigen.stable_rank == pytest.approx(singular.stable_rank, rel=1e-12)


def test_eigenvalues_of_softmax_attention_are_those_of_a_stochastic_matrix():
    qkv = make(n=50)
    for head, actual in enumerate(spectra(qkv, "softmax", "eigen")):
        assert abs(actual.values[0] - 1) <= 1e-12 and (actual.values.abs() <= 1 + 1e-12).all()
        assert abs(actual.values.sum() - exact(qkv).dense()[head].trace()) <= 1e-12
        assert actual.stable_rank is None and actual.rank_within(0.1) is None
        assert actual.rank(100) == 50


def test_the_output_and_a_method_have_the_spectra_of_their_matrices():
    qkv = make(h=2, n=64, p=16)
    expected = torch.linalg.svdvals(exact(qkv).dense() @ qkv.v)
    for one, values in zip(spectra(qkv, "output"), expected, strict=True):
        assert torch.allclose(one.values, values, rtol=1e-12) and one.complete
    op = approximate("skyformer", qkv, d=6).operator
    for one, values in zip(spectra(qkv, op), torch.linalg.svdvals(op.dense()), strict=True):
        assert (one.values - values).abs().max() <= 1e-13 * values[0]
        assert (one.values[12:] <= 1e-12 * values[0]).all()  # rank at most d, twice for the two sides


def test_padding_is_left_out():
    qkv = make(n=40)
    mask = torch.ones(40, dtype=torch.bool)
    mask[::7] = False
    padded = QKV(qkv.q, qkv.k, qkv.v, mask=mask)
    for of in (*SQUARE, "output"):
        for one, other in zip(spectra(padded, of), spectra(padded.compressed(), of), strict=True):
            assert torch.equal(one.values, other.values)


def test_effective_ranks_of_known_spectra():
    flat, r = torch.ones(30, dtype=F64), 0.5 ** torch.arange(60, dtype=F64)
    for rank in (stable_rank, entropy_rank, participation_ratio):
        assert rank(flat) == pytest.approx(30, rel=1e-12)
        assert rank(torch.zeros(3, dtype=F64)) is None
        assert rank(1e-300 * flat) == pytest.approx(30, rel=1e-12)  # no square underflows
    assert stable_rank(r) == pytest.approx(4 / 3, rel=1e-12)  # Σ 4^-i
    assert stable_rank(torch.tensor([2.0, 1.0]), frobenius=4.0) == 4
    assert stable_rank(torch.tensor([-2.0, 1.0, -1.0])) == 1.5  # eigenvalues, by modulus
    assert stable_rank(torch.tensor([-2.0, 1.0]), frobenius=4.0) == 4
    assert participation_ratio(r) == pytest.approx(3, rel=1e-12)  # (1 + q) / (1 - q) of a geometric law
    assert entropy_rank(r) == pytest.approx(4, rel=1e-12)  # its entropy is 2 bits
    assert [rank_for(r, share) for share in (0.5, 0.51, 0.75, 0.9375)] == [1, 2, 2, 4]
    assert rank_for(flat, 0.9) == 27 and rank_for(flat, 1.0) == 30
    assert rank_for(flat[:5], 0.5, total=30.0) is None and rank_for(flat[:5], 0.1, total=30.0) == 3
    assert [tail_rank(r, epsilon, "spectral") for epsilon in (0.5, 0.3, 0.25)] == [1, 2, 2]
    assert [tail_rank(r, epsilon, "frobenius") for epsilon in (0.5, 0.3, 0.25)] == [1, 2, 2]  # 2^-d of the whole
    assert tail_rank(flat, 0.5, "spectral") == 30 and tail_rank(flat, 0.5, "frobenius") == 23  # 30 - 7.5, up
    for norm in ("spectral", "frobenius"):
        assert tail_rank(r[:5], 0.25, norm, float(r.norm())) == 2
        assert tail_rank(r[:5], 1e-3, norm, float(r.norm())) is None


def test_a_best_approximation_of_that_rank_has_that_error():
    qkv = make(h=1, n=80, score=2.0)
    one, b = spectra(qkv)[0], exact(qkv).dense()[0]
    u, s, v = torch.linalg.svd(b)
    for norm, order in (("spectral", 2), ("frobenius", "fro")):
        for epsilon in (0.3, 0.1, 0.01):
            d = one.rank_within(epsilon, norm)

            def error(r, order=order):
                return torch.linalg.matrix_norm(b - u[:, :r] * s[:r] @ v[:r], order)

            size = torch.linalg.matrix_norm(b, order)
            assert error(d) <= epsilon * size * (1 + 1e-9) and error(d - 1) > epsilon * size * (1 - 1e-9)


def test_what_cannot_be_is_refused():
    qkv = make(n=20, n_k=12)
    with pytest.raises(UsageError, match="unknown matrix 'softmx'; did you mean 'softmax'"):
        spectra(qkv, "softmx")
    with pytest.raises(UsageError, match="unknown kind 'eigne'"):
        spectra(qkv, "softmax", "eigne")
    with pytest.raises(Unsupported, match="20 x 12"):
        spectra(qkv, "softmax", "eigen")
    with pytest.raises(Unsupported, match="output"):
        spectra(qkv, "output", "eigen")
    with pytest.raises(UsageError, match="k=0"):
        spectra(qkv, k=0)
    with pytest.raises(UsageError, match="choose 1 to 60"):
        leading_singular_values(Dense(torch.ones(1, M, M)), 61)
    assert spectra(qkv, "softmax", k=10)[0].complete  # too small for leading values: all of them


def test_a_matrix_that_is_not_finite_has_no_spectrum():
    matrix = torch.ones(1, 200, 200)
    matrix[0, 3, 4] = float("nan")
    assert singular_values(matrix[0]).isnan().all() and eigenvalues(matrix[0]).isnan().all()
    qkv = make(h=1, n=200)
    for k in (None, 8):
        one = spectra(qkv, Dense(matrix), k=k)[0]
        assert not one.finite and one.stable_rank is None and one.rank(90) is None and one.rank_within(0.1) is None


def test_the_shift_of_a_slice_is_its_own():
    qkv = make(h=3)
    op = UnnormalisedAttention(qkv.q, qkv.k, qkv.scale)
    assert torch.equal(op.heads(slice(2, 3)).shift, op.shift[2:])
