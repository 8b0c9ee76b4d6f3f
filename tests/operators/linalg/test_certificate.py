"""The certified interval of a spectral norm: a bound that holds, fails as seldom as it says, and is tight."""

from math import sqrt

import pytest
import torch
from thinned import others_slow

from attnprobe.errors import UsageError
from attnprobe.operators.linalg.certificate import a_priori_bound, root_bound, threshold, trace_bounds
from attnprobe.operators.linalg.krylov import start_block
from attnprobe.operators.linalg.spectral import norm_intervals
from attnprobe.rng import generator

F64 = torch.float64
M = 128


def normal(shape, *labels):
    return torch.randn(shape, generator=generator(0, *labels), dtype=F64)


def intervals(matrices, dtype=F64, s=16, seed=0, **options):
    """Intervals of dense matrices (N, n, m); products with E and Eᵀ in ``dtype``."""
    e = matrices.to(dtype)
    v1, r = start_block(e.shape[2], s, seed, dtype, e.device)

    def times(x, which):
        return e[which].mT @ (e[which] @ x)

    return norm_intervals(times, times(v1.expand(len(e), -1, -1), torch.arange(len(e))), v1, r, **options)


def spectra():
    """Singular values by name, descending; M of them. Ω is rotation-invariant, so diagonal matrices lose nothing."""
    i = torch.arange(M, dtype=F64)
    ones = torch.ones(M, dtype=F64)
    return {
        "flat": torch.linspace(1, 0.5, M, dtype=F64),
        "all equal": ones,
        "powers": 2.0**-i,
        "16 equal": torch.cat([ones[:16], torch.linspace(0.9, 0, M - 16, dtype=F64)]),
        "outlier over flat": torch.cat([2 * ones[:1], torch.linspace(1, 0.5, M - 1, dtype=F64)]),
        "near outlier": torch.cat([1.05 * ones[:1], torch.linspace(1, 0, M - 1, dtype=F64)]),
        "harmonic": 1 / (1 + i),
        "close pair": torch.cat([ones[:1], (1 - 1e-6) * ones[:1], torch.linspace(0.9, 0, M - 2, dtype=F64)]),
        "rank 1": torch.cat([ones[:1], 0 * ones[1:]]),
        "rank 5": torch.cat([torch.linspace(1, 0.5, 5, dtype=F64), 0 * ones[5:]]),
        "rank s + 3": torch.cat([torch.linspace(1, 0.5, 19, dtype=F64), 0 * ones[19:]]),
        "one over ones": torch.cat([1.3 * ones[:1], ones[1:]]),
        "zero": 0 * ones,
    }


SPECTRA = spectra()
every_spectrum = pytest.mark.parametrize("name", SPECTRA)


def first_pass_failures(s, delta, seeds):
    """How often bound B after one pass lies below the norm of a matrix of rank one, Ω drawn anew for each."""
    omega = normal((seeds, 64, s), "coverage", s)
    v, r = torch.linalg.qr(omega)
    x = torch.zeros(64, dtype=F64)
    x[0] = 1.0
    w = x[:, None] * v[:, :1]  # A V for A = x xᵀ
    t = v.mT @ w
    b = torch.linalg.qr(w - v @ t, mode="r").R
    theta, y = torch.linalg.eigh((t + t.mT) / 2)
    upper = root_bound(theta, r.mT @ y, b @ y, threshold(delta, s), torch.zeros(seeds, dtype=F64))
    return float((upper < 1).double().mean())


@pytest.mark.parametrize("s", [1, 4])
def test_on_rank_one_the_bound_fails_exactly_as_often_as_it_says(s):
    """``f(λ₁) = ‖w‖ / ‖z‖`` with ‖z‖ near 1: no slack, so the rate is δ to both sides, not only at most δ."""
    seeds, delta = 4000, 0.1
    band = 3 * sqrt(delta * (1 - delta) / seeds)
    assert abs(first_pass_failures(s, delta, seeds) - delta) <= band + 0.002  # ‖z‖² is 1 - s/64 on average: below 1


@pytest.mark.parametrize("name", others_slow(SPECTRA, lambda name: name[0] in ("powers", "outlier over flat")))
@pytest.mark.parametrize("delta", [0.1, pytest.param(0.01, marks=pytest.mark.slow)])
def test_the_interval_misses_no_more_often_than_it_says(name, delta):
    """Any number of passes and the smallest bound of all. Turning E is as good as drawing Ω anew: 300 rotations."""
    values, trials = SPECTRA[name], 300
    turns = torch.linalg.qr(normal((trials, M, M), "turns", name)).Q
    actual = intervals(values[:, None] * turns, delta=delta, tol=1e-2, max_passes=5)
    truth = float(values.max())
    assert (actual.lower <= truth * (1 + 1e-12)).all()
    missed = int((actual.upper < truth * (1 - 1e-12)).sum())
    assert missed <= delta * trials + 3 * sqrt(delta * (1 - delta) * trials)


