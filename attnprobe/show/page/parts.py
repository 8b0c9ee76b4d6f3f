"""The tables and figures of a run, made from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from ...errors import unknown
from ...frame.papers import Reference, beside_papers, overlay_of
from ...frame.rows import CELL, HEAD
from ...grammar.arguments import checked
from ...judge.best import Best
from ...measure import experiment
from ..shown import Catalogue, Shown
from .run import Run


@checked()
def views(
    run: Run, metric: str | None = None, references: Sequence[Reference] = (), style: str = "paper"
) -> list[Shown]:
    """What is shown of a run, for each command with rows in its folder.

    Args:
        metric: what figures of errors show in place of the main metric. references: values of papers, shown next to
            those of ``error``. style: of figures, as ``--style`` takes it.
    """
    return [_view(run, command, metric, references, style) for command in run.records]


def _view(run: Run, command: str, metric: str | None, references: Sequence[Reference], style: str) -> Shown:
    of_command, cells = experiment(command), run.records[command]
    frame = cache(partial(run.frame, command=command))
    catalogue, header = Catalogue.of(command), run.header(cells)
    if catalogue.conditions is not None:
        header = replace(header, remarks=[*header.remarks, *catalogue.conditions(frame(CELL))])
    shown = Shown(command, catalogue, frame, header, str(run.path), style=style, metric=metric)
    lost = [f"no map of {cell['method']}: {run.missing[cell['key']]}" for cell in cells if cell["key"] in run.missing]
    return replace(
        shown,
        inputs=replace(shown, command="inputs", catalogue=Catalogue.of("inputs")) if len(frame("inputs")) else None,
        files=of_command.files_of(cells) if of_command.files_of is not None else {},
        best=Best(cells, of_command.whole) if of_command.compared and not of_command.timed else None,
        remarks={"map": "; ".join(dict.fromkeys(lost))},
        **_papers(shown, references),
    )


def _papers(shown: Shown, references: Sequence[Reference]) -> dict[str, Any]:
    """The values of papers, for figures and as a table of their own."""
    if not references:
        return {}
    frame = shown.frame(HEAD)
    overlay = overlay_of(references, frame)
    beside = beside_papers(frame, overlay)
    companion = Shown("papers", Catalogue.of("papers"), lambda kind: beside, shown.header, shown.run)
    return {"overlay": overlay, "companions": [companion] if len(beside) else []}


def plot_panel(run: Run, kind: str, ax: Any, panel: int | str, legend: bool) -> Any:
    """See `Run.plot`."""
    shown = views(run)
    found = next((view for view in shown if kind in view.figures), None)
    if found is None:
        raise unknown("plot", kind, [name for view in shown for name in view.figures])
    return found.plot(kind, ax, panel, legend)
