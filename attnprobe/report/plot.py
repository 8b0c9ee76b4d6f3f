"""One panel of a run's figure on an axis of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UsageError, unknown
from ..figures.drawing import Drawing
from .parts import views

if TYPE_CHECKING:
    from .run import Run


def plot_panel(run: Run, kind: str, ax: Any, panel: int | str, legend: bool) -> Any:
    """See `Run.plot`."""
    from pathlib import Path

    collected: list[Any] = []
    shown = views(run, drawing=Drawing(collected=collected))
    figures = {name: figure for view in shown for name, figure in view.figures.items()}
    if kind not in figures:
        raise unknown("plot", kind, figures)
    figures[kind].draw(Path())
    panels = [(figure, title, rows) for figure in collected for title, rows in figure.panels]
    if not panels:
        raise UsageError(f"{kind}: {figures[kind].nothing}")
    numbered = [number for number, (_, title, _) in enumerate(panels) if panel in (number, title)]
    found = numbered or [number for number, (_, title, _) in enumerate(panels) if str(panel) in title]
    if not found:
        names = "; ".join(f"{number} {title}" for number, (_, title, _) in enumerate(panels))
        raise UsageError(f"{kind} has no panel {panel!r}; it has {names}")
    figure, title, rows = panels[found[0]]
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.subplots(layout="constrained")[1]
    figure.on(ax, title, rows, legend)
    return ax
