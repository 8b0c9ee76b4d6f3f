"""Options of a command's output, and its gates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...grammar.lists import words
from ...show.formats import metavar
from ...show.styles import check_style
from ..option import GATES, OUTPUT, check_fields, opt

ALL, NO_FIGURE = "all", "none"  # what --plot takes beside kinds of figures
shown, gate = partial(opt, group=OUTPUT), partial(opt, group=GATES)


@dataclass(frozen=True, kw_only=True)
class Output:
    """The output of a command."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_style(self.style)

    format_: str = shown("table", "Format of the output on stdout.", flag="--format", metavar=metavar())
    columns: tuple[str, ...] | None = shown(
        None,
        "The columns to show, in this order, by the names that the table has; with csv, fields of rows. Columns that "
        "say what a row is of always stay in tables. [default: all that fit]",
        metavar="NAME,…",
        parse=words,
    )
    by_layer: bool = shown(False, "Give each layer a table of its own, where a table has all layers together.")
    style: str = shown(
        "paper",
        "The look of figures, which are written as SVG, PNG and PDF: paper is as wide as a column or the text, in 8 "
        "points; slide is 16:9 with large type; what a style of matplotlib (name or file) sets wins, except colours of "
        "methods.",
        metavar="paper|slide|NAME|FILE.mplstyle",
    )
    dry_run: bool = shown(
        False, "Print the cells, how many are done, and an estimate of time and memory. Measure nothing.", in_file=False
    )
    debug: bool = shown(False, "Show the traceback if an error occurs.", in_file=False)


@dataclass(frozen=True, kw_only=True)
class Timed:
    show_timings: bool = shown(False, "Show on stderr how long each stage took.", flag="--timings")


def plots_option(help: str, *kinds: str) -> Any:
    """The field of ``--plot``, with the kinds of figures of a command."""
    return shown((), help, flag="--plot", kinds=kinds, alias="figures", of_whole="figures")


def gates_option(value: str) -> Any:
    """The field of ``--fail-above``; a gate compares ``value``."""
    return gate(
        (),
        f"Exit with 1 if {value} is above VALUE, missing or undecided.",
        flag="--fail-above",
        metavar="METRIC[.STAT]=VALUE",
        of_whole="gates",
    )


@dataclass(frozen=True, kw_only=True)
class Gates:
    """Limits on values, and the file of their results."""

    gates: tuple[str, ...] = gates_option("a statistic (default: mean)")
    floors: tuple[str, ...] = gate(
        (),
        "Exit with 1 if it is below VALUE, missing or undecided: for metrics of which more is better.",
        flag="--fail-below",
        metavar="METRIC[.STAT]=VALUE",
        of_whole="gates",
    )
    junit: str | None = gate(
        None, "Write the results of the gates as JUnit XML, for CI.", metavar="FILE", of_whole="gates"
    )
