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

MOST_FACTS = 4  # that a refusal names
MACHINE = ("device", "cpu", "threads", "cores", "system")
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
        a, b: cells of one command: error, inject or bench. metrics: by default those of `Experiment.compared` that both
            measured. names: the runs, as a refusal of one of them names it, such as their paths.

    Raises:
        UsageError: a run without a cell of a method, sources or machines that differ (the facts are named), a metric
            that is unknown or that one run did not measure; and as `compare`.
    """
    one_run = a is b
    command = command_of((*a, *b))
    one = experiment(command)
    known = directed(command)
    for name in metrics:
        refuse_metric(name, known)
    if all_layers and (one.timed or one.whole):
        raise UsageError(f"--all-layers: runs of {command} have no heads of layers; leave it out")
    cells = [best_cells(of, name, command) for of, name in zip((a, b), names, strict=True)]
    refuse_other_sources(*cells)
    frames = [_frame(of, command) for of in cells]
    notes = _of_machines(*frames) if one.timed else []
    judged, lacking = judged_by(list(metrics), one.compared, frames, known)
    left, right = frames[0], frames[0] if one_run else frames[1]
    found = compare(left, right, judged, tolerance, level, pairs, all_layers, statistic)
    every = [cell for of in cells for cell in of]
    labels, of_key = source_labels(every), {_identity(cell): identity(cell["source"]) for cell in every}
    for row in found.rows:
        row["source"] = labels[of_key[row["source"]]] or ""
    return Comparison(found.rows, [*notes, *lacking, *_of_intervals(cells), *found.notes])


def command_of(cells: Sequence[Fields]) -> str:
    """The command of cells, if runs of it are compared; else error."""
    names = {str(cell.get("command", "error")) for cell in cells}
    name = names.pop() if len(names) == 1 else "error"
    return name if name in EXPERIMENTS and experiment(name).compared else "error"


def directed(command: str) -> list[str]:
    """The metrics that runs of a command are compared by: smaller or larger is better, and they have tests."""
    one = experiment(command)
    every = BENCH if one.timed else () if one.gated is None else one.gated.metrics
    return [metric.name for metric in every if metric.better is not None and metric.of_mean is None]


def sources_of(cells: Sequence[Fields]) -> list[Mapping[str, Any]]:
    """The facts of the sources of cells."""
    return [*{_identity(cell): cell["source"] for cell in cells}.values()]


def refuse_metric(name: str, known: Sequence[str]) -> None:
    if name in METRICS and METRICS[name].better is None:
        raise UsageError(f"--metric {name}: neither larger nor smaller is better; choose another metric")
    if name in METRICS and (loss := METRICS[name].of_mean) is not None:
        raise UsageError(f"--metric {name}: it is computed from the mean of {loss}; compare {loss}")
    if name not in known:
        raise unknown("metric", name, known)


def best_cells(cells: Sequence[Fields], name: str, command: str) -> list[Fields]:
    """The cells of the command; of equal ones, the best status wins, then the closest tolerance of matrix errors."""
    from ..frame.records.file import LOWER_BOUND, STATUSES

    best: dict[Any, tuple[Any, Fields]] = {}
    for cell in cells:
        if cell.get("command", command) != command or cell.get("method") == LOWER_BOUND:
            continue
        place = ("target", "n", "d", "layer", "kv_head", "prefix", "backward", "format", "arithmetic", "window", "seed")
        heads = [str(cell.get("heads")), str(cell.get("layers"))]
        at = (_identity(cell), cell.get("method"), options_text(cell.get("options")), *map(cell.get, place), *heads)
        quality = STATUSES.index(cell["status"]), cell.get("matrix_tol") or 1.0
        if at not in best or quality <= best[at][0]:
            best[at] = quality, cell
    if not best:
        commands = sorted({str(cell.get("command")) for cell in cells} - {command})
        others = ", ".join(f"`{other}`" for other in commands)
        holds = f"it holds records of {others}" if others else "it holds no record of a method"
        taken = ", of ".join(f"`{other}`" for other in EXPERIMENTS if experiment(other).compared)
        raise UsageError(f"{name}: {holds}; compare takes two runs of {taken}")
    return [cell for _, cell in best.values()]


def _identity(cell: Fields) -> str:
    """The facts that identify a cell's source, as text."""
    return strict_json({name: fact for name, fact in cell["source"].items() if name not in NAMES})


def _frame(cells: Sequence[Fields], command: str) -> Rows:
    """The frame that `compare` takes; a whole model has one row for each cell."""
    one = experiment(command)
    types = one.shape
    labels = {cell["key"]: _identity(cell) for cell in cells}
    kind = "time" if one.timed else HEAD
    if one.whole and not {*one.compared} & {*types.kinds[HEAD].model_fields}:
        kind = CELL
    frame = frame_of(cells, types, kind, labels)
    frame = times(frame) if one.timed else frame
    return with_draws(frame, cells, one.whole).assign(source=lambda rows: [labels[key] for key in rows["key"]])


def with_draws(frame: Rows, cells: Sequence[Fields], whole: bool) -> Rows:
    """Rows of these cells with the columns on draws that `compare` takes.

    Args:
        whole: a cell is one value of the whole model, so that it has one row.
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
    """Whether the heads of a cell share their draws, by an option or its default; None if that is not known.

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
    """The metrics to compare by, with a note on those that one run lacks. A run without an ok cell has every metric."""
    notes: list[str] = []
    ok = [bool((frame["status"] == "ok").any()) for frame in frames]

    def has(frame: Rows, name: str) -> bool:
        return name in frame and bool(frame[name].notna().any())

    for name in metrics:
        for run, frame, some in zip("AB", frames, ok, strict=True):
            if some and not has(frame, name):
                measured = ", ".join(metric for metric in known if has(frame, metric))
                raise UsageError(
                    f"--metric {name}: {run} did not measure it; measure it there, or name one of {measured}"
                )
    if metrics:
        return list(dict.fromkeys(metrics)), notes
    found = []
    for name in usual:
        there = [has(frame, name) for frame in frames]
        if all(one or not some for one, some in zip(there, ok, strict=True)) and any(there):
            found.append(name)
        elif any(there):
            notes.append(f"{name} was measured in {'A' if there[0] else 'B'} alone: not compared")
    return found or [usual[0]], notes


def refuse_other_sources(a: Sequence[Fields], b: Sequence[Fields]) -> None:
    """Refuse runs of different sources; the facts that differ most tellingly are named."""
    ours, others = ({_identity(cell): cell["source"] for cell in run} for run in (a, b))
    lost = [json.loads(key) for key in ours if key not in others]
    new = [json.loads(key) for key in others if key not in ours]
    if not lost or not new:
        return
    differing = min((_differing(x, y) for x in lost for y in new), key=len)
    pair = min(((x, y) for x in lost for y in new), key=lambda both: len(_differing(*both)))
    facts = [ours[strict_json(pair[0])], others[strict_json(pair[1])]]
    models = [_model(source) for source in facts]
    if "model_sha256" in differing and all(models) and models[0] != models[1]:
        raise UsageError(
            f"A and B measure two models, {models[0]} and {models[1]}: their heads and losses do not pair; "
            "compare methods of one model, compare A --pair LEFT=RIGHT and the same with B"
        )
    first = sorted(differing, key=lambda name: TELLING.index(name) if name in TELLING else len(TELLING))
    told = [f"{name} {_fact(facts[0], name)} in A, {_fact(facts[1], name)} in B" for name in first[:MOST_FACTS]]
    told += [f"{len(first) - MOST_FACTS} more"] if len(first) > MOST_FACTS else []
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
