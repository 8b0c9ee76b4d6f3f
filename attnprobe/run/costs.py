"""Estimated costs of the parts of a cell: work, and bytes in addition to Q, K and V.

The unit of work is a float32 multiply-add, of which the `SAMPLE` of a machine's speed counts as `SAMPLED`.
"""

from __future__ import annotations

from dataclasses import dataclass

Cost = tuple[float, float]
P = 64  # head dimension
D = 64  # of a method without a budget
SAMPLE = 512  # tokens of the head whose exact output in float64 measures the speed
SAMPLED = 1.5e8  # in the time of one product of matrices, with one thread of a CPU; so are the others
# of an entry of B
EXACT = 450
STATISTICS = 2_000  # with the norms of the exact matrix
PASSES = 1_500
ROWS = 1_200
CHOICE = 400  # of a method: the median of methods that compute or sort all scores
GATHERED = 20  # of a product with d gathered keys or features, and of the output's errors
LOGITS = 500  # of a logit, which two distributions compare
FORWARD = 1.2  # of a model's products
CALL = 2.5e7  # of a head in a call with its errors, besides products; the call itself takes as much as four heads
OPENING = 1.3e11  # of the imports with which a model is opened, and of its weights
CORE = 30  # of an entry of a core, times d
OVERHEAD = 3e8  # multiply-adds in the time of the many small operations of one draw of a theorem's check, of one head
PROCESS = 1e10  # of the process that measures the memory of a call
REPEAT = 3e7  # the same of one repeat of an audit, which draws, gathers and compares


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
    cost: str,
    matrix: bool = False,
    rows: bool = False,
    queries: int | None = None,
) -> Cost:
    """A method with its output errors, and with its matrix errors and row metrics if they are measured.

    It is that of a typical method with the terms n² and d³ that are in ``cost``, the method's own. Methods differ by a
    factor of about 3 on either side.
    """
    d, queries = d or D, queries or n
    scores = float(n) * queries
    work = CALL * (4 + heads) + heads * GATHERED * float(queries) * d * P
    work += heads * (CHOICE * scores * is_quadratic(cost) + CORE * float(d) ** 3 * ("d³" in cost))
    work += rows * heads * ROWS * scores
    size = 8.0 * heads * n * (2 * d + 3 * P)
    if matrix:
        return work + work_of_passes(n, d, heads) * queries / n, size + 2.0**26
    return work, size


def is_quadratic(cost: str) -> bool:
    """Whether the cost of a method has a term of n² or n³."""
    return "n²" in cost or "n³" in cost


def work_of_steps(prompt: int, steps: int, d: int | None, heads: int, reads: bool) -> float:
    """A call of a method on the new tokens behind a prompt, of which it keeps d keys, or reads all to choose d."""
    return CALL * (4 + heads) + heads * float(steps) * (CHOICE * prompt * reads + GATHERED * (d or D) * P)


def work_of_passes(n: int, d: int | None, heads: int) -> float:
    """The matrix errors of one method, if several methods share the scores."""
    return heads * float(n) ** 2 * (PASSES + (d or D))


def work_of_forward(n: int, hidden: int, layers: int, vocabulary: int) -> float:
    """A model's forward with its logits, besides attention; ``vocabulary`` 0 is a model without."""
    return FORWARD * n * (12.0 * layers * hidden**2 + float(vocabulary) * hidden)


def work_of_decompositions(n: int, heads: int, matrices: int = 3) -> Cost:
    """``count`` decompositions of n x n matrices of each head, in float64."""
    return matrices * heads * 16.0 * n**3, 32.0 * n * n
