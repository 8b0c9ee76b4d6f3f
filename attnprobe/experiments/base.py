"""The parts of a command that measures: its request, its measurement, and the view of its records."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..figures.drawing import Drawing
from ..run.option import KEYS, options_of

if TYPE_CHECKING:
    from ..gates.check import Gated
    from ..run.cells import Cells
    from ..tables.console import Header
    from ..tables.table import Column
    from ..tables.view import View

R = TypeVar("R")


@dataclass(frozen=True)
class Recorded(Generic[R]):
    """The records of one command in a run's folder, and the other facts about that folder that a view needs.

    Attributes:
        records: in the order of the plan. header: the lines above tables and figures. folder: the run's.
        config: the options of the run, from its manifest. missing: why cells have no map, by their keys.
        metric: the metric of error figures, if one was chosen. references: values of papers.
        drawing: how figures are drawn.
    """

    records: Sequence[R]
    header: Header
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    metric: str | None = None
    references: Sequence[Any] = ()
    drawing: Drawing = field(default_factory=Drawing)


def late(name: str) -> Callable[[], Any]:
    """A function that imports the object ``MODULE:NAME`` below this package, and returns it."""
    module, _, attribute = name.partition(":")
    return lambda: getattr(import_module(f".{module}", __package__), attribute)


def called(name: str) -> Callable[..., Any]:
    """A function that imports the function ``MODULE:NAME`` below this package, and calls it."""
    return lambda *args, **kwargs: late(name)()(*args, **kwargs)


@dataclass(frozen=True)
class Experiment:
    """A command that measures. Parts whose import is slow are functions that import them on use (see `late`).

    Attributes:
        name: of the command. summary: its line in ``attnprobe --help``.
        request: the class of its requests; its docstring is the command's help. output: the class of its output
            options.
        cells: its `Cells`. measure: measures a request into a run's folder (see `measure_cells`).
        view: makes the `View` of records. columns: all columns that its tables may have. fields: the names of all
            fields that its rows may have.
        plots: the kinds of figures that ``--plot`` draws. ``--plot`` without a kind draws the first.
        examples: arguments of ``attnprobe NAME`` in examples. python: the lines of an example in Python.
        more_plots: further kinds that ``attnprobe report`` draws. gated: the metrics that gates limit; None is no gate.
        keeps: kinds of figures that need more than records; ``measure`` takes a flag for each.
        listing: the text of ``--list`` in a format. timed: the rows of records, if times of two runs are compared.
    """

    name: str
    summary: str
    request: type[Any]
    output: type[Any]
    cells: Callable[[], type[Cells]]
    measure: Callable[[], Callable[..., Any]]
    view: Callable[[], Callable[[Recorded], View]]
    columns: Callable[[], Sequence[Column]]
    fields: Callable[[], Sequence[str]]
    plots: tuple[str, ...]
    examples: tuple[str, ...]
    python: tuple[str, ...]
    more_plots: tuple[str, ...] = ()
    gated: Callable[[], Gated] | None = None
    keeps: tuple[str, ...] = ()
    listing: Callable[[], Callable[[str], str]] | None = None
    timed: Callable[[], Callable[[Sequence[Any]], Sequence[Any]]] | None = None

    def command_line(self, config: Mapping[str, Any]) -> str:
        """The command line of the ``config`` of a manifest, without options at their defaults."""
        words = ["attnprobe", self.name]
        for option in options_of(self.request):
            entry = config.get(option.name)
            if isinstance(entry, Mapping) and option.role == KEYS:
                words += option.arguments(entry.get("value"))
        return shlex.join(words)
