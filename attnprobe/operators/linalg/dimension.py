"""Statistical dimension and ridge leverage scores of a positive semidefinite kernel matrix.

    ``d_stat(λ) = Tr(A (A + λI)⁻¹) = Σ_k λ_k/(λ_k + λ)``  and  ``ℓ_i(λ) = (A (A + λI)⁻¹)_ii``,

so ``d_stat = Σ_i ℓ_i``. For a dense matrix both are exact, by its eigenvalues or by Cholesky. From products alone they
are estimated by stochastic Lanczos quadrature (`lanczos`). A is N x N: over ``[Q; K]`` it has N = 2n rows for n tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UsageError
from ...rng import generator
from .. import Operator, Scaled
from ..blocks import block_rows, row_blocks
from ..precision import full_precision
from .lanczos import Forms, Product, quadratic_forms
from .norms import unit_of_squares
from .order import largest_scores

HELD = 8192  # rows up to which a matrix is held in float32 while it is multiplied: 256 MiB
ROWS = 256  # made at a time
COLUMNS = 1024  # of an inverse factor at a time
PROBES, MAX_STEPS = 16, 80
TOL = 1e-3  # of the value, for a bracket
ETA = {torch.float32: 8 * 2.0**-24, torch.float64: 64 * 2.0**-53}  # ‖E‖/‖A‖ of products with entries of that dtype


@dataclass(frozen=True)
class Dimension:
    """An estimate of ``d_stat`` of h matrices at L values of λ, each (h, L) float64.

    Attributes:
        value: the mean over probes of the middle of their brackets.
        standard_error: of the mean over probes.
        lower, upper: the means of the brackets of the probes, with rounding. They enclose the value that this draw
            would have with exact quadratic forms.
        steps: Lanczos steps of each matrix, (h,). probes: how many vectors.
    """

    value: Tensor
    standard_error: Tensor
    lower: Tensor
    upper: Tensor
    steps: Tensor
    probes: int

    def band(self, errors: float = 5.0) -> tuple[Tensor, Tensor]:
        """The ends of an interval for ``d_stat``, (h, L) each: the bracket widened by ``errors`` standard errors.

        With 16 probes, Student's t has a probability of 1.6e-4 outside of 5 standard errors, and 1.2e-3 outside of 4.
        """
        return self.lower - errors * self.standard_error, self.upper + errors * self.standard_error


@dataclass(frozen=True)
class Leverage:
    """Brackets of leverage scores: ``lower ≤ ℓ_i(λ) ≤ upper``, (h, L, r) of r rows, or (h, L) of the largest."""

    lower: Tensor
    upper: Tensor


def exact_leverage(matrix: Tensor, lambdas: Tensor) -> Tensor:
    """Every ``ℓ_i = 1 - λ ((A + λI)⁻¹)_ii`` of a positive semidefinite matrix (N, N) at each λ (L,), (L, N) float64.

    ``(A + λI)⁻¹_ii`` is the squared norm of column i of the inverse Cholesky factor, which is computed in blocks of
    columns. The error is about ``N eps ‖A‖/λ``. Cost ``N³/3`` multiply-adds for each λ; memory two matrices.

    Raises:
        UsageError: a λ that is not positive, or one at which ``A + λI`` is not positive definite.

    >>> exact_leverage(torch.diag(torch.tensor([3.0, 1.0, 0.0])), torch.tensor([1.0]))
    tensor([[0.7500, 0.5000, 0.0000]], dtype=torch.float64)
    """
    matrix = matrix.double()
    scores = matrix.new_empty(len(lambdas), len(matrix))
    for row, ridge in enumerate(_positive(lambdas).tolist()):
        shifted = matrix.clone()
        shifted.diagonal().add_(ridge)
        factor, info = torch.linalg.cholesky_ex(shifted)
        del shifted
        if int(info):
            raise UsageError(f"λ={ridge:.3g} is too small beside the rounding of the matrix; choose a larger one")
        for start, stop in row_blocks(len(matrix), COLUMNS):
            unit = matrix.new_zeros(len(matrix) - start, stop - start)  # above the diagonal the inverse is zero
            unit.diagonal().fill_(1)
            columns = torch.linalg.solve_triangular(factor[start:, start:], unit, upper=False)
            scores[row, start:stop] = 1 - ridge * columns.square().sum(0)
    return scores


@full_precision()
def statistical_dimension(
    op: Operator,
    lambdas: Tensor,
    *,
    probes: int = PROBES,
    tol: float = TOL,
    max_steps: int = MAX_STEPS,
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Dimension:
    """``d_stat`` of positive semidefinite operators by stochastic Lanczos quadrature, with bounds of its error.

    ``Tr f(A) = E[zᵀ f(A) z]`` for z of independent random signs. Each form lies between a Gauss-Radau and a Gauss rule.
    Lanczos continues until the brackets of all λ are narrower than ``tol`` of the value or a quarter of the standard
    error, so the statistical error dominates. The signs come from the stream ``trace`` and are the same for every head.

    Args:
        op: (h, N, N), symmetric. lambdas: (h, L) positive, those of each head. probes: at least 2.
        tol: the relative width of a bracket at which Lanczos stops. max_steps: the largest number of its steps.
        dtype: of the products. By default a matrix of at most 8192 rows is dense in float32, rounded from float64
            entries, and a larger one is streamed in float64. The bracket includes the rounding, which grows as
            ``‖A‖/λ``. For λ below 1e-3 of ‖A‖ choose float64.
        seed: of the signs.

    Cost ``N² (p + probes)`` multiply-adds a step for a streamed matrix, ``N² probes`` for a dense one; memory ``8 N
    probes`` bytes a step.

    Raises:
        UsageError: an operator that is not square, fewer than two probes, or a λ that is not positive.

    >>> from attnprobe.operators import GaussianAttention
    >>> x = torch.randn(1, 50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> A, ridge = GaussianAttention(x, x, 0.5), torch.tensor([[0.5]])
    >>> low, high = statistical_dimension(A, ridge).band()
    >>> bool(low < exact_leverage(A.dense()[0], ridge[0]).sum() < high)
    True
    """
    h, n, _ = _square(op, lambdas)
    if probes < 2:
        raise UsageError(f"probes={probes}: a standard error needs at least 2")
    signs = torch.randint(2, (n, probes), generator=generator(seed, "trace", n, probes), device="cpu")
    v = (2.0 * signs - 1).double().to(op.device) / n**0.5

    def enough(forms: Forms) -> bool:
        middle = (forms.lower + forms.upper) / 2
        gap, error = (forms.upper - forms.lower).mean(0), middle.std(0) / probes**0.5
        return bool((gap <= torch.maximum(tol * middle.mean(0), error / 4)).all())

    by_head = [_forms(op.heads(slice(i, i + 1)), v, lambdas[i], dtype, enough, max_steps) for i in range(h)]
    middles = torch.stack([n * (one.lower + one.upper) / 2 for one in by_head])  # (h, probes, L)
    rounding = torch.stack([n * one.rounding.mean(0) for one in by_head])
    return Dimension(
        middles.mean(1),
        middles.std(1) / probes**0.5,
        torch.stack([n * one.lower.mean(0) for one in by_head]) - rounding,
        torch.stack([n * one.upper.mean(0) for one in by_head]) + rounding,
        torch.tensor([one.steps for one in by_head], device="cpu"),
        probes,
    )


@full_precision()
def leverage(
    op: Operator,
    lambdas: Tensor,
    rows: Tensor,
    *,
    tol: float = TOL,
    max_steps: int = MAX_STEPS,
    dtype: torch.dtype | None = None,
) -> Leverage:
    """Brackets of ``ℓ_i(λ)`` of some rows (h, r) int64, (h, L, r), by Lanczos from their unit vectors. Deterministic.

    Args:
        op, lambdas, max_steps, dtype: as in `statistical_dimension`.
        tol: the width of a bracket, relative to the score.

    Cost as in `statistical_dimension`, with r for ``probes``.

    Raises:
        UsageError: an operator that is not square, or a λ that is not positive.
    """
    h, n, _ = _square(op, lambdas)

    def enough(forms: Forms) -> bool:
        return bool((forms.upper - forms.lower <= tol * forms.upper).all())

    lower, upper = [], []
    for i in range(h):
        v = torch.zeros(n, rows.shape[1], dtype=torch.float64, device=op.device)
        v[rows[i], torch.arange(rows.shape[1])] = 1
        one = _forms(op.heads(slice(i, i + 1)), v, lambdas[i], dtype, enough, max_steps)
        lower.append((one.lower - one.rounding).clamp(min=0).mT)
        upper.append((one.upper + one.rounding).clamp(max=1).mT)
    return Leverage(torch.stack(lower), torch.stack(upper))


def largest_leverage(
    op: Operator, lambdas: Tensor, *, probes: int = PROBES, tol: float = TOL, dtype: torch.dtype | None = None
) -> Leverage:
    """A bracket of ``max_i ℓ_i(λ)`` over *all* rows, (h, L).

    One pass gives the moments ``m₁ = A_ii`` and ``m₂ = (A²)_ii`` of every row, and the largest row sum b, which is at
    least ``‖A‖₂``. The Gauss-Radau rule with the nodes b and ``x = (m₁ b - m₂)/(b - m₁)`` has these moments. It is an
    upper bound of ``ℓ_i``, because its fixed node is at the upper end. `leverage` measures the ``probes`` rows with the
    largest bounds; for all other rows the largest bound is used. Cost: one pass of ``N² p`` multiply-adds, and that of
    `leverage`.
    """
    h, n, count = _square(op, lambdas)
    m1, m2, b = (torch.zeros(h, n, dtype=torch.float64, device=op.device) for _ in range(3))
    for head in range(h):
        sharp = op.heads(slice(head, head + 1)).to(torch.float64)
        for start, stop in row_blocks(n, block_rows(sharp, n, ROWS)):
            block = sharp.rows(start, stop)[0]
            m1[head, start:stop] = block.diagonal(start)
            m2[head, start:stop] = block.square().sum(-1)
            b[head, start:stop] = block.abs().sum(-1)
    unit = unit_of_squares(b.amax(-1))  # (h,)
    if (unit != 1).any():
        divided = Scaled(op.to(torch.float64), left=(1 / unit)[:, None].expand(-1, n))
        return largest_leverage(divided, lambdas.double() / unit[:, None], probes=probes, tol=tol, dtype=dtype)
    b = (b.amax(-1, keepdim=True) * (1 + 1e-12) + 1e-300)[:, None]  # (h, 1, 1)
    m1, m2, ridge = m1[:, None], m2[:, None], lambdas.double()[:, :, None]
    free = (m1 * b - m2).clamp(min=0) / (b - m1).clamp(min=1e-300)  # (h, 1, n)
    weight = ((m1 - free) / (b - free).clamp(min=1e-300)).clamp(0, 1)
    bound = (1 - weight) * free / (free + ridge) + weight * b / (b + ridge)  # (h, L, n)
    bound = torch.minimum(bound, m1 / (m1 + ridge)) * (1 + 1e-9)
    probes = min(probes, n)
    rows = largest_scores(bound.amax(1), probes)[1]  # (h, r): the order is much the same for every λ
    measured = leverage(op, lambdas, rows, tol=tol, dtype=dtype)
    others = bound.scatter(2, rows[:, None].expand(-1, count, -1), 0.0).amax(-1)
    return Leverage(measured.lower.amax(-1), torch.maximum(measured.upper.amax(-1), others))


def _forms(op: Operator, v: Tensor, lambdas: Tensor, dtype: torch.dtype | None, enough, max_steps: int) -> Forms:
    product, eta = _product(op, dtype)
    return quadratic_forms(product, v, lambdas.double(), eta=eta, enough=enough, max_steps=max_steps)


def _product(op: Operator, dtype: torch.dtype | None) -> tuple[Product, float]:
    """The product ``x -> A x`` of one head, and a bound of its error relative to ‖A‖."""
    n = op.shape[1]
    if n > HELD:
        streamed = op.to(dtype or torch.float64)
        # entries made in float32 are off by 5e-6 where exponents are large, more than the products themselves
        return lambda x: (streamed @ x[None])[0].double(), 5e-6 if dtype == torch.float32 else ETA[torch.float64]
    dtype, sharp = dtype or torch.float32, op.to(torch.float64)
    matrix, diagonal = torch.empty(n, n, dtype=dtype, device=op.device), sharp.rows(0, 1).new_empty(n)

    def fill(unit: float) -> None:
        for start, stop in row_blocks(n, block_rows(sharp, n, ROWS)):
            rows = sharp.rows(start, stop)[0]
            matrix[start:stop], diagonal[start:stop] = rows / unit, rows.diagonal(start)

    fill(1.0)
    unit = float(unit_of_squares(diagonal.abs().amax(), dtype))  # the largest entry is on the diagonal
    if unit != 1:
        fill(unit)
    return lambda x: (matrix @ x.to(dtype)).double() * unit, ETA[dtype]


def _positive(lambdas: Tensor) -> Tensor:
    lambdas = lambdas.double()
    if not (lambdas > 0).all() or not torch.isfinite(lambdas).all():
        raise UsageError(f"λ={lambdas.flatten().tolist()}: each is a positive number")
    return lambdas


def _square(op: Operator, lambdas: Tensor) -> tuple[int, int, int]:
    """h, N and L, after a check of the shapes."""
    h, n, m = op.shape
    if n != m or lambdas.dim() != 2 or lambdas.shape[0] != h:
        raise UsageError(f"{op!r} with λ of shape {tuple(lambdas.shape)}: needs square matrices and (h, L)")
    _positive(lambdas)
    return h, n, lambdas.shape[1]
