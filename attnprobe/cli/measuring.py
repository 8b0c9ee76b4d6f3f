"""How a command that measures runs: into its folder, and then what `attnprobe report` would show of that folder."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .gating import gates_of, settled
from .output import draw, ended, keep_files, show, whatever_fits
from .progress import progress_bar
from .streams import echo, note

if TYPE_CHECKING:
    from ..experiments.base import Experiment
    from ..timings import Timings

__all__ = ["measure_and_show"]


def measure_and_show(
    experiment: Experiment,
    request: Any,
    format_: str,
    *,
    kinds: Collection[str] = (),
    gates: Sequence[str] = (),
    junit: str | None = None,
    shown_timings: Timings | None = None,
    begin: float = 0.0,
    **hooks: Any,
) -> None:
    """Measure a request, print what its folder shows, leave tables and figures there, and judge the gates.

    Args:
        kinds: of figures that are asked for. gates, junit: ``--fail-above`` and ``--junit``.
        shown_timings: seconds by stage, which are printed. begin: when the command began. hooks: of the experiment's
            ``measure``.

    Raises:
        Exit: with the code that the run ends with.
    """
    judged = gates_of(experiment.name, gates, junit) if experiment.gated is not None else []
    with progress_bar() as (progress, notify):
        session = experiment.measure(request, notify=notify, progress=progress, **hooks)
    from ..report import open_run, views

    records = session.outcome.records
    if not records:
        note(f"no cell falls to this part of the run; {session.path} is as it was")
        raise ended(records, ())
    [view] = views(open_run(session.path, measured=records))
    with whatever_fits(session.path) as lost:
        show(view, session.path, format_)
        keep_files(view, session.path)
        draw(view, session.path, kinds)
    if shown_timings is not None:
        from ..tables.terminal import timings_table

        echo(timings_table(shown_timings.seconds, perf_counter() - begin), err=True)
    failed = settled(view.judged, judged, junit)
    raise ended(records, lost, failed)
