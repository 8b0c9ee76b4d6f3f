"""Estimated costs of the parts of a cell: multiply-adds in float32, and bytes in addition to Q, K and V."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Cost",
    "Work",
    "work_of_check",
    "work_of_decompositions",
    "work_of_inputs",
    "work_of_method",
    "work_of_passes",
]

Cost = tuple[float, float]
P = 64  # head dimension
D = 64  # of a method without a budget
# multiply-adds that an entry of B takes, with its exponential
EXACT = 128
STATISTICS = 1024
PASSES = 512
OVERHEAD = 1.2e8  # multiply-adds in the time that the many small operations of one draw of a theorem's check take


@dataclass(frozen=True)
class Work:
    """The cost of a cell in addition to the other cells of its place.

    Attributes:
        inputs: its equal share of the place's inputs, in multiply-adds. own: what it takes itself, in multiply-adds.
        bytes: what it holds beside Q, K and V.
    """

    inputs: float
    own: float
    bytes: float

    @property
    def total(self) -> float:
        """Its multiply-adds, with its share of the inputs."""
        return self.inputs + self.own


def work_of_inputs(n: int, heads: int, statistics: bool) -> float:
    """Exact attention in float64, and the statistics of Q, K and V."""
    return heads * float(n) ** 2 * (EXACT + STATISTICS * statistics)


def work_of_method(n: int, d: int | None, heads: int, matrix: bool = False) -> Cost:
    """A method of low rank, with its matrix errors if they are measured."""
    d = d or D
    work, size = heads * (8.0 * n * d * P + 40.0 * d**3), 8.0 * heads * n * (2 * d + 3 * P)
    if matrix:
        return work + work_of_passes(n, d, heads), size + 2.0**26
    return work, size


def work_of_passes(n: int, d: int | None, heads: int) -> float:
    """The matrix errors of one method, if several methods share the scores."""
    return heads * float(n) ** 2 * (PASSES + (d or D))


def work_of_decompositions(n: int, heads: int, matrices: int = 3) -> Cost:
    """``count`` decompositions of n x n matrices of each head, in float64."""
    return matrices * heads * 24.0 * n**3, 32.0 * n * n


def work_of_check(n: int, heads: int, decompositions: int, draws: int) -> Cost:
    """The check of a theorem that needs ``count`` decompositions of n x n matrices of each head for each draw.

    The constants are measured: n = 64, 128 and 256, two heads, one thread.
    """
    work, size = work_of_decompositions(n, heads, decompositions)
    return draws * (work + OVERHEAD), size