@every_spectrum
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("known_frobenius", [False, True])
def test_the_interval_holds_the_norm_and_closes(name, dtype, known_frobenius):
    values = SPECTRA[name]
    squares = values.square().sum()[None] if known_frobenius else None
    actual = intervals(torch.diag(values)[None], dtype, frobenius2=squares)
    truth = float(values.max())
    assert actual.lower[0] <= truth <= actual.upper[0]
    flat = name in ("flat", "16 equal", "near outlier", "close pair")
    assert actual.width[0] < (2e-2 if flat else 1e-3)  # what 12 passes promise at m = 256 whatever the spectrum
    assert abs(actual.value[0] - truth) <= (1e-3 if known_frobenius else 1e-4) * truth
    assert 1 <= actual.passes[0] <= 12 and (flat or actual.passes[0] <= 6)


def test_rotated_and_rectangular_matrices_of_one_batch():
    shapes = [normal((300, M), "matrix", i) for i in range(4)]
    matrices = torch.stack([x * 10.0 ** (3 * i - 5) for i, x in enumerate(shapes)])  # nothing depends on the size
    actual = intervals(matrices)
    truth = torch.linalg.matrix_norm(matrices, 2)
    assert (actual.lower <= truth).all() and (truth <= actual.upper).all() and (actual.width < 2e-2).all()


def test_a_matrix_has_the_same_interval_alone_and_among_others():
    matrices = torch.stack([torch.diag(values) for values in SPECTRA.values()])
    together = intervals(matrices)
    for i in range(len(matrices)):
        alone = intervals(matrices[i : i + 1])
        assert alone.passes[0] == together.passes[i] and alone.kind[0] == together.kind[i]
        for name in ("value", "lower", "upper"):
            one, other = getattr(alone, name)[0], getattr(together, name)[i]
            assert abs(one - other) <= 1e-12 * max(1.0, float(one))


def test_a_matrix_that_is_not_finite_is_nan_and_harms_no_other():
    matrices = torch.stack([torch.diag(SPECTRA["powers"]), torch.full((M, M), float("nan"), dtype=F64)])
    actual = intervals(matrices)
    assert actual.lower[0] <= 1 <= actual.upper[0] and actual.width[0] < 1e-3
    assert actual.value[1].isnan() and actual.upper[1].isnan() and actual.passes[1] == 0
    alone = intervals(matrices[1:])
    assert alone.lower.isnan() and alone.upper.isnan() and alone.passes[0] == 0


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("name", ["rank 1", "rank 5", "rank s + 3", "all equal"])
def test_an_exhausted_krylov_space_keeps_its_basis_orthogonal(name, dtype):
    """Eight passes without stopping: an inflated lower end would be the silent failure."""
    e = torch.diag(SPECTRA[name]).to(dtype)[None]
    blocks = []

    def times(x, which):
        blocks.append(x[0].double())
        return e.mT @ (e @ x)

    v1, r = start_block(M, 16, 0, dtype, e.device)
    actual = norm_intervals(times, times(v1[None], None), v1, r, tol=-1.0, max_passes=8)
    v = torch.cat(blocks, 1)
    u = torch.finfo(dtype).eps / 2
    assert v.shape[1] == 128
    assert (v.mT @ v - torch.eye(128, dtype=F64)).abs().max() <= 50 * u
    assert actual.lower[0] <= SPECTRA[name].max() <= actual.upper[0]


@pytest.mark.parametrize("s", [16, 24, 32])
def test_no_block_is_added_that_does_not_fit_into_the_space(s):
    """A basis of more columns than there are rows is not orthogonal, and its lower end lies above the norm."""
    e = normal((M, M), "full")[None]
    actual = intervals(e, s=s, tol=-1.0)
    assert actual.passes[0] == min(12, M // s)
    assert actual.lower[0] <= torch.linalg.matrix_norm(e[0], 2) <= actual.upper[0]


def two_roots():
    """A block problem whose f falls below t = 0.15 near the pole and rises above it again."""
    theta = torch.tensor([[1.0, 2.0]], dtype=F64)
    y = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=F64)  # T = diag(2, 1)
    r = torch.tensor([[1.0, 0.0], [1.0, 0.01]], dtype=F64)
    b = torch.tensor([[1.0, -3.0], [0.0, 0.01]], dtype=F64)
    return theta, (r.mT @ y)[None], (b @ y)[None]


def values_of_f(theta, p, c, at):
    return torch.stack([torch.linalg.matrix_norm((p[0] / (x - theta[0])) @ c[0].T, 2) for x in at])


def test_the_largest_root_is_found_where_f_is_not_monotone():
    theta, p, c = two_roots()
    near, far = values_of_f(theta, p, c, [2.5, 3.0])
    assert near < 0.15 < far  # a search that starts at the pole would stop before 2.5
    actual = float(root_bound(theta, p, c, 0.15, torch.zeros(1, dtype=F64)))
    assert 13.7686 <= actual <= 13.80


