"""Command-line options, built from the fields of requests, and their values."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..errors import unknown
from ..machine.environment import OWN, PREFIX
from ..measure.base import Experiment
from ..run.option import Option, built, options_of
from ..run.topics.showing import ALL, NO_FIGURE, Gates, Output

if TYPE_CHECKING:
    from ..show.shown import Catalogue

WIDTH = 110  # columns of help

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def click_settings(option: Option) -> dict[str, Any]:
    """The arguments of ``click.option``. If the option parses its own text, click passes the text on."""
    settings: dict[str, Any] = {
        "help": option.help,
        "metavar": option.metavar or {int: "N", float: "X"}.get(option.kind),
    }
    default = option.text(option.default)
    if option.kind is bool:
        settings |= {"is_flag": True}
    elif option.repeatable:
        settings |= {"multiple": True}
    elif option.parse is None:
        settings |= {"type": option.kind}
    if option.kinds:  # without a value, the option is its first kind
        settings |= {"is_flag": False, "flag_value": option.kinds[0], "metavar": "[KIND,…]"}
    if default is not None and default is not False and default != ():
        if default is True:
            settings["help"] = f"{option.help} [default: on]"
        settings |= {"default": default, "show_default": not option.repeatable and "[default: " not in settings["help"]}
    elif option.optional and option.kind is bool:
        settings["default"] = None  # else click makes it False
    return settings


def taking(options: Sequence[Option]) -> Decorator:
    """A decorator that gives a function these options in their order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):  # click lists decorators from the last to the first
            function = click.option(option.flag, option.name, **click_settings(option))(function)
        return function

    return decorate


shown = {option.name: option for option in options_of(Output)}
format_option, debug_option = taking([shown["format_"]]), taking([shown["debug"]])
style_option = taking([shown["style"]])
by_layer_option = taking([shown["by_layer"]])
shown_options = taking([shown[name] for name in ("format_", "columns", "debug")])
limits_options = taking([option for option in options_of(Gates) if option.name in ("gates", "floors")])


def request_and_output(experiment: Experiment) -> tuple[Any, Any]:
    """The running command's request and its output options."""
    from ..run.sweeps.contradictions import Given, refuse_pairs

    ctx = click.get_current_context()
    options = (*options_of(experiment.request), *options_of(experiment.output))
    given = Given(options, ctx.params, origins(), ctx.obj)

    def called(option: Option) -> str:
        elsewhere = given.origins.get(option.name) in ("file", "environment")
        return given.called(option.name) if elsewhere else option.long

    request = built(experiment.request, ctx.params, called, origin=origins())
    output = built(experiment.output, ctx.params, called)
    refuse_pairs(given)
    return request, output


class Compact(click.HelpFormatter):
    """Help whose lists follow one another without empty lines: an option is a line, or two."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.joined = False  # whether a section may follow without an empty line

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        if not self.joined:
            self.write_paragraph()
        self.write_heading(name)
        with self.indentation():
            yield

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        shorter = [(re.sub(r"--(\S+) / --no-\1$", r"--[no-]\1", term), " ".join(text.split())) for term, text in rows]
        super().write_dl(shorter, col_max, col_spacing)
        self.joined = True

    def write_paragraph(self) -> None:
        super().write_paragraph()
        self.joined = True

    def write_text(self, text: str) -> None:
        super().write_text(text)
        self.joined = False


class Context(click.Context):
    """A command's context, whose help is `Compact`, and `WIDTH` wide at most, also where there is no terminal."""

    formatter_class = Compact

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"max_content_width": WIDTH, **settings})
        if self.terminal_width is None and "COLUMNS" not in os.environ and not sys.stdout.isatty():
            self.terminal_width = WIDTH


def write_sections(
    formatter: click.HelpFormatter, ctx: click.Context, sections: Iterable[tuple[str, Iterable[click.Parameter]]]
) -> None:
    """Sections of a command's help, each with a title and the options among its parameters."""
    for title, params in sections:
        options = [param for param in params if isinstance(param, click.Option)]
        records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def output_of(**texts: Any) -> Output:
    """The output options of a command with `shown_options`, which `check_shown` checks."""
    return built(Output, texts, lambda option: option.long)


def check_shown(output: Output, catalogues: Callable[[], Sequence[Catalogue]]) -> None:
    """Refuse an unknown name in ``--format`` or ``--columns`` before anything is measured.

    Args:
        catalogues: of the commands whose tables are shown.
    """
    from ..show.formats import FORMATS, check_format

    names: Sequence[str] = output.columns or ()
    known: Sequence[Catalogue] = ()
    if names or output.format_ not in FORMATS:
        # catalogues are imported only if there is a name to check
        known = catalogues()
    own = [format for catalogue in known for format in catalogue.writers]
    check_format(output.format_, names, own)
    if names:
        from ..show.shown import check_columns

        check_columns(known, names, of_lines=output.format_ == "csv")


def as_shown(output: Output) -> dict[str, Any]:
    """The arguments of `Shown.text`."""
    return {"format": output.format_, "columns": output.columns or ()}


def kinds_from(plots: tuple[str, ...], known: Sequence[str]) -> list[str]:
    """The kinds of figures that ``--plot`` names: of those that are known, or all, or none."""
    kinds = [kind.strip() for text in plots for kind in text.split(",")]
    for kind in kinds:
        if kind not in (*known, ALL, NO_FIGURE):
            raise unknown("plot", kind, [*known, ALL, NO_FIGURE])
    return kinds


def origins() -> dict[str, str]:
    """The origin of each option's value: command line, environment, a sweep's file, or default."""
    ctx = click.get_current_context()
    words: dict[ParameterSource | None, str] = {
        ParameterSource.COMMANDLINE: "command line",
        ParameterSource.ENVIRONMENT: "environment",
        ParameterSource.DEFAULT_MAP: "file",
    }
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name: words.get(source, "default") for name, source in sources.items()}


def unknown_variables(commands: Iterable[click.Command]) -> list[str]:
    """A line for each ``ATTNPROBE_…`` variable that no command and no other part of the program reads."""
    given = [name for name in os.environ if name.startswith(PREFIX) and name not in OWN]
    if not given:
        return []
    params = [param for command in commands for param in command.params]
    known = {*OWN, *(str(option.envvar) for option in params if isinstance(option, click.Option))}
    return [f"{name} is not an option of any command" for name in given if name not in known]
