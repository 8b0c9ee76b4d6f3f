"""The registry of theorems: a name, the paper, the statement, and the function that checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..approximation import Approximation
from ..arguments import checked
from ..errors import Unsupported, unknown
from ..qkv import QKV
from ..rng import Streams
from .finding import Finding


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
