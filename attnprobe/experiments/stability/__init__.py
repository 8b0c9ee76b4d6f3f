"""``attnprobe stability``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base import Experiment, Recorded

if TYPE_CHECKING:
    from ...gates.check import Gated
    from ...tables.view import View

__all__ = ["EXPERIMENT"]


def _request() -> type:
    from .plan import StabilityRequest

    return StabilityRequest


def _cells() -> type:
    from .measure import StabilityCells

    return StabilityCells


def _measure(request: Any, **hooks: Any) -> Any:
    from .measure import measure_stability

    return measure_stability(request, **hooks)


def _view(recorded: Recorded) -> View:
    from .view import view

    return view(recorded)


def _gated() -> Gated:
    from .view import GATED

    return GATED


EXPERIMENT = Experiment(
    name="stability",
    summary="Train with each method as the attention, and measure how far each step moves the embedding.",
    request=_request,
    cells=_cells,
    measure=_measure,
    view=_view,
    plots=("stability",),
    gated=_gated,
)
