"""``attnprobe spectrum``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base import Experiment, Recorded

if TYPE_CHECKING:
    from ...tables.view import View

__all__ = ["EXPERIMENT"]


def _request() -> type:
    from .measure import SpectrumRequest

    return SpectrumRequest


def _cells() -> type:
    from .measure import SpectrumCells

    return SpectrumCells


def _measure(request: Any, **hooks: Any) -> Any:
    from .measure import measure_spectra

    return measure_spectra(request, **hooks)


def _view(recorded: Recorded) -> View:
    from .view import view

    return view(recorded)


EXPERIMENT = Experiment(
    name="spectrum",
    summary="Compute singular values and effective ranks of attention matrices.",
    request=_request,
    cells=_cells,
    measure=_measure,
    view=_view,
    plots=("spectrum",),
)
