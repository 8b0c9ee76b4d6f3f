"""Cells, and the loop that measures them: one record per cell, computed in groups that share what is shared."""

from ..experiments.bench.measure import BenchRequest, measure_bench
from ..experiments.budget.measure import BudgetRequest, measure_budgets
from ..experiments.budget.search import BudgetSearch, budgets
from ..experiments.condition.measure import ConditionRequest, measure_conditions
from ..experiments.error.maps import keep_maps
from ..experiments.error.measure import measure_errors
from ..experiments.inject.measure import InjectRequest, measure_drift
from ..experiments.spectrum.measure import SpectrumRequest, measure_spectra
from ..experiments.stability.measure import measure_stability
from ..experiments.stability.plan import StabilityRequest, parse_tasks
from ..experiments.stability.trajectory import Trajectory, instability
from ..experiments.theory.measure import TheoryRequest, measure_theory
from ..experiments.theory.setting import findings
from ..grammar.lists import parse_numbers
from ..run.estimate import Listed, listed, seconds_of
from ..run.ledger import Outcome
from ..run.loop import Session
from ..run.plan import ErrorPlan, MethodRequest, parse_methods
from ..run.prepare import ErrorRequest
from ..run.request import RunRequest, parse_layers

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
