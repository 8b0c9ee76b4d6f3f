"""The measuring commands, each built from its experiment: options from its fields, help from its docstring.

A command fills its folder, then shows what `attnprobe report` shows of that folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from inspect import cleandoc
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..errors import UsageError
from ..files import qkv_file, text_file
from ..grammar.lists import check_device, is_file_of_text
from ..machine.timings import Timings
from ..measure.base import Experiment
from ..run.option import GROUPS, OUTPUT, Option, options_of
from ..run.topics.reading import Reading, Tensors
from ..run.topics.running import RunRequest
from ..run.topics.showing import ALL
from .options import check_shown, click_settings, kinds_from, request_and_output, write_sections
from .output import (
    begin_cases,
    columns_of,
    draw,
    exit_of,
    figure_files,
    gates_of,
    judge_gates,
    judged,
    keep_files,
    show,
    tolerate_write_errors,
)
from .progress import progress_bar
from .streams import answer, echo, note

if TYPE_CHECKING:
    from ..judge.gates import Gate

NAMES = "names"  # the parameter of methods that are named without --method
# ends a line about the model hub that is said once: the first line of every table names what was read instead
ONCE = "is out of reach"


def measuring_command(experiment: Experiment) -> click.Command:
    """The command of an experiment. Its help has the first paragraph of the request's docstring, and its lists."""
    names = click.Argument([NAMES], nargs=-1, metavar="[METHOD]...")
    options = [click.Option([option.flag, option.name], **click_settings(option)) for option in options_in(experiment)]
    # the first paragraph is the help; the others are for readers of the docs
    first, *rest = cleandoc(experiment.request.__doc__ or "").split("\n\n")
    lists = [paragraph for paragraph in rest if paragraph.startswith("\b")]  # which click does not wrap
    return MeasuringCommand(
        experiment.name,
        params=[names, *options],
        callback=partial(_run, experiment),
        help="\n\n".join([first, *lists]),
        experiment=experiment,
    )


def options_in(experiment: Experiment) -> tuple[Option, ...]:
    """The options of an experiment's command: first those of the request, then those of the output."""
    return (*options_of(experiment.request), *options_of(experiment.output))


class MeasuringCommand(click.Command):
    """A command whose help groups its options."""

    def __init__(self, *args: Any, experiment: Experiment, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.experiment = experiment

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments. Methods without ``--method`` stand before those with it."""
        rest = super().parse_args(ctx, args)
        if names := ctx.params.pop(NAMES):
            field = next(option.name for option in options_in(self.experiment) if option.of_methods)
            # values of the environment or of a file give way, as they do to --method
            is_given = ctx.get_parameter_source(field) == ParameterSource.COMMANDLINE
            ctx.params[field] = (*names, *ctx.params[field]) if is_given else names
            ctx.set_parameter_source(field, ParameterSource.COMMANDLINE)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str | None, str] = {option.name: option.group for option in options_in(self.experiment)}
        params = self.get_params(ctx)
        sections = [(group, [param for param in params if groups.get(param.name, OUTPUT) == group]) for group in GROUPS]
        write_sections(formatter, ctx, sections)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        with formatter.section("Examples"):
            for line in self.experiment.examples:  # not wrapped, so that they can be copied
                formatter.write(f"{'':{formatter.current_indent}}attnprobe {self.experiment.name} {line}\n")


def refuse_absent(request: RunRequest) -> None:
    """Refuse a text, a file of tensors or a device that is not there, before torch is imported."""
    if isinstance(request, Tensors) and request.qkv is not None:
        qkv_file(request.qkv)
    if isinstance(request, Reading) and request.text is not None and is_file_of_text(request.text):
        text_file(request.text)
    check_device(request.device)


def _run(experiment: Experiment, **_: Any) -> None:
    """Run the command: what can be refused is refused first, then torch is imported, then cells are measured."""
    begin = perf_counter()
    request, output = request_and_output(experiment)
    refuse_absent(request)
    if not experiment.timed:
        # threads that wait for one another sleep and do not spin; torch reads this when it is imported
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    kinds = kinds_from(output.plots, experiment.plots)
    check_shown(output, lambda: [experiment.catalogue])
    if experiment.list_all is not None and output.listing:
        answer(experiment.list_all(output.format_), styled=output.format_ == "table")
        return
    # a command without gates has no such options
    above, below = getattr(output, "gates", ()), getattr(output, "floors", ())
    gates = gates_of(request, experiment.name, above, below, getattr(output, "junit", None))
    if output.dry_run:
        from .dry_run import show_plan

        show_plan(experiment, request)
        return
    measure_and_show(experiment, request, output, kinds, gates, begin)


def measure_and_show(
    experiment: Experiment, request: Any, output: Any, kinds: Collection[str], gates: Sequence[Gate], begin: float
) -> None:
    """Measure a request, print its tables, write tables and figures to its folder, and judge its gates.

    Args:
        output: how the results are shown. kinds: the requested kinds of figures.
        gates: to judge the run's rows by. begin: when the command began, by `perf_counter`.

    Raises:
        Exit: with the exit code of the run.
    """
    timings = Timings()
    junit = getattr(output, "junit", None)
    begin_cases(gates, junit)
    # what a figure of an earlier run needs is kept too: the figure is drawn again below
    keeps = {kind: kind in kinds or ALL in kinds or bool(figure_files(request.out, kind)) for kind in experiment.keeps}
    with progress_bar("loading torch") as (progress, notify):
        announced: list[str] = []

        def tell(line: str) -> None:
            announced.append(line)
            if not told_before(line):
                notify(line)

        session = experiment.measure(request, notify=tell, progress=progress, timings=timings, **keeps)
    from ..judge.outcomes import gates_markdown
    from ..show.page import open_run, views

    records = session.outcome.records
    if not records:
        note(f"no cell falls to this part of the run; {session.path} is as it was")
        raise exit_of(records, ())
    [view] = views(open_run(session.path, measured=records), style=output.style)
    results = judged(view.gate_lines, gates) if gates else []
    with tolerate_write_errors(session.path) as lost:
        show(view, output, announced, gates_markdown(results))
        keep_files(view, session.path, columns_of(output))
        older = [kind for kind, figure in view.figures.items() if figure_files(session.path, figure.stem)]
        draw(view, session.path, [*kinds, *older])  # older figures would show an earlier run
    if getattr(output, "show_timings", False):
        from ..machine.timings import timings_table

        echo(timings_table(timings.seconds, perf_counter() - begin), err=True)
    failed = judge_gates(results, gates, junit)
    raise exit_of(records, lost, failed)


def told_before(line: str) -> bool:
    """Whether an earlier command on this machine said the same of the hub. The folder of the cache remembers it."""
    if not line.endswith(ONCE):
        return False
    from ..inputs.cache import default_cache

    with suppress(OSError, UsageError):
        cache = default_cache(lambda line: None, "told")
        if cache.largest == 0:  # the user wants no cache
            return False
        cache.folder.mkdir(parents=True, exist_ok=True)
        mark = cache.folder / hashlib.sha256(line.encode()).hexdigest()[:16]
        if mark.exists():
            return True
        mark.touch()
    return False
