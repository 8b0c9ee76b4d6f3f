"""Statistical dimension and leverage: exact values against loops, quadrature between its bounds, its stated errors."""

from functools import partial

import numpy as np
import pytest
import torch
from inputs import make

from attnprobe.errors import UsageError
from attnprobe.operators import GaussianAttention
from attnprobe.operators.linalg import dimension
from attnprobe.operators.linalg.dimension import exact_leverage, largest_leverage, leverage, statistical_dimension
from attnprobe.operators.linalg.lanczos import quadratic_forms
from attnprobe.rng import generator

N = 60
SPECTRA = {
    "slow": 1 / torch.arange(1, N + 1).double(),
    "fast": torch.logspace(0, -14, N, dtype=torch.float64),
    "clusters": torch.cat([torch.full((20,), 3.0), torch.full((20,), 1e-2), torch.full((20,), 1e-6)]).double(),
    "low rank": torch.cat([torch.linspace(1, 2, 5), torch.zeros(N - 5)]).double(),
    "flat": torch.ones(N, dtype=torch.float64),
}
RIDGES = torch.tensor([1.0, 1e-1, 1e-2, 1e-4], dtype=torch.float64)


def with_eigenvalues(values: torch.Tensor) -> torch.Tensor:
    basis = torch.linalg.qr(torch.randn(N, N, generator=generator(0, "basis"), dtype=torch.float64)).Q
    return basis @ torch.diag(values) @ basis.mT


def kernel(h=2, n=150, p=4, score=3.0) -> GaussianAttention:
    q = make(h=h, n=n, p=p, score=score).q
    return GaussianAttention(q, q, p**-0.5)


def filtered(matrix: torch.Tensor, ridge: float) -> np.ndarray:
    """``A (A + λI)⁻¹`` by numpy's eigenvectors."""
    values, vectors = np.linalg.eigh(matrix.numpy())
    return (vectors * (values.clip(0) / (values.clip(0) + ridge))) @ vectors.T


@pytest.mark.parametrize("name", SPECTRA)
def test_exact_values_against_an_inverse(name):
    matrix = with_eigenvalues(SPECTRA[name])
    scores = exact_leverage(matrix, RIDGES)
    for j, ridge in enumerate(RIDGES.tolist()):
        inverse = np.linalg.inv(matrix.numpy() + ridge * np.eye(N))
        expected = [sum(matrix[i, k].item() * inverse[k, i] for k in range(N)) for i in range(N)]
        band = 1e-13 * N * float(SPECTRA[name].max()) / ridge
        assert np.abs(scores[j].numpy() - expected).max() < band
        d_stat = float(scores[j].sum())
        assert d_stat == pytest.approx(float((SPECTRA[name] / (SPECTRA[name] + ridge)).sum()), abs=N * band)


