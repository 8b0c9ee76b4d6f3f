"""The parts of a command that measures: its request, its measurement, and the view of its records."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import UsageError
from ..figures.drawing import Drawing
from ..run.option import KEYS, options_of
from ..timings import Timings

if TYPE_CHECKING:
    from ..judge.gates import Gated
    from ..run.cells import Cells
    from ..run.loop import Session
    from ..tables.console import Header
    from ..tables.table import Column, Tested
    from ..tables.view import View

R = TypeVar("R")


@dataclass(frozen=True)
class Recorded(Generic[R]):
    """The records of one command in a run's folder, and the other facts about that folder that a view needs.

    Attributes:
        records: in the order of the plan. header: the lines above tables and figures. folder: the run's.
        config: the options of the run, from its manifest. missing: why cells have no map, by their keys.
        metric: the metric of error figures, if one was chosen. references: values of papers.
        tested: the paired test that tells methods from the best one (see `Tested`).
        drawing: how figures are drawn.
    """

    records: Sequence[R]
    header: Header
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    metric: str | None = None
    references: Sequence[Any] = ()
    tested: Tested | None = None
    drawing: Drawing = field(default_factory=Drawing)


@dataclass(frozen=True)
class Experiment:
    """A command that measures. Its parts stand in the folder of its name, under these names:

    ========================  ============================================================================
    ``measure:NAMECells``     its `Cells`
    ``record:SHAPE``          the type of its records
    ``view:view``             makes the `View` of records
    ``view:COLUMNS``          all columns that its tables may have
    ``view:FIELDS``           the names of all fields that its rows may have
    ``setting:list_all``      the text of ``--list`` in a format, if its output options have it
    ========================  ============================================================================

    They are imported on use, because they import torch.

    Attributes:
        name: of the command. summary: its line in ``attnprobe --help``.
        request: the class of its requests; its docstring is the command's help. output: the class of its output
            options.
        examples: arguments of ``attnprobe NAME`` in examples. python: the lines of an example in Python.
        more_plots: further kinds that ``attnprobe report`` draws. gated: the metrics that gates limit; None is no gate.
        keeps: kinds of figures that need more than records; `measure` takes a flag for each.
        compared: the metrics that `attnprobe compare` takes if none is named; none for runs that it does not take.
        whole: whether the metrics of a cell are of the whole model, not of its heads.
        writes: whether it has files of its own beside the records, from ``files:files_of``.
        timed: whether times of two runs are compared, of rows of kind ``time``.
    """

    name: str
    summary: str
    request: type[Any]
    output: type[Any]
    examples: tuple[str, ...]
    python: tuple[str, ...]
    more_plots: tuple[str, ...] = ()
    gated: Gated | None = None
    keeps: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    whole: bool = False
    timed: bool = False
    writes: bool = False

    @property
    def plots(self) -> tuple[str, ...]:
        """The kinds of figures that ``--plot`` draws. ``--plot`` without a kind draws the first."""
        return next(option.kinds for option in options_of(self.output) if option.kinds)

    def part(self, name: str) -> Any:
        """The object ``MODULE:NAME`` of the command's folder."""
        module, _, attribute = name.partition(":")
        return getattr(import_module(f".{self.name}.{module}", __package__), attribute)

    @property
    def cells(self) -> type[Cells]:
        return self.part(f"measure:{self.name.title()}Cells")

    def view(self, recorded: Recorded) -> View:
        """The `View` of records, with all columns and fields that the command may have."""
        return replace(self.part("view:view")(recorded), columns=self.columns, fields=self.fields)

    @property
    def shape(self) -> Any:
        """The type of its records or rows."""
        return self.part("record:SHAPE")

    @property
    def catalogue(self) -> Any:
        """Its tables and figures as data; None if its cells are records."""
        from ..frame.rows import RowTypes
        from ..show.shown import Catalogue

        return Catalogue.of(self.name) if isinstance(self.shape, RowTypes) else None

    @property
    def columns(self) -> Sequence[Column]:
        return self.part("view:COLUMNS") if self.catalogue is None else self.catalogue.columns

    @property
    def fields(self) -> Sequence[str]:
        """The names of all fields that its CSV may have."""
        from ..show.shown import fields

        return self.part("view:FIELDS") if self.catalogue is None else fields(self.catalogue, self.shape)

    def measure(
        self,
        request: Any,
        *,
        notify: Callable[[str], None] = lambda line: None,
        progress: Callable[[float, int, str], None] = lambda done, total, label: None,
        timings: Timings | None = None,
        **keeps: bool,
    ) -> Session:
        """Measure every cell that the run's folder lacks, and write ``manifest.json`` and ``records.jsonl`` there.

        A method that raises gives a ``failed`` record. A method that does not support a setting gives a ``skipped``
        one. The run goes on after both. The fields of records are on the page of records.

        Args:
            notify: takes lines about the run. progress: takes the share of work that is done, the number of cells, and
                the current step. timings: adds up the times of the steps. keeps: whether to keep what figures need
                beside records, a flag for each kind of ``keeps``.

        Raises:
            UsageError, SourceError: an impossible request, or a source that cannot be read; nothing is left behind.
        """
        kept = [kind for kind in self.keeps if keeps.pop(kind, False)]
        if keeps:
            raise UsageError(f"{self.name} keeps no {next(iter(keeps))}")
        timings = timings or Timings()
        with timings("imports"):
            from ..run.loop import measure_cells

            cells = self.cells
        return measure_cells(cells, request, notify=notify, progress=progress, timings=timings, kept=kept)

    def command_line(self, config: Mapping[str, Any]) -> str:
        """The command line of the ``config`` of a manifest, without options at their defaults."""
        words = ["attnprobe", self.name]
        for option in options_of(self.request):
            entry = config.get(option.name)
            if isinstance(entry, Mapping) and option.role == KEYS:
                words += option.arguments(entry.get("value"))
        return shlex.join(words)
