"""``attnprobe inject``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base import Experiment, Recorded

if TYPE_CHECKING:
    from ...gates.check import Gated
    from ...tables.view import View

__all__ = ["EXPERIMENT"]


def _request() -> type:
    from .measure import InjectRequest

    return InjectRequest


def _cells() -> type:
    from .measure import InjectCells

    return InjectCells


def _measure(request: Any, **hooks: Any) -> Any:
    from .measure import measure_drift

    return measure_drift(request, **hooks)


def _view(recorded: Recorded) -> View:
    from .view import view

    return view(recorded)


def _gated() -> Gated:
    from .view import GATED

    return GATED


EXPERIMENT = Experiment(
    name="inject",
    summary="Put a method in place of a model's attention, and measure what the model loses.",
    request=_request,
    cells=_cells,
    measure=_measure,
    view=_view,
    plots=("inject",),
    gated=_gated,
)