def test_blocks_of_columns_do_not_show(monkeypatch):
    matrix = with_eigenvalues(SPECTRA["slow"])
    full = exact_leverage(matrix, RIDGES)
    monkeypatch.setattr(dimension, "COLUMNS", 7)
    assert torch.allclose(exact_leverage(matrix, RIDGES), full, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("steps", [1, 2, 3, 6, 12, 40])
def test_every_number_of_steps_brackets_the_form(name, steps):
    """In float64 the rounding allowed is small beside the brackets, so a rule on the wrong side is seen."""
    matrix = with_eigenvalues(SPECTRA[name])
    v = torch.randn(N, 3, generator=generator(1, "v"), dtype=torch.float64)
    v = torch.cat([v / v.norm(dim=0), torch.eye(N, 2, dtype=torch.float64)], 1)
    actual = quadratic_forms(lambda x: matrix @ x, v, RIDGES, eta=1e-14, enough=lambda _: False, max_steps=steps)
    for j, ridge in enumerate(RIDGES.tolist()):
        expected = np.einsum("ic,ij,jc->c", v.numpy(), filtered(matrix, ridge), v.numpy())
        slack = actual.rounding[:, j].numpy() + 1e-13
        assert (actual.lower[:, j].numpy() - slack <= expected).all()
        assert (expected <= actual.upper[:, j].numpy() + slack).all()
    assert actual.rounding.max() < 1e-9
    assert float(actual.top) <= float(SPECTRA[name].max()) * (1 + 1e-12)
    if steps == 40 and name in ("clusters", "low rank", "flat"):  # as many distinct eigenvalues as steps, or fewer
        assert (actual.upper - actual.lower).max() < 1e-7 and actual.steps <= 20


def test_one_step_is_jensens_inequality():
    """One Gauss node is the mean of the spectral measure; beside the node 0 the other is m₂/m₁."""
    matrix, ridge = with_eigenvalues(SPECTRA["slow"]), RIDGES[1:2]
    v = torch.eye(N, 4, dtype=torch.float64)
    actual = quadratic_forms(lambda x: matrix @ x, v, ridge, eta=1e-15, enough=lambda _: True, max_steps=1)
    mean, second = matrix.diagonal()[:4], (matrix @ matrix).diagonal()[:4]
    assert torch.allclose(actual.upper[:, 0], mean / (mean + ridge), rtol=1e-12)
    node = second / mean
    assert torch.allclose(actual.lower[:, 0], mean / node * node / (node + ridge), rtol=1e-9)


def test_the_brackets_close_and_one_run_serves_every_ridge():
    matrix, v = with_eigenvalues(SPECTRA["slow"]), torch.eye(N, 2, dtype=torch.float64)
    together = quadratic_forms(lambda x: matrix @ x, v, RIDGES, eta=1e-14, enough=lambda _: False, max_steps=N)
    assert (together.upper - together.lower).max() < 1e-9
    for j in range(len(RIDGES)):
        one = quadratic_forms(
            lambda x: matrix @ x, v, RIDGES[j : j + 1], eta=1e-14, enough=lambda _: False, max_steps=N
        )
        assert torch.equal(one.lower[:, 0], together.lower[:, j])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("held", [True, False])
def test_the_bracket_holds_this_draws_mean(dtype, held, monkeypatch):
    """Not a statistical statement: the probes' forms are made by numpy, and their mean must lie in the bracket."""
    if not held:
        monkeypatch.setattr(dimension, "HELD", 10)
    op = kernel()
    ridges = torch.tensor([[10.0, 1.0, 0.1], [5.0, 0.5, 0.02]], dtype=torch.float64)
    actual = statistical_dimension(op, ridges, probes=6, seed=3, dtype=dtype)
    n = op.shape[1]
    signs = (2.0 * torch.randint(2, (n, 6), generator=generator(3, "trace", n, 6)) - 1).double().numpy()
    for head in range(2):
        for j, ridge in enumerate(ridges[head].tolist()):
            forms = np.einsum("ic,ij,jc->c", signs, filtered(op.dense()[head], ridge), signs)
            assert float(actual.lower[head, j]) <= forms.mean() <= float(actual.upper[head, j])
            gap = float(actual.upper[head, j] - actual.lower[head, j])
            rounding = 2 * n * dimension.ETA[dtype] * n / ridge  # ‖A‖ is below n
            assert gap <= max(1e-3 * forms.mean(), 0.3 * float(actual.standard_error[head, j])) + rounding
            error = forms.std(ddof=1) / 6**0.5
            assert float(actual.standard_error[head, j]) == pytest.approx(error, abs=gap + 1e-9)


def test_the_standard_error_is_that_of_random_signs():
    """``Var zᵀFz = 2 Σ_{i≠j} F_ij²``; over 200 seeds the estimates scatter as said, and 5 errors hold them all."""
    op = kernel(h=1, n=80)
    ridge = torch.tensor([[1.0]], dtype=torch.float64)
    true = float(exact_leverage(op.dense()[0], ridge[0]).sum())
    every = [statistical_dimension(op, ridge, seed=seed) for seed in range(200)]
    values, errors = (torch.stack([getattr(one, name)[0, 0] for one in every]) for name in ("value", "standard_error"))
    f = filtered(op.dense()[0], 1.0)
    variance = 2 * ((f**2).sum() - (np.diag(f) ** 2).sum()) / 16
    assert abs(float(values.mean()) - true) < 5 * (variance / 200) ** 0.5 + 1e-3 * true
    scatter = 5 * (2 / (200 * 15)) ** 0.5 * 2  # 5 sigma of a mean of sample variances, twice for heavier tails
    assert float(errors.square().mean()) == pytest.approx(variance, rel=scatter)
    assert float(values.var()) == pytest.approx(variance, rel=5 * (2 / 199) ** 0.5)
    bands = [one.band() for one in every]
    assert all(float(low) <= true <= float(high) for low, high in bands)
    narrow = [one.band(0.5) for one in every]
    assert any(not float(low) <= true <= float(high) for low, high in narrow)


def test_rounding_of_float32_is_in_the_bracket():
    """A small λ beside a large norm: float32 moves the forms by more than the rules' gap, and the bracket says so."""
    op = kernel(h=1, n=200, score=0.5)
    top = float(torch.linalg.eigvalsh(op.dense()[0])[-1])
    ridge = torch.tensor([[1e-4 * top, 1e-6 * top]], dtype=torch.float64)
    sharp, rough = (
        statistical_dimension(op, ridge, probes=4, tol=1e-9, max_steps=200, dtype=dtype)
        for dtype in (torch.float64, torch.float32)
    )
    assert (rough.lower <= sharp.lower).all() and (sharp.upper <= rough.upper).all()
    assert float(rough.upper[0, 1] - rough.lower[0, 1]) > 100 * float(sharp.upper[0, 1] - sharp.lower[0, 1])
    assert (sharp.upper - sharp.lower).max() < sharp.standard_error.max() / 2


def test_heads_together_are_heads_alone():
    op, ridges = kernel(h=3), torch.rand(3, 2, generator=generator(0, "ridge")).double() + 0.1
    together, rows = statistical_dimension(op, ridges), torch.tensor([[0, 5], [7, 8], [1, 149]])
    scores, most = leverage(op, ridges, rows), largest_leverage(op, ridges)
    for head in range(3):
        one = slice(head, head + 1)
        alone = statistical_dimension(op.heads(one), ridges[one])
        assert torch.equal(alone.value, together.value[one]) and torch.equal(alone.steps, together.steps[one])
        assert torch.equal(leverage(op.heads(one), ridges[one], rows[one]).upper, scores.upper[one])
        assert torch.equal(largest_leverage(op.heads(one), ridges[one]).lower, most.lower[one])


@pytest.mark.parametrize("measure", [partial(leverage, rows=torch.tensor([[0, 7]])), largest_leverage])
def test_a_smaller_tolerance_takes_more_products_and_gives_narrower_brackets(measure, monkeypatch):
    op, ridges = kernel(h=1, n=120), torch.tensor([[1e-2]])
    widths, products = [], []
    for tol in (0.5, 1e-2, 1e-8):
        count = 0

        def counted(*given, product=dimension._product):
            multiply, eta = product(*given)

            def one(x):
                nonlocal count
                count += 1
                return multiply(x)

            return one, eta

        with monkeypatch.context() as patched:
            patched.setattr(dimension, "_product", counted)
            found = measure(op, ridges, tol=tol, dtype=torch.float64)
        widths.append(float(((found.upper - found.lower) / found.upper).max()))
        products.append(count)
    assert products[0] < products[1] < products[2] and widths[0] > widths[1] > widths[2]
    assert widths[0] <= 0.5 and widths[1] <= 1e-2 and widths[2] <= 1e-7


@pytest.mark.parametrize("score", [0.3, 3.0, 30.0])
def test_leverage_of_rows_and_the_largest_of_all(score):
    op = kernel(score=score)
    ridges = torch.tensor([[5.0, 0.5, 0.05]] * 2, dtype=torch.float64)
    rows, rounding = torch.tensor([[3, 77, 149], [0, 1, 2]]), 2 * dimension.ETA[torch.float32] * 150 / ridges[0]
    actual = leverage(op, ridges, rows)
    for head in range(2):
        scores = exact_leverage(op.dense()[head], ridges[head])  # (L, n)
        expected = scores[:, rows[head]]
        assert (actual.lower[head] <= expected).all() and (expected <= actual.upper[head]).all()
        assert ((actual.upper - actual.lower)[head] <= 1e-3 * expected + rounding[:, None] + 1e-5).all()
        for probes in (1, 10, 150):
            most = largest_leverage(op, ridges, probes=probes)
            true = scores.amax(-1)
            assert (most.lower[head] <= true).all() and (true <= most.upper[head]).all()
        assert ((most.upper - most.lower)[head] <= 1e-3 * true + rounding + 1e-5).all()


def test_the_bound_of_all_rows_is_a_bound_where_no_row_is_measured(monkeypatch):
    """The largest score is hidden from the probes; the moments still bound it, and better than m₁/(m₁ + λ)."""
    op, ridges = kernel(h=1), torch.tensor([[2.0, 0.2]], dtype=torch.float64)
    nothing = dimension.Leverage(torch.zeros(1, 2, 1).double(), torch.zeros(1, 2, 1).double())
    monkeypatch.setattr(dimension, "leverage", lambda *given, **options: nothing)
    bound, true = largest_leverage(op, ridges, probes=1).upper[0], exact_leverage(op.dense()[0], ridges[0])
    second = true.sort(dim=-1).values[:, -2]
    assert (bound >= second).all() and (bound < 1 / (1 + ridges[0])).all()


def test_blocks_of_rows_do_not_show(monkeypatch):
    op, ridges = kernel(), torch.tensor([[2.0, 0.2]] * 2, dtype=torch.float64)

    def run():
        return (statistical_dimension(op, ridges).value, largest_leverage(op, ridges, probes=1).upper)

    full = run()
    monkeypatch.setattr(dimension, "ROWS", 13)
    for one, other in zip(full, run(), strict=True):
        assert torch.allclose(one, other, rtol=1e-5)


def test_what_is_refused():
    op, one = kernel(h=1), torch.ones(1, 1)
    square = GaussianAttention(op.q, op.k[:, :9], op.scale)
    for call in (
        lambda: statistical_dimension(square, one),
        lambda: statistical_dimension(op, torch.ones(2, 1)),
        lambda: statistical_dimension(op, one, probes=1),
        lambda: statistical_dimension(op, 0 * one),
        lambda: exact_leverage(op.dense()[0], torch.tensor([float("nan")])),
        lambda: exact_leverage(-op.dense()[0], torch.tensor([1e-3])),
    ):
        with pytest.raises(UsageError):
            call()


def test_a_ridge_below_the_rounding_knows_nothing():
    """Where λ is rounding beside ‖A‖ the bracket is all that a form can be."""
    actual = statistical_dimension(kernel(h=1, n=50, score=0.01), torch.tensor([[1e-12]], dtype=torch.float64))
    assert float(actual.lower) <= 0 and float(actual.upper) >= 50
