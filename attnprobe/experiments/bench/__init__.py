"""``attnprobe bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base import Experiment, Recorded

if TYPE_CHECKING:
    from ...gates.check import Gated
    from ...tables.view import View

__all__ = ["EXPERIMENT"]


def _request() -> type:
    from .measure import BenchRequest

    return BenchRequest


def _cells() -> type:
    from .measure import BenchCells

    return BenchCells


def _measure(request: Any, **hooks: Any) -> Any:
    from .measure import measure_bench

    return measure_bench(request, **hooks)


def _view(recorded: Recorded) -> View:
    from .view import view

    return view(recorded)


def _gated() -> Gated:
    from .gates import GATED

    return GATED


EXPERIMENT = Experiment(
    name="bench",
    summary="Measure what each method costs beside exact attention, and how the cost grows.",
    request=_request,
    cells=_cells,
    measure=_measure,
    view=_view,
    plots=("bench",),
    gated=_gated,
)
