"""The theorems that are checked: each by one function, under a name that says the paper and the statement."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..approximation import Approximation
from ..errors import unknown
from ..qkv import QKV
from ..rng import Streams
from .finding import Finding

__all__ = ["THEOREMS", "Setting", "Theorem", "get_theorem", "theorem"]


@dataclass(frozen=True)
class Setting:
    """What the theorems of one layer are evaluated at, and what they may call.

    Args:
        budgets: the d. epsilons: relative errors. delta: the probability with which a statement may fail.
        seeds: of the repetitions by which a probability is measured.
        streams: ``streams(label, seed)`` are the draws of a check of its own, on this layer and window.
        run: ``run(method, d, seed)`` is a registered method's approximation on this layer, and with a fourth argument
            on one head of it, a row of Q; a method as the user wrote it, such as ``"nystromformer:inverse=pinv"``.
            Raises `Unsupported` where it cannot take the setting.
        methods: what a statement about any method is asked of (`Theorem.per_method`): one of them at a time, so that
            one which cannot take the setting does not harm the others; empty for every other theorem.
        quadrature: whether traces are estimated by quadrature; None is beyond n = 4096.
        target: the exact matrix that ``run`` stands for, as in `attnprobe.exact`.
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


Check = Callable[[QKV, Setting], Iterable[Finding]]


@dataclass(frozen=True)
class Theorem:
    """One theorem: ``name``, ``paper`` (author, year and where it stands there), ``says`` in one line, ``check``.

    ``cost`` is its leading term. ``check(qkv, setting)`` yields findings for the heads of one layer, all of them.
    ``per_method``: whether it is about any method, and so asked of each by itself.
    """

    name: str
    paper: str
    says: str
    cost: str
    check: Check
    per_method: bool = False


THEOREMS: dict[str, Theorem] = {}


def theorem(name: str, *, paper: str, says: str, cost: str, per_method: bool = False) -> Callable[[Check], Check]:
    """Register the decorated function as the check of a theorem."""

    def registered(check: Check) -> Check:
        if name in THEOREMS:
            raise ValueError(f"theorem {name} is registered twice")
        THEOREMS[name] = Theorem(name, paper, says, cost, check, per_method)
        return check

    return registered


def get_theorem(name: str) -> Theorem:
    """The theorem of that name.

    Raises:
        UsageError: there is none, with the nearest name.
    """
    if name not in THEOREMS:
        raise unknown("theorem", name, THEOREMS)
    return THEOREMS[name]
