"""A run's folder as a report reads it: cells in the order of the plan, manifest, facts, and a pandas frame."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UsageError, unknown
from ...files import path_of
from ...frame.inputs import inputs_frame
from ...frame.labels import identity, measured_words, source_labels
from ...frame.maps import maps_of
from ...frame.read import frame_of
from ...frame.records.file import LOWER_BOUND, STATUSES, missing_maps
from ...frame.records.read import (
    Malformed,
    left_out_note,
    malformed_notes,
    of_last_command,
    read_inputs,
    read_manifest,
    read_typed,
)
from ...frame.rows import HEAD
from ...grammar.arguments import checked
from ...grammar.lists import options_text
from ...measure import EXPERIMENTS, shape_of, subjects_of
from ..header import Header

if TYPE_CHECKING:
    from pandas import DataFrame

    from ...files import JsonObject
    from ...frame.records.shapes import Manifest, Source

PLANNED = ("n", "layers", "methods", "of", "d", "heads", "windows")  # entries of a plan that `_ordered` orders by name
AT_THE_END = 1 << 30  # the rank of a value that the plan does not name


@dataclass(frozen=True)
class Run:
    """A run: its cells by command, its manifest (empty if there is none), and its header.

    Attributes:
        records: the finished cells of each command, each with its rows.
        left_out: the number of cells with other settings than the run's last command, and the number of cells of
            commands that this version cannot show.
        missing: the reason of each missing map, by the cell's key.
        inputs: the statistics of Q, K and V of each layer.
        malformed: invalid lines of rows and inputs, and invalid fields of the manifest; they are left out.
    """

    path: Path
    records: Mapping[str, list[JsonObject]]
    manifest: Manifest = field(default_factory=dict)  # type: ignore[assignment]  # no field of it is required
    left_out: tuple[int, int] = (0, 0)
    missing: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[JsonObject] = ()
    malformed: Sequence[Malformed] = ()

    def __repr__(self) -> str:
        """The folder, and the number of cells of each command by status.

        >>> Run(Path("r"), {"error": [{"status": "ok"}, {"status": "ok"}, {"status": "skipped"}]})
        <Run r: error, 3 cells: 2 ok, 1 skipped>
        """
        parts = []
        for command, records in self.records.items():
            states = Counter(record["status"] for record in records)
            counts = ", ".join(f"{states[state]} {state}" for state in STATUSES if states[state])
            cells = "1 cell" if len(records) == 1 else f"{len(records)} cells"
            parts.append(f"{command}, {cells}: {counts}")
        return f"<Run {self.path}: {'; '.join(parts)}>"

    @property
    def everything(self) -> list[JsonObject]:
        """The cells of all commands."""
        return [record for of_command in self.records.values() for record in of_command]

    @property
    def notes(self) -> list[str]:
        """Warnings above the tables: the run did not finish, or cells are not shown."""
        settings, unknown = self.left_out
        state = self.manifest.get("status")
        lines = []
        if not self.manifest:
            lines.append(f"{self.path} has no manifest.json: the rows alone are shown")
        if state not in (None, "finished"):
            lines.append(f"{self.path}: this run is {state}, not finished")
        lines += left_out_note(self.path, settings)
        if unknown:
            lines.append(f"{unknown} cells of commands that this version cannot show are left out")
        return [*lines, *malformed_notes(self.malformed, "is left out")]

    def frame(self, kind: str | None = None, command: str | None = None) -> DataFrame:
        """The rows of one kind as a tidy pandas frame, in the order of the plan.

        Columns have nullable types: `pandas.NA` is not measured, infinity is infinite. Their meanings are on the
        reference page of rows.

        Args:
            kind: ``head`` has a row for each head; ``cell`` a row for each cell; ``inputs`` the statistics of Q, K and
                V of each head; ``map`` the blocks of the run's maps; further kinds are the command's. By default
                ``head``, or the first kind of a command without heads.
            command: needed if several commands measured into the folder.

        Raises:
            UsageError: no such kind, or no such command in the folder.
        """
        if command is None and len(self.records) > 1:
            raise UsageError(f"{self.path} has rows of {' and '.join(self.records)}: name a command, frame(command=…)")
        command = command or next(iter(self.records))
        if command not in self.records:
            raise unknown("command of the run", command, list(self.records))
        cells, types = self.records[command], shape_of(command)
        assert types is not None  # a run holds commands that are known alone
        kind = kind or (HEAD if HEAD in types.kinds else next(iter(types.kinds)))
        of_sources = source_labels(cells)
        if kind == "inputs":
            return inputs_frame(self.inputs, cells, of_sources)
        labels = {cell["key"]: of_sources[identity(cell["source"])] or "" for cell in cells}
        return maps_of(cells, self.path, labels) if kind == "map" else frame_of(cells, types, kind, labels)

    def plot(self, kind: str, ax: Any = None, panel: int | str = 0, legend: bool = True) -> Any:
        """Draw one panel of a figure on an axis of matplotlib, in the caller's own style.

        The axis gets data, scales, labels, the panel's title, and a legend below it; the size of the figure, its fonts
        and its file are the caller's. A figure without a layout gets the constrained one, which leaves room for the
        legend. ``ax.get_legend()``, ``ax.set_title(…)`` and the like change the rest.

        Args:
            kind: of a figure, as in ``--plot``, such as ``errors``. ax: by default a new axis.
            panel: the panel's number, or a part of its title.
            legend: whether the axis has a legend, and the axis of a map a scale of colours.

        Returns:
            The axis.

        Raises:
            UsageError: an unknown kind, nothing to draw, or no such panel; the message lists the panels.
        """
        from .parts import plot_panel

        return plot_panel(self, kind, ax, panel, legend)

    def header(self, cells: Sequence[JsonObject]) -> Header:
        """The header of tables and figures: each fact that all sources share once, and the facts of each source."""
        described, facts = self._described(), {}
        labels = source_labels(cells)
        for cell in cells:
            facts.setdefault(identity(cell["source"]), cell["source"])
        # a source's own description is in the manifest; without a manifest, its facts are listed
        sources = {key: described.get(key, (fact, _described(fact))) for key, fact in facts.items()}
        lines = [of_source for _, of_source in sources.values()]
        shared = [line for line in lines[0] if all(line in of_source for of_source in lines)]
        own_lines = [line for of_source in lines for line in of_source if line not in shared]
        warnings = list(dict.fromkeys(line for fact, _ in sources.values() for line in fact.get("fallback") or ()))
        by_label = {str(labels[key]): fact for key, (fact, _) in sources.items()}
        source = by_label if len(by_label) > 1 else next(iter(by_label.values()))
        return Header(source, [*own_lines, *shared], warnings, measured_words(cells))

    def _described(self) -> dict[str, tuple[Source, list[str]]]:
        """The facts of each source in the manifest, and its description there, by `identity`."""
        sources, lines = self.manifest.get("source"), self.manifest.get("described")
        sources = sources if isinstance(sources, list) else [sources]
        if not isinstance(lines, list) or len(lines) != len(sources):
            return {}
        pairs = zip(sources, lines, strict=True)
        return {identity(fact): (fact, list(map(str, notes))) for fact, notes in pairs if isinstance(fact, dict)}


@checked()
def open_run(path: str | Path, measured: Sequence[JsonObject] | None = None) -> Run:
    """Read a run's folder. Cells are in the order of the plan, even after interruptions.

    Invalid lines are in `Run.malformed`, each with its file, line and field.

    Args:
        measured: the cells of a run, with those that could not be written. By default the cells of the folder's
            last command.

    Raises:
        UsageError: no folder, no finished cell in it, an invalid manifest, or only cells of unknown commands.

    >>> import json, tempfile
    >>> place = {"source": {}, "options": "", "window": 0, "layer": 0, "n": 8, "heads": [0, 1]}
    >>> cell = {"schema": 1, "kind": "cell", "key": "a", "command": "error", "status": "ok", "method": "x", "lines": 2}
    >>> rows = [{"kind": "head", "key": "a", "head": head, "output_spectral": 0.5 / (1 + head)} for head in (0, 1)]
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "rows.jsonl").write_text("\\n".join(map(json.dumps, [*rows, {**cell, **place}])))
    >>> open_run(folder).frame()["output_spectral"].tolist()
    [0.5, 0.25]
    """
    path = path_of(path)
    if path.is_file():
        raise UsageError(f"{path} is a file; name the run's folder")
    if not path.is_dir():
        raise UsageError(f"{path}: no such folder; runs are in folders under outputs/")
    manifest, fields = read_manifest(path)
    read, inputs = of_last_command(read_typed(path, shape_of), manifest), read_inputs(path)
    if measured is None and not read.required():
        raise UsageError(f"{path} has no finished cell: nothing was measured, or the run was stopped; run it again")
    written = {record["key"]: record for record in read.records}
    records = read.records if measured is None else [written.get(record["key"], record) for record in measured]
    by_command: dict[str, list[JsonObject]] = {}
    for record in records:
        by_command.setdefault(record["command"], []).append(record)
    shown = {command: _ordered(group, manifest) for command, group in by_command.items() if command in EXPERIMENTS}
    unknown = [command for command in by_command if command not in EXPERIMENTS]
    if not shown:
        raise UsageError(f"{path}: its rows are of '{unknown[0]}', which this version does not know; upgrade attnprobe")
    counts = (
        read.left_out + len(written.keys() - {record["key"] for record in records}),
        sum(len(by_command[command]) for command in unknown),
    )
    malformed = [*fields, *read.malformed, *inputs.malformed]
    return Run(path, shown, manifest, counts, missing_maps(path), inputs.records, malformed)


def _ordered(cells: Sequence[JsonObject], manifest: Manifest) -> list[JsonObject]:
    """The cells in the order of the plan, the order of an uninterrupted run; without a plan, unchanged."""
    sources = manifest.get("source")
    sources = sources if isinstance(sources, list) else [sources]
    known = [*(fact for fact in sources if isinstance(fact, dict)), *(cell["source"] for cell in cells)]
    # sources of the manifest first: rows that another process wrote may stand in any order
    rank_of_source = {key: rank for rank, key in enumerate(dict.fromkeys(map(identity, known)))}
    plans: dict[str, tuple[Mapping[str, Any], dict[str, int]]] = {}

    def ranks(cell: Mapping[str, Any]) -> tuple[int, ...]:
        source = identity(cell["source"])
        if source not in plans:
            plan = _plan(manifest, cell["source"])
            plans[source] = plan, _methods(plan)
        plan, methods = plans[source]

        def rank(name, value):
            values = plan.get(name)
            return values.index(value) if isinstance(values, list) and value in values else AT_THE_END

        rank_of_method = _first(cell)
        if rank_of_method is None:
            method_key = json.dumps([_name(cell), options_text(cell["options"])])
            rank_of_method = methods.get(method_key, AT_THE_END)
        return (
            rank_of_source[source],
            rank("n", cell["n"]),
            cell["window"],
            rank("layers", cell["layer"]),
            *(rank(f"{name}s", cell.get(name)) for name in subjects_of(cell["command"])),
            rank_of_method,
            rank("d", cell.get("d")),
            *(rank(name, cell.get(name.removesuffix("s"))) for name in plan if name not in PLANNED),
            cell.get("repeat") or 0,
            rank("heads", cell.get("head")),
        )

    return sorted(cells, key=ranks)


def _plan(manifest: Manifest, source: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plan of a cell's source."""
    # the manifest of several weights has a plan for each
    plan = manifest.get("plan", {})
    own = plan.get(str(source.get("weights")))
    plan = own if isinstance(own, dict) else plan
    layers = plan.get("layers")
    if isinstance(layers, dict):
        plan = {**plan, "layers": layers.get(source.get("weights") or "file")}
    return plan


