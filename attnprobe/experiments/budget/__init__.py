"""``attnprobe budget``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base import Experiment, Recorded

if TYPE_CHECKING:
    from ...gates.check import Gated
    from ...tables.view import View

__all__ = ["EXPERIMENT"]


def _request() -> type:
    from .measure import BudgetRequest

    return BudgetRequest


def _cells() -> type:
    from .measure import BudgetCells

    return BudgetCells


def _measure(request: Any, **hooks: Any) -> Any:
    from .measure import measure_budgets

    return measure_budgets(request, **hooks)


def _view(recorded: Recorded) -> View:
    from .view import view

    return view(recorded)


def _gated() -> Gated:
    from .view import GATED

    return GATED


EXPERIMENT = Experiment(
    name="budget",
    summary="Find the smallest budget of each head at which a method's error is at most ε.",
    request=_request,
    cells=_cells,
    measure=_measure,
    view=_view,
    plots=("budget",),
    gated=_gated,
)
