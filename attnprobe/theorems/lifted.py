"""What Skyformer's theorem is about: the lifted kernel over ``[Q; K]``, its leverage, and its uniform Nyström matrices.

X = [Q; K] has N = n_q + n_k rows (2n in the paper), ``C̄ = κ(X, X)`` with ``κ(x, y) = exp(-‖x - y‖²·scale/2)``, and C
is its block of queries and keys. S picks d rows of X uniformly with replacement, and ``C~ = C̄ S (SᵀC̄S)⁺ SᵀC̄``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from ..linalg.dimension import exact_leverage, largest_leverage, statistical_dimension
from ..linalg.spectra import held
from ..metrics.matrix import shared_matrix_errors
from ..operators import GaussianAttention, LowRank, Operator
from ..qkv import QKV
from ..rng import Streams, generator

__all__ = ["EXACT_TOKENS", "Lifted", "LiftedDimension", "Norms", "landmarks", "lifted_dimension"]

EXACT_TOKENS = 4096  # of Q, and of K: up to here C̄ is held in float64, twice 512 MiB, head by head
DRAWS = "skyformer-theorem-2"
LEVERAGE_PROBES = 64
NYSTROM_RIDGE = 1e-12  # on the core over the landmarks, whose diagonal is 1: repeated landmarks make it singular
TOL, SHARP = 1e-2, 1e-4  # of the interval of a norm that is compared with λ, and of one that λ is made of


@dataclass(frozen=True)
class Norms:
    """A norm of each of several matrices with its certified interval, (c,) float64."""

    value: Tensor
    lower: Tensor
    upper: Tensor


class Lifted:
    """C̄ and C of one head, streamed, in the dtype of Q and K but at least float32."""

    def __init__(self, qkv: QKV, row: int) -> None:
        inner = qkv.compressed()
        q, k = (x[row : row + 1] for x in (inner.q, inner.k))
        if torch.finfo(q.dtype).bits < 32:
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
        """``‖op‖₂``: the error of a matrix of zeros."""
        zeros = torch.zeros(1, max(op.shape[1:]), 1, dtype=torch.float64, device=op.device)
        nothing = LowRank(zeros[:, : op.shape[1]], None, zeros[:, : op.shape[2]].mT)
        found = shared_matrix_errors(op.to(torch.float64), [nothing], tol=SHARP)[0]
        return float(found.metrics["matrix_spectral"][0])

    def nystrom(self, indices: Tensor) -> Tensor:
        """Z (N, d) float64 with ``Z Zᵀ = C̄ S (SᵀC̄S + γI)⁻¹ SᵀC̄``, γ = 1e-12, for d rows of X; nested with them.

        ``Z = C̄ S R⁻¹`` with the Cholesky factor ``RᵀR = SᵀC̄S + γI``, which of a leading block is the leading block: so
        nested samples come from one Z, and their matrices grow in the Loewner order. The ridge, ten times larger as
        often as rounding asks for it, makes repeated landmarks possible and only lowers C~; the theorem covers it. It
        cannot be much larger: at 1e-7 the norm of ``C̄ - C~`` is up to 8 % more, because rows far from all landmarks
        are extrapolated along small eigenvalues of the core. Cost ``N d (p + d)``.
        """
        x = self.x[0].double()
        landmarks = x[indices.to(x.device)][None]
        core, ridge = GaussianAttention(landmarks, landmarks, self.scale).dense()[0], NYSTROM_RIDGE
        core.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(core)
        while int(failed) and ridge < 1:
            core.diagonal().add_(9 * ridge)
            ridge *= 10
            factor, failed = torch.linalg.cholesky_ex(core)
        cross = GaussianAttention(landmarks, x[None], self.scale).dense()[0]  # (d, N)
        return torch.linalg.solve_triangular(factor, cross, upper=False).mT

    def within(self, z: Tensor, ridge: float) -> bool:
        """Whether ``C~ ⪯ C̄ ⪯ C~ + ridge·I`` for ``C~ = Z Zᵀ``, decided to the rounding of float64.

        ``C̄ - C~`` is positive semidefinite whatever S: it is ``C̄^½ (I - P) C̄^½`` with a projector P, or above that
        with a ridge on the core. So the order says that its largest eigenvalue, its norm, is at most the ridge: that
        ``ridge·I - C̄ + C~`` has a Cholesky factor. C̄ is held. Cost ``N³/3 + N² d``, a fraction of eigenvalues.
        """
        shifted = torch.addmm(self.held, z, z.mT, beta=-1)
        shifted.diagonal().add_(ridge)
        return int(torch.linalg.cholesky_ex(shifted)[1]) == 0

    def order(self, z: Tensor, budgets: Sequence[int], lambdas: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``‖C̄ - C~‖₂`` of the leading columns of Z, (c,), and whether ``C~ ⪯ C̄ ⪯ C~ + λI``: (c, L) bool, three times.

        Whether it is so, whether that is certain, and whether it is possible. Where C̄ is held all three are those of
        `within`, asked only where a Ritz value, which the norm cannot be below, leaves it open; the norm is that Ritz
        value, to 1e-4. Beyond, all come from a certified interval of the norm.
        """
        if not self.holds:
            found = self.errors(z, budgets)
            ends = (found.value, found.lower, found.upper)
            value, lower, upper = (end[:, None] <= lambdas for end in ends)
            return found.value, value, upper, lower
        values = [self._ritz(z[:, :d]) for d in budgets]
        so = [
            [value <= ridge and self.within(z[:, :d], ridge) for ridge in lambdas.tolist()]
            for d, value in zip(budgets, values, strict=True)
        ]
        happened = torch.tensor(so)
        return torch.tensor(values, dtype=torch.float64), happened, happened, happened

    def _ritz(self, z: Tensor) -> float:
        """The largest Ritz value of ``C̄ - Z Zᵀ`` by ARPACK's Lanczos method, from below within 1e-4."""
        from scipy.sparse.linalg import LinearOperator, eigsh

        def product(x):
            x = torch.as_tensor(x, dtype=torch.float64).reshape(-1, 1).to(z)
            return (self.held @ x - z @ (z.mT @ x))[:, 0].cpu().numpy()

        start = torch.rand(self.rows, generator=generator(0, DRAWS, "ritz"), dtype=torch.float64, device="cpu")
        arpack: Any = eigsh  # scipy's own hints take no tolerance between 0 and 1
        op = cast("Any", LinearOperator)((self.rows, self.rows), matvec=product, dtype="float64")
        values = arpack(op, 1, which="LA", tol=SHARP, v0=start.numpy(), return_eigenvectors=False)
        return max(0.0, float(values[0]))

    @property
    def holds(self) -> bool:
        """Whether C̄ is held in float64."""
        return self.tokens <= EXACT_TOKENS

    @cached_property
    def held(self) -> Tensor:
        """C̄ (N, N) float64, ``8 N²`` bytes, as long as this object lives."""
        return held(self.kernel)

    def errors(self, z: Tensor, budgets: Sequence[int], *, block: bool = False) -> Norms:
        """``‖C̄ - C~‖₂`` of the leading columns of Z, or ``‖C - C~‖₂`` of the block of queries and keys.

        In the dtype of Q and K, and once more in float64 where float32 leaves a small one open.
        """
        exact, n_q = (self.block, self.q.shape[1]) if block else (self.kernel, self.rows)
        z = z.to(exact.dtype)[None]
        rows, columns = (z[:, :n_q], z[:, n_q:]) if block else (z, z)
        low_rank = [LowRank(rows[..., :d], None, columns[..., :d].mT) for d in budgets]
        found = [one.metrics for one in shared_matrix_errors(exact, low_rank, tol=TOL)]
        ends = ("matrix_spectral", "matrix_spectral_lower", "matrix_spectral_upper")
        return Norms(*(torch.cat([one[name] for one in found]).cpu() for name in ends))


