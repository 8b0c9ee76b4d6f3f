"""Estimated costs of the parts of a cell: multiply-adds in float32, and bytes in addition to Q, K and V."""

from __future__ import annotations

from dataclasses import dataclass

Cost = tuple[float, float]
P = 64  # head dimension
D = 64  # of a method without a budget
# multiply-adds of a matrix product in the time that an entry of B takes, measured with one thread of a CPU
EXACT = 700
STATISTICS = 4_000
NORMS = 3_500  # of the exact matrix
PASSES = 1_300
ROWS = 5_500
CHOICE = 400  # of a method: the median of methods that compute or sort all scores
GATHERED = 40  # of a product with d gathered keys or features, and of the output's errors
LOGITS = 1_000  # of a logit, which two distributions compare
FORWARD = 2  # of a model's products, which are smaller than those that the speed is measured by
CALL = 4e8  # of one call of a method with its errors, besides its products
OPENING = 1.2e11  # of the imports with which a model is opened, and of its weights
CORE = 10  # of an entry of a core, times d
OVERHEAD = 3e8  # multiply-adds in the time of the many small operations of one draw of a theorem's check, of one head
REPEAT = 1.5e8  # the same of one repeat of an audit, which draws, gathers and compares


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


def work_of_inputs(n: int, heads: int, statistics: bool, queries: int | None = None) -> float:
    """Exact attention in float64, and the statistics of Q, K and V, for so many queries; all n by default."""
    return heads * float(n) * (queries or n) * (EXACT + STATISTICS * statistics)


def work_of_method(
    n: int,
    d: int | None,
    heads: int,
    matrix: bool = False,
    rows: bool = False,
    queries: int | None = None,
    quadratic: bool = True,
) -> Cost:
    """A method with its output errors, and with its matrix errors and row metrics if they are measured.

    The cost of every method is taken as that of a typical one, which computes all scores if it is ``quadratic``.
    Methods differ by a factor of about 4 on either side.
    """
    d, queries = d or D, queries or n
    scores = float(n) * queries
    work = CALL + heads * (CHOICE * scores * quadratic + GATHERED * float(queries) * d * P + CORE * float(d) ** 3)
    work += rows * heads * ROWS * scores
    size = 8.0 * heads * n * (2 * d + 3 * P)
    if matrix:
        return work + work_of_passes(n, d, heads) * queries / n, size + 2.0**26
    return work, size


def work_of_steps(prompt: int, steps: int, d: int | None, heads: int, reads: bool) -> float:
    """A call of a method on the new tokens behind a prompt, of which it keeps d keys, or reads all to choose d."""
    return CALL + heads * float(steps) * (CHOICE * prompt * reads + GATHERED * (d or D) * P)


def work_of_passes(n: int, d: int | None, heads: int) -> float:
    """The matrix errors of one method, if several methods share the scores."""
    return heads * float(n) ** 2 * (PASSES + (d or D))


def work_of_forward(n: int, hidden: int, layers: int, vocabulary: int) -> float:
    """A model's forward with its logits, besides attention; ``vocabulary`` 0 is a model without."""
    return FORWARD * n * (12.0 * layers * hidden**2 + float(vocabulary) * hidden)


def work_of_norms(n: int, heads: int) -> float:
    """The norms of the exact matrix, which the matrix errors of a place share."""
    return heads * float(n) ** 2 * NORMS


def work_of_logits(n: int, vocabulary: int) -> float:
    """The comparison of two distributions of the next word."""
    return LOGITS * n * float(vocabulary)


def work_of_decompositions(n: int, heads: int, matrices: int = 3) -> Cost:
    """``count`` decompositions of n x n matrices of each head, in float64."""
    return matrices * heads * 24.0 * n**3, 32.0 * n * n


def work_of_check(n: int, heads: int, decompositions: int, draws: int) -> Cost:
    """The check of a theorem that needs ``count`` decompositions of n x n matrices of each head for each draw.

    The constants are measured: n = 128, twelve heads, one thread.
    """
    work, size = work_of_decompositions(n, heads, decompositions)
    return draws * (work + heads * OVERHEAD), size
