"""The objects of Skyformer's theorem: the lifted kernel over ``[Q; K]``, its leverage, and uniform Nyström matrices.

X = [Q; K] has N = n_q + n_k rows (2n in the paper). ``C̄ = κ(X, X)`` with ``κ(x, y) = exp(-‖x - y‖²·scale/2)``, and C
is its block of queries and keys. S picks d rows of X uniformly with replacement, and ``C~ = C̄ S (SᵀC̄S)⁺ SᵀC̄``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from ..metrics.matrix import shared_matrix_errors
from ..operators import GaussianAttention, LowRank, Operator
from ..operators.linalg.dimension import exact_leverage, largest_leverage, statistical_dimension
from ..operators.linalg.spectra import held
from ..qkv import QKV
from ..rng import Streams, generator

EXACT_TOKENS = 4096  # tokens of Q or K up to which C̄ is dense float64, twice 512 MiB, one head at a time
DRAWS = "skyformer-theorem-2"
LEVERAGE_PROBES = 64
NYSTROM_RIDGE = 1e-12  # on the core over the landmarks, which has diagonal 1; repeated landmarks make it singular
TOL, SHARP = 1e-2, 1e-4  # interval widths: of a norm compared with λ, and of the norm in λ


@dataclass(frozen=True)
class Norms:
    """The norms of several matrices with their certified intervals, (c,) float64."""

    value: Tensor
    lower: Tensor
    upper: Tensor


class Lifted:
    """C̄ and C of one head, streamed, in the dtype of Q and K, but at least float32.

    Args:
        qkv: Q, K and V of a layer. row: the row of the head.
    """

    def __init__(self, qkv: QKV, row: int) -> None:
        inner = qkv.compressed()
        q, k = (x[row : row + 1] for x in (inner.q, inner.k))
        if torch.finfo(q.dtype).bits < 32:
            # kernels in half precision would add their own rounding to the error of the landmarks
            q, k = q.float(), k.float()
        self.q, self.k, self.scale = q, k, inner.scale
        self.x = torch.cat([q, k], 1)  # (1, N, p)
        self.tokens = max(q.shape[1], k.shape[1])

    @property
    def rows(self) -> int:
        """N."""
        return self.x.shape[1]

    @property
    def kernel(self) -> GaussianAttention:
        """C̄, (1, N, N)."""
        return GaussianAttention(self.x, self.x, self.scale)

    @property
    def block(self) -> GaussianAttention:
        """C, (1, n_q, n_k)."""
        return GaussianAttention(self.q, self.k, self.scale)

    def norm(self, op: Operator) -> float:
        """``‖op‖₂`` of an operator of one head, computed as the error of a zero matrix."""
        zeros = torch.zeros(1, max(op.shape[1:]), 1, dtype=torch.float64, device=op.device)
        zero_matrix = LowRank(zeros[:, : op.shape[1]], None, zeros[:, : op.shape[2]].mT)
        errors = shared_matrix_errors(op.to(torch.float64), [zero_matrix], tol=SHARP)[0]
        return float(errors.metrics["matrix_spectral"][0])

    def nystrom(self, indices: Tensor) -> Tensor:
        """Z (N, d) float64 with ``Z Zᵀ = C̄ S (SᵀC̄S + γI)⁻¹ SᵀC̄``, γ = 1e-12, for d rows of X.

        ``Z = C̄ S R⁻¹`` with the Cholesky factor ``RᵀR = SᵀC̄S + γI``. The factor of a leading block is the leading
        block of R. So the leading columns of Z belong to nested samples, whose matrices increase in the Loewner order.
        The ridge allows repeated landmarks; it is multiplied by ten until the factorisation succeeds. It only decreases
        C~, and the theorem covers it. It must be small: at 1e-7 the norm of ``C̄ - C~`` is up to 8 % larger, because
        rows far from all landmarks are extrapolated along small eigenvalues of the core. Cost ``N d (p + d/2)``
        multiply-adds.
        """
        x = self.x[0].double()
        landmarks = x[indices.to(x.device)][None]
        factor = _factor(GaussianAttention(landmarks, landmarks, self.scale).dense()[0])
        cross = GaussianAttention(landmarks, x[None], self.scale).dense()[0]  # (d, N)
        return torch.linalg.solve_triangular(factor, cross, upper=False).mT

    def order(
        self, indices: Tensor, z: Tensor, budgets: Sequence[int], lambdas: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``‖C̄ - C~‖₂`` (c,) of the leading columns of Z, and three answers (c, L) to whether ``C~ ⪯ C̄ ⪯ C~ + λI``.

        The order holds by the estimate, certainly, or possibly. If C̄ is dense, the norm is a Ritz value, a lower bound
        within 1e-4, and all three answers are that of `Residual.within`, which runs only if the Ritz value is at most
        λ. For larger kernels they come from a certified interval of the norm.

        Args:
            indices, z: landmarks and their Z (see `nystrom`). budgets: the c numbers of leading ones. lambdas: λ, (L,).
        """
        if not self.holds:
            norms = self.errors(z, budgets)
            ends = (norms.value, norms.lower, norms.upper)
            value, lower, upper = (end[:, None] <= lambdas for end in ends)
            return norms.value, value, upper, lower
        values = [self._ritz(z[:, :d]) for d in budgets]
        residual = Residual(self, indices)
        decisions = [
            [value <= ridge and residual.within(d, ridge) for ridge in lambdas.tolist()]
            for d, value in zip(budgets, values, strict=True)
        ]
        happened = torch.tensor(decisions)
        return torch.tensor(values, dtype=torch.float64), happened, happened, happened

    def _ritz(self, z: Tensor) -> float:
        """The largest Ritz value of ``C̄ - Z Zᵀ`` by ARPACK's Lanczos method, a lower bound within 1e-4."""
        from scipy.sparse.linalg import LinearOperator, eigsh

        def product(x):
            x = torch.as_tensor(x, dtype=torch.float64).reshape(-1, 1).to(z)
            return (self.held @ x - z @ (z.mT @ x))[:, 0].cpu().numpy()

        # ARPACK's own start comes from a global state
        start = torch.rand(self.rows, generator=generator(0, DRAWS, "ritz"), dtype=torch.float64)
        arpack: Any = eigsh  # scipy's own hints take no tolerance between 0 and 1
        op = cast("Any", LinearOperator)((self.rows, self.rows), matvec=product, dtype="float64")
        values = arpack(op, 1, which="LA", tol=SHARP, v0=start.numpy(), return_eigenvectors=False)
        return max(0.0, float(values[0]))

    @property
    def holds(self) -> bool:
        """Whether C̄ is dense in float64: for at most 4096 queries and 4096 keys."""
        return self.tokens <= EXACT_TOKENS

    @cached_property
    def held(self) -> Tensor:
        """The dense C̄ (N, N) float64, ``8 N²`` bytes for the lifetime of this object."""
        return held(self.kernel)

    def errors(self, z: Tensor, budgets: Sequence[int], *, block: bool = False) -> Norms:
        """``‖C̄ - C~‖₂`` of the leading columns of Z, or ``‖C - C~‖₂`` with ``block``, (c,) each.

        They are computed in the dtype of Q and K; a small error that float32 cannot resolve is computed in float64.
        """
        exact, n_q = (self.block, self.q.shape[1]) if block else (self.kernel, self.rows)
        z = z.to(exact.dtype)[None]
        rows, columns = (z[:, :n_q], z[:, n_q:]) if block else (z, z)
        low_rank = [LowRank(rows[..., :d], None, columns[..., :d].mT) for d in budgets]
        metrics = [errors.metrics for errors in shared_matrix_errors(exact, low_rank, tol=TOL)]
        ends = ("matrix_spectral", "matrix_spectral_lower", "matrix_spectral_upper")
        return Norms(*(torch.cat([of_d[name] for of_d in metrics]).cpu() for name in ends))


