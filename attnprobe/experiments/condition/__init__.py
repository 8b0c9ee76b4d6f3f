"""``attnprobe condition``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base import Experiment, Recorded

if TYPE_CHECKING:
    from ...tables.view import View

__all__ = ["EXPERIMENT"]


def _request() -> type:
    from .measure import ConditionRequest

    return ConditionRequest


def _cells() -> type:
    from .measure import ConditionCells

    return ConditionCells


def _measure(request: Any, **hooks: Any) -> Any:
    from .measure import measure_conditions

    return measure_conditions(request, **hooks)


def _view(recorded: Recorded) -> View:
    from .view import view

    return view(recorded)


EXPERIMENT = Experiment(
    name="condition",
    summary="Condition numbers of attention matrices and of the cores that methods invert.",
    request=_request,
    cells=_cells,
    measure=_measure,
    view=_view,
    plots=("condition",),
)
