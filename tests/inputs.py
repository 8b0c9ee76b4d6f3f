"""Seeded inputs that every test shares, and the rounding bands that are derived from them.

Scores ``s q·k`` of standard normal Q and K have standard deviation 1 whatever p; ``score`` scales it. At 6 a row of
B has a few large entries and the entries of C reach 1e-20, which is where clamps and missing shifts show.
"""

from __future__ import annotations

import torch
from scipy.sparse.linalg import LinearOperator, svds

from attnprobe.operators import LowRank, Padded, RowOverride, Scaled, Sum
from attnprobe.qkv import QKV
from attnprobe.rng import generator

SCORES = (1.0, 6.0)
DTYPES = (torch.float32, torch.float64)


def make(h=2, n=20, p=8, p_v=5, *, n_k=None, score=1.0, dtype=torch.float64, seed=0, label=None) -> QKV:
    """Normal Q, K, V, rounded to float32 first, so that a float32 run and a float64 run see the same numbers."""
    g = generator(seed, "inputs")
    n_k = n if n_k is None else n_k
    q, k, v = (torch.randn(h, rows, width, generator=g) for rows, width in ((n, p), (n_k, p), (n_k, p_v)))
    return QKV((q * score**0.5).to(dtype), (k * score**0.5).to(dtype), v.to(dtype), label=label or {})


def reaching(top: float, **shape) -> QKV:
    """Inputs whose largest |score| is ``top``."""
    dtype = shape.pop("dtype", torch.float64)
    qkv = make(**shape)
    factor = (top / float((qkv.scale * qkv.q @ qkv.k.mT).abs().max())) ** 0.5
    return QKV((qkv.q * factor).to(dtype), (qkv.k * factor).to(dtype), qkv.v.to(dtype))


def permuted(qkv: QKV, order: torch.Tensor) -> QKV:
    """The same tokens in another order."""
    return QKV(qkv.q[:, order], qkv.k[:, order], qkv.v[:, order], scale=qkv.scale, heads=qkv.heads)


def one_head(qkv: QKV, row: int) -> QKV:
    """Head ``row`` alone, in float64."""
    return qkv.select([qkv.heads[row]]).to(dtype=torch.float64)


def magnitude(operator) -> torch.Tensor:
    """What rounding can scale with, (h, n_q, n_k): the operator with norms in place of its factors' entries.

    A product of factors is accurate to eps times the product of their norms, not of the result: for ``L M R`` entry
    (i, j) has ``‖L_i‖ ‖M‖_F ‖R_j‖``, which is far more than ``|(L M R)_ij|`` where M is an inverse with cancellation.
    Factors without a middle are features, each made from its own token with a relative error of its own: ``|L| |R|``,
    which has no slack at all where they are positive. Where R has orthonormal rows they come from a decomposition of
    the whole matrix instead, whose error has one size for all entries; and so it has where L, or L with R beside it, is
    an orthonormal basis of sampled columns.
    """
    if isinstance(operator, LowRank):
        rows, columns = operator.left.double().norm(dim=2)[:, :, None], operator.right.double().norm(dim=1)[:, None]
        if not operator.middle:
            right, eye = operator.right.double(), torch.eye(operator.right.shape[1], dtype=torch.float64)
            if (right @ right.mT - eye).abs().max() > 1e-6:
                return operator.left.double().abs() @ right.abs()
            return rows.amax(1, keepdim=True) * columns.amax(2, keepdim=True) + torch.zeros(operator.shape)
        if _is_basis(operator):
            rows, columns = rows.amax(1, keepdim=True), columns.amax(2, keepdim=True).expand(-1, -1, operator.shape[2])
            rows = rows.expand(-1, operator.shape[1], -1)
        for factor in operator.middle:
            rows = rows * torch.linalg.matrix_norm(factor.double())[:, None, None]
        return rows * columns
    if isinstance(operator, Scaled):
        inner = magnitude(operator.operator)
        inner = inner if operator.left is None else operator.left.double().abs()[:, :, None] * inner
        return inner if operator.right is None else inner * operator.right.double().abs()[:, None, :]
    if isinstance(operator, RowOverride):
        out, new = magnitude(operator.base), magnitude(operator.new)
        for head, slot in operator.used.nonzero().tolist():
            out[head, operator.index[head, slot]] = new[head, slot]
        return out
    if isinstance(operator, Padded):
        out = torch.zeros(operator.shape, dtype=torch.float64)
        out[:, operator.mask.nonzero(), operator.mask.nonzero()[:, 0]] = magnitude(operator.operator)
        return out
    if isinstance(operator, Sum):
        return sum(magnitude(op) for op in operator.operators)
    return operator.dense().double().abs()


