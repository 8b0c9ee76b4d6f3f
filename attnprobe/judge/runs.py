"""Two runs as frames that may be compared: `compare_runs` refuses those that measured different things."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UsageError, unknown
from ..files import Fields
from ..frame import Rows
from ..frame.labels import TELLING, identity, source_labels
from ..frame.metric import BENCH, METRICS
from ..frame.read import frame_of
from ..frame.records.file import NAMES, strict_json
from ..frame.rows import CELL, HEAD
from ..grammar.foreign import short_hashes
from ..grammar.lists import options_text
from ..measure import EXPERIMENTS, experiment
from .chance import LEVEL
from .compare import TOLERANCE, Comparison, compare
from .times import times

MOST_FACTS = 4  # a refusal names at most so many facts that differ
MACHINE = ("device", "cpu", "threads", "cores", "system")  # times of machines that differ here cannot be compared
VERSIONS = ("torch", "python", "attnprobe")


def compare_runs(
    a: Sequence[Any],
    b: Sequence[Any],
    metrics: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    level: float = LEVEL,
    names: tuple[str, str] = ("A", "B"),
    pairs: Sequence[str] = (),
    all_layers: bool = False,
    statistic: str | None = None,
) -> Comparison:
    """`compare` of the cells of two runs, as `attnprobe.measure.read_run` reads them; both may be one run.

    Args:
        a, b: cells of one command: error, inject or bench.
        metrics: by default those of `Experiment.compared` that both runs measured.
        names: of the runs in messages, such as their paths.

    Raises:
        UsageError: a run without a cell of a method, sources or machines that differ (the facts are named), a metric
            that is unknown or that one run did not measure; and as `compare`.
    """
    one_run = a is b
    command = command_of((*a, *b))
    about = experiment(command)
    known = directed(command)
    for metric in metrics:
        refuse_metric(metric, known)
    if all_layers and (about.timed or about.whole):
        raise UsageError(f"--all-layers: runs of {command} have no heads of layers; leave it out")
    runs = [best_cells(cells, name, command) for cells, name in zip((a, b), names, strict=True)]
    refuse_other_sources(*runs)
    frames = [_frame(cells, command) for cells in runs]
    notes = _of_machines(*frames) if about.timed else []
    judged, lacking = judged_by(list(metrics), about.compared, frames, known)
    # one object on both sides tells `compare` that the sides are one run
    left, right = frames[0], frames[0] if one_run else frames[1]
    found = compare(left, right, judged, tolerance, level, pairs, all_layers, statistic)
    # lines were told apart by the facts of their sources; a reader gets the sources' labels
    every = [cell for cells in runs for cell in cells]
    labels, of_key = source_labels(every), {_identity(cell): identity(cell["source"]) for cell in every}
    for row in found.rows:
        row["source"] = labels[of_key[row["source"]]] or ""
    return Comparison(found.rows, [*notes, *lacking, *_of_intervals(runs), *found.notes])


def command_of(cells: Sequence[Fields]) -> str:
    """The command of cells, if its runs can be compared; else ``error``, whose refusal says what can."""
    names = {str(cell.get("command", "error")) for cell in cells}
    name = names.pop() if len(names) == 1 else "error"
    return name if name in EXPERIMENTS and experiment(name).compared else "error"


def directed(command: str) -> list[str]:
    """The metrics by which runs of a command can be compared: smaller or larger is better, and they have tests."""
    about = experiment(command)
    if about.timed:
        metrics = BENCH
    else:
        metrics = () if about.gated is None else about.gated.metrics
    return [metric.name for metric in metrics if metric.better is not None and metric.of_mean is None]


def sources_of(cells: Sequence[Fields]) -> list[Mapping[str, Any]]:
    """The facts of the sources of cells."""
    return [*{_identity(cell): cell["source"] for cell in cells}.values()]


def refuse_metric(name: str, known: Sequence[str]) -> None:
    """Refuse a metric that is not among the ``known`` ones, with the reason."""
    if name in METRICS and METRICS[name].better is None:
        raise UsageError(f"--metric {name}: neither larger nor smaller is better; choose another metric")
    if name in METRICS and (loss := METRICS[name].of_mean) is not None:
        raise UsageError(f"--metric {name}: it is computed from the mean of {loss}; compare {loss}")
    if name not in known:
        raise unknown("metric", name, known)


def best_cells(cells: Sequence[Fields], name: str, command: str) -> list[Fields]:
    """The cells of the command. Of equal cells, the best status wins, then the smallest tolerance of matrix errors."""
    from ..frame.records.file import LOWER_BOUND, STATUSES

    best: dict[Any, tuple[Any, Fields]] = {}
    for cell in cells:
        if cell.get("command", command) != command or cell.get("method") == LOWER_BOUND:
            continue
        names = ("target", "n", "d", "layer", "kv_head", "prefix", "backward", "format", "window", "seed")
        heads = [str(cell.get("heads")), str(cell.get("layers"))]
        same = (_identity(cell), cell.get("method"), options_text(cell.get("options")), *map(cell.get, names), *heads)
        quality = STATUSES.index(cell["status"]), cell.get("matrix_tol") or 1.0
        if same not in best or quality <= best[same][0]:  # of equally good cells the last
            best[same] = quality, cell
    if not best:
        commands = sorted({str(cell.get("command")) for cell in cells} - {command})
        others = ", ".join(f"`{other}`" for other in commands)
        holds = f"it holds cells of {others}" if others else "it holds no cell of a method"
        taken = ", of ".join(f"`{other}`" for other in EXPERIMENTS if experiment(other).compared)
        raise UsageError(f"{name}: {holds}; compare takes two runs of {taken}")
    return [cell for _, cell in best.values()]


def _identity(cell: Fields) -> str:
    """The facts that identify a cell's source, as text."""
    return strict_json({name: fact for name, fact in cell["source"].items() if name not in NAMES})


