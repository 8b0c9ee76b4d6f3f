"""A finding: a theorem's assumption, its promise, the measurement and the verdict, per head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

VERDICTS = HOLDS, VIOLATED, VACUOUS, NOT_MET = "holds", "violated", "vacuous", "assumption not met"


@dataclass(frozen=True)
class Finding:
    """One statement of a theorem, evaluated on the heads of one layer.

    Args:
        theorem: its name in `THEOREMS`.
        d: the budget; None for a statement without one.
        at: the other parameters of the statement, such as ``{"epsilon": 0.5, "delta": 0.1}``. With ``d`` they identify
            a finding of a theorem.
        assumption, promise: short texts with a formula, for the table.
        met: (h,) bool, whether the assumption holds.
        bound: (h,) float64, the promised bound of ``measured``; infinite if nothing is promised.
        measured: (h,) float64, infinite if it is beyond every bound, NaN if nothing was measured.
        lower, upper: the interval of an estimated ``measured``. They are None if it is exact up to rounding.
        rounding: a bound of the rounding of ``measured``, absolute, (h,) or a number.
        sense: ``"at most"`` or ``"at least"``, the promised relation of ``measured`` to ``bound``.
        vacuous: (h,) bool, whether the bound is true of every matrix, or of an approximation by zeros.
        details: further numbers for the record, (h,) or (h, …).
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
        """The slack of the bound: bound / measured for "at most", measured / bound for "at least", (h,)."""
        pair = (self.bound, self.measured) if self.sense == "at most" else (self.measured, self.bound)
        return pair[0] / pair[1]

    @property
    def contradicted(self) -> Tensor:
        """Whether the entire measured interval, rounding included, is beyond the bound, (h,) bool."""
        return self._nearest > self.bound if self.sense == "at most" else self._nearest < self.bound

    @property
    def lost(self) -> Tensor:
        """Whether nothing can be compared: the measurement, its interval or its bound is NaN, (h,) bool."""
        return self._nearest.isnan() | self.measured.isnan() | self.bound.isnan()

    def verdicts(self) -> list[str | None]:
        """One of `VERDICTS` for each head, the first of these that applies:

        1. ``assumption not met``: a theorem whose assumption fails promises nothing, so nothing can be vacuous or
           violated (the field ``vacuous`` is set independently);
        2. ``vacuous``: every matrix fulfils the promise, or one of zeros does, so a measurement decides nothing;
        3. None: the measurement or its bound is NaN, which is a failure and not a verdict;
        4. ``violated``: the entire measured interval, rounding included, is beyond the bound;
        5. ``holds``.
        """
        flags = zip(*(x.tolist() for x in (self.met, self.vacuous, self.lost, self.contradicted)), strict=True)
        return [
            NOT_MET if not met else VACUOUS if vacuous else None if lost else VIOLATED if wrong else HOLDS
            for met, vacuous, lost, wrong in flags
        ]

    @property
    def _nearest(self) -> Tensor:
        """The end of the measured interval that is nearest to the promise, with its rounding, (h,)."""
        if self.sense == "at most":
            return (self.measured if self.lower is None else self.lower) - self.rounding
        return (self.measured if self.upper is None else self.upper) + self.rounding

    def __post_init__(self) -> None:
        shapes = {name: tuple(getattr(self, name).shape) for name in ("met", "bound", "measured", "vacuous")}
        if len(set(shapes.values())) != 1 or self.sense not in ("at most", "at least"):
            raise ValueError(f"{self.theorem}: one number per head is needed, got {shapes} and sense={self.sense!r}")
        if self.met.dtype is not torch.bool or self.vacuous.dtype is not torch.bool:
            raise ValueError(f"{self.theorem}: met and vacuous must be boolean")
