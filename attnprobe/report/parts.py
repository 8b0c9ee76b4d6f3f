"""The views of a run, made from its records alone, and one panel of its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from ..arguments import checked
from ..compare.best import Best
from ..compare.contest import Contest
from ..errors import UsageError, unknown
from ..experiments import experiment
from ..experiments.base import Recorded
from ..figures.drawing import Drawing
from ..frame.papers import Reference, beside_papers, overlay_of
from ..frame.rows import CELL, HEAD, RowTypes
from ..show.shown import Catalogue, Shown
from ..tables.console import Header
from ..tables.view import View
from .run import Run


@checked()
def views(
    run: Run, metric: str | None = None, references: Sequence[Any] = (), drawing: Drawing | None = None
) -> list[View | Shown]:
    """The views of a run, one for each command with records.

    Args:
        metric: a further metric of figures of errors. references: values of papers, shown next to those of ``error``.
        drawing: the look of figures.
    """
    made: list[View | Shown] = []
    for command, records in run.records.items():
        config = run.manifest.get("config") or {}
        header = run.header(records)
        look = replace(drawing or Drawing(), facts=_facts(run, command, header))
        one = experiment(command)
        if isinstance(one.shape, RowTypes):
            shown = _shown(run, command, header, drawing)
            made.append(replace(shown, metric=metric, **_papers(shown, references)))
            continue
        tested = Contest(records, command) if one.compared and not one.timed else None
        recorded = Recorded(records, header, run.path, config, run.missing, metric, references, tested, look)
        made.append(one.view(recorded).of_run(run.path))
    return made


def _shown(run: Run, command: str, header: Header, drawing: Drawing | None) -> Shown:
    """The tables and figures of a command whose cells are rows."""
    one, records = experiment(command), run.records[command]
    style = drawing.style if drawing is not None else "paper"
    frame = cache(partial(run.frame, command=command))
    catalogue = Catalogue.of(command)
    if catalogue.conditions is not None:
        header = replace(header, remarks=[*header.remarks, *catalogue.conditions(frame(CELL))])
    files = one.part("files:files_of")(records) if one.writes else {}
    of_inputs = Catalogue.of("inputs")
    inputs = Shown("inputs", of_inputs, frame, replace(header, measured=()), str(run.path)) if header.inputs else None
    best = Best(Contest(records, command)) if one.compared and not one.timed else None
    lost = [
        f"no map of {record['method']}: {run.missing[record['key']]}"
        for record in records
        if record["key"] in run.missing
    ]
    remarks = {"map": "; ".join(dict.fromkeys(lost))}
    shown = Shown(command, catalogue, frame, header, str(run.path), style=style, inputs=inputs, files=files)
    return replace(shown, best=best, remarks=remarks)


def _papers(shown: Shown, references: Sequence[Reference]) -> dict[str, Any]:
    """The values of papers, for figures and as a table of their own."""
    if not references:
        return {}
    frame = shown.frame(HEAD)
    overlay = overlay_of(references, frame)
    catalogue = Catalogue.of("papers")
    beside = beside_papers(frame, overlay)
    companion = Shown("papers", catalogue, lambda kind: beside, shown.header, shown.run)
    return {"overlay": overlay, "companions": [companion] if len(beside) else []}


def _facts(run: Run, command: str, header: Header) -> list[str]:
    """The facts of a run in captions of figures: sources, fallbacks, device and precision."""
    config, versions = run.manifest.get("config"), run.manifest.get("versions")
    version = versions.get("attnprobe") if isinstance(versions, dict) else None
    facts = [*header.facts, *header.warnings]
    facts += [f"attnprobe {version}"] if version else []
    return facts + ([experiment(command).command_line(config)] if config else [])


def plot_panel(run: Run, kind: str, ax: Any, panel: int | str, legend: bool) -> Any:
    """See `Run.plot`."""
    collected: list[Any] = []
    shown = views(run, drawing=Drawing(collected=collected))
    figures = {name: figure for view in shown for name, figure in view.figures.items()}
    if kind not in figures:
        raise unknown("plot", kind, figures)
    for view in shown:
        if isinstance(view, Shown) and kind in view.figures:
            if ax is None:
                from matplotlib import pyplot

                ax = pyplot.subplots(layout="constrained")[1]
            view.plot(kind, ax, panel)
            if not legend and (drawn := ax.get_legend()) is not None:
                drawn.remove()
            return ax
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
