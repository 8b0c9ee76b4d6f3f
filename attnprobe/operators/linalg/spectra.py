"""Spectra of one matrix: all values of a dense matrix in float64, or the leading values of an operator.

Effective ranks depend on the spectrum only: the stable rank ``‖·‖_F² / σ₁²``, the entropy rank ``exp(-Σ p log p)`` and
the participation ratio ``1 / Σ p²``, with the shares ``p = w / Σ w`` of weights w. The weights are ``σ²`` for singular
values and ``|λ|`` for eigenvalues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UsageError
from ...rng import generator
from .. import Operator, Streamed
from ..blocks import block_rows, row_blocks
from .certificate import trace_bounds
from .differences import Differences
from .krylov import grown, next_block, projected, start_block
from .norms import row_norms, unit_of_squares

ROWS = 256  # of an operator at a time, where its matrix is filled or summed
MAX_PASSES = 12


def held(op: Operator) -> Tensor:
    """The dense matrix of an operator of one head in float64, (n_q, n_k), computed by blocks: ``8 n_q n_k`` bytes."""
    sharp = op.to(torch.float64)
    out = torch.empty(op.shape[1:], dtype=torch.float64, device=op.device)
    for start, stop in row_blocks(op.shape[1], block_rows(out, op.shape[2], ROWS)):
        out[start:stop] = sharp.rows(start, stop)[0]
    return out


def singular_values(matrix: Tensor) -> Tensor:
    """All singular values of a matrix (n, m), descending, float64 (min(n, m),).

    They come from its SVD. Their absolute error is ``eps σ₁``, about 1e-16 of the largest; the roots of the eigenvalues
    of a Gram matrix would be noise below 1e-8 of it. A matrix with a value that is not finite has NaN. Cost O(n m²);
    memory about three times the matrix.

    >>> singular_values(torch.tensor([[0.0, 3.0], [4.0, 0.0]]))
    tensor([4., 3.], dtype=torch.float64)
    """
    if not torch.isfinite(matrix).all():
        return torch.full((min(matrix.shape),), float("nan"), dtype=torch.float64)
    return torch.linalg.svdvals(matrix.double()).clamp(min=0).cpu()


def eigenvalues(matrix: Tensor, symmetric: bool = False) -> Tensor:
    """All eigenvalues of a square matrix (n, n) by descending modulus, (n,): complex128, or float64 if ``symmetric``.

    Eigenvalues of equal modulus are in the order of their real parts, then of their imaginary parts, descending. Unlike
    singular values, eigenvalues of a matrix that is far from normal are sensitive: a perturbation of relative size eps
    moves them by eps times their own condition. Cost O(n³), about ten times that of the singular values; memory about
    four times the matrix.

    >>> eigenvalues(torch.tensor([[1.0, 0.0], [0.0, -4.0]]), symmetric=True)
    tensor([-4.,  1.], dtype=torch.float64)
    """
    n = matrix.shape[0]
    dtype = torch.float64 if symmetric else torch.complex128
    if not torch.isfinite(matrix).all():
        return torch.full((n,), float("nan"), dtype=dtype)
    matrix = matrix.double()
    values = (torch.linalg.eigvalsh if symmetric else torch.linalg.eigvals)(matrix).cpu()
    if not symmetric:
        values = values[torch.argsort(values.imag, descending=True, stable=True)]
    values = values[torch.argsort(values.real, descending=True, stable=True)]
    return values[torch.argsort(values.abs(), descending=True, stable=True)]


@dataclass(frozen=True)
class Leading:
    """The k largest singular values of one matrix with proved bounds. All (k,) float64.

    Attributes:
        values: ``√θ_i`` of the largest Ritz values of ``EᵀE``; none is above the singular value of its rank, up to
            rounding (Cauchy).
        error: the i leading values have i different singular values each within ``error[i]`` of its own.
        upper: deterministic upper bounds of ``σ_i``, from the part of ``‖E‖_F²`` outside the Krylov space.
        frobenius: ``‖E‖_F``, exact.
        passes: products with ``EᵀE``. closed: whether the residuals are within the tolerance.
    """

    values: Tensor
    error: Tensor
    upper: Tensor
    frobenius: float
    passes: int
    closed: bool


def leading_singular_values(
    op: Operator, k: int, *, tol: float = 1e-3, max_passes: int | None = None, seed: int = 0
) -> Leading:
    """The k largest singular values of an operator of one head, by block Krylov on ``A = EᵀE`` in float64.

    With V an orthonormal basis of the Krylov space, ``T = VᵀAV = Y diag(θ) Yᵀ`` and ``AV = VT + Q B [0 … 0 I]``:

    - ``λ_i ≥ θ_i``, because T is a compression of A;
    - the i leading Ritz vectors ``U = V Y_i`` have the residual ``R = AU - U Θ = Q B (Y_i)_last``, orthogonal to U. So
      θ_1 … θ_i are eigenvalues of ``A - R Uᵀ - U Rᵀ``, whose distance from A is ``‖R‖₂``, at most ρ_i, the lesser of
      ``‖R‖_F`` and the 2-norm of all k columns. By Weyl, i different eigenvalues of A lie within ρ_i of them, which is
      ``ρ_i / √θ_i`` (at most ``√ρ_i``) for singular values;
    - A is below ``[[T, Cᵀ], [C, τ² I]]`` with ``C = B Y_last`` and ``τ² = ‖E‖_F² - tr T``, and so is its i-th
      eigenvalue: see `certificate`, bound A. This is the upper end. It is close only if τ² is small.

    Passes continue until the residual is small. A small residual proves that the values are near singular values and,
    with Cauchy, that at least i singular values are as large. It does not prove that no larger one was missed: that is
    unlikely, because the start block is random and has at least 16 columns. The true error is about the square of the
    bound by the residual, 1e-6 for a ``tol`` of 1e-3. Values below 1e-7 of σ₁ are rounding, and their ``error`` shows
    it; `singular_values` of the dense matrix resolves 1e-16. The passes are in float64: for a σ_k of 1e-2 of σ₁, as in
    softmax attention, ``tol θ_k`` is 1e-7 of θ₁, the rounding of float32.

    Args:
        op: of shape (1, n_q, n_k); exact attention is streamed, and no n x n matrix is stored.
        k: at most a quarter of ``min(n_q, n_k)``.
        tol: passes end if ``error ≤ tol σ`` for every value, or if the residual is rounding (below 1e-7 of σ₁).
        max_passes: 12 by default, more where k needs several blocks.
        seed: of the start block, whose stream is ``certificate``.

    Cost: ``n_q n_k (p + 2 s)`` multiply-adds a pass of exact attention, for a block of s = 16 … 128 columns; memory ``8
    n_k s`` bytes a pass.

    Raises:
        UsageError: a k that is not between 1 and a quarter of the matrix's size.
    """
    _, n, m = op.shape
    if not 1 <= k <= min(n, m) // 4:
        raise UsageError(f"k={k}: the leading values of a {n} x {m} matrix; choose 1 to {min(n, m) // 4}")
    op = op.to(torch.float64)
    s = min(max(k, 16), 128, m // 4)
    most = min(max_passes or MAX_PASSES + -(-k // s), m // s - 1)
    v1, _ = start_block(m, s, seed, torch.float64, op.device)
    product, w, unit, frobenius = _passes(op, v1)
    frobenius2 = (frobenius / unit) ** 2
    nan = torch.full((k,), float("nan"), dtype=torch.float64)
    if not torch.isfinite(w).all():
        return Leading(nan, nan, nan, float("nan"), 1, False)
    u, noise = torch.finfo(torch.float64).eps / 2, generator(seed, "perturbation", m, s)
    basis, t = v1[None], w.new_zeros(1, 0, 0)
    theta = rho = w.new_zeros(0)
    c, rounding, done, closed = w.new_zeros(s, 0), w.new_zeros(()), 0, False
    for done in range(1, most + 1):
        d, column = projected(w, basis)
        t = grown(t, column)  # (1, K, K)
        q, b = torch.linalg.qr(d)
        theta, y = torch.linalg.eigh(t)
        theta, c = theta[0].flip(0), (b @ y[:, -s:])[0].flip(1)  # (K,), (s, K), descending
        rounding = 8 * u * t.shape[-1] ** 0.5 * (theta[0].clamp(min=0) + torch.linalg.matrix_norm(b[0], 2))
        closed = False
        if len(theta) >= k:
            rho = torch.minimum(c[:, :k].square().sum(0).cumsum(0).sqrt(), torch.linalg.matrix_norm(c[:, :k], 2))
            closed = bool((rho <= torch.maximum(tol * theta[:k].clamp(min=0), 2 * rounding)).all())
        if closed or done == most:
            break
        block = next_block(q, b, basis, theta[:1].clamp(min=0), noise)
        basis = torch.cat([basis, block], 2)
        w = product(block)
    lam = theta[:k].clamp(min=0)
    rho = rho + rounding
    error = torch.minimum(rho / lam.sqrt().clamp(min=1e-300), rho.sqrt())
    upper = _trace_ends(theta, c, frobenius2, rounding)[:k].sqrt() * (1 + 1e-12)
    values, error, upper = (x.cpu() * unit for x in (lam.sqrt(), error, upper))
    return Leading(values, error, upper, frobenius, done, closed)


def _passes(op: Operator, v1: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor, float, float]:
    """The product ``x -> EᵀE x / ε²`` for x (1, m, s), the product of V₁ (1, m, s), the unit ε, and ``‖E‖_F``."""
    if isinstance(op, Streamed):  # one exponential an entry and pass
        matrix, which = Differences(op, [None]), torch.zeros(1, dtype=torch.int64)
        first = matrix.in_units(v1)
        return lambda x: matrix.normal(x, which), first.normal, float(first.unit[0]), float(first.frobenius[0])
    sizes, largest = [], v1.new_zeros(())
    for start, stop in row_blocks(op.shape[1], block_rows(op, op.shape[2], ROWS)):
        rows = op.rows(start, stop)
        sizes.append(row_norms(rows[0], 2))
        largest = torch.maximum(largest, rows.abs().sum(2).amax())
    unit = float(unit_of_squares(largest))

    def product(x: Tensor) -> Tensor:
        return op.rmatmul((op @ x) / unit) / unit

    return product, product(v1[None]), unit, float(row_norms(torch.stack(sizes)))


def _trace_ends(theta: Tensor, c: Tensor, frobenius2: float, rounding: Tensor) -> Tensor:
    """Upper bounds of the eigenvalues of A, descending: those of ``[[Θ, Cᵀ], [C, τ² I]]``, and ``‖E‖_F²/i``."""
    tau2 = (frobenius2 - theta.sum()).clamp(min=0) + 1e-14 * frobenius2 + rounding
    ends = trace_bounds(theta[None], c[None], tau2[None])[0].flip(0) + rounding
    return torch.minimum(ends, frobenius2 / torch.arange(1, len(ends) + 1).to(ends))


def stable_rank(values: Tensor, frobenius: float | None = None) -> float | None:
    """``‖·‖_F² / σ₁²`` of singular values (m,), descending; None for a zero matrix.

    Args:
        frobenius: ``‖·‖_F``, if these are only the leading values.

    >>> stable_rank(torch.tensor([2.0, 1.0, 1.0]))
    1.5
    """
    top = float(values[0].abs())
    if not 0 < top < float("inf"):
        return None
    return float((values / top).abs().square().sum()) if frobenius is None else (frobenius / top) ** 2


def entropy_rank(weights: Tensor) -> float | None:
    """``exp(-Σ p log p)`` of the shares ``p = w / Σ w`` of weights (m,); None if ``Σ w`` is zero.

    >>> round(entropy_rank(torch.tensor([1.0, 1.0, 0.0])), 12)
    2.0
    """
    p = _shares(weights)
    return None if p is None else float(torch.special.entr(p).sum().exp())


def participation_ratio(weights: Tensor) -> float | None:
    """``1 / Σ p²`` of the shares ``p = w / Σ w`` of weights (m,); None if ``Σ w`` is zero.

    >>> participation_ratio(torch.tensor([1.0, 1.0, 0.0]))
    2.0
    """
    p = _shares(weights)
    return None if p is None else float(1 / p.square().sum())


def rank_for(weights: Tensor, share: float, total: float | None = None) -> int | None:
    """The least number of leading weights whose sum is at least ``share · total``; None if all weights have less.

    Args:
        weights: (m,), descending. total: the sum of all weights, if these are only the leading ones.

    >>> rank_for(torch.tensor([8.0, 1.0, 1.0]), 0.9)
    2
    """
    total = float(weights.sum()) if total is None else total
    if not 0 < total < float("inf"):
        return None
    reached = (weights.cumsum(0) >= share * total * (1 - 1e-12)).nonzero()  # a sum that is exact but for rounding
    return int(reached[0]) + 1 if len(reached) else None


def tail_rank(values: Tensor, epsilon: float, norm: str, frobenius: float | None = None) -> int | None:
    """The smallest d whose best rank-d approximation has a relative error of at most ε; None if it is unknown.

    By Eckart, Young and Mirsky that error is ``σ_{d+1} / σ₁`` in the ``spectral`` norm and
    ``(Σ_{i>d} σ_i²)^½ / ‖·‖_F`` in the ``frobenius`` norm.

    Args:
        values: descending. frobenius: ``‖·‖_F`` where these are only the leading ones.

    >>> [tail_rank(torch.tensor([10.0, 1.0, 0.1]), 0.1, norm) for norm in ("spectral", "frobenius")]
    [1, 1]
    """
    top = float(values[0])
    if not 0 < top < float("inf"):
        return None
    complete = frobenius is None
    unit = values / top
    if norm == "spectral":
        tails = torch.cat([unit[1:], unit.new_zeros(1)]) if complete else unit[1:]
        limit = epsilon
    elif complete:
        tails = torch.cat([unit.square().flip(0).cumsum(0).flip(0)[1:], unit.new_zeros(1)]).sqrt()  # small ones first
        limit = epsilon * float(unit.norm())
    else:
        tails = ((frobenius / top) ** 2 - unit.square().cumsum(0)).clamp(min=0).sqrt()
        limit = epsilon * frobenius / top
    ranks = (tails <= limit * (1 + 1e-12)).nonzero()
    return int(ranks[0]) + 1 if len(ranks) else None


def _shares(weights: Tensor) -> Tensor | None:
    weights = weights.double()
    top = weights.max()
    if not 0 < top < float("inf"):
        return None
    weights = weights / top
    return weights / weights.sum()
