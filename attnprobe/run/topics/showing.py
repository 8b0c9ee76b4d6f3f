"""Options of a command's output, and its gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...figures.drawing import Drawing, check_style
from ..option import SHOWN, check_fields, opt
from .headings import GATES, OUTPUT
from .lists import words


@dataclass(frozen=True, kw_only=True)
class Output:
    """The output of a command."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_style(self.style)

    @property
    def drawing(self) -> Drawing:
        """The look of figures."""
        return Drawing(self.style, self.title, self.svg_text)

    format_: str = opt(
        "table",
        "Format of the output on stdout.",
        group=OUTPUT,
        flag="--format",
        metavar="table|json|jsonl|csv|md|latex|github",
        role=SHOWN,
    )
    columns: tuple[str, ...] | None = opt(
        None,
        "The columns to show, in this order, by the names that the table has; with csv, fields of rows. Columns that "
        "say what a row is of always stay in tables. [default: all that fit]",
        group=OUTPUT,
        metavar="NAME,…",
        parse=words,
        role=SHOWN,
    )
    legend: bool = opt(
        False,
        "Explain every column, and show where Q, K and V come from in full.",
        group=OUTPUT,
        role=SHOWN,
    )
    style: str = opt(
        "paper",
        "The look of figures, which are written as SVG, PNG and PDF: paper is as wide as a column or the text, in 8 "
        "points; slide is 16:9 with large type; a style file of matplotlib changes fonts, colours of axes and lines.",
        group=OUTPUT,
        metavar="paper|slide|FILE.mplstyle",
        role=SHOWN,
    )
    title: bool | None = opt(
        None,
        "Write a title above each figure, or none. [default: on slides alone; the caption file has it]",
        group=OUTPUT,
        flag="--title/--no-title",
        role=SHOWN,
    )
    svg_text: bool = opt(
        False,
        "Keep texts of SVG files as texts, to be edited and shown in the reader's fonts.",
        group=OUTPUT,
        role=SHOWN,
    )
    dry_run: bool = opt(
        False,
        "Print the cells, how many are done, and an estimate of time and memory. Measure nothing.",
        group=OUTPUT,
        role=SHOWN,
        in_file=False,
    )
    debug: bool = opt(False, "Show the traceback if an error occurs.", group=OUTPUT, role=SHOWN, in_file=False)


@dataclass(frozen=True, kw_only=True)
class Timed:
    show_timings: bool = opt(
        False, "Show on stderr how long each stage took.", group=OUTPUT, flag="--timings", role=SHOWN
    )


def plot_option(help: str) -> Any:
    """The field of ``--plot`` of a command with one kind of figures."""
    return opt(False, help, group=OUTPUT, role=SHOWN, alias="figures", of_whole="figures")


def gates_option(value: str) -> Any:
    """The field of ``--fail-above``; a gate compares ``value``."""
    return opt(
        (),
        f"Exit with 1 if {value} exceeds VALUE or is missing.",
        group=GATES,
        flag="--fail-above",
        metavar="METRIC[.STAT]=VALUE",
        role=SHOWN,
        of_whole="gates",
    )


@dataclass(frozen=True, kw_only=True)
class Gates:
    """Limits on values, and the file of their results."""

    gates: tuple[str, ...] = gates_option("a statistic (default: mean) of a table row")
    floors: tuple[str, ...] = opt(
        (),
        "Exit with 1 if the statistic is below VALUE or is missing: for metrics of which more is better.",
        group=GATES,
        flag="--fail-below",
        metavar="METRIC[.STAT]=VALUE",
        role=SHOWN,
        of_whole="gates",
    )
    junit: str | None = opt(
        None,
        "Write the results of the gates as JUnit XML, for CI.",
        group=GATES,
        metavar="FILE",
        role=SHOWN,
        of_whole="gates",
    )
