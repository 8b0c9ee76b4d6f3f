"""What a theorem assumes, what it promises and what was measured, head by head, with a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["VERDICTS", "Finding"]

VERDICTS = HOLDS, VIOLATED, VACUOUS, NOT_MET = "holds", "violated", "vacuous", "assumption not met"


@dataclass(frozen=True)
class Finding:
    """One statement of a theorem, evaluated on the heads of one layer.

    Args:
        theorem: the name under which `THEOREMS` has it.
        d: the budget at which it is evaluated; None for a statement without one.
        at: the statement's other parameters, such as ``{"epsilon": 0.5, "delta": 0.1}``; with ``d`` they tell two
            findings of one theorem apart.
        assumption, promise: in a few words with a formula, as the table shows them.
        met: (h,) bool, whether the assumption holds.
        bound: (h,) float64, what is promised of ``measured``; infinite where nothing is.
        measured: (h,) float64, infinite where it is beyond every bound, NaN where nothing was measured.
        lower, upper: an interval of it, where it is an estimate; None where it is exact to rounding, which
            ``rounding`` then bounds (absolute, (h,) or a number).
        sense: ``"at most"`` or ``"at least"``: how ``measured`` is promised to stand to ``bound``.
        vacuous: (h,) bool, whether the bound promises no more than what is true of every matrix.
        details: other numbers worth keeping, (h,) or (h, …).
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
    rounding: Tensor | float = 0.0
    details: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def slack(self) -> Tensor:
        """How much room the bound leaves: bound / measured for "at most", measured / bound for "at least", (h,)."""
        pair = (self.bound, self.measured) if self.sense == "at most" else (self.measured, self.bound)
        return pair[0] / pair[1]

    @property
    def contradicted(self) -> Tensor:
        """Whether all of the measured interval, rounding included, lies beyond the bound, (h,) bool."""
        return self._nearest > self.bound if self.sense == "at most" else self._nearest < self.bound

    @property
    def lost(self) -> Tensor:
        """Whether there is nothing to compare: NaN for what was measured, its interval or its bound, (h,) bool."""
        return self._nearest.isnan() | self.measured.isnan() | self.bound.isnan()

    def verdicts(self) -> list[str | None]:
        """One of `VERDICTS` for each head, the first of these that applies:

        1. ``assumption not met``: a theorem whose assumption fails promises nothing, so there is no promise that could
           be vacuous or violated, however its bound turns out (``vacuous`` still says that it would be);
        2. ``vacuous``: the promise is made, but it is one that every matrix keeps, so that measuring decides nothing;
        3. None: what was measured, or its bound, is NaN, a failure and no verdict;
        4. ``violated``: all of the measured interval, rounding included, lies beyond the bound;
        5. ``holds``.
        """
        flags = zip(*(x.tolist() for x in (self.met, self.vacuous, self.lost, self.contradicted)), strict=True)
        return [
            NOT_MET if not met else VACUOUS if vacuous else None if lost else VIOLATED if wrong else HOLDS
            for met, vacuous, lost, wrong in flags
        ]

    @property
    def _nearest(self) -> Tensor:
        """The end of the measured interval that is nearest to what is promised, with its rounding."""
        if self.sense == "at most":
            return (self.measured if self.lower is None else self.lower) - self.rounding
        return (self.measured if self.upper is None else self.upper) + self.rounding

    def __post_init__(self) -> None:
        shapes = {name: tuple(getattr(self, name).shape) for name in ("met", "bound", "measured", "vacuous")}
        if len(set(shapes.values())) != 1 or self.sense not in ("at most", "at least"):
            raise ValueError(f"{self.theorem}: one number per head is needed, got {shapes} and sense={self.sense!r}")
        if self.met.dtype is not torch.bool or self.vacuous.dtype is not torch.bool:
            raise ValueError(f"{self.theorem}: met and vacuous are boolean")