def _name(record: Mapping[str, Any]) -> str | None:
    """The name of a cell's method or matrix."""
    return record.get("of", record.get("method"))


def _first(record: Mapping[str, Any]) -> int | None:
    """The rank of a cell that no user requests, before all methods: lower bounds and exact attention, then others.

    None for a requested cell.
    """
    if record.get("requested", True):
        return None
    return -2 if record.get("method") == LOWER_BOUND or record.get("family") == "exact" else -1


def _methods(plan: Mapping[str, Any]) -> dict[str, int]:
    """The rank of each method and matrix of a plan, by its name and options as text."""
    requested = plan.get("methods") or plan.get("of")
    named = [
        [entry.get("name"), entry.get("options")] if isinstance(entry, dict) else [entry, {}]
        for entry in (requested if isinstance(requested, list) else ())
    ]
    return {json.dumps([name, options_text(options)]): rank for rank, (name, options) in enumerate(named)}


def _described(facts: Mapping[str, Any]) -> list[str]:
    """A source's facts as lines, if the manifest has no lines of its own."""
    known = {name: fact for name, fact in facts.items() if fact is not None and name != "fallback"}
    lines = [f"{name.replace('_', ' ')}: {fact}" for name, fact in known.items()]
    return lines + [f"fallback: {line}" for line in facts.get("fallback") or ()]
