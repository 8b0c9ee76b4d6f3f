"""About what the parts of a cell cost, to plan by: multiply-adds in float32, and bytes beside Q, K and V."""

from __future__ import annotations

__all__ = ["Cost", "work_of_decompositions", "work_of_method"]

Cost = tuple[float, float]
P = 64  # head dimension
D = 64  # of a method without a budget


def work_of_method(n: int, d: int | None, heads: int, matrix: bool = False) -> Cost:
    """A method of low rank, with its matrix errors where they are measured."""
    d = d or D
    work, size = heads * (8.0 * n * d * P + 40.0 * d**3), 8.0 * heads * n * (2 * d + 3 * P)
    if matrix:  # about four passes, of which the methods of a batch share the scores
        return work + heads * float(n) ** 2 * (4 * P + d), size + 2.0**26
    return work, size


def work_of_decompositions(n: int, heads: int, matrices: int = 3) -> Cost:
    """Decompositions of so many n x n matrices of each head, in float64."""
    return matrices * heads * 24.0 * n**3, 32.0 * n * n