def test_the_bound_of_zeros_is_zero():
    theta, p, none = torch.zeros(1, 3, dtype=F64), torch.zeros(1, 2, 3, dtype=F64), torch.zeros(1, dtype=F64)
    assert 0 <= float(root_bound(theta, p, p, 0.15, none)) <= 1e-299


@pytest.mark.slow
def test_no_point_above_the_bound_reaches_the_threshold_and_the_bound_is_near_one_that_does():
    """Random small problems against a dense scan of f, which can only miss, never invent."""
    for trial in range(24):
        s, k = 2 + trial % 2, 3
        g = normal((s * k, s * k), "problem", trial)
        theta = torch.linalg.eigvalsh(g @ g.T)[None]
        y = torch.linalg.eigh(g @ g.T)[1]
        p = (normal((s, s), "r", trial).T @ y[:s])[None]
        c = (normal((s, s), "b", trial) @ y[-s:])[None]
        for t in (0.01, 0.1, 0.5):
            actual = float(root_bound(theta, p, c, t, torch.zeros(1, dtype=F64)))
            top = float(theta[0, -1])
            at = top + torch.logspace(-8, 6, 2000, dtype=F64) * top
            over = at[values_of_f(theta, p, c, at) >= t]
            highest = float(over.max()) if len(over) else top
            assert actual >= highest * (1 - 1e-12)
            assert actual - top <= 1.02 * (highest - top) * 10 ** (14 / 2000) + 1e-7 * top
            enough = torch.tensor([1.5 * top], dtype=F64)
            soon = float(root_bound(theta, p, c, t, torch.zeros(1, dtype=F64), enough))
            assert actual <= soon <= max(1.02 * actual, float(enough))


def test_the_rounding_term_only_widens():
    theta, p, c = two_roots()
    plain = root_bound(theta, p, c, 0.15, torch.zeros(1, dtype=F64))
    assert root_bound(theta, p, c, 0.15, torch.full((1,), 1e-3, dtype=F64)) > plain


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_the_bound_by_the_trace_is_deterministic(passes):
    """No start block, however unlucky, makes it fail: here one orthogonal to the top direction."""
    values = SPECTRA["powers"]
    a = torch.diag(values.square())
    v = torch.linalg.qr(torch.cat([torch.zeros(1, 16, dtype=F64), normal((M - 1, 16), "blind")]))[0]
    basis = [v]
    for _ in range(passes - 1):
        last = a @ basis[-1]
        for _ in range(2):
            last = last - sum(x @ (x.T @ last) for x in basis)
        basis.append(torch.linalg.qr(last)[0])
    v = torch.cat(basis, 1)
    t = v.T @ a @ v
    f = a @ v - v @ t
    b = torch.linalg.qr(f[:, -16:], mode="r")[1]
    theta, y = torch.linalg.eigh((t + t.T) / 2)
    tau2 = (a.trace() - t.trace())[None]
    assert trace_bounds(theta[None], (b @ y[-16:])[None], tau2)[0, -1] >= 1.0 - 1e-12


def test_the_bound_a_priori_falls_with_the_passes_and_promises_two_per_cent():
    r = torch.linalg.matrix_norm(start_block(4096, 16, 0, F64, torch.device("cpu"))[1], 2)
    one = torch.ones((), dtype=F64)
    widths = [float(a_priori_bound(one, r, threshold(1e-6, 16), k).sqrt()) - 1 for k in (3, 5, 8, 12, 20)]
    assert widths == sorted(widths, reverse=True)
    for width, expected in zip(widths, (0.48, 0.14, 0.050, 0.021, 0.0074), strict=True):
        assert abs(width - expected) <= 0.05 * expected


def test_the_upper_end_squared_makes_the_difference_positive_definite():
    e = normal((M, M), "sylvester") / 16
    actual = intervals(e[None])
    eye = torch.eye(M, dtype=F64)
    assert torch.linalg.cholesky_ex(actual.upper[0] ** 2 * eye - e.T @ e)[1] == 0
    assert torch.linalg.cholesky_ex(actual.lower[0] ** 2 * (1 - 1e-2) * eye - e.T @ e)[1] != 0


def test_start_blocks_are_gaussian_and_orthonormal_and_depend_on_the_seed():
    v, r = start_block(500, 16, 0, F64, torch.device("cpu"))
    assert (v.T @ v - torch.eye(16, dtype=F64)).abs().max() <= 1e-14
    omega = v @ r
    assert abs(float(omega.mean())) <= 5 / sqrt(8000) and abs(float(omega.var()) - 1) <= 5 * sqrt(2 / 8000)
    assert not torch.equal(v, start_block(500, 16, 1, F64, torch.device("cpu"))[0])


def test_blocks_and_probabilities_that_prove_nothing_are_refused():
    with pytest.raises(UsageError, match="8 or more"):
        intervals(torch.eye(64, dtype=F64)[None], s=4)
    with pytest.raises(UsageError, match="fewer than the rows"):
        intervals(torch.eye(16, dtype=F64)[None])
    for delta in (0.0, 1.0, -0.1):
        with pytest.raises(UsageError, match="not in"):
            threshold(delta, 16)
