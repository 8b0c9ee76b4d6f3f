"""The smallest budget at which a method's error is at most ε, head by head, from Q, K and V."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import Unsupported, UsageError, unknown
from ...frame.metric import METRICS
from ...grammar.arguments import checked
from ...grammar.foreign import message
from ...methods import Approximation, Method, approximate, get
from ...metrics import OUTPUT_METRICS, ExactOutput, output_errors, shared_matrix_errors
from ...metrics.residual import head_residuals, why_no_block
from ...qkv import QKV
from ...reference import exact, exact_output
from ...run.limits import with_smaller_blocks
from ...run.method_cells import NOT_FINITE
from ...run.plan import HELD, MOST_SHARED, MethodRequest
from . import LIMITED
from .bisect import Errors, HeadBudget, search, seeds_needed

# the defaults of a search
METRIC = "output_frobenius_relative"
D_MIN = 8
RESOLUTION = 1.05
RESIDUAL = "residual_error"
CERTIFIED = ("matrix_spectral", "matrix_spectral_relative")  # metrics with an interval, whose upper end is judged


@dataclass(frozen=True)
class Question:
    """What a search is to find: the arguments of `budgets`, and ``tol``, the relative width of certified intervals."""

    epsilons: tuple[float, ...] = (0.1,)
    metric: str = METRIC
    delta: float = 0.1
    seeds: range = range(20)
    d_min: int = D_MIN
    d_max: int | None = None
    resolution: float = RESOLUTION
    scan: bool = False
    target: str = "softmax"
    tol: float = 1e-3

    def __post_init__(self) -> None:
        if self.metric not in LIMITED:
            raise unknown("metric", self.metric, LIMITED)
        if not self.epsilons or not all(0 < epsilon < math.inf for epsilon in self.epsilons):
            raise UsageError(f"epsilon={','.join(map(str, self.epsilons))}: choose numbers above 0, such as 0.1")
        if not 0 < self.delta < 1:
            raise UsageError(f"delta={self.delta:g}: choose a probability above 0 and below 1, such as 0.1")
        if not 1 <= self.resolution <= 2:
            raise UsageError(f"resolution={self.resolution:g}: choose a factor from 1, every budget, to 2")
        if self.d_min < 1:
            raise UsageError(f"d-min={self.d_min}: choose a budget of at least 1")
        if self.d_max is not None and self.d_max < self.d_min:
            raise UsageError(f"d-max={self.d_max} is below d-min={self.d_min}")
        if not len(self.seeds):
            raise UsageError("no seeds; a random method needs at least one")

    def seeds_of(self, method: str | Method) -> range:
        """The seeds of a method's runs; one seed if the method draws nothing."""
        return self.seeds[:1] if "deterministic" in get(method).tags else self.seeds

    def range_of(self, method: str | Method, n_q: int, n_k: int) -> tuple[int, int]:
        """The smallest and the largest budget of a search for a method."""
        entry = get(method)
        if self.target not in entry.targets:
            raise Unsupported(f"{entry.name} does not take target={self.target}; it takes {', '.join(entry.targets)}")
        if entry.budget is None:
            raise Unsupported(f"{entry.name} has no budget to search for")
        limit = n_k if entry.limit is None else entry.limit(n_q, n_k)
        most = min(limit, max(1, n_k // 2) if self.d_max is None else self.d_max)
        least = max(self.d_min, entry.least)
        entry.check_budget(least, n_q, n_k)
        if least > most:
            raise Unsupported(f"{entry.name}: no budget from {least} to {most}; lower d-min or raise d-max")
        return least, most


@dataclass(frozen=True)
class BudgetSearch:
    """The results of every ε and head, and every budget tried.

    Attributes:
        heads: one `HeadBudget` for each ε and head, in this order.
        tried: errors by budget and head, one for each seed in rising order; infinite if an output is not finite.
        refused: why some heads do not support a budget, by budget.
        needed, seeds: the number of seeds that must have an error of at most ε, and the number of all seeds.
        least, most: the smallest and the largest budget of the search.
    """

    heads: tuple[HeadBudget, ...]
    tried: Mapping[int, Errors]
    refused: Mapping[int, str]
    needed: int
    seeds: int
    least: int
    most: int


@checked()
def budgets(
    qkv: QKV,
    method: str = "skyformer",
    epsilon: float | Sequence[float] = 0.1,
    *,
    metric: str = METRIC,
    delta: float = 0.1,
    seeds: range = range(20),
    d_min: int = D_MIN,
    d_max: int | None = None,
    resolution: float = RESOLUTION,
    scan: bool = False,
    target: str = "softmax",
    **options: Any,
) -> BudgetSearch:
    """The smallest budget of each head at which a method's error is at most ε, found by bisection.

    ``d(head) = min { d : #{seeds with error(d) ≤ ε} ≥ (1 - δ) #seeds }`` over a grid of budgets: powers of two, three
    halves of them, and steps of at most a factor of ``resolution`` between. Budgets share their random draws, so the
    error mostly falls with d. Where it does not, the bisection may miss a smaller d. Larger budgets are tried to show
    this: the powers of two and their three halves up to ``d_max``, and the two budgets next to the result.

    Args:
        qkv: Q, K and V, (h, n, p). method: a registered name. options: of the method.
        epsilon: one or several bounds of the error, in the units of ``metric``. All bounds share their runs.
        metric: of `output_errors` or `matrix_errors`; or ``residual_error`` (see `residual_errors`), if Q, K and V are
            of a model. The error of ``output_cosine_min`` is 1 minus the cosine. The spectral norm of a matrix is the
            upper end of its certified interval.
        delta: the share of seeds that may exceed ε. seeds: of a random method; a deterministic method runs once.
        d_min, d_max: the smallest and the largest budget. By default the largest is n/2: from there on, an operator's
            ``2 d n`` entries are at least n².
        resolution: from 1 (every budget) to 2. scan: try every budget of the grid instead of bisecting.
        target: the exact matrix, ``softmax`` or ``gaussian``.

    Returns:
        `BudgetSearch`: for each ε and head ``d`` (None if no budget up to ``d_max`` reaches ε), the error there, the
        number of seeds with an error of at most ε, the exact 95 % interval of their share, and ``fails_at``, the
        larger budgets whose error exceeds ε. Errors are floats.

    The seeds are the only randomness. Cost: a run of the method and of the metric for every seed at each budget. About
    ``2 log₂(d_max / d_min)`` budgets are run with all heads, then a few with the heads that need them.

    Raises:
        Unsupported: the method has no budget, or does not support the target, the length or any budget of the range.
        UsageError: unknown names, impossible values.

    >>> import torch
    >>> qkv = QKV(*torch.randn(3, 2, 64, 8, generator=torch.Generator().manual_seed(0)))
    >>> [head.d for head in budgets(qkv, "svd", 0.3, d_min=1).heads]
    [12, 9]
    """
    several = tuple(epsilon) if isinstance(epsilon, Iterable) else (epsilon,)
    question = Question(several, metric, delta, seeds, d_min, d_max, resolution, scan, target)
    request = MethodRequest(method, get(method).check(target, options))
    with torch.no_grad():
        return search_budgets(question, request, qkv)


def search_budgets(
    question: Question, request: MethodRequest, qkv: QKV, show: Callable[[int, int], None] = lambda d, heads: None
) -> BudgetSearch:
    """`budgets` for a question and a method with checked options.

    Args:
        show: called before each run with the budget and the number of heads.
    """
    inner = qkv.compressed()
    least, most = question.range_of(request.entry, inner.n_q, inner.n_k)
    seeds = question.seeds_of(request.entry)
    needed = seeds_needed(len(seeds), question.delta)
    errors = _Errors(question, request, inner, seeds, show)
    heads, tried = search(
        errors,
        inner.heads,
        question.epsilons,
        least,
        most,
        resolution=question.resolution,
        scan=question.scan,
        needed=needed,
        random="deterministic" not in request.entry.tags,
    )
    if not tried:
        raise Unsupported(next(iter(errors.refused.values())))
    return BudgetSearch(tuple(heads), tried, errors.refused, needed, len(seeds), least, most)


class _Errors:
    """The errors of some heads at a budget, one for each seed. The exact output is computed once."""

    def __init__(
        self, question: Question, request: MethodRequest, qkv: QKV, seeds: range, show: Callable[[int, int], None]
    ) -> None:
        self.question, self.request, self.qkv, self.seeds, self.show = question, request, qkv, seeds, show
        self.refused: dict[int, str] = {}
        self.reference: ExactOutput | None = None
        if question.metric == RESIDUAL and (why := why_no_block(qkv)) is not None:
            raise Unsupported(f"no residual error: {why}")
        if question.metric in (*OUTPUT_METRICS, RESIDUAL):
            output = with_smaller_blocks(exact_output, qkv, question.target)
            if not torch.isfinite(output).all():
                raise ArithmeticError(NOT_FINITE)
            self.reference = ExactOutput.of(output)

    def __call__(self, d: int, heads: Sequence[int]) -> dict[int, tuple[float, ...]]:
        self.show(d, len(heads))
        return self._of(d, heads)

    def _of(self, d: int, heads: Sequence[int]) -> dict[int, tuple[float, ...]]:
        """The errors of the heads that support the budget. If several heads raise together, each is run alone.

        A method whose heads choose together always runs on all heads.
        """
        joint = self.request.entry.joint
        part = self.qkv if joint or tuple(heads) == self.qkv.heads else self.qkv.select(heads)
        try:
            values = self._matrices(d, part) if self.reference is None else self._outputs(d, part, self.reference)
        except Unsupported as error:
            if len(heads) > 1 and not joint:  # head by head: other heads may support the budget
                return {head: errors for alone in heads for head, errors in self._of(d, [alone]).items()}
            self.refused.setdefault(d, message(error))
            return {}
        # NaN as infinite, so that a seed that is lost exceeds every ε
        values = torch.nan_to_num(values.double().cpu(), nan=math.inf).sort(0).values  # (seeds, h)
        errors = {head: tuple(of_head.tolist()) for head, of_head in zip(part.heads, values.T, strict=True)}
        return {head: errors[head] for head in heads}

    def _run(self, d: int, part: QKV, seed: int) -> Approximation:
        """A run of the method on some heads."""
        options = {"seed": seed, "target": self.question.target, **self.request.options}
        return with_smaller_blocks(approximate, self.request.entry, part, d, **options)

    def _outputs(self, d: int, part: QKV, reference: ExactOutput) -> Tensor:
        """Output errors, (seeds, h)."""
        indices = [self.qkv.heads.index(head) for head in part.heads]
        if self.question.metric == RESIDUAL:
            assert part.block is not None  # checked before the search
            gaps = (self._run(d, part, seed).output.double() - reference.output[indices] for seed in self.seeds)
            return torch.stack([head_residuals(gap, part.block, part.heads).mean(-1) for gap in gaps])
        spectral, frobenius = reference.norms
        norms = spectral[indices], frobenius[indices]
        reference = ExactOutput(reference.output[indices], norms, reference.row_sizes[indices])
        name = self.question.metric
        errors = torch.stack([output_errors(reference, self._run(d, part, seed), part)[name] for seed in self.seeds])
        return METRICS[name].cost(errors)

    def _matrices(self, d: int, part: QKV) -> Tensor:
        """Matrix errors, (seeds, h). As many seeds as fit into memory share the passes over the exact matrix."""
        name = self.question.metric + ("_upper" if self.question.metric in CERTIFIED else "")
        size = part.h * d * (part.n_q + part.n_k + d) * part.q.element_size()  # bytes of an operator
        count, errors = max(1, min(MOST_SHARED, HELD // size)), []
        for start in range(0, len(self.seeds), count):
            operators = [self._run(d, part, seed).operator for seed in self.seeds[start : start + count]]
            if None in operators:
                raise Unsupported(f"{self.request.label} gives no operator, so it has no matrix errors")

            def measure(batch: Sequence[Any] = operators) -> Any:
                return shared_matrix_errors(exact(part, self.question.target), batch, tol=self.question.tol)

            errors += [of_operator.metrics[name] for of_operator in with_smaller_blocks(measure)]
        return torch.stack(errors)
