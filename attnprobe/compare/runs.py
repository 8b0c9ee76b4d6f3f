"""Two runs, cell by cell: what differs, by how much, and whether that may be chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError, unknown
from ..experiments import EXPERIMENTS, experiment
from ..files import Fields
from ..frame.metric import METRICS
from ..grammar.lists import spans
from ..tables.duels import unproven
from ..tables.long import Row
from ..tables.numbers import method_label
from ..tables.results import TOLERANCE
from .cells import Key, cells_of, grouped, in_lists, layers_together, per_head, shared_sources
from .chance import LEVEL
from .costs import costs_of, nearer
from .drafts import drafted, place_of, timed_drafts, timed_place
from .notes import cells_in_words, named, of_all_keys, of_bad_rows, of_chance, of_intervals, pairings
from .pairing import aligned, paired
from .pairs import related
from .times import timed_cells
from .verdicts import (
    BENCHED,
    MISSING,
    Draft,
    alone,
    other_versions,
    refuse_other_machines,
    with_verdicts,
)

VERDICTS = ("worse", "better", "same", "undecided")


@dataclass(frozen=True)
class Comparison:
    """The result of `compare_runs`.

    Attributes:
        rows: one per row of the table and metric, and one per row of the table with cells that only one run has; those
            that were requested and are not compared stand first (see `missing`).
        sources: the facts of the sources that both runs share.
        notes: what a reader should know besides, a line each.
    """

    rows: list[Row]
    sources: list[Mapping[str, Any]]
    notes: list[str]

    @property
    def regressions(self) -> list[Row]:
        return [row for row in self.rows if row["verdict"] == "worse"]

    @property
    def undecided(self) -> list[Row]:
        """The rows that chance leaves open, and the `missing` ones."""
        return [row for row in self.rows if row["verdict"] in ("undecided", MISSING)]

    @property
    def missing(self) -> list[Row]:
        """The rows that were requested, but are in one run only: nothing of them is compared."""
        return [row for row in self.rows if row["verdict"] == MISSING]

    @property
    def compared(self) -> list[Row]:
        """The rows with a metric."""
        return [row for row in self.rows if row["metric"] is not None]

    def in_words(self) -> str:
        """How many rows have each verdict, and how many are not compared."""
        counts = Counter(row["verdict"] for row in self.compared)
        parts = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
        parts += [f"{len(self.missing)} not compared"] if self.missing else []
        count = len(self.compared)
        return ": ".join(filter(None, [f"{count} row{'s' * (count != 1)} compared", ", ".join(parts)]))

    def sources_in_words(self) -> list[str]:
        """A line for each source: its label, and the other facts of its identity."""
        names = ("model", "weights", "weights_seed", "scale_inputs", "text", "qkv", "tokenizer", "positions", "dtype")
        lines = []
        for facts in self.sources:
            known = (f"{name} {facts[name]}" for name in names if facts.get(name) is not None)
            lines.append(f"source: {', '.join(known) or 'without facts'}")
        return lines


def compare_runs(
    a: Iterable[Any],
    b: Iterable[Any],
    metrics: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    level: float = LEVEL,
    names: tuple[str, str] = ("A", "B"),
    pairs: Sequence[str] = (),
    all_layers: bool = False,
) -> Comparison:
    """Compare the cells of run B with those of run A, from their records.

    A cell is a (method, options, target, n, d, layer, window, seed, heads) of one source; a row of the result gathers
    the windows, seeds and heads of one (source, method, options, target, n, d, layer). A cell of `attnprobe inject` has
    no heads, for its metrics are of the whole model. The cells of a row are paired:

    - ``paired: cells``: the cells that both runs have, head by head.
    - ``paired: windows``: none in common, but windows with the same heads, such as runs of different seeds; or two
      methods of which one has several seeds. The means over seeds are paired.
    - ``paired: null``: neither; all cells of each run. ``seeds_a`` and ``seeds_b`` are those of the cells compared.

    ``a`` and ``b`` are the ``statistic`` of the heads where both values are finite: their mean; their median where
    rounded rows carry the mean (see `fragile_statistics`), or the mean of the heads without any where they carry both.
    Of these two, a test of windows has the mean over windows of the statistic of each. ``difference`` is ``b - a``, and
    ``ratio`` is ``b / a``. A change counts where it exceeds ``tolerance`` on the metric's own scale (see `Metric`).
    Whether it may be chance is computed by ``test``, whose p-values are corrected by Holm's method over the rows of a
    table; ``low`` and ``high`` are what it does not refuse of the difference in this row alone (see
    `Evidence.interval`):

    - null: both runs read the same cells with the same draws, so nothing differs by chance.
    - ``pairs``: other draws; the permutation test of the values that both runs have of a window, head and seed, or of
      a window and head if their seeds differ. Of two methods a pair is a head, in all its windows together.
    - ``windows``: Student's test of the W windows' differences, with W − 1 degrees of freedom (``freedom``), where a
      window has one value, as of a whole model, or no independent pairs (``share_heads``, times, other numbers of
      seeds), or several windows have fewer than `FEWEST` pairs.
    - ``two samples``: Welch's test of the window means, of runs that share no window.

    ``se`` is the standard error of a difference that has a test of windows, null otherwise; ``difference_in_se`` is
    the difference by it. The verdict is

    - ``worse``: worse by more than is tolerated, and not by chance (no test needed, or p_adjusted ≤ ``level``); or
      values that are finite in A alone, or a cell whose status got worse. ``better``: the opposite.
    - ``same``: a change within the tolerance and, where a test applies, an interval within it (as two one-sided tests).
    - ``undecided``: any other change, which may be chance or is carried by rounded rows, as ``reason`` says.
    - ``only in A``, ``only in B``: cells without a partner in the other run; ``reason`` names their windows, seeds and
      heads. They are in no mean. A row that was requested and that one run lacks altogether is ``missing``.

    With ``pairs`` a row compares two methods: LEFT of A with RIGHT of B, which may be the same run (see `related`).
    Heads and windows are then the sample of the test, also where nothing is drawn.

    Of two runs of bench the times are compared: see `timed_drafts`. Lower bounds are the source's, not a method's: left
    out.

    Args:
        a, b: records of one command: error, inject or bench.
        metrics: of the command, with a better direction; by default those of `Experiment.compared` that both measured.
        level: the two-sided level, of all rows of a table together.
        pairs: methods to compare with one another, each ``LEFT=RIGHT``.
        all_layers: a row gathers all layers, with a head of each layer as a head; of error alone.
        names: the runs, as a refusal of one of them names it, such as their paths.

    Raises:
        UsageError: a run without a record of a method, sources that differ (the facts are named), no cell of the same
            row in both, none with a number or another status, records of other commands, a metric that is unknown or
            that one run did not measure, an impossible tolerance or level; with ``all_layers``, two sides of a row
            with different layers.

    >>> cell = {"method": "x", "n": 8, "d": 2, "layer": 0, "heads": [0], "status": "ok", "source": {}, "seed": 0}
    >>> run = lambda *values: [{**cell, "window": w, "metrics": {"output_spectral": [v]}} for w, v in enumerate(values)]
    >>> (row,) = compare_runs(run(1.0, 2.0), run(2.0, 4.0), ["output_spectral"]).rows
    >>> [row[name] for name in ("a", "b", "difference", "se", "freedom", "paired", "verdict", "reason")]
    [1.5, 3.0, 1.5, 0.5, 1, 'cells', 'undecided', 'p = 0.20 over 2 windows']
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise UsageError(f"tolerance={tolerance:g}: choose a share of A's value, such as 0.05")
    if not 0 < level < 1:
        raise UsageError(f"level={level:g}: choose a probability above 0 and below 1, such as 0.05")
    one_run = a is b
    a = list(map(in_lists, a))
    b = a if one_run else list(map(in_lists, b))
    command = command_of((*a, *b))
    timed = bool(a and b) and experiment(command).timed
    known = BENCHED if timed else directed(command)
    for metric in metrics:
        if metric in METRICS and METRICS[metric].better is None:
            raise UsageError(f"--metric {metric}: neither larger nor smaller is better; choose another metric")
        if metric in METRICS and (loss := METRICS[metric].of_mean) is not None:
            raise UsageError(f"--metric {metric}: it is computed from the mean of {loss}; compare {loss}")
        if metric not in known:
            raise unknown("metric", metric, known)
    notes: list[str] = []
    if all_layers and (timed or experiment(command).whole):
        raise UsageError(f"--all-layers: runs of {command} have no heads of layers; leave it out")
    if timed:
        refuse_other_machines(a, b)
        notes += other_versions(a, b)
        a = timed_cells(a)
        b = a if one_run else timed_cells(b)
    if pairs:
        a, b, repeated = related(a, b, pairs)
        notes += [f"--pair {text} repeats an earlier pair: counted once" for text in repeated]
    runs = [cells_of(records, name, command, all_layers) for name, records in zip(names, (a, b), strict=True)]
    shared, varying = shared_sources(*runs)
    notes += of_intervals(*runs)
    a_rows, b_rows = rows_of = [grouped(run) for run in runs]
    requested = [  # without references: that V-Mean agrees says nothing
        {key for key, cells in rows.items() if any(cell.get("requested", True) for cell in cells.values())}
        for rows in rows_of
    ]
    common = requested[0] & requested[1]
    _refuse_other_layers(common, *rows_of)
    if not common:
        if pairs:
            raise UsageError("no pair has both methods at the same target, n, d and layer: nothing to compare")
        hint = "--pair NAME=NAME compares two methods, NAME:d=32=NAME:d=64 two budgets"
        what = "requested method at the same options, target, n, d and layer"
        raise UsageError(f"A and B have no {what}: nothing to compare; {hint}")
    judged_by = list(dict.fromkeys(metrics))
    if not timed:
        judged_by = judged_by or _measured_by_both(experiment(command).compared, a_rows, b_rows, notes)
        _refuse_unmeasured(metrics, known, rows_of)
    judged_by = judged_by or [*experiment(command).compared]

    def place(cells: Sequence[Fields]) -> Row:
        return place_of(cells, varying) if not timed else timed_place(cells[-1])

    drafts: list[Draft | Row] = []
    found = False
    for key in sorted({**a_rows, **b_rows}, key=_order(a_rows, b_rows)):
        ours, others = a_rows.get(key, {}), b_rows.get(key, {})
        if not timed:
            ours, others = aligned(ours, others), aligned(others, ours)
        pairing = paired(ours, others)
        if ours and others:
            if not timed:
                near = nearer(key, a_rows, b_rows) if pairs else None
                made = drafted(pairing, varying, judged_by, costs_of(pairing.a.values(), pairing.b.values(), near))
            else:
                made = timed_drafts([*ours.values()][-1], [*others.values()][-1], judged_by)
            found = found or (key in common and any(draft.tells for draft in made))
            drafts += made
        missing = not (ours and others) and key in requested[0] | requested[1]
        for name, cells, used in (("A", ours, pairing.a), ("B", others, pairing.b)):
            if only := [cells[cell] for cell in cells if cell not in used]:
                drafts.append(alone(place(only), name, missing, cells_in_words(only)))
    if not found:
        raise UsageError(f"no row of both has a number in {' or '.join(judged_by)}: nothing to compare")
    judged = with_verdicts(drafts, tolerance, level)
    judged.sort(key=lambda row: row["verdict"] != MISSING)  # these first
    notes += of_bad_rows(a_rows, b_rows) if not timed else []
    notes += [*pairings(judged), *of_all_keys(judged), *of_chance(judged, level), *unproven(judged)]
    return Comparison(judged, shared, notes)


