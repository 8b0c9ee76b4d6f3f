"""Cells, and the loop that measures them: one record per cell, computed in groups that share what is shared."""

from ..lists import parse_numbers
from .bench import BenchRequest, measure_bench
from .budget import BudgetRequest, measure_budgets
from .condition import ConditionRequest, measure_conditions
from .inject import InjectRequest, measure_drift
from .listing import Listed, listed, seconds_of
from .maps import keep_maps
from .plan import ErrorPlan, MethodRequest, parse_methods
from .request import RunRequest, parse_layers
from .run import Outcome
from .running import Session
from .searching import BudgetSearch, budgets
from .session import ErrorRequest, measure_errors
from .spectrum import SpectrumRequest, measure_spectra
from .stability import measure_stability
from .stability_plan import StabilityRequest, parse_tasks
from .theorems import findings
from .theory import TheoryRequest, measure_theory
from .trajectory import Trajectory, instability

__all__ = [
    "BenchRequest",
    "BudgetRequest",
    "BudgetSearch",
    "ConditionRequest",
    "ErrorPlan",
    "ErrorRequest",
    "InjectRequest",
    "Listed",
    "MethodRequest",
    "Outcome",
    "RunRequest",
    "Session",
    "SpectrumRequest",
    "StabilityRequest",
    "TheoryRequest",
    "Trajectory",
    "budgets",
    "findings",
    "instability",
    "keep_maps",
    "listed",
    "measure_bench",
    "measure_budgets",
    "measure_conditions",
    "measure_drift",
    "measure_errors",
    "measure_spectra",
    "measure_stability",
    "measure_theory",
    "parse_layers",
    "parse_methods",
    "parse_numbers",
    "parse_tasks",
    "seconds_of",
]