def _is_basis(operator: LowRank) -> bool:
    """Whether the columns of L, or of L above Rᵀ, are orthonormal or zero: a Gram matrix that is a projector."""
    left, right = operator.left.double(), operator.right.double()
    gram = left.mT @ left
    return any(float((g @ g - g).abs().max()) < 1e-9 for g in (gram, gram + right @ right.mT))


def factor_of(qkv: QKV) -> float:
    """How many eps of `magnitude` an operator of ``qkv`` may lose.

    An exponent is a sum of p products of size at most G, the largest of ``s|q||k|`` and ``s(|q|² + |k|²)/2``: its
    absolute error is below ``(p + 4) G`` eps, and so is the relative error of its exponential. Two such factors, twice
    for a normaliser, give 4; the products add one eps per summand, at most n_q + n_k of each of three products. (A
    random feature has ``|w| |x'|`` in its exponent, which is at most ``2 |w| √G`` for the pair: it fits as long as
    ``|w|`` is below ``1.5 √G``, or twice that since torch's eps is two roundings.)
    """
    q, k = (float(x.double().norm(dim=-1).max()) for x in (qkv.q, qkv.k))
    growth = qkv.scale * max(q * k, (q * q + k * k) / 2)
    return 4 * (qkv.p + 4) * growth + 3 * (qkv.n_q + qkv.n_k) + 16


def eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def entry_band(operator, qkv: QKV, dtype: torch.dtype) -> torch.Tensor:
    """The allowed error of each entry of an operator made in ``dtype``, (h, n_q, n_k).

    Beside its own error an entry has that of its row's normaliser: relative, and as large as the errors of the row's
    entries together.
    """
    size = magnitude(operator)
    size = size + operator.dense().double().abs() * size.sum(-1, keepdim=True)
    return eps(dtype) * factor_of(qkv) * size + torch.finfo(dtype).tiny


def output_band(approx, qkv: QKV, dtype: torch.dtype) -> torch.Tensor:
    """The allowed error of each entry of its output: that of the operator, and rounding to the output's dtype."""
    inner = entry_band(approx.operator, qkv, dtype) @ qkv.v.double().abs()
    return inner + eps(qkv.dtype) * approx.output.double().abs()


def as_scipy(operator, minus=None) -> LinearOperator:
    """An operator of one head, or ``operator - minus``, for ARPACK and PROPACK: products with one vector at a time."""
    column = lambda x: torch.as_tensor(x, dtype=torch.float64).reshape(1, -1, 1)

    def product(name, x):
        out = getattr(operator, name)(column(x))
        return (out if minus is None else out - getattr(minus, name)(column(x)).double()).flatten().numpy()

    return LinearOperator(
        operator.shape[1:], dtype="float64",
        matvec=lambda x: product("__matmul__", x), rmatvec=lambda y: product("rmatmul", y),
    )  # fmt: skip


def by_another_solver(operator, k, solver, minus=None) -> torch.Tensor:
    """The k largest singular values of a square matrix by ``arpack`` or ``propack``, descending float64 (k,)."""
    linear = as_scipy(operator, minus)
    start = torch.randn(min(linear.shape), generator=generator(0, "start"), dtype=torch.float64).numpy()
    room = {"ncv": min(4 * k + 60, len(start))} if solver == "arpack" else {"maxiter": len(start)}  # vectors of a space
    values = svds(linear, k=k, solver=solver, return_singular_vectors=False, v0=start, **room)
    return torch.tensor(sorted(values, reverse=True), dtype=torch.float64)
