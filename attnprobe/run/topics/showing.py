"""Options of a command's output, and its gates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...grammar.lists import either, words
from ...show.formats import FORMATS
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

    format_: str = shown("table", f"{either(FORMATS)}.", flag="--format", metavar="FORMAT")
    columns: tuple[str, ...] | None = shown(
        None,
        "Columns to show, by their names. [default: all that fit]",
        metavar="NAME,…",
        parse=words,
    )
    by_layer: bool = shown(False, "Give each layer a table of its own.")
    style: str = shown(
        "paper",
        "Figures for paper, slide, or in a style of matplotlib by name or FILE.",
        metavar="STYLE",
    )
    dry_run: bool = shown(False, "Print the cells, their time and their memory; measure nothing.", in_file=False)
    debug: bool = shown(False, "Show the traceback of an error.", in_file=False)


@dataclass(frozen=True, kw_only=True)
class Timed:
    show_timings: bool = shown(False, "Show how long each stage took.", flag="--timings")


def plots_option(*kinds: str) -> Any:
    """The field of ``--plot``, with the kinds of figures of a command; ``--plot`` alone is the first one."""
    first, *others = kinds
    named = f"{first} (--plot alone), {', '.join(others)} or all" if others else first
    return shown((), f"Draw figures: {named}.", flag="--plot", kinds=kinds, alias="figures", of_whole="figures")


@dataclass(frozen=True, kw_only=True)
class Gates:
    """Limits on values, and the file of their results."""

    gates: tuple[str, ...] = gate(
        (),
        "METRIC[.STAT]=VALUE: exit with 1 if the statistic (mean) is above, missing or undecided.",
        flag="--fail-above",
        metavar="GATE",
        of_whole="gates",
    )
    floors: tuple[str, ...] = gate(
        (),
        "The same if it is below, where more is better.",
        flag="--fail-below",
        metavar="GATE",
        of_whole="gates",
    )
    junit: str | None = gate(None, "Write the results of the gates as JUnit XML.", metavar="FILE", of_whole="gates")