def _frame(cells: Sequence[Fields], command: str) -> Rows:
    """The frame that `compare` takes; a whole model has one row for each cell."""
    about = experiment(command)
    types = about.shape
    labels = {cell["key"]: _identity(cell) for cell in cells}
    kind = "time" if about.timed else HEAD
    if about.whole and not {*about.compared} & {*types.kinds[HEAD].model_fields}:
        kind = CELL  # the metrics stand on the line of the cell
    frame = frame_of(cells, types, kind, labels)
    frame = times(frame) if about.timed else frame
    return with_draws(frame, cells, about.whole).assign(source=lambda rows: [labels[key] for key in rows["key"]])


def with_draws(frame: Rows, cells: Sequence[Fields], whole: bool) -> Rows:
    """Rows of these cells with the columns on draws that `compare` takes.

    Args:
        whole: whether a cell is one value of the whole model, so that it has one row.
    """
    import pandas as pd

    if whole:
        frame = frame.drop_duplicates("key").assign(head=pd.NA)
    by_key = {cell["key"]: cell for cell in cells}
    of_row = [by_key[key] for key in frame["key"]]
    return frame.assign(
        options=[options_text(cell.get("options")) for cell in of_row],
        layers=[cell.get("layers") if cell.get("layer") is None else None for cell in of_row],
        requested=[cell.get("requested", True) for cell in of_row],
        draws=pd.array([(cell["draws_hash"] or "") if "draws_hash" in cell else pd.NA for cell in of_row], "string"),
        shares=pd.array([heads_share_draws(cell) for cell in of_row], "boolean"),
    )


def heads_share_draws(cell: Fields) -> bool | None:
    """Whether the heads of a cell share their draws, by an option or its default.

    None if that is not known, as of a user's method without the option.

    >>> (
    ...     heads_share_draws({"options": "share_heads=True"}),
    ...     heads_share_draws({}),
    ...     heads_share_draws({"method_file": {}}),
    ... )
    (True, False, None)
    """
    pairs = (pair.partition("=") for pair in options_text(cell.get("options")).split(","))
    written = {name: value.lower() == "true" for name, _, value in pairs}
    origin = cell.get("method_file")
    return written.get("share_heads", origin.get("share_heads") if origin is not None else False)