def command_of(records: Iterable[Fields]) -> str:
    """The command of records, if runs of it are compared; else error."""
    names = {str(record.get("command", "error")) for record in records}
    name = names.pop() if len(names) == 1 else "error"
    return name if name in EXPERIMENTS and experiment(name).compared else "error"


def directed(command: str) -> list[str]:
    """The metrics that runs of a command are compared by: smaller or larger is better, and they have tests."""
    gated = experiment(command).gated
    every = () if gated is None else gated.metrics
    return [metric.name for metric in every if metric.better is not None and metric.of_mean is None]


def _refuse_unmeasured(
    metrics: Sequence[str], known: Sequence[str], rows_of: Sequence[Mapping[Key, Mapping[Key, Fields]]]
) -> None:
    for metric in metrics:
        for name, rows in zip("AB", rows_of, strict=True):
            if not _measured(rows, metric) and _has_ok(rows):
                names = ", ".join(metric for metric in known if _measured(rows, metric))
                cells = (cell for of_row in rows.values() for cell in of_row.values())
                sides = ", ".join(dict.fromkeys(method_label(cell) for cell in cells if "pair" in cell))
                lacking = f"no value of {sides};" if sides else f"{name} did not measure it; measure it there, or"
                raise UsageError(f"--metric {metric}: {lacking} name one of {names}")


