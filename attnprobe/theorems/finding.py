"""Theorems and findings: a statement and the function that checks it; per head its assumption, promise and verdict.

A measured probability is a frequency over seeds, with a binomial confidence interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..approximation import Approximation
from ..errors import Unsupported, unknown
from ..grammar.arguments import checked
from ..operators.linalg.exceedance import CONFIDENCE, HOLDS, UNDECIDED, VIOLATED, clopper_pearson
from ..qkv import QKV
from ..rng import Streams

VACUOUS, NOT_MET = "vacuous", "assumption not met"
VERDICTS = HOLDS, VIOLATED, UNDECIDED, VACUOUS, NOT_MET


@dataclass(frozen=True)
class Finding:
    """One statement of a theorem, evaluated on the heads of one layer.

    Args:
        theorem: its name in `THEOREMS`.
        d: the budget; None for a statement without one.
        at: the other parameters of the statement, such as ``{"epsilon": 0.5, "delta": 0.1}``. With ``d`` they identify
            a finding of a theorem.
        assumption, promise: short texts with a formula. Where bounds differ, the sides of the promise, beside ``≤``,
            ``≥`` or the sense, are the measured quantity and its bound.
        met: (h,) bool, whether the assumption holds.
        bound: (h,) float64, the promised bound of ``measured``; infinite if nothing is promised.
        measured: (h,) float64, infinite if it is beyond every bound, NaN if nothing was measured.
        lower, upper: the interval of an estimated ``measured``. They are None if it is exact up to rounding.
        certified: whether the interval bounds an error of computation, as ``rounding`` does, and not one of chance.
        rounding: a bound of the rounding of ``measured``, absolute, (h,) or a number.
        sense: ``"at most"`` or ``"at least"``, the promised relation of ``measured`` to ``bound``.
        vacuous: (h,) bool, whether the bound is true of every matrix, or of an approximation by zeros.
        details: further numbers for the rows, (h,) or (h, …).
    """

    theorem: str
    assumption: str
    met: Tensor
    promise: str
    bound: Tensor
    measured: Tensor
    vacuous: Tensor
    d: int | None = None
    at: Mapping[str, Any] = field(default_factory=dict)
    sense: str = "at most"
    lower: Tensor | None = None
    upper: Tensor | None = None
    certified: bool = False
    rounding: Tensor | float = 0.0
    details: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def slack(self) -> Tensor:
        """The slack of the bound: bound / measured for "at most", measured / bound for "at least", (h,).

        NaN of a bound of 0, of which no measured value has a share.
        """
        pair = (self.bound, self.measured) if self.sense == "at most" else (self.measured, self.bound)
        return (pair[0] / pair[1]).masked_fill(self.bound == 0, torch.nan)

    @property
    def contradicted(self) -> Tensor:
        """Whether the entire measured interval, rounding included, is beyond the bound, (h,) bool."""
        return self._beyond(self._end(nearest=True))

    @property
    def undecided(self) -> Tensor:
        """Whether the interval of chance is beyond the bound in part, (h,) bool."""
        return self._beyond(self._end(nearest=False)) & ~self.contradicted & (not self.certified)

    @property
    def lost(self) -> Tensor:
        """Whether nothing can be compared: the measurement, its interval or its bound is NaN, (h,) bool."""
        return self._end(nearest=True).isnan() | self.measured.isnan() | self.bound.isnan()

    def verdicts(self) -> list[str | None]:
        """One of `VERDICTS` for each head, the first of these that applies:

        1. ``assumption not met``: a theorem whose assumption fails promises nothing, so nothing can be vacuous or
           violated (the field ``vacuous`` is set independently);
        2. ``vacuous``: every matrix fulfils the promise, or one of zeros does, so a measurement decides nothing;
        3. None: the measurement or its bound is NaN, which is a failure and not a verdict;
        4. ``violated``: the entire measured interval, rounding included, is beyond the bound;
        5. ``undecided``: the interval of chance is beyond the bound in part;
        6. ``holds``.
        """
        # the order is that of the docstring: the first word that applies
        words = {NOT_MET: ~self.met, VACUOUS: self.vacuous, None: self.lost}
        words |= {VIOLATED: self.contradicted, UNDECIDED: self.undecided}
        flags = zip(*(x.tolist() for x in words.values()), strict=True)
        return [next((word for word, flag in zip(words, head, strict=True) if flag), HOLDS) for head in flags]

    def _end(self, nearest: bool) -> Tensor:
        """The end of the measured interval nearest to the promise, or the other end, moved to it by rounding, (h,)."""
        # for "at most", the lower end is the nearest to the promise, and the upper end the farthest
        end = self.lower if nearest == (self.sense == "at most") else self.upper
        value = self.measured if end is None else end
        return value - self.rounding if self.sense == "at most" else value + self.rounding

    def _beyond(self, value: Tensor) -> Tensor:
        return value > self.bound if self.sense == "at most" else value < self.bound

    def __post_init__(self) -> None:
        shapes = {name: tuple(getattr(self, name).shape) for name in ("met", "bound", "measured", "vacuous")}
        if len(set(shapes.values())) != 1 or self.sense not in ("at most", "at least"):
            raise ValueError(f"{self.theorem}: one number per head is needed, got {shapes} and sense={self.sense!r}")
        if self.met.dtype is not torch.bool or self.vacuous.dtype is not torch.bool:
            raise ValueError(f"{self.theorem}: met and vacuous must be boolean")


@dataclass(frozen=True)
class Frequency:
    """The frequency of an event, (h,), with a confidence interval of its probability."""

    value: Tensor
    lower: Tensor
    upper: Tensor


def frequency(
    happened: Tensor, certain: Tensor | None = None, possible: Tensor | None = None, *, confidence: float = CONFIDENCE
) -> Frequency:
    """The frequency of an event (trials, h) bool, with the interval of Clopper and Pearson.

    Args:
        happened: whether the event happened, (trials, h) bool.
        certain, possible: for trials that are known only within bounds: whether the event certainly happened, and
            whether it possibly happened. The ends of the interval count these. None is ``happened``.

    >>> measured = frequency(torch.tensor([[True], [True], [False], [True]]))
    >>> float(measured.value), round(float(measured.lower), 3), round(float(measured.upper), 3)
    (0.75, 0.194, 0.994)
    """
    certain, possible = (happened if event is None else event for event in (certain, possible))
    trials = len(happened)
    low, high = ([int(count) for count in event.sum(0)] for event in (certain & happened, possible | happened))
    ends = [
        [clopper_pearson(count, trials, confidence)[end] for count in counts] for end, counts in ((0, low), (1, high))
    ]
    lower, upper = (torch.tensor(end, dtype=torch.float64) for end in ends)
    return Frequency(happened.double().mean(0).cpu(), lower, upper)


def quantile_interval(values: Sequence[float], q: float, level: float = CONFIDENCE) -> tuple[float, float]:
    """An interval that contains the q-quantile of the distribution of the values with probability at least ``level``.

    Its ends are order statistics. The probability that j or more of n values are at or below the quantile is that of j
    or more successes in n trials of probability q. With too few values an end is infinite.

    >>> quantile_interval(range(1, 21), 0.5)
    (6, 15)
    """
    from scipy.special import bdtrc

    ordered, n, alpha = sorted(values), len(values), (1 - level) / 2
    tails = {j: bdtrc(j - 1, n, q) for j in range(1, n + 1)}  # P(j or more successes); 1 - bdtr would lose small ones
    low = max((j for j, tail in tails.items() if tail >= 1 - alpha), default=0)
    high = min((j for j, tail in tails.items() if tail <= alpha), default=0)
    return ordered[low - 1] if low else -inf, ordered[high - 1] if high else inf


@dataclass(frozen=True)
class Setting:
    """The parameters of checks on one layer, and the functions that they may call.

    Args:
        budgets: the values of d. epsilons: relative errors. delta: the allowed probability of failure.
        seeds: the seeds of the repetitions that measure a probability.
        streams: ``streams(label, seed)`` returns the random streams of a check on this layer and window.
        run: ``run(method, d, seed)`` returns a method's approximation on this layer. A fourth argument, a row of Q,
            selects one head. The method is written as on the command line, such as ``"nystromformer:inverse=pinv"``.
            Raises `Unsupported` if the method cannot take the setting.
        methods: the methods for a statement about any method (`Theorem.per_method`); empty for other theorems. The
            caller passes one method at a time, so that an unsupported method does not affect the others.
        quadrature: whether traces are estimated by quadrature; None is true above n = 4096.
        target: the exact matrix that ``run`` approximates, as in `attnprobe.exact`.
    """

    budgets: tuple[int, ...]
    epsilons: tuple[float, ...]
    delta: float
    seeds: range
    streams: Callable[[str, int], Streams]
    run: Callable[..., Approximation]
    methods: tuple[str, ...]
    quadrature: bool | None = None
    target: str = "softmax"

    def runs(self, method: str) -> Iterator[tuple[int, Approximation]]:
        """Yields ``(d, approximation)`` for every budget that ``method`` can take, with the first seed.

        Raises:
            Unsupported: the method can take none of the budgets. The message is that of the last.
        """
        unsupported, any_run = None, False
        for d in self.budgets:
            try:
                approx = self.run(method, d, self.seeds[0])
            except Unsupported as error:
                unsupported = error
            else:
                any_run = True
                yield d, approx
        if unsupported is not None and not any_run:
            raise unsupported


Check = Callable[[QKV, Setting], Iterable[Finding]]


@dataclass(frozen=True)
class Theorem:
    """One theorem.

    Attributes:
        name: its name on the command line. paper: author, year and place in the paper.
        says: the statement in one line. cost: the leading term of the check's multiply-adds.
        check: ``check(qkv, setting)`` yields findings, each for all heads of a layer.
        per_method: whether the statement is about any method, and so checked for each method separately.
        decompositions: the approximate number of decompositions of an n x n matrix for each head and draw.
        per_seed, per_budget: whether it draws for each seed, and for each budget.
        causal: whether it holds for rows over any keys, and so for causal and windowed attention too.
    """

    name: str
    paper: str
    says: str
    cost: str
    check: Check
    per_method: bool = False
    decompositions: int = 1
    per_seed: bool = False
    per_budget: bool = False
    causal: bool = False

    def draws(self, budgets: int, seeds: int) -> int:
        """The number of draws of the check for these numbers of budgets and seeds."""
        return (seeds if self.per_seed else 1) * (budgets if self.per_budget else 1)


THEOREMS: dict[str, Theorem] = {}


def theorem(name: str, *, paper: str, says: str, cost: str, **facts: Any) -> Callable[[Check], Check]:
    """A decorator that registers a function as the check of a theorem; ``facts`` are other attributes of `Theorem`.

    Raises:
        ValueError: the name is registered already.
    """

    def registered(check: Check) -> Check:
        if name in THEOREMS:
            raise ValueError(f"theorem {name} is registered twice")
        THEOREMS[name] = Theorem(name, paper, says, cost, check, **facts)
        return check

    return registered


@checked()
def get_theorem(name: str) -> Theorem:
    """The theorem with a name.

    Raises:
        UsageError: an unknown name. The message has the most similar one.
    """
    if name not in THEOREMS:
        raise unknown("theorem", name, THEOREMS)
    return THEOREMS[name]
