"""Rounding: what the arithmetic of a format adds to an approximation's own error.

`measured.rounding_errors` measures it, by an emulation of the method's operations (`emulation`); `estimate.estimate`
predicts it by one backward pass, with the share of each step (`site`); `plan.plan` finds the steps that must stay in
float32. `arithmetic.Arithmetic` runs a method in a model so. `formats` rounds tensors, `choices` has what is held where
rounding flips a choice.
"""

from __future__ import annotations

from ..grammar.arithmetic import ARITHMETICS, FORMATS, Format
from .arithmetic import Arithmetic
from .choices import Choices
from .computation import Computation
from .emulation import Emulation, emulated
from .estimate import Estimate, estimate
from .following import Report
from .formats import arithmetic_named, format_named, rounded
from .measured import RoundingErrors, computation_of, measured, rounding_errors
from .plan import Plan, plan
from .site import INPUTS, Site

__all__ = [
    "ARITHMETICS",
    "FORMATS",
    "INPUTS",
    "Arithmetic",
    "Choices",
    "Computation",
    "Emulation",
    "Estimate",
    "Format",
    "Plan",
    "Report",
    "RoundingErrors",
    "Site",
    "arithmetic_named",
    "computation_of",
    "emulated",
    "estimate",
    "format_named",
    "measured",
    "plan",
    "rounded",
    "rounding_errors",
]