def _factor(core: Tensor) -> Tensor:
    """The lower Cholesky factor of a core with the least ridge of `Lifted.nystrom`, which is added in place."""
    ridge = NYSTROM_RIDGE
    core.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(core)
    while int(failed) and ridge < 1:
        # with the ridge that it has, ten times as much
        core.diagonal().add_(9 * ridge)
        ridge *= 10
        factor, failed = torch.linalg.cholesky_ex(core)
    return factor


class Residual:
    """``C̄ - C~`` of leading landmarks outside of these, dense in float64.

    It is the Schur complement of the landmarks' core. On the landmarks themselves it is at most the ridge γ of
    `Lifted.nystrom`, so its norm is that of the other rows, up to γ. The rows of C̄ stand in the order of the draws, so
    one factor serves all numbers of landmarks.

    Args:
        lifted: one whose C̄ is dense. indices: rows of X, which may repeat.
    """

    def __init__(self, lifted: Lifted, indices: Tensor) -> None:
        self.lifted, self.indices = lifted, indices.tolist()

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor]:
        """C̄, (N, N), with the landmarks first in the order of their draws, and Z of the distinct ones."""
        drawn, held = dict.fromkeys(self.indices), self.lifted.held
        order = [*drawn, *(row for row in range(len(held)) if row not in drawn)]
        rows, count = torch.tensor(order, device=held.device), len(drawn)
        kernel = held.index_select(0, rows).index_select(1, rows)
        factor = _factor(kernel[:count, :count].clone())
        others = torch.linalg.solve_triangular(factor, kernel[:count, count:], upper=False)
        return kernel, torch.cat([factor, others.mT])

    def within(self, d: int, ridge: float) -> bool:
        """Whether ``C~ ⪯ C̄ ⪯ C~ + ridge·I`` for the first d landmarks, up to rounding in float64.

        ``C̄ - C~`` is positive semidefinite for every S: it is ``C̄^½ (I - P) C̄^½`` with a projector P, or above that
        with a ridge on the core. So the order holds if its largest eigenvalue is at most the ridge, that is, if
        ``ridge·I - C̄ + C~`` has a Cholesky factor. Cost ``(N - d)³/6 + (N - d)² d`` multiply-adds with d distinct
        landmarks, less than for eigenvalues.
        """
        (kernel, z), count = self.parts, len(set(self.indices[:d]))
        z = z[count:, :count]
        negative = torch.addmm(kernel[count:, count:], z, z.mT, beta=-1)
        negative.diagonal().add_(ridge)
        return not int(torch.linalg.cholesky_ex(negative)[1])


