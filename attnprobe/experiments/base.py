"""What a command that measures is: its request, how it measures, and what its records show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..gates.check import Gated
    from ..tables.console import Header
    from ..tables.view import View

__all__ = ["Experiment", "Recorded"]

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """The records of one command in a run's folder, and what else a view may need of that folder.

    Attributes:
        records: in the order of the plan. header: what stands above tables and figures. folder: the run's.
        config: the options of the run, from its manifest. missing: why cells have no map, by their keys.
        metric: what figures of errors show, where that was asked for. references: values of papers.
    """

    records: Sequence[Record]
    header: Header
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    metric: str | None = None
    references: Sequence[Any] = ()


@dataclass(frozen=True)
class Experiment:
    """A command that measures, as functions; each imports what it needs when it is called.

    Attributes:
        name: of the command. summary: its line in ``attnprobe --help``.
        request: the class of its requests. cells: the class of its `Cells`. measure: measures a request into a run's
            folder (see `measure_cells`).
        view: what the records show. plots: the kinds of figures that its ``--plot`` draws, the first by itself.
        more_plots: kinds that ``attnprobe report`` draws as well. gated: what gates may be about; None has no gates.
    """

    name: str
    summary: str
    request: Callable[[], type]
    cells: Callable[[], type]
    measure: Callable[..., Any]
    view: Callable[[Recorded], View]
    plots: tuple[str, ...]
    more_plots: tuple[str, ...] = ()
    gated: Callable[[], Gated] | None = None
