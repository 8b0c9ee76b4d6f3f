"""Seeded inputs that every test shares, the rounding bands that are derived from them, and solvers of others."""

import torch
from scipy.sparse.linalg import LinearOperator, svds

from attnprobe.rng import generator
from attnprobe.testing.bands import entry_band, eps, factor_of, magnitude, output_band
from attnprobe.testing.cases import DTYPES, SCORES, make, permuted, reaching

__all__ = [
    "DTYPES",
    "PRECISIONS",
    "SCORES",
    "as_scipy",
    "assert_twin",
    "by_another_solver",
    "draws_of",
    "entry_band",
    "eps",
    "factor_of",
    "magnitude",
    "make",
    "one_head",
    "output_band",
    "permuted",
    "reaching",
    "with_spectrum",
]

PRECISIONS = [(SCORES[1], torch.float64), (SCORES[0], torch.float32)]  # a scale of the scores, and a dtype


def one_head(qkv, row):
    """Only head ``row``, in float64."""
    return qkv.head(row).to(dtype=torch.float64)


def draws_of(approx, row) -> dict[str, torch.Tensor]:
    """The draws of one head."""
    return {key: value[row] for key, value in approx.draws.items()}


def assert_twin(approx, qkv, twin, d, target="softmax", slack=0.0, **options) -> None:
    """Each head's matrix is ``twin(qkv, d, draws, target, **options)`` of that head, up to rounding and ``slack``."""
    band = entry_band(approx.matrix(), qkv, qkv.q.dtype)
    for row in range(qkv.h):
        expected = twin(one_head(qkv, row), d, draws_of(approx, row), target, **options)
        assert ((approx.matrix().dense()[row].double() - expected).abs() <= band[row] + slack).all()


def as_scipy(operator, minus=None) -> LinearOperator:
    """An operator of one head, or ``operator - minus``, for ARPACK and PROPACK: products with one vector at a time."""

    def column(x):
        return torch.as_tensor(x, dtype=torch.float64).reshape(1, -1, 1)

    def product(name, x):
        out = getattr(operator, name)(column(x))
        return (out if minus is None else out - getattr(minus, name)(column(x)).double()).flatten().numpy()

    return LinearOperator(
        operator.shape[1:],
        dtype="float64",
        matvec=lambda x: product("__matmul__", x),
        rmatvec=lambda y: product("rmatmul", y),
    )


def by_another_solver(operator, k, solver, minus=None) -> torch.Tensor:
    """The k largest singular values of a square matrix by ``arpack`` or ``propack``, descending float64 (k,)."""
    linear = as_scipy(operator, minus)
    start = torch.randn(min(linear.shape), generator=generator(0, "start"), dtype=torch.float64).numpy()
    room = {"ncv": min(4 * k + 60, len(start))} if solver == "arpack" else {"maxiter": len(start)}  # vectors of a space
    values = svds(linear, k=k, solver=solver, return_singular_vectors=False, v0=start, **room)
    return torch.tensor(sorted(values, reverse=True), dtype=torch.float64)


def with_spectrum(values, seed: int = 0) -> torch.Tensor:
    """A square float64 matrix with these singular values."""
    values = torch.as_tensor(values, dtype=torch.float64)

    def square(side):
        return torch.randn(len(values), len(values), generator=generator(seed, side), dtype=torch.float64)

    u, v = (torch.linalg.qr(square(side)).Q for side in "uv")
    return u @ torch.diag(values) @ v.mT