def _refuse_other_layers(
    common: Collection[Key], a: Mapping[Key, Mapping[Key, Fields]], b: Mapping[Key, Mapping[Key, Fields]]
) -> None:
    """Refuse rows over all layers whose sides have different layers."""
    for key in filter(common.__contains__, a):
        cells = [[*rows[key].values()] for rows in (a, b)]
        layers = [layers_together(side) for side in cells]
        if layers[0] != layers[1]:
            sides = ("on the left", "on the right") if "pair" in cells[0][0] else ("in A", "in B")
            has = " and ".join(f"{spans(each)} {side}" for each, side in zip(layers, sides, strict=True))
            raise UsageError(f"--all-layers: {named(cells[0][0])} has layers {has}; measure it in the same layers")


def _order(*runs: Mapping[Key, Any]) -> Any:
    """Rows by source, layer, n and target, then as the runs list their methods, then by d."""
    first: dict[Key, int] = {}
    for rows in runs:
        for key in rows:
            for part in (key[:1], key[1:3]):
                first.setdefault(part, len(first))

    def order(key: Key) -> Key:
        source, method, options, target, n, d, layer, *_ = key
        numbers = [-1 if value is None else value for value in (layer, n, d)]
        return first[source,], *numbers[:2], str(target), first[method, options], numbers[2]

    return order


def _measured(rows: Mapping[Key, Mapping[Key, Fields]], metric: str) -> bool:
    return any(per_head(cell, metric) is not None for cells in rows.values() for cell in cells.values())


def _has_ok(rows: Mapping[Key, Mapping[Key, Fields]]) -> bool:
    return any(cell["status"] == "ok" for cells in rows.values() for cell in cells.values())


def _measured_by_both(
    metrics: Sequence[str], a: Mapping[Key, Any], b: Mapping[Key, Any], notes: list[str]
) -> list[str]:
    """Those of the metrics that both runs have. A run without any ok cell counts as having them."""
    common = []
    for metric in metrics:
        has = [_measured(rows, metric) or not _has_ok(rows) for rows in (a, b)]
        if all(has) and (_measured(a, metric) or _measured(b, metric)):
            common.append(metric)
        elif any(has) and (_measured(a, metric) or _measured(b, metric)):
            notes.append(f"{metric} was measured in {'A' if has[0] else 'B'} alone: not compared")
    return common or [metrics[0]]
