"""Condition numbers in float64, with a flag and a rank in place of a value if the matrix is numerically singular.

float32 does not saturate at 1e7: it returns noise between 1e7 and 1e13, too small or too large. float64 does the same
beyond 1e16, where the matrix may be singular but for rounding. So a value is returned only if the smallest singular
value is above rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UsageError


@dataclass(frozen=True)
class Condition:
    """The condition of one matrix.

    Attributes:
        value: ``σ₁/σ_m``; None if there is a flag.
        flag: ``singular (>4e12)`` if ``σ₁/σ_m`` is not below ``1/(m eps)``, so that float64 entries cannot tell it from
            infinity; ``zero``; ``not finite``.
        rank: the number of singular values above ``m eps σ₁``.
        cond_eff: ``σ₁/σ_rank``, the condition on the range of the matrix.
        values: all singular values, descending, float64.
    """

    value: float | None
    flag: str | None
    rank: int
    cond_eff: float | None
    values: Tensor

    def cond_at(self, k: int) -> float | None:
        """``σ₁/σ_k``; None if σ_k is rounding."""
        return float(self.values[0] / self.values[k - 1]) if 1 <= k <= self.rank else None


def condition(matrix: Tensor) -> Condition:
    """The condition number ``σ₁/σ_m`` of one matrix in float64, with ``m`` its longer side in the rounding band.

    With ``eps = 2⁻⁵²`` singular values below ``m eps σ₁`` are rounding. They do not count for the rank, and a matrix
    with such a value has a flag instead of a condition number.

    Args:
        matrix: (m, n), any real dtype and device; measured in float64. Cost about ``10 m³``.

    Raises:
        UsageError: no matrix.

    >>> condition(torch.diag(torch.tensor([4.0, 2.0]))).value
    2.0
    >>> result = condition(torch.ones(3, 3))
    >>> result.value, result.flag, result.rank, result.cond_eff
    (None, 'singular (>2e15)', 1, 1.0)
    """
    if matrix.dim() != 2 or 0 in matrix.shape:
        raise UsageError(f"a matrix is needed, got shape {tuple(matrix.shape)}")
    matrix = matrix.double()
    if not torch.isfinite(matrix).all():
        return Condition(None, "not finite", 0, None, torch.full((min(matrix.shape),), float("nan")))
    size = float(matrix.abs().max())
    if size == 0:
        return Condition(None, "zero", 0, None, matrix.new_zeros(min(matrix.shape)).cpu())
    unit = torch.linalg.svdvals(matrix / size).cpu()  # their ratios do not underflow
    values = unit * size
    limit = 1 / (max(matrix.shape) * torch.finfo(torch.float64).eps)
    rank = int((unit > unit[0] / limit).sum())
    effective = float(unit[0] / unit[rank - 1])
    if rank < len(values):
        return Condition(None, f"singular (>{limit:.0e})".replace("e+", "e"), rank, effective, values)
    return Condition(effective, None, rank, effective, values)


def repeats(rows: Tensor) -> int:
    """The number of rows of a matrix that equal an earlier row bit by bit.

    >>> repeats(torch.tensor([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]]))
    1
    """
    rows = rows.detach().cpu().contiguous()
    return len(rows) - len({row.numpy().tobytes() for row in rows.view(torch.uint8)})
