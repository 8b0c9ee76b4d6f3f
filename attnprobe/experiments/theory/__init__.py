"""``attnprobe theory``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base import Experiment, Recorded

if TYPE_CHECKING:
    from ...gates.check import Gated
    from ...tables.view import View

__all__ = ["EXPERIMENT"]


def _request() -> type:
    from .measure import TheoryRequest

    return TheoryRequest


def _cells() -> type:
    from .measure import TheoryCells

    return TheoryCells


def _measure(request: Any, **hooks: Any) -> Any:
    from .measure import measure_theory

    return measure_theory(request, **hooks)


def _view(recorded: Recorded) -> View:
    from .view import view

    return view(recorded)


def _gated() -> Gated:
    from .view import GATED

    return GATED


EXPERIMENT = Experiment(
    name="theory",
    summary="What the papers' theorems assume, promise and reach, with a verdict head by head.",
    request=_request,
    cells=_cells,
    measure=_measure,
    view=_view,
    plots=("theory",),
    gated=_gated,
)
