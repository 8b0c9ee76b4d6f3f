"""Condition numbers in float64, with a flag and a rank in place of a value if the matrix is numerically singular.

float32 does not saturate at 1e7: it returns noise between 1e7 and 1e13, too small or too large. float64 does the same
beyond 1e16, where the matrix may be singular but for rounding. So a value is returned only if the smallest singular
value is above rounding. `certified_condition` proves it by ball arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import inf, isfinite, nextafter
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError

LARGEST = 256  # rows of a matrix whose inverse is taken in ball arithmetic
BITS = (256, 512, 1024, 2048, 4096)
CLOSED = 1e-9  # relative width of a certified interval


@dataclass(frozen=True)
class Certified:
    """A proof by ball arithmetic for the float64 matrix: ``lower ≤ σ₁/σ_m ≤ upper``, at ``bits`` of precision.

    An exactly singular matrix has both ends infinite; ``rank`` is then its exact rank over the rational numbers.
    """

    lower: float
    upper: float
    bits: int
    rank: int

    @property
    def value(self) -> float:
        """The middle of the interval; infinite for a singular matrix."""
        return self.lower + (self.upper - self.lower) / 2 if isfinite(self.upper) else inf


@dataclass(frozen=True)
class Condition:
    """The condition of one matrix.

    Attributes:
        value: ``σ₁/σ_m``; None if there is a flag.
        flag: ``singular (>4e12)`` if ``σ₁/σ_m`` is not below ``1/(m eps)``, so that float64 entries cannot tell it from
            infinity; ``singular (exact rank 12)`` by a certificate; ``zero``; ``not finite``.
        rank: the number of singular values above ``m eps σ₁``.
        cond_eff: ``σ₁/σ_rank``, the condition on the range of the matrix.
        values: all singular values, descending, float64.
        certified: the proved interval; None without ``precise``.
    """

    value: float | None
    flag: str | None
    rank: int
    cond_eff: float | None
    values: Tensor
    certified: Certified | None = None

    def cond_at(self, k: int) -> float | None:
        """``σ₁/σ_k``; None if σ_k is rounding."""
        return float(self.values[0] / self.values[k - 1]) if 1 <= k <= self.rank else None


def condition(matrix: Tensor, precise: bool = False) -> Condition:
    """The condition number ``σ₁/σ_m`` of one matrix in float64, with ``m`` its longer side in the rounding band.

    With ``eps = 2⁻⁵²`` singular values below ``m eps σ₁`` are rounding. They do not count for the rank, and a matrix
    with such a value has a flag instead of a condition number.

    Args:
        matrix: (m, n), any real dtype and device; measured in float64. Cost about ``10 m³``.
        precise: take the value from `certified_condition` (square, at most 256 rows), which tells an exactly singular
            matrix from a nearly singular one. Beyond ``1/(m eps)`` the result has a flag too: the entries are rounded,
            so the number in ``certified`` is that of the rounded matrix.

    Raises:
        UsageError: no matrix; or ``precise`` without python-flint, or of a matrix that it cannot take.

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
    values = torch.linalg.svdvals(matrix / size).cpu() * size
    limit = 1 / (max(matrix.shape) * torch.finfo(torch.float64).eps)
    rank = int((values > values[0] / limit).sum())
    effective = float(values[0] / values[rank - 1])
    proved = certified_condition(matrix) if precise else None
    if proved is not None and proved.rank < len(values):
        return Condition(None, f"singular (exact rank {proved.rank})", rank, effective, values, proved)
    value = float(values[0] / values[-1]) if proved is None else proved.value
    if rank < len(values) or value >= limit:
        return Condition(None, f"singular (>{limit:.0e})".replace("e+", "e"), rank, effective, values, proved)
    return Condition(value, None, rank, effective, values, proved)


