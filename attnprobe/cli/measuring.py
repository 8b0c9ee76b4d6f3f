"""How a measuring command runs: it fills its folder, then shows what `attnprobe report` shows of that folder."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..timings import Timings
from .gating import judge_gates, judged
from .once import told_before
from .output import draw, drawn_kinds, exit_of, figure_files, keep_files, show, tolerate_write_errors
from .progress import progress_bar
from .streams import echo, note

if TYPE_CHECKING:
    from ..experiments.base import Experiment
    from ..gates.check import Gate


def measure_and_show(
    experiment: Experiment, request: Any, output: Any, kinds: Collection[str], gates: Sequence[Gate], begin: float
) -> None:
    """Measure a request, print its tables, write tables and figures to its folder, and judge its gates.

    Args:
        output: how the results are shown. kinds: the requested kinds of figures.
        gates: that the run's rows are held to. begin: when the command began, by `perf_counter`.

    Raises:
        Exit: with the code that the run ends with.
    """
    timings = Timings()
    # an older picture is drawn again
    keeps = {kind: kind in kinds or bool(figure_files(request.out, kind)) for kind in experiment.keeps}
    with progress_bar("loading torch") as (progress, notify):
        announced: list[str] = []

        def tell(line: str) -> None:
            announced.append(line)
            if not told_before(line):
                notify(line)

        session = experiment.measure(request, notify=tell, progress=progress, timings=timings, **keeps)
    from ..gates.results import gates_markdown
    from ..report import open_run, views

    records = session.outcome.records
    if not records:
        note(f"no cell falls to this part of the run; {session.path} is as it was")
        raise exit_of(records, ())
    [view] = views(open_run(session.path, measured=records), drawing=output.drawing)
    results = judged(view.judged, gates)
    with tolerate_write_errors(session.path) as lost:
        show(view, session.path, output, announced, gates_markdown(results))
        keep_files(view, session.path)
        draw(view, session.path, [*kinds, *drawn_kinds(view, session.path)])  # older pictures show an earlier run
    if getattr(output, "show_timings", False):
        from ..tables.terminal import timings_table

        echo(timings_table(timings.seconds, perf_counter() - begin), err=True)
    failed = judge_gates(results, gates, getattr(output, "junit", None))
    raise exit_of(records, lost, failed)
