"""The condition number of a matrix between two proved ends, by ball arithmetic (python-flint)."""

from dataclasses import dataclass
from functools import reduce
from math import inf, isfinite, nextafter
from operator import add
from typing import Any

import flint
import numpy as np
from torch import Tensor

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


def certified_condition(matrix: Tensor) -> Certified:
    """``σ₁(M) σ₁(M⁻¹)`` between two proved ends, of a square float64 matrix of at most 256 rows.

    The inverse is taken in ball arithmetic, at a precision that is doubled until it exists and the interval closes to
    1e-9. Each norm ``σ₁(X)`` is enclosed by an approximate basis V of right singular vectors, whose floats are exact:
    with ``G = VᵀXᵀXV`` and ``‖VᵀV - I‖_∞ = ε``,

        ``G₁₁ / (VᵀV)₁₁  ≤  σ₁(X)²  ≤  max_i Σ_j |G_ij| / (1 - ε)``

    (a Rayleigh quotient; Gershgorin's discs). If the first precision gives no inverse, the exact rank over the
    rationals tells whether the matrix is singular. Cost: some seconds at 256 rows.

    Raises:
        ValueError: a matrix that is not singular and yet beyond 4096 bits.
    """
    m = matrix.shape[0]
    assert matrix.shape == (m, m) and m <= LARGEST and matrix.isfinite().all()
    array = matrix.detach().double().cpu().numpy()
    for bits in BITS:
        with flint.ctx.workprec(bits):
            exact = _ball_matrix(array)
            try:
                inverse = exact.inv()
                ends = [a * b for a, b in zip(_norm(exact), _norm(inverse), strict=True)]
            except (ZeroDivisionError, OverflowError):  # a pivot's ball holds zero: more bits, or a singular matrix
                if bits == BITS[0] and (rank := _exact_rank(array)) < m:
                    return Certified(inf, inf, bits, rank)
                continue
            lower = nextafter(float(ends[0].lower()), 0.0)
            upper = nextafter(float(ends[1].upper()), inf)
        if upper <= lower * (1 + CLOSED):
            return Certified(max(lower, 1.0), max(upper, 1.0), bits, m)
    raise ValueError(f"{BITS[-1]} bits do not resolve this matrix, which is not singular")


def _ball_matrix(array: np.ndarray) -> Any:
    """An array of floats as a matrix of balls of radius 0."""
    return flint.arb_mat([[flint.arb(x) for x in row] for row in array.tolist()])


def _norm(x: Any) -> tuple[Any, Any]:
    """Two balls, below and above ``σ₁(X)``."""
    middle = np.array([[float(entry.mid()) for entry in row] for row in x.table()])
    size = np.abs(middle).max()
    if not 0 < size < inf:
        raise OverflowError
    v = _ball_matrix(np.linalg.svd(middle / size)[2].T)
    y = x * v
    gram, unit = (y.transpose() * y).table(), (v.transpose() * v).table()
    reach = largest_row(gram)
    for i, row in enumerate(unit):
        row[i] -= 1
    defect = largest_row(unit)
    return (gram[0][0] / (unit[0][0] + 1)).sqrt(), (reach / (1 - defect)).sqrt()


def largest_row(table: list[list[Any]]) -> Any:
    """The largest sum of absolute values of a row, rounded up."""
    sums = [reduce(add, (entry.abs_upper() for entry in row)).upper() for row in table]
    largest = sums[0]
    for other in sums[1:]:
        largest = largest.max(other)
    return largest


def _exact_rank(array: np.ndarray) -> int:
    """The rank over the rational numbers: floats are integers times one power of two."""
    pairs = [[x.as_integer_ratio() for x in row] for row in array.tolist()]
    common = max(denominator for row in pairs for _, denominator in row)  # powers of two: the largest is common
    return flint.fmpz_mat([[number * (common // denominator) for number, denominator in row] for row in pairs]).rank()
