"""The certified norm of B - B~ against other people's solvers, chosen spectra and dense matrices of every remainder."""

import pytest
import torch
from inputs import by_another_solver, make
from thinned import others_slow

from attnprobe import approximate, exact, matrix_errors, spectra
from attnprobe.operators import Dense
from attnprobe.operators.linalg.differences import CPU_BLOCK, Differences
from attnprobe.operators.linalg.krylov import start_block
from attnprobe.operators.linalg.spectra import leading_singular_values
from attnprobe.rng import generator

F64 = torch.float64
SOLVERS = (pytest.param("arpack", marks=pytest.mark.slow), "propack")
N = 320  # more than are held, and twelve passes of 16 columns are 60 % of them
TOL = 1e-3
METHODS = [  # one or two of each family
    ("skyformer", "softmax"),
    ("skyformer", "gaussian"),
    ("nystromformer", "softmax"),
    ("skeinformer", "softmax"),
    ("informer", "softmax"),
    ("amm", "softmax"),
    ("performer", "softmax"),
    ("linear", "softmax"),
    ("reformer", "softmax"),
    ("longformer", "softmax"),
    ("svd", "softmax"),
    ("vmean", "gaussian"),
]


def chosen():
    """Singular values by name, descending, N of them; ``closes``: whether twelve passes must reach the tolerance."""
    i = torch.arange(N, dtype=F64)
    ones = torch.ones(N, dtype=F64)

    def line(top, bottom, count):
        return torch.linspace(top, bottom, count, dtype=F64)

    return {
        "flat": (line(1, 0.5, N), False),
        "all equal": (ones, True),
        "steep": (2.0**-i, True),
        "harmonic": (1 / (1 + i), True),
        "clusters": (torch.cat([value * ones[: N // 4] for value in (1, 0.9, 0.1, 1e-3)]), False),
        "16 equal": (torch.cat([ones[:16], line(0.9, 0, N - 16)]), False),
        "close pair": (torch.cat([ones[:1], (1 - 1e-7) * ones[:1], line(0.8, 0, N - 2)]), True),
        "outlier": (torch.cat([ones[:1], line(0.5, 0.4, N - 1)]), True),
        "rank 1": (torch.cat([ones[:1], 0 * ones[1:]]), True),
        "rank 40": (torch.cat([line(1, 0.5, 40), 0 * ones[40:]]), True),
    }


CHOSEN = chosen()
every_solver = pytest.mark.parametrize("solver", SOLVERS)


def with_values(values):
    """``U diag(values) Vᵀ`` for random orthogonal U, V."""
    u, v = (
        torch.linalg.qr(torch.randn(N, N, generator=generator(0, label), dtype=F64)).Q for label in ("left", "right")
    )
    return u * values @ v.mT


def assert_holds(actual, norm, head=0, closes=True):
    """The interval holds ``norm`` up to the rounding of the other side, and the value is as near as it says."""
    lower, value, upper = (float(actual[f"matrix_spectral{end}"][head]) for end in ("_lower", "", "_upper"))
    assert lower <= norm * (1 + 1e-10) and norm * (1 - 1e-10) <= upper
    assert not closes or upper <= (1 + TOL) * lower
    assert abs(value - norm) <= max(TOL * norm, upper - lower)


@every_solver
@pytest.mark.parametrize("name, target", METHODS)
def test_the_norm_is_that_which_another_solver_finds(name, target, solver):
    qkv = make(n=300, score=2.0)
    b, op = exact(qkv, target), approximate(name, qkv, 40, target=target).operator
    actual = matrix_errors(b, op, tol=TOL)
    for head in range(2):
        one = slice(head, head + 1)
        assert_holds(actual, float(by_another_solver(b.heads(one), 1, solver, minus=op.heads(one))), head)


@pytest.mark.parametrize("name", CHOSEN)
def test_the_norm_of_a_difference_with_chosen_values(name):
    """B~ is B less that difference, so that it stands behind the cancellation of two larger matrices.

    Where all values are equal, one Lanczos step spans an invariant subspace, and PROPACK goes on with rounding.
    """
    values, closes = CHOSEN[name]
    solver = "arpack" if name == "all equal" else "propack"
    b = exact(make(n=N, h=1, score=2.0))
    op = Dense(b.dense() - 0.1 * with_values(values))
    theirs = float(by_another_solver(b, 1, solver, minus=op))
    assert abs(theirs - 0.1) <= 1e-10  # the oracle is right where it can be checked
    actual = matrix_errors(b, op, tol=TOL)
    assert_holds(actual, 0.1, closes=closes)
    assert_holds(actual, theirs, closes=closes)
    assert abs(float(actual["matrix_frobenius"]) - 0.1 * float(values.norm())) <= 1e-13 * N


@pytest.mark.parametrize("n", [600, pytest.param(2048, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["nystromformer", "performer", "window"])
def test_the_norm_of_longer_sequences_is_that_of_the_dense_matrix(name, n):
    qkv = make(n=n, h=1, p=32, score=3.0)
    b, op = exact(qkv), approximate(name, qkv, 64).operator
    e = b.dense() - op.dense()
    actual = matrix_errors(b, op, tol=TOL)
    assert_holds(actual, float(torch.linalg.matrix_norm(e[0], 2)))
    assert abs(float(actual["matrix_frobenius"]) - float(e.norm())) <= 1e-13 * n**0.5 * float(e.norm())
    single = matrix_errors(exact(qkv.to(dtype=torch.float32)), op, tol=TOL)
    slack = 5e-6 * float(torch.linalg.matrix_norm(b.dense()[0], 2))  # of float32 entries of B
    expected = float(torch.linalg.svdvals(e[0])[0])
    assert single["matrix_spectral_lower"][0] - slack <= expected <= single["matrix_spectral_upper"][0] + slack


@pytest.mark.parametrize("n", [600, pytest.param(2048, marks=pytest.mark.slow)])
@pytest.mark.parametrize("of", ["softmax", "unnormalised", "gaussian"])
def test_leading_values_of_longer_sequences_are_those_of_the_dense_matrix(of, n):
    qkv = make(n=n, h=1, p=32, score=3.0)
    full, leading = spectra(qkv, of)[0], spectra(qkv, of, k=64)[0]
    expected = full.values[:64]
    assert leading.closed and ((leading.values / expected) - 1).abs().max() <= 1e-4
    assert (leading.values <= expected * (1 + 1e-12)).all() and (expected <= leading.upper * (1 + 1e-12)).all()


@pytest.mark.parametrize("n", others_slow(range(257, 257 + CPU_BLOCK), lambda n: n[0] % 32 < 2))
def test_products_and_norms_are_dense_ones_whatever_is_left_for_the_last_block(n):
    """All remainders of n by the rows of a block, with as many keys as are streamed."""
    qkv = make(n=n, h=1, p=2, p_v=1, score=2.0)
    b, op = exact(qkv), approximate("nystromformer", qkv, 8).operator
    complete = b.dense()[0]
    e = complete - op.dense()[0]
    size = float(e.norm())
    matrices, start = Differences(b, [op, None]), start_block(n, 9, 0, F64, torch.device("cpu"))[0]
    first = matrices.first(start)
    x = torch.randn(2, n, 9, generator=generator(0, "x", n), dtype=F64)
    again = matrices.normal(x, torch.tensor([0, 1]))
    for i, one in enumerate((e, complete)):
        band = 1e-13 * n**0.5 * float(complete.norm()) * float(one.norm())
        assert (first.normal[i] - one.T @ (one @ start)).abs().max() <= band
        assert (again[i] - one.T @ (one @ x[i])).abs().max() <= band * float(x[i].norm())
        assert abs(float(first.infinity[i] - one.abs().sum(1).max())) <= 1e-13 * n
    actual = matrix_errors(b, op, tol=TOL)
    assert_holds(actual, float(torch.linalg.matrix_norm(e, 2)))
    assert abs(float(actual["matrix_frobenius"]) - size) <= 1e-13 * n**0.5 * size
    values = torch.linalg.svdvals(complete)
    leading = leading_singular_values(b, 6)
    assert (leading.values - values[:6]).abs().max() <= 1e-6 * values[5]
    assert abs(leading.frobenius - float(complete.norm())) <= 1e-13 * n**0.5 * leading.frobenius