def certified_condition(matrix: Tensor) -> Certified:
    """``σ₁(M) σ₁(M⁻¹)`` between two proved ends, of a square float64 matrix of at most 256 rows.

    The inverse is taken in ball arithmetic, at a precision that is doubled until it exists and the interval closes to
    1e-9. Each norm ``σ₁(X)`` is enclosed by an approximate basis V of right singular vectors, whose floats are exact:
    with ``G = VᵀXᵀXV`` and ``‖VᵀV - I‖_∞ = ε``,

        ``G₁₁ / (VᵀV)₁₁  ≤  σ₁(X)²  ≤  max_i Σ_j |G_ij| / (1 - ε)``

    (a Rayleigh quotient; Gershgorin's discs). If the first precision gives no inverse, the exact rank over the
    rationals tells whether the matrix is singular. Cost: some seconds at 256 rows.

    Raises:
        UsageError: python-flint is not installed; a matrix that is not square, not finite or above 256 rows; one that
            is not singular and yet beyond 4096 bits.

    >>> certified_condition(torch.diag(torch.tensor([1.0, 2.0**-60]))).value == 2.0**60  # doctest: +SKIP
    True
    """
    flint = _flint()
    m = matrix.shape[0]
    if matrix.shape != (m, m) or m > LARGEST:
        raise UsageError(f"precise: a matrix of {tuple(matrix.shape)}; it takes square ones of at most {LARGEST} rows")
    array = matrix.detach().double().cpu().numpy()
    if not np.isfinite(array).all():
        raise UsageError("precise: the matrix is not finite")
    for bits in BITS:
        with flint.ctx.workprec(bits):
            exact = _ball_matrix(flint, array)
            try:
                inverse = exact.inv()
                ends = [a * b for a, b in zip(_norm(flint, exact), _norm(flint, inverse), strict=True)]
            except (ZeroDivisionError, OverflowError):  # a pivot's ball holds zero: more bits, or a singular matrix
                if bits == BITS[0] and (rank := _exact_rank(flint, array)) < m:
                    return Certified(inf, inf, bits, rank)
                continue
            lower = nextafter(float(ends[0].lower()), 0.0)
            upper = nextafter(float(ends[1].upper()), inf)
        if upper <= lower * (1 + CLOSED):
            return Certified(max(lower, 1.0), max(upper, 1.0), bits, m)
    raise UsageError(f"precise: {BITS[-1]} bits do not resolve this matrix, which is not singular")


def repeats(rows: Tensor) -> int:
    """The number of rows of a matrix that equal an earlier row bit by bit.

    >>> repeats(torch.tensor([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]]))
    1
    """
    rows = rows.detach().cpu().contiguous()
    return len(rows) - len({row.numpy().tobytes() for row in rows.view(torch.uint8)})


def _flint() -> Any:
    """python-flint, or the way to it."""
    try:
        import flint
    except ImportError as error:
        raise UsageError("--precise needs python-flint: pip install 'attnprobe[precise]'") from error
    return flint


def _ball_matrix(flint: Any, array: np.ndarray) -> Any:
    """An array of floats as a matrix of balls of radius 0."""
    return flint.arb_mat([[flint.arb(x) for x in row] for row in array.tolist()])


def _norm(flint: Any, x: Any) -> tuple[Any, Any]:
    """Two balls, below and above ``σ₁(X)``."""
    middle = np.array([[float(entry.mid()) for entry in row] for row in x.table()])
    size = np.abs(middle).max()
    if not 0 < size < inf:
        raise OverflowError
    v = _ball_matrix(flint, np.linalg.svd(middle / size)[2].T)
    y = x * v
    gram, unit = (y.transpose() * y).table(), (v.transpose() * v).table()
    reach = _largest_row(gram)
    for i, row in enumerate(unit):
        row[i] -= 1
    defect = _largest_row(unit)
    return (gram[0][0] / (unit[0][0] + 1)).sqrt(), (reach / (1 - defect)).sqrt()


def _largest_row(table: list[list[Any]]) -> Any:
    """The largest sum of absolute values of a row, rounded up."""
    sums = [reduce(add, (entry.abs_upper() for entry in row)).upper() for row in table]
    largest = sums[0]
    for other in sums[1:]:
        largest = largest.max(other)
    return largest


def _exact_rank(flint: Any, array: np.ndarray) -> int:
    """The rank over the rational numbers: floats are integers times one power of two."""
    pairs = [[x.as_integer_ratio() for x in row] for row in array.tolist()]
    common = max(denominator for row in pairs for _, denominator in row)  # powers of two: the largest is common
    return flint.fmpz_mat([[number * (common // denominator) for number, denominator in row] for row in pairs]).rank()
