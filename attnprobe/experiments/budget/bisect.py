"""The search for the smallest budget: a bisection that many heads share, and larger budgets that fail again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...linalg.binomial import clopper_pearson

__all__ = ["Errors", "HeadBudget", "coarse_budgets", "fine_budgets", "search", "seeds_needed"]

Errors = Mapping[int, tuple[float, ...]]  # by head: one error for each seed, in rising order; no entry where refused
NEIGHBOURS = 2  # budgets above the one found that are tried too


@dataclass(frozen=True)
class HeadBudget:
    """The smallest budget of one head at one ε, as far as it was tried.

    Attributes:
        d: the smallest budget tried at which enough seeds have an error of at most ε; None where none is.
        below: the largest budget tried below ``d``, or of all where ``d`` is None, at which too few have.
        error: the error at ``d`` that enough seeds do not exceed: the k-th smallest, k as `seeds_needed` says.
        held, seeds: at ``d``, how many seeds have an error of at most ε, and of how many.
        interval: the exact 95 % interval of the probability of that; None without randomness.
        again: larger budgets tried at which too few seeds have it again: the error does not fall with the budget.
        settled: the smallest budget tried from which on none of the larger ones that were tried fails.
    """

    head: int
    epsilon: float
    d: int | None
    below: int | None
    error: float | None = None
    held: int | None = None
    seeds: int = 1
    interval: tuple[float, float] | None = None
    again: tuple[int, ...] = ()
    settled: int | None = None

    @property
    def no_counterexample(self) -> bool | None:
        """Whether no larger budget that was tried fails, which says nothing of others; None where ``d`` is None."""
        return None if self.d is None else not self.again


def coarse_budgets(least: int, most: int) -> list[int]:
    """Powers of two and three halves of them from ``least`` to ``most``, which are among them.

    >>> coarse_budgets(8, 40)
    [8, 12, 16, 24, 32, 40]
    """
    steps = (size for k in range(most.bit_length()) for size in (2**k, 3 * 2**k))
    return sorted({least, most, *(size for size in steps if least <= size <= most)})


def fine_budgets(least: int, most: int, resolution: float) -> list[int]:
    """The coarse budgets with steps of at most a factor of ``resolution`` between them, or of 1 where that is more.

    >>> fine_budgets(8, 40, 1.1)
    [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26, 28, 30, 32, 35, 38, 40]
    """
    coarse = coarse_budgets(least, most)
    budgets = []
    for low, high in zip(coarse, coarse[1:], strict=False):
        while low < high:
            budgets.append(low)
            low = max(low + 1, math.floor(low * resolution))
    return [*budgets, coarse[-1]]


def seeds_needed(seeds: int, delta: float) -> int:
    """How many of the seeds are a share of at least 1 - δ, at least one.

    >>> seeds_needed(20, 0.1), seeds_needed(1, 0.1), seeds_needed(7, 0.25)
    (18, 1, 6)
    """
    return max(1, math.ceil((1 - delta) * seeds - 1e-9))  # 10 (1 - 0.7) is above 3 in binary


def search(
    ask: Callable[[int, Sequence[int]], Errors],
    heads: Sequence[int],
    epsilons: Sequence[float],
    least: int,
    most: int,
    *,
    resolution: float = 1.05,
    scan: bool = False,
    needed: int = 1,
    random: bool = False,
) -> tuple[list[HeadBudget], dict[int, dict[int, tuple[float, ...]]]]:
    """The smallest budget from ``least`` to ``most`` of every ε and head, and every error that was asked for.

    `coarse_budgets` are tried with all heads. Between the smallest that succeeds and the one below it each head
    bisects `fine_budgets`; heads that need the same budget in a round are asked for together, and what one ε needed
    all know. The bisection assumes that the error falls with d. The coarse budgets above, and two neighbours, are tried
    too, and those that fail, which are counterexamples, are reported; others between them are not looked for. ``scan``
    tries every fine budget instead.

    Args:
        ask: the errors of some heads at a budget; a head that cannot take it is left out.
        needed: how many seeds must succeed. random: whether several seeds tell a probability.
    """
    tried: dict[int, dict[int, tuple[float, ...]]] = {}
    missing: dict[int, set[int]] = {head: set() for head in heads}  # budgets that a head cannot take

    def try_all(next_budgets: Iterable[tuple[int, int]]) -> None:
        groups: dict[int, list[int]] = {}
        for d, head in sorted(set(next_budgets)):
            if head not in tried.get(d, ()):
                groups.setdefault(d, []).append(head)
        for d, columns in groups.items():
            errors = ask(d, [head for head in heads if head in columns])
            for head in columns:
                if head in errors:
                    tried.setdefault(d, {})[head] = errors[head]
                else:
                    missing[head].add(d)

    def of(head: int) -> dict[int, float]:
        return {d: tried[d][head][needed - 1] for d in sorted(tried) if head in tried[d]}

    fine = fine_budgets(least, most, resolution)
    try_all((d, head) for d in (fine if scan else coarse_budgets(least, most)) for head in heads)
    goals = [(epsilon, head) for epsilon in epsilons for head in heads]
    while next_budgets := [
        (d, head) for epsilon, head in goals if (d := _next(of(head), fine, missing[head], epsilon)) is not None
    ]:
        try_all(next_budgets)
    try_all((d, head) for epsilon, head in goals for d in _above(of(head), fine, missing[head], epsilon))
    head_budgets = [_head_budget(head, epsilon, of(head), tried, random) for epsilon, head in goals]
    return head_budgets, {d: tried[d] for d in sorted(tried)}


def _reached(errors: Mapping[int, float], epsilon: float) -> tuple[int | None, int | None]:
    """The smallest budget that succeeds and the largest tried below it; of all where none succeeds."""
    d = next((d for d, error in errors.items() if error <= epsilon), None)
    return d, max((other for other in errors if d is None or other < d), default=None)


def _next(errors: Mapping[int, float], fine: Sequence[int], missing: set[int], epsilon: float) -> int | None:
    """The budget in the middle of those between failure and success; None where there is none left."""
    d, below = _reached(errors, epsilon)
    if d is None:
        return None
    between = [x for x in fine if (below is None or below < x) and x < d and x not in missing]
    return between[(len(between) - 1) // 2] if between else None


def _above(errors: Mapping[int, float], fine: Sequence[int], missing: set[int], epsilon: float) -> list[int]:
    """The neighbours above what was found."""
    d, _ = _reached(errors, epsilon)
    return [] if d is None else [x for x in fine if x > d and x not in missing][:NEIGHBOURS]


def _head_budget(
    head: int, epsilon: float, errors: Mapping[int, float], tried: Mapping[int, Errors], random: bool
) -> HeadBudget:
    """What was found for one head and ε."""
    d, below = _reached(errors, epsilon)
    if d is None:
        seeds = max((len(by_head[head]) for by_head in tried.values() if head in by_head), default=1)
        return HeadBudget(head, epsilon, None, below, seeds=seeds)
    seeds = tried[d][head]
    held = sum(error <= epsilon for error in seeds)
    again = tuple(x for x, error in errors.items() if x > d and not error <= epsilon)
    settled = next((x for x in errors if x > max(again)), None) if again else d
    interval = clopper_pearson(held, len(seeds)) if random else None
    return HeadBudget(head, epsilon, d, below, errors[d], held, len(seeds), interval, again, settled)