@dataclass(frozen=True)
class LiftedDimension:
    """Of one head at L values of λ, each (L,): ``d_stat`` with its error, and the largest leverage score."""

    d_stat: Tensor
    error: Tensor
    largest: Tensor


def lifted_dimension(
    lifted: Lifted, lambdas: Tensor, quadrature: bool | None, *, sharp: bool = False
) -> LiftedDimension:
    """``d_stat(λ)`` and ``max_i ℓ_i(λ)`` of C̄ at each λ (L,).

    Exactly by Cholesky in float64 up to 4096 tokens, where C̄ has 8192 rows and takes 512 MiB twice; beyond, or with
    ``quadrature``, d_stat by stochastic Lanczos quadrature, whose ``error`` is half of its band of five standard
    errors, and the upper end of a bracket of the largest score over all rows; products in float64 if ``sharp``.
    """
    if quadrature is None:
        quadrature = lifted.tokens > EXACT_TOKENS
    if not quadrature:
        scores = exact_leverage(lifted.held, lambdas.to(lifted.x.device)).cpu()  # (L, N)
        return LiftedDimension(scores.sum(-1), torch.zeros(len(lambdas), dtype=torch.float64), scores.amax(-1))
    ridge = lambdas[None].to(lifted.x.device)
    dtype = torch.float64 if sharp else None
    found = statistical_dimension(lifted.kernel, ridge, dtype=dtype)
    low, high = found.band()
    largest = largest_leverage(lifted.kernel, ridge, probes=LEVERAGE_PROBES, dtype=dtype).upper
    return LiftedDimension(found.value[0].cpu(), ((high - low) / 2)[0].cpu(), largest[0].cpu())


def landmarks(qkv: QKV, row: int, streams: Callable[[str, int], Streams], seed: int, d: int) -> Tensor:
    """d rows of ``[Q; K]``, (d,) int64, uniform with replacement; those of a smaller d come first."""
    inner = qkv.compressed()
    rows = inner.n_q + inner.n_k
    uniform = torch.rand(d, generator=streams(DRAWS, seed).head(qkv.heads[row]), dtype=torch.float64, device="cpu")
    return (uniform * rows).long().clamp(max=rows - 1).to(qkv.device)
