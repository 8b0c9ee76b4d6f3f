"""``attnprobe error``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base import Experiment, Recorded

if TYPE_CHECKING:
    from ...gates.check import Gated
    from ...tables.view import View

__all__ = ["EXPERIMENT"]


def _request() -> type:
    from ...run.prepare import ErrorRequest

    return ErrorRequest


def _cells() -> type:
    from .measure import ErrorCells

    return ErrorCells


def _measure(request: Any, **hooks: Any) -> Any:
    from .measure import measure_errors

    return measure_errors(request, **hooks)


def _view(recorded: Recorded) -> View:
    from .view import view

    return view(recorded)


def _gated() -> Gated:
    from .gates import GATED

    return GATED


EXPERIMENT = Experiment(
    name="error",
    summary="Measure how far a method's output lies from exact attention.",
    request=_request,
    cells=_cells,
    measure=_measure,
    view=_view,
    plots=("errors", "maps"),
    more_plots=("papers", "heads", "cost"),
    gated=_gated,
)
