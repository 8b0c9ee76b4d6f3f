"""The search for the smallest budget: a bisection that many heads share, and larger budgets that fail again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...operators.linalg.exceedance import clopper_pearson

# by head: an error for each seed, in rising order; a head that does not support the budget has no entry
Errors = Mapping[int, tuple[float, ...]]
NEIGHBOURS = 2  # budgets that are tried above the smallest budget that succeeds


@dataclass(frozen=True)
class HeadBudget:
    """The smallest budget of one head at one ε, among the budgets tried.

    A budget succeeds if enough seeds have an error of at most ε; otherwise it fails.

    Attributes:
        d: the smallest budget tried that succeeds; None if every budget tried fails.
        below: the largest budget tried below ``d``, which fails. Without ``d``, the largest budget tried.
        error: the error at ``d`` that enough seeds do not exceed: the k-th smallest, with k of `seeds_needed`.
        held, seeds: the number of seeds with an error of at most ε at ``d``, and the number of all seeds.
        interval: the exact 95 % interval of the probability of an error of at most ε; None without randomness.
        fails_at: budgets tried above ``d`` that fail, which shows that the error does not fall with the budget.
        holds_from: the smallest budget tried at which, and above which, every budget tried succeeds.
    """

    head: int
    epsilon: float
    d: int | None
    below: int | None
    error: float | None = None
    held: int | None = None
    seeds: int = 1
    interval: tuple[float, float] | None = None
    fails_at: tuple[int, ...] = ()
    holds_from: int | None = None


def coarse_budgets(least: int, most: int) -> list[int]:
    """Powers of two and three halves of them from ``least`` to ``most``, both ends included.

    >>> coarse_budgets(8, 40)
    [8, 12, 16, 24, 32, 40]
    """
    steps = (size for k in range(most.bit_length()) for size in (2**k, 3 * 2**k))
    return sorted({least, most, *(size for size in steps if least <= size <= most)})


def fine_budgets(least: int, most: int, resolution: float) -> list[int]:
    """The coarse budgets, and budgets between them with steps of at most a factor of ``resolution``, or of 1.

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
    """The smallest number of seeds that is a share of at least 1 - δ, at least 1.

    >>> seeds_needed(20, 0.1), seeds_needed(1, 0.1), seeds_needed(7, 0.25)
    (18, 1, 6)
    """
    # less 1e-9, because 10 (1 - 0.7) is above 3 in binary
    return max(1, math.ceil((1 - delta) * seeds - 1e-9))


class _Tried:
    """The errors of all budgets that were tried, and the budgets that heads do not support.

    Args:
        ask: the errors of some heads at a budget, without heads that do not support it.
        needed: the number of seeds that must succeed.
    """

    def __init__(self, ask: Callable[[int, Sequence[int]], Errors], heads: Sequence[int], needed: int) -> None:
        self.ask, self.heads, self.needed = ask, heads, needed
        self.errors: dict[int, dict[int, tuple[float, ...]]] = {}  # of the seeds, by budget and head
        self.unsupported: dict[int, set[int]] = {head: set() for head in heads}

    def try_all(self, budgets: Iterable[tuple[int, int]]) -> None:
        """Try budgets with heads, ``(d, head)``; heads with the same budget share a run."""
        heads_of: dict[int, list[int]] = {}

        for d, head in sorted(set(budgets)):
            if head not in self.errors.get(d, ()):
                heads_of.setdefault(d, []).append(head)
        for d, asked in heads_of.items():
            errors = self.ask(d, [head for head in self.heads if head in asked])
            for head in asked:
                if head in errors:
                    self.errors.setdefault(d, {})[head] = errors[head]
                else:
                    self.unsupported[head].add(d)

    def of(self, head: int) -> dict[int, float]:
        """The error of a head at each budget tried, in rising order of budgets: the one that enough seeds keep to."""
        return {d: self.errors[d][head][self.needed - 1] for d in sorted(self.errors) if head in self.errors[d]}


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
    """The smallest budget from ``least`` to ``most`` of every ε and head, and all errors measured on the way.

    `coarse_budgets` are tried with all heads. Between the smallest one that succeeds and the one below it, each head
    bisects `fine_budgets`. Heads that need the same budget in a round share a run, and all ε share the errors. The
    bisection assumes that the error falls with d. To check this, the coarse budgets above and two neighbours are tried
    too; those that fail are reported as counterexamples. Budgets between them are not tried. ``scan`` tries every fine
    budget instead.

    Args:
        ask: the errors of some heads at a budget, without heads that do not support it.
        needed: the number of seeds that must succeed. random: whether the result varies with the seed.
    """
    tried = _Tried(ask, heads, needed)
    fine = fine_budgets(least, most, resolution)
    tried.try_all((d, head) for d in (fine if scan else coarse_budgets(least, most)) for head in heads)
    goals = [(epsilon, head) for epsilon in epsilons for head in heads]
    # one step of the bisection of every goal, until no goal has a budget left between failure and success
    while next_budgets := [
        (d, head)
        for epsilon, head in goals
        if (d := _next(tried.of(head), fine, tried.unsupported[head], epsilon)) is not None
    ]:
        tried.try_all(next_budgets)
    tried.try_all(
        (d, head) for epsilon, head in goals for d in _above(tried.of(head), fine, tried.unsupported[head], epsilon)
    )
    head_budgets = [_head_budget(head, epsilon, tried.of(head), tried.errors, random) for epsilon, head in goals]
    return head_budgets, {d: tried.errors[d] for d in sorted(tried.errors)}


def _reached(errors: Mapping[int, float], epsilon: float) -> tuple[int | None, int | None]:
    """The smallest budget that succeeds, and the largest budget tried below it. Without success, the largest tried."""
    d = next((d for d, error in errors.items() if error <= epsilon), None)
    return d, max((other for other in errors if d is None or other < d), default=None)


def _next(errors: Mapping[int, float], fine: Sequence[int], unsupported: set[int], epsilon: float) -> int | None:
    """The middle budget between failure and success; None if no budget is left there."""
    d, below = _reached(errors, epsilon)
    if d is None:
        return None
    between = [x for x in fine if (below is None or below < x) and x < d and x not in unsupported]
    # the lower of two middles: smaller budgets are cheaper to run
    return between[(len(between) - 1) // 2] if between else None


def _above(errors: Mapping[int, float], fine: Sequence[int], unsupported: set[int], epsilon: float) -> list[int]:
    """The neighbours above the smallest budget that succeeds."""
    d, _ = _reached(errors, epsilon)
    return [] if d is None else [x for x in fine if x > d and x not in unsupported][:NEIGHBOURS]


def _head_budget(
    head: int, epsilon: float, errors: Mapping[int, float], tried: Mapping[int, Errors], random: bool
) -> HeadBudget:
    d, below = _reached(errors, epsilon)
    if d is None:
        seeds = max((len(by_head[head]) for by_head in tried.values() if head in by_head), default=1)
        return HeadBudget(head, epsilon, None, below, seeds=seeds)
    seeds = tried[d][head]
    held = sum(error <= epsilon for error in seeds)
    # `not … <=`, so that NaN fails
    fails_at = tuple(x for x, error in errors.items() if x > d and not error <= epsilon)
    holds_from = next((x for x in errors if x > max(fails_at)), None) if fails_at else d
    interval = clopper_pearson(held, len(seeds)) if random else None
    return HeadBudget(head, epsilon, d, below, errors[d], held, len(seeds), interval, fails_at, holds_from)
