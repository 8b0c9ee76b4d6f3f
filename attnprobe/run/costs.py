"""Estimated costs of the parts of a cell: work, and bytes in addition to Q, K and V.

The unit of work is a float32 multiply-add, of which the `SAMPLE` of a machine's speed counts as `SAMPLED`.
"""

from __future__ import annotations

from dataclasses import dataclass

Cost = tuple[float, float]  # multiply-adds, bytes
P = 64  # head dimension
D = 64  # stands for the budget of a method without one
SAMPLE = 512  # tokens of the head whose exact output in float64 measures the speed
# Each constant counts the float32 multiply-adds of matrix products that one thread of a CPU does in the same time.
SAMPLED = 1.5e8  # the exact output of the sample
# work on an entry of B
EXACT = 450  # the exact output
STATISTICS = 2_000  # statistics of Q, K and V, with the norms of the exact matrix
PASSES = 1_500  # passes over B for matrix errors
ROWS = 1_200  # row metrics
CHOICE = 400  # a method's choice of keys: the median of methods that compute or sort all scores
# work on other things
GATHERED = 20  # an entry of a product with d gathered keys or features, and of the output's errors
LOGITS = 500  # a logit, which two distributions compare
FORWARD = 1.2  # a multiply-add of a model's products
CALL = 2.5e7  # a head in a call with its errors, besides products; the call itself takes as much as four heads
OPENING = 1.3e11  # the imports with which a model is opened, and its weights
CORE = 30  # an entry of a core, times d
OVERHEAD = 3e8  # the many small operations of one draw of a theorem's check, of one head
PROCESS = 1e10  # the process that measures the memory of a call
REPEAT = 3e7  # one repeat of an audit, which draws, gathers and compares


@dataclass(frozen=True)
class Work:
    """The cost of a cell in addition to the other cells of its place.

    Attributes:
        inputs: the cell's equal share of the place's inputs, in multiply-adds.
        own: the cell's own work, in multiply-adds. bytes: its memory besides Q, K and V.
    """

    inputs: float
    own: float
    bytes: float

    @property
    def total(self) -> float:
        """The cell's multiply-adds, with its share of the inputs."""
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

    The estimate is that of a typical method whose ``cost`` has the same terms n² and d³. Methods differ from it by a
    factor of about 3 on either side.

    Args:
        cost: of the method, as it is registered, such as ``n d p + d³``.
    """
    d, queries = d or D, queries or n
    scores = float(n) * queries
    work = CALL * (4 + heads) + heads * GATHERED * float(queries) * d * P
    work += heads * (CHOICE * scores * is_quadratic(cost) + CORE * float(d) ** 3 * ("d³" in cost))
    work += rows * heads * ROWS * scores
    size = 8.0 * heads * n * (2 * d + 3 * P)
    if matrix:
        from ..operators.linalg.differences import KEPT

        kept = min(KEPT, 4.0 * heads * scores)  # rows that later passes read again
        return work + work_of_passes(n, d, heads) * queries / n, size + 2.0**26 + kept
    return work, size


def is_quadratic(cost: str) -> bool:
    """Whether the cost of a method has a term of n² or n³."""
    return "n²" in cost or "n³" in cost


def work_of_steps(prompt: int, steps: int, d: int | None, heads: int, reads: bool) -> float:
    """A call of a method on the new tokens behind a prompt.

    Args:
        reads: whether the method reads all keys of the prompt to choose d of them; else it keeps d keys.
    """
    return CALL * (4 + heads) + heads * float(steps) * (CHOICE * prompt * reads + GATHERED * (d or D) * P)


def work_of_passes(n: int, d: int | None, heads: int) -> float:
    """The matrix errors of one method, if several methods share the scores."""
    return heads * float(n) ** 2 * (PASSES + (d or D))


def work_of_forward(n: int, hidden: int, layers: int, vocabulary: int) -> float:
    """A model's forward with its logits, without attention; a model without logits has a ``vocabulary`` of 0."""
    return FORWARD * n * (12.0 * layers * hidden**2 + float(vocabulary) * hidden)


def work_of_decompositions(n: int, heads: int, matrices: int = 3) -> Cost:
    """``count`` decompositions of n x n matrices of each head, in float64."""
    return matrices * heads * 16.0 * n**3, 32.0 * n * n
