"""The parts of a command that measures: its request, its measurement, and the types of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..machine.timings import Timings
from ..run.option import options_of

if TYPE_CHECKING:
    from ..files import Fields
    from ..frame.rows import RowTypes
    from ..judge.gates import Gated
    from ..run.cells import Cells
    from ..run.loop import Session
    from ..show.shown import Catalogue


@dataclass(frozen=True)
class Experiment:
    """A command that measures. What imports torch is loaded on use, by functions.

    Attributes:
        name: of the command. summary: the command's line in ``attnprobe --help``.
        request: the class of requests, whose docstring is the command's help. output: the class of output options.
        load_cells: gives the command's `Cells`. load_rows: gives the types of its rows.
        list_all: gives the text of ``--list`` in a format. files_of: gives the contents of files beside the rows of
            finished cells, by name.
        examples: arguments of ``attnprobe NAME`` in examples.
        more_plots: further kinds of figures that ``attnprobe report`` draws.
        gated: the metrics that gates limit; None for a command without gates.
        keeps: kinds of figures that need more than rows; `measure` takes a flag for each.
        compared: the default metrics of `attnprobe compare`; empty if runs of the command cannot be compared.
        whole: whether the metrics of a cell are of the whole model, not of its heads.
        timed: whether times are compared, from rows of kind ``time``.
    """

    name: str
    summary: str
    request: type[Any]
    output: type[Any]
    load_cells: Callable[[], type[Cells]]
    load_rows: Callable[[], RowTypes]
    examples: tuple[str, ...]
    more_plots: tuple[str, ...] = ()
    gated: Gated | None = None
    keeps: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    whole: bool = False
    timed: bool = False
    list_all: Callable[[str], str] | None = None
    files_of: Callable[[Sequence[Fields]], dict[str, dict[str, Any]]] | None = None

    @property
    def plots(self) -> tuple[str, ...]:
        """The kinds of figures that ``--plot`` draws. ``--plot`` without a kind draws the first."""
        return next(option.kinds for option in options_of(self.output) if option.kinds)

    @property
    def cells(self) -> type[Cells]:
        return self.load_cells()

    @property
    def shape(self) -> RowTypes:
        """The types of the command's rows."""
        return self.load_rows()

    @property
    def catalogue(self) -> Catalogue:
        """The command's tables and figures as data."""
        from ..show.shown import Catalogue

        return Catalogue.of(self.name)

    def measure(
        self,
        request: Any,
        *,
        notify: Callable[[str], None] = lambda line: None,
        progress: Callable[[float, int, str], None] = lambda done, total, label: None,
        timings: Timings | None = None,
        **keeps: bool,
    ) -> Session:
        """Measure every cell that the run's folder lacks, and write ``manifest.json`` and ``rows.jsonl`` there.

        A method that raises gives a ``failed`` cell. A method that does not support a setting gives a ``skipped``
        cell. The run goes on after both. The fields of rows are in the reference of rows.

        Args:
            notify: takes lines about the run.
            progress: takes the number of finished cells, the number of all cells, and the current step.
            timings: adds up the times of the steps.
            keeps: a flag for each kind of ``Experiment.keeps``: whether to store what its figures need beside rows.

        Raises:
            UsageError, SourceError: an impossible request, or a source that cannot be read; nothing is left behind.
        """
        # A misspelt flag is refused before hours of measuring, after which its file would be absent.
        kept = [kind for kind in self.keeps if keeps.pop(kind, False)]
        if keeps:
            raise UsageError(
                f"{self.name} cannot keep {next(iter(keeps))}; it keeps {', '.join(self.keeps) or 'nothing'}"
            )
        timings = timings or Timings()
        # Imports of torch take seconds, so they are a stage of their own.
        with timings("imports"):
            from ..run.loop import measure_cells

            cells = self.cells
        return measure_cells(cells, request, notify=notify, progress=progress, timings=timings, kept=kept)