@dataclass(frozen=True)
class LiftedDimension:
    """``d_stat`` with its error, and the largest leverage score, of one head at L values of λ; (L,) each."""

    d_stat: Tensor
    error: Tensor
    largest: Tensor


def lifted_dimension(
    lifted: Lifted, lambdas: Tensor, quadrature: bool | None, *, sharp: bool = False
) -> LiftedDimension:
    """``d_stat(λ)`` and ``max_i ℓ_i(λ)`` of C̄ at each λ (L,).

    Up to 4096 tokens they are exact, by Cholesky in float64; C̄ then has 8192 rows and takes 512 MiB twice. For more
    tokens, or with ``quadrature``, d_stat is estimated by stochastic Lanczos quadrature, with half of its band of five
    standard errors as ``error``, and ``largest`` is the upper end of a bracket over all rows. With ``sharp`` products
    are in float64.
    """
    if quadrature is None:
        quadrature = lifted.tokens > EXACT_TOKENS
    if not quadrature:
        scores = exact_leverage(lifted.held, lambdas.to(lifted.x.device)).cpu()  # (L, N)
        return LiftedDimension(scores.sum(-1), torch.zeros(len(lambdas), dtype=torch.float64), scores.amax(-1))
    ridge = lambdas[None].to(lifted.x.device)
    dtype = torch.float64 if sharp else None
    estimate = statistical_dimension(lifted.kernel, ridge, dtype=dtype)
    low, high = estimate.band()
    largest = largest_leverage(lifted.kernel, ridge, probes=LEVERAGE_PROBES, dtype=dtype).upper
    return LiftedDimension(estimate.value[0].cpu(), ((high - low) / 2)[0].cpu(), largest[0].cpu())


def landmarks(qkv: QKV, row: int, streams: Callable[[str, int], Streams], seed: int, d: int) -> Tensor:
    """d rows of ``[Q; K]``, (d,) int64, uniform with replacement. A smaller d gives the first of them."""
    inner = qkv.compressed()
    rows = inner.n_q + inner.n_k
    # uniform numbers and not `randint`, so that a smaller d gives the first of them
    uniform = torch.rand(d, generator=streams(DRAWS, seed).head(qkv.heads[row]), dtype=torch.float64)
    return (uniform * rows).long().clamp(max=rows - 1).to(qkv.device)