def judged_by(
    metrics: list[str], usual: Sequence[str], frames: Sequence[Rows], known: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The metrics to compare by, with a note on each usual metric that one run lacks.

    Args:
        metrics: those that a user names. usual: those that are compared by default. known: those that can be compared.

    Raises:
        UsageError: a run did not measure a metric that the user names.
    """

    def has(frame: Rows, name: str) -> bool:
        return name in frame and bool(frame[name].notna().any())

    # a run without an ok cell may have tried to measure anything: it lacks no metric, and its statuses are compared
    all_failed = [not bool((frame["status"] == "ok").any()) for frame in frames]
    for name in metrics:
        for run, frame, failed in zip("AB", frames, all_failed, strict=True):
            if not failed and not has(frame, name):
                measured = ", ".join(metric for metric in known if has(frame, metric))
                raise UsageError(
                    f"--metric {name}: {run} did not measure it; measure it there, or name one of {measured}"
                )
    if metrics:
        return list(dict.fromkeys(metrics)), []
    found: list[str] = []
    notes: list[str] = []
    for name in usual:
        in_a, in_b = (has(frame, name) for frame in frames)
        if (in_a or all_failed[0]) and (in_b or all_failed[1]) and (in_a or in_b):
            found.append(name)
        elif in_a or in_b:
            notes.append(f"{name} was measured in {'A' if in_a else 'B'} alone: not compared")
    return found or [usual[0]], notes


def refuse_other_sources(a: Sequence[Fields], b: Sequence[Fields]) -> None:
    """Refuse runs of different sources; the facts that differ most tellingly are named."""
    sources_a, sources_b = ({_identity(cell): cell["source"] for cell in run} for run in (a, b))
    only_a = [json.loads(key) for key in sources_a if key not in sources_b]
    only_b = [json.loads(key) for key in sources_b if key not in sources_a]
    if not only_a or not only_b:
        return
    # the two sources that are most alike: their differences are what a reader did not intend
    pair = min(((x, y) for x in only_a for y in only_b), key=lambda sources: len(_differing(*sources)))
    differing = _differing(*pair)
    facts = [sources_a[strict_json(pair[0])], sources_b[strict_json(pair[1])]]
    models = [_model(source) for source in facts]
    if "model_sha256" in differing and all(models) and models[0] != models[1]:
        raise UsageError(
            f"A and B measure two models, {models[0]} and {models[1]}: their heads and losses do not pair; "
            "compare methods of one model, compare A --pair LEFT=RIGHT and the same with B"
        )
    ordered = sorted(differing, key=lambda name: TELLING.index(name) if name in TELLING else len(TELLING))
    told = [f"{name} {_fact(facts[0], name)} in A, {_fact(facts[1], name)} in B" for name in ordered[:MOST_FACTS]]
    if len(ordered) > MOST_FACTS:
        told.append(f"{len(ordered) - MOST_FACTS} more")
    raise UsageError(f"A and B measure different sources: {'; '.join(told)}")


def _model(source: Mapping[str, Any]) -> str:
    """A source's model with its size; empty without one.

    >>> _model({"model": "smollm2", "heads": 9, "p": 64})
    'smollm2 (9 heads of 64)'
    """
    if not source.get("model"):
        return ""
    size = f" ({source['heads']} heads of {source['p']})" if source.get("heads") and source.get("p") else ""
    return f"{source['model']}{size}"


def _differing(x: Mapping[str, Any], y: Mapping[str, Any]) -> list[str]:
    """The names of the facts that two sources do not share."""
    return [name for name in sorted({**x, **y}) if name not in x or name not in y or x[name] != y[name]]


def _fact(source: Mapping[str, Any], name: str) -> str:
    """A fact in words; a hash with the name of the hashed file."""
    if name not in source:
        return "absent"
    text = short_hashes(json.dumps(source[name], ensure_ascii=False)).strip('"')
    called = source.get(name.removesuffix("_sha256")) if name.endswith("_sha256") else None
    return f"{text} ({called})" if called else text


def _of_machines(a: Rows, b: Rows) -> list[str]:
    """Refuse times of different machines; notes on versions that differ, which may be what is compared."""
    facts = [
        {name: " and ".join(dict.fromkeys(map(str, run[name].dropna()))) for name in (*MACHINE, *VERSIONS)}
        for run in (a, b)
    ]
    changed = {
        name: f"{name} {facts[0][name]} in A, {facts[1][name]} in B"
        for name in facts[0]
        if facts[0][name] != facts[1][name]
    }
    machines = [text for name, text in changed.items() if name in MACHINE]
    if machines:
        raise UsageError(f"A and B were measured on different machines: {'; '.join(machines)}")
    return [text for name, text in changed.items() if name in VERSIONS]


def _of_intervals(runs: Sequence[Sequence[Fields]]) -> list[str]:
    """A note on matrix errors whose certified intervals have different widths."""
    widths = [sorted({tol for cell in run if (tol := cell.get("matrix_tol"))}) for run in runs]
    if not widths[0] or not widths[1] or widths[0] == widths[1]:
        return []
    both = " and ".join(", ".join(f"{width:g}" for width in names) for names in widths)
    return [f"matrix errors were measured to different widths, {both}: they differ by as much on their own"]
